//! A driver that fails while an engine serves: the lane of the GPU ends or goes on, and everybody is told.

use std::time::Duration;

use heg_runtime::engine::Health;
use heg_sched::Finish;
use heg_vk_faults::{Installed, VkCounts, VkFault, VkPlan};

use super::{Seen, layered, plan, plan_one};
use crate::world::{GPU_ALONE, GPU_AND_CPU, World, impatient, policy};

const MINUTES: Duration = Duration::from_secs(240);

/// The work of a device for an engine before its first request.
pub(super) fn before_requests(layer: &Installed, name: &str, soc: &'static str) -> VkCounts {
    plan(layer, &VkPlan::default());
    drop(World::new(name, soc));
    let seen = Seen::at_end(layer);
    seen.left_nothing("without requests");
    seen.ends[0]
}

/// Serves two crowds beside a fault, and returns what was seen and how the engine is.
fn served(layer: &Installed, world: World) -> (Seen, Health) {
    world.crowd_is_served();
    world.crowd_is_served();
    world.is_empty_again();
    let health = world.engine.health();
    drop(world);
    (Seen::at_end(layer), health)
}

#[test]
fn a_lost_gpu_leaves_the_cpu_to_go_on() {
    layered(
        "vulkan::lanes::a_lost_gpu_leaves_the_cpu_to_go_on",
        MINUTES,
        |layer| {
            let ready = before_requests(layer, "agent-xpu", GPU_AND_CPU);
            for (fault, base) in [
                (VkFault::LostAtSubmission, ready.submissions),
                (VkFault::LostAtWait, ready.waits),
            ] {
                for after in [0, 7] {
                    plan_one(layer, fault, base + after, 1);
                    let what = format!("{fault:?} after {after}");
                    let (seen, health) = served(layer, World::new("agent-xpu", GPU_AND_CPU));
                    assert_eq!(seen.faults, [fault.name()], "{what}");
                    let Health::Degraded(lost) = health else {
                        unreachable!("{what}: {health:?}");
                    };
                    assert!(
                        lost[0].why.contains(" was lost during "),
                        "{what}: {lost:?}"
                    );
                    seen.left_nothing(&what);
                }
            }
        },
    );
}

#[test]
fn a_gpu_that_is_alone_ends_its_engine_with_a_status() {
    let test = "vulkan::lanes::a_gpu_that_is_alone_ends_its_engine_with_a_status";
    layered(test, MINUTES, |layer| {
        let name = "igpu-continuous-batching";
        let ready = before_requests(layer, name, GPU_ALONE);
        plan_one(layer, VkFault::LostAtSubmission, ready.submissions + 3, 1);
        let world = World::impatient(name, GPU_ALONE);
        for ending in world.crowd() {
            assert_eq!(ending.finish, Finish::Failed, "{ending:?}");
            let error = ending.error.map(|error| error.to_string());
            assert!(
                error.is_some_and(|error| error.contains("lane")),
                "no error"
            );
        }
        // Those that come later are refused.
        for ending in world.crowd() {
            assert_eq!(ending.finish, Finish::Failed, "{ending:?}");
        }
        let health = world.engine.health();
        assert!(
            matches!(&health, Health::Failed(why) if why.contains(" was lost during ")),
            "{health:?}"
        );
        world.is_empty_again();
        drop(world);
        Seen::at_end(layer).left_nothing(test);
    });
}

#[test]
fn a_gpu_that_never_answers_is_left_behind() {
    let test = "vulkan::lanes::a_gpu_that_never_answers_is_left_behind";
    layered(test, MINUTES, |layer| {
        let name = "agent-xpu";
        let ready = before_requests(layer, name, GPU_AND_CPU);
        plan_one(layer, VkFault::NeverSignalled, ready.submissions + 5, 1);
        let begin = std::time::Instant::now();
        let world = World::impatient(name, GPU_AND_CPU);
        let (seen, health) = served(layer, world);
        println!("never signalled: {:?}", begin.elapsed());
        assert!(matches!(health, Health::Degraded(_)), "{health:?}");
        // What the device may still use is not taken from it.
        assert_eq!((seen.devices, seen.ends.len()), (1, 0), "{seen:?}");
        assert!(begin.elapsed() < Duration::from_secs(60));
    });
}

#[test]
fn a_late_end_is_waited_for_unless_it_comes_too_late() {
    let test = "vulkan::lanes::a_late_end_is_waited_for_unless_it_comes_too_late";
    layered(test, MINUTES, |layer| {
        let name = "agent-xpu";
        let ready = before_requests(layer, name, GPU_AND_CPU);
        for (millis, is_lost) in [(300, false), (20_000, true)] {
            let late = VkFault::Late { millis };
            plan_one(layer, late, ready.submissions + 5, 1);
            let world = World::impatient(name, GPU_AND_CPU);
            let (seen, health) = served(layer, world);
            assert_eq!(seen.faults, ["late"]);
            assert_eq!(health != Health::Ready, is_lost, "{millis}: {health:?}");
            if !is_lost {
                seen.left_nothing("late");
            }
        }
    });
}

#[test]
fn memory_that_is_refused_costs_a_request_nothing() {
    let test = "vulkan::lanes::memory_that_is_refused_costs_a_request_nothing";
    layered(test, MINUTES, |layer| {
        let name = "agent-xpu";
        let ready = before_requests(layer, name, GPU_AND_CPU);
        for (after, times) in [(0, 1), (5, 1), (0, u64::MAX)] {
            plan_one(layer, VkFault::NoMemory, ready.allocations + after, times);
            let (seen, health) = served(layer, World::new(name, GPU_AND_CPU));
            let what = format!("after {after}, {times} times");
            assert!(!seen.faults.is_empty(), "{what}");
            assert_eq!(health, Health::Ready, "{what}");
            seen.left_nothing(&what);
        }
    });
}

#[test]
fn an_engine_with_one_lane_needs_its_memory_only_in_the_end() {
    let test = "vulkan::lanes::an_engine_with_one_lane_needs_its_memory_only_in_the_end";
    layered(test, MINUTES, |layer| {
        let name = "igpu-continuous-batching";
        let ready = before_requests(layer, name, GPU_ALONE);
        plan_one(layer, VkFault::NoMemory, ready.allocations, 1);
        let (seen, _) = served(layer, World::new(name, GPU_ALONE));
        assert_eq!(seen.faults, ["no-memory"]);
        seen.left_nothing("one refusal");
        // With none at all, requests end with their status, and so does the engine.
        plan_one(layer, VkFault::NoMemory, ready.allocations, u64::MAX);
        let world = World::with(impatient(name), name, GPU_ALONE, Vec::new());
        for ending in world.crowd() {
            assert_eq!(ending.finish, Finish::Failed, "{ending:?}");
        }
        world.is_empty_again();
        drop(world);
        Seen::at_end(layer).left_nothing("no memory");
    });
}

#[test]
fn pipelines_that_are_refused_cost_a_request_nothing() {
    let test = "vulkan::lanes::pipelines_that_are_refused_cost_a_request_nothing";
    layered(test, MINUTES, |layer| {
        let name = "agent-xpu";
        let ready = before_requests(layer, name, GPU_AND_CPU);
        for times in [1, u64::MAX] {
            plan_one(layer, VkFault::NoPipeline, ready.pipelines, times);
            let world = World::with(policy(name), name, GPU_AND_CPU, Vec::new());
            let (seen, health) = served(layer, world);
            assert!(!seen.faults.is_empty(), "{times}");
            assert_eq!(health, Health::Ready, "{times}");
            seen.left_nothing("pipelines");
        }
    });
}
