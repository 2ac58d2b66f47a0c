//! Schedulers with which ours are compared (Agent.xpu v2, Fig. 6; HeteroLLM). They are behind the same trait, and are
//! not offered to users.

use heg_sched::{
    Actions, ActivationCounts, AgentXpu, Class, ClassesPresent, Costs, DeviceSharing, Event, Hold,
    Mechanism, Micros, RequestId, Scheduler, SingleLane,
};
use heg_spec::policy::SchedulerKind;
use heg_spec::{Policy, Source, SpecError, shipped};

/// A scheduler to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rival {
    /// One device; a reactive request discards the work of proactive ones (Fig. 6a).
    PreemptRecompute,
    /// One device; a reactive and a proactive stream take turns, iteration by iteration (Fig. 6b).
    TimeSharing,
    /// One request at a time, its prefill split over NPU and iGPU (HeteroLLM).
    Serial,
}

/// Policy files: the rivals with their policies' names and texts.
static POLICIES: [(Rival, &str, &str); 3] = [
    (
        Rival::PreemptRecompute,
        "igpu-preempt-recompute",
        include_str!("../policies/igpu-preempt-recompute.ron"),
    ),
    (
        Rival::TimeSharing,
        "igpu-time-sharing",
        include_str!("../policies/igpu-time-sharing.ron"),
    ),
    (
        Rival::Serial,
        "serial-npu-igpu",
        include_str!("../policies/serial-npu-igpu.ron"),
    ),
];

impl Rival {
    /// All rivals.
    pub const ALL: [Self; 3] = [Self::PreemptRecompute, Self::TimeSharing, Self::Serial];

    /// Returns the name of the rival's policy.
    pub fn name(self) -> &'static str {
        POLICIES[self as usize].1
    }
}

/// A policy, and the scheduler that carries it out.
#[derive(Debug, Clone, PartialEq)]
pub struct Contender {
    /// The policy.
    pub policy: Policy,
    /// The scheduler, if it is not the policy's own.
    pub rival: Option<Rival>,
}

impl From<Policy> for Contender {
    fn from(policy: Policy) -> Self {
        Self {
            policy,
            rival: None,
        }
    }
}

impl Contender {
    /// Returns the shipped policy, or the rival's, called `name`.
    ///
    /// # Errors
    /// [`SpecError::Unknown`], which names all of them.
    pub fn named(name: &str) -> Result<Self, SpecError> {
        let Some((rival, _, text)) = POLICIES.iter().find(|(_, known, _)| *known == name) else {
            return match shipped::policy(name) {
                Err(SpecError::Unknown {
                    kind,
                    found,
                    mut known,
                    nearest,
                }) => {
                    known.extend(Rival::ALL.map(|rival| rival.name().to_owned()));
                    Err(SpecError::Unknown {
                        kind,
                        found,
                        known,
                        nearest,
                    })
                }
                policy => Ok(policy?.into()),
            };
        };
        let file = format!("heg-runtime/sim/policies/{name}.ron");
        let policy = Policy::parse(Source { file: &file, text })?;
        Ok(Self {
            policy,
            rival: Some(*rival),
        })
    }

    /// Returns the name of the policy.
    pub fn name(&self) -> &str {
        &self.policy.name
    }

    /// Returns whether the policy has a mechanism that can be switched off. A rival has none.
    pub fn has(&self, mechanism: Mechanism) -> bool {
        self.rival.is_none() && mechanism.is_on(&self.policy)
    }

    /// Creates the contender's scheduler.
    pub fn scheduler<'c, C: Costs + 'c>(&self, costs: C) -> Box<dyn Scheduler + 'c> {
        let policy = self.policy.clone();
        let shared = |policy, costs, sharing| Box::new(SingleLane::shared(policy, costs, sharing));
        match (self.rival, policy.scheduler) {
            (Some(Rival::Serial), _) => {
                Box::new(Serial(AgentXpu::new(policy, costs).serving_at_most(1)))
            }
            (Some(Rival::PreemptRecompute), _) => shared(policy, costs, Box::new(ReactiveAlone)),
            (Some(Rival::TimeSharing), _) => shared(policy, costs, Box::new(Streams)),
            (None, SchedulerKind::AgentXpu) => Box::new(AgentXpu::new(policy, costs)),
            (None, SchedulerKind::ContinuousBatching) => Box::new(SingleLane::new(policy, costs)),
            (None, SchedulerKind::PriorityBatching) => {
                Box::new(SingleLane::by_priority(policy, costs))
            }
        }
    }
}

/// A rule: while a reactive request lives, nothing else runs.
#[derive(Debug)]
struct ReactiveAlone;

impl DeviceSharing for ReactiveAlone {
    fn exclusive(&self, live: ClassesPresent) -> Option<Class> {
        live.reactive.then_some(Class::Reactive)
    }
}

/// A rule: reactive and proactive requests are two streams with their own batches, whose iterations alternate.
#[derive(Debug)]
struct Streams;

impl DeviceSharing for Streams {
    fn next(&self, with_room: ClassesPresent, last: Option<Class>) -> Option<Class> {
        let both = with_room.reactive && with_room.proactive;
        both.then_some(match last {
            Some(Class::Reactive) => Class::Proactive,
            Some(Class::Proactive) | None => Class::Reactive,
        })
    }
}

/// A scheduler that knows no classes.
#[derive(Debug)]
struct Serial<S>(S);

impl<S: Scheduler> Scheduler for Serial<S> {
    fn step(&mut self, now: Micros, mut event: Event, actions: &mut Actions) {
        if let Event::Submit(submission) = &mut event {
            submission.class = Class::Proactive;
        }
        self.0.step(now, event, actions);
    }

    fn is_idle(&self) -> bool {
        self.0.is_idle()
    }

    fn activations(&self) -> ActivationCounts {
        self.0.activations()
    }

    fn first_token_in(&self, request: RequestId) -> Option<Micros> {
        self.0.first_token_in(request)
    }

    fn prompts_left(&self, class: Class) -> Micros {
        self.0.prompts_left(class)
    }

    fn holds(&self, holds: &mut Vec<Hold>) {
        self.0.holds(holds);
    }
}
