//! The pace of answers that do not involve the engine: metrics, health, refusals. One costs nothing, but thousands a
//! second would delay everybody's tokens on the event loop.
//!
//! Each connection has a credit of a few answers, and earns a few more a second. Answers within the credit have
//! priority over those beyond it; each kind has one pace, shared by all connections. So a single connection is hardly
//! delayed, and a thousand take no more time than one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The pace of all connections together.
#[derive(Debug, Default)]
pub(super) struct Pace {
    earned: Line,
    beyond: Line,
}

/// A line of answers that are sent one after the other at an interval.
#[derive(Debug, Default)]
struct Line {
    /// The time at which the last answer was due, had all of them kept the interval.
    due: Mutex<Option<Instant>>,
}

/// The pace of one connection.
#[derive(Debug)]
pub(super) struct ConnectionPace {
    common: Arc<Pace>,
    own: Mutex<Credit>,
}

#[derive(Debug, Clone, Copy)]
struct Credit {
    answers: u32,
    /// The time at which the credit last grew.
    at: Instant,
}

impl Pace {
    /// Returns the pace of a new connection.
    pub(super) fn connection(self: &Arc<Self>, now: Instant) -> ConnectionPace {
        ConnectionPace {
            common: Arc::clone(self),
            own: Mutex::new(Credit {
                answers: CREDIT_MAX,
                at: now,
            }),
        }
    }
}

impl Line {
    /// Returns the time at which the next answer may be sent; `None` if at once. Answers that are due within `ahead`
    /// may be sent early.
    fn turn(&self, now: Instant, ahead: Duration) -> Option<Instant> {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let at = due.map_or(now, |due| due.max(now));
        *due = Some(at + INTERVAL);
        at.checked_sub(ahead).filter(|turn| *turn > now)
    }
}

impl ConnectionPace {
    /// Returns the time at which the next answer may be sent; `None` if at once.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let grown = now.duration_since(own.at).as_millis() / CREDIT_TIME.as_millis();
        if grown > 0 {
            let grown = u32::try_from(grown).unwrap_or(u32::MAX);
            own.answers = own.answers.saturating_add(grown).min(CREDIT_MAX);
            own.at = now;
        }
        match own.answers.checked_sub(1) {
            Some(left) => {
                own.answers = left;
                self.common.earned.turn(now, AHEAD)
            }
            None => self.common.beyond.turn(now, Duration::ZERO),
        }
    }
}

/// Number of answers that a connection has as credit. Chosen: a page with all its parts, and a few scrapes.
const CREDIT_MAX: u32 = 8;

/// Time in which a connection earns another answer. Chosen: the page asks twice a second.
const CREDIT_TIME: Duration = Duration::from_millis(500);

/// Time between two answers of a line. Chosen: fifty times what the event loop needs for one.
const INTERVAL: Duration = Duration::from_millis(2);

/// Time by which earned answers may be early, as the time in which they would be due. Chosen: the pages of some thirty
/// readers.
const AHEAD: Duration = Duration::from_millis(512);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_connections_take_no_more_than_one() {
        let pace = Arc::new(Pace::default());
        let now = Instant::now();
        let connections: Vec<_> = (0..1000).map(|_| pace.connection(now)).collect();
        let asked = connections
            .iter()
            .flat_map(|each| (0..CREDIT_MAX).map(|_| each.next(now)));
        let turns: Vec<_> = asked.flatten().collect();
        let at_once = 1000 * CREDIT_MAX as usize - turns.len();
        assert_eq!(at_once as u32, AHEAD.div_duration_f64(INTERVAL) as u32 + 1);
        assert!(turns.windows(2).all(|pair| pair[1] - pair[0] == INTERVAL));
        // Answers beyond the credit have a line of their own.
        assert_eq!(connections[0].next(now), None);
        let beyond = connections[1].next(now);
        assert_eq!(beyond, Some(now + INTERVAL));
    }

    #[test]
    fn one_that_asks_seldom_is_not_held_up_by_one_that_asks_on() {
        let pace = Arc::new(Pace::default());
        let now = Instant::now();
        let greedy = pace.connection(now);
        let turns: Vec<_> = (0..1000).filter_map(|_| greedy.next(now)).collect();
        assert_eq!(turns.last(), Some(&(now + INTERVAL * 991)));
        assert_eq!(pace.connection(now).next(now), None);
        // The connection earns as many answers as the page asks for.
        let later = now + CREDIT_TIME;
        assert_eq!(greedy.next(later), None);
        assert!(greedy.next(later).is_some());
    }
}
