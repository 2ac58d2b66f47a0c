//! The price of a pair beside time: memory, and cores while it waits.

use super::machines::{Machine, Shape};
use super::measure::{Decoding, Measured};
use super::report::Report;
use crate::goal::Goal;
use crate::process;
use anyhow::{Context, Result};
use heg_runtime::Loaded;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use xtask::fail::Fail;

/// The mapped bundle and all that is in no file, while an answer is given.
pub(super) fn memory(loaded: &Loaded, bundle: &Path, report: &mut Report) -> Result<()> {
    let mapped_bytes = fs::metadata(bundle)?.len();
    // One after the other: what the first leaves counts against the pair.
    let megabytes = |shape| -> Result<f64> {
        let mut decoding = Decoding::new(Machine::new(loaded, shape)?)?;
        decoding.run_ms()?;
        let now = process::memory(std::process::id()).with_context(unknown)?;
        Ok((mapped_bytes + now.anonymous_bytes) as f64 / 1e6)
    };
    let pool = megabytes(Shape::one(2))?;
    let pair = megabytes(super::FAST)?;
    let line = report.of("memory", "pair", vec![pair]).in_unit("MB");
    report.add(line.beside("two threads", vec![pool], [Goal::AtLeast(1.0 / 1.05)]));
    Ok(())
}

/// Decoding beside neighbours that want both cores, and a pair that has nothing to do.
pub(super) fn waits(loaded: &Loaded, rounds: usize, report: &mut Report) -> Result<()> {
    let mut all = Vec::new();
    for shape in [super::FAST, super::PLAIN] {
        let mut decoding = Decoding::new(Machine::new(loaded, shape)?)?;
        decoding.run_ms()?;
        all.push(decoding);
    }
    thread::sleep(SETTLING);
    let before_ms = used_ms()?;
    thread::sleep(IDLE);
    let line = report.of(
        "half a second without work",
        "cores",
        vec![used_ms()? - before_ms],
    );
    report.add(line.held_to(Goal::AtMost(IDLE_MS_MAX)));

    let neighbours = Neighbours::default();
    let found = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| neighbours.work());
        }
        let found = beside(&mut all, rounds, &neighbours);
        neighbours.end.store(true, Ordering::Relaxed);
        found
    });
    let [fast, plain] = found?;
    let what = "decode, both cores busy";
    let line = report.of(what, "pair", fast.times_ms);
    report.add(line.beside("plain waits", plain.times_ms, [Goal::AtLeast(0.97)]));
    let line = report.of(what, "cores' time taken from neighbours", fast.taken_ms);
    report.add(line.beside("plain waits", plain.taken_ms, [Goal::AtLeast(0.97)]));
    Ok(())
}

/// Threads that want a core each for themselves.
#[derive(Default)]
struct Neighbours {
    done: AtomicU64,
    end: AtomicBool,
}

impl Neighbours {
    fn work(&self) {
        let mut number = 1_u64;
        while !self.end.load(Ordering::Relaxed) {
            for _ in 0..1000 {
                number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005) + 1);
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Figures that were measured beside neighbours.
#[derive(Default)]
struct Beside {
    times_ms: Vec<f64>,
    /// Time that neighbours would have taken, of both cores, for what they did not do meanwhile.
    taken_ms: Vec<f64>,
}

fn beside(all: &mut [Decoding], rounds: usize, neighbours: &Neighbours) -> Result<[Beside; 2]> {
    let mut found = [Beside::default(), Beside::default()];
    let done_in = |work: &mut dyn FnMut() -> Result<()>| -> Result<(f64, f64)> {
        let (before, begin) = (neighbours.done.load(Ordering::Relaxed), Instant::now());
        work()?;
        let done = neighbours.done.load(Ordering::Relaxed) - before;
        Ok((done as f64, begin.elapsed().as_secs_f64() * 1e3))
    };
    for _ in 0..rounds {
        let (done, took_ms) = done_in(&mut || {
            thread::sleep(SETTLING);
            Ok(())
        })?;
        let alone = done / took_ms;
        for (decoding, found) in all.iter_mut().zip(&mut found) {
            let mut step_ms = 0.0;
            let (done, took_ms) = done_in(&mut || {
                step_ms = decoding.run_ms()?;
                Ok(())
            })?;
            let lost_ms = took_ms - done / alone;
            found.times_ms.push(step_ms);
            found.taken_ms.push(lost_ms * step_ms / took_ms);
        }
    }
    Ok(found)
}

/// Time that the threads of this process had cores for, in ms.
fn used_ms() -> Result<f64> {
    let mut used_ns = 0;
    for task in fs::read_dir("/proc/self/task").with_context(unknown)? {
        let text = fs::read_to_string(task?.path().join("schedstat")).with_context(unknown)?;
        let first = text.split_whitespace().next();
        used_ns += first.and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(used_ns as f64 / 1e6)
}

fn unknown() -> Fail {
    Fail::environment("this system does not tell what a process uses".to_owned())
}

/// Time after which threads have parked.
const SETTLING: Duration = Duration::from_millis(50);

const IDLE: Duration = Duration::from_millis(500);

/// Most that idle threads may use meanwhile. Chosen: what reading it takes.
const IDLE_MS_MAX: f64 = 0.5;
