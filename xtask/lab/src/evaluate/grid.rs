//! The grid of runs, and their execution.

use super::Subject;
use super::ablation::Regime;
use super::assumption::Assumption;
use super::baselines;
use super::bounds::{self, Bounds};
use super::record::Record;
use anyhow::{Context, Result};
use heg_sched::{ActivationCounts, Class, Mechanism, Micros, Observer};
use heg_sim::{Contender, Metrics, Platform, Run};
use heg_workload::{Trace, TraceSpec, Workload};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use std::collections::HashSet;
use xtask::fail::Fail;

/// Proactive requests per minute without reactive ones, over the paper's range.
pub(crate) const PROACTIVE_ONLY: [f64; 11] =
    [1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0, 25.0, 30.0];

/// Proactive requests per minute beside reactive ones.
pub(crate) const MIXED_PROACTIVE: [f64; 4] = [4.0, 6.0, 8.0, 10.0];

/// Reactive requests per minute; runs of these without proactive ones show the best that the machine could do.
pub(crate) const MIXED_REACTIVE: [f64; 3] = [1.0, 3.0, 5.0];

/// Proactive requests per minute at which the paper compares latencies.
pub(crate) const COMPARED_PROACTIVE: f64 = 6.0;

/// The workload of all benchmarks together.
pub(crate) const MIXED: &str = "mixed";

/// A planned run.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Index of the platform.
    pub(crate) platform: usize,
    pub(crate) policy: Contender,
    /// Index of the benchmark; `None` for all of them.
    pub(crate) benchmark: Option<usize>,
    pub(crate) reactive_rpm: f64,
    pub(crate) proactive_rpm: f64,
    pub(crate) seed: u64,
    pub(crate) ablated: Option<Mechanism>,
    pub(crate) assumption: Assumption,
}

impl Case {
    /// The case named `POLICY:MODEL:REACTIVE+PROACTIVE`, of the mixed workload.
    pub(crate) fn named(subject: &Subject, name: &str) -> Option<Self> {
        let mut parts = name.split(':');
        let (policy, model, rates) = (parts.next()?, parts.next()?, parts.next()?);
        let (reactive, proactive) = rates.split_once('+')?;
        let rate = |text: &str| text.parse().ok().filter(|rate| (0.0..=60.0).contains(rate));
        Some(Self {
            platform: subject.platforms.iter().position(|p| p.model == model)?,
            policy: subject
                .policies
                .iter()
                .find(|p| p.name() == policy)?
                .clone(),
            benchmark: None,
            reactive_rpm: rate(reactive)?,
            proactive_rpm: rate(proactive)?,
            seed: 0,
            ablated: None,
            assumption: Assumption::Own,
        })
        .filter(|_| parts.next().is_none())
    }

    /// The runs of a policy in a regime of the mixed workload, on every model and with every seed.
    pub(crate) fn of_regime(
        subject: &Subject,
        policy: &Contender,
        regime: Regime,
    ) -> impl Iterator<Item = Self> {
        let case = Self {
            platform: 0,
            policy: policy.clone(),
            benchmark: None,
            reactive_rpm: regime.reactive_rpm,
            proactive_rpm: regime.proactive_rpm,
            seed: 0,
            ablated: None,
            assumption: regime.assumption,
        };
        let seeds = subject.seeds.clone();
        (0..subject.platforms.len()).flat_map(move |platform| {
            let case = case.clone();
            seeds.clone().map(move |seed| Self {
                platform,
                seed,
                ..case.clone()
            })
        })
    }

    fn workload<'s>(&self, subject: &'s Subject) -> &'s str {
        self.benchmark
            .map_or(MIXED, |index| subject.benchmarks[index].1.name.as_str())
    }

    /// The trace, the same for every policy and model.
    pub(crate) fn trace(&self, subject: &Subject) -> Trace {
        let spec = self.assumption.spec(TraceSpec {
            span: Micros(subject.minutes * 60_000_000),
            reactive_per_minute: self.reactive_rpm,
            proactive_per_minute: self.proactive_rpm,
            spacing: subject.spacing,
            seed: self.seed,
            ..TraceSpec::default()
        });
        let chosen = subject.benchmarks.iter().enumerate();
        let chosen = chosen.filter(|(index, _)| self.benchmark.is_none_or(|only| only == *index));
        let workloads: Vec<Workload> = chosen.map(|(_, (_, w))| w.clone()).collect();
        Trace::draw(&spec, &workloads)
    }

    pub(crate) fn serve(&self, subject: &Subject, timeline: bool) -> Result<Run> {
        let platform = self.assumption.platform(&subject.platforms[self.platform]);
        let policy = self.assumption.policy(&self.policy);
        platform
            .serve(&policy, &self.trace(subject), timeline)
            .with_context(|| self.refusal(&platform))
    }

    /// Runs the case with an observer.
    pub(crate) fn observe(&self, subject: &Subject, observer: impl Observer) -> Result<()> {
        let platform = &subject.platforms[self.platform];
        let run = platform.observe(&self.policy, &self.trace(subject), observer);
        run.with_context(|| self.refusal(platform))?;
        Ok(())
    }

    fn refusal(&self, platform: &Platform) -> Fail {
        Fail::check(format!(
            "policy `{}` on `{}` at {}+{} requests a minute",
            self.policy.name(),
            platform.model,
            self.reactive_rpm,
            self.proactive_rpm
        ))
    }

    fn record(&self, subject: &Subject) -> Result<Record> {
        let platform = &subject.platforms[self.platform];
        let run = self.serve(subject, false)?;
        let empty = Record {
            soc: platform.soc.clone(),
            model: platform.model.clone(),
            policy: self.policy.name().to_owned(),
            reactive_rpm: self.reactive_rpm,
            proactive_rpm: self.proactive_rpm,
            workload: self.workload(subject).to_owned(),
            seed: self.seed,
            ablated: self.ablated,
            assumption: self.assumption,
            metrics: Metrics::default(),
            bounds: Bounds::default(),
            prefill_secs: [0.0; 3],
            decode_secs: [0.0; 3],
            active_secs: 0.0,
            compile_secs: 0.0,
            energy_joules: 0.0,
            restarted: 0,
            activations: ActivationCounts::default(),
        };
        Ok(empty.note(&run))
    }

    /// The key of its trace and its machine.
    pub(crate) fn trace_key(&self) -> impl Eq + std::hash::Hash + Send + use<> {
        let rates = (self.reactive_rpm.to_bits(), self.proactive_rpm.to_bits());
        let place = (self.platform, self.benchmark, self.assumption);
        (place, rates, self.seed)
    }

    /// The key that distinguishes it from other cases.
    fn key(&self) -> impl Eq + std::hash::Hash + use<> {
        let rates = (self.reactive_rpm.to_bits(), self.proactive_rpm.to_bits());
        let place = (self.platform, self.policy.name().to_owned(), self.benchmark);
        (place, rates, self.seed, self.ablated, self.assumption)
    }
}

/// All runs.
pub(crate) struct Grid {
    cases: Vec<Case>,
}

impl Grid {
    /// The paper's two regimes for every model, policy and seed, each class alone, and `others`.
    pub(crate) fn of(subject: &Subject, others: Vec<Case>) -> Self {
        let mut cases = others;
        if subject.proactive_alone {
            cases.extend(proactive_only(subject));
        }
        for policy in &subject.policies {
            for reactive in MIXED_REACTIVE {
                for proactive in [0.0].into_iter().chain(MIXED_PROACTIVE) {
                    let regime = Regime::at(reactive, proactive);
                    cases.extend(Case::of_regime(subject, policy, regime));
                }
            }
        }
        if let Some(own) = subject.policies.first() {
            let alone = Regime::at(0.0, COMPARED_PROACTIVE);
            cases.extend(Case::of_regime(subject, own, alone));
        }
        Self::only(cases)
    }

    /// These runs only, without duplicates.
    pub(crate) fn only(mut cases: Vec<Case>) -> Self {
        let mut known = HashSet::new();
        cases.retain(|case| known.insert(case.key()));
        Self { cases }
    }

    /// Runs everything, on all processors; the records are in the order of the cases.
    pub(crate) fn run(&self, subject: &Subject) -> Result<Vec<Record>> {
        let bar = ProgressBar::new(self.cases.len() as u64);
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        // Long runs first, so that none is left for the end.
        let mut order: Vec<usize> = (0..self.cases.len()).collect();
        order.sort_by(|a, b| {
            let load =
                |index: &usize| self.cases[*index].proactive_rpm + self.cases[*index].reactive_rpm;
            load(b).total_cmp(&load(a))
        });
        let run = |index: usize| {
            let record = self.cases[index].record(subject)?;
            bar.inc(1);
            Ok((index, record))
        };
        // One at a time for each thread, as the durations of runs differ by a factor of a hundred.
        let queue = order.into_par_iter().with_max_len(1).map(run);
        let mut records = queue.collect::<Result<Vec<_>>>()?;
        bar.finish_and_clear();
        records.sort_by_key(|(index, _)| *index);
        let bounds = bounds::of_cases(subject, &self.cases);
        let records = records.into_iter().zip(bounds);
        Ok(records
            .map(|((_, record), bounds)| Record { bounds, ..record })
            .collect())
    }
}

/// Proactive benchmarks, each alone.
fn proactive_only(subject: &Subject) -> impl Iterator<Item = Case> {
    let benchmarks = subject.benchmarks.iter().enumerate();
    let proactive = benchmarks.filter(|(_, (class, _))| *class == Class::Proactive);
    proactive.flat_map(move |(index, _)| {
        let policies = subject.policies.iter();
        let points = policies.flat_map(|policy| PROACTIVE_ONLY.map(|rate| (policy, rate)));
        points.flat_map(move |(policy, rate)| {
            let cases = Case::of_regime(subject, policy, Regime::at(0.0, rate));
            cases.map(move |case| Case {
                benchmark: Some(index),
                ..case
            })
        })
    })
}

/// Runs at the rates at which the paper compares latencies: additional baselines, and the first policy and the iGPU's
/// under alternative assumptions.
pub(crate) fn compared(subject: &Subject) -> Vec<Case> {
    let Some(own) = subject.policies.first() else {
        return Vec::new();
    };
    let mut cases: Vec<Case> = Vec::new();
    let mut add =
        |policy: &Contender, regime| cases.extend(Case::of_regime(subject, policy, regime));
    let igpu = subject.igpu_baseline();
    for reactive in MIXED_REACTIVE {
        let together = Regime::at(reactive, COMPARED_PROACTIVE);
        for policy in igpu
            .iter()
            .flat_map(|igpu| baselines::further(&igpu.policy))
        {
            add(&policy.into(), together);
        }
        for assumption in Assumption::OTHERS {
            add(own, Regime::at(reactive, 0.0).under(assumption));
            for policy in [own].into_iter().chain(igpu) {
                add(policy, together.under(assumption));
            }
        }
    }
    cases
}
