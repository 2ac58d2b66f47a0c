//! The report: speeds and cuts as tables, then line by line.

use super::super::line::PaperLine;
use super::super::output;
use super::figures::figures;
use super::lines::{LENGTHS, ODD_LENGTHS, Speeds, model};
use super::machine::{MODELS, Machine};
use super::pass::{Way, decode_cut, prefill_cut};
use anyhow::Result;
use heg_spec::policy::Synchronisation::{Fast, Plain};
use std::fmt::Write;

/// The whole report as Markdown.
pub(super) fn report(machines: &[Machine], lines: &[PaperLine]) -> Result<String> {
    let mut text = "# Tensors cut beside HeteroLLM\n\n\
                    Simulated: products by rooflines and matrix units of the machines' files, cut by HEG's own solver; both devices\n\
                    share the memory; norms, attention and activations are the GPU's. Layers placed: each product on the device that\n\
                    is faster at it. Nothing here is measured on a device.\n"
        .to_owned();
    for machine in machines {
        let _ = writeln!(text, "\n## {}\n", machine.soc.name);
        let _ = writeln!(text, "A weight has {:.3} bytes.\n", machine.weight_bytes);
        speeds(machine, &mut text)?;
        odd(machine, &mut text)?;
        cuts(machine, &mut text)?;
    }
    text.push_str("\n## What the paper says twice, or does not explain\n\n");
    for sentence in figures()?.inconsistent {
        let _ = writeln!(text, "- {sentence}");
    }
    all(lines, &mut text);
    Ok(text)
}

/// Tokens per second (paper: figures 13, 15, 16 and 17).
fn speeds(machine: &Machine, text: &mut String) -> Result<()> {
    let columns = [
        ("GPU", (Way::Second, Fast)),
        ("layers placed", (Way::Layer, Fast)),
        ("the same, plain", (Way::Layer, Plain)),
        ("tensors cut", (Way::Tensor, Fast)),
        ("the same, plain", (Way::Tensor, Plain)),
    ];
    let names = columns.map(|(name, _)| name).join(" | ");
    let _ = write!(
        text,
        "Tokens a second; plain: with plain synchronisation.\n\n| model | tokens | {names} |\n|---|---{}|\n",
        "|---".repeat(columns.len())
    );
    let speeds = Speeds(machine);
    for model in MODELS {
        for tokens in [32].into_iter().chain(LENGTHS) {
            let cells =
                columns.map(|(_, how)| Ok(format!("{:.1}", speeds.prefill(model, tokens, how)?)));
            let cells: Vec<String> = cells.into_iter().collect::<Result<_>>()?;
            let _ = writeln!(
                text,
                "| {} | prompt of {tokens} | {} |",
                model.name,
                cells.join(" | ")
            );
        }
        let cells = columns.map(|(_, how)| Ok(format!("{:.1}", speeds.decode(model, how)?)));
        let cells: Vec<String> = cells.into_iter().collect::<Result<_>>()?;
        let _ = writeln!(text, "| {} | answer | {} |", model.name, cells.join(" | "));
    }
    Ok(())
}

/// Prompts of odd lengths (paper: figure 14).
fn odd(machine: &Machine, text: &mut String) -> Result<()> {
    let columns = [
        ("online-prepare", Way::OnlinePrepare),
        ("padding", Way::Padding),
        ("pipe", Way::Pipe),
        ("tensors cut", Way::Tensor),
    ];
    let names = columns.map(|(name, _)| name).join(" | ");
    let _ = write!(
        text,
        "\nMilliseconds of a prompt of llama-3-8b.\n\n| tokens | {names} |\n|---{}|\n",
        "|---".repeat(columns.len())
    );
    let large = model("llama-3-8b")?;
    for tokens in ODD_LENGTHS {
        let cells = columns.map(|(_, way)| {
            let speed = Speeds(machine).prefill(large, tokens, (way, Fast))?;
            Ok(format!("{:.0}", f64::from(tokens) / speed * 1e3))
        });
        let cells: Vec<String> = cells.into_iter().collect::<Result<_>>()?;
        let _ = writeln!(text, "| {tokens} | {} |", cells.join(" | "));
    }
    Ok(())
}

/// The solver's cuts.
fn cuts(machine: &Machine, text: &mut String) -> Result<()> {
    let shapes = model("llama-3-8b")?.products(machine.weight_bytes);
    let names: Vec<&str> = shapes.iter().map(|shape| shape.product.name()).collect();
    let _ = write!(
        text,
        "\nCuts of llama-3-8b.\n\n| tokens | {} |\n|---{}|\n",
        names.join(" | "),
        "|---".repeat(names.len())
    );
    for tokens in [32, 256, 300, 525, 600, 1024] {
        let cells = shapes
            .iter()
            .map(|shape| Ok(prefill_cut(machine, shape, tokens, Way::Tensor)?.to_string()));
        let cells: Vec<String> = cells.collect::<Result<_>>()?;
        let _ = writeln!(text, "| prompt of {tokens} | {} |", cells.join(" | "));
    }
    let cells = shapes
        .iter()
        .map(|shape| Ok(decode_cut(machine, shape, Way::Tensor)?.to_string()));
    let cells: Vec<String> = cells.collect::<Result<_>>()?;
    let _ = writeln!(text, "| answer | {} |", cells.join(" | "));
    Ok(())
}

fn all(lines: &[PaperLine], text: &mut String) {
    let compared = lines.iter().filter(|line| line.paper.is_some());
    let reached = compared.clone().filter(|line| line.reached).count();
    let _ = write!(
        text,
        "\n## Line by line\n\n{}\n{reached} of {} lines are reached.\n",
        output::table(lines),
        compared.count()
    );
}
