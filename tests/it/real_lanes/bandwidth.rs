//! Mechanisms that go by bandwidth, where it was measured and no annotation states it.

use heg_sched::{Class, Mechanism};
use heg_spec::policy::Pressure;

use super::{CHUNK, Stage, World, end, policy};

/// A person's answer decodes while background prompts are read, one after the other.
fn ask(stage: &Stage) {
    let answer = stage.ask(Class::Reactive, 20, 250);
    stage.wait_for_first_tokens(1);
    let background = [3, 2, 1, 4].map(|chunks| stage.ask(Class::Proactive, chunks * CHUNK, 1));
    background.into_iter().for_each(end);
    end(answer);
}

/// What `heg profile` measured is enough for the deferral of memory-bound kernels and for tiers of pressure; where it
/// measured nothing, neither knows of any bandwidth. The limits are low, as the tiny agent's kernels are.
#[test]
fn what_was_measured_is_enough_to_hold_back_what_needs_bandwidth() {
    let (measured, unknown) = (World::measured(), World::plain());
    let deferral = || {
        policy("agent-xpu", |policy| {
            policy.prefill.joint_bandwidth_max = Some(0.01);
        })
    };
    let tiers = || {
        policy("agent-xpu-v1", |policy| {
            policy.pressure = Some(Pressure {
                medium: 0.005,
                high: 0.01,
                duration_bound: false,
            });
        })
    };
    let deferred = |world: &World| {
        world
            .play(deferral(), ask)
            .acted(Mechanism::BandwidthDeferral)
    };
    let held = |world: &World| world.play(tiers(), ask).acted(Mechanism::Pressure);
    assert!(deferred(&measured) > 0 && held(&measured) > 0);
    assert_eq!((deferred(&unknown), held(&unknown)), (0, 0));
}
