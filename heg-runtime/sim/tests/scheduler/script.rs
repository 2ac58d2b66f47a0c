//! A scheduler driven by hand: each test says what happens, and checks the scheduler's reaction.

use std::fmt::Write as _;
use std::rc::Rc;

use heg_sched::{
    Action, Actions, AgentXpu, Call, Class, ClientId, Cost, Costs, Event, Finish, FlowId, Given,
    Lane, LayerKernel, LayerOrder, Mechanism, Micros, ModelShape, PromptLogits, RequestId,
    Scheduler, Submission, Ticket, WarmKernel, Work, WorkStage,
};
use heg_spec::Policy;

/// A model of two layers on devices whose times are easy to add up: a chunk of 256 tokens takes 10 ms for
/// `qkv` and 20 ms for `ffn` on either device, attention 4 ms, a layer of decoding 3 ms, the head 1 ms.
#[derive(Debug, Clone)]
pub(crate) struct RoundCosts {
    /// Whether each device is present, in the order of [`Lane::ALL`].
    pub(crate) lanes: [bool; Lane::ALL.len()],
    /// Additional time of a decode layer for each further row, in ms.
    pub(crate) row_ms: f64,
    /// Whether the NPU has kernels that verify drafts: a layer of them takes as long as a decode layer of one row.
    pub(crate) verifies: bool,
    /// Share of the bandwidth that a call draws.
    pub(crate) draws: fn(Lane, Call) -> f64,
}

impl RoundCosts {
    /// Costs on these lanes, whose rows cost nothing and whose calls leave most of the bandwidth.
    pub(crate) fn plain(lanes: [bool; Lane::ALL.len()]) -> Self {
        Self {
            lanes,
            row_ms: 0.0,
            verifies: false,
            draws: |_, _| 0.1,
        }
    }
}

/// Costs of any kind: what takes them is compiled once, and not for each kind.
pub(crate) fn of_any_kind(costs: impl Costs + 'static) -> Rc<dyn Costs> {
    Rc::new(costs)
}

impl Costs for RoundCosts {
    fn model(&self) -> ModelShape {
        ModelShape {
            layers: 2,
            order: LayerOrder::default(),
            chunk_tokens: 256,
            context_tokens: 4096,
            // A budget of 1 MiB holds 1024 tokens.
            kv_bytes_per_token: 1024,
        }
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        let millis = match call {
            Call::Prefill {
                kernel: LayerKernel::Qkv,
                ..
            } => 10.0,
            Call::Prefill {
                kernel: LayerKernel::Ffn,
                ..
            } => 20.0,
            Call::Prefill {
                kernel: LayerKernel::Mha,
                ..
            } if lane != Lane::Npu => 4.0,
            Call::Layer { rows, .. } if lane != Lane::Npu => {
                3.0 + self.row_ms * f64::from(rows - 1)
            }
            Call::Verify { .. } if self.verifies && lane == Lane::Npu => 3.0,
            Call::Prefill { .. } | Call::Layer { .. } | Call::Verify { .. } => return None,
            Call::Head { .. } => 1.0,
        };
        self.lanes[lane as usize].then_some(Cost {
            latency_us: millis * 1000.0,
            bandwidth: (self.draws)(lane, call),
        })
    }

    fn watts(&self, lane: Lane, stage: WorkStage) -> Option<f64> {
        Some(match (lane, stage) {
            (Lane::Npu, _) => 10.0,
            (_, WorkStage::Decode) => 25.0,
            (_, WorkStage::Prefill) => 30.0,
        })
    }

    fn warm_cost(&self, _kernel: WarmKernel) -> Option<Cost> {
        None
    }

    fn warm_up(&self, _kernel: WarmKernel) -> Option<Micros> {
        None
    }
}

/// A running launch.
struct Running {
    ticket: Ticket,
    work: Work,
    ends: Micros,
    /// Number of layers that a decode run will have completed, from the model's first.
    layers: u32,
}

/// A scheduler, and devices that carry out its actions until the script says otherwise.
pub(crate) struct Script {
    scheduler: AgentXpu<Rc<dyn Costs>>,
    policy: Policy,
    costs: RoundCosts,
    now: Micros,
    running: [Option<Running>; Lane::ALL.len()],
    /// Whether launches on each lane never end.
    stuck: [bool; Lane::ALL.len()],
    timer: Option<Micros>,
    /// Probability that each token of a draft is reached, the same for all requests; all of the tokens are right.
    pub(crate) draft: Vec<u16>,
    /// All events and actions, for snapshots.
    pub(crate) log: String,
    /// The ends of requests.
    pub(crate) finished: Vec<(u64, Finish)>,
    /// The requests that got tokens, in order.
    pub(crate) tokens: Vec<u64>,
    /// The requests whose work was discarded.
    pub(crate) restarted: Vec<u64>,
}

impl Script {
    /// Creates a script of NPU and iGPU under Agent.xpu's policy, changed by `change`.
    pub(crate) fn new(change: impl FnOnce(&mut Policy)) -> Self {
        Self::on([true, true, false], change)
    }

    /// Creates a script as [`Script::new`] does, with these lanes.
    pub(crate) fn on(lanes: [bool; Lane::ALL.len()], change: impl FnOnce(&mut Policy)) -> Self {
        Self::with(RoundCosts::plain(lanes), change)
    }

    /// Creates a script as [`Script::new`] does, with these costs.
    pub(crate) fn with(costs: RoundCosts, change: impl FnOnce(&mut Policy)) -> Self {
        let mut policy = heg_spec::shipped::policy("agent-xpu").unwrap();
        change(&mut policy);
        Self::under(policy, costs)
    }

    /// Creates a script as [`Script::with`] does, under an unchanged policy.
    pub(crate) fn under(policy: Policy, costs: RoundCosts) -> Self {
        Self {
            scheduler: AgentXpu::new(policy.clone(), of_any_kind(costs.clone())),
            policy,
            costs,
            now: Micros(0),
            running: [None, None, None],
            stuck: [false; Lane::ALL.len()],
            timer: None,
            draft: Vec::new(),
            log: String::new(),
            finished: Vec::new(),
            tokens: Vec::new(),
            restarted: Vec::new(),
        }
    }

    /// Sets the share of the bandwidth that calls draw.
    pub(crate) fn drawing(self, draws: fn(Lane, Call) -> f64) -> Self {
        let costs = RoundCosts {
            draws,
            ..self.costs
        };
        Self::under(self.policy, costs)
    }

    /// Returns the number of steps in which a mechanism acted.
    pub(crate) fn activations(&self, mechanism: Mechanism) -> u64 {
        self.scheduler.activations().of(mechanism)
    }

    /// Asks the scheduler why its requests wait; returns the number of its answers.
    pub(crate) fn ask(&self) -> usize {
        let mut holds = Vec::new();
        self.scheduler.holds(&mut holds);
        holds.len()
    }

    /// Submits a reactive request.
    pub(crate) fn reactive(&mut self, id: u64, prompt_tokens: u32, output_tokens: u32) {
        self.submit(id, Class::Reactive, prompt_tokens, output_tokens, None);
    }

    /// Submits a proactive request.
    pub(crate) fn proactive(&mut self, id: u64, prompt_tokens: u32, output_tokens: u32) {
        self.submit(id, Class::Proactive, prompt_tokens, output_tokens, None);
    }

    /// Submits a request.
    pub(crate) fn submit(
        &mut self,
        id: u64,
        class: Class,
        prompt_tokens: u32,
        output_tokens_max: u32,
        deadline: Option<Micros>,
    ) {
        let _ = writeln!(
            self.log,
            "{:>6.1} {class:?} request {id}: {prompt_tokens} tokens, {output_tokens_max} wanted",
            self.now.0 as f64 / 1000.0
        );
        self.hear(Event::Submit(Submission {
            id: RequestId(id),
            client: ClientId::default(),
            flow: None::<FlowId>,
            class,
            prompt_tokens,
            shared_tokens: 0,
            kept_tokens: 0,
            output_tokens_max,
            deadline,
            prompt_logits: PromptLogits::LastRow,
        }));
    }

    /// Delivers an event other than a submission now.
    pub(crate) fn happen(&mut self, event: Event) {
        let _ = writeln!(self.log, "{:>6.1} {event:?}", self.now.0 as f64 / 1000.0);
        self.hear(event);
    }

    /// Makes the launch on a lane fail now.
    pub(crate) fn fail(&mut self, lane: Lane, event: fn(Ticket) -> Event) {
        let running = self.running[lane as usize].take().unwrap();
        self.happen(event(running.ticket));
    }

    /// Refuses a request the memory that was reserved for it.
    pub(crate) fn refuse(&mut self, id: u64) {
        for running in &mut self.running {
            running.take_if(|running| running.work.is_of(RequestId(id)));
        }
        self.happen(Event::Unreserved(RequestId(id)));
    }

    /// Removes a device now.
    pub(crate) fn lose(&mut self, lane: Lane) {
        self.running[lane as usize] = None;
        self.happen(Event::Lost(lane));
    }

    /// Makes launches on a lane hang from now on, until the lane is reset.
    pub(crate) fn hang(&mut self, lane: Lane) {
        self.stuck[lane as usize] = true;
    }

    /// Returns the work that runs on a lane, if any.
    pub(crate) fn runs(&self, lane: Lane) -> Option<&Work> {
        let running = self.running[lane as usize].as_ref();
        running.map(|running| &running.work)
    }

    /// Lets time pass up to `millis`.
    pub(crate) fn run_until(&mut self, millis: u64) {
        let until = Micros(millis * 1000);
        while let Some((at, lane)) = self.next().filter(|(at, _)| *at <= until) {
            self.now = self.now.max(at);
            match lane {
                Some(lane) => self.complete(lane),
                None => {
                    self.timer = None;
                    self.hear(Event::Timer);
                }
            }
        }
        self.now = until;
    }

    /// Lets `millis` pass.
    pub(crate) fn run_for(&mut self, millis: u64) {
        self.run_until(self.now.0 / 1000 + millis);
    }

    /// Lets time pass until nothing is left to do.
    pub(crate) fn run(&mut self) {
        self.run_until(self.now.0 / 1000 + 100_000);
        assert!(
            self.scheduler.is_idle(),
            "requests are left over:\n{}",
            self.log
        );
    }

    /// Returns the next event: the end of a launch, or the timer.
    fn next(&self) -> Option<(Micros, Option<Lane>)> {
        let ends = Lane::ALL.into_iter().filter_map(|lane| {
            let running = self.running[lane as usize].as_ref()?;
            (!self.stuck[lane as usize]).then_some((running.ends, Some(lane)))
        });
        ends.chain(self.timer.map(|at| (at, None)))
            .min_by_key(|(at, lane)| (*at, lane.is_none()))
    }

    fn complete(&mut self, lane: Lane) {
        let Some(running) = self.running[lane as usize].take() else {
            return;
        };
        let given = self.given(&running);
        self.hear(Event::Done {
            ticket: running.ticket,
            layers: running.layers,
            ended: Vec::new(),
            given,
        });
    }

    /// Returns the results of a launch if answers are drafted.
    fn given(&self, running: &Running) -> Vec<Given> {
        let gives = match &running.work {
            Work::Head(_) => true,
            Work::Decode(run) => running.layers == run.layers.end,
            Work::Prefill { .. } | Work::Mixed { .. } => false,
        };
        let requests = running.work.requests().into_iter();
        let given = requests.map(|request| Given {
            request,
            tokens: 1 + running.work.decoding(request).map_or(0, |it| it.drafted),
            draft: self.draft.as_slice().into(),
        });
        given.filter(|_| gives && !self.draft.is_empty()).collect()
    }

    fn hear(&mut self, event: Event) {
        let mut actions = Actions::new();
        self.scheduler.step(self.now, event, &mut actions);
        for action in actions {
            self.carry_out(action);
        }
    }

    fn carry_out(&mut self, action: Action) {
        let line = match action {
            Action::Launch { lane, ticket, work } => {
                let line = format!("{lane:?}: {}", said(&work));
                self.launch(lane, ticket, work);
                line
            }
            Action::Yield(ticket) => {
                self.cut_short(ticket);
                "decoding yields at its next layer".to_owned()
            }
            Action::Reset(lane) => {
                self.running[lane as usize] = None;
                self.stuck[lane as usize] = false;
                format!("reset of {lane:?}")
            }
            Action::Emit(id) => {
                self.tokens.push(id.0);
                format!("a token for {}", id.0)
            }
            Action::Restart(id) => {
                self.restarted.push(id.0);
                format!("{} starts over", id.0)
            }
            Action::Finish(id, finish) => {
                self.finished.push((id.0, finish));
                format!("{} ends: {finish:?}", id.0)
            }
            Action::Timer(at) => {
                self.timer = Some(at);
                return;
            }
            Action::Reserve { .. } | Action::Release(_) => return,
            other => format!("{other:?}"),
        };
        let _ = writeln!(self.log, "{:>6.1}   {line}", self.now.0 as f64 / 1000.0);
    }

    fn launch(&mut self, lane: Lane, ticket: Ticket, work: Work) {
        assert!(self.runs(lane).is_none(), "{lane:?} is busy:\n{}", self.log);
        let latency = |call| self.costs.cost(lane, call).unwrap().latency_us as u64;
        let (micros, layers) = match &work {
            Work::Prefill {
                segment, kernel, ..
            } => {
                let call = Call::Prefill {
                    kernel: *kernel,
                    tokens: segment.tokens,
                    context: segment.context(),
                };
                (latency(call), 0)
            }
            Work::Head(_) => (latency(Call::Head { rows: 1 }), 0),
            Work::Decode(run) => (run.layers.len() as u64 * LAYER_US + 1000, run.layers.end),
            Work::Mixed { .. } => panic!("{work:?} is not Agent.xpu's"),
        };
        self.running[lane as usize] = Some(Running {
            ticket,
            work,
            ends: self.now + Micros(micros),
            layers,
        });
    }

    /// Ends a decode run after its current layer.
    fn cut_short(&mut self, ticket: Ticket) {
        let running = self.running.iter_mut().flatten();
        for running in running.filter(|running| running.ticket == ticket) {
            let Work::Decode(run) = &running.work else {
                continue;
            };
            let all = run.layers.len() as u64 * LAYER_US + 1000;
            let start = running.ends - Micros(all);
            let layers = 1 + (self.now - start).0 / LAYER_US;
            if layers < run.layers.len() as u64 {
                running.layers = run.layers.start + layers as u32;
                running.ends = start + Micros(layers * LAYER_US);
            }
        }
    }
}

const LAYER_US: u64 = 3000;

/// Describes a launch in a few words.
fn said(work: &Work) -> String {
    match work {
        Work::Prefill {
            request,
            segment,
            layer,
            kernel,
        } => format!(
            "{} [{}..{}] layer {layer} {kernel:?}",
            request.0,
            segment.position,
            segment.context()
        ),
        Work::Head(request) => format!("{} head", request.0),
        Work::Decode(run) => {
            let ids: Vec<u64> = run.batch.iter().map(|member| member.request.0).collect();
            format!("decode {ids:?} layers {:?}", run.layers)
        }
        Work::Mixed { .. } => "mixed".to_owned(),
    }
}
