//! The number of a device's threads, and the cores that they are pinned to.

use std::num::NonZeroUsize;
use std::thread;

use heg_spec::soc::Cores;

use crate::error::CpuError;
use crate::platform::{self, Core};

/// Number of threads of a device, and the cores they run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    threads: NonZeroUsize,
    /// Cores that threads are pinned to; empty: placed by the system.
    kept_on: Vec<usize>,
}

impl Placement {
    /// `threads` threads, placed by the system.
    pub const fn anywhere(threads: NonZeroUsize) -> Self {
        Self {
            threads,
            kept_on: Vec::new(),
        }
    }

    /// Threads on the given cores of this machine: `threads`, or one per core, but then at most as many as the process
    /// may run at a time.
    ///
    /// # Errors
    ///
    /// [`CpuError::Program`] if a core is not available to this process, or the system cannot pin threads.
    pub fn new(threads: Option<NonZeroUsize>, cores: &Cores) -> Result<Self, CpuError> {
        let at_once = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let there = platform::cores();
        Ok(match cores {
            Cores::All => Self::anywhere(threads.unwrap_or(at_once)),
            Cores::Fast => {
                let (count, kept_on) = fast(&there);
                let count = NonZeroUsize::new(count).unwrap_or(at_once).min(at_once);
                Self {
                    threads: threads.unwrap_or(count),
                    kept_on,
                }
            }
            Cores::Only(asked) => {
                let kept_on: Vec<usize> = asked.iter().map(|core| *core as usize).collect();
                check(&kept_on, &there)?;
                let count = NonZeroUsize::new(kept_on.len()).unwrap_or(at_once);
                Self {
                    threads: threads.unwrap_or(count),
                    kept_on,
                }
            }
        })
    }

    /// Number of threads.
    pub const fn threads(&self) -> NonZeroUsize {
        self.threads
    }

    /// Cores that threads are pinned to; empty: placed by the system.
    pub fn kept_on(&self) -> &[usize] {
        &self.kept_on
    }
}

/// Number of fast cores, 0 if unknown; and the numbers of their hardware threads if there are slower cores, too.
fn fast(cores: &[Core]) -> (usize, Vec<usize>) {
    let fast = || cores.iter().filter(|core| core.is_fast);
    let mut firsts: Vec<usize> = fast().map(|core| core.first).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let kept_on = if cores.iter().all(|core| core.is_fast) {
        Vec::new()
    } else {
        fast().map(|core| core.number).collect()
    };
    (firsts.len(), kept_on)
}

fn check(asked: &[usize], there: &[Core]) -> Result<(), CpuError> {
    let is_there = |core: &usize| there.iter().any(|known| known.number == *core);
    match asked.iter().find(|core| !is_there(core)) {
        None => Ok(()),
        Some(missing) => Err(CpuError::Program {
            what: "cores to pin threads to".to_owned(),
            expected: "numbers of cores that this process may use",
            found: missing.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(number: usize, first: usize, is_fast: bool) -> Core {
        Core {
            number,
            first,
            is_fast,
        }
    }

    #[test]
    fn threads_are_for_fast_cores_each_once() {
        let alike = [core(0, 0, true), core(1, 1, true)];
        assert_eq!(fast(&alike), (2, Vec::new()));
        let twofold = [core(0, 0, true), core(1, 0, true), core(2, 2, true)];
        assert_eq!(fast(&twofold), (2, Vec::new()));
        let hybrid = [core(0, 0, true), core(1, 0, true), core(2, 2, false)];
        assert_eq!(fast(&hybrid), (1, vec![0, 1]));
        // A process restricted to slow cores.
        assert_eq!(fast(&[core(8, 8, false)]), (0, Vec::new()));
        assert_eq!(fast(&[]), (0, Vec::new()));
    }

    #[test]
    fn a_core_that_is_not_there_is_refused() {
        let error = Placement::new(None, &Cores::Only(vec![1_000_000])).unwrap_err();
        let text = "cores to pin threads to: expected numbers of cores that this process may use, \
                    found 1000000";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn threads_stay_on_the_cores_that_are_asked_for() {
        let all = platform::cores();
        let Some(last) = all.last() else {
            println!("skipped: this system keeps no thread on a core");
            return;
        };
        let only = Cores::Only(vec![last.number as u32]);
        let found = Placement::new(None, &only).unwrap();
        assert_eq!(
            (found.threads().get(), found.kept_on()),
            (1, &[last.number][..])
        );
        let kept = thread::spawn(move || {
            assert!(platform::keep_on(found.kept_on()));
            platform::cores().len()
        });
        assert_eq!(kept.join().unwrap(), 1);
        assert_eq!(platform::cores(), all, "other threads stay where they are");
    }
}
