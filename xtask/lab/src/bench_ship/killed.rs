//! A pull that is killed on its way and started again: the bytes that come twice.

use super::world::{Device, World};
use crate::goal::Goal;
use crate::lines::{Line, Report};
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use xtask::fail::Fail;

pub(super) fn measure(world: &World, rounds: usize, report: &mut Report) -> Result<()> {
    let bytes = fs::metadata(&world.bundle)?.len();
    let (mut twice, mut again_ms) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let before = loopback_bytes()?;
        world.device()?.pull(&[])?;
        let whole = loopback_bytes()? - before;
        let device = world.device()?;
        let before = loopback_bytes()?;
        pull_until(&device, bytes * 6 / 10)?;
        let again = device.pull(&[])?;
        let both = loopback_bytes()? - before;
        twice.push((both.cast_signed() - whole.cast_signed()) as f64 / bytes as f64 * 100.0);
        again_ms.push(again.seconds * 1e3);
    }
    let line = Line::of("killed at 60%, pulled again: came twice", "heg", twice);
    report.add(line.in_unit("%").held_to(Goal::AtMost(1.0)));
    report.add(Line::of("the second pull", "heg", again_ms));
    Ok(())
}

/// Kills a pull, as `kill -9` does, once it has told of this many bytes.
fn pull_until(device: &Device<'_>, bytes: u64) -> Result<()> {
    let mut child = device
        .pulling()
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start `heg`")?;
    let stdout = child
        .stdout
        .take()
        .context("a piped program has no output")?;
    for line in BufReader::new(stdout).lines() {
        let line: Value = serde_json::from_str(&line?).context("heg pull printed no JSON")?;
        let arrived = line.get("bytes").and_then(Value::as_u64);
        if arrived.is_some_and(|arrived| arrived >= bytes) {
            child.kill()?;
            child.wait()?;
            return Ok(());
        }
    }
    child.wait()?;
    Err(Fail::check("the pull ended before it could be killed: take a larger bundle").into())
}

/// Bytes that have come over the loopback interface since the system's start.
fn loopback_bytes() -> Result<u64> {
    let devices = fs::read_to_string("/proc/net/dev").context("cannot read `/proc/net/dev`")?;
    let mut lines = devices.lines();
    let line = lines.find_map(|line| line.trim_start().strip_prefix("lo:"));
    let first = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    first.context("`/proc/net/dev` has no loopback interface")
}
