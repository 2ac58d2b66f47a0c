//! Judges turns between clients: rows of iterations, and how long a client's first request waits for other clients'
//! requests.

use std::collections::BTreeMap;

use heg_sched::{
    Action, Call, Class, ClientId, Costs, Decoding, Lane, LayerKernel, RequestId, Scheduler,
    Segment,
};
use heg_spec::policy::SchedulerKind;

use super::world::{Phase, Seen};
use super::{Checked, SchedulerInvariant};
use crate::duration::duration;
use crate::rivals::Rival;

/// The checker's state of clients' turns.
#[derive(Debug, Default)]
pub(super) struct TurnWatch {
    /// The first request of each client, with the time that it waited.
    waits: BTreeMap<RequestId, Waited>,
    /// All clients that had a request so far.
    known: Vec<ClientId>,
    /// Largest number of clients that were present at once.
    clients_max: usize,
    /// Longest launch so far, in µs.
    longest_us: f64,
}

/// Lane time that others of a request's rank had, in µs.
#[derive(Debug, Clone, Copy, Default)]
struct Waited {
    /// Time since the request's last token.
    us: f64,
    /// Time from the end of its prompt to its last token.
    caught_up_us: f64,
}

impl Waited {
    /// Notes that the request got a token.
    fn token(&mut self, seen: &Seen) {
        let of_its_prompt = seen.context() <= seen.prompt_tokens + 1;
        *self = Self {
            us: 0.0,
            caught_up_us: match of_its_prompt {
                true => 0.0,
                false => self.caught_up_us + self.us,
            },
        };
    }
}

impl<S: Scheduler, C: Costs> Checked<S, C> {
    /// Returns whether requests of more than one client are live.
    pub(super) fn are_several(&self) -> bool {
        let mut clients = self
            .world
            .requests
            .values()
            .map(|seen| seen.submission.client);
        let first = clients.next();
        clients.any(|client| Some(client) != first)
    }

    /// Returns the rank in which a request takes turns with others.
    fn rank(&self, seen: &Seen) -> Class {
        match (self.rules.rival, self.rules.policy.scheduler) {
            (None, SchedulerKind::ContinuousBatching) | (Some(Rival::Serial), _) => {
                Class::Proactive
            }
            _ => seen.class(),
        }
    }

    /// Checks that a client is left out of an iteration only for clients that have at most a row more than it.
    pub(super) fn fair_rows(&mut self, batch: &[Decoding]) {
        let capped = self.rules.policy.decode.reactive_batch_max.is_some();
        let judged = match self.rules.policy.scheduler {
            // Proactive answers join as far as reactive ones tolerate them, and overdue ones go first.
            SchedulerKind::AgentXpu if capped => Class::Reactive,
            SchedulerKind::AgentXpu => return,
            SchedulerKind::ContinuousBatching => Class::Proactive,
            // Proactive answers are in no batch while somebody waits.
            SchedulerKind::PriorityBatching => Class::Reactive,
        };
        if self.rules.rival.is_some() || self.world.failures > 0 || !self.are_several() {
            return;
        }
        let mut rows: BTreeMap<ClientId, (usize, usize)> = BTreeMap::new();
        for (id, seen) in self.world.decodable() {
            if self.rank(seen) == judged {
                let (inside, left_out) = rows.entry(seen.submission.client).or_default();
                match batch.iter().any(|member| member.request == *id) {
                    true => *inside += 1,
                    false => *left_out += 1,
                }
            }
        }
        let most = rows.values().map(|(inside, _)| *inside).max().unwrap_or(0);
        let short = rows
            .iter()
            .find(|(_, (inside, out))| *out > 0 && inside + 1 < most);
        let short = short.map(|(client, rows)| (*client, *rows));
        self.require(short.is_none(), SchedulerInvariant::FairTurns, || {
            format!("an iteration has {most} rows of a client, and of {short:?} it leaves some out")
        });
    }

    /// Notes a new request.
    pub(super) fn watch_turn(&mut self, id: RequestId) {
        let Some(seen) = self.world.requests.get(&id) else {
            return;
        };
        let client = seen.submission.client;
        if !self.turns.known.contains(&client) {
            self.turns.known.push(client);
            self.turns.waits.insert(id, Waited::default());
        }
        let mut clients: Vec<ClientId> = self
            .world
            .requests
            .values()
            .map(|it| it.submission.client)
            .collect();
        clients.sort_unstable();
        clients.dedup();
        self.turns.clients_max = self.turns.clients_max.max(clients.len());
    }

    /// Returns whether the policy gives a prompt the lanes at the next kernel, and no gate may hold it back.
    fn has_prompt_turns(&self) -> bool {
        let policy = &self.rules.policy;
        let limits = &policy.limits;
        let gates = policy.pressure.is_some()
            || limits.power_watts_max.is_some()
            || limits.igpu_percent_max.is_some();
        if self.rules.rival.is_some() {
            return false;
        }
        match policy.scheduler {
            SchedulerKind::AgentXpu => {
                policy.prefill.preempt && policy.decode.prefill_first && !gates
            }
            SchedulerKind::ContinuousBatching | SchedulerKind::PriorityBatching => {
                // Cut into smaller parts, a prompt takes longer than its chunks suggest.
                let chunk = policy
                    .decode
                    .batch_max
                    .saturating_add(self.world.model.chunk_tokens);
                limits.tokens_per_iteration >= chunk
            }
        }
    }

    /// Counts, at the end of a step, the lane time of others' launches while a client's first request waited, against
    /// the bound.
    pub(super) fn judge_turns(&mut self, actions: &[Action]) {
        if !self.has_prompt_turns() || self.world.failures > 0 {
            return;
        }
        let mut launches = Vec::new();
        for action in actions {
            if let Action::Launch { lane, work, .. } = action {
                let cost = duration(&self.costs, *lane, work, &self.world.warm, |_, _| true);
                let us = cost.map_or(0.0, |cost| cost.latency_us);
                self.turns.longest_us = self.turns.longest_us.max(us);
                launches.push((work.requests(), us));
            }
        }
        let mut waits = std::mem::take(&mut self.turns.waits);
        waits.retain(|id, _| self.world.requests.contains_key(id));
        for (id, waited) in &mut waits {
            let Some(seen) = self.world.requests.get(id) else {
                continue;
            };
            if seen.since == self.world.now {
                waited.token(seen);
                continue;
            }
            if self.world.occupied_by(*id) || !self.may_have_its_turn(*id, seen) {
                continue;
            }
            let rank = self.rank(seen);
            let of_others = |requests: &[RequestId]| {
                let all = requests
                    .iter()
                    .filter_map(|other| self.world.requests.get(other));
                let mut same = all.filter(|other| self.rank(other) == rank);
                same.any(|other| other.submission.client != seen.submission.client)
            };
            let others = launches.iter().filter(|(requests, _)| of_others(requests));
            waited.us += others.map(|(_, us)| us).sum::<f64>();
            let bound = self.turn_bound_us(seen, waited.caught_up_us);
            if waited.us > bound {
                let us = waited.us;
                let what = format!("{id} waited for {us} us of others, {bound} are their turns");
                self.report(SchedulerInvariant::FairTurns, what);
            }
        }
        self.turns.waits = waits;
    }

    /// Returns whether a request is its client's only one, and nothing but others' turns keeps it waiting.
    fn may_have_its_turn(&self, id: RequestId, seen: &Seen) -> bool {
        let same = |(other, it): (&RequestId, &Seen)| {
            *other == id || it.submission.client != seen.submission.client
        };
        let urgent = !self.rules.is_agent_xpu() || seen.class() == Class::Reactive;
        let clients = self.turns.clients_max.max(1) as u64;
        let room = u64::from(seen.tokens_max(self.world.model.context_tokens));
        let within = room <= self.world.kv_budget / clients && self.world.transfers.is_empty();
        urgent && within && seen.wanted && self.world.requests.iter().all(same)
    }

    /// Returns the time that others may have on all lanes before a request's next token: for each of them a turn by
    /// which the request may itself be behind, a turn, and as much as the request's own work; and the work under way,
    /// while other lanes go on. Once, the others catch up with the request's prompt if it went before theirs: they had
    /// `caught_up_us` of it.
    fn turn_bound_us(&self, seen: &Seen, caught_up_us: f64) -> f64 {
        let prompt = self.prompt_us(seen.prompt_tokens);
        let (own, catches_up) = match seen.phase {
            Phase::Queued | Phase::Prefill => (prompt, 0.0),
            Phase::Decode => (self.turns.longest_us, prompt),
        };
        let turn = self.prompt_us(self.world.model.chunk_tokens);
        let others = self.turns.clients_max.saturating_sub(1) as f64;
        let lanes = Lane::ALL
            .into_iter()
            .filter(|lane| self.world.is_present(*lane));
        let each = others * (own + 2.0 * turn) + 3.0 * (1.0 + others) * self.turns.longest_us;
        let lanes = lanes.count() as f64;
        lanes * each + (lanes * others * catches_up - caught_up_us).max(0.0)
    }

    /// Returns the time of a prompt on the lane of dynamic kernels, in µs.
    fn prompt_us(&self, tokens: u32) -> f64 {
        let model = self.world.model;
        let Some(lane) = self.world.dynamic_lane() else {
            return f64::INFINITY;
        };
        let chunk = model.chunk_tokens.max(1);
        let starts = (0..tokens).step_by(chunk as usize);
        let segments = starts.map(|position| Segment {
            position,
            tokens: chunk.min(tokens - position),
        });
        let kernels = [LayerKernel::Qkv, LayerKernel::Mha, LayerKernel::Ffn];
        let calls = segments.flat_map(|it| {
            kernels.map(|kernel| Call::Prefill {
                kernel,
                tokens: it.tokens,
                context: it.context(),
            })
        });
        let us = |lane: Lane, call| self.costs.cost(lane, call).map_or(0.0, |it| it.latency_us);
        calls.map(|call| us(lane, call)).sum::<f64>() * f64::from(model.layers)
    }
}
