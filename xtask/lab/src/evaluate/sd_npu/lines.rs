//! The results, line by line: the paper's figure, ours, and whether ours is at least as good.

use super::super::line::{Better, Figure, Origin, PaperLine, Standing, Unit};
use super::figures::{ABLATION_DATA, Figures, STEPS, TASKS};
use super::serving::{Served, System};
use super::switching::{Switch, Way, switch};
use super::{Outcome, Subject, Texts};
use std::ops::Range;

const FEWER: &str =
    "these drafts are accepted less far than the paper's (tables of acceptance), and time follows";

/// A comparison of two systems by a figure that should be low.
struct Comparison {
    what: &'static str,
    ours: System,
    against: System,
    paper: [f64; 2],
    figure: fn(&Served) -> Option<f64>,
    standing: Standing,
    /// The only task that it is about.
    task: Option<&'static str>,
}

fn comparisons(says: &Figures) -> Vec<Comparison> {
    let speed: fn(&Served) -> Option<f64> = |it| Some(it.ms_per_token);
    let energy: fn(&Served) -> Option<f64> = |it| it.joules_per_token;
    let mut all = Vec::new();
    for gain in says.gains.iter() {
        let against = gain.against;
        let of = |what, ours, figure, standing| Comparison {
            what,
            ours,
            against,
            paper: gain.speed,
            figure,
            standing,
            task: None,
        };
        all.push(of("speed", System::Ours, speed, Standing::Counts));
        // The watts of a device are constants, so that energy is time by another name.
        all.push(Comparison {
            paper: gain.energy,
            ..of("energy", System::Ours, energy, Standing::Repeats)
        });
        if against == System::Npu {
            let decoding: fn(&Served) -> Option<f64> = |it| Some(it.decode_ms_per_token);
            // A sentence about summaries on the paper's phones.
            all.push(Comparison {
                paper: *says.decoding,
                task: Some("summary"),
                ..of("decoding alone", System::Ours, decoding, Standing::Counts)
            });
            for (what, system) in [
                ("speed under `sd-npu`,", System::NpuChains),
                ("speed with trees on the NPU,", System::NpuTrees),
            ] {
                all.push(of(what, system, speed, Standing::Ours));
            }
        }
    }
    all
}

/// Speed and energy against each baseline.
pub(super) fn ratios(subject: &Subject, outcomes: &[Outcome]) -> Vec<PaperLine> {
    let mut lines = Vec::new();
    for (machine, hardware) in subject.machines.iter().enumerate() {
        for texts in [Texts::AgentTasks, Texts::References] {
            for it in comparisons(&subject.says) {
                let of = |system| of_system(subject, outcomes, (machine, texts, system), it.task);
                let ratio = |(ours, theirs): (&Outcome, &Outcome)| {
                    Some((it.figure)(&theirs.served)? / (it.figure)(&ours.served)?)
                };
                let pairs = of(it.ours).into_iter().zip(of(it.against));
                let ratios: Vec<f64> = pairs.filter_map(ratio).collect();
                if ratios.is_empty() {
                    // The power of one of the devices is not published, or the texts have no such task.
                    continue;
                }
                let (what, against) = (it.what, it.against.name());
                let name = format!(
                    "{what} against {against}: {}, {}",
                    hardware.name(),
                    texts.name()
                );
                let line = PaperLine::gain(name, it.paper, &ratios, Origin::Simulated)
                    .missed_since(&why(subject, texts, &it))
                    .beyond_since(FLATTERS);
                lines.push(line.standing(standing(machine, texts, it.standing)));
            }
        }
    }
    lines
}

const FLATTERS: &str = "a kernel of 32 rows takes hardly longer than one of a row at a roofline, where the paper measures 3.6 times";

/// The standing of a line: the paper has phones, and answers of public data sets.
fn standing(machine: usize, texts: Texts, on_its_own: Standing) -> Standing {
    match (machine, texts, on_its_own) {
        (0, Texts::References, own) => own,
        (0, Texts::AgentTasks, Standing::Counts) => Standing::Repeats,
        (0, Texts::AgentTasks, own) => own,
        _ => Standing::Ours,
    }
}

/// The reason why a ratio to a system differs from the paper's.
fn why(subject: &Subject, texts: Texts, it: &Comparison) -> String {
    let tokens = |method| -> Vec<f64> {
        let data = subject.data.iter().filter(|(_, other, _)| *other == texts);
        let records = data.filter_map(|(_, _, data)| subject.records.find(data, method));
        records.map(|it| it.tokens_per_verification()).collect()
    };
    let drafted = match it.ours {
        System::NpuTrees => tokens("tree of 32"),
        _ => tokens("chain of 16"),
    };
    let [least, most] = Figure::ends(&drafted);
    match it.against {
        System::Sam => {
            let gains = drafted.iter().zip(tokens("SAM of 16, history"));
            let gains: Vec<f64> = gains.map(|(ours, theirs)| ours / theirs).collect();
            let [least, most] = Figure::ends(&gains);
            format!(
                "{least:.2} to {most:.2} times the tokens of a verification, and prompts take the same time"
            )
        }
        System::Eagle => format!(
            "5.5 tokens of a verification are the paper's assumption for EAGLE with any text; ours are {least:.2} to {most:.2}, \
             theirs 3.8 to 5.5"
        ),
        System::Cpu => format!(
            "a verification gives {least:.2} to {most:.2} tokens, prompts take the same time, and this CPU reads weights as \
             fast as the NPU"
        ),
        System::Npu | System::Ours | System::NpuChains | System::NpuTrees => format!(
            "a verification gives {least:.2} to {most:.2} tokens of these texts, 3.8 to 5.5 of the paper's; without prompts, which \
             take the same time, that is the bound"
        ),
    }
}

/// The outcomes of a system on a machine, by model and data.
fn of_system<'o>(
    subject: &Subject,
    outcomes: &'o [Outcome],
    (machine, texts, system): (usize, Texts, System),
    only: Option<&str>,
) -> Vec<&'o Outcome> {
    let fits = |it: &&Outcome| {
        let (task, source, _) = subject.data[it.data];
        (it.machine, it.system) == (machine, system)
            && source == texts
            && only.is_none_or(|only| only == task)
    };
    outcomes.iter().filter(fits).collect()
}

/// The ablation of a model: times per token in ms, the paper's and ours, by [`STEPS`].
pub(super) struct Ablation {
    pub(super) model: &'static str,
    pub(super) paper: [f64; STEPS.len()],
    pub(super) ours: [f64; STEPS.len()],
    /// The time without drafts, and with both graphs loaded all the time.
    pub(super) resident_ms: f64,
}

/// The ablation on the first machine, with kernels that contain their weights: switched after the prompt, or
/// progressively; without drafts, with an automaton's, with ours.
pub(super) fn ablation(subject: &Subject, outcomes: &[Outcome]) -> Vec<Ablation> {
    let mut ablations = Vec::new();
    for (model, shapes) in subject.models.iter().enumerate() {
        let Some(paper) = subject.says.ablation.get(shapes.name) else {
            continue;
        };
        let of = |system| {
            let fits = |it: &&Outcome| {
                (it.machine, it.model, it.system) == (0, model, system)
                    && subject.data[it.data].2 == ABLATION_DATA
            };
            outcomes.iter().find(fits).map(|it| it.served)
        };
        let systems = [System::Npu, System::Sam, System::NpuChains].map(of);
        let [Some(npu), Some(sam), Some(ours)] = systems else {
            continue;
        };
        let chunks = npu.prompt_tokens.div_ceil(super::hardware::LONG_TOKENS);
        let switched = switch(&subject.machines[0], *shapes, chunks as usize);
        let waits = |way| {
            let us = (switched.ratio(way) - 1.0) * switched.prefill_us;
            us / 1e3 / f64::from(npu.answer_tokens)
        };
        let (sync, progressive) = (waits(Way::Sync), waits(Way::Progressive));
        ablations.push(Ablation {
            model: shapes.name,
            paper: *paper,
            ours: [
                npu.ms_per_token + sync,
                npu.ms_per_token + progressive,
                sam.ms_per_token + sync,
                sam.ms_per_token + progressive,
                ours.ms_per_token + progressive,
            ],
            resident_ms: npu.ms_per_token,
        });
    }
    ablations
}

/// The gain of each step of the ablation over the NPU alone.
pub(super) fn ablated(ablations: &[Ablation]) -> Vec<PaperLine> {
    let mut lines = Vec::new();
    for ablation in ablations {
        for (step, name) in STEPS.iter().enumerate().skip(1) {
            let paper = ablation.paper[0] / ablation.paper[step];
            let ours = ablation.ours[0] / ablation.ours[step];
            let why = match *name {
                "+G" => "the loads take less time here, by the token of an answer",
                _ => FEWER,
            };
            let name = format!("ablation of {}: {name} against NPU", ablation.model);
            let line = PaperLine::compared(name, Unit::Times, Better::More, [paper, ours]);
            lines.push(line.missed_since(why).beyond_since(FLATTERS));
        }
    }
    lines
}

/// Accepted tokens, compared with simpler drafting methods. The paper has no such lines: its table 4 compares a drafter
/// with the same one after calibration and with reuse.
pub(super) fn acceptance(subject: &Subject) -> Vec<PaperLine> {
    let mut lines = Vec::new();
    for simple in ["PLD of 10", "SAM of 16", "SAM of 16, history"] {
        for method in ["chain of 16", "tree of 32"] {
            for (kind, texts) in [Texts::AgentTasks, Texts::References]
                .into_iter()
                .enumerate()
            {
                let ratio = |data: &str| {
                    let tokens = |method| {
                        let record = subject.records.find(data, method)?;
                        Some(record.tokens_per_verification())
                    };
                    Some(tokens(method)? / tokens(simple)?)
                };
                let ratios = TASKS.iter().filter_map(|task| ratio(task.data[kind]));
                let ratios: Vec<f64> = ratios.collect();
                let name = format!(
                    "accepted tokens, {method} against {simple}: {}",
                    texts.name()
                );
                let ours = Figure::Range(Figure::ends(&ratios));
                lines.push(PaperLine {
                    origin: Origin::Recorded,
                    ..PaperLine::beside(name, Unit::Times, ours)
                });
            }
        }
    }
    lines
}

/// The gain of calibration for our drafts, over the data with calibrated records; empty if there are none.
pub(super) fn calibration(subject: &Subject) -> Vec<PaperLine> {
    let mut lines = Vec::new();
    for method in ["chain of 16", "tree of 32"] {
        let calibrated = format!("{method}, calibrated");
        let ratio = |(_, _, data): &(&str, Texts, &str)| {
            let tokens = |method| {
                let record = subject.records.find(data, method)?;
                Some(record.tokens_per_verification())
            };
            Some(tokens(&calibrated)? / tokens(method)?)
        };
        let ratios: Vec<f64> = subject.data.iter().filter_map(ratio).collect();
        if ratios.is_empty() {
            continue;
        }
        let name = format!("accepted tokens, {calibrated}, against {method}");
        let why = "the paper's are calibration and reuse together; a model that was taught answers alone finds little likely \
                   in prompts that it says later";
        let paper = *subject.says.calibration_gains;
        let line = PaperLine::gain(name, paper, &ratios, Origin::Recorded);
        lines.push(line.missed_since(why));
    }
    lines
}

/// The cost of switching.
pub(super) fn switching(subject: &Subject, switches: &[Switch]) -> Vec<PaperLine> {
    let mut lines = Vec::new();
    for (machine, hardware) in subject.machines.iter().enumerate() {
        let name = hardware.name();
        let of = |chunks: Range<usize>| {
            let here = switches.iter().filter(move |it| it.machine == name);
            here.filter(move |it| chunks.contains(&it.chunks))
        };
        let best: Vec<f64> = of(0..usize::MAX).map(Switch::against_best).collect();
        lines.push(at_most(
            format!("progressive switching against the best of all plans: {name}"),
            (None, 1.1),
            &best,
            "six or seven blocks, up to eight chunks".to_owned(),
        ));
        for (prompts, chunks) in [("256 and 512", 1..4), ("1024 and 2048", 4..9)] {
            let ratios = of(chunks.clone()).map(|it| it.ratio(Way::Progressive));
            let ratios: Vec<f64> = ratios.collect();
            let best = of(chunks).map(|it| it.best_us / it.prefill_us);
            let best: Vec<f64> = best.collect();
            let [least, most] = Figure::ends(&best);
            let line = at_most(
                format!("progressive switching against prompts of {prompts} tokens alone: {name}"),
                (Some(1.0), 1.05),
                &ratios,
                format!(
                    "no plan does better than {least:.2} to {most:.2}: a block in its short form reads its weights eight times \
                     a chunk, and loads take as long as they do"
                ),
            );
            lines.push(match machine {
                0 => line.standing(Standing::Counts),
                _ => line,
            });
        }
    }
    lines
}

/// The time that loading the short graphs after the prompt adds to a request, without drafts. The paper says for one model
/// what that is, and not with which prompts and answers.
pub(super) fn added_by_switching(subject: &Subject, ablations: &[Ablation]) -> Vec<PaperLine> {
    let (model, paper) = (*subject.says.added_by_switching).clone();
    let found = ablations.iter().filter(|it| it.model == model);
    let line = found.map(|it| {
        let name = format!("time of a request with graphs switched after its prompt against both resident, {model}");
        let resident = it.resident_ms;
        let line = PaperLine {
            origin: Origin::Planned,
            ..PaperLine::compared(name, Unit::Times, Better::More, [paper, it.ours[0] / resident])
        };
        line.missed_since(
            "loads read 4.2 GB/s here, the sequential rate of the flash, and no more work of a driver; and prompts and answers \
             are longer",
        )
    });
    line.collect()
}

/// A ratio that should be at most a bound, beside the paper's figure.
fn at_most(
    name: String,
    (paper, bound): (Option<f64>, f64),
    ours: &[f64],
    why: String,
) -> PaperLine {
    let [least, most] = Figure::ends(ours);
    let name = format!("{name}, at most {bound:.2} wanted");
    PaperLine {
        origin: Origin::Planned,
        paper: paper.map(Figure::One),
        ..PaperLine::beside(name, Unit::Times, Figure::Range([least, most]))
    }
    .wanted(most <= bound, why)
}

impl Texts {
    /// Name in lines and tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AgentTasks => "agent-30m's tasks",
            Self::References => "references",
        }
    }
}
