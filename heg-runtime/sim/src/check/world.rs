//! What the checker knows: lanes, requests, memory, all from events and actions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heg_spec::Policy;
use heg_spec::policy::SchedulerKind;

use heg_sched::{
    Call, Class, Costs, Event, FlowId, Kernel, Lane, Micros, ModelShape, RESET_PATIENCE, RequestId,
    Segment, Submission, Ticket, Transfer, WarmKernel, Work,
};

/// How often in a row something has to go wrong for a request before it may end for that.
pub(super) const ATTEMPTS: u32 = 3;

/// A lane.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Absent,
    Free,
    Busy(Ticket, Work),
    /// It is to stop what it ran and to answer by then.
    Resetting(Option<Work>, Micros),
}

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Without memory.
    Queued,
    /// With memory, before its first token.
    Prefill,
    /// After it.
    Decode,
}

/// A segment of a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) segment: Segment,
    /// Kernels done, three a layer.
    pub(super) done: u32,
    pub(super) running: bool,
}

/// A live request.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) submission: Submission,
    pub(super) phase: Phase,
    /// Tokens to prefill; a restart adds the answer so far.
    pub(super) prompt_tokens: u32,
    /// Those of them that were there already.
    pub(super) reused: u32,
    /// Tokens of memory.
    pub(super) reserved: Option<u32>,
    /// By position. Those that nothing ran of are missing.
    pub(super) parts: Vec<Part>,
    /// Tokens given.
    pub(super) emitted: u32,
    /// Tokens computed and not given yet.
    pub(super) due: u32,
    /// A launch said that this was the last token.
    pub(super) ended: bool,
    /// Nobody cancelled it, its deadline is not over, and there was a lane for it all the time.
    pub(super) wanted: bool,
    /// A launch of it failed.
    pub(super) failed: bool,
    /// How often in a row launches with it alone failed.
    pub(super) failed_alone: u32,
    /// No lane could do its work for too long.
    pub(super) doomed: bool,
    /// How often in a row it did not get the memory that was reserved for it.
    pub(super) refused: u32,
    /// When it came, or gave its last token.
    since: Micros,
    /// It is proactive and has once waited for a token as long as the policy allows.
    pub(super) overdue: bool,
}

impl Seen {
    pub(super) fn class(&self) -> Class {
        self.submission.class
    }

    /// Tokens that an iteration with it feeds and sees.
    pub(super) fn context(&self) -> u32 {
        self.submission.prompt_tokens + self.emitted
    }

    /// Room for the prompt and the longest answer.
    pub(super) fn tokens_max(&self, context_tokens: u32) -> u32 {
        let asked = self.submission.prompt_tokens;
        let all = asked.saturating_add(self.submission.output_tokens_max);
        all.min(context_tokens).max(asked)
    }

    /// Whether its prompt occupies an activation buffer.
    pub(super) fn is_under_way(&self) -> bool {
        self.phase == Phase::Prefill && self.parts.iter().any(|part| part.running || part.done > 0)
    }

    /// Leading tokens whose keys and values of all layers are in the cache.
    pub(super) fn computed(&self, layers: u32) -> u32 {
        match self.phase {
            Phase::Queued => 0,
            Phase::Decode => self.context().saturating_sub(1),
            Phase::Prefill => {
                let mut at = self.reused.min(self.prompt_tokens.saturating_sub(1));
                for part in &self.parts {
                    if part.segment.position != at || part.done.div_ceil(3) < layers {
                        break;
                    }
                    at = part.segment.context();
                }
                at
            }
        }
    }

    /// How far the tokens before `position` have their keys: layers, at least.
    pub(super) fn keys_before(&self, position: u32) -> u32 {
        let mut at = self.reused;
        let mut layers = u32::MAX;
        for part in &self.parts {
            if part.segment.position >= position {
                break;
            }
            if part.segment.position != at {
                return 0;
            }
            layers = layers.min(part.done.div_ceil(3));
            at = part.segment.context();
        }
        if at == position { layers } else { 0 }
    }

    /// Segments of the prompt as the chunk cuts it, with what is done of each.
    pub(super) fn cut(&self, chunk: u32) -> impl Iterator<Item = Part> {
        let new = self.prompt_tokens.saturating_sub(self.reused).max(1);
        let first = self.prompt_tokens - new;
        (0..new.div_ceil(chunk)).map(move |index| {
            let position = first + index * chunk;
            let segment = Segment {
                position,
                tokens: chunk.min(self.prompt_tokens - position),
            };
            let known = self.parts.iter().find(|p| p.segment.position == position);
            known.copied().unwrap_or(Part {
                segment,
                done: 0,
                running: false,
            })
        })
    }

    /// Kernels that may run now, as (segment, layer, kernel).
    pub(super) fn ready(&self, model: ModelShape) -> impl Iterator<Item = (Segment, Kernel)> {
        let open = self.phase == Phase::Prefill && self.wanted;
        let parts = self.cut(model.chunk_tokens.max(1)).filter(move |_| open);
        parts.filter_map(move |part| {
            let (layer, kernel) = (part.done / 3, KERNELS[(part.done % 3) as usize]);
            let last = part.segment.context() == self.prompt_tokens;
            let end = 3 * model.layers - if last { 0 } else { 2 };
            let keys = kernel != Kernel::Mha || layer < self.keys_before(part.segment.position);
            (!part.running && part.done < end && keys).then_some((part.segment, kernel))
        })
    }
}

/// Kernels of a layer in order.
pub(super) const KERNELS: [Kernel; 3] = [Kernel::Qkv, Kernel::Mha, Kernel::Ffn];

/// An iteration that has begun.
#[derive(Debug, Clone)]
pub(super) struct Iteration {
    pub(super) batch: Arc<[(RequestId, u32)]>,
    pub(super) layers_done: u32,
    /// Where it began: its hidden states are there.
    pub(super) lane: Lane,
    /// A launch of it failed: it may begin anew, or give way to another.
    pub(super) broken: bool,
}

/// Whose fault it may be that a launch came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blame {
    /// One of its requests'.
    Requests,
    /// That of the machine.
    Nobody,
}

/// A cache that is being written to flash.
#[derive(Debug, Clone)]
pub(super) struct Leaving {
    /// Who keeps it, if anybody still does.
    pub(super) flow: Option<FlowId>,
    pub(super) tokens: u32,
    /// A request took it back: its memory is the request's.
    pub(super) taken: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Micros,
    pub(super) model: ModelShape,
    overdue_after: Option<Micros>,
    /// How long requests wait for a lane at least.
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
    pub(super) iteration: Option<Iteration>,
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
        Self {
            now: Micros(0),
            overdue_after: policy
                .ageing
                .map(|ageing| Micros::from_millis(ageing.threshold_ms)),
            patience: Micros::from_millis(policy.limits.timeout_min_ms),
            may_return_until: None,
            writers: [(); Lane::ALL.len()].map(|()| BTreeSet::new()),
            held: Vec::new(),
            usable,
            places: usable.map(|usable| if usable { Place::Free } else { Place::Absent }),
            requests: BTreeMap::new(),
            iteration: None,
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

    /// What runs on a lane.
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
        let live = |(id, _): &(RequestId, u32)| self.requests.contains_key(id);
        let iteration = self.iteration.as_ref();
        iteration.filter(|it| !it.broken && it.batch.iter().any(live))
    }

    /// Requests that could decode their next token.
    pub(super) fn decodable(&self) -> impl Iterator<Item = (&RequestId, &Seen)> {
        self.requests
            .iter()
            .filter(|(_, seen)| seen.phase == Phase::Decode && seen.wanted)
            .filter(|(id, _)| !self.stops(**id))
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
            Work::Decode(run) => run.batch.iter().filter_map(|(id, _)| class(id)).min(),
            Work::Mixed { batch, prompts } => {
                let prompts = prompts.iter().map(|(id, _)| id);
                let all = batch.iter().map(|(id, _)| id).chain(prompts);
                all.filter_map(class).min()
            }
        }
    }

    /// Takes in what the scheduler is about to hear.
    pub(super) fn see(&mut self, event: &Event) {
        match event {
            Event::Submit(submission) => self.submitted(submission),
            Event::Cancel(id) => {
                if let Some(seen) = self.requests.get_mut(id) {
                    seen.wanted = false;
                }
            }
            Event::Done {
                ticket,
                layers,
                ended,
            } => {
                if let Some(work) = self.free(*ticket, Place::Free) {
                    self.done(&work, *layers, ended);
                }
            }
            Event::Failed(ticket) | Event::OutOfMemory(ticket) => {
                if let Some(work) = self.free(*ticket, Place::Free) {
                    self.undo(&work, Blame::Requests);
                }
            }
            Event::Unreserved(id) => self.unreserved(*id),
            Event::Unreadable { ticket, .. } => {
                if let Some(work) = self.free(*ticket, Place::Free) {
                    self.undo(&work, Blame::Nobody);
                }
            }
            Event::Offloaded(transfer) => self.landed(*transfer, true),
            Event::OffloadFailed(transfer) => self.landed(*transfer, false),
            Event::Lost(lane) => {
                self.vacate(*lane, Place::Absent);
                self.answered(*lane);
                if *lane == Lane::Npu {
                    self.warm.clear();
                }
            }
            Event::Ready(lane) if self.usable[*lane as usize] => {
                if self.running(*lane).is_none() {
                    self.vacate(*lane, Place::Free);
                }
                self.answered(*lane);
            }
            Event::Warmed(kernel) => {
                self.compiling = None;
                self.warm.insert(*kernel);
            }
            Event::WarmFailed(_) => self.compiling = None,
            Event::Ready(_) | Event::EndFlow(_) | Event::Timer => {}
        }
        self.see_absences();
        let now = self.now;
        for seen in self.requests.values_mut() {
            seen.wanted &= seen
                .submission
                .deadline
                .is_none_or(|deadline| deadline > now);
            let waits = now.since(seen.since);
            let long = self.overdue_after.is_some_and(|limit| waits >= limit);
            seen.overdue |= long && seen.class() == Class::Proactive;
        }
    }

    /// Lanes that have not answered in time, or not come back.
    fn see_absences(&mut self) {
        for lane in Lane::ALL {
            if matches!(self.places[lane as usize], Place::Resetting(_, by) if by <= self.now) {
                self.vacate(lane, Place::Absent);
            }
        }
        if let Some(iteration) = &self.iteration {
            // Hidden states stay where they are, or go with their lane.
            let lane = iteration.lane;
            let runs = matches!(self.running(lane), Some(Work::Decode(_)));
            let stays = self.dynamic_lane() == Some(lane) || runs;
            self.iteration = self.iteration.take().map(|it| Iteration {
                broken: it.broken || !stays,
                ..it
            });
        }
        self.may_return_until = match self.dynamic_lane() {
            Some(_) => None,
            None => self.may_return_until.or(Some(self.now + self.patience)),
        };
        if self.is_hopeless() {
            // Nothing can be done for anybody: all end as soon as nothing of them runs.
            for seen in self.requests.values_mut() {
                seen.wanted = false;
                seen.doomed = true;
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

    /// A lane writes nothing any more that it was told before.
    fn answered(&mut self, lane: Lane) {
        self.writers[lane as usize].clear();
        for (lanes, _) in &mut self.held {
            lanes.remove(&lane);
        }
        let free = self.held.extract_if(.., |(lanes, _)| lanes.is_empty());
        let tokens: u64 = free.map(|(_, tokens)| tokens).sum();
        self.kv_used -= tokens.min(self.kv_used);
    }

    /// A lane is to stop what it runs.
    pub(super) fn reset(&mut self, lane: Lane) {
        let by = self.now + Micros(self.patience.0.saturating_mul(RESET_PATIENCE));
        let place = Place::Resetting(None, by);
        let old = std::mem::replace(&mut self.places[lane as usize], place);
        if let Place::Busy(_, work) = old {
            self.writers[lane as usize].extend(work.requests());
            if let (Work::Decode(_), Some(iteration)) = (&work, &mut self.iteration) {
                // Others may decode meanwhile.
                iteration.broken = true;
            }
            self.places[lane as usize] = Place::Resetting(Some(work), by);
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

    /// A request has not got what it reserved, and what was launched of it since does not run.
    fn unreserved(&mut self, id: RequestId) {
        let Some(seen) = self.requests.get_mut(&id) else {
            return;
        };
        seen.refused += 1;
        let tokens = seen.reserved.take();
        self.kv_used -= u64::from(tokens.unwrap_or(0)).min(self.kv_used);
        for lane in Lane::ALL {
            if self.running(lane).is_some_and(|work| work.is_of(id)) {
                self.vacate(lane, Place::Free);
            }
        }
    }

    /// The writer has done with a cache.
    fn landed(&mut self, transfer: Transfer, written: bool) {
        let Some(leaving) = self.transfers.remove(&transfer) else {
            return;
        };
        match (leaving.flow, written) {
            (Some(flow), false) => {
                self.flows.insert(flow, leaving.tokens);
                return;
            }
            (Some(flow), true) => {
                self.flash.insert(flow, leaving.tokens);
            }
            (None, _) => {}
        }
        let memory = if leaving.taken { 0 } else { leaving.tokens };
        self.kv_used -= u64::from(memory).min(self.kv_used);
    }

    /// What a flow is to have on flash, if it is being written.
    pub(super) fn leaving(&mut self, flow: FlowId) -> Option<&mut Leaving> {
        let mut transfers = self.transfers.values_mut();
        transfers.find(|leaving| leaving.flow == Some(flow))
    }

    fn submitted(&mut self, submission: &Submission) {
        let seen = Seen {
            submission: *submission,
            phase: Phase::Queued,
            prompt_tokens: submission.prompt_tokens,
            reused: 0,
            reserved: None,
            parts: Vec::new(),
            emitted: 0,
            due: 0,
            ended: false,
            wanted: true,
            failed: false,
            failed_alone: 0,
            doomed: false,
            refused: 0,
            since: self.now,
            overdue: false,
        };
        self.requests.entry(submission.id).or_insert(seen);
    }

    fn free(&mut self, ticket: Ticket, place: Place) -> Option<Work> {
        let busy = |found: &&mut Place| matches!(found, Place::Busy(t, _) if *t == ticket);
        let found = self.places.iter_mut().find(busy)?;
        match std::mem::replace(found, place) {
            Place::Busy(_, work) => Some(work),
            Place::Absent | Place::Free | Place::Resetting(..) => None,
        }
    }

    /// Stops what runs on a lane.
    pub(super) fn vacate(&mut self, lane: Lane, place: Place) {
        let old = std::mem::replace(&mut self.places[lane as usize], place);
        match old {
            Place::Busy(_, work) => self.undo(&work, Blame::Nobody),
            Place::Resetting(Some(work), _) => self.undo(&work, Blame::Requests),
            Place::Absent | Place::Free | Place::Resetting(None, _) => {}
        }
    }

    fn done(&mut self, work: &Work, layers: u32, ended: &[RequestId]) {
        let whole = self.model.layers;
        if !matches!(work, Work::Decode(_)) || layers == whole {
            for id in work.requests() {
                // What has failed for good may still have something else under way.
                let seen = self.requests.get_mut(&id);
                if let Some(seen) = seen.filter(|seen| seen.failed_alone < ATTEMPTS) {
                    (seen.failed_alone, seen.refused) = (0, 0);
                }
            }
        }
        match work {
            Work::Prefill {
                request, segment, ..
            } => {
                if let Some(part) = self.part(*request, segment.position) {
                    part.done += 1;
                    part.running = false;
                }
            }
            Work::Head(id) => self.gave_token(*id, ended),
            Work::Decode(run) if layers == whole => {
                self.iteration = None;
                for (id, _) in run.batch.iter() {
                    self.gave_token(*id, ended);
                }
            }
            Work::Decode(_) => {
                if let Some(iteration) = &mut self.iteration {
                    iteration.layers_done = layers;
                }
            }
            Work::Mixed { batch, prompts } => {
                for (id, _) in batch.iter() {
                    self.gave_token(*id, ended);
                }
                for (id, segment) in prompts.iter() {
                    if let Some(part) = self.part(*id, segment.position) {
                        part.done = 3 * whole;
                        part.running = false;
                    }
                    let seen = self.requests.get(id);
                    if seen.is_some_and(|seen| segment.context() >= seen.prompt_tokens) {
                        self.gave_token(*id, ended);
                    }
                }
            }
        }
    }

    fn part(&mut self, id: RequestId, position: u32) -> Option<&mut Part> {
        let parts = &mut self.requests.get_mut(&id)?.parts;
        parts
            .iter_mut()
            .find(|part| part.segment.position == position)
    }

    fn gave_token(&mut self, id: RequestId, ended: &[RequestId]) {
        if let Some(seen) = self.requests.get_mut(&id) {
            seen.phase = Phase::Decode;
            seen.parts.clear();
            seen.ended = ended.contains(&id);
            seen.since = self.now;
            seen.due += u32::from(seen.wanted);
        }
    }

    fn undo(&mut self, work: &Work, blame: Blame) {
        self.failures += 1;
        if let (Work::Decode(run), Some(iteration)) = (work, &mut self.iteration) {
            iteration.broken |= iteration.batch == run.batch;
        }
        let ids = work.requests();
        let alone = ids.len() == 1 && blame == Blame::Requests;
        for id in &ids {
            if let Some(seen) = self.requests.get_mut(id) {
                seen.failed = true;
                seen.failed_alone += u32::from(alone);
            }
        }
        let segments: Vec<(RequestId, Segment)> = match work {
            Work::Prefill {
                request, segment, ..
            } => vec![(*request, *segment)],
            Work::Mixed { prompts, .. } => prompts.to_vec(),
            Work::Head(_) | Work::Decode(_) => Vec::new(),
        };
        for (id, segment) in segments {
            if let Some(part) = self.part(id, segment.position) {
                part.running = false;
            }
        }
    }
}
