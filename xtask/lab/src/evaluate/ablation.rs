//! Ablations: the first policy without one mechanism after the other, each judged by its purpose.

use super::Subject;
use super::assumption::Assumption;
use super::grid::Case;
use super::record::{Record, RunFigure};
use super::runs::{Place, Runs};
use crate::statistics::Estimate;
use heg_sched::{ActivationCounts, Mechanism};
use heg_sim::Contender;
use serde::Serialize;

/// The conditions under which a mechanism acts: requests per minute, and assumptions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Regime {
    pub(crate) reactive_rpm: f64,
    pub(crate) proactive_rpm: f64,
    pub(crate) assumption: Assumption,
}

impl Regime {
    pub(crate) const fn at(reactive_rpm: f64, proactive_rpm: f64) -> Self {
        Self {
            reactive_rpm,
            proactive_rpm,
            assumption: Assumption::Own,
        }
    }

    pub(crate) const fn under(self, assumption: Assumption) -> Self {
        Self { assumption, ..self }
    }

    /// A short description.
    pub(crate) fn show(self) -> String {
        let rates = format!("{}+{}", self.reactive_rpm, self.proactive_rpm);
        match self.assumption.name() {
            None => rates,
            Some(name) => format!("{rates}, {name}"),
        }
    }
}

/// The regimes of the table, both with mixed requests.
pub(crate) const REGIMES: [Regime; 2] = [Regime::at(3.0, 6.0), Regime::at(5.0, 10.0)];

/// A mechanism with its purpose.
pub(crate) struct Ablation {
    pub(crate) mechanism: Mechanism,
    /// The figure that should be worse without it, and the regime.
    pub(crate) figure: RunFigure,
    pub(crate) regime: Regime,
}

/// All mechanisms that the evaluation turns off, in the order of the paper's sections.
pub(crate) fn all() -> Vec<Ablation> {
    let parts = [of_prefill(), of_decode(), of_the_whole()];
    parts.into_iter().flatten().collect()
}

const fn of(mechanism: Mechanism, figure: RunFigure, regime: Regime) -> Ablation {
    Ablation {
        mechanism,
        figure,
        regime,
    }
}

const SOME: Regime = REGIMES[0];
const BUSY: Regime = REGIMES[1];

fn of_prefill() -> Vec<Ablation> {
    use RunFigure::*;
    let contended = BUSY.under(Assumption::MostContention);
    vec![
        of(Mechanism::Preemption, Ttft, SOME),
        of(Mechanism::ShortPromptsFirst, Pending, BUSY),
        of(Mechanism::ShortPromptsAside, Pending, BUSY),
        of(Mechanism::LongPromptsAside, Pending, BUSY),
        of(Mechanism::Split, Ttft, SOME),
        of(Mechanism::SplitBesideProactive, Ttft, SOME),
        of(Mechanism::Balance, Proactive, Regime::at(0.0, 15.0)),
        of(Mechanism::RemainderDeferral, Tpot, BUSY),
        of(
            Mechanism::NpuAttention,
            IgpuTime,
            SOME.under(Assumption::SlowAttention),
        ),
        of(Mechanism::BandwidthDeferral, Tpot, contended),
    ]
}

fn of_decode() -> Vec<Ablation> {
    use RunFigure::*;
    let long = BUSY.under(Assumption::LongAnswers);
    vec![
        of(Mechanism::ReactiveFirstBatch, Tpot, BUSY),
        of(Mechanism::LongestLeftOut, Tpot, long),
        of(Mechanism::PrefillFirst, Ttft, BUSY),
        of(
            Mechanism::FusedLayer,
            Tpot,
            Regime::at(1.0, 0.0).under(Assumption::FusedLayer),
        ),
    ]
}

fn of_the_whole() -> Vec<Ablation> {
    use RunFigure::*;
    vec![
        of(Mechanism::Ageing, ProactiveWait, BUSY),
        of(Mechanism::AgeingFromTurn, Pending, BUSY),
        of(Mechanism::LeastTimeToCompletion, Proactive, BUSY),
        of(Mechanism::Backfill, Proactive, BUSY),
        of(Mechanism::Pressure, Tpot, BUSY),
        of(Mechanism::IgpuShare, IgpuShare, SOME),
        of(Mechanism::PowerBudget, Power, SOME),
    ]
}

impl Ablation {
    /// The policy without its mechanism; for limits on iGPU and power, which most policies do not have, the policy with
    /// it.
    fn policy(&self, whole: &Contender) -> Option<Contender> {
        let mut turned = whole.clone();
        match self.mechanism {
            mechanism if whole.has(mechanism) => mechanism.remove(&mut turned.policy),
            Mechanism::IgpuShare => turned.policy.limits.igpu_percent_max = Some(60),
            Mechanism::PowerBudget => turned.policy.limits.power_watts_max = Some(30),
            _ => return None,
        }
        Some(turned)
    }

    /// The mechanism's name, and whether it is added or removed.
    pub(crate) fn name(&self, whole: &Contender) -> String {
        match whole.has(self.mechanism) {
            true => format!("without {}", self.mechanism.name()),
            false => format!("with {}", self.mechanism.name()),
        }
    }

    /// The regimes in which it is tested: both of the table, and its own.
    fn regimes(&self) -> Vec<Regime> {
        let own = REGIMES.contains(&self.regime);
        let more = (!own).then_some(self.regime);
        REGIMES.into_iter().chain(more).collect()
    }
}

/// The first policy with each of its mechanisms toggled, and the whole policy in the same regimes, on every model.
pub(crate) fn cases(subject: &Subject) -> Vec<Case> {
    let Some(whole) = subject.policies.first() else {
        return Vec::new();
    };
    let mut cases = Vec::new();
    for ablation in all() {
        let Some(policy) = ablation.policy(whole) else {
            continue;
        };
        for regime in ablation.regimes() {
            cases.extend(Case::of_regime(subject, whole, regime));
            let changed = Case::of_regime(subject, &policy, regime);
            cases.extend(changed.map(|case| Case {
                ablated: Some(ablation.mechanism),
                ..case
            }));
        }
    }
    cases
}

/// The effects of a mechanism, as in `summary.json`.
#[derive(Debug, Serialize)]
pub(crate) struct MechanismLine {
    pub(crate) name: &'static str,
    /// Whether the policy has it.
    pub(crate) on: bool,
    /// Number of steps in which it acted, over all runs of the whole policy, or of the one with it.
    pub(crate) activations: u64,
    /// Its effects on the figure that it is meant to improve.
    pub(crate) effects: Vec<Effect>,
}

/// The change of a figure without the mechanism, in percent, with its 95% confidence interval.
#[derive(Debug, Serialize)]
pub(crate) struct Effect {
    pub(crate) model: String,
    pub(crate) regime: String,
    pub(crate) figure: &'static str,
    pub(crate) change: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) significant: bool,
}

/// All mechanisms of the first policy, with their effects.
pub(crate) fn mechanisms(subject: &Subject, records: &[Record]) -> Vec<MechanismLine> {
    let Some(whole) = subject.policies.first() else {
        return Vec::new();
    };
    let runs = Runs::of(subject, records);
    let mut lines = Vec::new();
    for ablation in all() {
        let on = whole.has(ablation.mechanism);
        if ablation.policy(whole).is_none() && !on {
            continue;
        }
        let ablated = (!on).then_some(ablation.mechanism);
        let of_policy = |r: &&Record| r.policy == whole.name() && r.ablated == ablated;
        let mut sum = ActivationCounts::default();
        for record in records.iter().filter(of_policy) {
            sum.add(&record.activations);
        }
        let models = subject.platforms.iter();
        let effects =
            models.filter_map(|platform| effect(&runs, &platform.model, whole, &ablation));
        lines.push(MechanismLine {
            name: ablation.mechanism.name(),
            on,
            activations: sum.of(ablation.mechanism),
            effects: effects.collect(),
        });
    }
    lines
}

/// Mechanisms of the other policies with Agent.xpu's scheduler that never acted in the mixed regime. A whole-layer kernel is
/// another assumption, and what needs drafts or a second lane of decoding has nothing to do here.
pub(crate) fn idle_of_others(subject: &Subject, records: &[Record]) -> Vec<String> {
    let mut idle = Vec::new();
    for policy in subject.policies.iter().skip(1) {
        let mut sum = ActivationCounts::default();
        let of_policy = |r: &&Record| r.policy == policy.name() && r.is_regular();
        for record in records.iter().filter(of_policy) {
            sum.add(&record.activations);
        }
        let tried = all().into_iter().map(|ablation| ablation.mechanism);
        let idle_here = tried.filter(|it| *it != Mechanism::FusedLayer && policy.has(*it));
        let idle_here = idle_here.filter(|it| sum.of(*it) == 0);
        idle.extend(idle_here.map(|it| format!("{} of {}", it.name(), policy.name())));
    }
    idle
}

fn effect(runs: &Runs<'_>, model: &str, whole: &Contender, ablation: &Ablation) -> Option<Effect> {
    let change = change(
        runs,
        model,
        whole,
        ablation,
        ablation.regime,
        ablation.figure,
    )?;
    Some(Effect {
        model: model.to_owned(),
        regime: ablation.regime.show(),
        figure: ablation.figure.name(),
        change: change.mean,
        low: change.low,
        high: change.high,
        significant: change.is_significant(),
    })
}

/// The change of a figure by toggling a mechanism, in percent of the whole policy's mean, trace by trace.
pub(crate) fn change(
    runs: &Runs<'_>,
    model: &str,
    whole: &Contender,
    ablation: &Ablation,
    regime: Regime,
    figure: RunFigure,
) -> Option<Estimate> {
    let place = Place::mixed(model, whole.name(), regime);
    let turned = Place {
        ablated: Some(ablation.mechanism),
        ..place
    };
    let (before, after) = (runs.samples(place, figure), runs.samples(turned, figure));
    if before.is_empty() || before.len() != after.len() {
        return None;
    }
    let mean = Estimate::of(&before).mean;
    let changes = after
        .iter()
        .zip(&before)
        .map(|(a, b)| 100.0 * (a - b) / mean);
    Some(Estimate::of(&changes.collect::<Vec<f64>>()))
}
