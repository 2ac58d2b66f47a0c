//! Devices that several engines share: each lane of the machine runs one job of one engine at a time.
//!
//! Each engine's scheduler decides what its lane runs next. Between engines, a lane goes to a person's job first, and among
//! these to the one that has waited longest. A background job makes way between two kernels. A lane that has run a person's
//! job stays free for a moment, because that person's next kernel follows at once. While persons have the lane, background
//! jobs earn a small share of its time, and have it in slices between a person's jobs. Among engines with background jobs, the
//! one comes first that has had the lane for the least time.

mod background;
mod queue;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heg_sched::{Class, Lane};
use queue::{Queue, Waiter};

use crate::shared_prompts::{EnginePrompts, SharedPrompts};

/// The turns that engines on one machine take on its lanes. Clones are of the same machine; the default is a machine that an
/// engine has to itself.
#[derive(Debug, Clone, Default)]
pub struct DeviceTurns(Option<Arc<SharedMachine>>);

/// A machine for several engines.
#[derive(Debug, Default)]
struct SharedMachine {
    lanes: [LaneTurns; Lane::ALL.len()],
    prompts: Arc<SharedPrompts>,
    /// Number of engines so far.
    engines: AtomicU32,
}

impl DeviceTurns {
    /// A machine for several engines.
    pub fn shared() -> Self {
        Self(Some(Arc::default()))
    }

    /// The turns of another engine on the machine.
    pub(super) fn of_engine(&self) -> EngineTurns {
        let machine = self.0.clone();
        let number = machine
            .as_ref()
            .map_or(0, |machine| machine.engines.fetch_add(1, Ordering::Relaxed));
        EngineTurns {
            machine,
            engine: EngineNumber(number),
        }
    }
}

/// The turns of one engine. Clones are of the same engine; the default is one that has its machine to itself.
#[derive(Debug, Clone, Default)]
pub(super) struct EngineTurns {
    machine: Option<Arc<SharedMachine>>,
    engine: EngineNumber,
}

/// Number of an engine on its machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EngineNumber(pub(super) u32);

impl EngineTurns {
    /// The place of the engine's prompts on the machine.
    pub(super) fn prompts(&self) -> EnginePrompts {
        let machine = self.machine.as_ref();
        machine.map_or_else(EnginePrompts::default, |machine| {
            EnginePrompts::among(Arc::clone(&machine.prompts), self.engine)
        })
    }

    /// Waits until a lane is free for a job of a class.
    pub(super) fn take(&self, lane: Lane, class: Class) -> Turn {
        let Some(machine) = self.machine.clone() else {
            return Turn::none();
        };
        let start = Instant::now();
        let waiter = machine.lanes[lane as usize].take(self.engine, class);
        Turn {
            held: Some(Held {
                machine,
                lane,
                waiter,
            }),
            waited: start.elapsed(),
        }
    }
}

/// The use of a lane, until it is dropped.
pub(super) struct Turn {
    held: Option<Held>,
    /// Time in which others had the lane.
    waited: Duration,
}

struct Held {
    machine: Arc<SharedMachine>,
    lane: Lane,
    waiter: Waiter,
}

impl Turn {
    /// No lane's.
    pub(super) const fn none() -> Self {
        Self {
            held: None,
            waited: Duration::ZERO,
        }
    }

    /// Lets a person's job of another engine run, if this is a background job and one waits, and waits for the lane again.
    /// Returns whether it has.
    pub(super) fn make_way(&mut self) -> bool {
        let Some(held) = &self.held else {
            return false;
        };
        let time = held.machine.lanes[held.lane as usize].make_way(held.waiter);
        self.waited += time.unwrap_or_default();
        time.is_some()
    }

    /// Gives the lane back. Returns the time in which others had it since this job asked for it.
    pub(super) fn end(self) -> Duration {
        self.waited
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(held) = &self.held {
            held.machine.lanes[held.lane as usize].give_back();
        }
    }
}

/// The turns on one lane.
#[derive(Debug, Default)]
struct LaneTurns {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl LaneTurns {
    fn take(&self, engine: EngineNumber, class: Class) -> Waiter {
        let mut queue = self.lock();
        let waiter = queue.enter(engine, class);
        self.wait(queue, waiter);
        waiter
    }

    fn make_way(&self, waiter: Waiter) -> Option<Duration> {
        let mut queue = self.lock();
        let start = Instant::now();
        if !queue.make_way(waiter, start) {
            return None;
        }
        self.wait(queue, waiter);
        Some(start.elapsed())
    }

    fn give_back(&self) {
        self.lock().give_back(Instant::now());
        self.changed.notify_all();
    }

    /// Waits until a job has the lane.
    fn wait(&self, mut queue: MutexGuard<'_, Queue>, waiter: Waiter) {
        loop {
            let now = Instant::now();
            let is_granted = queue.grant(now);
            if queue.has(waiter) {
                return;
            }
            if is_granted {
                self.changed.notify_all();
            }
            queue = match queue.kept_for(now) {
                Some(time) => {
                    let woken = self.changed.wait_timeout(queue, time);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let woken = self.changed.wait(queue);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn threads_have_a_lane_one_at_a_time() {
        let turns = DeviceTurns::shared();
        let inside = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = [Class::Reactive, Class::Proactive, Class::Proactive]
            .into_iter()
            .map(|class| {
                let (turns, inside) = (turns.of_engine(), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..200 {
                        let mut turn = turns.take(Lane::Cpu, class);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        turn.make_way();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        // Another lane is nobody's, and so is this one.
        drop(turns.of_engine().take(Lane::Npu, Class::Proactive));
        drop(turns.of_engine().take(Lane::Cpu, Class::Proactive));
    }

    #[test]
    fn an_engine_that_is_alone_waits_for_nobody() {
        let turns = DeviceTurns::default().of_engine();
        let _one = turns.take(Lane::Cpu, Class::Proactive);
        let mut other = turns.take(Lane::Cpu, Class::Reactive);
        assert!(!other.make_way());
        assert_eq!(other.end(), Duration::ZERO);
    }
}
