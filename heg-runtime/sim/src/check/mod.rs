//! Watches a scheduler from outside and reports every violated invariant.
//!
//! It keeps its own state, derived from events and actions alone (`world`), so that it agrees with a scheduler only if
//! the scheduler behaves correctly. Each [`SchedulerInvariant`] documents its check, and the policies that are exempt.
//! Work conservation is judged at the end of each step (`conserve`), everything else action by action (`action`,
//! `launch`).

mod action;
mod conserve;
mod launch;
mod turns;
mod world;

use std::fmt;

use heg_spec::Policy;
use heg_spec::policy::SchedulerKind;

use crate::rivals::Rival;
use heg_sched::{Action, Actions, ActivationCounts, Costs, Event, Micros, Scheduler};
use turns::TurnWatch;
use world::World;

/// An invariant that a scheduler must keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SchedulerInvariant {
    /// A lane runs one launch at a time, and only while it is present; tickets are never reused.
    OneLaunchPerLane,
    /// Kernels run in the order of their data: `qkv`, `mha`, `ffn` layer by layer, attention after the keys of all
    /// tokens before it, the head last. An iteration goes through the layers in order, with its initial batch, unless a
    /// launch failed.
    Dependencies,
    /// Every request ends once, with nothing of it running, and is not named afterwards; every token that was computed
    /// for a request that is still wanted is emitted, and no other.
    NothingLost,
    /// A request fails only by its own fault: three launches in a row with only this request failed, or three times in
    /// a row it did not get its reserved memory; or no lane could do its work, and none came back in time.
    CulpritOnly,
    /// Reserved memory stays within the budget, including caches on their way to flash and memory that an unresponsive
    /// lane may write to. A request has its memory while it runs, gives it back or leaves it to its flow when it ends,
    /// and a flow's memory goes when the flow ends.
    MemoryBalanced,
    /// One prompt of each class is under way at a time, or one for each client if there are several: there is one
    /// activation buffer for each (v2 4.1). Under `LeastTimeToCompletion` each preempted request has a buffer of its
    /// own (v1 6.2), and this is not judged. With `short_prompts_first` there may be one more reactive prompt,
    /// preempted, and with prompts aside one beside it. A buffer has rows for the policy's window, and no segment begins
    /// before its rows are free.
    ActivationBuffers,
    /// No lane idles beside work that may run there. See [`Rules`] for the work that may.
    WorkConserving,
    /// A proactive kernel of a prompt starts only when no prompt of a reactive request could go on or begin, and an
    /// iteration begins with all reactive requests that can decode. Overdue requests are exempt, and those that fill
    /// bubbles (v1 6.3); all of it applies only if the policy preempts.
    ReactiveFirst,
    /// An overdue request has its two privileges (v2 4.5): no iteration begins without it while there is room in the
    /// batch; and once its prompt is under way and has waited long enough, the lane of dynamic kernels runs it beside a
    /// reactive one, whose token-wise kernels keep to the NPU.
    Ageing,
    /// If the policy bounds the iGPU's share of the time, the iGPU rests after each launch for as long as that takes
    /// (v2 4.1).
    IgpuShare,
    /// If the policy has a power budget, kernels side by side keep to it; one alone may draw more (v1 6.2).
    PowerBudget,
    /// Batches stay within the policy's caps (v2 4.5). Overdue requests may exceed the lower one.
    BatchCap,
    /// Clients take turns. An iteration leaves out no request of a client while another client has two rows more. While
    /// the first request of a client waits, each of the others of its rank has at most one turn and as much time as the
    /// waiting request takes itself, beside the work that was under way.
    FairTurns,
    /// A launch gives a request one token, and at most one more for each of its drafted tokens that it verifies. The
    /// scheduler is told these counts, so this judges the code that runs the launches.
    TokensVerified,
    /// Rows that verify drafted tokens are leading tokens of the request's draft, end before the answer has to, lie within
    /// the memory that the request reserved, and keep the iteration within the policy's rows.
    DraftRows,
    /// Rows of rejected drafted tokens are never read: an iteration sees the emitted tokens, and a flow keeps no
    /// others. The rows stay in the cache until they are overwritten, so nothing else tells them apart.
    RejectedRows,
}

/// The policy that a scheduler claims to follow, by which it is judged.
///
/// Work *may* run on a lane, for [`SchedulerInvariant::WorkConserving`], when
///
/// - nothing at all runs, and a request decodes, or prefills, or waits and fits into the memory; or
/// - the lane of dynamic kernels is free and a request decodes, and neither memory pressure (v1 6.4) nor a memory-bound
///   kernel of a more urgent class on the NPU (v2 4.3) speaks against it; or
/// - that lane is free, every prompt under way of the most urgent class has attention to run, and no compiled kernel
///   could take it to the NPU; or
/// - the NPU is free, every such prompt has a full chunk to run, and requests decode, so that none of it belongs to the
///   iGPU, and the kernel is not memory-bound beside a more urgent decode batch.
///
/// Requests with a failed launch are exempt: the scheduler chooses where to try them next.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// The policy.
    pub policy: Policy,
    /// The scheduler that carries it out, if it is not the policy's own.
    pub rival: Option<Rival>,
}

impl From<Policy> for Rules {
    fn from(policy: Policy) -> Self {
        Self {
            policy,
            rival: None,
        }
    }
}

impl Rules {
    /// Returns whether Agent.xpu's scheduler carries the policy out, with all of its rules.
    fn is_agent_xpu(&self) -> bool {
        self.rival.is_none() && self.policy.scheduler == SchedulerKind::AgentXpu
    }
}

/// A violation of an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub rule: SchedulerInvariant,
    /// Virtual time of the violation.
    pub at: Micros,
    /// Description of the violation.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} us: {}", self.rule, self.at.0, self.what)
    }
}

/// A scheduler under watch. Its behaviour does not change.
#[derive(Debug)]
pub struct Checked<S, C> {
    scheduler: S,
    costs: C,
    rules: Rules,
    world: World,
    turns: TurnWatch,
    violations: Vec<Violation>,
    log: Option<Vec<(Micros, Action)>>,
}

/// Maximum number of violations to keep; further ones say nothing new.
const VIOLATIONS_MAX: usize = 20;

impl<S: Scheduler, C: Costs> Checked<S, C> {
    /// Watches `scheduler`; `costs` must be those with which it was created.
    pub fn new(scheduler: S, costs: C, rules: Rules) -> Self {
        let world = World::new(&costs, &rules);
        Self {
            scheduler,
            costs,
            rules,
            world,
            turns: TurnWatch::default(),
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

    /// Returns the watched scheduler.
    pub fn scheduler(&self) -> &S {
        &self.scheduler
    }

    /// Returns the violations so far, at most the first 20.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Returns all violations, including those at the end: requests that never ended, and memory that never came back.
    /// Call it when every flow has ended.
    pub fn finish(mut self) -> Vec<Violation> {
        let live = self.world.requests.len();
        if live > 0 || !self.scheduler.is_idle() {
            let what = format!("{live} requests never ended");
            self.report(SchedulerInvariant::NothingLost, what);
        }
        // The memory of a lane that never answers is never safe to use.
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
        if let Event::Submit(submission) = &event {
            self.watch_turn(submission.id);
        }
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
        self.judge_turns(own);
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    fn activations(&self) -> ActivationCounts {
        self.scheduler.activations()
    }
}
