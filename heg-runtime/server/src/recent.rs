//! The events of the last minutes, to explain a slow request on the dashboard.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;

use heg_sched::{Action, Class, Event, Hold, Micros, RequestId};
use heg_workload::{Explanation, RunTrace, TraceEvent, TraceRecorder, TracedRequest, explain};

/// Records events while somebody looks at the page; a bounded number of them, for a bounded time.
#[derive(Default)]
pub(super) struct Recent {
    /// The last time at which the page was read.
    looked: Option<Instant>,
    recorder: TraceRecorder,
    events: VecDeque<TraceEvent>,
    /// The last explanation, which no longer changes.
    explained: Option<(RequestId, SlowRequest)>,
    /// The latest answers, by name, the oldest first.
    answers: VecDeque<(String, RequestId)>,
}

/// A request, with the reasons why it was slow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SlowRequest {
    request: u64,
    class: Class,
    /// Time to its first token.
    time_us: u64,
    /// The causes of its time, the largest first.
    causes: Vec<SlowShare>,
}

/// The time that a cause took.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct SlowShare {
    text: String,
    time_us: u64,
    /// The spans of the cause, in thousandths of the whole.
    spans: Vec<[u32; 2]>,
}

impl Recent {
    /// Returns whether events are recorded, because somebody has looked recently.
    pub(super) fn is_watched(&self) -> bool {
        self.looked.is_some_and(|at| at.elapsed() < WATCH)
    }

    pub(super) fn stepped(&mut self, now: Micros, event: &Event, actions: &[Action]) {
        if !self.is_watched() {
            if self.looked.is_some() {
                *self = Self::default();
            }
            return;
        }
        let events = &mut self.events;
        let remember = |event| events.push_back(event);
        self.recorder.stepped(now, event, actions, remember);
        let is_old = |event: &TraceEvent| now.since(event.time()) > KEPT;
        while events.len() > EVENTS_MAX || events.front().is_some_and(is_old) {
            events.pop_front();
        }
    }

    pub(super) fn held(&mut self, now: Micros, holds: &[Hold]) {
        if !self.is_watched() {
            return;
        }
        let events = &mut self.events;
        self.recorder
            .held(now, holds, |event| events.push_back(event));
    }

    /// Returns the request with the longest TTFT among those that ended in the last minute, a reactive one if there is
    /// any. Also notes that somebody looks.
    pub(super) fn slowest(&mut self, now: Micros) -> Option<SlowRequest> {
        self.looked = Some(Instant::now());
        let request = self
            .ended_since(now.since(MINUTE))
            .max_by_key(|(waited, request)| (Reverse(request.class), *waited, request.id))
            .map(|(_, request)| *request)?;
        if let Some((_, slow)) = self.explained.as_ref().filter(|(id, _)| *id == request.id) {
            return Some(slow.clone());
        }
        let slow = self.explanation(&request)?;
        self.explained = Some((request.id, slow.clone()));
        Some(slow)
    }

    /// Notes the name of an answer, if somebody looks.
    pub(super) fn answers(&mut self, name: &str, request: RequestId) {
        if !self.is_watched() {
            return;
        }
        while self.answers.len() >= ANSWERS_MAX {
            self.answers.pop_front();
        }
        self.answers.push_back((name.to_owned(), request));
    }

    /// Returns why an answer took its time up to the first token, once it has ended.
    pub(super) fn answer(&self, name: &str) -> Option<SlowRequest> {
        let (_, id) = self.answers.iter().find(|(known, _)| known == name)?;
        let mut ended = self.ended_since(Micros(0));
        let (_, request) = ended.find(|(_, request)| request.id == *id)?;
        self.explanation(request)
    }

    /// Explains a request from the events since its arrival.
    fn explanation(&self, request: &TracedRequest) -> Option<SlowRequest> {
        let concerns = |event: &&TraceEvent| {
            event.time() >= request.arrived || matches!(event, TraceEvent::Arrived(_))
        };
        let mut trace = RunTrace::default();
        self.events
            .iter()
            .filter(concerns)
            .for_each(|event| trace.add(event.clone()));
        Some(SlowRequest::of(&explain(&trace, request.id).ok()?))
    }

    /// Returns the requests that ended since a time, each with its TTFT.
    fn ended_since(&self, since: Micros) -> impl Iterator<Item = (Micros, &TracedRequest)> {
        self.events.iter().filter_map(move |event| {
            let TraceEvent::Ended(request) = event else {
                return None;
            };
            let waited = request.first_token?.since(request.arrived);
            let (ended, _) = request.ended?;
            (ended >= since).then_some((waited, request))
        })
    }
}

impl SlowRequest {
    fn of(explanation: &Explanation) -> Self {
        let stretch = &explanation.first_token;
        let shares = stretch.shares.iter().zip(0..SHARES_MAX);
        let causes = shares.map(|(share, place)| SlowShare {
            text: share.text.clone(),
            time_us: share.time.0,
            spans: stretch.spans(place, THOUSANDTHS),
        });
        Self {
            request: explanation.request.id.0,
            class: explanation.request.class,
            time_us: stretch.time().0,
            causes: causes.collect(),
        }
    }
}

/// Parts into which the time of a request is divided for the picture.
const THOUSANDTHS: u32 = 1000;

/// Maximum number of causes that are shown. Chosen: the others take next to no time.
const SHARES_MAX: usize = 8;

/// Time after the last look for which recording goes on. Chosen: an open page looks twice a second.
const WATCH: Duration = Duration::from_secs(60);

/// Answers whose names are known at a time. Chosen: a page asks about its answer as soon as that has ended.
const ANSWERS_MAX: usize = 64;

const MINUTE: Micros = Micros(60_000_000);

/// Time for which events are kept. Chosen: a request that ended in the last minute may have arrived minutes before.
const KEPT: Micros = Micros(300_000_000);

/// Maximum number of events that are kept: some 10 MB. Chosen; a lane has hundreds to thousands of launches a second.
const EVENTS_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use heg_sched::{ClientId, Finish, HoldReason, Lane, PromptLogits, Submission, Ticket, Work};

    use super::*;

    /// Records a request that waits for some time and then runs the head.
    fn serve(recent: &mut Recent, id: u64, class: Class, (arrived, waits_us): (u64, u64)) {
        let request = RequestId(id);
        let submit = Event::Submit(Submission {
            id: request,
            client: ClientId::default(),
            flow: None,
            class,
            prompt_tokens: 5,
            shared_tokens: 0,
            kept_tokens: 0,
            output_tokens_max: 1,
            deadline: None,
            prompt_logits: PromptLogits::LastRow,
        });
        let ticket = Ticket(id);
        let launch = Action::Launch {
            lane: Lane::Cpu,
            ticket,
            work: Work::Head(request),
        };
        let done = Event::Done {
            ticket,
            layers: 0,
            ended: vec![request],
            given: Vec::new(),
        };
        let hold = Hold {
            request,
            why: HoldReason::Memory,
        };
        let mut step = |now, event: &Event, actions: &[Action], holds: &[Hold]| {
            recent.stepped(Micros(now), event, actions);
            recent.held(Micros(now), holds);
        };
        step(arrived, &submit, &[], &[hold]);
        step(arrived + waits_us, &Event::Timer, &[launch], &[]);
        let actions = [
            Action::Emit(request),
            Action::Finish(request, Finish::Complete),
        ];
        step(arrived + waits_us + 10, &done, &actions, &[]);
    }

    #[test]
    fn the_slowest_request_is_explained_while_somebody_looks() {
        let mut recent = Recent::default();
        serve(&mut recent, 1, Class::Reactive, (0, 500));
        assert!(!recent.is_watched() && recent.events.is_empty());
        assert_eq!(recent.slowest(Micros(1000)), None);
        assert!(recent.is_watched());
        serve(&mut recent, 2, Class::Reactive, (1000, 90));
        serve(&mut recent, 3, Class::Proactive, (2000, 900));
        serve(&mut recent, 4, Class::Reactive, (3000, 30));
        let slow = recent.slowest(Micros(4000)).unwrap();
        assert_eq!(
            (slow.request, slow.class, slow.time_us),
            (2, Class::Reactive, 100)
        );
        assert_eq!(slow.causes[0].text, "waiting for KV memory");
        assert_eq!(slow.causes[0].spans, [[0, 900]]);
        assert_eq!(slow.causes[1].spans, [[900, 1000]]);
        assert_eq!(recent.slowest(Micros(4000)), Some(slow));
        // A minute later the first request no longer counts.
        let later = MINUTE.0 + 1500;
        assert_eq!(recent.slowest(Micros(later)).unwrap().request, 4);
        assert_eq!(recent.slowest(Micros(later + MINUTE.0)), None);
    }

    #[test]
    fn an_answer_is_explained_by_its_name() {
        let mut recent = Recent::default();
        recent.answers("early", RequestId(1));
        assert!(recent.answers.is_empty());
        recent.slowest(Micros(0));
        recent.answers("first", RequestId(1));
        recent.answers("second", RequestId(2));
        assert_eq!(recent.answer("first"), None);
        serve(&mut recent, 1, Class::Reactive, (0, 500));
        serve(&mut recent, 2, Class::Proactive, (1000, 90));
        assert_eq!(recent.answer("first").unwrap().time_us, 510);
        assert_eq!(recent.answer("second").unwrap().time_us, 100);
        assert_eq!(recent.answer("third"), None);
    }

    #[test]
    fn what_it_remembers_is_bounded() {
        let mut recent = Recent::default();
        recent.slowest(Micros(0));
        for id in 0..=ANSWERS_MAX as u64 {
            recent.answers(&id.to_string(), RequestId(id));
        }
        assert_eq!(recent.answers.len(), ANSWERS_MAX);
        for id in 0..EVENTS_MAX as u64 {
            serve(&mut recent, id, Class::Proactive, (id * 200, 90));
        }
        assert!(recent.events.len() <= EVENTS_MAX + 1);
        let much_later = EVENTS_MAX as u64 * 200 + KEPT.0 + 1;
        serve(&mut recent, u64::MAX, Class::Proactive, (much_later, 90));
        assert!(recent.events.len() < 10);
    }
}
