//! Tests of lanes that panic or never answer, and of a conductor that panics.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use heg_runtime::engine::{Fault, Health, Victim};
use heg_sched::Observer;
use heg_sched::{Action, Class, Event, Finish, Lane, Micros};

use crate::world::{Answer, ONE_LANE, TWO_LANES, World, impatient, policies, policy, request};

/// The lost lanes, with the reasons.
#[derive(Clone, Default)]
struct Losses(Arc<Mutex<Vec<(Lane, String)>>>);

impl Observer for Losses {
    fn stepped(&mut self, _: Micros, _: &Event, _: &[Action]) {}

    fn lost(&mut self, lane: Lane, why: &str) {
        self.0.lock().unwrap().push((lane, why.to_owned()));
    }
}

#[test]
fn a_lane_that_panics_is_lost_and_the_other_serves_everybody() {
    let losses = Losses::default();
    let name = "agent-xpu";
    let world = World::with(
        policy(name),
        name,
        TWO_LANES,
        vec![Box::new(losses.clone())],
    );
    assert_eq!(world.engine.health(), Health::Ready);
    world.expect(Fault::Panic, Victim::Lane(Lane::Npu), 4, 1);
    world.crowd_is_served();
    world.crowd_is_served();
    world.is_empty_again();
    let lost = losses.0.lock().unwrap().clone();
    assert_eq!(
        lost,
        [(Lane::Npu, "panicked: a fault on purpose".to_owned())]
    );
    let Health::Degraded(told) = world.engine.health() else {
        unreachable!("{:?}", world.engine.health());
    };
    assert_eq!(told.len(), 1);
    assert_eq!(world.engine.status().unwrap().lost, told);
}

#[test]
fn without_its_last_lane_an_engine_refuses_everybody() {
    for (policy, soc) in policies() {
        let world = World::impatient(policy, soc);
        let lane = if soc == ONE_LANE {
            Lane::Cpu
        } else {
            Lane::Igpu
        };
        world.expect(Fault::Panic, Victim::Lane(lane), 10, 1);
        for ending in world.crowd() {
            assert_eq!(ending.finish, Finish::Failed, "{policy}: {ending:?}");
        }
        for ending in world.crowd() {
            assert_eq!(ending.finish, Finish::Failed, "{policy}: {ending:?}");
        }
        let Health::Failed(why) = world.engine.health() else {
            unreachable!("{policy}: {:?}", world.engine.health());
        };
        assert!(why.contains("panicked: a fault on purpose"), "{why}");
        world.is_empty_again();
    }
}

#[test]
fn a_lane_that_never_answers_is_left_behind() {
    let losses = Losses::default();
    let name = "agent-xpu";
    let world = World::with(
        impatient(name),
        name,
        TWO_LANES,
        vec![Box::new(losses.clone())],
    );
    world.expect(Fault::Stuck, Victim::Lane(Lane::Npu), 4, 1);
    world.crowd_is_served();
    // The loss is noticed even if nobody has waited for the lane.
    let begin = Instant::now();
    while world.engine.health() == Health::Ready {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    world.crowd_is_served();
    world.is_empty_again();
    let lost = losses.0.lock().unwrap().clone();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert!(lost[0].1.contains("did not answer"), "{lost:?}");
    world.plan.clear();
}

#[test]
fn an_engine_with_a_hung_driver_ends() {
    let losses = Losses::default();
    let name = "cpu-continuous-batching";
    let mut patient = policy(name);
    patient.limits.timeout_min_ms = u32::MAX;
    let world = World::with(patient, name, ONE_LANE, vec![Box::new(losses.clone())]);
    world.expect(Fault::Stuck, Victim::Anybody, 0, 1);
    let answer = world.submit(0);
    let begin = Instant::now();
    while world.plan.happened() == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    let World { engine, plan, .. } = world;
    let begin = Instant::now();
    drop(engine);
    assert!(begin.elapsed() < Duration::from_secs(60));
    assert_eq!(answer.wait().1.finish, Finish::Cancelled);
    let lost = losses.0.lock().unwrap().clone();
    assert!(
        lost[0]
            .1
            .contains("did not answer within 3 s of being told to end"),
        "{lost:?}"
    );
    plan.clear();
}

/// Panics when a request is submitted.
struct Bomb;

impl Observer for Bomb {
    fn stepped(&mut self, _: Micros, event: &Event, _: &[Action]) {
        assert!(!matches!(event, Event::Submit(_)), "the conductor's bomb");
    }
}

#[test]
fn a_conductor_that_panics_leaves_nobody_waiting() {
    let name = "agent-xpu-one-device";
    let world = World::with(policy(name), name, ONE_LANE, vec![Box::new(Bomb)]);
    // Its listener is dropped with the conductor.
    drop(world.submit(0));
    let begin = Instant::now();
    let why = loop {
        if let Health::Failed(why) = world.engine.health() {
            break why;
        }
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(why, "the conductor panicked: the conductor's bomb");
    // The channel closes a moment later.
    let refused = loop {
        let answer = Answer::of(&world.engine, request(Class::Reactive, &[5, 6]));
        if let Some(ending) = answer.try_wait() {
            break ending;
        }
        assert!(begin.elapsed() < Duration::from_secs(60));
    };
    assert_eq!(refused.finish, Finish::Failed);
    let error = refused.error.map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some("the engine has stopped"));
    world.engine.status().unwrap_err();
}
