//! Rules that single actions can break.

use std::collections::BTreeSet;

use heg_spec::policy::SchedulerKind;

use super::world::{ATTEMPTS, Iteration, KERNELS, Leaving, Part, Phase, Place, Seen};
use super::{Checked, Invariant};
use heg_sched::{
    Action, Class, Costs, DecodeRun, Finish, FlowId, Kernel, Lane, RequestId, Scheduler, Segment,
    Transfer, Work,
};

impl<S: Scheduler, C: Costs> Checked<S, C> {
    pub(super) fn judge(&mut self, action: &Action) {
        match action {
            Action::Launch { lane, ticket, work } => {
                let fresh = self.world.tickets.insert(*ticket);
                let free = self.world.is_free(*lane);
                self.require(fresh && free, Invariant::OneLaunchPerLane, || {
                    format!("{ticket:?} on the {lane:?} lane: new {fresh}, lane free {free}")
                });
                self.judge_work(*lane, work);
                self.world.places[*lane as usize] = Place::Busy(*ticket, work.clone());
            }
            Action::Yield(ticket) => {
                let places = self.world.places.iter();
                let runs = places.filter_map(|place| match place {
                    Place::Busy(t, Work::Decode(_)) => Some(t),
                    _ => None,
                });
                let known = runs.into_iter().any(|running| running == ticket);
                self.require(known, Invariant::OneLaunchPerLane, || {
                    format!("{ticket:?} is asked to yield and does not decode")
                });
            }
            Action::Reset(lane) => self.world.reset(*lane),
            Action::Warm(kernel) => {
                let busy = self.world.compiling.replace(*kernel);
                self.require(busy.is_none(), Invariant::OneLaunchPerLane, || {
                    format!("{kernel:?} is to be compiled beside {busy:?}")
                });
            }
            Action::Unload(kernel) => {
                self.world.warm.remove(kernel);
            }
            Action::Reserve {
                request,
                tokens,
                reused,
            } => self.reserve(*request, *tokens, *reused),
            Action::Release(id) => self.release(*id, None),
            Action::Keep {
                request,
                flow,
                tokens,
            } => self.release(*request, Some((*flow, *tokens))),
            Action::Offload { flow, transfer } => self.offload(*flow, *transfer),
            Action::ReleaseFlow(flow) => self.release_flow(*flow),
            Action::Restart(id) => self.restart(*id),
            Action::Emit(id) => self.emit(*id),
            Action::Finish(id, finish) => self.finish_request(*id, *finish),
            Action::Timer(_) => {}
        }
    }

    /// The request, which has to be live.
    fn live(&mut self, id: RequestId, action: &str) -> Option<&mut Seen> {
        if !self.world.requests.contains_key(&id) {
            self.report(
                Invariant::NothingLost,
                format!("{action} names {id}, which is over"),
            );
        }
        self.world.requests.get_mut(&id)
    }

    fn reserve(&mut self, id: RequestId, tokens: u32, reused: u32) {
        let Some(seen) = self.live(id, "Reserve") else {
            return;
        };
        let fresh = seen.reserved.is_none() && seen.phase == Phase::Queued;
        seen.phase = Phase::Prefill;
        seen.reserved = Some(tokens);
        seen.reused = reused;
        let (submission, prompt) = (seen.submission, seen.prompt_tokens);
        let enough = tokens >= prompt;
        let flow = submission.flow;
        let mut there = 0;
        let mut memory = 0;
        if let Some(flow) = flow {
            memory = self.world.flows.remove(&flow).unwrap_or(0);
            there = memory.max(self.world.flash.remove(&flow).unwrap_or(0));
            if let Some(leaving) = self.world.leaving(flow) {
                (leaving.flow, leaving.taken) = (None, true);
                (there, memory) = (leaving.tokens, leaving.tokens);
            }
        }
        let own = reused <= there && reused <= submission.shared_tokens && reused < prompt;
        let used = &mut self.world.kv_used;
        *used = *used - u64::from(memory).min(*used) + u64::from(tokens);
        let (used, budget) = (*used, self.world.kv_budget);
        let holds = fresh && enough && own && used <= budget;
        self.require(holds, Invariant::MemoryBalanced, || {
            format!(
                "{id} reserves {tokens} tokens, reuses {reused} of {there}; {used} of {budget} used"
            )
        });
    }

    fn release(&mut self, id: RequestId, to: Option<(FlowId, u32)>) {
        let layers = self.world.model.layers;
        let Some(seen) = self.live(id, "Release or Keep") else {
            return;
        };
        let reserved = seen.reserved.take();
        let own = to.is_none() || to.map(|(flow, _)| flow) == seen.submission.flow;
        let computed = seen.computed(layers).min(reserved.unwrap_or(0));
        let runs = self.runs(id);
        let world = &mut self.world;
        let lanes = Lane::ALL.into_iter();
        let writers: BTreeSet<Lane> = lanes
            .filter(|lane| world.writers[*lane as usize].remove(&id))
            .collect();
        let written = !writers.is_empty();
        let tokens = u64::from(reserved.unwrap_or(0));
        match written {
            true => world.held.push((writers, tokens)),
            false => world.kv_used -= tokens.min(world.kv_used),
        }
        let mut taken = None;
        if let Some((flow, kept)) = to {
            world.kv_used += u64::from(kept);
            taken = world.flows.insert(flow, kept);
            let leaving = world.leaving(flow).map(|leaving| leaving.tokens);
            taken = taken.or(world.flash.get(&flow).copied()).or(leaving);
        }
        let all = to.is_none_or(|(_, kept)| kept == computed);
        // What a lane may still write to is nobody's until it has answered, and no flow's at all.
        let own = own && !(written && to.is_some());
        let holds = reserved.is_some() && own && all && !runs && taken.is_none();
        self.require(holds, Invariant::MemoryBalanced, || {
            format!(
                "{id} gives {reserved:?} tokens, {computed} of them computed, back to {to:?}, which had {taken:?}; runs: {runs}"
            )
        });
    }

    /// A cache is written from now on: it has its memory until that is done, and room on flash already.
    fn offload(&mut self, flow: FlowId, transfer: Transfer) {
        let kept = self.world.flows.remove(&flow);
        if let Some(tokens) = kept {
            let leaving = Leaving {
                flow: Some(flow),
                tokens,
                taken: false,
            };
            let known = self.world.transfers.insert(transfer, leaving);
            self.require(known.is_none(), Invariant::MemoryBalanced, || {
                format!("{transfer:?} is the name of two caches")
            });
        }
        let written: u64 = self.world.flash.values().map(|kept| u64::from(*kept)).sum();
        let leaving = self.world.transfers.values();
        let used = written + leaving.map(|it| u64::from(it.tokens)).sum::<u64>();
        let budget = self.world.flash_budget;
        let holds = kept.is_some() && used <= budget;
        self.require(holds, Invariant::MemoryBalanced, || {
            format!("{flow:?} takes {kept:?} tokens to flash, which has {used} of {budget}")
        });
    }

    fn release_flow(&mut self, flow: FlowId) {
        let kept = self.world.flows.remove(&flow);
        self.world.kv_used -= u64::from(kept.unwrap_or(0)).min(self.world.kv_used);
        // What is being written is in memory until that is done.
        let leaving = self.world.leaving(flow).map(|leaving| leaving.flow = None);
        let found = kept.is_some() || leaving.is_some() || self.world.flash.remove(&flow).is_some();
        self.require(found, Invariant::MemoryBalanced, || {
            format!("{flow:?} has nothing to give back")
        });
    }

    fn restart(&mut self, id: RequestId) {
        let runs = self.world.occupied_by(id);
        let Some(seen) = self.live(id, "Restart") else {
            return;
        };
        seen.phase = Phase::Queued;
        seen.parts.clear();
        seen.prompt_tokens = seen.context();
        seen.submission.shared_tokens = 0;
        let released = seen.reserved.is_none();
        self.require(released && !runs, Invariant::MemoryBalanced, || {
            format!("{id} starts over; memory given back: {released}, runs: {runs}")
        });
    }

    fn emit(&mut self, id: RequestId) {
        let Some(seen) = self.live(id, "Emit") else {
            return;
        };
        let due = seen.due;
        seen.due = due.saturating_sub(1);
        seen.emitted += 1;
        let (emitted, max) = (seen.emitted, seen.submission.output_tokens_max);
        self.require(due > 0 && emitted <= max, Invariant::NothingLost, || {
            format!("{id} gives token {emitted} of {max}, {due} due")
        });
    }

    fn finish_request(&mut self, id: RequestId, finish: Finish) {
        let runs = self.runs(id);
        let context_tokens = self.world.model.context_tokens;
        let no_room = self.world.crowds_out(id);
        let hopeless = self.world.is_hopeless();
        let Some(seen) = self.live(id, "Finish") else {
            return;
        };
        let (due, reserved) = (seen.due, seen.reserved);
        let last = seen.ended
            || seen.emitted >= seen.submission.output_tokens_max
            || seen.context() > context_tokens;
        let complete = finish != Finish::Complete || last;
        let reason = match finish {
            Finish::Cancelled | Finish::Deadline => !seen.wanted,
            Finish::Failed | Finish::Complete | Finish::Shed => true,
        };
        let (alone, refused) = (seen.failed_alone, seen.refused);
        let nothing_for_it = seen.doomed || hopeless || no_room;
        let own_fault = alone >= ATTEMPTS || refused >= ATTEMPTS || nothing_for_it;
        let given = due == 0 || finish == Finish::Failed || !seen.wanted;
        self.require(
            complete && reason && given && !runs,
            Invariant::NothingLost,
            || format!("{id} ends as {finish:?}; last token: {last}, {due} due, runs: {runs}"),
        );
        self.require(
            finish != Finish::Failed || own_fault,
            Invariant::CulpritOnly,
            || format!("{id} fails after {alone} launches alone and {refused} refusals in a row"),
        );
        self.require(reserved.is_none(), Invariant::MemoryBalanced, || {
            format!("{id} ends with {reserved:?} tokens of memory")
        });
        self.world.requests.remove(&id);
    }

    /// Whether something of a request runs.
    fn runs(&self, id: RequestId) -> bool {
        Lane::ALL.into_iter().any(|lane| {
            let work = self.world.running(lane);
            work.is_some_and(|work| work.is_of(id))
        })
    }

    fn judge_work(&mut self, lane: Lane, work: &Work) {
        match work {
            Work::Prefill {
                request,
                segment,
                layer,
                kernel,
            } => {
                self.reactive_first(lane, *request);
                if *kernel != Kernel::Mha {
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

    fn prefill(&mut self, id: RequestId, segment: Segment, layer: u32, kernel: Kernel) {
        let chunk = self.world.model.chunk_tokens;
        let layers = self.world.model.layers;
        let Some(seen) = self.live(id, "Launch") else {
            return;
        };
        let known = seen.cut(chunk.max(1)).find(|part| part.segment == segment);
        let number = 3 * layer + KERNELS.iter().position(|k| *k == kernel).unwrap_or(0) as u32;
        let part = known.filter(|part| part.done == number && !part.running && layer < layers);
        let keys = kernel != Kernel::Mha || layer < seen.keys_before(segment.position);
        let holds = seen.phase == Phase::Prefill && part.is_some() && keys;
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
        self.require(holds, Invariant::Dependencies, || {
            format!("{id}: {kernel:?} of layer {layer} over {segment:?}, which has {known:?} done; keys: {keys}")
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
        self.require(holds, Invariant::Dependencies, || {
            format!("{id}: head; keys of all tokens: {keys}, last segment through: {through}")
        });
    }

    fn decode(&mut self, lane: Lane, run: &DecodeRun) {
        let layers = self.world.model.layers;
        let goes_on = self.world.iteration.as_ref().is_some_and(|it| {
            it.lane == lane && it.layers_done == run.layers.start && it.batch == run.batch
        });
        let fresh = run.layers.start == 0 && self.world.iteration_under_way().is_none();
        let order = run.layers.end == layers && (goes_on || fresh);
        self.require(order, Invariant::Dependencies, || {
            format!("{run:?} is neither a new iteration nor the rest of the one that has begun")
        });
        self.world.prefilled_last = false;
        if self.dynamic_prefill_waits() {
            // A proactive prompt goes first with its attention, but not where the lane has all of its kernels. There a
            // reactive one may wait for an answer that has just begun or soon ends; for how long is not judged here.
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
            let first = policy.prefill_first && !(whole && reactive && waits);
            self.require(!first, Invariant::ReactiveFirst, || {
                format!("decoding goes before attention of a prompt on the {lane:?} lane")
            });
        }
        if !goes_on {
            self.new_batch(run.batch.iter().map(|(id, context)| (*id, *context)));
        }
        self.world.iteration = Some(Iteration {
            batch: run.batch.clone(),
            layers_done: run.layers.start,
            lane,
            broken: false,
        });
    }

    /// A token-wise kernel is about to start: not a reactive one where an overdue prompt has the lane.
    fn beside_overdue(&mut self, lane: Lane, id: RequestId) {
        let seen = self.world.requests.get(&id);
        let reactive = seen.is_some_and(|seen| seen.class() == Class::Reactive && !seen.failed);
        let elsewhere = lane != Lane::Npu && self.world.is_present(Lane::Npu);
        let aged = self.overdue_prompt().filter(|_| reactive && elsewhere);
        self.require(aged.is_none(), Invariant::Ageing, || {
            format!("{id} takes the {lane:?} lane, which the prompt of {aged:?} should have")
        });
    }

    /// An overdue request that could decode and is not among `ids`.
    fn overdue_beside(&self, ids: &[RequestId]) -> Option<RequestId> {
        let mut decodable = self.world.decodable();
        let found = decodable.find(|(id, seen)| seen.overdue && !ids.contains(id));
        found.map(|(id, _)| *id)
    }

    /// An overdue request whose prompt is under way, or was preempted.
    fn overdue_prompt(&self) -> Option<RequestId> {
        let mut requests = self.world.requests.iter();
        let found = requests.find(|(_, seen)| {
            seen.overdue && seen.phase == Phase::Prefill && seen.wanted && !seen.failed
        });
        found.map(|(id, _)| *id)
    }

    /// An iteration begins.
    fn new_batch(&mut self, batch: impl Iterator<Item = (RequestId, u32)>) {
        let batch: Vec<(RequestId, u32)> = batch.collect();
        let mut ids: Vec<RequestId> = batch.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        let known = batch.iter().all(|(id, context)| {
            let seen = self.world.requests.get(id);
            let hangs = self.world.occupied_by(*id);
            seen.is_some_and(|s| s.phase == Phase::Decode && s.context() == *context && !hangs)
        });
        self.require(
            known && ids.len() == batch.len() && !ids.is_empty(),
            Invariant::Dependencies,
            || format!("{batch:?} has requests that cannot decode, or not with this context"),
        );
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
        // After a failure requests decode alone, to find the one to blame.
        let left_out = inside < waiting.min(max) && !first_come && self.world.failures == 0;
        let room = batch.len() < max && !first_come && self.world.failures == 0;
        let aged = self.overdue_beside(&ids).filter(|_| room);
        self.require(aged.is_none(), Invariant::Ageing, || {
            format!("an iteration begins without {aged:?}, which is overdue")
        });
        self.require(batch.len() <= cap, Invariant::BatchCap, || {
            format!(
                "a batch of {} with {inside} reactive and {overdue} overdue",
                ids.len()
            )
        });
        self.require(!left_out, Invariant::ReactiveFirst, || {
            format!("a batch with {inside} of {waiting} reactive requests")
        });
    }

    fn mixed(
        &mut self,
        batch: &std::sync::Arc<[(RequestId, u32)]>,
        prompts: &std::sync::Arc<[(RequestId, Segment)]>,
    ) {
        if !batch.is_empty() {
            self.new_batch(batch.iter().copied());
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
            self.require(holds, Invariant::Dependencies, || {
                format!("{id}: {segment:?} of its prompt; all before it done: {before}")
            });
        }
        let tokens: u32 = prompts.iter().map(|(_, segment)| segment.tokens).sum();
        let cap = self.rules.policy.limits.tokens_per_iteration;
        self.require(tokens <= cap, Invariant::BatchCap, || {
            format!("{tokens} tokens of prompts in an iteration")
        });
    }

    fn is_overdue(&self, id: RequestId) -> bool {
        let seen = self.world.requests.get(&id);
        seen.is_some_and(|seen| seen.overdue)
    }

    /// A kernel of a request's prompt is about to start.
    fn reactive_first(&mut self, lane: Lane, id: RequestId) {
        let policy = &self.rules.policy;
        let class = self.world.requests.get(&id).map(Seen::class);
        let fills_bubbles = policy.pressure.is_some_and(|tiers| tiers.duration_bound);
        if class != Some(Class::Proactive)
            || !policy.prefill.preempt
            || policy.scheduler != SchedulerKind::AgentXpu
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
        // A kernel at a time may come between two iterations, where the policy has proactive prompts share the lane.
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
        self.require(waits.is_none(), Invariant::ReactiveFirst, || {
            format!("a kernel of {id} starts while a reactive request waits: {waits:?}")
        });
        // What ran on the NPU, before it was lost, took nothing from the lane that decodes.
        self.world.prefilled_last |= lane != Lane::Npu;
    }
}
