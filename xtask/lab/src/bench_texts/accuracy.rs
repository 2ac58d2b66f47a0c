//! The distance of each system's vectors from those in f32, over texts of different lengths.

use super::sides::Side;
use crate::bench_day::models::heg_program;
use crate::subject::Subject;
use crate::words::different;
use anyhow::{Context, Result};
use heg_spec::WeightForm;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use xtask::workspace;

/// Cosines between a system's vectors and those in f32.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Nearness {
    pub(super) least: f64,
    pub(super) mean: f64,
}

/// Texts, and the vectors of the model in f32.
pub(super) struct Exact {
    texts: Vec<String>,
    vectors: Vec<Vec<f32>>,
}

impl Exact {
    /// Makes the vectors by HEG's bundle in f32.
    pub(super) fn new(embedder: &Subject, heg: Option<&Path>) -> Result<Self> {
        let texts = different(TEXTS);
        let bundle = embedder.bundle_as("f32", WeightForm::F32)?;
        let vectors = vectors(&heg_program(heg)?, &bundle, "host-cpu-f32", &texts)?;
        Ok(Self { texts, vectors })
    }

    /// Compares the vectors that a system makes of the same texts.
    pub(super) fn nearness(&self, side: &Side) -> Result<Nearness> {
        let found = side.vectors(&self.texts)?;
        anyhow::ensure!(
            found.len() == self.vectors.len(),
            "expected {} vectors, found {}",
            self.vectors.len(),
            found.len()
        );
        let cosines = found.iter().zip(&self.vectors).map(|(a, b)| cosine(a, b));
        let cosines: Vec<f64> = cosines.collect();
        Ok(Nearness {
            least: cosines.iter().copied().fold(f64::INFINITY, f64::min),
            mean: cosines.iter().sum::<f64>() / cosines.len() as f64,
        })
    }
}

/// A line of `heg embed --json`.
#[derive(Deserialize)]
struct Line {
    vector: Vec<f32>,
}

fn vectors(heg: &Path, bundle: &Path, soc: &str, texts: &[String]) -> Result<Vec<Vec<f32>>> {
    let mut command: Command = workspace::heg(heg);
    command
        .arg("embed")
        .arg(bundle)
        .args(["--json", "--soc", soc]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start `heg`")?;
    let lines = texts.join("\n") + "\n";
    let mut input = child.stdin.take().context("a piped program has no input")?;
    let written = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let done = child.wait_with_output().context("heg embed")?;
    // Its end says more than a pipe that nobody reads.
    let _ = written.join();
    anyhow::ensure!(done.status.success(), "heg embed failed: {}", done.status);
    let printed = String::from_utf8(done.stdout).context("heg embed printed no text")?;
    let lines = printed.lines().map(|line| {
        let line: Line = serde_json::from_str(line).context("heg embed printed no JSON")?;
        Ok(line.vector)
    });
    lines.collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y));
        products.sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

pub(super) const TEXTS: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_are_those_of_angles() {
        assert_eq!(cosine(&[1.0, 0.0], &[2.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 3.0]), 0.0);
        assert!((cosine(&[1.0, 1.0], &[1.0, 0.0]) - 0.5_f64.sqrt()).abs() < 1e-9);
    }
}
