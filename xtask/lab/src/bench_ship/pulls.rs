//! A whole pull, beside skopeo's copy and beside four curls that fetch ranges of the same blobs.

use super::world::{REPOSITORY, TAG, World};
use crate::bench_attacks::tree::ended_programs_ms;
use crate::goal::Goal;
use crate::lines::{Line, Report};
use crate::process::{finished, text};
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;
use tempfile::TempDir;
use xtask::fail::Fail;
use xtask::workspace::target_dir;

/// Times of one side in ms, and its processor time in core-seconds a GB.
#[derive(Default)]
struct Side {
    took_ms: Vec<f64>,
    core_s_per_gb: Vec<f64>,
}

pub(super) fn measure(world: &World, rounds: usize, report: &mut Report) -> Result<()> {
    let gigabytes = fs::metadata(&world.bundle)?.len() as f64 / 1e9;
    let blobs = blobs(world)?;
    let (mut ours, mut skopeo, mut curl) = (Side::default(), Side::default(), Side::default());
    for _ in 0..rounds {
        ours.add(gigabytes, || world.device()?.pull(&[]).map(drop))?;
        skopeo.add(gigabytes, || copy_by_skopeo(world))?;
        curl.add(gigabytes, || fetch_by_curl(world, &blobs))?;
    }
    let what = format!("pull, {gigabytes:.2} GB, four connections");
    let line = Line::of(&what, "heg", ours.took_ms);
    let line = line.beside("skopeo copy", skopeo.took_ms, [Goal::AtLeast(1.5)]);
    report.add(line.clone());
    report.add(line.beside(
        "curl -r, four at a time",
        curl.took_ms,
        [Goal::AtLeast(0.95)],
    ));
    let cost = Line::of("processor time of a pull", "heg", ours.core_s_per_gb);
    let cost = cost.in_unit("core-s/GB").held_to(Goal::AtMost(0.6));
    report.add(cost.beside("skopeo copy", skopeo.core_s_per_gb, []));
    Ok(())
}

impl Side {
    /// Adds a run: to its end, and what the programs of the run took.
    fn add(&mut self, gigabytes: f64, run: impl FnOnce() -> Result<()>) -> Result<()> {
        let (begin, before_ms) = (Instant::now(), ended_programs_ms());
        run()?;
        self.took_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        if let (Some(before), Some(after)) = (before_ms, ended_programs_ms()) {
            self.core_s_per_gb.push((after - before) / 1e3 / gigabytes);
        }
        Ok(())
    }
}

fn copy_by_skopeo(world: &World) -> Result<()> {
    let to = TempDir::new_in(target_dir())?;
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["copy", "--all", "--src-tls-verify=false"]);
    skopeo.arg(format!("docker://{}", world.name()));
    skopeo.arg(format!("oci:{}:{TAG}", text(to.path())));
    finished(&mut skopeo, "skopeo copy").map(drop)
}

/// Ranges of the bundle's blobs, as paths of the registry.
fn blobs(world: &World) -> Result<Vec<(String, String)>> {
    let index = manifest(world, TAG)?;
    let manifests = index.get("manifests").and_then(Value::as_array);
    let digest = manifests
        .and_then(|all| all.first()?.get("digest")?.as_str())
        .context("the registry has no index")?;
    let manifest = manifest(world, digest)?;
    let layers = manifest.get("layers").and_then(Value::as_array);
    let mut ranges = Vec::new();
    for layer in layers.context("the manifest has no layers")? {
        let digest = layer.get("digest").and_then(Value::as_str).unwrap_or("");
        let bytes = layer.get("size").and_then(Value::as_u64).unwrap_or(0);
        let mut at = 0;
        while at < bytes {
            let end = (at + RANGE_BYTES).min(bytes);
            ranges.push((digest.to_owned(), format!("{at}-{}", end - 1)));
            at = end;
        }
    }
    Ok(ranges)
}

fn manifest(world: &World, reference: &str) -> Result<Value> {
    let mut curl = Command::new("curl");
    curl.args(["-sSf", "-H"]);
    curl.arg("Accept: application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json");
    let host = world.host();
    curl.arg(format!(
        "http://{host}/v2/{REPOSITORY}/manifests/{reference}"
    ));
    finished(&mut curl, "curl")?.json("curl")
}

/// Fetches all ranges into files, four at a time.
fn fetch_by_curl(world: &World, ranges: &[(String, String)]) -> Result<()> {
    let to = TempDir::new_in(target_dir())?;
    let left = Mutex::new(ranges.iter().enumerate());
    let next = || left.lock().ok()?.next();
    let fetch = || -> Result<()> {
        while let Some((at, (digest, range))) = next() {
            fetch_range(world, digest, range, &to.path().join(at.to_string()))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers = [(); 4].map(|()| scope.spawn(fetch));
        let mut ended = workers.into_iter().map(|worker| worker.join());
        ended.try_for_each(|ended| {
            ended.unwrap_or_else(|_| Err(Fail::check("a thread of curls panicked").into()))
        })
    })
}

fn fetch_range(world: &World, digest: &str, range: &str, to: &Path) -> Result<()> {
    let mut curl = Command::new("curl");
    curl.args(["-sSf", "-r", range, "-o", &text(to)]);
    curl.arg(format!(
        "http://{}/v2/{REPOSITORY}/blobs/{digest}",
        world.host()
    ));
    let status = curl.status().context("cannot start `curl`")?;
    match status.success() {
        true => Ok(()),
        false => Err(Fail::check(format!("curl ended with {status}")).into()),
    }
}

/// Chosen: a process for each range is no large part of its time.
const RANGE_BYTES: u64 = 16 << 20;
