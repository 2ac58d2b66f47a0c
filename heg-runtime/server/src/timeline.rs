//! The recent launches of each lane, for the dashboard.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::recent::{Recent, SlowRequest};
use heg_sched::Observer;
use heg_sched::{Action, Class, Event, Hold, Lane, Micros, RequestId, Ticket, Work};

/// Records the last launches of an engine, which it observes; clones share the record.
///
/// It holds a bounded number of slices, and while nobody looks, a launch costs it no more than a lock.
#[derive(Clone, Default)]
pub struct Timeline(Arc<Mutex<Record>>);

/// Consecutive launches of one lane, class and kind: the finest detail that the dashboard shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Slice {
    #[serde(serialize_with = "lane_as_name")]
    lane: Lane,
    /// The most urgent class of the slice's requests.
    class: Class,
    kind: Kind,
    start_us: u64,
    end_us: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// A kernel of a prompt, or its head.
    Prefill,
    Decode,
    /// Prefill and decode in one iteration.
    Mixed,
}

/// The changes of a timeline since an earlier glimpse.
#[derive(Debug, Serialize)]
pub(super) struct Glimpse {
    /// Current time since the start of the engine.
    pub(super) now_us: u64,
    /// Number of completed slices: the value of `after` for the next query.
    pub(super) next: u64,
    /// The newly completed slices, as far as they are remembered.
    pub(super) past: Vec<Slice>,
    /// Slices that may still grow.
    pub(super) current: Vec<Slice>,
    /// Number of tokens of reactive answers since the start.
    pub(super) reactive_tokens: u64,
    /// Number of tokens of proactive answers since the start.
    pub(super) proactive_tokens: u64,
    /// The slowest request of the last minute.
    pub(super) slowest: Option<SlowRequest>,
}

struct Record {
    /// Time at which the engine's clock was 0; `None` before its first step.
    origin: Option<Instant>,
    past: VecDeque<Slice>,
    /// Number of slices that were ever added to `past`.
    past_count: u64,
    current: [Option<Current>; Lane::ALL.len()],
    /// The live reactive requests.
    reactive: HashSet<RequestId>,
    reactive_tokens: u64,
    proactive_tokens: u64,
    recent: Recent,
}

struct Current {
    slice: Slice,
    running: Option<Ticket>,
}

impl Timeline {
    /// Returns the changes since `seen` slices were complete. A number that is too high comes from an earlier
    /// server, and counts as 0.
    pub(super) fn glimpse(&self, seen: u64) -> Glimpse {
        let mut record = self.record();
        let seen = if seen > record.past_count { 0 } else { seen };
        let new = usize::try_from(record.past_count - seen).unwrap_or(usize::MAX);
        let known = record.past.len().saturating_sub(new);
        let elapsed = record.origin.map(|origin| origin.elapsed());
        let now_us = elapsed.map_or(0, |elapsed| elapsed.as_micros() as u64);
        let slowest = record.recent.slowest(Micros(now_us));
        let current = record.current.iter().flatten();
        Glimpse {
            now_us,
            next: record.past_count,
            past: record.past.range(known..).copied().collect(),
            current: current.map(|current| current.until(now_us)).collect(),
            reactive_tokens: record.reactive_tokens,
            proactive_tokens: record.proactive_tokens,
            slowest,
        }
    }

    /// Notes the name of an answer, so that its wait can be explained.
    pub(super) fn answers(&self, name: &str, request: RequestId) {
        self.record().recent.answers(name, request);
    }

    /// Returns why an answer took its time up to the first token; `None` before its end, or if nobody looked.
    pub(super) fn answer(&self, name: &str) -> Option<SlowRequest> {
        self.record().recent.answer(name)
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Timeline {
    fn stepped(&mut self, now: Micros, event: &Event, actions: &[Action]) {
        let mut record = self.record();
        if record.origin.is_none() {
            record.origin = Instant::now().checked_sub(Duration::from_micros(now.0));
        }
        record.recent.stepped(now, event, actions);
        match event {
            Event::Submit(submission) if submission.class == Class::Reactive => {
                record.reactive.insert(submission.id);
            }
            Event::Done { ticket, .. } | Event::Failed(ticket) | Event::OutOfMemory(ticket) => {
                record.launch_ended(|current| current.running == Some(*ticket), now);
            }
            // A lane that was reset gives up its running work.
            Event::Lost(lane) | Event::Ready(lane) => {
                record.launch_ended(|current| current.slice.lane == *lane, now);
            }
            _ => {}
        }
        for action in actions {
            match action {
                Action::Launch { lane, ticket, work } => {
                    record.launch_begun(*lane, *ticket, work, now);
                }
                Action::Emit(id) if record.reactive.contains(id) => record.reactive_tokens += 1,
                Action::Emit(_) => record.proactive_tokens += 1,
                Action::Finish(id, _) => drop(record.reactive.remove(id)),
                _ => {}
            }
        }
    }

    fn asks_why(&self) -> bool {
        self.record().recent.is_watched()
    }

    fn held(&mut self, now: Micros, holds: &[Hold]) {
        self.record().recent.held(now, holds);
    }
}

impl Record {
    fn launch_begun(&mut self, lane: Lane, ticket: Ticket, work: &Work, now: Micros) {
        let slice = Slice {
            lane,
            class: self.class(work),
            kind: Kind::of(work),
            start_us: now.0,
            end_us: now.0,
        };
        let current = &mut self.current[lane as usize];
        match current {
            Some(current) if current.slice.goes_on_with(&slice) => current.running = Some(ticket),
            _ => {
                let running = Some(ticket);
                let before = current.replace(Current { slice, running });
                if let Some(before) = before {
                    self.remember(before.slice);
                }
            }
        }
    }

    fn launch_ended(&mut self, is_it: impl Fn(&Current) -> bool, now: Micros) {
        let running = |current: &&mut Current| current.running.is_some() && is_it(current);
        if let Some(current) = self.current.iter_mut().flatten().find(running) {
            current.slice.end_us = now.0;
            current.running = None;
        }
    }

    fn remember(&mut self, slice: Slice) {
        if self.past.len() == SLICES_MAX {
            self.past.pop_front();
        }
        self.past.push_back(slice);
        self.past_count += 1;
    }

    fn class(&self, work: &Work) -> Class {
        let reactive = |id: &RequestId| self.reactive.contains(id);
        let urgent = match work {
            Work::Prefill { request, .. } | Work::Head(request) => reactive(request),
            Work::Decode(run) => run.batch.iter().any(|member| reactive(&member.request)),
            Work::Mixed { batch, prompts } => {
                let decoding = batch.iter().any(|member| reactive(&member.request));
                decoding || prompts.iter().any(|(id, _)| reactive(id))
            }
        };
        match urgent {
            true => Class::Reactive,
            false => Class::Proactive,
        }
    }
}

impl Default for Record {
    fn default() -> Self {
        Self {
            origin: None,
            past: VecDeque::with_capacity(SLICES_MAX),
            past_count: 0,
            current: [const { None }; Lane::ALL.len()],
            reactive: HashSet::new(),
            reactive_tokens: 0,
            proactive_tokens: 0,
            recent: Recent::default(),
        }
    }
}

impl Slice {
    fn goes_on_with(&self, next: &Self) -> bool {
        self.class == next.class
            && self.kind == next.kind
            && next.start_us.saturating_sub(self.end_us) <= GAP_US
            && next.start_us.saturating_sub(self.start_us) <= SLICE_US
    }
}

impl Current {
    fn until(&self, now_us: u64) -> Slice {
        let mut slice = self.slice;
        if self.running.is_some() {
            slice.end_us = now_us.max(slice.end_us);
        }
        slice
    }
}

impl Kind {
    fn of(work: &Work) -> Self {
        match work {
            Work::Prefill { .. } | Work::Head(_) => Self::Prefill,
            Work::Decode(_) => Self::Decode,
            Work::Mixed { .. } => Self::Mixed,
        }
    }
}

/// Returns the name of a lane in metrics and on the page.
pub(super) fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Npu => "npu",
        Lane::Igpu => "igpu",
        Lane::Cpu => "cpu",
    }
}

fn lane_as_name<S: serde::Serializer>(lane: &Lane, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(lane_name(*lane))
}

/// Maximum number of remembered slices: 160 KB. Chosen; two busy lanes that change class all the time fill it in
/// half a minute or more.
const SLICES_MAX: usize = 4096;

/// Longest pause between two launches that a slice hides, in µs. Chosen.
const GAP_US: u64 = 1_000;

/// Longest slice, in µs; a longer one is split. Chosen.
const SLICE_US: u64 = 50_000;

#[cfg(test)]
mod tests {
    use super::*;
    use heg_sched::{ClientId, Finish, PromptLogits, Submission};

    fn submit(id: u64, class: Class) -> Event {
        Event::Submit(Submission {
            id: RequestId(id),
            client: ClientId::default(),
            flow: None,
            class,
            prompt_tokens: 5,
            shared_tokens: 0,
            kept_tokens: 0,
            output_tokens_max: 9,
            deadline: None,
            prompt_logits: PromptLogits::LastRow,
        })
    }

    fn head(lane: Lane, ticket: u64, id: u64) -> Action {
        Action::Launch {
            lane,
            ticket: Ticket(ticket),
            work: Work::Head(RequestId(id)),
        }
    }

    fn done(ticket: u64) -> Event {
        Event::Done {
            ticket: Ticket(ticket),
            layers: 0,
            ended: Vec::new(),
            given: Vec::new(),
        }
    }

    #[test]
    fn launches_of_a_kind_become_one_slice() {
        let timeline = Timeline::default();
        let mut observer = timeline.clone();
        let mut step = |now, event, actions: &[Action]| {
            observer.stepped(Micros(now), &event, actions);
        };
        step(10, submit(0, Class::Proactive), &[head(Lane::Igpu, 0, 0)]);
        step(300, done(0), &[head(Lane::Igpu, 1, 0)]);
        let seen = timeline.glimpse(0);
        assert_eq!((seen.past.len(), seen.current.len()), (0, 1));
        assert_eq!(seen.current[0].start_us, 10);
        assert!(seen.current[0].end_us >= 300, "it is running");
        // Another class, on the same lane.
        step(500, submit(1, Class::Reactive), &[]);
        let actions = [Action::Emit(RequestId(0)), head(Lane::Igpu, 2, 1)];
        step(600, done(1), &actions);
        let actions = [
            Action::Emit(RequestId(1)),
            Action::Finish(RequestId(1), Finish::Complete),
        ];
        step(900, done(2), &actions);
        // After a pause, the same again.
        step(9_000, Event::Timer, &[head(Lane::Igpu, 3, 0)]);
        let seen = timeline.glimpse(seen.next);
        let slice = |class, start_us, end_us| Slice {
            lane: Lane::Igpu,
            class,
            kind: Kind::Prefill,
            start_us,
            end_us,
        };
        assert_eq!(
            seen.past,
            [
                slice(Class::Proactive, 10, 600),
                slice(Class::Reactive, 600, 900)
            ]
        );
        assert_eq!((seen.reactive_tokens, seen.proactive_tokens), (1, 1));
        assert_eq!(timeline.glimpse(seen.next).past, []);
        assert_eq!(timeline.glimpse(seen.next + 1).past.len(), 2);
        // A lane that is lost runs nothing.
        step(9_500, Event::Lost(Lane::Igpu), &[]);
        assert_eq!(timeline.glimpse(0).current[0].end_us, 9_500);
        assert!(timeline.record().reactive.is_empty());
    }

    #[test]
    fn the_oldest_slices_make_room() {
        let timeline = Timeline::default();
        let mut observer = timeline.clone();
        let launches = SLICES_MAX as u64 + 10;
        observer.stepped(Micros(0), &submit(0, Class::Proactive), &[]);
        for launch in 0..=launches {
            let start = Micros(launch * 10 * GAP_US);
            observer.stepped(start, &Event::Timer, &[head(Lane::Npu, launch, 0)]);
            observer.stepped(Micros(start.0 + 1), &done(launch), &[]);
        }
        let seen = timeline.glimpse(0);
        assert_eq!(seen.next, launches);
        assert_eq!(seen.past.len(), SLICES_MAX);
        assert_eq!(seen.past[0].start_us, 10 * 10 * GAP_US);
        assert_eq!(timeline.record().past.capacity(), SLICES_MAX);
        assert_eq!(timeline.glimpse(launches - 3).past.len(), 3);
    }
}
