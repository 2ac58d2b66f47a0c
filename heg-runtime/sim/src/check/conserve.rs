//! Judges the invariants that can be checked only at the end of a step: idle lanes, and the holders of memory.

use std::collections::BTreeSet;

use heg_spec::policy::Resume;

use super::world::{Phase, Seen};
use super::{Checked, SchedulerInvariant};
use heg_sched::{
    Action, Class, ClientId, Costs, Lane, LayerKernel, Micros, RequestId, Scheduler, Segment, Work,
};

impl<S: Scheduler, C: Costs> Checked<S, C> {
    /// Judges the state at the end of a step.
    pub(super) fn judge_step(&mut self, actions: &[Action]) {
        self.tokens_given();
        self.buffers();
        let limits = &self.rules.policy.limits;
        if limits.igpu_percent_max.is_some() || limits.power_watts_max.is_some() {
            // Lanes may then rest although there is work.
            return;
        }
        if let Some(what) = self.idle_machine().or_else(|| self.idle_lane()) {
            self.report(SchedulerInvariant::WorkConserving, what);
        }
        if let Some(what) = self.overdue_waits() {
            self.report(SchedulerInvariant::Ageing, what);
        }
        if self.rules.policy.prefill.preempt && self.reactive_decode_waits() {
            let launches = actions.iter().filter_map(|action| match action {
                Action::Launch { work, .. } => Some(work),
                _ => None,
            });
            let (mut launched, mut proactive) = (0, false);
            for work in launches {
                launched += 1;
                proactive |= self.world.class_of(work) == Some(Class::Proactive);
            }
            // Under memory pressure, the work that ran before may keep it from decoding.
            let busy = Lane::ALL
                .iter()
                .filter_map(|lane| self.world.running(*lane));
            let alone = self.rules.policy.pressure.is_none() || busy.count() == launched;
            let proactive = proactive && alone;
            self.require(!proactive, SchedulerInvariant::ReactiveFirst, || {
                "a proactive launch keeps a reactive request from decoding".to_owned()
            });
        }
    }

    fn tokens_given(&mut self) {
        let requests = self.world.requests.iter_mut();
        let kept: Vec<RequestId> = requests
            .filter_map(|(id, seen)| (std::mem::take(&mut seen.due) > 0).then_some(*id))
            .collect();
        self.require(kept.is_empty(), SchedulerInvariant::NothingLost, || {
            format!("tokens of {kept:?} were computed and not given")
        });
    }

    fn buffers(&mut self) {
        let policy = &self.rules.policy;
        let double = self.rules.is_agent_xpu() && policy.prefill.resume == Resume::Arrival;
        // A shorter reactive prompt may have preempted another, and a third run beside it.
        let shorter = policy.prefill.short_prompts_first.is_some();
        let prefill = &policy.prefill;
        let aside = prefill.short_prompts_aside || prefill.long_prompts_aside_ms.is_some();
        let more = usize::from(shorter) + usize::from(aside);
        let clients = self
            .world
            .requests
            .values()
            .map(|seen| seen.submission.client);
        let clients: BTreeSet<ClientId> = clients.collect();
        let kinds = clients
            .into_iter()
            .flat_map(|client| [Class::Reactive, Class::Proactive].map(|class| (client, class)));
        for (client, class) in kinds {
            let holders = self.world.requests.iter();
            let holders: Vec<RequestId> = holders
                .filter(|(_, seen)| seen.submission.client == client && seen.class() == class)
                .filter(|(_, seen)| seen.is_under_way())
                .map(|(id, _)| *id)
                .collect();
            let most = match class {
                Class::Reactive => 1 + more,
                Class::Proactive => 1,
            };
            self.require(
                !double || holders.len() <= most,
                SchedulerInvariant::ActivationBuffers,
                || format!("prompts of {holders:?} are under way at once"),
            );
        }
    }

    /// Returns the reason why the machine should not be idle, if nothing runs although something could.
    fn idle_machine(&self) -> Option<String> {
        let world = &self.world;
        if world.dynamic_lane().is_none() || !Lane::ALL.into_iter().all(|lane| self.rests(lane)) {
            return None;
        }
        let waiting = world.requests.iter().find(|(_, seen)| match seen.phase {
            Phase::Queued => world.fits(seen),
            Phase::Prefill | Phase::Decode => true,
        });
        waiting.map(|(id, seen)| format!("nothing runs, and {id} waits to {:?}", seen.phase))
    }

    /// Returns whether a lane is idle or absent.
    fn rests(&self, lane: Lane) -> bool {
        self.world.is_free(lane) || !self.world.is_present(lane)
    }

    fn idle_lane(&self) -> Option<String> {
        if self.rules.policy.pressure.is_some() {
            // The tiers decide which kernels may run side by side; an idle machine is judged above.
            return None;
        }
        let dynamic = self.world.dynamic_lane()?;
        if self.world.is_free(dynamic) {
            if let Some((id, _)) = self.world.decodable().next()
                && !self.decodes_elsewhere()
                && !self.npu_excludes_decode()
            {
                return Some(format!(
                    "the {dynamic:?} lane is free, and {id} waits to decode"
                ));
            }
            if self.dynamic_prefill_waits() {
                return Some(format!("the {dynamic:?} lane is free, and attention waits"));
            }
        }
        (self.world.is_free(Lane::Npu) && self.chunk_waits())
            .then(|| "the NPU is free, and a full chunk waits".to_owned())
    }

    /// Returns whether an iteration runs on the lane that stood in for the one that came back.
    pub(super) fn decodes_elsewhere(&self) -> bool {
        // Others cannot join a verification on the NPU.
        let mut works = [Lane::Igpu, Lane::Cpu]
            .into_iter()
            .filter_map(|lane| self.world.running(lane));
        works.any(|work| matches!(work, Work::Decode(_)))
    }

    /// Returns whether a kernel on the NPU is memory-bound and more urgent than the decode batch (v2 4.3).
    fn npu_excludes_decode(&self) -> bool {
        let Some(work) = self.world.running(Lane::Npu) else {
            return false;
        };
        let begun = self.world.iteration_under_way();
        let begun = begun.filter(|it| it.layers_done > 0);
        let class = |id: &RequestId| self.world.requests.get(id).map(Seen::class);
        let decoding = match begun {
            Some(iteration) => {
                let batch = iteration.batch.iter();
                batch.filter_map(|member| class(&member.request)).min()
            }
            // Without classes a batch is first come, first served, and may leave out reactive requests. After a failure
            // requests decode alone, to isolate the culprit.
            None if self.rules.policy.decode.reactive_batch_max.is_none()
                || self.world.failures > 0 =>
            {
                self.world.decodable().map(|(_, seen)| seen.class()).max()
            }
            None => self.world.decodable().map(|(_, seen)| seen.class()).min(),
        };
        let more_urgent = self.world.class_of(work) < decoding;
        self.rules.policy.prefill.joint_bandwidth_max.is_some() && more_urgent
    }

    /// Returns whether an overdue prompt waits for the lane that it should have while a reactive one is under way.
    fn overdue_waits(&self) -> Option<String> {
        let world = &self.world;
        let lane = world.dynamic_lane().filter(|lane| world.is_free(*lane))?;
        // A prompt that took its client's turn runs one more kernel, beside which another may not fit.
        let npu = world
            .running(Lane::Npu)
            .and_then(|work| world.class_of(work));
        if self.are_several() && npu == Some(Class::Proactive) {
            return None;
        }
        let mut reactive = world.requests.values().filter(|seen| {
            seen.class() == Class::Reactive && seen.phase == Phase::Prefill && seen.wanted
        });
        reactive.next()?;
        let overdue = || {
            let prompts = world.requests.iter();
            prompts.filter(|(_, seen)| seen.presses && seen.phase == Phase::Prefill && seen.wanted)
        };
        // The lane serves one of them at a time, and the checker does not decide which one.
        let all_wait = overdue().all(|(_, seen)| {
            let mut ready = seen.ready(world.model);
            !seen.failed && ready.any(|(_, kernel)| kernel != LayerKernel::Mha)
        });
        let (id, _) = overdue().next()?;
        (all_wait && self.rules.policy.pressure.is_none())
            .then(|| format!("the {lane:?} lane is free, and the prompt of {id} is overdue"))
    }

    fn reactive_decode_waits(&self) -> bool {
        let dynamic = self.world.dynamic_lane();
        let free =
            dynamic.is_some_and(|lane| self.world.is_free(lane)) && !self.decodes_elsewhere();
        let mut decodable = self.world.decodable();
        free && decodable.any(|(_, seen)| seen.class() == Class::Reactive && !seen.failed)
    }

    /// Returns the prompts under way of the most urgent class that has any; empty if another prompt might be chosen.
    pub(super) fn foremost(&self) -> Vec<&Seen> {
        let prefills = || {
            let live = self.world.requests.values();
            live.filter(|seen| seen.phase != Phase::Decode)
        };
        let class = prefills().map(Seen::class).min();
        let same = || prefills().filter(|seen| Some(seen.class()) == class);
        let certain =
            same().all(|seen| seen.phase == Phase::Prefill && seen.wanted && !seen.failed);
        match certain && self.rules.is_agent_xpu() {
            true => same().collect(),
            false => Vec::new(),
        }
    }

    fn all_foremost(&self, waits: impl Fn(Segment, LayerKernel) -> bool) -> bool {
        let foremost = self.foremost();
        let model = self.world.model;
        let ready = |seen: &&Seen| {
            seen.ready(model)
                .any(|(segment, kernel)| waits(segment, kernel))
        };
        !foremost.is_empty() && foremost.iter().all(ready)
    }

    /// Returns whether attention waits that only the lane of dynamic kernels can run.
    pub(super) fn dynamic_prefill_waits(&self) -> bool {
        let npu = self.world.is_present(Lane::Npu) && !self.world.warm.is_empty();
        !npu && self.rules.policy.pressure.is_none()
            && self.all_foremost(|_, kernel| kernel == LayerKernel::Mha)
    }

    /// Returns whether a request decodes that is reactive, or that is overdue and has long waited for a token.
    fn decodes_for_somebody(&self) -> bool {
        let may_wait = self
            .rules
            .policy
            .prefill
            .split_beside_proactive_ms
            .unwrap_or(0);
        let may_wait = Micros::from_millis(may_wait);
        let mut decoding = self.world.requests.values();
        decoding.any(|seen| {
            let waits = self.world.now.since(seen.since) >= may_wait;
            // A cancelled request no longer becomes overdue, however long its iteration still takes.
            let overdue = seen.overdue && seen.wanted;
            let counts = seen.class() == Class::Reactive || (overdue && waits);
            seen.phase == Phase::Decode && counts
        })
    }

    /// Returns whether more proactive requests wait for their prefill than decode, and no reactive one decodes: chunks
    /// are then balanced between the lanes, and a slow NPU's share may be none (v1 6.5).
    fn prefill_lags(&self) -> bool {
        let (mut decoding, mut waiting) = (0, 0);
        for seen in self.world.requests.values() {
            match (seen.phase == Phase::Decode, seen.class()) {
                (true, Class::Reactive) => return false,
                (true, Class::Proactive) => decoding += 1,
                (false, Class::Proactive) => waiting += 1,
                (false, Class::Reactive) => {}
            }
        }
        self.rules.policy.prefill.balance && waiting > decoding
    }

    /// Returns whether chunks wait, none of which belongs to the iGPU.
    fn chunk_waits(&self) -> bool {
        let world = &self.world;
        let decoding = world.requests.values().filter(|s| s.phase == Phase::Decode);
        if decoding.count() == 0 {
            return false;
        }
        if self
            .rules
            .policy
            .prefill
            .split_beside_proactive_ms
            .is_some()
            && !self.decodes_for_somebody()
        {
            let foremost = self.foremost();
            if foremost.iter().any(|seen| seen.class() == Class::Reactive) {
                return false;
            }
        }
        if self.prefill_lags() {
            return false;
        }
        self.all_foremost(|segment, kernel| {
            let chunks = self.foremost().into_iter().map(|seen| seen.chunk_tokens);
            let whole = Some(segment.tokens) == chunks.max();
            kernel != LayerKernel::Mha && whole
        })
    }
}
