//! What a name costs beside a file, and what a look before a pull says of the bundle's speed.

use super::world::{Device, World};
use crate::goal::Goal;
use crate::lines::{Line, Report};
use crate::process::{finished, text};
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::Instant;

pub(super) fn measure(world: &World, rounds: usize, report: &mut Report) -> Result<()> {
    let device = world.device()?;
    look(world, &device, rounds, report)?;
    device.pull(&[])?;
    open(world, &device, report)
}

/// `heg fit`, and `heg bench` of the bundle.
fn look(world: &World, device: &Device<'_>, rounds: usize, report: &mut Report) -> Result<()> {
    let name = world.name();
    let fit = |options: &[&str]| -> Result<Value> {
        let arguments = [&["fit", &name, "--allow-unsigned", "--json"], options].concat();
        let done = device.ask(&arguments)?;
        done.lines
            .into_iter()
            .next_back()
            .context("heg fit printed nothing")
    };
    let figure = |value: &Value, pointer: &str| {
        let found = value.pointer(pointer).and_then(Value::as_f64);
        found.with_context(|| format!("`{pointer}` is missing in what heg printed"))
    };
    let seen = fit(&[])?;
    let requests = Line::of("fit: requests", "heg", vec![figure(&seen, "/requests")?]);
    report.add(requests.in_unit("requests").held_to(Goal::AtMost(6.0)));
    let (mut told_decode, mut told_prefill) = (Vec::new(), Vec::new());
    let (mut decode, mut prefill, mut fetched) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let told = fit(&["--measure"])?;
        told_decode.push(figure(&told, "/measured/decode_tokens_per_s")?);
        let tokens = figure(&told, "/measured/prompt_tokens")?;
        told_prefill.push(tokens / figure(&told, "/measured/first_token_s")?);
        fetched.push(figure(&told, "/moved_bytes")? / 1e6);
        let prompt = tokens.to_string();
        let bundle = text(&world.bundle);
        let real = device.ask(&["bench", &bundle, "--prefill", &prompt, "--json"])?;
        let real = real
            .lines
            .into_iter()
            .next_back()
            .context("heg bench printed nothing")?;
        decode.push(figure(&real, "/decode_tokens_per_s")?);
        prefill.push(figure(&real, &format!("/prefill_tokens_per_s/{prompt}"))?);
    }
    let within = |share: f64| [Goal::AtLeast(1.0 - share), Goal::AtMost(1.0 + share)];
    let line = Line::of("fit --measure: decode", "told", told_decode).in_unit("tokens/s");
    report.add(line.beside("heg bench", decode, within(0.1)));
    let line = Line::of("fit --measure: prompt", "told", told_prefill).in_unit("tokens/s");
    report.add(line.beside("heg bench", prefill, within(0.15)));
    let line = Line::of("fit --measure: bytes", "heg", fetched).in_unit("MB");
    report.add(line.held_to(Goal::AtMost(5.0)));
    Ok(())
}

/// `heg inspect` by name and by file, in turns.
fn open(world: &World, device: &Device<'_>, report: &mut Report) -> Result<()> {
    let inspect = |what: &str| -> Result<f64> {
        let begin = Instant::now();
        finished(
            device.command().args(["inspect", what, "--json"]),
            "heg inspect",
        )?;
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    };
    let (mut by_name, mut by_file) = (Vec::new(), Vec::new());
    for _ in 0..OPENED {
        by_name.push(inspect(&world.name())?);
        by_file.push(inspect(&text(&world.bundle))?);
    }
    let best = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let more_ms = best(&by_name) - best(&by_file);
    report.add(Line::of("`heg inspect`", "by name", by_name).beside("by file", by_file, []));
    let line = Line::of(
        "`heg inspect` by name: more, of bests",
        "heg",
        vec![more_ms],
    );
    report.add(line.held_to(Goal::AtMost(1.0)));
    Ok(())
}

/// Times that the bundle is opened. Chosen: bests repeat to a tenth of a millisecond.
const OPENED: usize = 60;
