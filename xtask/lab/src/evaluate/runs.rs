//! Selects records of an evaluation.

use super::Subject;
use super::ablation::Regime;
use super::assumption::Assumption;
use super::grid::{MIXED, MIXED_PROACTIVE, MIXED_REACTIVE};
use super::record::{Record, RunFigure};
use crate::statistics::Estimate;
use heg_sched::Mechanism;
use std::collections::HashMap;

/// The properties that the traces of a point share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) model: &'a str,
    pub(crate) policy: &'a str,
    pub(crate) workload: &'a str,
    /// Reactive and proactive requests per minute.
    pub(crate) rates: (f64, f64),
    pub(crate) ablated: Option<Mechanism>,
    pub(crate) assumption: Assumption,
}

/// A place as a key: rates have few decimals.
type Key<'r> = (
    &'r str,
    &'r str,
    &'r str,
    u64,
    u64,
    Option<Mechanism>,
    Assumption,
);

impl<'a> Place<'a> {
    /// A point of the mixed workload.
    pub(crate) fn mixed(model: &'a str, policy: &'a str, regime: Regime) -> Self {
        Self {
            model,
            policy,
            workload: MIXED,
            rates: (regime.reactive_rpm, regime.proactive_rpm),
            ablated: None,
            assumption: regime.assumption,
        }
    }

    fn key(self) -> Key<'a> {
        let (reactive, proactive) = self.rates;
        let rates = (reactive.to_bits(), proactive.to_bits());
        let Self {
            model,
            policy,
            workload,
            ablated,
            assumption,
            ..
        } = self;
        (
            model, policy, workload, rates.0, rates.1, ablated, assumption,
        )
    }
}

/// Records by place, those of each place in the order of their seeds.
pub(crate) struct Runs<'r> {
    by_place: HashMap<Key<'r>, Vec<&'r Record>>,
    traces: usize,
}

impl<'r> Runs<'r> {
    pub(crate) fn of(subject: &Subject, records: &'r [Record]) -> Self {
        let mut by_place: HashMap<Key<'r>, Vec<&Record>> = HashMap::new();
        for record in records {
            by_place
                .entry(record.place().key())
                .or_default()
                .push(record);
        }
        for records in by_place.values_mut() {
            records.sort_by_key(|record| record.seed);
        }
        Self {
            by_place,
            traces: subject.seeds.clone().count(),
        }
    }

    /// The records of a place, trace by trace.
    pub(crate) fn at<'p>(&'p self, place: Place<'p>) -> &'p [&'p Record] {
        let found = self.by_place.get(&place.key());
        found.map_or(&[], Vec::as_slice)
    }

    /// A figure of a place, trace by trace.
    pub(crate) fn samples(&self, place: Place<'_>, figure: RunFigure) -> Vec<f64> {
        self.at(place)
            .iter()
            .map(|record| figure.of(record))
            .collect()
    }

    pub(crate) fn estimate(&self, place: Place<'_>, figure: RunFigure) -> Estimate {
        Estimate::of(&self.samples(place, figure))
    }

    /// A figure's mean over the whole mixed regime of some models, trace by trace.
    pub(crate) fn overall(&self, models: &[&str], policy: &str, figure: RunFigure) -> Vec<f64> {
        let mut places = Vec::new();
        for model in models {
            for reactive in MIXED_REACTIVE {
                for proactive in MIXED_PROACTIVE {
                    let regime = Regime {
                        reactive_rpm: reactive,
                        proactive_rpm: proactive,
                        assumption: Assumption::Own,
                    };
                    places.push(self.samples(Place::mixed(model, policy, regime), figure));
                }
            }
        }
        let of_trace = |trace: usize| {
            let all = places.iter().map(|samples| samples.get(trace).copied());
            all.map(|sample| sample.unwrap_or(f64::NAN)).sum::<f64>() / places.len() as f64
        };
        (0..self.traces).map(of_trace).collect()
    }

    pub(crate) fn has(&self, policy: &str) -> bool {
        self.by_place.keys().any(|key| key.1 == policy)
    }

    pub(crate) fn traces(&self) -> usize {
        self.traces
    }
}
