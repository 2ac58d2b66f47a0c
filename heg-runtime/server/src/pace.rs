//! The pace of answers that do not involve the engine: metrics, health, refusals. One costs nothing, but thousands a
//! second would delay everybody's tokens on the event loop.
//!
//! Each client has a pace of its own, and connections that have shown no token share one, so nobody waits for another
//! client's connections. Within a client, each connection has a credit of a few answers, and earns a few more a second.
//! Answers with the whole credit left are sent before others within the credit, and those before answers beyond it. So
//! a single connection is hardly delayed, a thousand take no more time than one, and a newcomer's first answer does not
//! wait for a thousand connections that were there before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as SyncMutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use super::account::Scope;

/// The paces of all clients.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The lines of each client that has connections.
    clients: SyncMutex<BTreeMap<Scope, Weak<Lines>>>,
    unknown: Arc<Lines>,
}

/// The lines of one client, in the order of their urgency.
#[derive(Debug, Default)]
struct Lines {
    first: Line,
    earned: Line,
    beyond: Line,
}

/// A line of answers that are sent one after the other at an interval. A connection that is closed leaves it.
#[derive(Debug, Default)]
struct Line {
    /// The time at which the next answer is due. Whoever is first in line holds the lock.
    due: Mutex<Option<Instant>>,
}

/// The pace of one connection.
#[derive(Debug)]
pub(super) struct ConnectionPace {
    own: SyncMutex<Own>,
}

#[derive(Debug)]
struct Own {
    credit: Credit,
    lines: Arc<Lines>,
    /// The client whose lines these are; `None` if the connection has shown no token.
    client: Option<Scope>,
}

/// The answers that a connection may have before those of others that ask more.
#[derive(Debug, Clone, Copy)]
struct Credit {
    answers: u32,
    /// The time at which the credit last grew.
    at: Instant,
}

/// The urgency of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Urgency {
    First,
    Earned,
    Beyond,
}

impl Pace {
    /// Returns the pace of a new connection, which has shown no token.
    pub(super) fn connection(&self, now: Instant) -> ConnectionPace {
        ConnectionPace {
            own: SyncMutex::new(Own {
                credit: Credit {
                    answers: CREDIT_MAX,
                    at: now,
                },
                lines: Arc::clone(&self.unknown),
                client: None,
            }),
        }
    }

    fn lines_of(&self, client: Scope) -> Arc<Lines> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lines) = clients.get(&client).and_then(Weak::upgrade) {
            return lines;
        }
        clients.retain(|_, lines| lines.strong_count() > 0);
        let lines = Arc::default();
        clients.insert(client, Arc::downgrade(&lines));
        lines
    }
}

impl ConnectionPace {
    /// Notes the client of the connection's requests.
    pub(super) fn belongs_to(&self, pace: &Pace, client: Scope) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if own.client != Some(client) {
            own.client = Some(client);
            own.lines = pace.lines_of(client);
        }
    }

    /// Waits until the next answer may be sent. An answer at once takes a turn too.
    pub(super) async fn turn(&self) {
        let (urgency, lines) = {
            let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            (own.credit.take(Instant::now()), Arc::clone(&own.lines))
        };
        match urgency {
            Urgency::First => lines.first.turn(AHEAD).await,
            Urgency::Earned => lines.earned.turn(AHEAD).await,
            Urgency::Beyond => lines.beyond.turn(Duration::ZERO).await,
        }
    }
}

impl Credit {
    /// Takes an answer off the credit and returns the answer's urgency.
    fn take(&mut self, now: Instant) -> Urgency {
        let grown = now.duration_since(self.at).as_millis() / CREDIT_TIME.as_millis();
        if grown > 0 {
            let grown = u32::try_from(grown).unwrap_or(u32::MAX);
            self.answers = self.answers.saturating_add(grown).min(CREDIT_MAX);
            self.at = now;
        }
        let urgency = match self.answers {
            CREDIT_MAX => Urgency::First,
            0 => Urgency::Beyond,
            _ => Urgency::Earned,
        };
        self.answers = self.answers.saturating_sub(1);
        urgency
    }
}

impl Line {
    /// Waits for a place at the front, and until the answer is due, at most `ahead` early. A caller that gives up its
    /// wait delays nobody.
    async fn turn(&self, ahead: Duration) {
        let mut due = self.due.lock().await;
        let at = turn_after(*due, Instant::now());
        if let Some(turn) = at.checked_sub(ahead) {
            sleep_until(turn).await;
        }
        *due = Some(at + INTERVAL);
    }
}

/// Returns the time of the turn after the one before it. Time in which nobody asked is not made up for.
fn turn_after(due: Option<Instant>, now: Instant) -> Instant {
    due.map_or(now, |due| due.max(now))
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
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_credit_is_first_earned_and_used_up() {
        let now = Instant::now();
        let mut credit = Credit {
            answers: CREDIT_MAX,
            at: now,
        };
        let taken: Vec<_> = (0..=CREDIT_MAX).map(|_| credit.take(now)).collect();
        assert_eq!(taken[0], Urgency::First);
        assert!(taken[1..8].iter().all(|it| *it == Urgency::Earned));
        assert_eq!(taken[8], Urgency::Beyond);
        assert_eq!(credit.take(now + CREDIT_TIME), Urgency::Earned);
        let long = now + CREDIT_TIME * (CREDIT_MAX + 1);
        assert_eq!(credit.take(long), Urgency::First);
    }

    #[test]
    fn turns_keep_their_interval_and_do_not_make_up_for_silence() {
        let now = Instant::now();
        assert_eq!(turn_after(None, now), now);
        let due = now + INTERVAL;
        assert_eq!(turn_after(Some(due), now), due);
        assert_eq!(turn_after(Some(due), due + INTERVAL), due + INTERVAL);
    }

    /// Whether a turn is still waited for when everything that could be done at once has been done.
    async fn waits(turn: impl Future<Output = ()>) -> bool {
        timeout(Duration::ZERO, turn).await.is_err()
    }

    /// Puts the next answer of a line off by an hour, as thousands of connections would.
    async fn crowd(line: &Line) {
        *line.due.lock().await = Some(Instant::now() + Duration::from_secs(3600));
    }

    #[tokio::test]
    async fn a_crowd_delays_neither_newcomers_nor_other_clients() {
        let pace = Pace::default();
        let [own, old, other] = [0, 0, 1].map(|client| {
            let connection = pace.connection(Instant::now());
            connection.belongs_to(&pace, Scope::Client(client));
            connection
        });
        old.turn().await;
        let lines = pace.lines_of(Scope::Client(0));
        crowd(&lines.earned).await;
        crowd(&lines.beyond).await;
        assert!(waits(old.turn()).await, "a crowd is before it");
        own.turn().await;
        crowd(&lines.first).await;
        crowd(&pace.unknown.first).await;
        other.turn().await;
        other.turn().await;
        assert!(waits(pace.connection(Instant::now()).turn()).await);
    }

    #[tokio::test]
    async fn a_connection_that_is_closed_leaves_the_line() {
        let line = Line::default();
        crowd(&line).await;
        assert!(waits(line.turn(AHEAD)).await);
        let due = *line.due.lock().await;
        crowd(&line).await;
        assert!(due < *line.due.lock().await, "its turn was not counted");
    }

    #[test]
    fn clients_who_left_are_forgotten() {
        let pace = Pace::default();
        drop(pace.lines_of(Scope::Client(0)));
        let kept = pace.lines_of(Scope::Client(1));
        assert_eq!(pace.clients.lock().unwrap().len(), 1);
        assert!(Arc::ptr_eq(&kept, &pace.lines_of(Scope::Client(1))));
    }
}
