//! A lane as the conductor sees it: a thread that runs one launch at a time.
//!
//! A thread that ends reports it, also when it panics. One that does not answer is left behind with all that it holds,
//! and the process does not wait for it.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use super::calibration::Slice;
use super::conductor::Message;
use super::health::panic_text;
use super::machine::LaneExecutor;
use super::scores::Score;
use super::served::{Continued, Member, NextToken, Prompt};
use super::stopwatch::Longest;
use super::thread::{Farewell, Thread};
use super::worker::Worker;
use crate::error::RuntimeError;
use crate::exec::{Coming, WarmForms};
use crate::mem::KvCache;
use heg_sched::{Class, Kernel, Lane, RequestId, Segment, Ticket, WarmKernel};
use heg_spec::policy::DraftPolicy;

/// One launch of a lane: [`Work`](heg_sched::Work), with the memory that it runs in.
pub(super) enum Job {
    /// One kernel over a segment of a prompt.
    Prefill {
        prompt: Prompt,
        segment: Segment,
        layer: u32,
        kernel: Kernel,
    },
    /// The head on a prompt's last row.
    Head {
        prompt: Prompt,
        last: u32,
        /// Rows before it whose logits are wanted too, because the lanes of the layers have no head.
        unscored: Vec<u32>,
        /// Whether the prompt is read again later, and the keys and values of its last layer kept for that.
        is_kept: bool,
    },
    /// Layers of a decode iteration, and after the last one the head.
    Decode {
        /// The requests.
        batch: Vec<Continued>,
        layers: Range<u32>,
    },
    /// An iteration of continuous batching.
    Mixed {
        batch: Vec<Continued>,
        /// Parts of prompts, and whether each is its prompt's last.
        prompts: Vec<(Member, Segment, bool)>,
    },
}

impl Job {
    /// Cuts drafts where grammars refuse them, so that no row of them is run; says how many tokens of which requests go.
    pub(super) fn cut_drafts(&mut self) -> Vec<(RequestId, u32)> {
        let batch = match self {
            Self::Decode { batch, .. } | Self::Mixed { batch, .. } => batch,
            Self::Prefill { .. } | Self::Head { .. } => return Vec::new(),
        };
        let cut = batch
            .iter_mut()
            .map(|it| (it.member.served.id, it.cut_draft()));
        cut.filter(|(_, tokens)| *tokens > 0).collect()
    }

    /// What its launches are for.
    pub(super) fn coming(&self) -> Coming {
        let prompt = |member: &Member, segment: &Segment| {
            let tokens = member.served.with_tokens(<[u32]>::len);
            let tokens_left = tokens.saturating_sub(segment.position as usize);
            Coming::Prompt { tokens_left }
        };
        match self {
            Self::Prefill {
                prompt: of,
                segment,
                ..
            } => prompt(&of.member, segment),
            Self::Mixed { prompts, .. } => {
                let first = prompts.first();
                first.map_or(Coming::Answers, |(member, segment, _)| {
                    prompt(member, segment)
                })
            }
            Self::Head { .. } | Self::Decode { .. } => Coming::Answers,
        }
    }

    /// The requests that it is for.
    pub(super) fn requests(&self) -> Vec<RequestId> {
        let id = |member: &Member| member.served.id;
        match self {
            Self::Prefill { prompt, .. } | Self::Head { prompt, .. } => vec![id(&prompt.member)],
            Self::Decode { batch, .. } => batch.iter().map(|it| id(&it.member)).collect(),
            Self::Mixed { batch, prompts } => {
                let prompts = prompts.iter().map(|(member, ..)| id(member));
                let batch = batch.iter().map(|it| id(&it.member));
                batch.chain(prompts).collect()
            }
        }
    }
}

/// An order to a lane, which carries out one after the other.
pub(super) enum Order {
    Run(Ticket, Class, Job),
    /// Rows of a prompt to read again, until a job comes.
    Calibrate(Slice),
    Adopt(WarmForms),
    Unload(WarmKernel),
}

/// A lane's report of a job.
pub(super) struct Report {
    pub(super) lane: Lane,
    pub(super) ticket: Ticket,
    pub(super) outcome: Result<Done, Failure>,
    /// Drafted tokens that were not run, since a grammar refuses them.
    pub(super) refused: Vec<(RequestId, u32)>,
    pub(super) took: Duration,
    /// The longest times of the lane so far.
    pub(super) longest: Longest,
}

/// The result of a job.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// For decoding: layers that ran, counted from the first.
    pub(super) layers: u32,
    /// The next tokens of each request that has some now, to be committed in their order.
    pub(super) tokens: Vec<(RequestId, NextToken)>,
    /// Log probabilities of tokens of prompts.
    pub(super) scores: Vec<(RequestId, Vec<Score>)>,
    /// Of each request's draft, whether a token is what the model found likeliest there: behind the first wrong one, where
    /// anybody looked.
    pub(super) likeliest: Vec<(RequestId, Vec<bool>)>,
    /// Keys and values of the last layer of a prompt that is kept.
    pub(super) last_layer: Option<(RequestId, KvCache)>,
}

impl Done {
    /// Adds what was computed for a request, if anything.
    pub(super) fn add_scores(&mut self, request: RequestId, scores: Vec<Score>) {
        if !scores.is_empty() {
            self.scores.push((request, scores));
        }
    }
}

/// Why a job has no result.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: RuntimeError,
    /// The request whose cache could not be read, if that is the reason; nothing has run then.
    pub(super) unread: Option<RequestId>,
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        Self {
            error,
            unread: None,
        }
    }
}

/// Signals to a lane that is running a job.
#[derive(Default)]
pub(super) struct Signals {
    /// One more than the ticket of the job that should stop at its next layer.
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

    /// The job that waited runs.
    pub(super) fn is_given(&self) {
        self.wanted.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_reset(&self) -> bool {
        self.reset.load(Ordering::Relaxed)
    }
}

/// The conductor's end of a lane.
pub(super) struct LaneHandle {
    orders: Option<Sender<Order>>,
    pub(super) signals: Arc<Signals>,
    thread: Option<Thread>,
}

impl LaneHandle {
    /// Starts the thread, which first waits for its kernels.
    pub(super) fn start(
        lane: Lane,
        mut executor: Box<dyn LaneExecutor>,
        inbox: Sender<Message>,
        drafts: DraftPolicy,
    ) -> Self {
        let signals = Arc::new(Signals::default());
        let (sender, orders) = channel();
        executor.cancel_on(Arc::clone(&signals.reset));
        let worker = Worker::new(
            lane,
            executor,
            (Arc::clone(&signals), inbox.clone()),
            drafts,
        );
        let run = move || {
            // What the lane holds is gone before anybody hears that it is.
            let ran = catch_unwind(AssertUnwindSafe(|| worker.run(&orders)));
            if let Err(panic) = ran {
                let _ = inbox.send(Message::Lost(lane, panic_text(&*panic)));
            }
        };
        Self {
            orders: Some(sender),
            signals,
            thread: Some(Thread::start(run)),
        }
    }

    /// Hands in a job of a class; false where the lane's thread is gone.
    pub(super) fn launch(&self, ticket: Ticket, class: Class, job: Job) -> bool {
        self.signals.wanted.store(true, Ordering::Relaxed);
        self.tell(Order::Run(ticket, class, job))
    }

    /// Has rows of a prompt read again, until a job comes.
    pub(super) fn calibrate(&self, slice: Slice) {
        // That a lane is gone, it says itself.
        let _ = self.tell(Order::Calibrate(slice));
    }

    /// Hands over a kernel that was compiled for it, for the jobs that follow.
    pub(super) fn adopt(&self, forms: WarmForms) {
        // That a lane is gone, it says itself.
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

    /// Tells the thread to end, cancelling what runs, and does not wait.
    pub(super) fn stop(&mut self) {
        self.orders = None;
        self.signals.reset.store(true, Ordering::Relaxed);
    }

    /// Waits for the end of a thread that was told to, until `deadline`.
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
