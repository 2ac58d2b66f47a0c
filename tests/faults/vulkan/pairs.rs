//! A driver that fails while its GPU is the partner in a pair: the CPU does what was begun, and all that follows.

use std::time::Duration;

use heg_spec::Side;
use heg_vk_faults::VkFault;

use super::lanes::before_requests;
use super::{Seen, layered, plan_one};
use crate::world::{GPU_PAIR, World};

#[test]
fn a_lost_half_leaves_each_product_to_the_cpu() {
    let test = "vulkan::pairs::a_lost_half_leaves_each_product_to_the_cpu";
    layered(test, Duration::from_secs(240), |layer| {
        // All products are the GPU's.
        let ready = before_requests(layer, "heterollm-layer", GPU_PAIR);
        for (fault, after) in [
            (VkFault::LostAtSubmission, ready.submissions + 3),
            (VkFault::LostAtWait, ready.waits + 7),
        ] {
            plan_one(layer, fault, after, 1);
            let what = format!("{fault:?} after {after}");
            let world = World::new("heterollm-layer", GPU_PAIR);
            world.crowd_is_served();
            world.crowd_is_served();
            let pair = world.engine.status().unwrap().pair.unwrap();
            assert_eq!(pair.lost, Some(Side::First), "{what}");
            let parts = pair.parts.unwrap().count;
            assert!(parts > 0, "{what}");
            world.is_empty_again();
            drop(world);
            let seen = Seen::at_end(layer);
            assert_eq!(seen.faults, [fault.name()], "{what}");
            seen.left_nothing(&what);
        }
    });
}
