//! The comparison with the paper as Markdown, and what decides whether the evaluation succeeds.

use super::Subject;
use super::ablation::MechanismLine;
use super::line::PaperLine;
use std::fmt::Write;

/// The comparison line by line.
pub(crate) fn comparison(subject: &Subject, lines: &[PaperLine]) -> String {
    let soc = subject.platforms.first().map_or("", |p| p.soc.as_str());
    let own = subject.policies.first().map_or("", |p| p.name.as_str());
    let mut text = format!(
        "# {own} on {soc}, beside the paper\n\n\
         Agent.xpu v2, sections 6.2 to 6.4. Ours are simulated: NPU times are the vendor compiler's, iGPU and CPU\n\
         times follow from the anchors in the SoC file. Means of {} traces with their 95% confidence intervals. Rates are\n\
         reactive+proactive requests a minute. The bound of a reduction is what the requests would take alone on the\n\
         machine: no scheduler can pass it by much. Lines with * are not the paper's.\n\n\
         | figure | model | paper | ours | bound | verdict |\n|---|---|---|---|---|---|\n",
        subject.seeds.clone().count()
    );
    for line in lines {
        let _ = writeln!(
            text,
            "| {}{} | {} | {} | {} | {} | {}{} |",
            line.name,
            if line.paper_line { "" } else { " *" },
            line.model.as_deref().unwrap_or("all"),
            line.unit.show(line.paper),
            line.show(),
            line.bound
                .map_or("–".to_owned(), |bound| line.unit.show(bound)),
            line.verdict(),
            match line.note.as_str() {
                "" => String::new(),
                note => format!("; {note}"),
            },
        );
    }
    let of_paper = || lines.iter().filter(|line| line.paper_line);
    let reached = of_paper().filter(|line| line.reached).count();
    let beyond = of_paper().filter(|line| !line.reachable).count();
    let _ = writeln!(
        text,
        "\nOf the paper's {} lines {reached} are reached, {beyond} are out of reach under these anchors, and {} are missed.",
        of_paper().count(),
        of_paper().count() - reached - beyond
    );
    text
}

/// What each mechanism does.
pub(crate) fn mechanisms(mechanisms: &[MechanismLine]) -> String {
    let mut text = "\n## Mechanisms\n\n\
        Steps of the scheduler in which each acted, over all runs, and what the figure that it is for becomes without it\n\
        (where it is off: with it).\n\n\
        | mechanism | activations | figure | regime | model | change |\n|---|---|---|---|---|---|\n"
        .to_owned();
    for mechanism in mechanisms {
        let off = if mechanism.on { "" } else { " (off)" };
        let mut head = format!("{}{off} | {}", mechanism.name, mechanism.activations);
        for effect in &mechanism.effects {
            let half = (effect.high - effect.low) / 2.0;
            let sure = if effect.significant { "" } else { ", not sure" };
            let _ = writeln!(
                text,
                "| {head} | {} | {} | {} | {:+.1}% ± {half:.1}{sure} |",
                effect.figure, effect.regime, effect.model, effect.change
            );
            head = " | ".to_owned();
        }
        if mechanism.effects.is_empty() {
            let _ = writeln!(text, "| {head} | – | – | – | – |");
        }
    }
    text
}

/// Names of mechanisms that the policy has and that never acted.
pub(crate) fn idle(mechanisms: &[MechanismLine]) -> Vec<&'static str> {
    let idle = mechanisms.iter().filter(|it| it.activations == 0);
    idle.map(|it| it.name).collect()
}
