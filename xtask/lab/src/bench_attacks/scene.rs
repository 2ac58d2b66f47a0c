//! A server from the attack's point of view: connections, the stop signal, and a record of the answers.

use super::server::{ATTACKER, AttackedServer, Start};
use super::wire::{self, Ending, Reply, Wire};
use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A server, and an attack's record of it.
pub(super) struct Scene<'a> {
    pub(super) server: &'a AttackedServer,
    /// The way to start the server, for an attack that compares two servers.
    pub(super) start: &'a Start,
    is_over: AtomicBool,
    sent: Mutex<Vec<Sent>>,
}

/// A request of the attacker.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Sent {
    pub(super) seconds: f64,
    pub(super) became: Became,
}

/// The outcome of an attacker's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) enum Became {
    Answered {
        status: u16,
        reason: String,
    },
    /// The server closed the connection without an answer.
    Cut,
    /// The attack ended before the answer.
    Waiting,
}

impl<'a> Scene<'a> {
    pub(super) fn new(server: &'a AttackedServer, start: &'a Start) -> Self {
        Self {
            server,
            start,
            is_over: AtomicBool::new(false),
            sent: Mutex::new(Vec::new()),
        }
    }

    /// Whether the attack has to close its connections and end.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Waits for a time, or until the attack is over.
    pub(super) fn pause(&self, span: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < span && !self.is_over() {
            sleep(Duration::from_millis(10).min(span));
        }
    }

    pub(super) fn open(&self, buffer_bytes: Option<usize>) -> std::io::Result<Wire> {
        Wire::open(self.server.port(), buffer_bytes)
    }

    /// The attacker's request with a JSON body.
    pub(super) fn request(path: &str, body: &Value) -> Vec<u8> {
        wire::post(path, ATTACKER, &body.to_string())
    }

    /// Sends a request on a new connection, waits for its answer until the attack is over, and records both. A client
    /// that is refused because it has too many requests waits a moment, as it is told to.
    pub(super) fn ask(&self, request: &[u8]) {
        let begin = Instant::now();
        let ending = match self.open(None) {
            Ok(mut wire) => {
                // A refused body may be answered before it is sent completely.
                let _ = wire.send(request);
                wire.reply(&|| self.is_over())
            }
            Err(_) => Ending::Cut,
        };
        self.record(begin, &ending);
        let is_refused = match &ending {
            Ending::Answered(reply) => reply.status == 429,
            Ending::Cut => true,
            Ending::GaveUp => false,
        };
        if is_refused {
            self.pause(REFUSED_PAUSE);
        }
    }

    /// Records the outcome of a request sent at `begin`.
    pub(super) fn record(&self, begin: Instant, ending: &Ending) {
        let became = match ending {
            Ending::Answered(reply) => Became::Answered {
                status: reply.status,
                reason: reply.reason(),
            },
            Ending::Cut => Became::Cut,
            Ending::GaveUp => Became::Waiting,
        };
        let seconds = begin.elapsed().as_secs_f64();
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.push(Sent { seconds, became });
    }

    /// The attacker's requests so far.
    pub(super) fn sent(&self) -> Vec<Sent> {
        let sent = self.sent.lock();
        sent.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The answer to one request, for steps that need it.
    pub(super) fn answer(&self, request: &[u8]) -> Result<Reply> {
        answer_of(self.server, request)
    }
}

/// The answer of a server to one request, for steps that need it.
pub(super) fn answer_of(server: &AttackedServer, request: &[u8]) -> Result<Reply> {
    match wire::exchange(server.port(), request, STEP_PATIENCE) {
        Ending::Answered(reply) => Ok(reply),
        Ending::Cut => bail!("the server closed the connection without an answer"),
        Ending::GaveUp => bail!("no answer in {STEP_PATIENCE:?}"),
    }
}

/// Chosen: a quarter of the shortest time in the server's `Retry-After`.
const REFUSED_PAUSE: Duration = Duration::from_millis(250);

/// Chosen: many times the duration of a step alone.
const STEP_PATIENCE: Duration = Duration::from_secs(30);
