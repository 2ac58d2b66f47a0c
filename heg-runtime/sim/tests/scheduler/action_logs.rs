//! The schedulers' behaviour is pinned: a hash per policy over the complete logs of random traces.
//!
//! A refactoring leaves every hash unchanged. An intended change of the scheduling changes some, and its commit says
//! which and why. `HEG_TRACES=0..1000 cargo test --release -p heg-sim --test scheduler action_logs -- --nocapture`
//! compares the hashes of a thousand traces; other ranges print theirs, and a range of a single trace its logs, so
//! that those of two versions can be compared.
//!
//! The hashed text is written here, not derived, so renaming a type or a field does not change it.

use std::fmt::Write as _;
use std::ops::Range;

use heg_sched::{
    Action, Actions, CachedCosts, Class, ClientId, Decoding, Event, Finish, FlowId, Lane,
    LayerKernel, Micros, Scheduler, Segment, Submission, WarmKernel, Work,
};
use heg_sim::{AnalyticCosts, Contender, Dimensions, Faults, Rival, simulate};
use heg_spec::Seeded;
use heg_workload::Arrival;

use crate::fault_worlds;
use crate::scenario::Scenario;
use crate::script::of_any_kind;

/// The traces of an ordinary test run, under each policy.
const TRACES: Range<u64> = 0..64;

#[test]
fn hashes_are_those_of_the_pinned_logs() {
    let hashes = hashes(TRACES);
    insta::assert_snapshot!(hashes, @r"
    agent-xpu: 4d5b7e101bcf50246c54799e151b7ecc9d9b29bba757be960e5f91ef867d1815
    agent-xpu-one-device: 80f0390c81019729f74cdf21034b75d65c595def2757bf7bdd69c55f54743f4e
    agent-xpu-pair: 905b852d5ddf48cd3bb0e61880ac175db988c129138012245a6f8bc202d95789
    agent-xpu-quiet: 7d9e0b81be6ab1db7f594059581b7ba2f8a630d2b9f0c8d7422b202fe09c267c
    agent-xpu-v1: fc7ea6c25f1918ad7ab4af945a4ff5b93e8fc6eb523eb480f718c699dd11b7bb
    cpu-continuous-batching: 6870467a72be361cf8449bb34123acded3076d30cb9781c7438f4e5aa1492066
    cpu-priority-batching: 5e65c30cc4fc3372cf986ba8b9a943f049cb178c89b9d8ac902de48cce185b92
    heterollm-layer: 44731e5ca6d39dddf99a5f6cceefe5fd2764cbde8f385a4b0fe90d71e83256bb
    heterollm-tensor: 44731e5ca6d39dddf99a5f6cceefe5fd2764cbde8f385a4b0fe90d71e83256bb
    igpu-continuous-batching: c0ae32d8f9d047659317309155bdee2ad24653990b5b545787dba4034c6bb011
    sd-npu: 905b852d5ddf48cd3bb0e61880ac175db988c129138012245a6f8bc202d95789
    igpu-preempt-recompute: b84e15258b72cbc8c3d5e168e5aa4ac7d2083ca96b8f3b36306d9dbe984405f0
    igpu-time-sharing: b54df0616000677eda5ce885b0017e49338c03d01e207be1b677305a900376a9
    serial-npu-igpu: 395b606b9f22a1e7b1b299f68c83c0815ae283c3193f626b91318e2abdbe1924
    agent-xpu, mechanisms at random: 2c1f9d4a17a4df640046d2ea480672f756a8a067ccc01ca2298cdfd5cdbaaf0e
    ");
}

/// The hashes of the other traces that `HEG_TRACES` names.
#[test]
fn hashes_of_the_traces_asked_for() {
    let Ok(asked) = std::env::var("HEG_TRACES") else {
        return;
    };
    let (first, end) = asked.split_once("..").unwrap();
    let hashes = hashes(first.parse().unwrap()..end.parse().unwrap());
    println!("{hashes}");
    if asked == "0..1000" {
        insta::assert_snapshot!(hashes, @r"
    agent-xpu: 040d886bc4bcb4e2a65c6eb58f0244fd22233bf16fc5fc9d4fbd042ae84c5cd1
    agent-xpu-one-device: f26dcc67164b7895b0e6186c61a49141492a5c8a7cc6edc715febc4d7eba7c40
    agent-xpu-pair: 55b56ebb8afa3a2e902778b9ebd295b1740163e0516f77e49c4b390aa9ab37b2
    agent-xpu-quiet: 3f308adf6cf310f8f56d4ebbfcdfad664e440ca68a1fadd6c4dce46a4731f868
    agent-xpu-v1: fddf483ac10c8a8faf358774fd1bf19d91163147181206dedb6efd00ca457afe
    cpu-continuous-batching: 598815263980ad10edad600d6d91f32ee04f0ce6d42feb1ce150ffe9da67fcb1
    cpu-priority-batching: ffdf82d5ff291955f54671349d7e16c6873e21decc6c3c2a2355feef1136fb6c
    heterollm-layer: 6c1331ad940ae6552d54568f982be5ea3676345b8ad75bb9a09ed9f6ca870183
    heterollm-tensor: 6c1331ad940ae6552d54568f982be5ea3676345b8ad75bb9a09ed9f6ca870183
    igpu-continuous-batching: 127331117c83e2bbae0472285f8e77f8db60907c4224de419b217b317d18a738
    sd-npu: 55b56ebb8afa3a2e902778b9ebd295b1740163e0516f77e49c4b390aa9ab37b2
    igpu-preempt-recompute: 7e45b24e3f5c2ebe606af9ee62fefd9dc4be7132ea16f043a6e00c11d73f528e
    igpu-time-sharing: 140d7be2532e776a6d744f82fa75ed13f364a8ce7aea17a86fbccca5a8cdd62b
    serial-npu-igpu: 14751bd842686d7fcf6ea91341462410217974f7bda298fa910ef7a5a649db77
    agent-xpu, mechanisms at random: 7677122557e536ef688720be2e6f13933729ebfd5e9c286234a1b26ae5da4a95
    ");
    }
}

/// One line per shipped policy and rival, and one for Agent.xpu with mechanisms switched on and off at random.
fn hashes(traces: Range<u64>) -> String {
    let mut lines = String::new();
    let shipped = heg_spec::shipped::POLICIES.iter().map(|(name, _)| *name);
    for name in shipped.chain(Rival::ALL.map(Rival::name)) {
        let contender = Contender::named(name).unwrap();
        let hash = hash(name, &traces, |seed| world(&contender, seed));
        writeln!(lines, "{name}: {hash}").unwrap();
    }
    let hash = hash("mechanisms", &traces, Scenario::of);
    writeln!(lines, "agent-xpu, mechanisms at random: {hash}").unwrap();
    lines
}

/// Returns the hash of all logs of these traces, one after the other.
fn hash(name: &str, traces: &Range<u64>, world: impl Fn(u64) -> Scenario) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for seed in traces.clone() {
        let log = log(&world(seed), seed);
        hasher.update(log.as_bytes());
        if traces.end - traces.start == 1 {
            println!("{name}, trace {seed}\n{log}");
        }
    }
    hasher.finalize()
}

/// Returns a world with a random machine, memory limits, flows, cancellations and deadlines. Those with odd seeds are
/// without faults; a quarter are on the papers' machine with a model of 28 layers; in half of them background work is
/// soon overdue.
fn world(contender: &Contender, seed: u64) -> Scenario {
    let mut scenario = fault_worlds::world_of(contender, seed);
    let mut random = Seeded::new(seed ^ 0x1095);
    if seed % 8 >= 6 {
        scenario.costs = AnalyticCosts::core_ultra_5_125h(Dimensions::llama_3b());
        scenario.policy.limits.kv_mib *= 128;
        // A few chunks each, at distances that leave room for preemption.
        for request in &mut scenario.trace.requests {
            request.prompt_tokens *= 16;
            request.shared_tokens *= 16;
            if let Arrival::At(at) = &mut request.arrival {
                at.0 *= 20;
            }
        }
    }
    if let Some(ageing) = &mut scenario.policy.ageing
        && random.below(2) == 0
    {
        ageing.threshold_ms = 1 + random.below(60) as u32;
    }
    if seed % 2 == 1 {
        scenario.machine.faults = Faults::default();
    }
    scenario
}

/// Returns the events and actions of the scheduler, in order. Half of the schedulers cache costs, as the engine's
/// does.
fn log(scenario: &Scenario, seed: u64) -> String {
    let costs = scenario.costs.clone();
    let contender = scenario.contender();
    let scheduler = match seed % 4 {
        0 | 1 => contender.scheduler(costs),
        _ => contender.scheduler(of_any_kind(CachedCosts::new(costs))),
    };
    let text = format!("trace {seed}\n");
    let mut logged = Logged { scheduler, text };
    let run = simulate(
        &mut logged,
        &scenario.costs,
        &scenario.machine,
        &scenario.trace,
    );
    run.unwrap_or_else(|error| panic!("trace {seed}: {error}"));
    logged.text
}

/// A scheduler that logs its events and actions.
struct Logged {
    scheduler: Box<dyn Scheduler>,
    text: String,
}

impl Scheduler for Logged {
    fn step(&mut self, now: Micros, event: Event, actions: &mut Actions) {
        writeln!(self.text, "{} {}", now.0, event_text(&event)).unwrap();
        let first = actions.len();
        self.scheduler.step(now, event, actions);
        for action in &actions[first..] {
            writeln!(self.text, "  {}", action_text(action)).unwrap();
        }
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }
}

fn event_text(event: &Event) -> String {
    match event {
        Event::Submit(submission) => submission_text(submission),
        Event::Cancel(id) => format!("cancel r{}", id.0),
        Event::EndFlow(flow) => format!("end-flow f{}", flow.0),
        Event::Done {
            ticket,
            layers,
            ended,
            given: _,
        } => {
            let ended: Vec<u64> = ended.iter().map(|id| id.0).collect();
            format!("done t{} layers {layers} ended {ended:?}", ticket.0)
        }
        Event::Failed(ticket) => format!("failed t{}", ticket.0),
        Event::OutOfMemory(ticket) => format!("out-of-memory t{}", ticket.0),
        Event::Unreserved(id) => format!("unreserved r{}", id.0),
        Event::Unreadable { ticket, request } => {
            format!("unreadable t{} r{}", ticket.0, request.0)
        }
        Event::Offloaded(transfer) => format!("offloaded x{}", transfer.0),
        Event::OffloadFailed(transfer) => format!("offload-failed x{}", transfer.0),
        Event::Lost(lane) => format!("lost {}", lane_text(*lane)),
        Event::Ready(lane) => format!("ready {}", lane_text(*lane)),
        Event::Warmed(kernel) => format!("warmed {}", warm_text(*kernel)),
        Event::WarmFailed(kernel) => format!("warm-failed {}", warm_text(*kernel)),
        Event::Timer => "timer".to_owned(),
    }
}

fn submission_text(submission: &Submission) -> String {
    let Submission {
        id,
        client,
        flow,
        class,
        prompt_tokens,
        shared_tokens,
        output_tokens_max,
        deadline,
        // No simulated request has any: the pinned logs stay as they are.
        kept_tokens: _,
        prompt_logits: _,
    } = submission;
    let flow = flow.map(|FlowId(flow)| flow);
    let deadline = deadline.map(|Micros(deadline)| deadline);
    let class = match class {
        Class::Reactive => "reactive",
        Class::Proactive => "proactive",
    };
    let client = match client {
        ClientId(0) => String::new(),
        ClientId(client) => format!("client {client} "),
    };
    format!(
        "submit r{} {client}{class} flow {flow:?} prompt {prompt_tokens} shared {shared_tokens} \
         output {output_tokens_max} deadline {deadline:?}",
        id.0
    )
}

fn action_text(action: &Action) -> String {
    match action {
        Action::Launch { lane, ticket, work } => {
            let lane = lane_text(*lane);
            format!("launch t{} {lane} {}", ticket.0, work_text(work))
        }
        Action::Yield(ticket) => format!("yield t{}", ticket.0),
        Action::Reset(lane) => format!("reset {}", lane_text(*lane)),
        Action::Warm(kernel) => format!("warm {}", warm_text(*kernel)),
        Action::Unload(kernel) => format!("unload {}", warm_text(*kernel)),
        Action::Reserve {
            request,
            tokens,
            reused,
            ..
        } => format!("reserve r{} tokens {tokens} reused {reused}", request.0),
        Action::Release(id) => format!("release r{}", id.0),
        Action::Keep {
            request,
            flow,
            tokens,
        } => format!("keep r{} f{} tokens {tokens}", request.0, flow.0),
        Action::Offload { flow, transfer } => format!("offload f{} x{}", flow.0, transfer.0),
        Action::ReleaseFlow(flow) => format!("release-flow f{}", flow.0),
        Action::Restart(id) => format!("restart r{}", id.0),
        Action::Emit(id) => format!("emit r{}", id.0),
        Action::Finish(id, finish) => format!("finish r{} {}", id.0, finish_text(*finish)),
        Action::Timer(at) => format!("timer {}", at.0),
    }
}

fn work_text(work: &Work) -> String {
    match work {
        Work::Prefill {
            request,
            segment,
            layer,
            kernel,
        } => {
            let kernel = match kernel {
                LayerKernel::Qkv => "qkv",
                LayerKernel::Mha => "mha",
                LayerKernel::Ffn => "ffn",
            };
            let rows = segment_text(*segment);
            format!("prefill r{} {rows} layer {layer} {kernel}", request.0)
        }
        Work::Head(id) => format!("head r{}", id.0),
        Work::Decode(run) => {
            let batch = batch_text(&run.batch);
            let Range { start, end } = run.layers;
            let fused = if run.fused { " fused" } else { "" };
            format!("decode{batch} layers {start}..{end}{fused}")
        }
        Work::Mixed { batch, prompts } => {
            let prompts = prompts
                .iter()
                .map(|(id, segment)| format!(" r{} {}", id.0, segment_text(*segment)));
            let prompts: String = prompts.collect();
            format!("mixed{} prompts{prompts}", batch_text(batch))
        }
    }
}

fn batch_text(batch: &[Decoding]) -> String {
    let members = batch.iter().map(|member| {
        let drafted = match member.drafted {
            0 => String::new(),
            tokens => format!("+{tokens}"),
        };
        format!(" r{}:{}{drafted}", member.request.0, member.context)
    });
    members.collect()
}

fn segment_text(segment: Segment) -> String {
    format!("{}+{}", segment.position, segment.tokens)
}

fn warm_text(kernel: WarmKernel) -> String {
    format!("{}x{}", kernel.tokens, kernel.context)
}

fn lane_text(lane: Lane) -> &'static str {
    match lane {
        Lane::Npu => "npu",
        Lane::Igpu => "igpu",
        Lane::Cpu => "cpu",
    }
}

fn finish_text(finish: Finish) -> &'static str {
    match finish {
        Finish::Complete => "complete",
        Finish::Cancelled => "cancelled",
        Finish::Deadline => "deadline",
        Finish::Failed => "failed",
        Finish::Shed => "shed",
    }
}
