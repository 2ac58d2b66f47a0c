//! `cargo xtask evaluate --paper sd-npu`: the evaluation of sd.npu (section 4) compared with ours.
//!
//! Acceptance of drafts was recorded over real texts (`cargo xtask bench-drafts`); its benefit is simulated, on
//! machines and models from their data sheets (`hardware`), one request at a time (`serving`) and in mixed traces; the
//! times of switching kernels are planned and computed (`switching`). `lines` compares the results with the paper's
//! figures (`figures`), `tables` prints everything.

mod best_plan;
mod figures;
mod hardware;
mod lines;
mod mixed;
mod serving;
mod switching;
mod tables;

use super::line::PaperLine;
use crate::output;
use anyhow::Result;
use figures::{Figures, TASKS};
use hardware::{Hardware, MODELS, ModelShapes};
use heg_sim::DraftRecords;
use rayon::prelude::*;
use serde::Serialize;
use serving::{Served, System};
use std::path::Path;

/// Machines: the paper's, as far as its anchors are known, and the one for which the project's kernels are compiled.
const MACHINES: [&str; 2] = ["snapdragon-8-gen3", "core-ultra-5-125h"];

/// The subject of the evaluation.
pub(super) struct Subject {
    /// The paper's figures.
    says: Figures,
    machines: Vec<Hardware>,
    models: Vec<ModelShapes>,
    records: DraftRecords,
    /// Data sets: a task of the paper, the source of the texts, and the name in the records.
    data: Vec<(&'static str, Texts, &'static str)>,
}

/// The source of the answers' texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Texts {
    /// Correct answers of the tasks that agent-30m was trained for; it gives them itself in 94 of 100 cases.
    AgentTasks,
    /// Reference answers of public data sets, by people and other models.
    References,
}

/// A system's figures for the answers of a data set.
pub(super) struct Outcome {
    machine: usize,
    model: usize,
    data: usize,
    system: System,
    served: Served,
}

impl Subject {
    fn whole() -> Result<Self> {
        let tasks = TASKS.iter().flat_map(|task| {
            let [own, references] = task.data;
            [
                (task.name, Texts::AgentTasks, own),
                (task.name, Texts::References, references),
            ]
        });
        Ok(Self {
            says: figures::figures()?,
            machines: MACHINES
                .iter()
                .map(|name| Hardware::of(name))
                .collect::<Result<_>>()?,
            models: MODELS.to_vec(),
            records: DraftRecords::shipped()?,
            data: tasks.collect(),
        })
    }

    /// Serves with every system on every machine with every model and data set.
    fn serve(&self) -> Result<Vec<Outcome>> {
        let mut cases = Vec::new();
        for machine in 0..self.machines.len() {
            for model in 0..self.models.len() {
                for data in 0..self.data.len() {
                    cases.extend(System::ALL.map(|system| (machine, model, data, system)));
                }
            }
        }
        let serve = |(machine, model, data, system): (usize, usize, usize, System)| {
            let hardware = &self.machines[machine];
            let shapes = self.models[model];
            let served =
                serving::serve(hardware, shapes, system, &self.records, self.data[data].2)?;
            Ok(Outcome {
                machine,
                model,
                data,
                system,
                served,
            })
        };
        cases.into_par_iter().map(serve).collect()
    }
}

#[derive(Serialize)]
struct Summary<'a> {
    paper: &'static str,
    acceptance: &'a str,
    lines: &'a [PaperLine],
}

/// Evaluates, prints, and writes the results into a folder.
pub(super) fn run(out: &Path) -> Result<()> {
    let subject = Subject::whole()?;
    let (report, lines) = evaluate(&subject)?;
    let summary = Summary {
        paper: "sd.npu",
        acceptance: &subject.records.source,
        lines: &lines,
    };
    let summary = output::pretty(&summary)?;
    output::write_all(out, [("summary.json", &*summary), ("report.md", &*report)])?;
    print!("{report}");
    println!("wrote {}", out.display());
    Ok(())
}

/// The report, and its lines.
fn evaluate(subject: &Subject) -> Result<(String, Vec<PaperLine>)> {
    let outcomes = subject.serve()?;
    let switches = switching::switches(subject);
    let ablation = lines::ablation(subject, &outcomes);
    let mixed = mixed::mixed(&subject.records)?;
    let mut all = lines::ratios(subject, &outcomes);
    all.extend(lines::ablated(&ablation));
    all.extend(lines::acceptance(subject));
    all.extend(lines::calibration(subject));
    all.extend(lines::switching(subject, &switches));
    all.extend(lines::added_by_switching(subject, &ablation));
    all.extend(mixed);
    let report = tables::report(subject, &outcomes, &ablation, &switches, &all);
    Ok((report, all))
}

#[cfg(test)]
mod tests;
