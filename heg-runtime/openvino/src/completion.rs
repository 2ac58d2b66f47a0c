//! The completion of a started inference: the function that OpenVINO calls.
//!
//! It runs the user's callback, keeps its panic for the waiting thread, and marks the run as
//! finished. The mark is needed because the C interface's `ov_infer_request_wait_for` does not say
//! whether it waited to the end. No call into OpenVINO is made here.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use openvino_sys::ov_callback_t;

/// Owner of the state on which OpenVINO's callback works, at an address that never changes.
///
/// **Invariants**
/// - `shared` came from a box, and is released only in `drop`.
/// - The code that registers [`as_raw`](Self::as_raw) keeps the value until the request that has it
///   is freed.
pub(crate) struct Completion {
    shared: NonNull<Shared>,
}

pub(crate) type Callback = Box<dyn FnMut() + Send>;

struct Shared {
    /// OpenVINO keeps a pointer to this, not a copy.
    raw: ov_callback_t,
    state: Mutex<State>,
    ended: Condvar,
    callback: Mutex<Option<Callback>>,
}

#[derive(Default)]
struct State {
    finished: bool,
    panic: Option<String>,
}

impl Completion {
    pub(crate) fn new() -> Self {
        let shared = Box::new(Shared {
            raw: ov_callback_t {
                callback_func: Some(ended),
                args: std::ptr::null_mut(),
            },
            state: Mutex::default(),
            ended: Condvar::new(),
            callback: Mutex::new(None),
        });
        let shared = NonNull::from(Box::leak(shared));
        // SAFETY: just leaked, so valid, and nobody else has the pointer yet.
        unsafe { (*shared.as_ptr()).raw.args = shared.as_ptr().cast() };
        Self { shared }
    }

    /// Returns the raw callback to register with OpenVINO.
    pub(crate) fn as_raw(&self) -> *const ov_callback_t {
        &raw const self.shared().raw
    }

    /// Prepares for the next run. No run may be under way.
    pub(crate) fn arm(&self) {
        *self.shared().state() = State::default();
    }

    /// Replaces the user's callback. No run may be under way.
    pub(crate) fn set_callback(&self, callback: Callback) {
        *lock(&self.shared().callback) = Some(callback);
    }

    /// Waits for the end of the run, callback included; returns whether it has ended.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let shared = self.shared();
        // A timeout beyond the clock's range counts as none.
        let deadline = Instant::now().checked_add(timeout);
        let mut state = shared.state();
        while !state.finished {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            state = match left {
                Some(Duration::ZERO) => return false,
                Some(left) => {
                    let waited = shared.ended.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => shared
                    .ended
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
        true
    }

    /// Takes the message of the callback's panic in the latest run, if there was one.
    pub(crate) fn take_panic(&self) -> Option<String> {
        self.shared().state().panic.take()
    }

    fn shared(&self) -> &Shared {
        // SAFETY: valid until `drop`, and only ever borrowed shared after `new`.
        unsafe { self.shared.as_ref() }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        // SAFETY: leaked in `new` from a box and released only here; by the type's invariant the
        // request is gone, so OpenVINO calls no more.
        drop(unsafe { Box::from_raw(self.shared.as_ptr()) });
    }
}

// SAFETY: the pointer is an owned box, and its contents are protected by mutexes or constant. The
// callback is `Send`.
unsafe impl Send for Completion {}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn run(&self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if let Some(callback) = lock(&self.callback).as_mut() {
                callback();
            }
        }));
        let mut state = self.state();
        state.panic = outcome.err().map(|panic| panic_text(&*panic));
        state.finished = true;
        self.ended.notify_all();
    }
}

/// Called by OpenVINO, on a thread of its own, when a run ends, fails or is cancelled.
///
/// Unwinding cannot leave it: panics of the callback are caught, and any other panic ends the
/// process, as in every `extern "C"` function.
///
/// # Safety
///
/// `args` is the pointer that [`Completion::new`] stored, and the completion is alive.
unsafe extern "C" fn ended(args: *mut c_void) {
    // SAFETY: by the caller's promise the pointer is to a live `Shared`, which is only ever
    // borrowed shared after it was made.
    let shared = unsafe { &*args.cast::<Shared>() };
    shared.run();
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
        .to_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn call(completion: &Completion) {
        // SAFETY: the completion lives, and its own arguments are passed.
        unsafe {
            let raw = *completion.as_raw();
            raw.callback_func.unwrap()(raw.args);
        }
    }

    #[test]
    fn a_run_is_pending_until_openvino_calls() {
        let completion = Completion::new();
        completion.arm();
        assert!(!completion.wait(Duration::from_millis(1)));
        call(&completion);
        assert!(completion.wait(Duration::ZERO) && completion.wait(Duration::MAX));
        completion.arm();
        assert!(!completion.wait(Duration::ZERO));
    }

    #[test]
    fn a_panic_of_the_callback_is_kept_and_the_next_run_calls_it_again() {
        let completion = Completion::new();
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&calls);
        completion.set_callback(Box::new(move || {
            assert!(counter.fetch_add(1, Ordering::Relaxed) > 0, "first call");
        }));
        completion.arm();
        call(&completion);
        assert!(completion.wait(Duration::ZERO));
        assert_eq!(completion.take_panic().as_deref(), Some("first call"));
        completion.arm();
        call(&completion);
        assert_eq!(
            (completion.take_panic(), calls.load(Ordering::Relaxed)),
            (None, 2)
        );
    }
}
