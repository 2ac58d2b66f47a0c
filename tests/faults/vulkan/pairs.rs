//! A driver that fails while its GPU is the partner in a pair: the CPU does what was begun, and all that follows.

use std::time::Duration;

use heg_runtime::exec::{Executor, ExecutorOptions, PairLanes, PairWay};
use heg_spec::policy::{PairLevel, Pairing, Synchronisation};
use heg_spec::{Side, shipped};
use heg_tests::{greedy, roles};
use heg_vk_faults::{Installed, VkFault, VkPlan};

use super::lanes::before_requests;
use super::{Seen, layered, plan, plan_one};
use crate::world::{ANSWER_TOKENS, CHUNK_TOKENS, GPU_PAIR, World, gpu_bundle, references};

/// Answers all prompts with passes of the GPU alone, until it is lost, and checks them; returns the side that was lost, and
/// the passes of the GPU.
fn answers_of_the_gpu(layer: &Installed, planned: &VkPlan) -> (Option<Side>, u64) {
    plan(layer, planned);
    let pairing = Pairing {
        level: PairLevel::Tensor,
        synchronisation: Synchronisation::Fast,
    };
    let loader = roles::loader(gpu_bundle(), &shipped::soc(GPU_PAIR).unwrap());
    let loader = loader.paired(pairing, PairLanes::One).unwrap();
    let pair = loader.pair().unwrap().clone();
    pair.keep_to(Some(PairWay::Partner));
    let options = ExecutorOptions {
        chunk_tokens: CHUNK_TOKENS,
        ..ExecutorOptions::default()
    };
    let mut executor = Executor::new(loader, options).unwrap();
    for known in references(GPU_PAIR) {
        let mut sequence = executor.sequence().unwrap();
        let tokens = ANSWER_TOKENS as usize;
        let found = greedy(&mut executor, &mut sequence, &known.prompt, tokens);
        assert_eq!(found.unwrap(), known.answer, "{planned:?}");
    }
    (pair.lost_side(), pair.partner_passes())
}

#[test]
fn a_pass_of_a_lost_gpu_is_run_by_the_cpu() {
    let test = "vulkan::pairs::a_pass_of_a_lost_gpu_is_run_by_the_cpu";
    layered(test, Duration::from_secs(240), |layer| {
        let (lost, passes) = answers_of_the_gpu(layer, &VkPlan::default());
        assert_eq!(lost, None);
        let seen = Seen::at_end(layer);
        seen.left_nothing("without a fault");
        // A pass is some submissions, the more the slower the device is: these are some passes, and never all.
        let after = 2 * passes;
        let all = seen.ends[0];
        assert!(all.waits.min(all.submissions) > 2 * after, "{all:?}");
        for fault in [VkFault::LostAtSubmission, VkFault::LostAtWait] {
            let what = format!("{fault:?} after {after}");
            let (lost, done) = answers_of_the_gpu(layer, &VkPlan::of(fault, after, 1));
            assert!((1..passes).contains(&done), "{what}: {done} of {passes}");
            assert_eq!(lost, Some(Side::First), "{what}");
            let seen = Seen::at_end(layer);
            assert_eq!(seen.faults, [fault.name()], "{what}");
            seen.left_nothing(&what);
        }
    });
}

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
