//! The engine's health. It is read without the conductor, so it is available even after the conductor has panicked.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use heg_sched::Lane;

/// A lane that cannot be used any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostLane {
    /// The lane.
    pub lane: Lane,
    /// The reason, as the lane or the conductor gave it.
    pub why: String,
}

/// State of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Health {
    /// Kernels are being prepared; requests wait.
    #[default]
    Loading,
    /// Every lane works.
    Ready,
    /// Requests are served, but without these lanes.
    Degraded(Vec<LostLane>),
    /// No request can be served any more, for this reason.
    Failed(String),
}

/// The engine's health, shared between the conductor, which sets it, and handles, which read it.
#[derive(Clone, Default)]
pub(super) struct Pulse(Arc<Mutex<Health>>);

impl Pulse {
    pub(super) fn health(&self) -> Health {
        self.with(|health| health.clone())
    }

    /// Records that kernels are ready.
    pub(super) fn ready(&self) {
        self.with(|health| {
            if *health == Health::Loading {
                *health = Health::Ready;
            }
        });
    }

    /// Records the loss of a lane without which requests can still be served.
    pub(super) fn lost(&self, lane: LostLane) {
        self.with(|health| match health {
            Health::Loading | Health::Ready => *health = Health::Degraded(vec![lane]),
            Health::Degraded(lost) => lost.push(lane),
            Health::Failed(_) => {}
        });
    }

    /// Records that no request can be served any more; the first reason stays.
    pub(super) fn failed(&self, why: String) {
        self.with(|health| {
            if !matches!(health, Health::Failed(_)) {
                *health = Health::Failed(why);
            }
        });
    }

    fn with<T>(&self, change: impl FnOnce(&mut Health) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the message of a panic.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("without a message"))
}
