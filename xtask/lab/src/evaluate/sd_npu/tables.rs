//! The report: tables like the paper's, then line by line.

use super::super::line::PaperLine;
use super::super::output;
use super::figures::STEPS;
use super::lines::Ablation;
use super::serving::{Served, System};
use super::switching::{Switch, WAYS};
use super::{Outcome, Subject, Texts};
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
         passes of a layer and the head, as the paper simulates it. Attention is the iGPU's, and its energy not counted\n\
         beside the NPU's; `-` where nobody has published what a device draws.\n",
    );
    for (machine, hardware) in subject.machines.iter().enumerate() {
        for (model, shapes) in subject.models.iter().enumerate() {
            let _ = writeln!(text, "\n{} on {}:\n", shapes.name, hardware.name());
            let names = System::ALL.map(System::name).join(" | ");
            let _ = writeln!(
                text,
                "| task | texts | prompt, answer | {names} | NPU / ours |"
            );
            let _ = writeln!(text, "|---{}|", "|---".repeat(3 + System::ALL.len()));
            for (data, (task, texts, _)) in subject.data.iter().enumerate() {
                let of = |system| {
                    let fits = |it: &&Outcome| {
                        (it.machine, it.model, it.data, it.system) == (machine, model, data, system)
                    };
                    outcomes.iter().find(fits).map(|it| it.served)
                };
                row(text, (task, *texts), System::ALL.map(of));
            }
        }
    }
}

fn row(
    text: &mut String,
    (task, texts): (&str, Texts),
    served: [Option<Served>; System::ALL.len()],
) {
    let [Some(npu), .., Some(ours), _] = served else {
        return;
    };
    let cells = served.iter().flatten().map(|it| {
        let joules = it.joules_per_token;
        let joules = joules.map_or("-".to_owned(), |joules| format!("{joules:.3}"));
        format!("{:.1}, {joules}", it.ms_per_token)
    });
    let cells: Vec<String> = cells.collect();
    let _ = writeln!(
        text,
        "| {task} | {} | {}, {} | {} | {:.2}× ({:.2}× decoding alone) |",
        texts.name(),
        npu.prompt_tokens,
        npu.answer_tokens,
        cells.join(" | "),
        npu.ms_per_token / ours.ms_per_token,
        npu.decode_ms_per_token / ours.decode_ms_per_token,
    );
}

fn ablations(ablations: &[Ablation], text: &mut String) {
    let _ = write!(
        text,
        "\n## Ablation, ms a token (paper: table 3)\n\n\
         Kernels that have their weights inside, as the paper's have; on the first machine, with mtrag_un's prompts and\n\
         answers. The paper's +G saves the same time with drafts and without: it replaces loading after the prompt.\n\n\
         | model | | {} |\n|---|---{}|\n",
        STEPS.join(" | "),
        "|---".repeat(STEPS.len())
    );
    for ablation in ablations {
        for (whose, figures) in [("paper", ablation.paper), ("ours", ablation.ours)] {
            let cells = figures.map(|ms| format!("{ms:.2}")).join(" | ");
            let _ = writeln!(text, "| {} | {whose} | {cells} |", ablation.model);
        }
    }
}

fn accepted(subject: &Subject, text: &mut String) {
    text.push_str(
        "\n## Tokens of a verification (paper: table 4, Qwen2.5-1.5B)\n\n\
         Theirs: PLD, PLD with calibration and reuse, SAM, SAM with both; their SAM has a history.\n\
         Ours counts the model's own token.\n\n\
         | task | texts | theirs | data | PLD of 10 | SAM of 16 | with history | chain of 16 | tree of 32 |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
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
        let _ = writeln!(
            text,
            "| {task} | {} | {paper} | {data} | {} |",
            texts.name(),
            ours.join(" | ")
        );
    }
}

fn switched(switches: &[Switch], text: &mut String) {
    let names = WAYS
        .map(|way| format!("{way:?}").to_lowercase())
        .join(" | ");
    let _ = write!(
        text,
        "\n## Switching graphs (paper: 3.2)\n\n\
         When decoding can begin, as a share of the prompt alone; loads read 4.2 GB/s. Best: the best of all plans.\n\n\
         | machine | model | prompt | alone, ms | {names} | best |\n|---|---|---|---{}|---|\n",
        "|---".repeat(WAYS.len())
    );
    for it in switches {
        let cells = WAYS.map(|way| format!("{:.2}", it.ratio(way))).join(" | ");
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.0} | {cells} | {:.2} |",
            it.machine,
            it.model,
            it.chunks * 256,
            it.prefill_us / 1e3,
            it.best_us / it.prefill_us
        );
    }
}

fn all(lines: &[PaperLine], text: &mut String) {
    let reached = lines.iter().filter(|line| line.reached).count();
    let _ = write!(
        text,
        "\n## Line by line\n\n{}\n{reached} of {} lines are reached.\n",
        output::table(lines),
        lines.len()
    );
}
