//! The report of bench-serve: figures of all systems side by side for each load, and the project's goals.

use super::systems::PLAIN;
use crate::goal::Goal;
use crate::table::{self, Column};
use heg_workload::{ClassFigures, EngineFigures, Figures};
use serde_json::{Value, json};
use std::fmt::Write;
use std::iter;

/// All measurements.
#[derive(Default)]
pub(super) struct Report {
    /// Requests per minute that GenAI sustains.
    pub(super) sustained_rpm: Option<f64>,
    pub(super) loads: Vec<LoadReport>,
    pub(super) gap: GapReport,
}

/// A reactive answer during a proactive prompt of 4 000 tokens.
#[derive(Default)]
pub(super) struct GapReport {
    /// Results by system, as in [`LoadReport::runs`].
    pub(super) runs: Vec<(String, Figures)>,
    /// The engine's figures, from our server's metrics.
    pub(super) engine: Option<EngineFigures>,
    /// Time from the start of our server's process until it is ready, in ms.
    pub(super) ready_ms: Option<f64>,
}

/// The results of one load.
pub(super) struct LoadReport {
    /// Share of the rate that GenAI sustains.
    pub(super) load: f64,
    pub(super) requests_per_minute: f64,
    /// Results by system, in the order of measurement; [`REACTIVE_ONLY`] precedes `heg`.
    pub(super) runs: Vec<(String, Figures)>,
    /// The engine's figures, from our server's metrics.
    pub(super) engine: Option<EngineFigures>,
}

/// The ratio of one of our figures to another, and its goal.
struct Ratio {
    title: &'static str,
    over: &'static str,
    figure: fn(&Figures) -> f64,
    goal: Goal,
}

/// The ratio of mean latencies of reactive requests, to be at most `at_most` times that of `over`.
const fn mean(over: &'static str, at_most: f64) -> Ratio {
    Ratio {
        title: "reactive end to end, mean",
        over,
        figure: |f| f.reactive.latency_secs_mean,
        goal: Goal::AtMost(at_most),
    }
}

/// Like [`mean`], for the 90th percentile.
const fn p90(over: &'static str, at_most: f64) -> Ratio {
    Ratio {
        title: "reactive end to end, P90",
        figure: |f| f.reactive.latency_secs_p90,
        ..mean(over, at_most)
    }
}

/// The name of our server's runs with reactive requests alone.
pub(super) const REACTIVE_ONLY: &str = "heg-reactive";

/// Goals at every load: the cost of background work to a person, and the gain by drafts.
const AT_ALL: [Ratio; 4] = [
    mean(REACTIVE_ONLY, 1.25),
    p90(REACTIVE_ONLY, 1.25),
    mean(PLAIN, 1.0),
    Ratio {
        title: "proactive tokens per second",
        over: PLAIN,
        figure: |f| f.proactive.tokens_per_s(),
        goal: Goal::AtLeast(1.0),
    },
];

/// Goals at a load of `BUSY` or more.
const AT_BUSY: [Ratio; 3] = [
    mean("genai", 0.35),
    p90("genai", 0.35),
    Ratio {
        title: "reactive first token, mean",
        over: "genai",
        figure: |f| f.reactive.ttft_secs_mean,
        goal: Goal::AtMost(0.09),
    },
];

/// Goals at loads that GenAI cannot sustain.
const AT_OVERLOAD: [Ratio; 1] = [Ratio {
    title: "proactive tokens per second",
    over: "genai",
    figure: |f| f.proactive.tokens_per_s(),
    goal: Goal::AtLeast(1.2),
}];

/// Goals at lower loads.
const AT_SUSTAINED: [Ratio; 1] = [Ratio {
    title: "proactive end to end, mean",
    over: "genai",
    figure: |f| f.proactive.latency_secs_mean,
    goal: Goal::AtMost(1.5),
}];

/// The goal for the additional gap, beyond an iteration, that a proactive prompt may cause, in ms.
const GAP_MS: Goal = Goal::AtMost(20.0);

/// The goal for the time in the scheduler and in carrying out its actions, in µs per launch.
const DISPATCH_US: Goal = Goal::AtMost(20.0);

/// The goal for the time from the start of our server's process until it is ready, in ms.
const READY_MS: Goal = Goal::AtMost(150.0);

const BUSY: f64 = 0.8;
const OVERLOAD: f64 = 1.2;

type Line = (&'static str, fn(&Figures) -> String);

const LINES: [Line; 12] = [
    ("requests", |f| {
        counts(f.reactive.requests, f.proactive.requests)
    }),
    ("failed", |f| counts(f.reactive.failed, f.proactive.failed)),
    ("ended early", |f| {
        counts(f.reactive.short, f.proactive.short)
    }),
    ("reactive end to end, mean", |f| {
        seconds(&f.reactive, f.reactive.latency_secs_mean)
    }),
    ("                    P90", |f| {
        seconds(&f.reactive, f.reactive.latency_secs_p90)
    }),
    ("         first token, mean", |f| {
        seconds(&f.reactive, f.reactive.ttft_secs_mean)
    }),
    ("                      P90", |f| {
        seconds(&f.reactive, f.reactive.ttft_secs_p90)
    }),
    ("         per token after that", |f| {
        millis(&f.reactive, f.reactive.tpot_secs_mean)
    }),
    ("         longest gap", |f| {
        millis(&f.reactive, f.reactive.gap_secs_max)
    }),
    ("proactive end to end, mean", |f| {
        seconds(&f.proactive, f.proactive.latency_secs_mean)
    }),
    ("                     P90", |f| {
        seconds(&f.proactive, f.proactive.latency_secs_p90)
    }),
    ("          tokens per second", |f| {
        shown(&f.proactive, format!("{:.1}", f.proactive.tokens_per_s()))
    }),
];

/// The lines about a reactive answer beside a proactive prompt.
const GAP_LINES: [Line; 3] = [
    ("longest gap between tokens", |f| {
        millis(&f.reactive, f.reactive.gap_secs_max)
    }),
    ("per token", |f| {
        millis(&f.reactive, f.reactive.tpot_secs_mean)
    }),
    ("first token of the prompt", |f| {
        seconds(&f.proactive, f.proactive.ttft_secs_mean)
    }),
];

impl Report {
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        if let Some(rpm) = self.sustained_rpm {
            let _ = writeln!(text, "GenAI sustains {rpm:.1} requests a minute\n");
        }
        for load in &self.loads {
            let rpm = load.requests_per_minute;
            let (reactive, proactive) = (rpm / 3.0, rpm * 2.0 / 3.0);
            let _ = writeln!(
                text,
                "load {}: {reactive:.1} reactive and {proactive:.1} proactive requests a minute\n",
                load.load
            );
            side_by_side(&mut text, &load.runs, &LINES);
            text.push('\n');
            for (ratio, value) in load.ratios() {
                let title = format!("{}, heg over {}", ratio.title, ratio.over);
                text += &judged(&title, format!("{value:.2}"), ratio.goal.verdict(value));
            }
            text.push('\n');
            if let Some(engine) = load.engine {
                let _ = writeln!(text, "{engine}");
            }
        }
        text.push_str(&self.gap.table());
        text
    }

    pub(super) fn json(&self) -> Value {
        let loads = self.loads.iter().map(|load| {
            let goals = load.ratios().into_iter().map(|(ratio, value)| {
                json!({
                    "figure": ratio.title,
                    "over": ratio.over,
                    "ratio": value,
                    "goal_met": ratio.goal.is_met(value),
                })
            });
            json!({
                "load": load.load,
                "requests_per_minute": load.requests_per_minute,
                "systems": by_system(&load.runs),
                "goals": goals.collect::<Vec<_>>(),
                "engine": load.engine,
            })
        });
        json!({
            "sustained_rpm": self.sustained_rpm,
            "loads": loads.collect::<Vec<_>>(),
            "gap": by_system(&self.gap.runs),
            "gap_beyond_ms": self.gap.beyond_ms(),
            "gap_engine": self.gap.engine,
            "ready_ms": self.gap.ready_ms,
        })
    }
}

impl GapReport {
    fn table(&self) -> String {
        let mut text = String::new();
        if self.runs.is_empty() {
            return text;
        }
        text.push_str("a reactive answer while a proactive prompt of 4 000 tokens comes\n\n");
        side_by_side(&mut text, &self.runs, &GAP_LINES);
        text.push('\n');
        let dispatch_us = self.engine.map(|engine| engine.dispatch_us_per_launch);
        let figures = [
            (
                "longest gap beyond an iteration alone, ms",
                self.beyond_ms(),
                GAP_MS,
            ),
            (
                "scheduling and dispatch, µs per launch",
                dispatch_us,
                DISPATCH_US,
            ),
            ("process start to ready, ms", self.ready_ms, READY_MS),
        ];
        for (title, value, goal) in figures {
            if let Some(value) = value {
                text += &judged(title, format!("{value:.1}"), goal.verdict(value));
            }
        }
        text
    }

    /// Time by which our server's longest gap between tokens exceeds a decode iteration without background work.
    fn beyond_ms(&self) -> Option<f64> {
        let reactive = |name: &str| {
            let found = self.runs.iter().find(|(system, _)| system == name);
            found.map(|(_, figures)| figures.reactive)
        };
        let (beside, alone) = (reactive("heg")?, reactive(REACTIVE_ONLY)?);
        Some((beside.gap_secs_max - alone.tpot_secs_mean) * 1e3)
    }
}

impl LoadReport {
    /// The ratios with goals at this load, if both systems answered every request: leaving some out would flatter.
    fn ratios(&self) -> Vec<(&'static Ratio, f64)> {
        let run = |name: &str| {
            let found = self.runs.iter().find(|(system, _)| system == name);
            let whole = |f: &&Figures| f.reactive.failed + f.proactive.failed == 0;
            found.map(|(_, figures)| figures).filter(whole)
        };
        let mut wanted: Vec<&'static Ratio> = AT_ALL.iter().collect();
        if self.load >= BUSY {
            wanted.extend(&AT_BUSY);
        }
        match self.load >= OVERLOAD {
            true => wanted.extend(&AT_OVERLOAD),
            false => wanted.extend(&AT_SUSTAINED),
        }
        let value = |ratio: &'static Ratio| {
            let ours = (ratio.figure)(run("heg")?);
            let other = (ratio.figure)(run(ratio.over)?);
            (other > 0.0).then_some((ratio, ours / other))
        };
        wanted.into_iter().filter_map(value).collect()
    }
}

fn side_by_side(text: &mut String, runs: &[(String, Figures)], lines: &[Line]) {
    let mut columns = vec![Column::left(0, 32)];
    columns.extend(runs.iter().map(|_| Column::right(0, 14)));
    let names = runs.iter().map(|(system, _)| system.clone());
    *text += &table::line(&columns, iter::once(String::new()).chain(names));
    for (title, show) in lines {
        let cells = runs.iter().map(|(_, figures)| show(figures));
        *text += &table::line(&columns, iter::once((*title).to_owned()).chain(cells));
    }
}

/// A figure and whether it meets its goal.
fn judged(title: &str, figure: String, verdict: String) -> String {
    let columns = [Column::left(0, 48), Column::right(0, 7), Column::left(2, 0)];
    table::line(&columns, [title, &figure, &verdict])
}

fn by_system(runs: &[(String, Figures)]) -> Value {
    let entry = |(system, figures): &(String, Figures)| (system.clone(), json!(figures));
    Value::Object(runs.iter().map(entry).collect())
}

fn counts(reactive: usize, proactive: usize) -> String {
    format!("{reactive} + {proactive}")
}

fn seconds(class: &ClassFigures, secs: f64) -> String {
    shown(class, format!("{secs:.2} s"))
}

fn millis(class: &ClassFigures, secs: f64) -> String {
    shown(class, format!("{:.1} ms", secs * 1e3))
}

/// The figure; a dash if no request was answered.
fn shown(class: &ClassFigures, figure: String) -> String {
    match class.requests > class.failed {
        true => figure,
        false => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heg_workload::WaitFigures;

    fn figures(latency_secs: f64, proactive_tokens_per_s: f64) -> Figures {
        Figures {
            reactive: ClassFigures {
                requests: 12,
                latency_secs_mean: latency_secs,
                latency_secs_p90: 2.0 * latency_secs,
                ttft_secs_mean: latency_secs / 4.0,
                ttft_secs_p90: latency_secs / 2.0,
                tpot_secs_mean: 0.06,
                gap_secs_max: 0.4,
                ..ClassFigures::default()
            },
            proactive: ClassFigures {
                requests: 24,
                latency_secs_mean: 30.0,
                latency_secs_p90: 60.0,
                prompt_tokens_per_s: proactive_tokens_per_s,
                ..ClassFigures::default()
            },
        }
    }

    fn report() -> Report {
        let load = |load: f64| {
            let mut alone = figures(7.0, 0.0);
            alone.proactive = ClassFigures::default();
            LoadReport {
                load,
                requests_per_minute: 9.0 * load,
                runs: vec![
                    (REACTIVE_ONLY.to_owned(), alone),
                    ("heg".to_owned(), figures(8.4, 100.0)),
                    ("genai".to_owned(), figures(50.0, 90.0)),
                ],
                engine: Some(EngineFigures {
                    preempting: WaitFigures {
                        requests: 9,
                        median_ms: 2.0 * load,
                        p90_ms: 5.0,
                        max_ms: 31.0,
                    },
                    kernel_ms_max: 33.0,
                    stretch_ms_max: 35.0,
                    launches: 100,
                    dispatch_us_per_launch: 17.25,
                    ..EngineFigures::default()
                }),
            }
        };
        Report {
            sustained_rpm: Some(9.0),
            loads: [0.5, 1.2].map(load).into(),
            gap: GapReport {
                runs: vec![
                    (REACTIVE_ONLY.to_owned(), figures(7.9, 0.0)),
                    ("heg".to_owned(), figures(8.0, 200.0)),
                ],
                engine: load(1.2).engine,
                ready_ms: Some(6.5),
            },
        }
    }

    #[test]
    fn the_table_has_all_systems_and_the_goals_of_its_loads() {
        insta::assert_snapshot!(report().table());
    }

    #[test]
    fn ratios_need_both_systems_and_all_answers() {
        let mut report = report();
        report.loads[1].runs[2].1.proactive.failed = 1;
        let json = report.json();
        let goals = |load: usize| json["loads"][load]["goals"].as_array().map(Vec::len);
        assert_eq!((goals(0), goals(1)), (Some(3), Some(2)));
        assert_eq!(json["loads"][0]["goals"][0]["goal_met"], true);
    }
}
