//! The conductor's end of a lane: a thread that runs one launch at a time.
//!
//! A thread that ends reports it, even when it panics. One that does not answer is left behind with all that it
//! holds, and the process does not wait for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use super::calibration::Slice;
use super::device_turns::EngineTurns;
use super::health::panic_text;
use super::job::{Job, Order};
use super::machine::LaneExecutor;
use super::message::Message;
use super::report::LaneLoss;
use super::thread::{Farewell, Thread};
use super::worker::Worker;
use heg_exec::WarmForms;
use heg_sched::{Class, Lane, Ticket, WarmKernel};
use heg_spec::policy::DraftPolicy;

/// Signals to a lane that is running a job.
#[derive(Default)]
pub(super) struct Signals {
    /// The ticket of the job that should stop at its next layer, plus one.
    yielding: AtomicU64,
    /// Whether a job waits for the lane.
    wanted: AtomicBool,
    /// Whether the running kernel is to be cancelled, and the rest of its job skipped.
    pub(super) reset: Arc<AtomicBool>,
}

impl Signals {
    pub(super) fn ask_to_yield(&self, ticket: Ticket) {
        self.yielding.store(ticket.0 + 1, Ordering::Relaxed);
    }

    pub(super) fn yields(&self, ticket: Ticket) -> bool {
        self.yielding.load(Ordering::Relaxed) == ticket.0 + 1
    }

    /// Whether a job waits for the lane.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Notes that the job that waited runs.
    pub(super) fn is_given(&self) {
        self.wanted.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_reset(&self) -> bool {
        self.reset.load(Ordering::Relaxed)
    }
}

/// The setup of every lane of an engine.
#[derive(Clone)]
pub(super) struct LaneSetup {
    pub(super) inbox: Sender<Message>,
    /// The mechanisms of drafts that the policy has on.
    pub(super) drafts: DraftPolicy,
    /// The turns on the machine's lanes.
    pub(super) turns: EngineTurns,
}

/// The conductor's end of a lane.
pub(super) struct LaneHandle {
    orders: Option<Sender<Order>>,
    pub(super) signals: Arc<Signals>,
    thread: Option<Thread>,
}

impl LaneHandle {
    /// Starts the thread, which first waits for its kernels.
    pub(super) fn start(lane: Lane, mut executor: Box<dyn LaneExecutor>, setup: LaneSetup) -> Self {
        let signals = Arc::new(Signals::default());
        let (sender, orders) = channel();
        executor.cancel_on(Arc::clone(&signals.reset));
        let inbox = setup.inbox.clone();
        let worker = Worker::new(lane, executor, Arc::clone(&signals), setup);
        let run = move || {
            // The lane's memory is freed before its end is reported.
            let ran = catch_unwind(AssertUnwindSafe(|| worker.run(&orders)));
            if let Err(panic) = ran {
                let loss = LaneLoss::failed(panic_text(&*panic));
                let _ = inbox.send(Message::Lost(lane, loss));
            }
        };
        Self {
            orders: Some(sender),
            signals,
            thread: Some(Thread::start(run)),
        }
    }

    /// Hands in a job of a class; returns false if the lane's thread is gone.
    pub(super) fn launch(&self, ticket: Ticket, class: Class, job: Job) -> bool {
        self.signals.wanted.store(true, Ordering::Relaxed);
        self.tell(Order::Run(ticket, class, job))
    }

    /// Has likely tokens found after rows of a prompt, until a job comes.
    pub(super) fn calibrate(&self, slice: Slice) {
        // A lane that is gone reports that itself.
        let _ = self.tell(Order::Calibrate(slice));
    }

    /// Hands over a kernel that was compiled for it, for the jobs that follow.
    pub(super) fn adopt(&self, forms: WarmForms) {
        // A lane that is gone reports that itself.
        let _ = self.tell(Order::Adopt(forms));
    }

    /// Takes a compiled kernel away.
    pub(super) fn unload(&self, kernel: WarmKernel) {
        let _ = self.tell(Order::Unload(kernel));
    }

    fn tell(&self, order: Order) -> bool {
        let orders = self.orders.as_ref();
        orders.is_some_and(|orders| orders.send(order).is_ok())
    }

    /// Tells the thread to end and cancels its running kernel, without waiting.
    pub(super) fn stop(&mut self) {
        self.orders = None;
        self.signals.reset.store(true, Ordering::Relaxed);
    }

    /// Waits until `deadline` for a thread that was told to end.
    pub(super) fn end(mut self, deadline: Instant) -> Farewell {
        self.stop();
        let thread = self.thread.take();
        thread.map_or(Farewell::Ended, |thread| thread.end(deadline))
    }
}

impl Drop for LaneHandle {
    /// Tells the thread to end, and detaches it.
    fn drop(&mut self) {
        self.stop();
    }
}
