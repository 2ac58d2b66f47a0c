//! The scheduler's use of two lanes of unequal speed, on a real engine. The plan adds a time to token-wise kernels,
//! beside which their own is small, and the tests check which request ran where, not how long it took. Each mechanism
//! is also switched off, and then missed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use heg_runtime::engine::{Fault, FaultPlan, Request, Victim};
use heg_sched::{
    Action, Class, Event, Finish, Lane, LayerKernel, Micros, Observer, RequestId, Segment,
};
use heg_spec::Policy;
use heg_workload::{LaunchOutcome, TraceEvent, TraceRecorder, TracedCall, TracedLaunch};

use crate::world::{Answer, TWO_LANES, World, impatient, policy, request};

/// Number of tokens of a chunk of this engine.
const CHUNK: u32 = 32;

/// The events of a run, shared by all clones.
#[derive(Clone, Default)]
struct Watch(Arc<Mutex<(TraceRecorder, Vec<TraceEvent>)>>);

impl Observer for Watch {
    fn stepped(&mut self, now: Micros, event: &Event, actions: &[Action]) {
        let (recorder, events) = &mut *self.0.lock().unwrap();
        recorder.stepped(now, event, actions, |event| events.push(event));
    }
}

/// A kernel of a prompt, as recorded in the trace.
#[derive(Debug, Clone)]
struct Ran {
    lane: Lane,
    request: RequestId,
    kernel: LayerKernel,
    layer: u32,
    segment: Segment,
    start: Micros,
    end: Micros,
}

impl Ran {
    fn of(launch: &TracedLaunch) -> Option<Self> {
        let TracedCall::Prefill {
            kernel,
            layer,
            segment,
        } = launch.call
        else {
            return None;
        };
        (launch.outcome == LaunchOutcome::Done).then_some(Self {
            lane: launch.lane,
            request: launch.requests[0],
            kernel,
            layer,
            segment,
            start: launch.start,
            end: launch.end,
        })
    }

    fn is_token_wise(&self) -> bool {
        self.kernel != LayerKernel::Mha
    }
}

/// An engine with lanes of unequal speed.
struct UnequalLanes {
    world: World,
    watch: Watch,
}

impl UnequalLanes {
    /// Starts the engine; `npu_ms` and `igpu_ms` are added to the time of each token-wise kernel of prompts.
    fn new(policy: Policy, npu_ms: u64, igpu_ms: u64, plan: FaultPlan) -> Self {
        plan.slow_down(Lane::Npu, Duration::from_millis(npu_ms));
        plan.slow_down(Lane::Igpu, Duration::from_millis(igpu_ms));
        let watch = Watch::default();
        let observers: Vec<Box<dyn Observer>> = vec![Box::new(watch.clone())];
        let name = policy.name.clone();
        let world = World::planned(policy, &name, TWO_LANES, observers, plan);
        Self { world, watch }
    }

    /// Submits a prompt that shares nothing with others.
    fn submit(&self, class: Class, prompt_tokens: u32, tokens_max: u32) -> Answer {
        let first = 5 + self.watch.0.lock().unwrap().1.len() as u32 % 190;
        let prompt: Vec<u32> = (0..prompt_tokens)
            .map(|at| 5 + (first + 7 * at) % 200)
            .collect();
        let request = Request {
            flow: Some(self.world.engine.new_flow()),
            tokens_max,
            ..request(class, &prompt)
        };
        Answer::of(&self.world.engine, request)
    }

    /// Serves a prompt to its end. Afterwards the engine has learned the speeds of these lanes.
    fn serve(&self, class: Class, prompt_tokens: u32) -> RequestId {
        let answer = self.submit(class, prompt_tokens, 1);
        let id = answer.id;
        assert_eq!(answer.wait().1.finish, Finish::Complete);
        id
    }

    fn events<T>(&self, of: impl FnMut(&TraceEvent) -> Option<T>) -> Vec<T> {
        self.watch
            .0
            .lock()
            .unwrap()
            .1
            .iter()
            .filter_map(of)
            .collect()
    }

    /// Returns the completed kernels of a request's prompt, in the order of their starts.
    fn ran(&self, id: RequestId) -> Vec<Ran> {
        let mut ran = self.events(|event| match event {
            TraceEvent::Launch(launch) => Ran::of(launch).filter(|ran| ran.request == id),
            _ => None,
        });
        ran.sort_by_key(|ran| ran.start);
        ran
    }

    fn arrived(&self, id: RequestId) -> Micros {
        let times = self.events(|event| match event {
            TraceEvent::Arrived(request) if request.id == id => Some(request.arrived),
            _ => None,
        });
        times[0]
    }

    fn first_token(&self, id: RequestId) -> Micros {
        let times = self.events(|event| match event {
            TraceEvent::FirstToken(other, at) if *other == id => Some(*at),
            _ => None,
        });
        times[0]
    }

    /// Waits until a kernel of a request's prompt has completed.
    fn wait_for_kernel(&self, id: RequestId) {
        while self.ran(id).is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the time of the lane that takes longer for the full chunks of a prompt, in ms of the plan.
fn makespan_ms(ran: &[Ran], npu_ms: u64, igpu_ms: u64) -> u64 {
    let on = |lane| {
        let chunks = ran
            .iter()
            .filter(|ran| ran.lane == lane && ran.is_token_wise() && ran.segment.tokens == CHUNK);
        chunks.count() as u64
    };
    (on(Lane::Npu) * npu_ms).max(on(Lane::Igpu) * igpu_ms)
}

/// Algorithm 1 on two lanes, one three times as fast as the other: no split that follows from wrong beliefs about their
/// speeds is better by a tenth.
#[test]
fn chunks_are_split_as_well_as_the_best_of_a_sweep() {
    let (npu_ms, igpu_ms) = (4, 12);
    let span = |times: f64, elastic: bool| {
        let mut policy = policy("agent-xpu");
        policy.prefill.elastic = elastic;
        let plan = FaultPlan::default();
        plan.mislead(Lane::Npu, times);
        let lanes = UnequalLanes::new(policy, npu_ms, igpu_ms, plan);
        lanes.serve(Class::Reactive, 8 * CHUNK);
        let id = lanes.serve(Class::Reactive, 16 * CHUNK);
        makespan_ms(&lanes.ran(id), npu_ms, igpu_ms)
    };
    let own = span(1.0, true);
    let sweep = [0.1, 0.25, 0.5, 0.7, 1.4, 2.0, 4.0].map(|times| span(times, true));
    let best = sweep.into_iter().chain([own]).min().unwrap();
    let unsplit = span(1.0, false);
    println!("{own} ms of the plan, the best of {sweep:?} {best} ms, unsplit {unsplit} ms");
    assert!(
        10 * own <= 11 * best,
        "{own} ms, with {best} ms within reach"
    );
    assert!(
        10 * unsplit > 11 * best,
        "splitting gains nothing: {unsplit} ms"
    );
}

/// Returns the number of kernels of a proactive prompt that began on the NPU's lane between the arrival of a reactive
/// one and its first token, with all kernels of the proactive prompt and the time.
fn preempted(preempt: bool) -> (usize, Vec<Ran>, Micros) {
    let mut policy = policy("agent-xpu");
    policy.prefill.preempt = preempt;
    let lanes = UnequalLanes::new(policy, 10, 10, FaultPlan::default());
    let proactive = lanes.submit(Class::Proactive, 8 * CHUNK, 1);
    let (background, answer) = (proactive.id, proactive);
    lanes.wait_for_kernel(background);
    let person = lanes.serve(Class::Reactive, 4 * CHUNK);
    assert_eq!(answer.wait().1.finish, Finish::Complete);
    let (arrived, served) = (lanes.arrived(person), lanes.first_token(person));
    let ran = lanes.ran(background);
    let beside = ran
        .iter()
        .filter(|ran| ran.lane == Lane::Npu && ran.start > arrived && ran.start < served);
    (beside.count(), ran.clone(), served)
}

#[test]
fn a_reactive_prompt_has_the_npus_lane_after_the_kernel_that_runs_and_nothing_runs_twice() {
    let (beside, ran, served) = preempted(true);
    assert_eq!(beside, 0);
    let resumed = ran.iter().filter(|ran| ran.start >= served);
    assert!(resumed.filter(|ran| ran.lane == Lane::Npu).count() > 0);
    let mut times: BTreeMap<(u32, u32, LayerKernel), u32> = BTreeMap::new();
    for ran in &ran {
        *times
            .entry((ran.segment.position, ran.layer, ran.kernel))
            .or_default() += 1;
    }
    assert!(times.values().all(|times| *times == 1), "{times:?}");
    let (beside, ..) = preempted(false);
    assert!(beside > 0, "not preempted, it goes on");
}

/// Returns the number of token-wise kernels of a proactive prompt on the iGPU's lane before the first token of a
/// reactive one that came earlier.
fn beside_a_reactive_prompt(threshold_ms: Option<u32>) -> usize {
    let mut policy = policy("agent-xpu");
    match (threshold_ms, &mut policy.ageing) {
        (Some(millis), Some(ageing)) => ageing.threshold_ms = millis,
        _ => policy.ageing = None,
    }
    let lanes = UnequalLanes::new(policy, 5, 5, FaultPlan::default());
    let reactive = lanes.submit(Class::Reactive, 20 * CHUNK, 1);
    let proactive = lanes.submit(Class::Proactive, 4 * CHUNK, 1);
    let (person, background) = (reactive.id, proactive.id);
    for answer in [reactive, proactive] {
        assert_eq!(answer.wait().1.finish, Finish::Complete);
    }
    let (arrived, served) = (lanes.arrived(background), lanes.first_token(person));
    let ran = lanes.ran(background);
    let threshold = Micros::from_millis(threshold_ms.unwrap_or_default());
    assert!(ran.iter().all(|ran| ran.start >= arrived + threshold));
    let mut early = ran
        .iter()
        .filter(|ran| ran.start < served && ran.is_token_wise());
    let count = early.clone().count();
    assert!(early.all(|ran| ran.lane == Lane::Igpu));
    count
}

#[test]
fn an_overdue_prompt_has_the_igpus_lane_beside_a_reactive_one() {
    assert!(beside_a_reactive_prompt(Some(100)) > 0);
    assert_eq!(beside_a_reactive_prompt(None), 0);
}

/// Returns the number of kernels of a remainder, and of those that were over before the last chunk had begun the same
/// kernel.
fn early_remainders(defer: bool) -> (usize, usize) {
    let mut policy = policy("agent-xpu");
    policy.prefill.defer_remainder = defer;
    let lanes = UnequalLanes::new(policy, 15, 0, FaultPlan::default());
    lanes.serve(Class::Reactive, 4 * CHUNK + 16);
    let decoding = lanes.submit(Class::Reactive, 3, 900);
    lanes.wait_for_kernel(decoding.id);
    let id = lanes.serve(Class::Reactive, 4 * CHUNK + 16);
    lanes.world.engine.cancel(decoding.id);
    let ran = lanes.ran(id);
    let of = |position: u32| {
        let token_wise = ran.iter().filter(|ran| ran.is_token_wise());
        token_wise.filter(move |ran| ran.segment.position == position)
    };
    let kernels = of(4 * CHUNK).filter_map(|own| {
        let mut chunk = of(3 * CHUNK);
        let same = chunk.find(|it| (it.layer, it.kernel) == (own.layer, own.kernel))?;
        Some(own.end < same.start)
    });
    let early: Vec<bool> = kernels.collect();
    (early.len(), early.iter().filter(|early| **early).count())
}

#[test]
fn a_remainder_waits_for_the_chunks_while_others_decode() {
    let (kernels, early) = early_remainders(true);
    assert!(kernels > 8 && 5 * early <= kernels, "{early} of {kernels}");
    let (kernels, early) = early_remainders(false);
    assert!(4 * early > kernels, "not deferred: {early} of {kernels}");
}

#[test]
fn a_lane_that_was_reset_is_used_again_and_one_that_was_lost_is_not() {
    for (fault, returns) in [(Fault::Hang, true), (Fault::Stuck, false)] {
        // The NPU is so much faster that whoever may use it does, whatever else the machine has to do.
        let lanes = UnequalLanes::new(impatient("agent-xpu"), 0, 20, FaultPlan::default());
        lanes.world.expect(fault, Victim::Lane(Lane::Npu), 2, 1);
        lanes.serve(Class::Reactive, 4 * CHUNK);
        if !returns {
            while lanes.world.engine.status().unwrap().lost.is_empty() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let used = (0..5).any(|_| {
            let id = lanes.serve(Class::Reactive, 4 * CHUNK);
            lanes.ran(id).iter().any(|ran| ran.lane == Lane::Npu)
        });
        assert_eq!(used, returns, "{fault:?}");
        lanes.world.plan.clear();
    }
}
