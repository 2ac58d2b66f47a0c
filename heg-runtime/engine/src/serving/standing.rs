//! The engine's current status.

use super::Serving;
use crate::baked::BakedStates;
use crate::kept::KeptState;
use crate::live::{Live, Phase};
use crate::status::{PairStatus, Status};
use crate::waits::Entry;
use heg_sched::Class;

impl Serving {
    /// Returns what the lanes are doing when a reactive request arrives.
    pub(super) fn entry(&self) -> Entry {
        let is_reactive = |live: &Live| live.class == Class::Reactive;
        if self.live.values().any(is_reactive) {
            Entry::Queued
        } else if self.running.iter().any(Option::is_some) {
            Entry::Preempting
        } else {
            Entry::Idle
        }
    }

    /// Returns the engine's current status.
    pub(super) fn status(&self) -> Status {
        let mut status = self.status.clone();
        for live in self.live.values() {
            let phases = match live.class {
                Class::Reactive => &mut status.reactive,
                Class::Proactive => &mut status.proactive,
            };
            match live.phase() {
                Phase::Queued => phases.queued += 1,
                Phase::Prefilling => phases.prefilling += 1,
                Phase::Decoding => phases.decoding += 1,
            }
        }
        for arrival in self.held.iter() {
            match arrival.request.class {
                Class::Reactive => status.reactive.queued += 1,
                Class::Proactive => status.proactive.queued += 1,
            }
        }
        status.dispatch_us = self.dispatch.as_micros() as u64;
        status.draft_sources = self.drafting.sources().clone();
        let calibrations = self.calibrations.counts();
        status.calibrated_rows = calibrations.rows;
        status.calibrated_early_rows = calibrations.early_rows;
        status.uncalibrated_rows = calibrations.dropped_rows;
        status.calibrating_rows = self.calibrations.waiting();
        status.pair = self.pair.as_deref().and_then(PairStatus::of);
        status.kept = self.kept.as_ref().map(KeptState::status);
        status.baked = self.baked.as_ref().map(BakedStates::status);
        status.moved_caches = self.loader.moved_caches();
        status.waits = self.waits.status();
        status.flows_kept = self.room.memory.flows_kept() as u32;
        status.kv_bytes = self.room.memory.bytes();
        status.mechanisms = self.scheduler.activations();
        status
    }
}
