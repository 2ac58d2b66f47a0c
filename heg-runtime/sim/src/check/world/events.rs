//! The effects of each event on the checker's world.

use heg_spec::policy::AgeingStart;

use heg_sched::{
    Class, Event, Given, Lane, Micros, PromptLogits, RESET_PATIENCE, RequestId, Segment,
    Submission, Ticket, Transfer, Work,
};

use super::{ATTEMPTS, Iteration, Part, Phase, Place, Seen, World};

/// The possible culprit of a failed launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blame {
    /// One of its requests.
    Requests,
    /// The machine.
    Nobody,
}

impl World {
    /// Applies an event before the scheduler hears it.
    pub(in crate::check) fn see(&mut self, event: &Event) {
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
                given,
            } => {
                if let Some(work) = self.free(*ticket, Place::Free) {
                    self.done(&work, *layers, (ended, given));
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
            let is_long = |waits: Micros| self.overdue_after.is_some_and(|limit| waits >= limit);
            seen.overdue |= is_long(waits) && seen.class() == Class::Proactive;
            // Its turn came no later than its first kernel.
            let in_turn = seen.begun.is_some_and(|begun| is_long(now.since(begun)));
            seen.presses = seen.overdue && (in_turn || self.prompts_from == AgeingStart::Arrival);
        }
    }

    /// Finds lanes that have not answered in time, or not come back.
    fn see_absences(&mut self) {
        for lane in Lane::ALL {
            if matches!(self.places[lane as usize], Place::Resetting(_, by) if by <= self.now) {
                self.vacate(lane, Place::Absent);
            }
        }
        if !self.is_present(Lane::Npu)
            && let Some(aside) = &mut self.aside
        {
            aside.broken = true;
        }
        if let Some(iteration) = &self.iteration {
            // Hidden states stay where they are, or are lost with their lane.
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
            // No request can be served: all end as soon as nothing of them runs.
            for seen in self.requests.values_mut() {
                seen.wanted = false;
                seen.doomed = true;
            }
        }
    }

    /// Notes that a lane no longer carries out earlier orders.
    fn answered(&mut self, lane: Lane) {
        self.writers[lane as usize].clear();
        for (lanes, _) in &mut self.held {
            lanes.remove(&lane);
        }
        let free = self.held.extract_if(.., |(lanes, _)| lanes.is_empty());
        let tokens: u64 = free.map(|(_, tokens)| tokens).sum();
        self.kv_used -= tokens.min(self.kv_used);
    }

    /// Notes that a lane is told to stop its work.
    pub(in crate::check) fn reset(&mut self, lane: Lane) {
        let by = self.now + Micros(self.patience.0.saturating_mul(RESET_PATIENCE));
        let place = Place::Resetting(None, by);
        let old = std::mem::replace(&mut self.places[lane as usize], place);
        if let Place::Busy(_, work) = old {
            self.writers[lane as usize].extend(work.requests());
            if let Work::Decode(run) = &work
                && let Some(iteration) = self.slot(&run.batch)
            {
                // Others may decode meanwhile.
                iteration.broken = true;
            }
            self.places[lane as usize] = Place::Resetting(Some(work), by);
        }
    }

    /// Notes that a request did not get its reserved memory; launches with it since then do not run.
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

    /// Notes that the writer is done with a cache.
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

    fn submitted(&mut self, submission: &Submission) {
        let chunk_tokens = match (submission.prompt_logits, submission.class) {
            (PromptLogits::WholePrompt, _) => submission.prompt_tokens.max(1),
            (_, Class::Reactive) => self.chunk_tokens[0],
            (_, Class::Proactive) => self.chunk_tokens[1],
        };
        let seen = Seen {
            submission: *submission,
            chunk_tokens,
            segments_max: match submission.prompt_logits {
                PromptLogits::LastRow => (self.window_tokens / chunk_tokens).max(1),
                PromptLogits::AllRows | PromptLogits::WholePrompt => u32::MAX,
            },
            phase: Phase::Queued,
            prompt_tokens: submission.prompt_tokens,
            reused: 0,
            reserved: None,
            parts: Vec::new(),
            emitted: 0,
            due: 0,
            draft: 0,
            written: 0,
            ended: false,
            wanted: true,
            failed: false,
            failed_alone: 0,
            doomed: false,
            refused: 0,
            since: self.now,
            overdue: false,
            begun: None,
            presses: false,
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

    /// Stops the work of a lane.
    pub(in crate::check) fn vacate(&mut self, lane: Lane, place: Place) {
        let old = std::mem::replace(&mut self.places[lane as usize], place);
        match old {
            Place::Busy(_, work) => self.undo(&work, Blame::Nobody),
            Place::Resetting(Some(work), _) => self.undo(&work, Blame::Requests),
            Place::Absent | Place::Free | Place::Resetting(None, _) => {}
        }
    }

    fn done(&mut self, work: &Work, layers: u32, outcome: (&[RequestId], &[Given])) {
        let whole = self.model.layers;
        if !matches!(work, Work::Decode(_)) || layers == whole {
            for id in work.requests() {
                // A request that has failed for good may still have other work under way.
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
            Work::Head(id) => self.gave_tokens(*id, 0, outcome),
            Work::Decode(run) if layers == whole => {
                *self.slot(&run.batch) = None;
                for member in run.batch.iter() {
                    self.gave_tokens(member.request, member.drafted, outcome);
                }
            }
            Work::Decode(run) => {
                if let Some(iteration) = self.slot(&run.batch) {
                    iteration.layers_done = layers;
                }
            }
            Work::Mixed { batch, prompts } => {
                for member in batch.iter() {
                    self.gave_tokens(member.request, member.drafted, outcome);
                }
                for (id, segment) in prompts.iter() {
                    if let Some(part) = self.part(*id, segment.position) {
                        part.done = 3 * whole;
                        part.running = false;
                    }
                    let seen = self.requests.get(id);
                    if seen.is_some_and(|seen| segment.context() >= seen.prompt_tokens) {
                        self.gave_tokens(*id, 0, outcome);
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

    /// Notes the tokens that a launch gave a request, of which it verified `drafted` drafted tokens.
    fn gave_tokens(
        &mut self,
        id: RequestId,
        drafted: u32,
        (ended, given): (&[RequestId], &[Given]),
    ) {
        let given = given.iter().find(|given| given.request == id);
        let tokens = given.map_or(1, |given| given.tokens);
        if !(1..=1 + drafted).contains(&tokens) {
            let what = format!("{id} is given {tokens} tokens of {drafted} drafted and its own");
            self.unverified.push(what);
        }
        if let Some(seen) = self.requests.get_mut(&id) {
            seen.draft = given.map_or(0, |given| given.draft.len() as u32);
            seen.phase = Phase::Decode;
            seen.parts.clear();
            seen.ended = ended.contains(&id);
            seen.since = self.now;
            seen.due += if seen.wanted { tokens } else { 0 };
        }
    }

    fn undo(&mut self, work: &Work, blame: Blame) {
        self.failures += 1;
        if let Work::Decode(run) = work
            && let Some(iteration) = self.slot(&run.batch)
        {
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
