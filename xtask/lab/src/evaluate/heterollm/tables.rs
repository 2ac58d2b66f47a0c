//! The report: speeds and cuts as tables, then line by line.

use super::super::line::{self, PaperLine};
use super::figures::figures;
use super::lines::{LENGTHS, ODD_LENGTHS, Speeds, model};
use super::machine::{MODELS, Machine};
use super::pass::{Way, decode_cut, prefill_cut};
use crate::table::Markdown;
use anyhow::Result;
use heg_spec::policy::Synchronisation::{Fast, Plain};
use std::fmt::Write;
use std::iter;

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
    text.push_str("Tokens a second; plain: with plain synchronisation.\n\n");
    let names = columns.map(|(name, _)| name);
    let mut table = Markdown::new(["model", "tokens"].into_iter().chain(names));
    let speeds = Speeds(machine);
    for model in MODELS {
        let mut row = |tokens: String, cells: Vec<String>| {
            table.row([model.name.to_owned(), tokens].into_iter().chain(cells));
        };
        for tokens in [32].into_iter().chain(LENGTHS) {
            let cells =
                columns.map(|(_, how)| Ok(format!("{:.1}", speeds.prefill(model, tokens, how)?)));
            let cells = cells.into_iter().collect::<Result<_>>()?;
            row(format!("prompt of {tokens}"), cells);
        }
        let cells = columns.map(|(_, how)| Ok(format!("{:.1}", speeds.decode(model, how)?)));
        row(
            "answer".to_owned(),
            cells.into_iter().collect::<Result<_>>()?,
        );
    }
    text.push_str(&table.text());
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
    text.push_str("\nMilliseconds of a prompt of llama-3-8b.\n\n");
    let names = columns.map(|(name, _)| name);
    let mut table = Markdown::new(iter::once("tokens").chain(names));
    let large = model("llama-3-8b")?;
    for tokens in ODD_LENGTHS {
        let cells = columns.map(|(_, way)| {
            let speed = Speeds(machine).prefill(large, tokens, (way, Fast))?;
            Ok(format!("{:.0}", f64::from(tokens) / speed * 1e3))
        });
        let cells: Vec<String> = cells.into_iter().collect::<Result<_>>()?;
        table.row(iter::once(tokens.to_string()).chain(cells));
    }
    text.push_str(&table.text());
    Ok(())
}

/// The solver's cuts.
fn cuts(machine: &Machine, text: &mut String) -> Result<()> {
    let shapes = model("llama-3-8b")?.products(machine.weight_bytes);
    text.push_str("\nCuts of llama-3-8b.\n\n");
    let names = shapes.iter().map(|shape| shape.product.name());
    let mut table = Markdown::new(iter::once("tokens").chain(names));
    for tokens in [32, 256, 300, 525, 600, 1024] {
        let cells = shapes
            .iter()
            .map(|shape| Ok(prefill_cut(machine, shape, tokens, Way::Tensor)?.to_string()));
        let cells: Vec<String> = cells.collect::<Result<_>>()?;
        table.row(iter::once(format!("prompt of {tokens}")).chain(cells));
    }
    let cells = shapes
        .iter()
        .map(|shape| Ok(decode_cut(machine, shape, Way::Tensor)?.to_string()));
    let cells: Vec<String> = cells.collect::<Result<_>>()?;
    table.row(iter::once("answer".to_owned()).chain(cells));
    text.push_str(&table.text());
    Ok(())
}

fn all(lines: &[PaperLine], text: &mut String) {
    let _ = write!(
        text,
        "\n## Line by line\n\n{}\n{}",
        line::table(lines),
        line::count(lines)
    );
}
