//! `heg run` behind a baked state, from its start to its first token, beside the same prompt without one.

use super::Bench;
use crate::goal::Goal;
use crate::lines::{Line, Report};
use crate::process::{finished, text, timed_json};
use anyhow::{Context, Result};
use heg_runtime::Loaded;
use heg_text::Special;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use xtask::fail::Fail;
use xtask::workspace::{heg, target_dir};

pub(super) fn measure(bench: &Bench, report: &mut Report) -> Result<()> {
    let folder = TempDir::new_in(target_dir()).context("cannot make a folder for a bundle")?;
    let at = |name: &str| folder.path().join(name);
    let (system, messages, bundle) = (at("system.txt"), at("messages.json"), at("baked.heg"));
    let said = instructions(&bench.bundle)?;
    fs::write(&system, &said)?;
    let asked = json!({ "messages": [
        { "role": "system", "content": said },
        { "role": "user", "content": "Which rule is first?" },
    ] });
    fs::write(&messages, asked.to_string())?;
    let mut bake = heg(&bench.heg);
    bake.args(["bake", &text(&bench.bundle), "--json", "--state", "bench"]);
    bake.args([
        "--soc",
        &bench.soc,
        "--system",
        &text(&system),
        "-o",
        &text(&bundle),
    ]);
    let baked = finished(&mut bake, "heg bake")?.json("heg bake")?;
    let count = |of: &Value, key: &str| of.get(key).and_then(Value::as_u64).unwrap_or(0);
    let (mut with_ms, mut without_ms) = (Vec::new(), Vec::new());
    for round in 0..=bench.rounds {
        let (answer, first_ms) = run(bench, &bundle, &messages)?;
        let (expected, other_ms) = run(bench, &bench.bundle, &messages)?;
        if answer.get("token_ids") != expected.get("token_ids") {
            return Err(Fail::check("the answer behind a baked state is another one").into());
        }
        if count(&answer, "baked_tokens") == 0 {
            return Err(Fail::check("the baked state was not used").into());
        }
        if round > 0 {
            with_ms.push(first_ms);
            without_ms.push(other_ms);
        }
    }
    let what = format!("`heg run`, {} tokens baked", count(&baked, "tokens"));
    let line = Line::of(&what, "baked", with_ms).held_to(Goal::AtMost(FIRST_MS));
    report.add(line.beside("read", without_ms, []));
    let added = fs::metadata(&bundle)?.len() - fs::metadata(&bench.bundle)?.len();
    let size = Line::of("added to the bundle", "baked", vec![added as f64 / 1e6]);
    report.add(size.in_unit("MB"));
    Ok(())
}

/// An answer of one token, and the time from the start of the program until it was there, in ms.
fn run(bench: &Bench, bundle: &Path, messages: &Path) -> Result<(Value, f64)> {
    let mut run = heg(&bench.heg);
    run.args(["run", &text(bundle), "--soc", &bench.soc, "--json"]);
    run.args(["--messages", &text(messages), "--max-tokens", "1"]);
    timed_json(&mut run, "heg run")
}

/// A text of some [`TOKENS`] tokens.
fn instructions(bundle: &Path) -> Result<String> {
    let tokenizer = Loaded::open(bundle)?.tokenizer()?;
    let (mut said, mut tokens) = (String::new(), 0);
    for number in 1.. {
        let next = rule(number);
        tokens += tokenizer.encode(&next, Special::AsWritten)?.len();
        if tokens > TOKENS {
            break;
        }
        said += &next;
    }
    Ok(said)
}

fn rule(number: usize) -> String {
    format!("Rule {number}: a letter that came on day {number} is answered on the day after.\n")
}

/// Tokens of the instructions.
const TOKENS: usize = 2000;

const FIRST_MS: f64 = 150.0;
