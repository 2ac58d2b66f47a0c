//! Judges launches: the order of kernels, priorities, and the size of batches.

use super::world::{Iteration, KERNELS, Part, Phase, Seen};
use super::{Checked, SchedulerInvariant};
use heg_sched::{
    Class, Costs, DecodeRun, Decoding, Lane, LayerKernel, RequestId, Scheduler, Segment, Work,
};

impl<S: Scheduler, C: Costs> Checked<S, C> {
    pub(super) fn judge_work(&mut self, lane: Lane, work: &Work) {
        match work {
            Work::Prefill {
                request,
                segment,
                layer,
                kernel,
            } => {
                self.reactive_first(lane, *request);
                if *kernel != LayerKernel::Mha {
                    self.beside_overdue(lane, *request);
                }
                self.prefill(*request, *segment, *layer, *kernel);
            }
            Work::Head(request) => {
                self.reactive_first(lane, *request);
                self.head(*request);
            }
            Work::Decode(run) => self.decode(lane, run),
            Work::Mixed { batch, prompts } => self.mixed(batch, prompts),
        }
    }

    fn prefill(&mut self, id: RequestId, segment: Segment, layer: u32, kernel: LayerKernel) {
        let layers = self.world.model.layers;
        let now = self.world.now;
        let Some(seen) = self.live(id, "Launch") else {
            return;
        };
        seen.begun.get_or_insert(now);
        let known = seen.cut().find(|part| part.segment == segment);
        let number = 3 * layer + KERNELS.iter().position(|k| *k == kernel).unwrap_or(0) as u32;
        let part = known.filter(|part| part.done == number && !part.running && layer < layers);
        let keys = kernel != LayerKernel::Mha || layer < seen.keys_before(segment.position);
        let holds = seen.phase == Phase::Prefill && part.is_some() && keys;
        let has_rows = seen.in_window(layers).any(|part| part.segment == segment);
        let segments_max = seen.segments_max;
        if let Some(found) = seen.parts.iter_mut().find(|p| p.segment == segment) {
            found.running = true;
        } else {
            let at = seen
                .parts
                .partition_point(|p| p.segment.position < segment.position);
            let running = Part {
                segment,
                done: number,
                running: true,
            };
            seen.parts.insert(at, running);
        }
        self.require(holds, SchedulerInvariant::Dependencies, || {
            format!("{id}: {kernel:?} of layer {layer} over {segment:?}, which has {known:?} done; keys: {keys}")
        });
        self.require(has_rows, SchedulerInvariant::ActivationBuffers, || {
            format!(
                "{id}: {segment:?} is on its way beside {segments_max} others that are not through"
            )
        });
    }

    fn head(&mut self, id: RequestId) {
        let layers = self.world.model.layers;
        let Some(seen) = self.live(id, "Launch") else {
            return;
        };
        let keys = seen.keys_before(seen.prompt_tokens) == layers;
        let through = seen
            .parts
            .last()
            .is_some_and(|part| part.done == 3 * layers);
        let holds = seen.phase == Phase::Prefill && keys && through;
        self.require(holds, SchedulerInvariant::Dependencies, || {
            format!("{id}: head; keys of all tokens: {keys}, last segment through: {through}")
        });
    }

    fn decode(&mut self, lane: Lane, run: &DecodeRun) {
        if lane == Lane::Npu {
            return self.verify(run);
        }
        let layers = self.world.model.layers;
        let goes_on = self.world.iteration.as_ref().is_some_and(|it| {
            it.lane == lane && it.layers_done == run.layers.start && it.batch == run.batch
        });
        let fresh = run.layers.start == 0 && self.world.iteration_under_way().is_none();
        let order = run.layers.end == layers && (goes_on || fresh);
        self.require(order, SchedulerInvariant::Dependencies, || {
            format!("{run:?} is neither a new iteration nor the rest of the one that has begun")
        });
        self.world.prefilled_last = false;
        if self.dynamic_prefill_waits() {
            // An overdue prompt goes first with its attention, except on a lane that runs all kernels. There a reactive
            // one may wait for an answer that has just begun or will soon end; the length of that wait is not judged
            // here.
            let decodes = self.world.requests.values();
            let mut decodes = decodes.filter(|seen| seen.phase == Phase::Decode);
            let reactive = decodes.any(|seen| seen.class() == Class::Reactive);
            let whole = !self.world.is_present(Lane::Npu);
            let less = self
                .foremost()
                .iter()
                .all(|seen| seen.class() == Class::Proactive);
            let policy = &self.rules.policy.decode;
            let answers_first = [policy.young_answers_first, policy.ending_answers_first];
            let waits = less || answers_first.iter().any(Option::is_some);
            // Attention may draw more than the rest of the power budget when decoding does not.
            let may = self.rules.policy.limits.power_watts_max.is_none();
            // Answers of one client take turns with prompts of another.
            let may = may && !self.are_several();
            let first = policy.prefill_first && may && !(whole && reactive && waits);
            self.require(!first, SchedulerInvariant::ReactiveFirst, || {
                format!("decoding goes before attention of a prompt on the {lane:?} lane")
            });
        }
        if !goes_on {
            self.new_batch(&run.batch);
        }
        self.world.iteration = Some(Iteration {
            batch: run.batch.clone(),
            layers_done: run.layers.start,
            lane,
            broken: false,
        });
    }

    /// Judges the verification of one request on the NPU, beside the iterations of others.
    fn verify(&mut self, run: &DecodeRun) {
        let layers = self.world.model.layers;
        let begun = self.world.verification_under_way();
        let goes_on =
            begun.is_some_and(|it| it.layers_done == run.layers.start && it.batch == run.batch);
        let fresh = run.layers.start == 0 && begun.is_none() && run.batch.len() == 1;
        let allowed = self.rules.policy.decode.second_lane;
        let order = allowed && run.layers.end == layers && (goes_on || fresh);
        self.require(order, SchedulerInvariant::Dependencies, || {
            format!("{run:?} on the NPU; a second lane of decoding: {allowed}")
        });
        if !goes_on {
            self.draft_rows(&run.batch);
            self.may_decode(&run.batch);
        }
        self.world.aside = Some(Iteration {
            batch: run.batch.clone(),
            layers_done: run.layers.start,
            lane: Lane::Npu,
            broken: false,
        });
    }

    /// Judges whether the requests of a batch can decode, and each occurs once.
    fn may_decode(&mut self, batch: &[Decoding]) {
        let mut ids: Vec<RequestId> = batch.iter().map(|member| member.request).collect();
        ids.sort_unstable();
        ids.dedup();
        let known = batch.iter().all(|member| {
            let id = member.request;
            let seen = self.world.requests.get(&id);
            let elsewhere = self.world.occupied_by(id) || self.world.is_aside(id);
            let can = |s: &Seen| s.phase == Phase::Decode && s.context() == member.context;
            seen.is_some_and(can) && !elsewhere
        });
        let all = ids.len() == batch.len() && !ids.is_empty();
        self.require(known && all, SchedulerInvariant::Dependencies, || {
            format!("{batch:?} has requests that cannot decode, or not with this context")
        });
    }

    /// Judges the start of a token-wise kernel: it must not be a reactive one on a lane that an overdue prompt has.
    fn beside_overdue(&mut self, lane: Lane, id: RequestId) {
        let seen = self.world.requests.get(&id);
        let reactive = seen.is_some_and(|seen| seen.class() == Class::Reactive && !seen.failed);
        let elsewhere = lane != Lane::Npu && self.world.is_present(Lane::Npu);
        let aged = self.overdue_prompt().filter(|_| reactive && elsewhere);
        self.require(aged.is_none(), SchedulerInvariant::Ageing, || {
            format!("{id} takes the {lane:?} lane, which the prompt of {aged:?} should have")
        });
    }

    /// Returns an overdue request that could decode and is not among `ids`.
    fn overdue_beside(&self, ids: &[RequestId]) -> Option<RequestId> {
        let mut decodable = self.world.decodable();
        let found = decodable.find(|(id, seen)| seen.overdue && !ids.contains(id));
        found.map(|(id, _)| *id)
    }

    /// Returns an overdue request whose prompt is under way, or was preempted.
    fn overdue_prompt(&self) -> Option<RequestId> {
        let mut requests = self.world.requests.iter();
        let found = requests.find(|(_, seen)| {
            seen.presses && seen.phase == Phase::Prefill && seen.wanted && !seen.failed
        });
        found.map(|(id, _)| *id)
    }

    /// Judges the rows of an iteration's drafted tokens.
    fn draft_rows(&mut self, batch: &[Decoding]) {
        let most = self.rules.policy.decode.draft_rows_max as usize;
        let rows = Decoding::rows_of(batch) as usize;
        let bounded = rows <= batch.len().max(most);
        self.require(bounded, SchedulerInvariant::DraftRows, || {
            format!("{rows} rows of {} requests, {most} allowed", batch.len())
        });
        for member in batch {
            let Some(seen) = self.world.requests.get_mut(&member.request) else {
                continue;
            };
            let (admits, context) = (seen.admits(member.drafted), seen.context());
            let reads_rejected = (context + 1..=seen.written).contains(&member.context);
            seen.written = seen
                .written
                .max(member.context.saturating_add(member.drafted));
            let (draft, reserved) = (seen.draft, seen.reserved);
            self.require(admits, SchedulerInvariant::DraftRows, || {
                format!("{member:?} has a draft of {draft} tokens and room for {reserved:?}")
            });
            self.require(!reads_rejected, SchedulerInvariant::RejectedRows, || {
                format!("{member:?} reads rejected rows: {context} tokens were given")
            });
        }
    }

    /// Judges the start of an iteration.
    fn new_batch(&mut self, batch: &[Decoding]) {
        self.draft_rows(batch);
        self.may_decode(batch);
        self.fair_rows(batch);
        let ids: Vec<RequestId> = batch.iter().map(|member| member.request).collect();
        let policy = &self.rules.policy.decode;
        let reactive = |id: &RequestId| {
            let seen = self.world.requests.get(id);
            seen.is_some_and(|seen| seen.class() == Class::Reactive)
        };
        let inside = ids.iter().filter(|id| reactive(id)).count();
        let overdue = ids.iter().filter(|id| self.is_overdue(**id)).count();
        let max = policy.batch_max as usize;
        let cap = match policy.reactive_batch_max {
            Some(cap) if inside > 0 => max.min((cap as usize).max(inside) + overdue),
            _ => max,
        };
        let waiting = self
            .world
            .decodable()
            .filter(|(id, _)| reactive(id))
            .count();
        let first_come = policy.reactive_batch_max.is_none();
        // After a failure requests decode alone, to isolate the culprit.
        let left_out = inside < waiting.min(max) && !first_come && self.world.failures == 0;
        let room = batch.len() < max && !first_come && self.world.failures == 0;
        let aged = self.overdue_beside(&ids).filter(|_| room);
        self.require(aged.is_none(), SchedulerInvariant::Ageing, || {
            format!("an iteration begins without {aged:?}, which is overdue")
        });
        self.require(batch.len() <= cap, SchedulerInvariant::BatchCap, || {
            format!(
                "a batch of {} with {inside} reactive and {overdue} overdue",
                ids.len()
            )
        });
        self.require(!left_out, SchedulerInvariant::ReactiveFirst, || {
            format!("a batch with {inside} of {waiting} reactive requests")
        });
    }

    fn mixed(&mut self, batch: &[Decoding], prompts: &[(RequestId, Segment)]) {
        if !batch.is_empty() {
            self.new_batch(batch);
        }
        let layers = self.world.model.layers;
        for (id, segment) in prompts.iter() {
            let Some(seen) = self.live(*id, "Launch") else {
                continue;
            };
            let before = seen.keys_before(segment.position) >= layers;
            let fits = segment.tokens > 0 && segment.context() <= seen.prompt_tokens;
            let fresh = !seen.parts.iter().any(|part| {
                part.segment.position >= segment.position && (part.running || part.done > 0)
            });
            let holds = seen.phase == Phase::Prefill && before && fits && fresh;
            seen.parts
                .retain(|part| part.segment.position < segment.position);
            seen.parts.push(Part {
                segment: *segment,
                done: 0,
                running: true,
            });
            self.require(holds, SchedulerInvariant::Dependencies, || {
                format!("{id}: {segment:?} of its prompt; all before it done: {before}")
            });
        }
        let tokens: u32 = prompts.iter().map(|(_, segment)| segment.tokens).sum();
        let cap = self.rules.policy.limits.tokens_per_iteration;
        self.require(tokens <= cap, SchedulerInvariant::BatchCap, || {
            format!("{tokens} tokens of prompts in an iteration")
        });
    }

    fn is_overdue(&self, id: RequestId) -> bool {
        let seen = self.world.requests.get(&id);
        seen.is_some_and(|seen| seen.overdue)
    }

    /// Judges the start of a kernel of a request's prompt.
    fn reactive_first(&mut self, lane: Lane, id: RequestId) {
        let policy = &self.rules.policy;
        let class = self.world.requests.get(&id).map(Seen::class);
        let fills_bubbles = policy.pressure.is_some_and(|tiers| tiers.duration_bound);
        if class != Some(Class::Proactive)
            || !policy.prefill.preempt
            || !self.rules.is_agent_xpu()
            || fills_bubbles
            || self.is_overdue(id)
        {
            return;
        }
        let model = self.world.model;
        let requests = || self.world.requests.iter();
        let reactive = |seen: &Seen| seen.class() == Class::Reactive;
        // A request that waits for memory holds up those behind it.
        let mut queued = requests().filter(|(_, s)| reactive(s) && s.phase == Phase::Queued);
        let all_fit = queued.all(|(_, seen)| self.world.fits(seen));
        // If the policy lets proactive prompts share the lane, one kernel may come between two iterations.
        let shares = policy.decode.proactive_share.is_some() && !self.world.prefilled_last;
        let whole = !self.world.is_present(Lane::Npu)
            && !shares
            && policy.pressure.is_none()
            && !self.decodes_elsewhere();
        let waits = requests().find(|(id, seen)| {
            reactive(seen)
                && seen.wanted
                && !seen.failed
                && match seen.phase {
                    Phase::Queued => all_fit,
                    Phase::Prefill => seen.ready(model).next().is_some(),
                    Phase::Decode => whole && self.world.decodable().any(|(other, _)| other == *id),
                }
        });
        let waits = waits.map(|(id, seen)| (*id, seen.phase));
        self.require(waits.is_none(), SchedulerInvariant::ReactiveFirst, || {
            format!("a kernel of {id} starts while a reactive request waits: {waits:?}")
        });
        // Work on the NPU before it was lost took nothing from the lane that decodes.
        self.world.prefilled_last |= lane != Lane::Npu;
    }
}
