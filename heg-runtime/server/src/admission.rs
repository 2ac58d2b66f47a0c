//! Admission control: a bounded number of requests of each class, part of it reserved for each client. A refusal tells
//! the client when to retry.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::account::Scope;
use super::error::{ApiError, Result};
use super::share::{Bounds, Shares};
use heg_sched::Class;

/// The requests of both classes that wait or run.
#[derive(Debug)]
pub(super) struct Admission {
    reactive: Queue,
    proactive: Queue,
}

#[derive(Debug)]
struct Queue {
    live: Mutex<Shares>,
    /// Smoothed time between the ends of two requests.
    gap: Mutex<Gap>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Gap {
    last_end: Option<Instant>,
    smoothed: Duration,
}

/// A permit to wait and run, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    admission: Arc<Admission>,
    scope: Scope,
    class: Class,
}

impl Admission {
    /// Admits `requests_max` requests of each class; beyond that, only requests of clients that have few.
    pub(super) fn new(requests_max: usize) -> Self {
        Self {
            reactive: Queue::new(requests_max),
            proactive: Queue::new(requests_max),
        }
    }

    /// Returns a permit for a client's request.
    ///
    /// # Errors
    /// `Busy`, if there is none.
    pub(super) fn enter(self: &Arc<Self>, scope: Scope, class: Class) -> Result<Permit> {
        let queue = self.queue(class);
        let mut live = queue.live();
        match live.give(scope, 1) {
            Ok(()) => Ok(Permit {
                admission: Arc::clone(self),
                scope,
                class,
            }),
            Err(_) => Err(ApiError::Busy {
                live: live.total(),
                class: class_name(class),
                retry_after: queue.retry_after(),
            }),
        }
    }

    /// Returns the number of a client's requests of a class that wait or run.
    pub(super) fn live(&self, scope: Scope, class: Class) -> usize {
        self.queue(class).live().of(scope)
    }

    fn queue(&self, class: Class) -> &Queue {
        match class {
            Class::Reactive => &self.reactive,
            Class::Proactive => &self.proactive,
        }
    }
}

impl Queue {
    fn new(requests_max: usize) -> Self {
        let own = (requests_max / OWN_PART).max(1);
        let bounds = Bounds {
            own,
            each_max: requests_max,
            common_max: requests_max.saturating_sub(own),
        };
        Self {
            live: Mutex::new(Shares::new(bounds)),
            gap: Mutex::default(),
        }
    }

    fn live(&self) -> MutexGuard<'_, Shares> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the estimated time until the next permit is free.
    fn retry_after(&self) -> Duration {
        let gap = self.gap.lock().unwrap_or_else(PoisonError::into_inner);
        gap.smoothed.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX)
    }

    fn leave(&self, scope: Scope) {
        self.live().take_back(scope, 1);
        let now = Instant::now();
        let mut gap = self.gap.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last_end) = gap.last_end {
            gap.smoothed = (gap.smoothed * 7 + now.duration_since(last_end)) / 8;
        }
        gap.last_end = Some(now);
    }
}

impl Permit {
    /// Returns the estimate of the time until another request of this permit's class may be admitted.
    pub(super) fn retry(&self) -> Retry {
        Retry {
            admission: Arc::clone(&self.admission),
            class: self.class,
        }
    }
}

/// An estimate of the time until another request of a class may be admitted.
#[derive(Debug)]
pub(super) struct Retry {
    admission: Arc<Admission>,
    class: Class,
}

impl Retry {
    /// Returns the estimated time until the next permit of the class is free.
    pub(super) fn after(&self) -> Duration {
        self.admission.queue(self.class).retry_after()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.queue(self.class).leave(self.scope);
    }
}

/// Returns the name of a class in requests and metrics.
pub(super) fn class_name(class: Class) -> &'static str {
    match class {
        Class::Reactive => "reactive",
        Class::Proactive => "proactive",
    }
}

/// The reserved part of each client, as a divisor of the whole. Chosen.
const OWN_PART: usize = 16;

/// HTTP counts whole seconds.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// Chosen: even a slower queue is worth another try after this long.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_own_places() {
        let admission = Arc::new(Admission::new(2));
        let first = admission.enter(Scope::Loopback, Class::Proactive).unwrap();
        let _second = admission.enter(Scope::Loopback, Class::Proactive).unwrap();
        let error = admission
            .enter(Scope::Loopback, Class::Proactive)
            .unwrap_err();
        assert_eq!(error.retry_after(), Some(RETRY_AFTER_MIN));
        assert_eq!(
            error.to_string(),
            "2 proactive requests are waiting or running already; try again later"
        );
        let _reactive = admission.enter(Scope::Loopback, Class::Reactive).unwrap();
        drop(first);
        let _third = admission.enter(Scope::Loopback, Class::Proactive).unwrap();
    }

    #[test]
    fn a_client_that_fills_a_queue_leaves_the_others_places() {
        let admission = Arc::new(Admission::new(32));
        let enter = |client| admission.enter(Scope::Client(client), Class::Reactive);
        let places: Vec<Permit> = std::iter::from_fn(|| enter(0).ok()).collect();
        assert_eq!(places.len(), 32, "alone, it has all of them");
        let own = [(); 2].map(|()| enter(1).unwrap());
        assert!(enter(1).is_err());
        drop(places);
        let _more = enter(1).unwrap();
        drop(own);
    }
}
