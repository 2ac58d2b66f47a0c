//! A scheduler driven by hand: each test says what happens, and reads what comes of it.

use std::fmt::Write as _;

use heg_sched::{
    Action, Actions, AgentXpu, Call, Class, Cost, Costs, Event, Finish, FlowId, Given, Kernel,
    Lane, Mechanism, Micros, ModelShape, PromptLogits, RequestId, Scheduler, Submission, Ticket,
    WarmKernel, Work, WorkStage,
};
use heg_spec::Policy;

/// A model of two layers on devices whose times are easy to add up: a chunk of 256 tokens takes 10 ms for
/// `qkv` and 20 ms for `ffn` on either device, attention 4 ms, a layer of decoding 3 ms, the head 1 ms.
#[derive(Debug, Clone)]
pub(crate) struct RoundCosts {
    /// Devices that are there, in the order of [`Lane::ALL`].
    pub(crate) lanes: [bool; Lane::ALL.len()],
    /// What each further row adds to a layer of decoding, in ms.
    pub(crate) row_ms: f64,
    /// Whether the NPU has kernels that verify drafts: a layer of them takes as long as one of decoding a row.
    pub(crate) verifies: bool,
    /// What a call draws of the bandwidth.
    pub(crate) draws: fn(Lane, Call) -> f64,
}

impl Costs for RoundCosts {
    fn model(&self) -> ModelShape {
        ModelShape {
            layers: 2,
            chunk_tokens: 256,
            context_tokens: 4096,
            // A budget of 1 MiB holds 1024 tokens.
            kv_bytes_per_token: 1024,
        }
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        let millis = match call {
            Call::Prefill {
                kernel: Kernel::Qkv,
                ..
            } => 10.0,
            Call::Prefill {
                kernel: Kernel::Ffn,
                ..
            } => 20.0,
            Call::Prefill {
                kernel: Kernel::Mha,
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

/// Something that runs.
struct Running {
    ticket: Ticket,
    work: Work,
    ends: Micros,
    /// Layers that a decode run will have done, from the model's first.
    layers: u32,
}

/// A scheduler, and devices that do what they are told until the script says otherwise.
pub(crate) struct Script {
    scheduler: AgentXpu<RoundCosts>,
    policy: Policy,
    costs: RoundCosts,
    now: Micros,
    running: [Option<Running>; Lane::ALL.len()],
    /// Lanes whose launches never end.
    stuck: [bool; Lane::ALL.len()],
    timer: Option<Micros>,
    /// How likely each token of a draft is reached, of all requests; all of them are right.
    pub(crate) draft: Vec<u16>,
    /// Everything that happened, for snapshots.
    pub(crate) log: String,
    /// How requests ended.
    pub(crate) finished: Vec<(u64, Finish)>,
    /// Tokens that requests got, in order.
    pub(crate) tokens: Vec<u64>,
    /// Requests whose work was thrown away.
    pub(crate) restarted: Vec<u64>,
}

impl Script {
    /// NPU and iGPU under Agent.xpu's policy, changed by `change`.
    pub(crate) fn new(change: impl FnOnce(&mut Policy)) -> Self {
        Self::on([true, true, false], change)
    }

    /// As [`Script::new`], with these lanes.
    pub(crate) fn on(lanes: [bool; Lane::ALL.len()], change: impl FnOnce(&mut Policy)) -> Self {
        let costs = RoundCosts {
            lanes,
            row_ms: 0.0,
            verifies: false,
            draws: |_, _| 0.1,
        };
        Self::with(costs, change)
    }

    /// As [`Script::new`], with these costs.
    pub(crate) fn with(costs: RoundCosts, change: impl FnOnce(&mut Policy)) -> Self {
        let mut policy = heg_spec::shipped::policy("agent-xpu").unwrap();
        change(&mut policy);
        Self {
            scheduler: AgentXpu::new(policy.clone(), costs.clone()),
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

    /// The same, with calls that draw so much of the bandwidth.
    pub(crate) fn drawing(self, draws: fn(Lane, Call) -> f64) -> Self {
        let costs = RoundCosts {
            draws,
            ..self.costs
        };
        let policy = self.policy;
        Self::with(costs, |own| *own = policy)
    }

    /// Steps in which a mechanism acted.
    pub(crate) fn activations(&self, mechanism: Mechanism) -> u64 {
        self.scheduler.activations().of(mechanism)
    }

    /// Asks what requests wait for.
    pub(crate) fn ask(&self) -> usize {
        let mut holds = Vec::new();
        self.scheduler.holds(&mut holds);
        holds.len()
    }

    /// A reactive request comes in.
    pub(crate) fn reactive(&mut self, id: u64, prompt_tokens: u32, output_tokens: u32) {
        self.submit(id, Class::Reactive, prompt_tokens, output_tokens, None);
    }

    /// A proactive request comes in.
    pub(crate) fn proactive(&mut self, id: u64, prompt_tokens: u32, output_tokens: u32) {
        self.submit(id, Class::Proactive, prompt_tokens, output_tokens, None);
    }

    /// A request comes in.
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
            flow: None::<FlowId>,
            class,
            prompt_tokens,
            shared_tokens: 0,
            output_tokens_max,
            deadline,
            prompt_logits: PromptLogits::LastRow,
        }));
    }

    /// Something other than a request happens now.
    pub(crate) fn happen(&mut self, event: Event) {
        let _ = writeln!(self.log, "{:>6.1} {event:?}", self.now.0 as f64 / 1000.0);
        self.hear(event);
    }

    /// The launch on a lane fails now.
    pub(crate) fn fail(&mut self, lane: Lane, event: fn(Ticket) -> Event) {
        let running = self.running[lane as usize].take().unwrap();
        self.happen(event(running.ticket));
    }

    /// A request does not get the memory that was reserved for it.
    pub(crate) fn refuse(&mut self, id: u64) {
        for running in &mut self.running {
            running.take_if(|running| running.work.is_of(RequestId(id)));
        }
        self.happen(Event::Unreserved(RequestId(id)));
    }

    /// A device is gone now.
    pub(crate) fn lose(&mut self, lane: Lane) {
        self.running[lane as usize] = None;
        self.happen(Event::Lost(lane));
    }

    /// What runs on a lane from now on never ends, until the lane is reset.
    pub(crate) fn hang(&mut self, lane: Lane) {
        self.stuck[lane as usize] = true;
    }

    /// Whether something runs on a lane.
    pub(crate) fn runs(&self, lane: Lane) -> Option<&Work> {
        let running = self.running[lane as usize].as_ref();
        running.map(|running| &running.work)
    }

    /// Lets time pass up to a moment.
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

    /// Lets some time pass.
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

    /// What happens next: the end of a launch, or the timer.
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

    /// What a launch gives where answers are drafted.
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

    /// Ends a decode run after the layer that runs now.
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

/// A launch in a few words.
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
