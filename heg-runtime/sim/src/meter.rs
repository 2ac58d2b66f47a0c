//! Records requests and resource usage while a simulation runs.

use super::power::PowerModel;
use heg_sched::{Class, Cost, Decoding, Finish, Lane, Micros, RequestId, Work, WorkStage};
use heg_workload::Trace;

/// The record of a request. Times that were never reached are `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRecord {
    /// Priority class.
    pub class: Class,
    /// Number of tokens of the prompt.
    pub prompt_tokens: u32,
    /// Number of tokens of the prompt found in the flow's cache.
    pub reused_tokens: u32,
    /// Number of emitted tokens of the answer.
    pub output_tokens: u32,
    /// Time of arrival.
    pub arrived: Option<Micros>,
    /// Time at which its first kernel started.
    pub started: Option<Micros>,
    /// Time of its first token.
    pub first_token: Option<Micros>,
    /// Time of its end.
    pub ended: Option<Micros>,
    /// The reason of its end.
    pub finish: Option<Finish>,
    /// Time during which at least one kernel of its prompt ran.
    pub prefill_active: Micros,
    /// Time during which a decode iteration with it ran.
    pub decode_active: Micros,
    /// Number of restarts of its computation.
    pub restarts: u32,
}

/// Time, energy and launches that a simulation used.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ResourceUsage {
    /// Time that each lane ran kernels of prompts, in s.
    pub prefill_secs: [f64; Lane::ALL.len()],
    /// Time that each lane ran decode iterations, in s.
    pub decode_secs: [f64; Lane::ALL.len()],
    /// Time that at least one lane was busy, in s.
    pub active_secs: f64,
    /// Time that the CPU compiled, in s.
    pub compile_secs: f64,
    /// Total energy, in J.
    pub energy_joules: f64,
    /// Longest time for which a lane cannot be interrupted, in µs: that of a kernel, or of a layer of a decode run,
    /// alone.
    pub longest_kernel_us: f64,
    /// Number of launches.
    pub launches: u64,
    /// Number of decodings: each request counts in each of its iterations.
    pub decodings: u64,
    /// Number of drafted tokens that were verified in these.
    pub drafted_tokens: u64,
    /// Number of drafted tokens that were accepted.
    pub accepted_tokens: u64,
}

#[derive(Debug, Clone)]
struct Live {
    record: RequestRecord,
    /// Number of tokens to prefill: its prompt and, after a restart, its answer until then.
    prompt_tokens: u32,
    /// Number of its running launches, and the time since which there are any.
    active: u32,
    active_since: Micros,
}

/// Writes the records of a simulation.
#[derive(Debug)]
pub(super) struct Meter<'a> {
    trace: &'a Trace,
    power: &'a PowerModel,
    live: Vec<Live>,
    usage: ResourceUsage,
}

impl<'a> Meter<'a> {
    pub(super) fn new(trace: &'a Trace, power: &'a PowerModel) -> Self {
        let record = |request: &heg_workload::TraceRequest| RequestRecord {
            class: request.class,
            prompt_tokens: request.prompt_tokens,
            reused_tokens: 0,
            output_tokens: 0,
            arrived: None,
            started: None,
            first_token: None,
            ended: None,
            finish: None,
            prefill_active: Micros(0),
            decode_active: Micros(0),
            restarts: 0,
        };
        let live = |request| Live {
            record: record(request),
            prompt_tokens: request.prompt_tokens,
            active: 0,
            active_since: Micros(0),
        };
        Self {
            trace,
            power,
            live: trace.requests.iter().map(live).collect(),
            usage: ResourceUsage::default(),
        }
    }

    fn get(&mut self, id: RequestId) -> Option<&mut Live> {
        self.live.get_mut(id.0 as usize)
    }

    /// Counts time that passes while `busy` runs.
    pub(super) fn pass(
        &mut self,
        span: Micros,
        busy: [Option<&Work>; Lane::ALL.len()],
        compiling: bool,
    ) {
        let secs = span.as_secs();
        let usage = &mut self.usage;
        let mut watts = self.power.idle_watts;
        for (lane, work) in Lane::ALL.into_iter().zip(busy) {
            let Some(work) = work else { continue };
            watts += self.power.watts(lane, work);
            let stage = match WorkStage::of(work) {
                WorkStage::Decode => &mut usage.decode_secs,
                WorkStage::Prefill => &mut usage.prefill_secs,
            };
            stage[lane as usize] += secs;
        }
        if busy.iter().any(Option::is_some) {
            usage.active_secs += secs;
        }
        if compiling {
            watts += self.power.compile_watts;
            usage.compile_secs += secs;
        }
        usage.energy_joules += watts * secs;
    }

    pub(super) fn arrived(&mut self, id: RequestId, now: Micros) {
        if let Some(live) = self.get(id) {
            live.record.arrived = Some(now);
        }
    }

    pub(super) fn reused(&mut self, id: RequestId, tokens: u32) {
        if let Some(live) = self.get(id) {
            live.record.reused_tokens = tokens;
        }
    }

    pub(super) fn restarted(&mut self, id: RequestId) {
        if let Some(live) = self.get(id) {
            live.record.restarts += 1;
            live.prompt_tokens = live.record.prompt_tokens + live.record.output_tokens;
        }
    }

    pub(super) fn emitted(&mut self, id: RequestId, now: Micros) {
        if let Some(live) = self.get(id) {
            live.record.output_tokens += 1;
            live.record.first_token.get_or_insert(now);
        }
    }

    pub(super) fn finished(&mut self, id: RequestId, finish: Finish, now: Micros) {
        if let Some(live) = self.get(id) {
            live.record.ended.get_or_insert(now);
            live.record.finish.get_or_insert(finish);
        }
    }

    /// Records the start of a launch.
    pub(super) fn start(&mut self, work: &Work, _lane: Lane, cost: Cost, now: Micros) {
        let usage = &mut self.usage;
        usage.launches += 1;
        let piece = match work {
            Work::Decode(run) => cost.latency_us / f64::from(run.layers.len().max(1) as u32),
            Work::Prefill { .. } | Work::Head(_) | Work::Mixed { .. } => cost.latency_us,
        };
        usage.longest_kernel_us = usage.longest_kernel_us.max(piece);
        self.each(work, |live| {
            live.record.started.get_or_insert(now);
            if live.active == 0 {
                live.active_since = now;
            }
            live.active += 1;
        });
    }

    /// Records the end of a launch, regular or not.
    pub(super) fn stop(&mut self, work: &Work, now: Micros) {
        self.each(work, |live| {
            live.active = live.active.saturating_sub(1);
            if live.active == 0 {
                let span = now.since(live.active_since);
                let record = &mut live.record;
                match record.first_token {
                    None => record.prefill_active = record.prefill_active + span,
                    Some(_) => record.decode_active = record.decode_active + span,
                }
            }
        });
    }

    /// Calls `note` for each request of a launch.
    fn each(&mut self, work: &Work, mut note: impl FnMut(&mut Live)) {
        let mut call = |id: &RequestId| {
            if let Some(live) = self.live.get_mut(id.0 as usize) {
                note(live);
            }
        };
        match work {
            Work::Prefill { request, .. } | Work::Head(request) => call(request),
            Work::Decode(run) => run.batch.iter().for_each(|member| call(&member.request)),
            Work::Mixed { batch, prompts } => {
                batch.iter().for_each(|member| call(&member.request));
                prompts.iter().for_each(|(id, _)| call(id));
            }
        }
    }

    /// Returns the number of tokens that a request has to prefill.
    pub(super) fn prompt_tokens(&self, id: RequestId) -> u32 {
        let live = self.live.get(id.0 as usize);
        live.map_or(0, |live| live.prompt_tokens)
    }

    /// Returns the requests that get tokens of a completed launch; `through` says whether a decode run has completed
    /// its last layer.
    pub(super) fn receivers(&self, work: &Work, through: bool) -> Vec<RequestId> {
        match work {
            Work::Prefill { .. } => Vec::new(),
            Work::Head(id) => vec![*id],
            Work::Decode(run) if through => run.batch.iter().map(|member| member.request).collect(),
            Work::Decode(_) => Vec::new(),
            Work::Mixed { batch, prompts } => {
                let whole = |(id, part): &&(RequestId, heg_sched::Segment)| {
                    part.context() >= self.prompt_tokens(*id)
                };
                let prompts = prompts.iter().filter(whole).map(|(id, _)| *id);
                let batch = batch.iter().map(|member| member.request);
                batch.chain(prompts).collect()
            }
        }
    }

    /// Returns the number of emitted tokens of a request's answer, and of those still to come.
    pub(super) fn answer(&self, id: RequestId) -> Option<(u32, u32)> {
        let emitted = self.live.get(id.0 as usize)?.record.output_tokens;
        let all = self.trace.requests.get(id.0 as usize)?.output_tokens;
        Some((emitted, all.saturating_sub(emitted)))
    }

    /// Counts a request that decoded, and got `tokens` tokens.
    pub(super) fn decoded(&mut self, member: Decoding, tokens: u32) {
        self.usage.decodings += 1;
        self.usage.drafted_tokens += u64::from(member.drafted);
        self.usage.accepted_tokens += u64::from(tokens.saturating_sub(1));
    }

    /// Returns the records, the usage, and the number of requests that arrived and have not ended.
    pub(super) fn close(self) -> (Vec<RequestRecord>, ResourceUsage, usize) {
        let records: Vec<_> = self.live.into_iter().map(|live| live.record).collect();
        let open = |r: &&RequestRecord| r.arrived.is_some() && r.ended.is_none();
        let live = records.iter().filter(open).count();
        (records, self.usage, live)
    }
}
