//! A server and its child processes, from Linux's `/proc`: their memory, and their processor time.

use crate::process::{kilobytes, memory};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A process and its descendants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessTree {
    root: u32,
}

/// Memory in which a page that several processes map counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Proportional {
    pub(crate) resident_bytes: u64,
    /// The part that belongs to no file.
    pub(crate) anonymous_bytes: u64,
}

impl Proportional {
    /// The part of a process; `None` once it has ended.
    fn of(pid: u32) -> Option<Self> {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        Some(Self {
            resident_bytes: kilobytes(&rollup, "Pss:")? * 1024,
            anonymous_bytes: kilobytes(&rollup, "Pss_Anon:")? * 1024,
        })
    }
}

impl ProcessTree {
    pub(crate) fn of(root: u32) -> Self {
        Self { root }
    }

    /// The processes, the root first; empty once it has ended.
    fn members(self) -> Vec<u32> {
        let mut found = vec![self.root];
        let mut at = 0;
        while let Some(pid) = found.get(at).copied() {
            at += 1;
            let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
                continue;
            };
            for thread in threads.flatten() {
                let listed = fs::read_to_string(thread.path().join("children"));
                let children = listed.unwrap_or_default();
                let children = children.split_whitespace();
                found.extend(children.filter_map(|child| child.parse::<u32>().ok()));
            }
        }
        found
    }

    /// Kills all of them, the root first.
    pub(crate) fn kill(self) {
        for pid in self.members() {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Memory that belongs to no file, in bytes.
    pub(super) fn anonymous_bytes(self) -> u64 {
        let members = self.members().into_iter();
        let known = members.filter_map(memory);
        known.map(|memory| memory.anonymous_bytes).sum()
    }

    /// The largest resident memory of each process so far, in bytes; pages that they share count for each.
    pub(crate) fn resident_bytes(self) -> u64 {
        let members = self.members().into_iter();
        let known = members.filter_map(memory);
        known.map(|memory| memory.resident_bytes).sum()
    }

    /// The memory of all processes now; a page that several map is divided among them.
    pub(crate) fn proportional(self) -> Proportional {
        let members = self.members().into_iter();
        let known = members.filter_map(Proportional::of);
        known.fold(Proportional::default(), |sum, one| Proportional {
            resident_bytes: sum.resident_bytes + one.resident_bytes,
            anonymous_bytes: sum.anonymous_bytes + one.anonymous_bytes,
        })
    }

    /// Processor time of each process so far, in ticks.
    fn ticks(self) -> Vec<(u32, u64)> {
        let members = self.members().into_iter();
        members.filter_map(|pid| Some((pid, ticks(pid)?))).collect()
    }

    /// Processor time in ms that its processes use during `span` from now; 0 for a process that ends meanwhile.
    pub(super) fn busy_ms(self, span: Duration) -> f64 {
        let before = self.ticks();
        thread::sleep(span);
        let taken = self.ticks().into_iter().map(|(pid, now)| {
            let earlier = before.iter().find(|(other, _)| *other == pid);
            now.saturating_sub(earlier.map_or(0, |(_, then)| *then))
        });
        taken.sum::<u64>() as f64 * TICK_MS
    }
}

/// Processor time in ms of all programs that this one has started and waited for.
pub(crate) fn ended_programs_ms() -> Option<f64> {
    Some(times("self", ENDED_TIME_FIELD)? as f64 * TICK_MS)
}

/// Processor time of a process and all its threads, including ended ones.
fn ticks(pid: u32) -> Option<u64> {
    times(&pid.to_string(), USER_TIME_FIELD)
}

/// The sum of a time in user mode and of that in the system, which follows it, in ticks.
fn times(process: &str, field: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(field);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Index of `utime` among the fields after the name, as proc(5) numbers them; `stime` follows it.
const USER_TIME_FIELD: usize = 11;

/// The same of `cutime`.
const ENDED_TIME_FIELD: usize = 13;

/// Linux's unit of times in `/proc`: a hundredth of a second on every architecture that we run on.
const TICK_MS: f64 = 10.0;

/// Samples a tree's memory periodically, and keeps the largest value.
pub(super) struct MemoryWatch {
    peak_bytes: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl MemoryWatch {
    pub(super) fn start(tree: ProcessTree) -> Self {
        let peak_bytes = Arc::new(AtomicU64::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let (peak, over) = (Arc::clone(&peak_bytes), Arc::clone(&is_over));
        let watcher = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                peak.fetch_max(tree.anonymous_bytes(), Ordering::Relaxed);
                thread::sleep(WATCH_INTERVAL);
            }
        });
        Self {
            peak_bytes,
            is_over,
            watcher: Some(watcher),
        }
    }

    /// The largest memory so far, in bytes.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(watcher) = self.watcher.take() {
            // It only reads; a panic in it was printed already.
            let _ = watcher.join();
        }
    }
}

/// Chosen: a compile that takes a gigabyte takes seconds, and sampling must not slow the server.
const WATCH_INTERVAL: Duration = Duration::from_millis(15);

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// A shell whose child runs `script`.
    fn parent_of(script: &str) -> Child {
        let both = format!("sh -c '{script}' & wait");
        Command::new("sh").args(["-c", &both]).spawn().unwrap()
    }

    fn ended(mut child: Child) {
        for pid in ProcessTree::of(child.id()).members().into_iter().skip(1) {
            let _ = Command::new("kill").arg(pid.to_string()).status();
        }
        let _ = child.kill();
        let _ = child.wait();
    }

    #[test]
    fn the_time_of_a_child_counts_and_a_sleeping_one_takes_none() {
        let busy = parent_of("while :; do :; done");
        let idle = parent_of("sleep 20");
        thread::sleep(Duration::from_millis(300));
        let span = Duration::from_millis(600);
        let busy_ms = ProcessTree::of(busy.id()).busy_ms(span);
        let idle_ms = ProcessTree::of(idle.id()).busy_ms(span);
        ended(busy);
        ended(idle);
        assert!(busy_ms > 30.0, "{busy_ms}");
        assert!(idle_ms < 30.0, "{idle_ms}");
    }

    #[test]
    fn the_memory_of_a_child_counts() {
        let child = parent_of("x=$(head -c 20000000 /dev/zero | tr \"\\\\0\" a); sleep 20");
        let watch = MemoryWatch::start(ProcessTree::of(child.id()));
        let mut looks = 0;
        while watch.peak_bytes() < 20_000_000 && looks < 2000 {
            thread::sleep(Duration::from_millis(10));
            looks += 1;
        }
        ended(child);
        assert!(watch.peak_bytes() > 20_000_000, "{}", watch.peak_bytes());
    }
}
