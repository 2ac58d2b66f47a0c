//! Writes comparisons: their lines as a table, and report and summary as files.

use super::line::{Figure, Origin, PaperLine};
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use xtask::fail::Fail;

/// Formats the lines as a Markdown table. Columns that are the same in each line are left out.
pub(super) fn table(lines: &[PaperLine]) -> String {
    let has_models = lines.iter().any(|line| line.model.is_some());
    let has_origins = lines.iter().any(|line| line.origin != Origin::Simulated);
    let has_bounds = lines.iter().any(|line| line.bound.is_some());
    let columns = [
        ("figure", true),
        ("model", has_models),
        ("origin", has_origins),
        ("paper", true),
        ("ours", true),
        ("bound", has_bounds),
        ("reached", true),
        ("note", true),
    ];
    let shown = |cells: [String; 8]| {
        let cells = cells.into_iter().zip(columns);
        let cells = cells.filter(|(_, (_, shown))| *shown);
        let cells: Vec<String> = cells.map(|(cell, _)| cell).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = shown(columns.map(|(name, _)| name.to_owned()));
    let count = columns.iter().filter(|(_, shown)| *shown).count();
    let _ = writeln!(text, "|{}", "---|".repeat(count));
    for line in lines {
        let figure =
            |figure: Option<Figure>| figure.map_or("-".to_owned(), |figure| figure.show(line.unit));
        text += &shown([
            line.name.clone(),
            line.model.clone().unwrap_or("all".to_owned()),
            line.origin.name().to_owned(),
            figure(line.paper),
            line.show(),
            figure(line.bound.map(Figure::One)),
            line.verdict(),
            line.note.clone().unwrap_or_default(),
        ]);
    }
    text
}

/// Writes `report.md` and `summary.json` into the folder `out`, creating it if necessary.
pub(super) fn write(out: &Path, report: &str, summary: &impl Serialize) -> Result<()> {
    fs::create_dir_all(out).with_context(|| unwritable(out))?;
    let summary = serde_json::to_string_pretty(summary)? + "\n";
    for (name, text) in [("summary.json", summary.as_str()), ("report.md", report)] {
        let path = out.join(name);
        fs::write(&path, text).with_context(|| unwritable(&path))?;
    }
    Ok(())
}

/// The error of a failed write to `path`.
pub(super) fn unwritable(path: &Path) -> Fail {
    Fail::environment(format!("cannot write `{}`", path.display()))
}
