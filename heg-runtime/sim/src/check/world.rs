//! The checker's model of the world: lanes, requests and memory, derived from events and actions alone.

mod events;
mod request;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heg_spec::Policy;
use heg_spec::policy::{AgeingStart, SchedulerKind};

use heg_sched::{
    Call, Class, Costs, Decoding, FlowId, Lane, Micros, ModelShape, RequestId, Ticket, Transfer,
    WarmKernel, Work,
};
pub(super) use request::{KERNELS, Part, Phase, Seen};

/// Number of failures in a row after which a request may be failed.
pub(super) const ATTEMPTS: u32 = 3;

/// A lane.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Absent,
    Free,
    Busy(Ticket, Work),
    /// It was told to stop its work, and must answer by this time.
    Resetting(Option<Work>, Micros),
}
/// An iteration that has begun.
#[derive(Debug, Clone)]
pub(super) struct Iteration {
    pub(super) batch: Arc<[Decoding]>,
    pub(super) layers_done: u32,
    /// The lane on which it began, which has its hidden states.
    pub(super) lane: Lane,
    /// A launch of it failed: it may begin anew, or give way to another.
    pub(super) broken: bool,
}

/// A cache that is being written to flash.
#[derive(Debug, Clone)]
pub(super) struct Leaving {
    /// The flow that keeps it, if any still does.
    pub(super) flow: Option<FlowId>,
    pub(super) tokens: u32,
    /// A request took it back: its memory is the request's.
    pub(super) taken: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Micros,
    pub(super) model: ModelShape,
    /// Most tokens of a segment of a reactive prompt, and of a proactive one.
    chunk_tokens: [u32; 2],
    overdue_after: Option<Micros>,
    /// From when on a prompt has waited before it has the lane of dynamic kernels beside a reactive one.
    prompts_from: AgeingStart,
    /// Minimum time that requests wait for a lane.
    patience: Micros,
    /// Lanes that the scheduler may use.
    usable: [bool; Lane::ALL.len()],
    pub(super) places: [Place; Lane::ALL.len()],
    /// Until when requests wait for a lane, where the last one of dynamic kernels went away.
    may_return_until: Option<Micros>,
    /// Requests to whose memory a lane that has not answered may still write.
    pub(super) writers: [BTreeSet<RequestId>; Lane::ALL.len()],
    /// Memory that was released while a lane might write to it.
    pub(super) held: Vec<(BTreeSet<Lane>, u64)>,
    pub(super) requests: BTreeMap<RequestId, Seen>,
    /// On the lane of dynamic kernels.
    pub(super) iteration: Option<Iteration>,
    /// The verification of one request on the NPU.
    pub(super) aside: Option<Iteration>,
    /// Whether nothing was decoded since a proactive prompt's last kernel.
    pub(super) prefilled_last: bool,
    pub(super) tickets: BTreeSet<Ticket>,
    pub(super) kv_budget: u64,
    pub(super) kv_used: u64,
    pub(super) flows: BTreeMap<FlowId, u32>,
    pub(super) flash_budget: u64,
    pub(super) flash: BTreeMap<FlowId, u32>,
    pub(super) transfers: BTreeMap<Transfer, Leaving>,
    pub(super) warm: BTreeSet<WarmKernel>,
    pub(super) compiling: Option<WarmKernel>,
    /// What the last event said to have given beyond what was verified.
    pub(super) unverified: Vec<String>,
    /// When the iGPU may work again, where the policy bounds its share of the time.
    pub(super) igpu_rests_until: Micros,
    /// Launches that failed, were lost or had to be stopped.
    pub(super) failures: u32,
}

impl World {
    pub(super) fn new(costs: &impl Costs, policy: &Policy) -> Self {
        let model = costs.model();
        let has = |lane| {
            let one_device = !matches!(
                policy.scheduler,
                SchedulerKind::AgentXpu | SchedulerKind::Serial
            );
            let named = Lane::from(policy.device);
            let head = costs.cost(lane, Call::Head { rows: 1 }).is_some();
            head && (!one_device || lane == named)
        };
        let usable = Lane::ALL.map(has);
        let chunk = model.chunk_tokens.max(1);
        let most = policy.prefill.proactive_chunk_tokens;
        let proactive = chunk.min(most.unwrap_or(chunk));
        let reactive = match policy.scheduler {
            // It knows no classes.
            SchedulerKind::Serial => proactive,
            _ => chunk,
        };
        Self {
            chunk_tokens: [reactive, proactive],
            now: Micros(0),
            overdue_after: policy
                .ageing
                .map(|ageing| Micros::from_millis(ageing.threshold_ms)),
            prompts_from: policy
                .ageing
                .map_or(AgeingStart::default(), |ageing| ageing.prompts_from),
            patience: Micros::from_millis(policy.limits.timeout_min_ms),
            may_return_until: None,
            writers: [(); Lane::ALL.len()].map(|()| BTreeSet::new()),
            held: Vec::new(),
            usable,
            places: usable.map(|usable| if usable { Place::Free } else { Place::Absent }),
            requests: BTreeMap::new(),
            iteration: None,
            aside: None,
            prefilled_last: false,
            tickets: BTreeSet::new(),
            kv_budget: policy.limits.kv_bytes() / model.kv_bytes_per_token.max(1),
            kv_used: 0,
            flows: BTreeMap::new(),
            flash_budget: policy.limits.flash_bytes() / model.kv_bytes_per_token.max(1),
            flash: BTreeMap::new(),
            transfers: BTreeMap::new(),
            warm: BTreeSet::new(),
            compiling: None,
            unverified: Vec::new(),
            igpu_rests_until: Micros(0),
            failures: 0,
            model,
        }
    }

    pub(super) fn is_free(&self, lane: Lane) -> bool {
        matches!(self.places[lane as usize], Place::Free)
    }

    pub(super) fn is_present(&self, lane: Lane) -> bool {
        !matches!(self.places[lane as usize], Place::Absent)
    }

    /// The work that runs on a lane.
    pub(super) fn running(&self, lane: Lane) -> Option<&Work> {
        match &self.places[lane as usize] {
            Place::Busy(_, work) => Some(work),
            Place::Absent | Place::Free | Place::Resetting(..) => None,
        }
    }

    /// The lane of dynamic kernels.
    pub(super) fn dynamic_lane(&self) -> Option<Lane> {
        [Lane::Igpu, Lane::Cpu]
            .into_iter()
            .find(|lane| self.is_present(*lane))
    }

    /// The iteration that has begun; nothing is left of one that broke, or whose requests are all over.
    pub(super) fn iteration_under_way(&self) -> Option<&Iteration> {
        let live = |member: &Decoding| self.requests.contains_key(&member.request);
        let iteration = self.iteration.as_ref();
        iteration.filter(|it| !it.broken && it.batch.iter().any(live))
    }

    /// Requests that could decode their next token.
    pub(super) fn decodable(&self) -> impl Iterator<Item = (&RequestId, &Seen)> {
        self.requests
            .iter()
            .filter(|(_, seen)| seen.phase == Phase::Decode && seen.wanted)
            .filter(|(id, _)| !self.stops(**id) && !self.is_aside(**id))
    }

    /// Whether a request that waits would fit into the memory as it is. While caches are written to flash somebody
    /// waits for that; who was refused waits for others to give memory back.
    pub(super) fn fits(&self, seen: &Seen) -> bool {
        if !self.transfers.is_empty() || (seen.refused > 0 && self.kv_used > 0) {
            return false;
        }
        let tokens = u64::from(seen.tokens_max(self.model.context_tokens));
        let kept: u64 = self.flows.values().map(|kept| u64::from(*kept)).sum();
        self.kv_used - kept.min(self.kv_used) + tokens <= self.kv_budget
    }

    /// The most urgent class of a launch.
    pub(super) fn class_of(&self, work: &Work) -> Option<Class> {
        let class = |id: &RequestId| self.requests.get(id).map(Seen::class);
        match work {
            Work::Prefill { request, .. } | Work::Head(request) => class(request),
            Work::Decode(run) => run
                .batch
                .iter()
                .filter_map(|member| class(&member.request))
                .min(),
            Work::Mixed { batch, prompts } => {
                let prompts = prompts.iter().map(|(id, _)| id);
                let all = batch.iter().map(|member| &member.request).chain(prompts);
                all.filter_map(class).min()
            }
        }
    }

    /// Whether no lane of dynamic kernels is there, or is waited for.
    pub(super) fn is_hopeless(&self) -> bool {
        let dynamic = |lane: &Lane| self.usable[*lane as usize];
        let none = ![Lane::Igpu, Lane::Cpu].iter().any(dynamic);
        none || self.may_return_until.is_some_and(|until| until <= self.now)
    }

    /// Whether a request does not fit beside memory that lanes may write to which do not answer.
    pub(super) fn crowds_out(&self, id: RequestId) -> bool {
        let silent = |lanes: &BTreeSet<Lane>| lanes.iter().any(|lane| !self.is_present(*lane));
        let held = self.held.iter().filter(|(lanes, _)| silent(lanes));
        let held: u64 = held.map(|(_, tokens)| tokens).sum();
        let context_tokens = self.model.context_tokens;
        let seen = self.requests.get(&id);
        let tokens = seen.map_or(0, |seen| u64::from(seen.tokens_max(context_tokens)));
        held > 0 && tokens + held > self.kv_budget
    }

    /// The verification on the NPU that has begun; nothing is left of one that broke.
    pub(super) fn verification_under_way(&self) -> Option<&Iteration> {
        self.aside.as_ref().filter(|it| !it.broken)
    }

    /// Whether a request is part of it.
    pub(super) fn is_aside(&self, id: RequestId) -> bool {
        let aside = self.verification_under_way();
        aside.is_some_and(|it| it.batch.iter().any(|member| member.request == id))
    }

    /// A request starts over, or is over: nothing is left of its verification.
    pub(super) fn leave_aside(&mut self, id: RequestId) {
        if self.is_aside(id) {
            self.aside = None;
        }
    }

    /// Where the iteration of a batch stands.
    fn slot(&mut self, batch: &[Decoding]) -> &mut Option<Iteration> {
        let aside = self.verification_under_way();
        match aside.is_some_and(|it| *it.batch == *batch) {
            true => &mut self.aside,
            false => &mut self.iteration,
        }
    }

    /// Whether a lane is to stop something of a request.
    fn stops(&self, id: RequestId) -> bool {
        self.places
            .iter()
            .any(|place| matches!(place, Place::Resetting(Some(work), _) if work.is_of(id)))
    }

    /// Whether a lane works for a request, or has not stopped to.
    pub(super) fn occupied_by(&self, id: RequestId) -> bool {
        self.places.iter().any(|place| match place {
            Place::Busy(_, work) | Place::Resetting(Some(work), _) => work.is_of(id),
            Place::Absent | Place::Free | Place::Resetting(None, _) => false,
        })
    }

    /// What a flow is to have on flash, if it is being written.
    pub(super) fn leaving(&mut self, flow: FlowId) -> Option<&mut Leaving> {
        let mut transfers = self.transfers.values_mut();
        transfers.find(|leaving| leaving.flow == Some(flow))
    }
}
