//! The comparison with the paper as Markdown, and the conditions for the evaluation's success.

use super::Subject;
use super::ablation::MechanismLine;
use super::line::{self, PaperLine};
use crate::table::Markdown;

/// The comparison line by line.
pub(crate) fn comparison(subject: &Subject, lines: &[PaperLine]) -> String {
    let soc = subject.platforms.first().map_or("", |p| p.soc.as_str());
    let own = subject.policies.first().map_or("", |p| p.name());
    let mut text = format!(
        "# {own} on {soc}, beside the paper\n\n\
         Agent.xpu v2, sections 6.2 to 6.4. Ours are simulated: NPU times are the vendor compiler's, iGPU and CPU\n\
         times follow from the anchors in the SoC file. Means of {} traces with their 95% confidence intervals. Rates are\n\
         reactive+proactive requests a minute. {}\n\
         The bound of a line is what no scheduler could pass on these traces, with these kernels: see the table of policies\n\
         beside it.\n\n",
        subject.seeds.clone().count(),
        subject.requests
    );
    text += &line::table(lines);
    text.push('\n');
    text += &line::count(lines);
    text
}

/// The effects of each mechanism.
pub(crate) fn mechanisms(mechanisms: &[MechanismLine]) -> String {
    let mut table = Markdown::new([
        "mechanism",
        "activations",
        "figure",
        "regime",
        "model",
        "change",
    ]);
    for mechanism in mechanisms {
        let off = if mechanism.on { "" } else { " (off)" };
        let name = format!("{}{off}", mechanism.name);
        let mut head = [name, mechanism.activations.to_string()];
        for effect in &mechanism.effects {
            let half = (effect.high - effect.low) / 2.0;
            let sure = if effect.significant { "" } else { ", not sure" };
            let change = format!("{:+.1}% ± {half:.1}{sure}", effect.change);
            let figure = effect.figure.to_owned();
            let rest = [figure, effect.regime.clone(), effect.model.clone(), change];
            table.row(head.into_iter().chain(rest));
            head = Default::default();
        }
        if mechanism.effects.is_empty() {
            table.row(head.into_iter().chain(["–"; 4].map(str::to_owned)));
        }
    }
    format!(
        "\n## Mechanisms\n\n\
         Steps of the scheduler in which each acted, over all runs, and what the figure that it is for becomes without it\n\
         (where it is off: with it).\n\n{}",
        table.text()
    )
}

/// Names of the policy's mechanisms that never acted.
pub(crate) fn idle(mechanisms: &[MechanismLine]) -> Vec<String> {
    let idle = mechanisms.iter().filter(|it| it.activations == 0);
    idle.map(|it| it.name.to_owned()).collect()
}
