//! The order in which jobs have a lane.

use std::time::{Duration, Instant};

use heg_sched::Class;

use super::EngineNumber;
use super::background::BackgroundTime;

/// The jobs that wait for a lane. Time is the caller's.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The job that has the lane, and since when.
    running: Option<(Waiter, Instant)>,
    waiting: Vec<Waiter>,
    /// End of the moment in which only a person's job may begin.
    kept_until: Option<Instant>,
    /// The time from which background jobs have earned their share, if persons have had the lane since.
    earning_since: Option<Instant>,
    /// End of the slice in which the background job that runs makes way for nobody.
    slice_until: Option<Instant>,
    /// The time that background jobs of each engine have had the lane.
    background: BackgroundTime,
    next: u64,
}

/// A job that waits for a lane, or has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiter {
    /// Place in the order of arrival.
    number: u64,
    engine: EngineNumber,
    class: Class,
}

impl Queue {
    pub(super) fn enter(&mut self, engine: EngineNumber, class: Class) -> Waiter {
        let waiter = Waiter {
            number: self.next,
            engine,
            class,
        };
        self.next += 1;
        if class == Class::Proactive {
            self.background.enter(engine);
        }
        self.waiting.push(waiter);
        waiter
    }

    /// Whether a job has the lane.
    pub(super) fn has(&self, waiter: Waiter) -> bool {
        matches!(self.running, Some((running, _)) if running.number == waiter.number)
    }

    /// Takes the lane from the job that has it.
    fn stop(&mut self, now: Instant) {
        self.end_slice(now);
        let Some((waiter, since)) = self.running.take() else {
            return;
        };
        if waiter.class == Class::Proactive {
            let time = now.saturating_duration_since(since);
            self.background.ran(waiter.engine, time);
        }
    }

    /// Has a background job that runs wait again, if a person's waits. Returns whether it has to.
    pub(super) fn make_way(&mut self, running: Waiter, now: Instant) -> bool {
        let is_persons = |waiter: &Waiter| waiter.class == Class::Reactive;
        let is_in_slice = self.slice_until.is_some_and(|until| now < until);
        if is_persons(&running) || is_in_slice || !self.waiting.iter().any(is_persons) {
            return false;
        }
        self.stop(now);
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

    /// The job that has the lane has ended.
    pub(super) fn give_back(&mut self, now: Instant) {
        let Some((ended, _)) = self.running else {
            return;
        };
        self.kept_until = match ended.class {
            Class::Reactive => Some(now + KEPT),
            Class::Proactive => None,
        };
        self.stop(now);
        self.grant(now);
    }

    /// Gives a free lane to the job that comes next. Returns whether it has.
    pub(super) fn grant(&mut self, now: Instant) -> bool {
        if self.running.is_some() {
            return false;
        }
        let is_kept = self.kept_for(now).is_some();
        let earned = self.earned(now);
        let has_slice = earned >= SLICE_MIN;
        let may_begin = |waiter: &&Waiter| !is_kept || has_slice || waiter.class == Class::Reactive;
        let had = |waiter: &Waiter| self.background.had(waiter.engine);
        let urgency = |waiter: &Waiter| match waiter.class {
            Class::Proactive if has_slice => (0, had(waiter)),
            Class::Reactive => (1, Duration::ZERO),
            Class::Proactive => (2, had(waiter)),
        };
        let waiting = self.waiting.iter().filter(may_begin);
        let next = waiting.min_by_key(|waiter| (urgency(waiter), waiter.number));
        let Some(next) = next.copied() else {
            return false;
        };
        self.waiting.retain(|waiter| waiter.number != next.number);
        self.running = Some((next, now));
        match next.class {
            Class::Reactive => drop(self.earning_since.get_or_insert(now)),
            Class::Proactive if has_slice => self.slice_until = Some(now + earned),
            // The lane is idle but for background jobs: they need no share of it.
            Class::Proactive => self.earning_since = None,
        }
        true
    }

    /// The rest of the moment in which only a person's job may begin.
    pub(super) fn kept_for(&self, now: Instant) -> Option<Duration> {
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
    use super::super::background::CREDIT;
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    /// The longest job of [`no_job_waits_for_ever`].
    const LONGEST: Duration = Duration::from_millis(30);

    const ONE: EngineNumber = EngineNumber(1);

    fn number_of(queue: &Queue) -> Option<u64> {
        queue.running.map(|(waiter, _)| waiter.number)
    }

    #[test]
    fn a_persons_job_comes_first_and_equals_take_turns() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let first = queue.enter(ONE, Class::Proactive);
        assert!(queue.grant(now));
        let background = queue.enter(ONE, Class::Proactive);
        let persons = [(); 2].map(|()| queue.enter(ONE, Class::Reactive));
        assert!(!queue.grant(now));
        assert_eq!(number_of(&queue), Some(first.number));
        for person in persons {
            queue.give_back(now);
            assert_eq!(number_of(&queue), Some(person.number));
        }
        queue.give_back(now);
        queue.grant(now + KEPT);
        assert_eq!(number_of(&queue), Some(background.number));
    }

    #[test]
    fn a_lane_is_kept_for_a_persons_next_kernel() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.enter(ONE, Class::Reactive);
        queue.grant(now);
        let background = queue.enter(ONE, Class::Proactive);
        queue.give_back(now);
        assert_eq!((number_of(&queue), queue.kept_for(now)), (None, Some(KEPT)));
        let next = queue.enter(ONE, Class::Reactive);
        assert!(queue.grant(now + KEPT / 2));
        assert_eq!(number_of(&queue), Some(next.number));
        queue.give_back(now + KEPT);
        assert!(!queue.grant(now + KEPT));
        assert!(queue.grant(now + KEPT * 2));
        assert_eq!(number_of(&queue), Some(background.number));
    }

    #[test]
    fn background_jobs_earn_a_share_of_a_persons_time() {
        let (mut queue, begin) = (Queue::default(), Instant::now());
        let at = |ms: u32| begin + MS * ms;
        queue.enter(ONE, Class::Reactive);
        queue.grant(at(0));
        let background = queue.enter(ONE, Class::Proactive);
        queue.give_back(at(40));
        assert_eq!(
            number_of(&queue),
            Some(background.number),
            "2 of 40 ms are earned"
        );
        let person = queue.enter(ONE, Class::Reactive);
        assert!(!queue.make_way(background, at(41)));
        assert!(queue.make_way(background, at(43)), "the slice is over");
        assert!(queue.grant(at(43)));
        assert_eq!(number_of(&queue), Some(person.number));
        // A millisecond more than the slice was taken, and has to be earned first.
        for now in [63, 102] {
            queue.give_back(at(now));
            let next = queue.enter(ONE, Class::Reactive);
            queue.grant(at(now));
            assert_eq!(number_of(&queue), Some(next.number), "at {now} ms");
        }
        queue.give_back(at(103));
        assert_eq!(number_of(&queue), Some(background.number));
    }

    #[test]
    fn a_background_job_makes_way_for_a_person_alone() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let running = queue.enter(ONE, Class::Proactive);
        queue.grant(now);
        queue.enter(ONE, Class::Proactive);
        assert!(!queue.make_way(running, now));
        let person = queue.enter(ONE, Class::Reactive);
        assert!(queue.make_way(running, now + MS));
        assert!(queue.grant(now + MS));
        assert_eq!(number_of(&queue), Some(person.number));
        queue.enter(ONE, Class::Reactive);
        assert!(!queue.make_way(person, now + MS));
    }

    /// Runs background jobs that always wait for one of two engines each; `queue` has one of each waiting. Returns the time
    /// that each one's had.
    fn contend(queue: &mut Queue, begin: Instant, lengths: [u32; 2], until: u32) -> [u32; 2] {
        let (mut had, mut now) = ([0; 2], begin);
        while now < begin + MS * until {
            queue.grant(now);
            let (running, _) = queue.running.unwrap();
            let index = running.engine.0 as usize;
            now += MS * lengths[index];
            had[index] += lengths[index];
            queue.enter(running.engine, Class::Proactive);
            queue.give_back(now);
        }
        had
    }

    #[test]
    fn an_engine_that_had_the_lane_for_less_time_comes_first() {
        let (mut queue, begin) = (Queue::default(), Instant::now());
        for engine in [0, 1] {
            queue.enter(EngineNumber(engine), Class::Proactive);
        }
        let [long, short] = contend(&mut queue, begin, [30, 5], 6000);
        assert!(long.abs_diff(short) <= 30, "{long} and {short} ms");
    }

    #[test]
    fn an_engine_that_rested_is_a_little_ahead() {
        let (mut queue, begin) = (Queue::default(), Instant::now());
        queue.enter(EngineNumber(0), Class::Proactive);
        contend(&mut queue, begin, [10, 10], 60_000);
        queue.enter(EngineNumber(1), Class::Proactive);
        let now = begin + MS * 60_000;
        let [busy, rested] = contend(&mut queue, now, [10, 10], 1000);
        let credit = CREDIT.as_millis() as u32;
        assert!(
            rested - busy <= credit + 20 && rested > busy,
            "{rested} and {busy} ms"
        );
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
            let mut current: Option<(Waiter, Instant)> = None;
            let mut known: Vec<(Waiter, Instant)> = Vec::new();
            loop {
                now += MS;
                while let Some((_, length, class)) = coming.next_if(|(at, ..)| *at <= now) {
                    let waiter = queue.enter(ONE, class);
                    lengths.insert(waiter.number, length);
                    known.push((waiter, now));
                }
                if let Some((_, until)) = current
                    && until <= now
                {
                    queue.give_back(now);
                    current = None;
                }
                queue.grant(now);
                match (number_of(&queue), current) {
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
                        current = Some((waiter, now + lengths[&number]));
                    }
                    (None, None) => {
                        let may_begin = queue.kept_for(now).is_none();
                        prop_assert!(!may_begin || queue.waiting.is_empty());
                    }
                    (None, Some(_)) => prop_assert!(false, "a job runs that has no lane"),
                }
                if queue.waiting.is_empty() && current.is_none() && coming.peek().is_none() {
                    break;
                }
            }
        }
    }
}
