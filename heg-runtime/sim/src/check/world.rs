//! The checker's model of the world: lanes, requests and memory, derived from events and actions alone.

mod events;
mod request;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heg_spec::policy::{AgeingStart, SchedulerKind};

use super::Rules;
use crate::rivals::Rival;
use heg_sched::{
    Call, Class, Costs, Decoding, FlowId, Lane, Micros, ModelShape, RequestId, Ticket, Transfer,
    WarmKernel, Work,
};
pub(super) use request::{KERNELS, Part, Phase, Seen};

/// Number of failures in a row after which a request may be failed.
pub(super) const ATTEMPTS: u32 = 3;

/// The state of a lane.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Absent,
    Free,
    Busy(Ticket, Work),
    /// The lane was told to stop its work, and must answer by this time.
    Resetting(Option<Work>, Micros),
}
/// An iteration under way.
#[derive(Debug, Clone)]
pub(super) struct Iteration {
    pub(super) batch: Arc<[Decoding]>,
    pub(super) layers_done: u32,
    /// The lane on which it began, which has its hidden states.
    pub(super) lane: Lane,
    /// Whether a launch of it failed: it may start again, or give way to another.
    pub(super) broken: bool,
}

/// A cache that is being written to flash.
#[derive(Debug, Clone)]
pub(super) struct Leaving {
    /// The flow that keeps it, if any still does.
    pub(super) flow: Option<FlowId>,
    pub(super) tokens: u32,
    /// Whether a request took it back: its memory is then the request's.
    pub(super) taken: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Micros,
    pub(super) model: ModelShape,
    /// Maximum number of tokens of a segment, for reactive and for proactive prompts.
    chunk_tokens: [u32; 2],
    /// Most tokens of a prompt whose rows of activations are kept at once.
    window_tokens: u32,
    overdue_after: Option<Micros>,
    /// The start of an overdue prompt's wait for the lane of dynamic kernels beside a reactive one.
    prompts_from: AgeingStart,
    /// Minimum time that requests wait for a lane.
    patience: Micros,
    /// Whether the scheduler may use each lane.
    usable: [bool; Lane::ALL.len()],
    pub(super) places: [Place; Lane::ALL.len()],
    /// The time until which requests wait for a lane after the last one of dynamic kernels went away.
    may_return_until: Option<Micros>,
    /// For each lane that has not answered, the requests whose memory it may still write.
    pub(super) writers: [BTreeSet<RequestId>; Lane::ALL.len()],
    /// Memory that was released while a lane might write to it.
    pub(super) held: Vec<(BTreeSet<Lane>, u64)>,
    pub(super) requests: BTreeMap<RequestId, Seen>,
    /// The iteration on the lane of dynamic kernels.
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
    /// The tokens that the last event reported beyond those that were verified.
    pub(super) unverified: Vec<String>,
    /// The time at which the iGPU may work again, if the policy bounds its share of the time.
    pub(super) igpu_rests_until: Micros,
    /// Number of launches that failed, were lost or had to be stopped.
    pub(super) failures: u32,
}

impl World {
    pub(super) fn new(costs: &impl Costs, rules: &Rules) -> Self {
        let policy = &rules.policy;
        let model = costs.model();
        let has = |lane| {
            let one_device = policy.scheduler != SchedulerKind::AgentXpu;
            let named = Lane::from(policy.device);
            let head = costs.cost(lane, Call::Head { rows: 1 }).is_some();
            head && (!one_device || lane == named)
        };
        let usable = Lane::ALL.map(has);
        let chunk = model.chunk_tokens.max(1);
        let most = policy.prefill.proactive_chunk_tokens;
        let proactive = chunk.min(most.unwrap_or(chunk));
        let reactive = match rules.rival {
            // This scheduler knows no classes.
            Some(Rival::Serial) => proactive,
            _ => chunk,
        };
        Self {
            chunk_tokens: [reactive, proactive],
            window_tokens: policy.prefill.window_tokens,
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

    /// Returns the work that runs on a lane.
    pub(super) fn running(&self, lane: Lane) -> Option<&Work> {
        match &self.places[lane as usize] {
            Place::Busy(_, work) => Some(work),
            Place::Absent | Place::Free | Place::Resetting(..) => None,
        }
    }

    /// Returns the lane of dynamic kernels.
    pub(super) fn dynamic_lane(&self) -> Option<Lane> {
        [Lane::Igpu, Lane::Cpu]
            .into_iter()
            .find(|lane| self.is_present(*lane))
    }

    /// Returns the iteration under way; `None` after it broke, or once its requests are all over.
    pub(super) fn iteration_under_way(&self) -> Option<&Iteration> {
        let live = |member: &Decoding| self.requests.contains_key(&member.request);
        let iteration = self.iteration.as_ref();
        iteration.filter(|it| !it.broken && it.batch.iter().any(live))
    }

    /// Returns the requests that could decode their next token.
    pub(super) fn decodable(&self) -> impl Iterator<Item = (&RequestId, &Seen)> {
        self.requests
            .iter()
            .filter(|(_, seen)| seen.phase == Phase::Decode && seen.wanted)
            .filter(|(id, _)| !self.stops(**id) && !self.is_aside(**id))
    }

    /// Returns whether a waiting request would fit into the memory now. While caches are written to flash, a request
    /// waits for that; a refused one waits for others to give memory back.
    pub(super) fn fits(&self, seen: &Seen) -> bool {
        if !self.transfers.is_empty() || (seen.refused > 0 && self.kv_used > 0) {
            return false;
        }
        let tokens = u64::from(seen.tokens_max(self.model.context_tokens));
        let kept: u64 = self.flows.values().map(|kept| u64::from(*kept)).sum();
        self.kv_used - kept.min(self.kv_used) + tokens <= self.kv_budget
    }

    /// Returns the most urgent class of a launch.
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

    /// Returns whether there is no lane of dynamic kernels, and none is expected back.
    pub(super) fn is_hopeless(&self) -> bool {
        let dynamic = |lane: &Lane| self.usable[*lane as usize];
        let none = ![Lane::Igpu, Lane::Cpu].iter().any(dynamic);
        none || self.may_return_until.is_some_and(|until| until <= self.now)
    }

    /// Returns whether a request does not fit beside memory that unresponsive lanes may write to.
    pub(super) fn crowds_out(&self, id: RequestId) -> bool {
        let silent = |lanes: &BTreeSet<Lane>| lanes.iter().any(|lane| !self.is_present(*lane));
        let held = self.held.iter().filter(|(lanes, _)| silent(lanes));
        let held: u64 = held.map(|(_, tokens)| tokens).sum();
        let context_tokens = self.model.context_tokens;
        let seen = self.requests.get(&id);
        let tokens = seen.map_or(0, |seen| u64::from(seen.tokens_max(context_tokens)));
        held > 0 && tokens + held > self.kv_budget
    }

    /// Returns the verification under way on the NPU; `None` after it broke.
    pub(super) fn verification_under_way(&self) -> Option<&Iteration> {
        self.aside.as_ref().filter(|it| !it.broken)
    }

    /// Returns whether a request is in the verification on the NPU.
    pub(super) fn is_aside(&self, id: RequestId) -> bool {
        let aside = self.verification_under_way();
        aside.is_some_and(|it| it.batch.iter().any(|member| member.request == id))
    }

    /// Drops the verification of a request that restarts or is over.
    pub(super) fn leave_aside(&mut self, id: RequestId) {
        if self.is_aside(id) {
            self.aside = None;
        }
    }

    /// Returns the place of a batch's iteration.
    fn slot(&mut self, batch: &[Decoding]) -> &mut Option<Iteration> {
        let aside = self.verification_under_way();
        match aside.is_some_and(|it| *it.batch == *batch) {
            true => &mut self.aside,
            false => &mut self.iteration,
        }
    }

    /// Returns whether a lane was told to stop work of a request.
    fn stops(&self, id: RequestId) -> bool {
        self.places
            .iter()
            .any(|place| matches!(place, Place::Resetting(Some(work), _) if work.is_of(id)))
    }

    /// Returns whether a lane works for a request, or has not stopped yet.
    pub(super) fn occupied_by(&self, id: RequestId) -> bool {
        self.places.iter().any(|place| match place {
            Place::Busy(_, work) | Place::Resetting(Some(work), _) => work.is_of(id),
            Place::Absent | Place::Free | Place::Resetting(None, _) => false,
        })
    }

    /// Returns the cache of a flow that is being written to flash.
    pub(super) fn leaving(&mut self, flow: FlowId) -> Option<&mut Leaving> {
        let mut transfers = self.transfers.values_mut();
        transfers.find(|leaving| leaving.flow == Some(flow))
    }
}
