//! Devices that several engines share: each lane of the machine runs one job of one engine at a time.
//!
//! Each engine's scheduler decides what its lane runs next. Between engines, a lane goes to a person's job first, and among
//! equals to the one that has waited longest. A background job makes way between two kernels. A lane that has run a person's
//! job stays free for a moment, because that person's next kernel follows at once; and a background job that has waited too
//! long comes next all the same.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heg_sched::{Class, Lane};

/// The turns that engines on one machine take on its lanes. Clones are of the same machine; the default is a machine that an
/// engine has to itself.
#[derive(Debug, Clone, Default)]
pub struct DeviceTurns(Option<Arc<[LaneTurns; Lane::ALL.len()]>>);

impl DeviceTurns {
    /// A machine for several engines.
    pub fn shared() -> Self {
        Self(Some(Arc::default()))
    }

    /// Waits until a lane is free for a job of a class.
    pub(super) fn take(&self, lane: Lane, class: Class) -> Turn {
        let Some(machine) = self.0.clone() else {
            return Turn::none();
        };
        let start = Instant::now();
        let waiter = machine[lane as usize].take(class);
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
    machine: Arc<[LaneTurns; Lane::ALL.len()]>,
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
        let Some(held) = &mut self.held else {
            return false;
        };
        let time = held.machine[held.lane as usize].make_way(&mut held.waiter);
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
            held.machine[held.lane as usize].give_back(held.waiter.class);
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
    fn take(&self, class: Class) -> Waiter {
        let mut queue = self.lock();
        let waiter = queue.enter(class, Instant::now());
        self.wait(queue, waiter);
        waiter
    }

    fn make_way(&self, waiter: &mut Waiter) -> Option<Duration> {
        let mut queue = self.lock();
        let start = Instant::now();
        if !queue.make_way(waiter, start) {
            return None;
        }
        self.wait(queue, *waiter);
        Some(start.elapsed())
    }

    fn give_back(&self, class: Class) {
        self.lock().give_back(class, Instant::now());
        self.changed.notify_all();
    }

    /// Waits until a job has the lane.
    fn wait(&self, mut queue: MutexGuard<'_, Queue>, waiter: Waiter) {
        loop {
            let now = Instant::now();
            let is_granted = queue.grant(now);
            if queue.running == Some(waiter.number) {
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

/// The jobs that wait for a lane. Time is the caller's.
#[derive(Debug, Default)]
struct Queue {
    /// Number of the job that has the lane.
    running: Option<u64>,
    waiting: Vec<Waiter>,
    /// End of the moment in which only a person's job may begin.
    kept_until: Option<Instant>,
    next: u64,
}

/// A job that waits for a lane, or has it.
#[derive(Debug, Clone, Copy)]
struct Waiter {
    /// Place in the order of arrival.
    number: u64,
    class: Class,
    since: Instant,
}

impl Queue {
    fn enter(&mut self, class: Class, now: Instant) -> Waiter {
        let waiter = Waiter {
            number: self.next,
            class,
            since: now,
        };
        self.next += 1;
        self.waiting.push(waiter);
        waiter
    }

    /// Has a background job that runs wait again, if a person's waits. Returns whether it has to.
    fn make_way(&mut self, running: &mut Waiter, now: Instant) -> bool {
        let is_persons = |waiter: &Waiter| waiter.class == Class::Reactive;
        if is_persons(running) || !self.waiting.iter().any(is_persons) {
            return false;
        }
        running.since = now;
        self.running = None;
        self.waiting.push(*running);
        true
    }

    fn give_back(&mut self, class: Class, now: Instant) {
        self.running = None;
        self.kept_until = (class == Class::Reactive).then(|| now + KEPT);
        self.grant(now);
    }

    /// Gives a free lane to the job that comes next. Returns whether it has.
    fn grant(&mut self, now: Instant) -> bool {
        if self.running.is_some() {
            return false;
        }
        let is_kept = self.kept_for(now).is_some();
        let is_overdue = |waiter: &Waiter| now.duration_since(waiter.since) >= PATIENCE;
        let may_begin =
            |waiter: &&Waiter| !is_kept || waiter.class == Class::Reactive || is_overdue(waiter);
        let urgency = |waiter: &Waiter| match waiter.class {
            Class::Proactive if is_overdue(waiter) => 0,
            Class::Reactive => 1,
            Class::Proactive => 2,
        };
        let waiting = self.waiting.iter().filter(may_begin);
        let next = waiting.min_by_key(|waiter| (urgency(waiter), waiter.number));
        let Some(number) = next.map(|waiter| waiter.number) else {
            return false;
        };
        self.waiting.retain(|waiter| waiter.number != number);
        self.running = Some(number);
        true
    }

    /// The rest of the moment in which only a person's job may begin.
    fn kept_for(&self, now: Instant) -> Option<Duration> {
        let left = self.kept_until?.checked_duration_since(now)?;
        (!left.is_zero()).then_some(left)
    }
}

/// Time that a lane stays free behind a person's job. Chosen: the conductor needs some 0.1 ms to the next kernel or token.
const KEPT: Duration = Duration::from_millis(1);

/// Time after which a background job comes next. Chosen: one kernel in half a second costs a person a few percent.
const PATIENCE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_persons_job_comes_first_and_equals_take_turns() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let first = queue.enter(Class::Proactive, now);
        assert!(queue.grant(now));
        let background = queue.enter(Class::Proactive, now);
        let persons = [(); 2].map(|()| queue.enter(Class::Reactive, now));
        assert!(!queue.grant(now));
        assert_eq!(queue.running, Some(first.number));
        for person in persons {
            queue.give_back(Class::Proactive, now);
            assert_eq!(queue.running, Some(person.number));
        }
        queue.give_back(Class::Proactive, now);
        assert_eq!(queue.running, Some(background.number));
    }

    #[test]
    fn a_lane_is_kept_for_a_persons_next_kernel() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.enter(Class::Reactive, now);
        queue.grant(now);
        let background = queue.enter(Class::Proactive, now);
        queue.give_back(Class::Reactive, now);
        assert_eq!((queue.running, queue.kept_for(now)), (None, Some(KEPT)));
        let next = queue.enter(Class::Reactive, now + KEPT / 2);
        assert!(queue.grant(now + KEPT / 2));
        assert_eq!(queue.running, Some(next.number));
        queue.give_back(Class::Reactive, now + KEPT);
        assert!(!queue.grant(now + KEPT));
        assert!(queue.grant(now + KEPT * 2));
        assert_eq!(queue.running, Some(background.number));
    }

    #[test]
    fn a_background_job_makes_way_for_a_person_alone() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let mut running = queue.enter(Class::Proactive, now);
        queue.grant(now);
        queue.enter(Class::Proactive, now);
        assert!(!queue.make_way(&mut running, now));
        let mut person = queue.enter(Class::Reactive, now);
        assert!(queue.make_way(&mut running, now + MS));
        assert!(queue.grant(now + MS));
        assert_eq!(queue.running, Some(person.number));
        queue.enter(Class::Reactive, now + MS);
        assert!(!queue.make_way(&mut person, now + MS));
    }

    proptest! {
        /// Whatever arrives, a lane has one job at a time, is not idle while a job may begin, and leaves no background job
        /// waiting for longer than its patience and the jobs before it.
        #[test]
        fn no_job_waits_for_ever(
            jobs in prop::collection::vec((0..40u64, 1..30u32, prop::bool::ANY), 1..80)
        ) {
            let (mut queue, mut now) = (Queue::default(), Instant::now());
            let mut lengths = std::collections::BTreeMap::new();
            let mut coming = jobs.into_iter();
            let mut running: Option<(Waiter, Instant)> = None;
            let mut known: Vec<Waiter> = Vec::new();
            loop {
                if let Some((after, length, is_reactive)) = coming.next() {
                    now += MS * after as u32;
                    let class = if is_reactive { Class::Reactive } else { Class::Proactive };
                    let waiter = queue.enter(class, now);
                    lengths.insert(waiter.number, MS * length);
                    known.push(waiter);
                } else {
                    now += MS;
                }
                if let Some((waiter, until)) = running
                    && until <= now
                {
                    queue.give_back(waiter.class, now);
                    running = None;
                }
                queue.grant(now);
                match (queue.running, running) {
                    (Some(number), Some((waiter, _))) => prop_assert_eq!(number, waiter.number),
                    (Some(number), None) => {
                        let waiter = known.iter().find(|it| it.number == number).copied().unwrap();
                        let waited = now - waiter.since;
                        let overdue = waited.saturating_sub(PATIENCE);
                        let before: Duration = lengths
                            .iter()
                            .filter(|(other, _)| **other <= number)
                            .map(|(_, length)| *length + MS * 41)
                            .sum();
                        prop_assert!(waiter.class == Class::Reactive || overdue <= before);
                        running = Some((waiter, now + lengths[&number]));
                    }
                    (None, None) => {
                        let may_begin = queue.kept_for(now).is_none();
                        prop_assert!(!may_begin || queue.waiting.is_empty());
                    }
                    (None, Some(_)) => prop_assert!(false, "a job runs that has no lane"),
                }
                if queue.waiting.is_empty() && running.is_none() && coming.len() == 0 {
                    break;
                }
            }
        }
    }

    #[test]
    fn threads_have_a_lane_one_at_a_time() {
        let turns = DeviceTurns::shared();
        let inside = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = [Class::Reactive, Class::Proactive, Class::Proactive]
            .into_iter()
            .map(|class| {
                let (turns, inside) = (turns.clone(), Arc::clone(&inside));
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
        drop(turns.take(Lane::Npu, Class::Proactive));
        drop(turns.take(Lane::Cpu, Class::Proactive));
    }

    #[test]
    fn an_engine_that_is_alone_waits_for_nobody() {
        let turns = DeviceTurns::default();
        let _one = turns.take(Lane::Cpu, Class::Proactive);
        let mut other = turns.take(Lane::Cpu, Class::Reactive);
        assert!(!other.make_way());
        assert_eq!(other.end(), Duration::ZERO);
    }
}
