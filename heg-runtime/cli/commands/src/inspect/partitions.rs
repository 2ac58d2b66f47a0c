//! `heg inspect --partition`: the partitions of a layer's products between two devices. And the pieces of products that a
//! bundle has for NPUs, which `heg inspect` lists.

use std::fmt::Write as _;
use std::io::Write;

use heg_artifacts::manifest::{Manifest, RowsPiece};
use heg_profiler::partition::{ClassCut, Partitions, ProductPartition, SocPartition};
use heg_runtime::Loaded;

use super::with_unit;
use crate::failure::input;

/// Prints the bundle's partitions.
pub(super) fn run(loaded: &Loaded, json: bool) -> anyhow::Result<()> {
    let Some(partitions) = loaded.partitions()? else {
        return Err(input(
            "the bundle has no partition, expected one compiled with `hegc compile --partition SOC`",
        ));
    };
    let mut out = std::io::stdout().lock();
    match json {
        true => {
            serde_json::to_writer_pretty(&mut out, &partitions)?;
            writeln!(out)?;
        }
        false => write!(out, "{}", describe(&partitions))?,
    }
    Ok(())
}

/// Describes the pieces of products of a bundle, a line each; nothing if it has none.
pub(super) fn piece_lines(manifest: &Manifest) -> String {
    let lines = manifest.pieces.iter().map(|it| piece_line(manifest, it));
    lines.collect()
}

fn piece_line(manifest: &Manifest, piece: &RowsPiece) -> String {
    let bytes_of = |id| {
        let mut sections = manifest.sections.iter();
        let section = sections.find(|section| section.id == id);
        section.map_or(0, |section| section.bytes)
    };
    let blobs = piece.blobs.iter().map(|blob| {
        let bytes = with_unit(bytes_of(blob.section) as f64, "B");
        format!("NPU {} ({bytes})", blob.platform)
    });
    let (form, blobs) = (piece.form, blobs.collect::<Vec<_>>().join(", "));
    format!(
        "piece     {} rows of {} columns in {:?}, over {} tokens in {:?}: {blobs}\n",
        piece.rows, form.columns, form.element, piece.tokens, piece.activations
    )
}

fn describe(partitions: &Partitions) -> String {
    let machines: Vec<String> = partitions.socs.iter().map(machine).collect();
    machines.join("\n")
}

fn machine(soc: &SocPartition) -> String {
    let mut text = format!(
        "{}: static sizes {:?}; times in ms, of the largest call of a row\n\n\
         product       rows  tokens         cut             first does                    cut     first    second\n",
        soc.soc, soc.static_tokens
    );
    for product in &soc.products {
        for (when, classes) in [("", &product.prefill), ("answer ", &product.decode)] {
            for row in rows(classes) {
                text.push_str(&line(product, when, row));
            }
        }
    }
    text
}

/// Merges consecutive classes with the same cut into a row: the first number of tokens, and the last class.
fn rows(classes: &[ClassCut]) -> Vec<(u32, &ClassCut)> {
    let mut rows: Vec<(u32, &ClassCut)> = Vec::new();
    let mut before = 0;
    for class in classes {
        match rows.last_mut() {
            Some((_, last)) if last.cut == class.cut => *last = class,
            _ => rows.push((before + 1, class)),
        }
        before = class.tokens;
    }
    rows
}

fn line(product: &ProductPartition, when: &str, (from, class): (u32, &ClassCut)) -> String {
    let tokens = match from == class.tokens {
        true => format!("{when}{from}"),
        false => format!("{when}{from}..{}", class.tokens),
    };
    let ms = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{:.3}", us / 1e3));
    let does = class.cut.to_string();
    let mut line = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        line,
        "{:<10} {:>7}  {tokens:<13}  {:<14}  {:<23}  {:>8}  {:>8}  {:>8}",
        product.product,
        product.rows,
        class.cut.strategy(),
        does.strip_suffix(" on the first").unwrap_or("-"),
        ms(Some(class.latency_us)),
        ms(class.first_us),
        ms(class.second_us),
    );
    line
}
