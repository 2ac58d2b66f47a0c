//! Graphs that are switched block by block while requests are served: everybody gets the same tokens as from resident
//! kernels, even if requests are cancelled or preempted meanwhile, or graphs cannot be loaded.
//!
//! The kernels with their weights inside are OpenVINO's for a CPU.

use heg_runtime::engine::{Fault, FaultPlan, Victim};
use heg_sched::{Finish, Switching};
use heg_tests::openvino_or_skip;

use crate::world::World;

/// Machines with one lane, under schedulers that run prompts kernel by kernel and pass by pass, and a machine with two
/// lanes.
const MACHINES: [(&str, &str); 3] = [
    ("agent-xpu-one-device", "host-cpu-openvino"),
    ("cpu-continuous-batching", "host-cpu-openvino"),
    ("agent-xpu", "host-roles-openvino"),
];

/// Returns all of them with `HEG_FULL=1`; otherwise the last one, since their kernels are slow to load.
fn machines() -> &'static [(&'static str, &'static str)] {
    match std::env::var_os("HEG_FULL") {
        Some(_) => &MACHINES,
        None => &MACHINES[2..],
    }
}

const WAYS: [Switching; 2] = [Switching::Resident, Switching::Progressive];

/// Returns a world whose machine switches at every boundary.
fn always(machine: (&str, &'static str)) -> World {
    let plan = FaultPlan::default();
    plan.switch_always();
    World::switching(machine, Switching::Progressive, plan)
}

#[test]
fn every_way_to_switch_gives_the_same_tokens() {
    if !openvino_or_skip("every_way_to_switch_gives_the_same_tokens") {
        return;
    }
    for &machine in machines() {
        for way in WAYS {
            let world = World::switching(machine, way, FaultPlan::default());
            world.crowd_is_served();
            // Alone, with pauses in which blocks are unloaded.
            for at in [3, 5, 7] {
                let answer = world.submit(at);
                let flow = answer.flow.unwrap();
                let (tokens, ending) = answer.wait();
                assert_eq!(ending.finish, Finish::Complete, "{machine:?}, {way:?}");
                assert_eq!(tokens, world.references[at].answer, "{machine:?}, {way:?}");
                world.engine.end_flow(flow);
                std::thread::sleep(std::time::Duration::from_millis(400));
            }
            world.is_empty_again();
        }
    }
}

#[test]
fn switching_at_every_boundary_gives_the_same_tokens() {
    if !openvino_or_skip("switching_at_every_boundary_gives_the_same_tokens") {
        return;
    }
    for machine in MACHINES {
        let world = always(machine);
        world.crowd_is_served();
        world.is_empty_again();
    }
}

#[test]
fn requests_may_be_given_up_and_preempted_amid_a_switch() {
    if !openvino_or_skip("requests_may_be_given_up_and_preempted_amid_a_switch") {
        return;
    }
    for &machine in machines() {
        let world = always(machine);
        let mut served = 0;
        for after_ms in [0, 30] {
            let [background, unwanted] = [5, 5].map(|at| (at, world.submit(at)));
            std::thread::sleep(std::time::Duration::from_millis(after_ms));
            let person = (3, world.submit(3));
            world.engine.cancel(unwanted.1.id);
            for (at, answer) in [person, background, unwanted] {
                let flow = answer.flow.unwrap();
                let (tokens, ending) = answer.wait();
                let expected = &world.references[at].answer;
                assert_eq!(tokens, expected[..tokens.len()], "{machine:?}: {ending:?}");
                world.engine.end_flow(flow);
                served += u32::from(ending.finish == Finish::Complete);
            }
        }
        assert!(served >= 4, "{machine:?}: {served}");
        world.is_empty_again();
    }
}

#[test]
fn a_block_whose_graph_cannot_be_loaded_keeps_the_other() {
    if !openvino_or_skip("a_block_whose_graph_cannot_be_loaded_keeps_the_other") {
        return;
    }
    for &machine in machines() {
        let world = World::switching(machine, Switching::Progressive, FaultPlan::default());
        for after in [0, 5] {
            world.expect(Fault::Unloaded, Victim::Anybody, after, 1);
            world.crowd_is_served();
        }
        assert!(world.plan.happened() > 0, "{machine:?}");
        world.is_empty_again();
        let world = always(machine);
        world.expect(Fault::Unloaded, Victim::Anybody, 3, 2);
        world.crowd_is_served();
        assert_eq!(world.plan.happened(), 2);
    }
}

/// While nothing can be loaded, requests fail with the reason; afterwards they succeed.
#[test]
fn where_no_graph_can_be_loaded_requests_fail_and_later_ones_do_not() {
    if !openvino_or_skip("where_no_graph_can_be_loaded_requests_fail_and_later_ones_do_not") {
        return;
    }
    for &machine in machines() {
        let world = always(machine);
        world.expect(Fault::Unloaded, Victim::Anybody, 4, u64::MAX);
        let endings = world.crowd();
        let failed = endings.iter().filter(|it| it.finish == Finish::Failed);
        assert!(failed.count() > 0, "{machine:?}");
        for ending in endings {
            let told = ending.finish == Finish::Complete || ending.error.is_some();
            assert!(told, "{machine:?}: {ending:?}");
        }
        world.plan.clear();
        world.crowd_is_served();
        world.is_empty_again();
    }
}
