//! The report: tables like the paper's, then line by line.

use super::super::line::{self, PaperLine};
use super::figures::STEPS;
use super::lines::Ablation;
use super::serving::{Served, System};
use super::switching::{Switch, WAYS};
use super::{Outcome, Subject, Texts};
use crate::table::Markdown;
use std::fmt::Write;

/// The whole report as Markdown.
pub(super) fn report(
    subject: &Subject,
    outcomes: &[Outcome],
    ablation: &[Ablation],
    switches: &[Switch],
    lines: &[PaperLine],
) -> String {
    let mut text = setup(subject);
    speeds(subject, outcomes, &mut text);
    ablations(ablation, &mut text);
    accepted(subject, &mut text);
    switched(switches, &mut text);
    all(lines, &mut text);
    text
}

fn setup(subject: &Subject) -> String {
    format!(
        "# Drafted decoding beside sd.npu\n\n\
         Recorded: how far drafts are accepted, over real texts ({}).\n\
         Simulated: time and energy, in virtual time, with data-sheet machines; draws are independent of each other.\n\
         Planned: when graphs are switched, computed from the same costs.\n\
         Nothing here is measured on a device. An NPU at its roofline verifies 32 rows in hardly more time than one,\n\
         while the paper measures 3.6 times as much (figure 6).\n",
        subject.records.source
    )
}

fn speeds(subject: &Subject, outcomes: &[Outcome], text: &mut String) {
    text.push_str(
        "\n## Time and energy of a token (paper: figures 10 and 11)\n\n\
         In ms from arrival to the last token by the token of the answer, and in J; one request after the other, 32 of\n\
         each data set's mean lengths. Nothing is switched. EAGLE-style: 5.5 tokens for each verification, after five\n\
         passes of a layer and the head, as the paper simulates it. sd-npu: the NPU verifies chains of 16, as that policy\n\
         has it; trees on the NPU: what no shipped policy does; ours: the iGPU verifies chains of 16. Attention is the iGPU's, and its energy not counted\n\
         beside the NPU's; `-` where nobody has published what a device draws.\n",
    );
    for (machine, hardware) in subject.machines.iter().enumerate() {
        for (model, shapes) in subject.models.iter().enumerate() {
            let _ = writeln!(text, "\n{} on {}:\n", shapes.name, hardware.name());
            let names = System::ALL.map(System::name);
            let names = ["task", "texts", "prompt, answer"].into_iter().chain(names);
            let mut table = Markdown::new(names.chain(["NPU / ours"]));
            for (data, (task, texts, _)) in subject.data.iter().enumerate() {
                let of = |system| {
                    let fits = |it: &&Outcome| {
                        (it.machine, it.model, it.data, it.system) == (machine, model, data, system)
                    };
                    outcomes.iter().find(fits).map(|it| it.served)
                };
                if let Some(row) = row((task, *texts), System::ALL.map(of)) {
                    table.row(row);
                }
            }
            text.push_str(&table.text());
        }
    }
}

/// The cells of a task; `None` unless the first system and ours served it.
fn row(
    (task, texts): (&str, Texts),
    served: [Option<Served>; System::ALL.len()],
) -> Option<Vec<String>> {
    let [Some(npu), .., Some(ours)] = served else {
        return None;
    };
    let tokens = format!("{}, {}", npu.prompt_tokens, npu.answer_tokens);
    let mut cells = vec![task.to_owned(), texts.name().to_owned(), tokens];
    cells.extend(served.iter().flatten().map(|it| {
        let joules = it.joules_per_token;
        let joules = joules.map_or("-".to_owned(), |joules| format!("{joules:.3}"));
        format!("{:.1}, {joules}", it.ms_per_token)
    }));
    cells.push(format!(
        "{:.2}× ({:.2}× decoding alone)",
        npu.ms_per_token / ours.ms_per_token,
        npu.decode_ms_per_token / ours.decode_ms_per_token,
    ));
    Some(cells)
}

fn ablations(ablations: &[Ablation], text: &mut String) {
    text.push_str(
        "\n## Ablation, ms a token (paper: table 3)\n\n\
         Kernels that have their weights inside, as the paper's have; on the first machine, with mtrag_un's prompts and\n\
         answers. The paper's +G saves the same time with drafts and without: it replaces loading after the prompt.\n\n",
    );
    let mut table = Markdown::new(["model", ""].into_iter().chain(STEPS));
    for ablation in ablations {
        for (whose, figures) in [("paper", ablation.paper), ("ours", ablation.ours)] {
            let cells = figures.map(|ms| format!("{ms:.2}"));
            let row = [ablation.model.to_string(), whose.to_owned()];
            table.row(row.into_iter().chain(cells));
        }
    }
    text.push_str(&table.text());
}

fn accepted(subject: &Subject, text: &mut String) {
    text.push_str(
        "\n## Tokens of a verification (paper: table 4, Qwen2.5-1.5B)\n\n\
         Theirs: PLD, PLD with calibration and reuse, SAM, SAM with both; their SAM has a history.\n\
         Ours counts the model's own token.\n\n",
    );
    let mut table = Markdown::new([
        "task",
        "texts",
        "theirs",
        "data",
        "PLD of 10",
        "SAM of 16",
        "with history",
        "chain of 16",
        "tree of 32",
    ]);
    for (task, texts, data) in &subject.data {
        let paper = subject.says.accepted.get(*task);
        let paper = paper.map_or(String::new(), |accepted| {
            accepted.map(|tokens| format!("{tokens:.2}")).join(", ")
        });
        let ours = [
            "PLD of 10",
            "SAM of 16",
            "SAM of 16, history",
            "chain of 16",
            "tree of 32",
        ]
        .map(|method| {
            let record = subject.records.find(data, method);
            record.map_or("-".to_owned(), |it| {
                format!("{:.2}", it.tokens_per_verification())
            })
        });
        let row = [*task, texts.name(), &*paper, *data].map(str::to_owned);
        table.row(row.into_iter().chain(ours));
    }
    text.push_str(&table.text());
}

fn switched(switches: &[Switch], text: &mut String) {
    text.push_str(
        "\n## Switching graphs (paper: 3.2)\n\n\
         When decoding can begin, as a share of the prompt alone; loads read 4.2 GB/s. Best: the best of all plans.\n\n",
    );
    let names = ["machine", "model", "prompt", "alone, ms"].map(str::to_owned);
    let names = names
        .into_iter()
        .chain(WAYS.map(|way| format!("{way:?}").to_lowercase()));
    let mut table = Markdown::new(names.chain(["best".to_owned()]));
    for it in switches {
        let row = [
            it.machine.to_string(),
            it.model.to_string(),
            (it.chunks * 256).to_string(),
            format!("{:.0}", it.prefill_us / 1e3),
        ];
        let ratios = WAYS.map(|way| it.ratio(way));
        let ratios = ratios.into_iter().chain([it.best_us / it.prefill_us]);
        let ratios = ratios.map(|ratio| format!("{ratio:.2}"));
        table.row(row.into_iter().chain(ratios));
    }
    text.push_str(&table.text());
}

fn all(lines: &[PaperLine], text: &mut String) {
    let _ = write!(
        text,
        "\n## Line by line\n\n{}\n{}",
        line::table(lines),
        line::count(lines)
    );
}
