//! Which runs there are, and running them.

use super::Subject;
use super::record::Record;
use anyhow::{Context, Result};
use heg_sched::{Class, Micros};
use heg_sim::{Metrics, Run};
use heg_spec::Policy;
use heg_workload::{Trace, TraceSpec, Workload};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use xtask::fail::Fail;

/// Proactive requests a minute where there are no others, over the paper's range.
pub(crate) const PROACTIVE_ONLY: [f64; 11] =
    [1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0, 25.0, 30.0];

/// Proactive requests a minute beside reactive ones.
pub(crate) const MIXED_PROACTIVE: [f64; 4] = [4.0, 6.0, 8.0, 10.0];

/// Reactive requests a minute; 0 proactive ones beside them show what the machine could do at best.
pub(crate) const MIXED_REACTIVE: [f64; 3] = [1.0, 3.0, 5.0];

/// The workload of all benchmarks together.
pub(crate) const MIXED: &str = "mixed";

/// A run that is to be made.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Index of the platform.
    pub(crate) platform: usize,
    pub(crate) policy: Policy,
    /// Index of the benchmark; all of them if there is none.
    pub(crate) benchmark: Option<usize>,
    pub(crate) reactive_rpm: f64,
    pub(crate) proactive_rpm: f64,
    pub(crate) seed: u64,
    pub(crate) without: Option<&'static str>,
}

impl Case {
    /// The case that `POLICY:MODEL:REACTIVE+PROACTIVE` names, of the mixed workload.
    pub(crate) fn named(subject: &Subject, name: &str) -> Option<Self> {
        let mut parts = name.split(':');
        let (policy, model, rates) = (parts.next()?, parts.next()?, parts.next()?);
        let (reactive, proactive) = rates.split_once('+')?;
        let rate = |text: &str| text.parse().ok().filter(|rate| (0.0..=60.0).contains(rate));
        Some(Self {
            platform: subject.platforms.iter().position(|p| p.model == model)?,
            policy: subject.policies.iter().find(|p| p.name == policy)?.clone(),
            benchmark: None,
            reactive_rpm: rate(reactive)?,
            proactive_rpm: rate(proactive)?,
            seed: 0,
            without: None,
        })
        .filter(|_| parts.next().is_none())
    }

    fn workload<'s>(&self, subject: &'s Subject) -> &'s str {
        self.benchmark
            .map_or(MIXED, |index| subject.benchmarks[index].1.name.as_str())
    }

    /// The same trace for every policy and model.
    fn trace(&self, subject: &Subject) -> Trace {
        let spec = TraceSpec {
            span: Micros(subject.minutes * 60_000_000),
            reactive_per_minute: self.reactive_rpm,
            proactive_per_minute: self.proactive_rpm,
            spacing: subject.spacing,
            seed: self.seed,
            ..TraceSpec::default()
        };
        let chosen = subject.benchmarks.iter().enumerate();
        let chosen = chosen.filter(|(index, _)| self.benchmark.is_none_or(|only| only == *index));
        let workloads: Vec<Workload> = chosen.map(|(_, (_, w))| w.clone()).collect();
        Trace::draw(&spec, &workloads)
    }

    pub(crate) fn serve(&self, subject: &Subject, timeline: bool) -> Result<Run> {
        let platform = &subject.platforms[self.platform];
        platform
            .serve(&self.policy, &self.trace(subject), timeline)
            .with_context(|| {
                Fail::check(format!(
                    "policy `{}` on `{}` at {}+{} requests a minute",
                    self.policy.name, platform.model, self.reactive_rpm, self.proactive_rpm
                ))
            })
    }

    fn record(&self, subject: &Subject) -> Result<Record> {
        let platform = &subject.platforms[self.platform];
        let run = self.serve(subject, false)?;
        let empty = Record {
            soc: platform.soc.clone(),
            model: platform.model.clone(),
            policy: self.policy.name.clone(),
            reactive_rpm: self.reactive_rpm,
            proactive_rpm: self.proactive_rpm,
            workload: self.workload(subject).to_owned(),
            seed: self.seed,
            without: self.without.map(str::to_owned),
            metrics: Metrics::default(),
            prefill_secs: [0.0; 3],
            decode_secs: [0.0; 3],
            compile_secs: 0.0,
            energy_joules: 0.0,
            restarted: 0,
        };
        Ok(empty.note(&run))
    }
}

/// All runs.
pub(crate) struct Grid {
    cases: Vec<Case>,
}

impl Grid {
    /// The paper's two regimes for every model, policy and seed, what reactive requests get alone, and
    /// `others`.
    pub(crate) fn of(subject: &Subject, others: Vec<Case>) -> Self {
        let mut cases = others;
        let proactive = subject.benchmarks.iter().enumerate();
        let proactive = proactive.filter(|(_, (class, _))| *class == Class::Proactive);
        let mut rates: Vec<(Option<usize>, f64, f64)> = proactive
            .flat_map(|(index, _)| PROACTIVE_ONLY.map(|rate| (Some(index), 0.0, rate)))
            .collect();
        for reactive in MIXED_REACTIVE {
            rates.push((None, reactive, 0.0));
            rates.extend(MIXED_PROACTIVE.map(|proactive| (None, reactive, proactive)));
        }
        for platform in 0..subject.platforms.len() {
            for policy in &subject.policies {
                for (benchmark, reactive_rpm, proactive_rpm) in &rates {
                    cases.extend(subject.seeds.clone().map(|seed| Case {
                        platform,
                        policy: policy.clone(),
                        benchmark: *benchmark,
                        reactive_rpm: *reactive_rpm,
                        proactive_rpm: *proactive_rpm,
                        seed,
                        without: None,
                    }));
                }
            }
        }
        Self { cases }
    }

    /// These runs alone.
    #[cfg(test)]
    pub(crate) fn only(cases: Vec<Case>) -> Self {
        Self { cases }
    }

    /// Runs everything, on all processors; the records come in the order of the cases.
    pub(crate) fn run(&self, subject: &Subject) -> Result<Vec<Record>> {
        let bar = ProgressBar::new(self.cases.len() as u64);
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        // Long runs first, so that none is left over at the end.
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
        // One at a time for each thread: runs differ a hundredfold.
        let queue = order.into_par_iter().with_max_len(1).map(run);
        let mut records = queue.collect::<Result<Vec<_>>>()?;
        bar.finish_and_clear();
        records.sort_by_key(|(index, _)| *index);
        Ok(records.into_iter().map(|(_, record)| record).collect())
    }
}
