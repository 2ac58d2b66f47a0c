//! Judges actions one by one: memory, restarts, tokens and ends of requests. `launch` judges launches.

use std::collections::BTreeSet;

use heg_sched::{
    Action, Costs, Finish, FlowId, Lane, Micros, PromptWindow, RequestId, Scheduler, Transfer,
    Work, WorkStage,
};

use super::world::{ATTEMPTS, Leaving, Phase, Place, Seen};
use super::{Checked, SchedulerInvariant};
use crate::duration::duration;

impl<S: Scheduler, C: Costs> Checked<S, C> {
    pub(super) fn judge(&mut self, action: &Action) {
        match action {
            Action::Launch { lane, ticket, work } => {
                let fresh = self.world.tickets.insert(*ticket);
                let free = self.world.is_free(*lane);
                self.require(fresh && free, SchedulerInvariant::OneLaunchPerLane, || {
                    format!("{ticket:?} on the {lane:?} lane: new {fresh}, lane free {free}")
                });
                self.judge_rest(*lane, work);
                self.judge_power(*lane, work);
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
                self.require(known, SchedulerInvariant::OneLaunchPerLane, || {
                    format!("{ticket:?} is asked to yield and does not decode")
                });
            }
            Action::Reset(lane) => self.world.reset(*lane),
            Action::Warm(kernel) => {
                let busy = self.world.compiling.replace(*kernel);
                self.require(busy.is_none(), SchedulerInvariant::OneLaunchPerLane, || {
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
                window,
            } => self.reserve(*request, *tokens, *reused, *window),
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

    /// Checks that the iGPU works only for its share of the time.
    fn judge_rest(&mut self, lane: Lane, work: &Work) {
        let percent = self.rules.policy.limits.igpu_percent_max;
        let Some(percent) = percent.filter(|_| lane == Lane::Igpu) else {
            return;
        };
        let (now, until) = (self.world.now, self.world.igpu_rests_until);
        self.require(now >= until, SchedulerInvariant::IgpuShare, || {
            format!("the {lane:?} lane rests until {} us", until.0)
        });
        let cost = duration(&self.costs, lane, work, &self.world.warm, |_, _| false);
        let latency = Micros::from_f64(cost.map_or(0.0, |cost| cost.latency_us));
        self.world.igpu_rests_until = now + Micros(latency.0 * 100 / u64::from(percent));
    }

    /// Checks that kernels side by side draw no more than the power budget.
    fn judge_power(&mut self, lane: Lane, work: &Work) {
        let Some(budget) = self.rules.policy.limits.power_watts_max else {
            return;
        };
        let watts = |lane, work: &Work| {
            let known = self.costs.watts(lane, WorkStage::of(work));
            known.unwrap_or(0.0)
        };
        let lanes = Lane::ALL.into_iter();
        let running = lanes.filter_map(|lane| Some((lane, self.world.running(lane)?)));
        let drawn: f64 = running.map(|(lane, work)| watts(lane, work)).sum();
        let all = drawn + watts(lane, work);
        let holds = drawn == 0.0 || all <= f64::from(budget);
        self.require(holds, SchedulerInvariant::PowerBudget, || {
            format!("{all} W are drawn with what starts on the {lane:?} lane")
        });
    }

    /// Returns the request; reports a violation if it is not live.
    pub(super) fn live(&mut self, id: RequestId, action: &str) -> Option<&mut Seen> {
        if !self.world.requests.contains_key(&id) {
            self.report(
                SchedulerInvariant::NothingLost,
                format!("{action} names {id}, which is over"),
            );
        }
        self.world.requests.get_mut(&id)
    }

    fn reserve(&mut self, id: RequestId, tokens: u32, reused: u32, window: PromptWindow) {
        let Some(seen) = self.live(id, "Reserve") else {
            return;
        };
        let fresh = seen.reserved.is_none() && seen.phase == Phase::Queued;
        seen.phase = Phase::Prefill;
        seen.reserved = Some(tokens);
        seen.written = 0;
        seen.reused = reused;
        let (submission, prompt) = (seen.submission, seen.prompt_tokens);
        let own = PromptWindow {
            chunk_tokens: seen.chunk_tokens,
            segments: seen.segments_max,
        };
        let bounded = window == own || !self.rules.is_agent_xpu();
        self.require(bounded, SchedulerInvariant::ActivationBuffers, || {
            format!("{id} reserves rows for {window:?}, and may for {own:?}")
        });
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
        let of_flow = reused <= there && reused <= submission.shared_tokens;
        let own = (of_flow || reused <= submission.kept_tokens) && reused < prompt;
        let used = &mut self.world.kv_used;
        *used = *used - u64::from(memory).min(*used) + u64::from(tokens);
        let (used, budget) = (*used, self.world.kv_budget);
        let holds = fresh && enough && own && used <= budget;
        self.require(holds, SchedulerInvariant::MemoryBalanced, || {
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
        let rejected = computed..seen.written;
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
        let read = to.is_some_and(|(_, kept)| rejected.contains(&kept.saturating_sub(1)));
        self.require(!read, SchedulerInvariant::RejectedRows, || {
            format!("{id} leaves {to:?} tokens, of which those from {rejected:?} on were rejected")
        });
        let all = to.is_none_or(|(_, kept)| kept == computed);
        // Memory to which a lane may still write is not free until the lane has answered, and no flow may keep it.
        let own = own && !(written && to.is_some());
        let holds = reserved.is_some() && own && all && !runs && taken.is_none();
        self.require(holds, SchedulerInvariant::MemoryBalanced, || {
            format!(
                "{id} gives {reserved:?} tokens, {computed} of them computed, back to {to:?}, which had {taken:?}; runs: {runs}"
            )
        });
    }

    /// Starts to write a cache to flash; until that is done, it takes room both in memory and on flash.
    fn offload(&mut self, flow: FlowId, transfer: Transfer) {
        let kept = self.world.flows.remove(&flow);
        if let Some(tokens) = kept {
            let leaving = Leaving {
                flow: Some(flow),
                tokens,
                taken: false,
            };
            let known = self.world.transfers.insert(transfer, leaving);
            self.require(known.is_none(), SchedulerInvariant::MemoryBalanced, || {
                format!("{transfer:?} is the name of two caches")
            });
        }
        let written: u64 = self.world.flash.values().map(|kept| u64::from(*kept)).sum();
        let leaving = self.world.transfers.values();
        let used = written + leaving.map(|it| u64::from(it.tokens)).sum::<u64>();
        let budget = self.world.flash_budget;
        let holds = kept.is_some() && used <= budget;
        self.require(holds, SchedulerInvariant::MemoryBalanced, || {
            format!("{flow:?} takes {kept:?} tokens to flash, which has {used} of {budget}")
        });
    }

    fn release_flow(&mut self, flow: FlowId) {
        let kept = self.world.flows.remove(&flow);
        self.world.kv_used -= u64::from(kept.unwrap_or(0)).min(self.world.kv_used);
        // A cache that is being written stays in memory until that is done.
        let leaving = self.world.leaving(flow).map(|leaving| leaving.flow = None);
        let found = kept.is_some() || leaving.is_some() || self.world.flash.remove(&flow).is_some();
        self.require(found, SchedulerInvariant::MemoryBalanced, || {
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
        seen.draft = 0;
        seen.prompt_tokens = seen.context();
        seen.submission.shared_tokens = 0;
        seen.submission.kept_tokens = 0;
        let released = seen.reserved.is_none();
        self.world.leave_aside(id);
        self.require(
            released && !runs,
            SchedulerInvariant::MemoryBalanced,
            || format!("{id} starts over; memory given back: {released}, runs: {runs}"),
        );
    }

    fn emit(&mut self, id: RequestId) {
        let Some(seen) = self.live(id, "Emit") else {
            return;
        };
        let due = seen.due;
        seen.due = due.saturating_sub(1);
        seen.emitted += 1;
        let (emitted, max) = (seen.emitted, seen.submission.output_tokens_max);
        self.require(
            due > 0 && emitted <= max,
            SchedulerInvariant::NothingLost,
            || format!("{id} gives token {emitted} of {max}, {due} due"),
        );
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
            SchedulerInvariant::NothingLost,
            || format!("{id} ends as {finish:?}; last token: {last}, {due} due, runs: {runs}"),
        );
        self.require(
            finish != Finish::Failed || own_fault,
            SchedulerInvariant::CulpritOnly,
            || format!("{id} fails after {alone} launches alone and {refused} refusals in a row"),
        );
        self.require(
            reserved.is_none(),
            SchedulerInvariant::MemoryBalanced,
            || format!("{id} ends with {reserved:?} tokens of memory"),
        );
        self.world.leave_aside(id);
        self.world.requests.remove(&id);
    }

    /// Returns whether a launch of a request is running.
    fn runs(&self, id: RequestId) -> bool {
        Lane::ALL.into_iter().any(|lane| {
            let work = self.world.running(lane);
            work.is_some_and(|work| work.is_of(id))
        })
    }
}
