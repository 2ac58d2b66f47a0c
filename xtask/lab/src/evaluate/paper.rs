//! Our figures beside those of the paper (Agent.xpu v2, sections 6.2 to 6.4), line by line.

use super::Subject;
use super::grid::{MIXED, MIXED_PROACTIVE, MIXED_REACTIVE};
use super::record::{Record, mean};
use heg_sched::Class;
use heg_workload::Workload;
use std::fmt::Write;

/// Baselines by the names of their policy files.
const IGPU: &str = "igpu-continuous-batching";
const SERIAL: &str = "serial-npu-igpu";

/// Normalised latencies up to which a rate counts as sustained, in s per token. The paper reads its curves at
/// 1.0, which policies hardly reach here within its rates: of a thousand tokens that is a quarter of an hour,
/// as long as a trace. At a tenth of it queues build up already.
const SUSTAINED_SECS_PER_TOKEN: [f64; 2] = [1.0, 0.1];

/// A figure of one run.
type Figure = fn(&Record) -> f64;

/// A line of the comparison.
struct Line {
    what: String,
    paper: String,
    ours: String,
    /// How far ours is behind the paper's, in words; `None` if it is at least as good.
    behind: Option<String>,
}

/// Whether more or less is better.
#[derive(Clone, Copy, PartialEq)]
enum Better {
    More,
    Less,
}

/// Format of a figure.
#[derive(Clone, Copy)]
enum Unit {
    Percent,
    Secs,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            _ if value.is_nan() => "none".to_owned(),
            Self::Percent => format!("{value:.1}%"),
            Self::Secs => format!("{value:.3} s"),
        }
    }
}

/// A line about one figure.
fn line(what: String, unit: Unit, better: Better, paper: f64, ours: f64) -> Line {
    let short = match better {
        Better::More => paper - ours,
        Better::Less => ours - paper,
    };
    let behind = match (short <= 0.0, unit) {
        (true, _) => None,
        (false, Unit::Percent) => Some(format!("by {short:.1} points")),
        (false, _) => Some(format!("by {}", unit.show(short))),
    };
    Line {
        what,
        paper: unit.show(paper),
        ours: unit.show(ours),
        behind,
    }
}

/// A line about a range of ratios, whose both ends count.
fn range(what: String, paper: [f64; 2], ours: &[Ratio]) -> Line {
    let ends = |ratio: &Ratio| ratio.value;
    let least = ours.iter().min_by(|a, b| ends(a).total_cmp(&ends(b)));
    let most = ours.iter().max_by(|a, b| ends(a).total_cmp(&ends(b)));
    let shown = match (least, most) {
        (Some(least), Some(most)) => format!("{} to {}", least.show(), most.show()),
        _ => "none".to_owned(),
    };
    let (least, most) = (least.map_or(f64::NAN, ends), most.map_or(f64::NAN, ends));
    let mut short = Vec::new();
    if least.is_nan() || least < paper[0] {
        short.push(format!("by {:.2}× at the lower end", paper[0] - least));
    }
    if most.is_nan() || most < paper[1] {
        short.push(format!("by {:.2}× at the upper end", paper[1] - most));
    }
    Line {
        what,
        paper: format!("{:.1}–{:.1}×", paper[0], paper[1]),
        ours: shown,
        behind: (!short.is_empty()).then(|| short.join(", ")),
    }
}

/// Records of the regular grid, to be chosen from.
struct Runs<'r> {
    records: &'r [Record],
    /// The policy that is compared with the others.
    own: &'r str,
}

impl<'r> Runs<'r> {
    fn mixed(&self, model: &str, policy: &str, reactive: f64, proactive: f64) -> Vec<&'r Record> {
        let fits = |r: &&Record| {
            r.without.is_none()
                && r.workload == MIXED
                && (r.model.as_str(), r.policy.as_str()) == (model, policy)
                && (r.reactive_rpm, r.proactive_rpm) == (reactive, proactive)
        };
        self.records.iter().filter(fits).collect()
    }

    /// A figure's mean over the whole mixed regime.
    fn overall(&self, models: &[&str], policy: &str, figure: impl Fn(&Record) -> f64) -> f64 {
        let mut all = Vec::new();
        for model in models {
            for reactive in MIXED_REACTIVE {
                for proactive in MIXED_PROACTIVE {
                    all.extend(self.mixed(model, policy, reactive, proactive));
                }
            }
        }
        mean(all, figure)
    }

    fn has(&self, policy: &str) -> bool {
        self.records.iter().any(|r| r.policy == policy)
    }
}

/// The rate at which the normalised latency reaches `limit`, in requests a minute: on the line between the two
/// rates around it. The highest rate of all where it never does, and its `false` says so.
pub(crate) fn sustained_rate(
    records: &[Record],
    model: &str,
    policy: &str,
    workload: &str,
    limit: f64,
) -> Option<(f64, bool)> {
    let mut before = (0.0, 0.0);
    for rate in super::grid::PROACTIVE_ONLY {
        let fits = |r: &&Record| {
            r.without.is_none()
                && (r.model.as_str(), r.policy.as_str(), r.workload.as_str())
                    == (model, policy, workload)
                && (r.reactive_rpm, r.proactive_rpm) == (0.0, rate)
        };
        let latency = mean(records.iter().filter(fits), |r| {
            r.metrics.all.secs_per_token
        });
        if latency.is_nan() {
            return None;
        }
        if latency > limit {
            let share = (limit - before.1) / (latency - before.1);
            return Some((before.0 + share * (rate - before.0), true));
        }
        before = (rate, latency);
    }
    Some((before.0, false))
}

/// The load that a policy sustains, divided by that of another.
#[derive(Clone, Copy)]
struct Ratio {
    value: f64,
    /// Ours was not reached within the rates: it is at least this.
    at_least: bool,
}

impl Ratio {
    fn show(self) -> String {
        let sign = if self.at_least { ">" } else { "" };
        format!("{sign}{:.2}×", self.value)
    }
}

/// What a policy sustains against another, for each model and proactive benchmark on which the other one gives
/// in.
fn sustained_ratios(
    subject: &Subject,
    records: &[Record],
    against: &str,
    limit: f64,
) -> Vec<Ratio> {
    let Some(own) = subject.policies.first() else {
        return Vec::new();
    };
    let mut ratios = Vec::new();
    for platform in &subject.platforms {
        let model = platform.model.as_str();
        for (_, workload) in &subject.benchmarks {
            let rate = |policy| sustained_rate(records, model, policy, &workload.name, limit);
            if let (Some((ours, reached)), Some((theirs, true))) = (rate(&own.name), rate(against))
            {
                ratios.push(Ratio {
                    value: ours / theirs,
                    at_least: !reached,
                });
            }
        }
    }
    ratios
}

fn reduction(ours: f64, theirs: f64) -> f64 {
    100.0 * (1.0 - ours / theirs)
}

/// The paper's figures of a model: reductions of the reactive mean at 1, 3 and 5 reactive requests a minute
/// beside 6 proactive ones, growth of the reactive latency from 4 to 10, improvements of the proactive mean.
struct PaperModel {
    name: &'static str,
    reductions: [f64; 3],
    growth: f64,
    proactive: [f64; 2],
}

const PAPER_MODELS: [PaperModel; 2] = [
    PaperModel {
        name: "llama-3.2-3b",
        reductions: [91.61, 93.84, 96.01],
        growth: 19.0,
        proactive: [34.4, 0.3],
    },
    PaperModel {
        name: "llama-3.1-8b",
        reductions: [96.23, 96.01, 96.70],
        growth: 49.0,
        proactive: [58.7, 6.1],
    },
];

fn lines(subject: &Subject, records: &[Record]) -> Vec<Line> {
    let Some(own) = subject.policies.first() else {
        return Vec::new();
    };
    let runs = Runs {
        records,
        own: &own.name,
    };
    let mut lines = Vec::new();
    for (against, paper) in [(IGPU, [1.2, 2.4]), (SERIAL, [1.4, 4.9])] {
        let proactive = |(class, _): &&(Class, Workload)| *class == Class::Proactive;
        let all = subject.platforms.len() * subject.benchmarks.iter().filter(proactive).count();
        for limit in SUSTAINED_SECS_PER_TOKEN
            .into_iter()
            .filter(|_| runs.has(against))
        {
            let ratios = sustained_ratios(subject, records, against, limit);
            let count = ratios.len();
            let what = format!(
                "proactive-only rate sustained at {limit:.1} s/token, against {against}, \
                 which gives in on {count} of {all}"
            );
            lines.push(range(what, paper, &ratios));
        }
    }
    for platform in &subject.platforms {
        if let Some(paper) = PAPER_MODELS.iter().find(|p| p.name == platform.model)
            && runs.has(IGPU)
        {
            lines.extend(of_model(&runs, paper));
        }
    }
    let models: Vec<&str> = subject.platforms.iter().map(|p| p.model.as_str()).collect();
    lines.extend(of_all(&runs, &models));
    lines
}

fn of_model(runs: &Runs<'_>, paper: &PaperModel) -> Vec<Line> {
    let model = paper.name;
    let reactive = |r: &Record| r.metrics.reactive.latency_secs_mean;
    let of = |policy, rate, proactive, figure: fn(&Record) -> f64| {
        mean(runs.mixed(model, policy, rate, proactive), figure)
    };
    let mut lines = Vec::new();
    for (rate, expected) in MIXED_REACTIVE.into_iter().zip(paper.reductions) {
        let theirs = of(IGPU, rate, 6.0, reactive);
        let what = format!("{model}: reactive mean latency below {IGPU}, {rate}+6 req/min");
        let ours = reduction(of(runs.own, rate, 6.0, reactive), theirs);
        let mut found = line(what, Unit::Percent, Better::More, expected, ours);
        let alone = reduction(of(runs.own, rate, 0.0, reactive), theirs);
        let _ = write!(found.ours, " (alone {})", Unit::Percent.show(alone));
        lines.push(found);
    }
    let latency = |proactive| {
        let all = MIXED_REACTIVE.map(|rate| of(runs.own, rate, proactive, reactive));
        all.iter().sum::<f64>()
    };
    lines.push(line(
        format!("{model}: growth of reactive latency from 4 to 10 proactive req/min"),
        Unit::Percent,
        Better::Less,
        paper.growth,
        100.0 * (latency(10.0) / latency(4.0) - 1.0),
    ));
    for (rate, expected) in [(1.0, paper.proactive[0]), (5.0, paper.proactive[1])] {
        let proactive = |r: &Record| r.metrics.proactive.latency_secs_mean;
        let (ours, theirs) = (
            of(runs.own, rate, 6.0, proactive),
            of(IGPU, rate, 6.0, proactive),
        );
        lines.push(line(
            format!("{model}: proactive mean latency below {IGPU}, {rate}+6 req/min"),
            Unit::Percent,
            Better::More,
            expected,
            reduction(ours, theirs),
        ));
    }
    lines
}

fn of_all(runs: &Runs<'_>, models: &[&str]) -> Vec<Line> {
    let own = runs.own;
    let mut lines = vec![line(
        "reactive prefill pending, mean of the mixed regime".to_owned(),
        Unit::Secs,
        Better::Less,
        0.048,
        runs.overall(models, own, |r| r.metrics.reactive.prefill_pending_secs),
    )];
    // Prefill counts as 100% and decoding as 46%; the paper divides by the time of activity, and speaks of
    // usage accumulated over all requests.
    let measures: [(&str, Figure); 2] = [
        ("iGPU utilisation over active time", |r| {
            r.metrics.igpu_utilisation
        }),
        ("iGPU time for the same requests", |r| r.metrics.igpu_secs),
    ];
    for (measure, igpu) in measures {
        for (against, paper) in [(SERIAL, 32.5), (IGPU, 37.1)] {
            if runs.has(against) {
                let theirs = runs.overall(models, against, igpu);
                let ours = reduction(runs.overall(models, own, igpu), theirs);
                let what = format!("{measure}, below {against}");
                lines.push(line(what, Unit::Percent, Better::More, paper, ours));
            }
        }
    }
    let energy = |r: &Record| r.metrics.joules_per_token;
    if runs.has(IGPU) {
        let theirs = runs.overall(models, IGPU, energy);
        lines.push(line(
            format!("energy per token below {IGPU}"),
            Unit::Percent,
            Better::More,
            26.8,
            reduction(runs.overall(models, own, energy), theirs),
        ));
    }
    let longest = |figure: fn(&Record) -> f64| {
        let own = runs
            .records
            .iter()
            .filter(|r| r.policy == own && r.without.is_none());
        own.map(figure).fold(0.0, f64::max)
    };
    lines.push(line(
        "mean wait of a reactive request for its first kernel, no other being before it".to_owned(),
        Unit::Secs,
        Better::Less,
        0.048,
        runs.overall(models, own, |r| r.metrics.preemption_secs_mean),
    ));
    lines.push(line(
        "longest wait of a reactive request for its first kernel, no other being before it"
            .to_owned(),
        Unit::Secs,
        Better::Less,
        0.1,
        longest(|r| r.metrics.preemption_secs_max),
    ));
    lines.push(line(
        "longest kernel".to_owned(),
        Unit::Secs,
        Better::Less,
        0.1,
        longest(|r| r.metrics.longest_kernel_secs),
    ));
    lines
}

/// The comparison as Markdown.
pub(crate) fn report(subject: &Subject, records: &[Record]) -> String {
    let soc = subject.platforms.first().map_or("", |p| p.soc.as_str());
    let lines = lines(subject, records);
    let behind = lines.iter().filter(|line| line.behind.is_some()).count();
    let own = subject.policies.first().map_or("", |p| p.name.as_str());
    let mut text = format!(
        "# {own} on {soc}, beside the paper\n\n\
         Agent.xpu v2, sections 6.2 to 6.4. Ours are simulated: NPU times are the vendor compiler's, iGPU and CPU\n\
         times follow from the anchors in the SoC file. Rates are reactive+proactive requests a minute; \"alone\" is\n\
         the reduction if there were no proactive requests at all, which no scheduler can exceed by much.\n\n\
         | figure | paper | ours | verdict |\n|---|---|---|---|\n"
    );
    for line in &lines {
        let verdict = line
            .behind
            .as_ref()
            .map_or("at least as good".to_owned(), |behind| {
                format!("**behind** {behind}")
            });
        let _ = writeln!(
            text,
            "| {} | {} | {} | {verdict} |",
            line.what, line.paper, line.ours
        );
    }
    let _ = writeln!(
        text,
        "\n{} of {} lines are at least as good.",
        lines.len() - behind,
        lines.len()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_say_how_far_behind() {
        let less = line("x".to_owned(), Unit::Secs, Better::Less, 0.1, 0.25);
        assert_eq!(less.behind.as_deref(), Some("by 0.150 s"));
        let more = line("x".to_owned(), Unit::Percent, Better::More, 19.0, 19.0);
        assert_eq!((more.behind, more.ours.as_str()), (None, "19.0%"));
        let ratio = |value, at_least| Ratio { value, at_least };
        let wide = range(
            "x".to_owned(),
            [1.2, 2.4],
            &[ratio(1.3, false), ratio(2.0, true)],
        );
        assert_eq!(wide.behind.as_deref(), Some("by 0.40× at the upper end"));
        assert_eq!(wide.ours, "1.30× to >2.00×");
        // No figure at all is not good.
        let none = line("x".to_owned(), Unit::Secs, Better::Less, 0.1, f64::NAN);
        assert!(none.behind.is_some());
    }
}
