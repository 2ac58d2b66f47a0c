//! Who is let in: so many requests of each class, and no more. Those turned away hear when to try again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::{ApiError, Result};
use crate::sched::Class;

/// Requests of both classes that wait or run.
#[derive(Debug)]
pub(super) struct Admission {
    reactive: Queue,
    proactive: Queue,
    requests_max: usize,
}

#[derive(Debug, Default)]
struct Queue {
    live: AtomicUsize,
    /// Time from one end to the next, smoothed.
    gap: Mutex<Gap>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Gap {
    last_end: Option<Instant>,
    smoothed: Duration,
}

/// A place in a queue, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    admission: Arc<Admission>,
    class: Class,
}

impl Admission {
    /// Lets in `requests_max` requests of each class.
    pub(super) fn new(requests_max: usize) -> Self {
        Self {
            reactive: Queue::default(),
            proactive: Queue::default(),
            requests_max,
        }
    }

    /// A place for a request.
    ///
    /// # Errors
    /// `Busy`, if there is none.
    pub(super) fn enter(self: &Arc<Self>, class: Class) -> Result<Place> {
        let queue = self.queue(class);
        let entered = queue
            .live
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |live| {
                (live < self.requests_max).then_some(live + 1)
            });
        match entered {
            Ok(_) => Ok(Place {
                admission: Arc::clone(self),
                class,
            }),
            Err(live) => Err(ApiError::Busy {
                live,
                class: class_name(class),
                retry_after: queue.retry_after(),
            }),
        }
    }

    fn queue(&self, class: Class) -> &Queue {
        match class {
            Class::Reactive => &self.reactive,
            Class::Proactive => &self.proactive,
        }
    }
}

impl Queue {
    /// When the next place should be free.
    fn retry_after(&self) -> Duration {
        let gap = self.gap.lock().unwrap_or_else(PoisonError::into_inner);
        gap.smoothed.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX)
    }

    fn leave(&self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
        let now = Instant::now();
        let mut gap = self.gap.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last_end) = gap.last_end {
            gap.smoothed = (gap.smoothed * 7 + now.duration_since(last_end)) / 8;
        }
        gap.last_end = Some(now);
    }
}

impl Place {
    /// When the next place in its queue should be free.
    pub(super) fn retry_after(&self) -> Duration {
        self.admission.queue(self.class).retry_after()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.queue(self.class).leave();
    }
}

/// A class as requests and metrics name it.
pub(super) fn class_name(class: Class) -> &'static str {
    match class {
        Class::Reactive => "reactive",
        Class::Proactive => "proactive",
    }
}

/// HTTP counts whole seconds.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// Chosen: a queue that moves more slowly is asked again all the same.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_own_places() {
        let admission = Arc::new(Admission::new(2));
        let first = admission.enter(Class::Proactive).unwrap();
        let _second = admission.enter(Class::Proactive).unwrap();
        let error = admission.enter(Class::Proactive).unwrap_err();
        assert_eq!(error.retry_after(), Some(RETRY_AFTER_MIN));
        assert_eq!(
            error.to_string(),
            "2 proactive requests are waiting or running already; try again later"
        );
        let _reactive = admission.enter(Class::Reactive).unwrap();
        drop(first);
        let _third = admission.enter(Class::Proactive).unwrap();
    }
}
