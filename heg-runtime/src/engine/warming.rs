//! Attention compiled for the NPU on a thread of its own, while the lanes go on.

use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::conductor::Message;
use crate::error::RuntimeError;
use crate::exec::{WarmForms, Warmer};
use crate::sched::WarmKernel;

/// What came of a kernel that was asked for.
pub(super) struct Warmed {
    pub(super) kernel: WarmKernel,
    pub(super) outcome: Result<WarmForms, RuntimeError>,
    pub(super) took: Duration,
}

/// The conductor's end of the thread.
pub(super) struct Warming {
    orders: Option<Sender<WarmKernel>>,
    thread: Option<JoinHandle<()>>,
}

impl Warming {
    /// Starts the thread.
    pub(super) fn start(warmer: Warmer, inbox: Sender<Message>) -> Self {
        let (sender, orders) = channel();
        let work = move || {
            while let Ok(kernel) = orders.recv() {
                let start = Instant::now();
                let outcome = warmer.warm(kernel);
                let warmed = Warmed {
                    kernel,
                    outcome,
                    took: start.elapsed(),
                };
                if inbox.send(Message::Warmed(warmed)).is_err() {
                    return;
                }
            }
        };
        Self {
            orders: Some(sender),
            thread: Some(thread::spawn(work)),
        }
    }

    /// Asks for a kernel; false where the thread is gone.
    pub(super) fn warm(&self, kernel: WarmKernel) -> bool {
        let orders = self.orders.as_ref();
        orders.is_some_and(|orders| orders.send(kernel).is_ok())
    }
}

impl Drop for Warming {
    /// Waits for what is being compiled: OpenVINO cannot be told to stop.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
