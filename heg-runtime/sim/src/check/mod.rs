//! Watches a scheduler from outside and reports every violated invariant.
//!
//! It keeps its own state, derived from events and actions alone (`world`), so that it agrees with a scheduler only
//! if that behaves as it should. Each [`SchedulerInvariant`] says what is checked, and which policies are exempt. Work
//! conservation is judged at the end of each step (`conserve`), everything else action by action (`action`, `launch`).

mod action;
mod conserve;
mod launch;
mod world;

use std::fmt;

use heg_spec::Policy;

use heg_sched::{Action, Actions, ActivationCounts, Costs, Event, Micros, Scheduler};
use world::World;

/// An invariant that a scheduler must keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SchedulerInvariant {
    /// A lane runs one launch at a time, and only while it is there; tickets are never used twice.
    OneLaunchPerLane,
    /// Kernels run in the order of their data: `qkv`, `mha`, `ffn` layer by layer, attention after the keys of
    /// all tokens before it, the head last. An iteration goes through the layers in order, with the batch that
    /// it began with, unless a launch failed.
    Dependencies,
    /// Every request ends once, with nothing of it running, and is not named afterwards; every token that was
    /// computed for a request that is still wanted is given, and no other.
    NothingLost,
    /// A request fails only for itself: three launches in a row with nobody else failed, or three times in a row it did
    /// not get the memory that was reserved for it; or no lane could do its work, and none came back in time.
    CulpritOnly,
    /// Reserved memory stays within the budget, with what is on its way to flash and what a lane that does not answer
    /// may write to; a request has it while it runs, gives it back or leaves it to
    /// its flow when it ends, and a flow's goes when the flow ends.
    MemoryBalanced,
    /// One prompt of each class is under way at a time: there is one activation buffer for each (v2 4.1). Under
    /// `LeastTimeToCompletion` each preempted request has a buffer of its own (v1 6.2), and this is not judged. With
    /// `short_prompts_first` there may be one more reactive prompt, preempted, and with prompts aside one beside
    /// it.
    ActivationBuffers,
    /// No lane idles beside work that may run there. See [`Rules`] for what may.
    WorkConserving,
    /// A proactive kernel of a prompt starts only when no prompt of a reactive request could go on or begin,
    /// and an iteration begins with all reactive requests that can decode. Overdue requests are exempt, and
    /// those that fill bubbles (v1 6.3); all of it applies where the policy preempts.
    ReactiveFirst,
    /// An overdue request has its two privileges (v2 4.5): no iteration begins without it while there is room in
    /// the batch, and while its prompt is under way, and has waited long enough, the lane of dynamic kernels runs it
    /// beside a reactive one, whose token-wise kernels keep to the NPU.
    Ageing,
    /// Where the policy bounds the iGPU's share of the time, it rests after each launch for as long as that takes (v2 4.1).
    IgpuShare,
    /// Where the policy has a power budget, kernels side by side keep to it; one alone may draw more (v1 6.2).
    PowerBudget,
    /// Batches stay within the policy's caps (v2 4.5). Overdue requests pass the lower one.
    BatchCap,
    /// A launch gives a request one token, and at most one more for each of its drafted tokens that it verifies. This is
    /// what the scheduler is told, and so judges who runs the launches.
    TokensVerified,
    /// Rows that verify drafted tokens are leading tokens of the request's draft, end before the answer has to, lie within
    /// the memory that the request reserved, and keep the iteration within the policy's rows.
    DraftRows,
    /// Rows of drafted tokens that were rejected are never read: an iteration sees the tokens that were given, and a flow
    /// keeps no others. The rows are in the cache until others are written in their place, so nothing else tells them
    /// apart.
    RejectedRows,
}

/// The policy that a scheduler claims to follow, by which it is judged.
///
/// Work *may* run on a lane, for [`SchedulerInvariant::WorkConserving`], when
///
/// - nothing at all runs, and a request decodes, or prefills, or waits and fits into the memory; or
/// - the lane of dynamic kernels is free and a request decodes, and neither memory pressure (v1 6.4) nor a
///   memory-bound kernel of a more urgent class on the NPU (v2 4.3) speaks against it; or
/// - that lane is free, every prompt under way of the most urgent class has attention to run, and no compiled
///   kernel could take it to the NPU; or
/// - the NPU is free, every such prompt has a full chunk to run, and requests decode, so that none of it
///   belongs to the iGPU, and the kernel is not memory-bound beside a more urgent decode batch.
///
/// Requests of which a launch failed are left out: where it goes next is the scheduler's to try.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// The policy.
    pub policy: Policy,
}

/// A violation of an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub rule: SchedulerInvariant,
    /// Virtual time.
    pub at: Micros,
    /// Description of the violation.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} us: {}", self.rule, self.at.0, self.what)
    }
}

/// A scheduler under watch. What it does is not changed.
#[derive(Debug)]
pub struct Checked<S, C> {
    scheduler: S,
    costs: C,
    rules: Rules,
    world: World,
    violations: Vec<Violation>,
    log: Option<Vec<(Micros, Action)>>,
}

/// Maximum number of violations to keep: more say nothing new.
const VIOLATIONS_MAX: usize = 20;

impl<S: Scheduler, C: Costs> Checked<S, C> {
    /// Watches `scheduler`; `costs` are those that it was made with.
    pub fn new(scheduler: S, costs: C, rules: Rules) -> Self {
        let world = World::new(&costs, &rules.policy);
        Self {
            scheduler,
            costs,
            rules,
            world,
            violations: Vec::new(),
            log: None,
        }
    }

    /// Keeps every action from now on, for [`Checked::log`].
    pub fn with_log(mut self) -> Self {
        self.log = Some(Vec::new());
        self
    }

    /// Every action with its time; empty without [`Checked::with_log`].
    pub fn log(&self) -> &[(Micros, Action)] {
        self.log.as_deref().unwrap_or_default()
    }

    /// The violations so far, at most the first 20.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// What was broken, the end included: requests that never ended, and memory that never came back. Call it
    /// when every flow has ended.
    pub fn finish(mut self) -> Vec<Violation> {
        let live = self.world.requests.len();
        if live > 0 || !self.scheduler.is_idle() {
            let what = format!("{live} requests never ended");
            self.report(SchedulerInvariant::NothingLost, what);
        }
        // Where a lane never answers it is never safe to use.
        let held: u64 = self.world.held.iter().map(|(_, tokens)| tokens).sum();
        let used = self.world.kv_used.saturating_sub(held);
        if used > 0 && live == 0 {
            let what = format!("{used} tokens of memory never came back");
            self.report(SchedulerInvariant::MemoryBalanced, what);
        }
        self.violations
    }

    fn report(&mut self, rule: SchedulerInvariant, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            let at = self.world.now;
            self.violations.push(Violation { rule, at, what });
        }
    }

    fn require(&mut self, holds: bool, rule: SchedulerInvariant, what: impl FnOnce() -> String) {
        if !holds {
            self.report(rule, what());
        }
    }
}

impl<S: Scheduler, C: Costs> Scheduler for Checked<S, C> {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        self.world.now = now;
        self.world.see(&event);
        for what in std::mem::take(&mut self.world.unverified) {
            self.report(SchedulerInvariant::TokensVerified, what);
        }
        let first = actions.len();
        self.scheduler.step(now, event, actions);
        let own = &actions[first..];
        if let Some(log) = &mut self.log {
            log.extend(own.iter().map(|action| (now, action.clone())));
        }
        for action in own {
            self.judge(action);
        }
        self.judge_step(own);
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    fn activations(&self) -> ActivationCounts {
        self.scheduler.activations()
    }
}
