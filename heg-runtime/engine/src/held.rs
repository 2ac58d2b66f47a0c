//! Requests that the scheduler does not have yet: those that arrived before kernels were ready, and those behind
//! an earlier call of their flow. They can be cancelled, and their deadlines pass, like those of any other
//! request.

use std::collections::VecDeque;
use std::time::Instant;

use super::message::Arrival;
use heg_sched::{FlowId, RequestId};

/// Requests in order of arrival.
#[derive(Default)]
pub(super) struct Held {
    arrivals: VecDeque<Arrival>,
    /// Time before which no deadline passes.
    next_deadline: Option<Instant>,
}

impl Held {
    pub(super) fn push(&mut self, arrival: Arrival) {
        let deadline = arrival.deadline();
        self.next_deadline = self.next_deadline.into_iter().chain(deadline).min();
        self.arrivals.push_back(arrival);
    }

    /// Time at which the next deadline may pass.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline
    }

    /// Takes out the requests whose deadline has passed.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<Arrival> {
        if self.next_deadline.is_none_or(|deadline| deadline > now) {
            return Vec::new();
        }
        let late = |arrival: &Arrival| arrival.deadline().is_some_and(|deadline| deadline <= now);
        let (late, held) = std::mem::take(&mut self.arrivals)
            .into_iter()
            .partition::<VecDeque<_>, _>(late);
        self.next_deadline = held.iter().filter_map(Arrival::deadline).min();
        self.arrivals = held;
        late.into()
    }

    /// Takes out a request.
    pub(super) fn remove(&mut self, id: RequestId) -> Option<Arrival> {
        self.remove_where(|arrival| arrival.id == id)
    }

    /// Takes out the next call of a flow.
    pub(super) fn next_of(&mut self, flow: FlowId) -> Option<Arrival> {
        self.remove_where(|arrival| arrival.request.flow == Some(flow))
    }

    fn remove_where(&mut self, which: impl Fn(&Arrival) -> bool) -> Option<Arrival> {
        let at = self.arrivals.iter().position(which)?;
        self.arrivals.remove(at)
    }

    /// Takes out all requests.
    pub(super) fn take_all(&mut self) -> VecDeque<Arrival> {
        self.next_deadline = None;
        std::mem::take(&mut self.arrivals)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arrival> {
        self.arrivals.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Request;

    fn arrival(id: u64, flow: u64, at: Instant, deadline_ms: Option<u64>) -> Arrival {
        Arrival {
            at,
            id: RequestId(id),
            request: Request {
                flow: Some(FlowId(flow)),
                deadline: deadline_ms.map(Duration::from_millis),
                ..Request::reactive(vec![1])
            },
            drafts: None,
            listener: Box::new(|_| ()),
            kept: None,
        }
    }

    #[test]
    fn deadlines_count_from_arrival_and_are_found_in_order() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut held = Held::default();
        assert_eq!(held.next_deadline(), None);
        held.push(arrival(1, 7, start, None));
        held.push(arrival(2, 7, start, Some(50)));
        held.push(arrival(3, 8, after(10), Some(20)));
        // Longer than the clock can represent: it never passes.
        held.push(arrival(4, 8, start, Some(u64::MAX)));
        assert_eq!(held.next_deadline(), Some(after(30)));
        assert!(held.expired(after(29)).is_empty());
        let expired: Vec<u64> = held.expired(after(30)).iter().map(|a| a.id.0).collect();
        assert_eq!(expired, [3]);
        assert_eq!(held.next_deadline(), Some(after(50)));
        assert_eq!(held.next_of(FlowId(7)).map(|a| a.id), Some(RequestId(1)));
        assert_eq!(held.remove(RequestId(2)).map(|a| a.id), Some(RequestId(2)));
        // Its deadline was the next, but it is gone: none expires, and the other request stays.
        assert!(held.expired(after(60)).is_empty());
        assert_eq!(held.take_all().len(), 1);
    }
}
