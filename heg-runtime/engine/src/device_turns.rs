//! Devices that several engines share: each lane of the machine runs one job of one engine at a time.
//!
//! Each engine's scheduler decides what its lane runs next. Between engines, a lane goes to a person's job first, and among
//! equals to the one that has waited longest. A background job makes way between two kernels. A lane that has run a person's
//! job stays free for a moment, because that person's next kernel follows at once. While persons have the lane, background
//! jobs earn a small share of its time, and have it in slices between a person's jobs.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heg_sched::{Class, Lane};

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
}

impl DeviceTurns {
    /// A machine for several engines.
    pub fn shared() -> Self {
        Self(Some(Arc::default()))
    }

    /// A place for another engine's prompts on the machine.
    pub(super) fn prompts(&self) -> EnginePrompts {
        let machine = self.0.as_ref();
        machine.map_or_else(EnginePrompts::default, |machine| {
            EnginePrompts::among(Arc::clone(&machine.prompts))
        })
    }

    /// Waits until a lane is free for a job of a class.
    pub(super) fn take(&self, lane: Lane, class: Class) -> Turn {
        let Some(machine) = self.0.clone() else {
            return Turn::none();
        };
        let start = Instant::now();
        let waiter = machine.lanes[lane as usize].take(class);
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
            held.machine.lanes[held.lane as usize].give_back(held.waiter.class);
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
        let waiter = queue.enter(class);
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
    /// The time from which background jobs have earned their share, if persons have had the lane since.
    earning_since: Option<Instant>,
    /// End of the slice in which the background job that runs makes way for nobody.
    slice_until: Option<Instant>,
    next: u64,
}

/// A job that waits for a lane, or has it.
#[derive(Debug, Clone, Copy)]
struct Waiter {
    /// Place in the order of arrival.
    number: u64,
    class: Class,
}

impl Queue {
    fn enter(&mut self, class: Class) -> Waiter {
        let waiter = Waiter {
            number: self.next,
            class,
        };
        self.next += 1;
        self.waiting.push(waiter);
        waiter
    }

    /// Has a background job that runs wait again, if a person's waits. Returns whether it has to.
    fn make_way(&mut self, running: Waiter, now: Instant) -> bool {
        let is_persons = |waiter: &Waiter| waiter.class == Class::Reactive;
        let is_in_slice = self.slice_until.is_some_and(|until| now < until);
        if is_persons(&running) || is_in_slice || !self.waiting.iter().any(is_persons) {
            return false;
        }
        self.end_slice(now);
        self.running = None;
        self.waiting.push(running);
        true
    }

    /// Begins to earn anew behind a slice, which may have been longer than what was earned: its last kernel counts.
    fn end_slice(&mut self, now: Instant) {
        if let Some(until) = self.slice_until.take() {
            self.earning_since = Some(now + now.saturating_duration_since(until) * SHARE);
        }
    }

    /// The time that background jobs have earned while persons had the lane.
    fn earned(&self, now: Instant) -> Duration {
        let since = self.earning_since.unwrap_or(now);
        (now.saturating_duration_since(since) / SHARE).min(SLICE)
    }

    fn give_back(&mut self, class: Class, now: Instant) {
        self.running = None;
        self.kept_until = match class {
            Class::Reactive => Some(now + KEPT),
            Class::Proactive => None,
        };
        self.end_slice(now);
        self.grant(now);
    }

    /// Gives a free lane to the job that comes next. Returns whether it has.
    fn grant(&mut self, now: Instant) -> bool {
        if self.running.is_some() {
            return false;
        }
        let is_kept = self.kept_for(now).is_some();
        let earned = self.earned(now);
        let has_slice = earned >= SLICE_MIN;
        let may_begin = |waiter: &&Waiter| !is_kept || has_slice || waiter.class == Class::Reactive;
        let urgency = |waiter: &Waiter| match waiter.class {
            Class::Proactive if has_slice => 0,
            Class::Reactive => 1,
            Class::Proactive => 2,
        };
        let waiting = self.waiting.iter().filter(may_begin);
        let next = waiting.min_by_key(|waiter| (urgency(waiter), waiter.number));
        let Some(next) = next.copied() else {
            return false;
        };
        self.waiting.retain(|waiter| waiter.number != next.number);
        self.running = Some(next.number);
        match next.class {
            Class::Reactive => drop(self.earning_since.get_or_insert(now)),
            Class::Proactive if has_slice => self.slice_until = Some(now + earned),
            // The lane is idle but for background jobs: they need no share of it.
            Class::Proactive => self.earning_since = None,
        }
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

/// Time of persons' jobs by which background jobs earn one unit of the lane's. Chosen: it costs a stream of
/// tokens 9% beside passages, half of it in the lane's caches; a twelfth of the time cost 11 to 13%.
const SHARE: u32 = 20;

/// Most time of the lane that is earned and not used. Chosen: several kernels of a small model, and less than half of the gap
/// between two tokens that a person would see.
const SLICE: Duration = Duration::from_millis(5);

/// Least time of a slice. Chosen: a kernel of a small model; the lane's caches are lost to a person each time.
const SLICE_MIN: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    const MS: Duration = Duration::from_millis(1);

    /// The longest job of [`no_job_waits_for_ever`].
    const LONGEST: Duration = Duration::from_millis(30);

    #[test]
    fn a_persons_job_comes_first_and_equals_take_turns() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let first = queue.enter(Class::Proactive);
        assert!(queue.grant(now));
        let background = queue.enter(Class::Proactive);
        let persons = [(); 2].map(|()| queue.enter(Class::Reactive));
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
        queue.enter(Class::Reactive);
        queue.grant(now);
        let background = queue.enter(Class::Proactive);
        queue.give_back(Class::Reactive, now);
        assert_eq!((queue.running, queue.kept_for(now)), (None, Some(KEPT)));
        let next = queue.enter(Class::Reactive);
        assert!(queue.grant(now + KEPT / 2));
        assert_eq!(queue.running, Some(next.number));
        queue.give_back(Class::Reactive, now + KEPT);
        assert!(!queue.grant(now + KEPT));
        assert!(queue.grant(now + KEPT * 2));
        assert_eq!(queue.running, Some(background.number));
    }

    #[test]
    fn background_jobs_earn_a_share_of_a_persons_time() {
        let (mut queue, begin) = (Queue::default(), Instant::now());
        let at = |ms: u32| begin + MS * ms;
        queue.enter(Class::Reactive);
        queue.grant(at(0));
        let background = queue.enter(Class::Proactive);
        queue.give_back(Class::Reactive, at(40));
        assert_eq!(
            queue.running,
            Some(background.number),
            "2 of 40 ms are earned"
        );
        let person = queue.enter(Class::Reactive);
        assert!(!queue.make_way(background, at(41)));
        assert!(queue.make_way(background, at(43)), "the slice is over");
        assert!(queue.grant(at(43)));
        assert_eq!(queue.running, Some(person.number));
        // A millisecond more than the slice was taken, and has to be earned first.
        for now in [63, 102] {
            queue.give_back(Class::Reactive, at(now));
            let next = queue.enter(Class::Reactive);
            queue.grant(at(now));
            assert_eq!(queue.running, Some(next.number), "at {now} ms");
        }
        queue.give_back(Class::Reactive, at(103));
        assert_eq!(queue.running, Some(background.number));
    }

    #[test]
    fn a_background_job_makes_way_for_a_person_alone() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let running = queue.enter(Class::Proactive);
        queue.grant(now);
        queue.enter(Class::Proactive);
        assert!(!queue.make_way(running, now));
        let person = queue.enter(Class::Reactive);
        assert!(queue.make_way(running, now + MS));
        assert!(queue.grant(now + MS));
        assert_eq!(queue.running, Some(person.number));
        queue.enter(Class::Reactive);
        assert!(!queue.make_way(person, now + MS));
    }

    proptest! {
        /// Whatever arrives, a lane has one job at a time, is not idle while a job may begin, and a background job gets it once
        /// it and those before it have earned their time.
        #[test]
        fn no_job_waits_for_ever(
            jobs in prop::collection::vec((0..40u64, 1..30u32, prop::bool::ANY), 1..80)
        ) {
            let (mut queue, mut now) = (Queue::default(), Instant::now());
            let mut at = now;
            let arrivals = jobs.into_iter().map(|(after, length, is_reactive)| {
                at += MS * after as u32;
                let class = if is_reactive { Class::Reactive } else { Class::Proactive };
                (at, MS * length, class)
            });
            let mut coming = arrivals.peekable();
            let mut lengths = std::collections::BTreeMap::new();
            let mut earning = Duration::ZERO;
            let mut running: Option<(Waiter, Instant)> = None;
            let mut known: Vec<(Waiter, Instant)> = Vec::new();
            loop {
                now += MS;
                while let Some((_, length, class)) = coming.next_if(|(at, ..)| *at <= now) {
                    let waiter = queue.enter(class);
                    lengths.insert(waiter.number, length);
                    known.push((waiter, now));
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
                        let known = known.iter().find(|(it, _)| it.number == number);
                        let (waiter, since) = *known.unwrap();
                        if waiter.class == Class::Proactive {
                            // Behind the person's job that runs.
                            let own = lengths[&number] * (SHARE + 1) + SLICE_MIN * SHARE;
                            earning += own + LONGEST + KEPT + MS;
                            prop_assert!(now - since <= earning);
                        }
                        running = Some((waiter, now + lengths[&number]));
                    }
                    (None, None) => {
                        let may_begin = queue.kept_for(now).is_none();
                        prop_assert!(!may_begin || queue.waiting.is_empty());
                    }
                    (None, Some(_)) => prop_assert!(false, "a job runs that has no lane"),
                }
                if queue.waiting.is_empty() && running.is_none() && coming.peek().is_none() {
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
