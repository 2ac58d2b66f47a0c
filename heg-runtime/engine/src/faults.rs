//! Fault injection for tests: a machine whose lanes, memory and flash fail by a plan, wrapped around the real one.

use std::fs::File;
use std::io;
use std::panic::resume_unwind;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::beliefs::{Beliefs, Believed};
use super::machine::{LaneExecutor, Machine};
use super::pace::Pace;
use super::{Engine, EngineOptions};
use crate::error::EngineError;
use crate::platform::full_file;
use heg_draft::{Draft, Likely};
use heg_exec::ExecError;
use heg_exec::mem::{ActivationRows, KvCache, KvRoom};
use heg_exec::{Batch, Coming, Executor, GoesOn, Loader, TokenRun, WarmForms};
use heg_sched::{
    Class, Lane, Launch, LayerOrder, RequestId, Scheduler, WarmKernel, WorkStage, scheduler,
};
use heg_spec::Group;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A kernel fails.
    Fail,
    /// A kernel hangs until its lane is reset, and then fails.
    Hang,
    /// A kernel hangs until its lane is reset, and then completes.
    Late,
    /// A kernel hangs, even after a reset, until the plan is dropped.
    Stuck,
    /// The lane's thread panics.
    Panic,
    /// There is no memory for a kernel.
    OutOfMemory,
    /// A block's graph cannot be loaded while it is switched.
    Unloaded,
    /// There is no address space for a cache.
    Unreserved,
    /// The flash is full.
    FlashFull,
    /// A cache on flash cannot be read.
    FlashUnreadable,
}

/// The requests or the lane that a fault happens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// The next launch or request.
    Anybody,
    /// Launches for a request, including the rest of its batch.
    Request(RequestId),
    /// Launches on a lane.
    Lane(Lane),
}

/// A fault that is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The fault that happens.
    pub fault: Fault,
    /// The requests or the lane that it happens to.
    pub victim: Victim,
    /// Number of occasions that are let pass before it happens.
    pub after: u64,
    /// Number of times that it happens.
    pub times: u64,
}

/// Planned faults, in any order. They may change while an engine runs.
#[derive(Clone, Default)]
pub struct FaultPlan(Arc<Mutex<Plan>>);

/// Drafts tokens after a request's prompt and answer so far: each with the place of its predecessor, if it has one.
type Drafts = dyn Fn(RequestId, &[u32]) -> Vec<(u32, Option<u16>)> + Send;

/// Hears of tokens that a lane found likely in a request's prompt, from a position on.
type HeardLikely = dyn Fn(RequestId, u32, &[Likely]) + Send;

struct Plan {
    rules: Vec<Rule>,
    drafts: Option<Box<Drafts>>,
    calibrated: Option<Box<HeardLikely>>,
    /// Whether blocks are switched at each of their boundaries.
    switches_always: bool,
    happened: u64,
    /// Whether stuck kernels go on.
    released: bool,
    /// Extra time that token-wise kernels of a prompt take on each lane.
    slowness: [Duration; Lane::ALL.len()],
    beliefs: Beliefs,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            drafts: None,
            calibrated: None,
            switches_always: false,
            happened: 0,
            released: false,
            slowness: [Duration::ZERO; Lane::ALL.len()],
            beliefs: [1.0; Lane::ALL.len()],
        }
    }
}

impl FaultPlan {
    /// Adds a fault.
    pub fn add(&self, rule: Rule) {
        self.plan().rules.push(rule);
    }

    /// Forgets all faults, and lets stuck kernels go on.
    pub fn clear(&self) {
        let mut plan = self.plan();
        plan.rules.clear();
        plan.released = true;
    }

    /// Replaces the drafts of requests by tokens that `drafts` returns, for lanes to verify.
    pub fn draft(
        &self,
        drafts: impl Fn(RequestId, &[u32]) -> Vec<(u32, Option<u16>)> + Send + 'static,
    ) {
        self.plan().drafts = Some(Box::new(drafts));
    }

    /// Has `hear` told of the tokens that lanes find likely in requests' prompts, from a position on.
    pub fn hear_likely(&self, hear: impl Fn(RequestId, u32, &[Likely]) + Send + 'static) {
        self.plan().calibrated = Some(Box::new(hear));
    }

    /// Makes engines that start from now on switch every block of layers each time before it computes, if they switch
    /// graphs at all.
    pub fn switch_always(&self) {
        self.plan().switches_always = true;
    }

    /// Makes token-wise kernels of prompts take longer on a lane by `by`. This makes lanes of one CPU unequal,
    /// whatever the machine's load.
    pub fn slow_down(&self, lane: Lane, by: Duration) {
        self.plan().slowness[lane as usize] = by;
    }

    /// Makes the scheduler of an engine that starts later take a lane for `times` times as slow as it is.
    pub fn mislead(&self, lane: Lane, times: f64) {
        self.plan().beliefs[lane as usize] = times;
    }

    /// Number of faults that have happened.
    pub fn happened(&self) -> u64 {
        self.plan().happened
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the fault that happens now, of those that are `possible`.
    fn next(&self, possible: &[Fault], meets: impl Fn(Victim) -> bool) -> Option<Fault> {
        let mut plan = self.plan();
        let due = plan.rules.iter_mut().find_map(|rule| {
            if !possible.contains(&rule.fault) || !meets(rule.victim) || rule.times == 0 {
                return None;
            }
            if rule.after > 0 {
                rule.after -= 1;
                return None;
            }
            rule.times -= 1;
            Some(rule.fault)
        });
        plan.rules.retain(|rule| rule.times > 0);
        plan.happened += u64::from(due.is_some());
        due
    }
}

impl Engine {
    /// Starts an engine with the faults of a plan.
    ///
    /// # Errors
    ///
    /// The errors of [`Engine::start`].
    pub fn start_with_faults(
        loader: Loader,
        policy: heg_spec::Policy,
        options: EngineOptions,
        plan: FaultPlan,
    ) -> Result<Self, EngineError> {
        Self::start_on(loader, policy, options, Arc::new(FaultyMachine(plan)))
    }
}

struct FaultyMachine(FaultPlan);

impl Machine for FaultyMachine {
    fn executor(&self, lane: Lane, mut executor: Executor) -> Box<dyn LaneExecutor> {
        let plan = self.0.clone();
        executor.permit_loads(Arc::new(move || {
            let meets = |victim| matches!(victim, Victim::Anybody) || victim == Victim::Lane(lane);
            match plan.next(&[Fault::Unloaded], meets) {
                Some(_) => Err(refused(lane)),
                None => Ok(()),
            }
        }));
        if self.0.plan().switches_always {
            executor.switch_always();
        }
        Box::new(FaultyExecutor {
            lane,
            executor,
            plan: self.0.clone(),
            cancel: Arc::default(),
            requests: Vec::new(),
        })
    }

    fn hangs_on_cpu(&self) -> bool {
        true
    }

    fn scheduler(&self, policy: heg_spec::Policy, known: Rc<Pace>) -> Box<dyn Scheduler> {
        let beliefs = self.0.plan().beliefs;
        scheduler(policy, Believed { known, beliefs })
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn reserve(
        &self,
        request: RequestId,
        room: &KvRoom,
        tokens: usize,
    ) -> Result<KvCache, ExecError> {
        let meets =
            |victim| matches!(victim, Victim::Anybody) || victim == Victim::Request(request);
        match self.0.next(&[Fault::Unreserved], meets) {
            Some(_) => Err(ExecError::Reserve {
                bytes: room.shape().token_bytes(),
                source: io::Error::other(ON_PURPOSE),
            }),
            None => room.reserve(tokens),
        }
    }

    fn draft(&self, request: RequestId, tokens: &[u32]) -> Option<Draft> {
        let plan = self.0.plan();
        let drafts = plan.drafts.as_ref()?;
        Some(Draft::expected(drafts(request, tokens)))
    }

    fn calibrated(&self, request: RequestId, position: u32, likely: &[Likely]) {
        if let Some(hear) = &self.0.plan().calibrated {
            hear(request, position, likely);
        }
    }

    fn file(&self, folder: &Path) -> io::Result<File> {
        let faults = [Fault::FlashFull, Fault::FlashUnreadable];
        let fault = self
            .0
            .next(&faults, |victim| matches!(victim, Victim::Anybody));
        match fault {
            Some(Fault::FlashFull) => full_file(),
            Some(_) => {
                let file = tempfile::NamedTempFile::new_in(folder)?;
                // It can be written, and the system refuses to read it.
                File::options().write(true).open(file.path())
            }
            None => tempfile::tempfile_in(folder),
        }
    }
}

/// Time that a lane of this machine has to answer.
const PATIENCE: Duration = Duration::from_secs(3);

const ON_PURPOSE: &str = "a fault on purpose";

fn refused(lane: Lane) -> ExecError {
    ExecError::Refused {
        kernel: format!("of lane {lane:?}"),
        message: ON_PURPOSE.to_owned(),
    }
}

/// An executor whose launches fail by the plan.
struct FaultyExecutor {
    lane: Lane,
    executor: Executor,
    plan: FaultPlan,
    cancel: Arc<AtomicBool>,
    /// The requests that it runs for.
    requests: Vec<RequestId>,
}

impl FaultyExecutor {
    fn wait_while(&self, waits: impl Fn() -> bool) {
        while waits() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Delays a token-wise kernel of a prompt, if the plan says so.
    fn dawdle(&self, launches: &[Launch], batch: &Batch<'_>) {
        let is_token_wise = |launch: &&Launch| matches!(launch.group, Group::Qkv | Group::Ffn);
        let of_prompt = batch.spans.iter().any(|span| span.tokens > 1);
        if of_prompt
            && launches
                .first()
                .is_some_and(|launch| is_token_wise(&launch))
        {
            let slowness = self.plan.plan().slowness[self.lane as usize];
            thread::sleep(slowness);
        }
    }

    fn suffer(&self, fault: Fault) -> Result<(), ExecError> {
        match fault {
            Fault::Hang | Fault::Late => {
                self.wait_while(|| !self.cancel.load(Ordering::Relaxed));
            }
            Fault::Stuck => self.wait_while(|| !self.plan.plan().released),
            // Unwinds as `panic!` does but prints nothing, so a log holds no panic that is not a bug.
            Fault::Panic => resume_unwind(Box::new(ON_PURPOSE)),
            Fault::Fail
            | Fault::OutOfMemory
            | Fault::Unloaded
            | Fault::Unreserved
            | Fault::FlashFull
            | Fault::FlashUnreadable => {}
        }
        match fault {
            Fault::Late => Ok(()),
            Fault::OutOfMemory => Err(ExecError::Reserve {
                bytes: 0,
                source: io::Error::other(ON_PURPOSE),
            }),
            _ => Err(refused(self.lane)),
        }
    }
}

/// Returns the fault of a launch for these requests, if the plan has one.
fn due(plan: &FaultPlan, own: Lane, requests: &[RequestId]) -> Option<Fault> {
    let faults = [
        Fault::Fail,
        Fault::Hang,
        Fault::Late,
        Fault::Stuck,
        Fault::Panic,
        Fault::OutOfMemory,
    ];
    plan.next(&faults, |victim| match victim {
        Victim::Anybody => true,
        Victim::Request(id) => requests.contains(&id),
        Victim::Lane(lane) => lane == own,
    })
}

impl LaneExecutor for FaultyExecutor {
    fn wait_ready(&mut self) -> Result<(), ExecError> {
        self.executor.wait_ready()
    }

    fn cancel_on(&mut self, cancel: Arc<AtomicBool>) {
        self.cancel = Arc::clone(&cancel);
        self.executor.cancel_on(cancel);
    }

    fn begin(&mut self, class: Class, requests: &[RequestId]) {
        self.requests = requests.to_vec();
        self.executor.begin(class);
    }

    fn expect(&mut self, coming: Coming) {
        self.executor.expect(coming);
    }

    fn rest(&mut self) -> Result<bool, ExecError> {
        self.executor.rest()
    }

    fn adopt(&mut self, forms: WarmForms) {
        self.executor.adopt(forms);
    }

    fn unload(&mut self, kernel: WarmKernel) {
        self.executor.unload(kernel);
    }

    fn embed(
        &mut self,
        tokens: TokenRun<'_>,
        rows: &ActivationRows,
        first: usize,
    ) -> Result<(), ExecError> {
        self.executor.embed(tokens, rows, first)
    }

    /// Runs an order up to a launch for which the plan has a fault, and continues after it.
    fn launch_all(
        &mut self,
        launches: &[Launch],
        batch: &Batch<'_>,
        goes_on: &GoesOn<'_>,
    ) -> Result<usize, ExecError> {
        self.dawdle(launches, batch);
        let (mut done, mut fault) = (0, due(&self.plan, self.lane, &self.requests));
        loop {
            if let Some(fault) = fault.take() {
                self.suffer(fault)?;
            }
            let next_fault = Mutex::new(None);
            let (lane, requests, plan) = (self.lane, &self.requests, &self.plan);
            let rest = launches.get(done..).unwrap_or_default();
            done += self.executor.launch_all(rest, batch, &|next| {
                let due = goes_on(next).then(|| due(plan, lane, requests));
                *next_fault.lock().unwrap_or_else(PoisonError::into_inner) = due.flatten();
                due == Some(None)
            })?;
            let found = next_fault.into_inner();
            fault = found.unwrap_or_else(PoisonError::into_inner);
            if fault.is_none() {
                return Ok(done);
            }
        }
    }

    fn takes_trees(&self, tokens: usize, context: usize) -> bool {
        self.executor.takes_trees(tokens, context)
    }

    fn is_at_hand(&mut self, launch: Launch) -> bool {
        self.executor.is_at_hand(launch)
    }

    fn logits(&mut self, rows: usize) -> Result<&mut [f32], ExecError> {
        self.executor.logits(rows)
    }

    fn pass_rows(&self) -> Arc<ActivationRows> {
        self.executor.pass_rows()
    }

    fn layers(&self) -> u32 {
        self.executor.layers()
    }

    fn order(&self, stage: WorkStage) -> LayerOrder {
        self.executor.order(stage)
    }

    fn head_rows(&self) -> usize {
        LaneExecutor::head_rows(&self.executor)
    }
}
