//! Compiles attention for the NPU on a thread of its own, while the lanes run.

use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use super::message::Message;
use super::report::Warmed;
use super::thread::{Farewell, Thread};
use heg_exec::Warmer;
use heg_sched::WarmKernel;

/// The conductor's end of the thread.
pub(super) struct Warming {
    orders: Sender<WarmKernel>,
    thread: Thread,
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
            orders: sender,
            thread: Thread::start(work),
        }
    }

    /// Asks for a kernel; returns false if the thread is gone.
    pub(super) fn warm(&self, kernel: WarmKernel) -> bool {
        self.orders.send(kernel).is_ok()
    }

    /// Waits for the running compilation, until `deadline`: OpenVINO cannot cancel it.
    pub(super) fn end(self, deadline: Instant) -> Farewell {
        drop(self.orders);
        self.thread.end(deadline)
    }
}
