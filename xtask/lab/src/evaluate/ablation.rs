//! Ablations: the first policy without one mechanism after the other, each judged by what it is for.

use super::Subject;
use super::assumption::Assumption;
use super::grid::Case;
use super::record::{Record, RunFigure};
use super::runs::{Place, Runs};
use super::statistics::Estimate;
use heg_sched::{ActivationCounts, Mechanism};
use heg_spec::Policy;
use heg_spec::policy::{AgeingStart, NpuAttention, Resume};
use serde::Serialize;

/// Where a mechanism is at work: requests a minute, and what is assumed.
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

    /// In a few words.
    pub(crate) fn show(self) -> String {
        let rates = format!("{}+{}", self.reactive_rpm, self.proactive_rpm);
        match self.assumption.name() {
            None => rates,
            Some(name) => format!("{rates}, {name}"),
        }
    }
}

/// The regimes of the table: both mixed.
pub(crate) const REGIMES: [Regime; 2] = [Regime::at(3.0, 6.0), Regime::at(5.0, 10.0)];

/// A mechanism with what it is for.
pub(crate) struct Ablation {
    pub(crate) mechanism: Mechanism,
    /// Turns it off, or on where the policy does without it.
    turn: fn(&mut Policy),
    /// The figure that is to be worse without it, and where.
    pub(crate) figure: RunFigure,
    pub(crate) regime: Regime,
}

/// All mechanisms that the evaluation turns off, in the order of the paper's sections.
pub(crate) fn all() -> Vec<Ablation> {
    let parts = [of_prefill(), of_decode(), of_the_whole()];
    parts.into_iter().flatten().collect()
}

const fn of(
    mechanism: Mechanism,
    turn: fn(&mut Policy),
    figure: RunFigure,
    regime: Regime,
) -> Ablation {
    Ablation {
        mechanism,
        turn,
        figure,
        regime,
    }
}

const SOME: Regime = REGIMES[0];
const BUSY: Regime = REGIMES[1];

fn of_prefill() -> Vec<Ablation> {
    use RunFigure::*;
    vec![
        of(
            Mechanism::Preemption,
            |p| p.prefill.preempt = false,
            Ttft,
            SOME,
        ),
        of(
            Mechanism::ShortPromptsFirst,
            |p| p.prefill.short_prompts_first = None,
            Pending,
            BUSY,
        ),
        of(
            Mechanism::ShortPromptsAside,
            |p| p.prefill.short_prompts_aside = false,
            Pending,
            BUSY,
        ),
        of(
            Mechanism::LongPromptsAside,
            |p| p.prefill.long_prompts_aside_ms = None,
            Pending,
            BUSY,
        ),
        of(Mechanism::Split, |p| p.prefill.elastic = false, Ttft, SOME),
        of(
            Mechanism::SplitBesideProactive,
            |p| p.prefill.split_beside_proactive_ms = None,
            Ttft,
            SOME,
        ),
        of(
            Mechanism::Balance,
            |p| p.prefill.balance = false,
            Proactive,
            Regime::at(0.0, 15.0),
        ),
        of(
            Mechanism::NpuRemainders,
            |p| p.prefill.npu_remainder_tokens_min = None,
            Energy,
            SOME,
        ),
        of(
            Mechanism::RemainderDeferral,
            |p| p.prefill.defer_remainder = false,
            Tpot,
            BUSY,
        ),
        of(
            Mechanism::NpuAttention,
            |p| p.prefill.attention = NpuAttention::Off,
            IgpuTime,
            SOME.under(Assumption::SlowAttention),
        ),
        of(
            Mechanism::BandwidthDeferral,
            |p| p.prefill.joint_bandwidth_max = None,
            Tpot,
            BUSY.under(Assumption::MostContention),
        ),
    ]
}

fn of_decode() -> Vec<Ablation> {
    use RunFigure::*;
    vec![
        of(
            Mechanism::ReactiveFirstBatch,
            |p| p.decode.reactive_batch_max = None,
            Tpot,
            BUSY,
        ),
        of(
            Mechanism::LongestLeftOut,
            |p| p.decode.evict_longest = false,
            Tpot,
            BUSY.under(Assumption::LongAnswers),
        ),
        of(
            Mechanism::PrefillFirst,
            |p| p.decode.prefill_first = false,
            Ttft,
            BUSY,
        ),
        of(
            Mechanism::FusedLayer,
            |p| p.decode.fused_layer = false,
            Tpot,
            Regime::at(1.0, 0.0),
        ),
    ]
}

fn of_the_whole() -> Vec<Ablation> {
    use RunFigure::*;
    vec![
        of(Mechanism::Ageing, |p| p.ageing = None, ProactiveWait, BUSY),
        of(
            Mechanism::AgeingFromTurn,
            |p| {
                if let Some(ageing) = &mut p.ageing {
                    ageing.prompts_from = AgeingStart::Arrival;
                }
            },
            Pending,
            BUSY,
        ),
        of(
            Mechanism::LeastTimeToCompletion,
            |p| p.prefill.resume = Resume::Arrival,
            Proactive,
            BUSY,
        ),
        of(
            Mechanism::Backfill,
            |p| {
                if let Some(pressure) = &mut p.pressure {
                    pressure.duration_bound = false;
                }
            },
            Proactive,
            BUSY,
        ),
        of(Mechanism::Pressure, |p| p.pressure = None, Tpot, BUSY),
        of(
            Mechanism::IgpuShare,
            |p| {
                let percent = &mut p.limits.igpu_percent_max;
                *percent = match percent {
                    Some(_) => None,
                    None => Some(60),
                };
            },
            IgpuShare,
            SOME,
        ),
        of(
            Mechanism::PowerBudget,
            |p| {
                let watts = &mut p.limits.power_watts_max;
                *watts = match watts {
                    Some(_) => None,
                    None => Some(30),
                };
            },
            Power,
            SOME,
        ),
    ]
}

impl Ablation {
    /// The policy without its mechanism, or with it where it does without. None of what a policy does not have is tried,
    /// but bounds on iGPU and power, which no shipped policy sets.
    fn policy(&self, whole: &Policy) -> Option<Policy> {
        let mut policy = whole.clone();
        (self.turn)(&mut policy);
        let bounds = [Mechanism::IgpuShare, Mechanism::PowerBudget];
        let tried = self.mechanism.is_on(whole) || bounds.contains(&self.mechanism);
        (tried && policy != *whole).then_some(policy)
    }

    /// The mechanism's name, and what is done with it.
    pub(crate) fn name(&self, whole: &Policy) -> String {
        match self.mechanism.is_on(whole) {
            true => format!("without {}", self.mechanism.name()),
            false => format!("with {}", self.mechanism.name()),
        }
    }

    /// Where it is tried: in both regimes of the table, and in its own.
    fn regimes(&self) -> Vec<Regime> {
        let own = REGIMES.contains(&self.regime);
        let more = (!own).then_some(self.regime);
        REGIMES.into_iter().chain(more).collect()
    }
}

/// The first policy with each of its mechanisms turned, and the whole one in the same regimes, on every model.
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

/// What a mechanism does, as it stands in `summary.json`.
#[derive(Debug, Serialize)]
pub(crate) struct MechanismLine {
    pub(crate) name: &'static str,
    /// Whether the policy has it.
    pub(crate) on: bool,
    /// Steps in which it acted, over all runs of the whole policy, or of the one with it.
    pub(crate) activations: u64,
    /// What it does to the figure that it is for.
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

/// All mechanisms of the first policy.
pub(crate) fn mechanisms(subject: &Subject, records: &[Record]) -> Vec<MechanismLine> {
    let Some(whole) = subject.policies.first() else {
        return Vec::new();
    };
    let runs = Runs::of(subject, records);
    let mut lines = Vec::new();
    for ablation in all() {
        let on = ablation.mechanism.is_on(whole);
        if ablation.policy(whole).is_none() && !on {
            continue;
        }
        let ablated = (!on).then_some(ablation.mechanism);
        let of_policy = |r: &&Record| r.policy == whole.name && r.ablated == ablated;
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

fn effect(runs: &Runs<'_>, model: &str, whole: &Policy, ablation: &Ablation) -> Option<Effect> {
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

/// The change of a figure by turning a mechanism, in percent of the whole policy's mean, trace by trace.
pub(crate) fn change(
    runs: &Runs<'_>,
    model: &str,
    whole: &Policy,
    ablation: &Ablation,
    regime: Regime,
    figure: RunFigure,
) -> Option<Estimate> {
    let place = Place::mixed(model, &whole.name, regime);
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
