//! A lane: a thread with an executor, which runs one launch at a time.
//!
//! Kernels are started asynchronously and waited for here, so that a hung one can be cancelled from outside.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use heg_artifacts::manifest::Group;

use super::conductor::Message;
use super::served::{Chosen, Member, Prompt, Served};
use super::stopwatch::{Longest, Stopwatch};
use crate::error::RuntimeError;
use crate::exec::{Batch, Executor, WarmForms};
use crate::mem::KvCache;
use crate::sched::{
    Class, Kernel, Lane, Launch, Logits, RequestId, Segment, Span, Ticket, WarmKernel, launches,
};

/// What a lane runs in one go: [`Work`](crate::sched::Work), with the memory it is done in.
pub(super) enum Job {
    /// One kernel over a segment of a prompt.
    Prefill {
        prompt: Prompt,
        segment: Segment,
        layer: u32,
        kernel: Kernel,
    },
    /// The head on a prompt's last row.
    Head { prompt: Prompt, last: u32 },
    /// Layers of a decode iteration, and after the last one the head.
    Decode {
        /// The requests, each with the tokens in its cache, the one that is fed now included.
        batch: Vec<(Member, u32)>,
        layers: Range<u32>,
    },
    /// An iteration of continuous batching.
    Mixed {
        batch: Vec<(Member, u32)>,
        /// Parts of prompts, and whether each is its prompt's last.
        prompts: Vec<(Member, Segment, bool)>,
    },
}

/// What a lane is told; it does one after the other.
enum Order {
    Run(Ticket, Class, Job),
    Adopt(WarmForms),
    Unload(WarmKernel),
}

/// What came of a job.
pub(super) struct Report {
    pub(super) lane: Lane,
    pub(super) ticket: Ticket,
    pub(super) outcome: Result<Done, RuntimeError>,
    pub(super) took: Duration,
    /// Of all jobs of the lane so far.
    pub(super) longest: Longest,
}

/// A job that went well.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// For decoding: layers that ran, counted from the first.
    pub(super) layers: u32,
    /// Requests that have their last token.
    pub(super) ended: Vec<RequestId>,
}

/// Words to a lane that works.
#[derive(Default)]
pub(super) struct Signals {
    /// One more than the ticket that is to stop at its next layer.
    yielding: AtomicU64,
    /// Whether the running kernel is to be cancelled.
    pub(super) reset: Arc<AtomicBool>,
}

impl Signals {
    pub(super) fn ask_to_yield(&self, ticket: Ticket) {
        self.yielding.store(ticket.0 + 1, Ordering::Relaxed);
    }

    fn yields(&self, ticket: Ticket) -> bool {
        self.yielding.load(Ordering::Relaxed) == ticket.0 + 1
    }
}

/// The conductor's end of a lane.
pub(super) struct LaneHandle {
    orders: Option<Sender<Order>>,
    pub(super) signals: Arc<Signals>,
    thread: Option<JoinHandle<()>>,
}

impl LaneHandle {
    /// Starts the thread, which first waits for its kernels.
    pub(super) fn start(lane: Lane, mut executor: Executor, inbox: Sender<Message>) -> Self {
        let signals = Arc::new(Signals::default());
        let (sender, orders) = channel();
        executor.heed(Arc::clone(&signals.reset));
        let worker = Worker {
            lane,
            executor,
            signals: Arc::clone(&signals),
            inbox,
            stopwatch: Stopwatch::new(),
        };
        Self {
            orders: Some(sender),
            signals,
            thread: Some(thread::spawn(move || worker.run(&orders))),
        }
    }

    /// Hands in a job of a class; false where the lane's thread is gone.
    pub(super) fn launch(&self, ticket: Ticket, class: Class, job: Job) -> bool {
        self.tell(Order::Run(ticket, class, job))
    }

    /// Gives it a kernel that was compiled for it, for the jobs from now on.
    pub(super) fn adopt(&self, forms: WarmForms) {
        // That a lane is gone is found at its next launch.
        let _ = self.tell(Order::Adopt(forms));
    }

    /// Takes one away.
    pub(super) fn unload(&self, kernel: WarmKernel) {
        let _ = self.tell(Order::Unload(kernel));
    }

    fn tell(&self, order: Order) -> bool {
        let orders = self.orders.as_ref();
        orders.is_some_and(|orders| orders.send(order).is_ok())
    }
}

impl Drop for LaneHandle {
    fn drop(&mut self) {
        self.orders = None;
        self.signals.reset.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    lane: Lane,
    executor: Executor,
    signals: Arc<Signals>,
    inbox: Sender<Message>,
    stopwatch: Stopwatch,
}

impl Worker {
    fn run(mut self, orders: &Receiver<Order>) {
        let ready = self.executor.wait_ready();
        let failed = ready.is_err();
        if self.inbox.send(Message::Ready(self.lane, ready)).is_err() || failed {
            return;
        }
        while let Ok(order) = orders.recv() {
            let (ticket, job) = match order {
                Order::Run(ticket, class, job) => {
                    self.executor.serve(class);
                    (ticket, job)
                }
                Order::Adopt(forms) => {
                    self.executor.adopt(forms);
                    continue;
                }
                Order::Unload(kernel) => {
                    self.executor.unload(kernel);
                    continue;
                }
            };
            let start = Instant::now();
            self.stopwatch.start();
            let outcome = self.carry_out(ticket, &job);
            self.stopwatch.may_yield();
            let report = Report {
                lane: self.lane,
                ticket,
                outcome,
                took: start.elapsed(),
                longest: self.stopwatch.longest(),
            };
            // Memory that only the job still holds goes before anybody hears of its end.
            drop(job);
            if self.inbox.send(Message::Done(report)).is_err() {
                return;
            }
        }
    }

    fn carry_out(&mut self, ticket: Ticket, job: &Job) -> Result<Done, RuntimeError> {
        match job {
            Job::Prefill {
                prompt,
                segment,
                layer,
                kernel,
            } => self.prefill(prompt, *segment, *layer, *kernel),
            Job::Head { prompt, last } => self.head(prompt, *last),
            Job::Decode { batch, layers } => self.decode(ticket, batch, layers.clone()),
            Job::Mixed { batch, prompts } => self.mixed(batch, prompts),
        }
    }

    fn prefill(
        &mut self,
        prompt: &Prompt,
        segment: Segment,
        layer: u32,
        kernel: Kernel,
    ) -> Result<Done, RuntimeError> {
        if let Some(unread) = &prompt.unread {
            unread.read_into(&prompt.member.cache)?;
        }
        let span = span_in(prompt, segment);
        if (layer, kernel) == (0, Kernel::Qkv) {
            let (from, to) = (segment.position as usize, segment.context() as usize);
            prompt.member.served.with_tokens(|tokens| {
                let tokens = tokens.get(from..to).unwrap_or_default();
                self.executor.embed(tokens, &prompt.rows, span.row)
            })?;
        }
        let launch = Launch {
            layer: Some(layer),
            group: match kernel {
                Kernel::Qkv => Group::Qkv,
                Kernel::Mha => Group::Mha,
                Kernel::Ffn => Group::Ffn,
            },
        };
        self.launch(
            launch,
            &Batch {
                rows: &prompt.rows,
                caches: &[&prompt.member.cache],
                spans: &[span],
            },
        )?;
        Ok(Done::default())
    }

    fn head(&mut self, prompt: &Prompt, last: u32) -> Result<Done, RuntimeError> {
        let segment = Segment {
            position: last,
            tokens: 1,
        };
        self.launch(
            HEAD,
            &Batch {
                rows: &prompt.rows,
                caches: &[&prompt.member.cache],
                spans: &[span_in(prompt, segment)],
            },
        )?;
        Ok(Done {
            layers: 0,
            ended: self.choose(&[&prompt.member.served])?,
        })
    }

    fn decode(
        &mut self,
        ticket: Ticket,
        batch: &[(Member, u32)],
        layers: Range<u32>,
    ) -> Result<Done, RuntimeError> {
        let rows = self.executor.pass_rows();
        let spans: Vec<Span> = (0..)
            .zip(batch)
            .map(|(row, (_, context))| Span {
                row,
                tokens: 1,
                position: *context as usize - 1,
            })
            .collect();
        let caches: Vec<&KvCache> = batch.iter().map(|(member, _)| &*member.cache).collect();
        if layers.start == 0 {
            for (span, (member, _)) in spans.iter().zip(batch) {
                member.served.with_tokens(|tokens| {
                    let token = tokens
                        .get(span.position)
                        .map_or(&[][..], std::slice::from_ref);
                    self.executor.embed(token, &rows, span.row)
                })?;
            }
        }
        let batch_rows = Batch {
            rows: &rows,
            caches: &caches,
            spans: &spans,
        };
        let all = launches(layers.end, Logits::LastRows);
        let rest = all.filter(|launch| launch.layer.is_none_or(|layer| layer >= layers.start));
        for launch in rest {
            if launch.group == Group::Qkv && launch.layer > Some(layers.start) {
                if self.signals.yields(ticket) {
                    return Ok(Done {
                        layers: launch.layer.unwrap_or(0),
                        ended: Vec::new(),
                    });
                }
                self.stopwatch.may_yield();
            }
            self.launch(launch, &batch_rows)?;
        }
        let served: Vec<&Served> = batch.iter().map(|(member, _)| &*member.served).collect();
        Ok(Done {
            layers: layers.end,
            ended: self.choose(&served)?,
        })
    }

    fn mixed(
        &mut self,
        batch: &[(Member, u32)],
        prompts: &[(Member, Segment, bool)],
    ) -> Result<Done, RuntimeError> {
        let decoding = batch.iter().map(|(member, context)| {
            let segment = Segment {
                position: context.saturating_sub(1),
                tokens: 1,
            };
            (member, segment, true)
        });
        let prompts = prompts
            .iter()
            .map(|(member, segment, last)| (member, *segment, *last));
        let parts: Vec<(&Member, Segment, bool)> = decoding.chain(prompts).collect();
        let mut row = 0;
        let spans: Vec<Span> = parts
            .iter()
            .map(|(_, segment, _)| {
                let span = Span {
                    row,
                    tokens: segment.tokens as usize,
                    position: segment.position as usize,
                };
                row += span.tokens;
                span
            })
            .collect();
        let rows = self.executor.pass_rows();
        for ((member, segment, _), span) in parts.iter().zip(&spans) {
            let (from, to) = (segment.position as usize, segment.context() as usize);
            member.served.with_tokens(|tokens| {
                let tokens = tokens.get(from..to).unwrap_or_default();
                self.executor.embed(tokens, &rows, span.row)
            })?;
        }
        let caches: Vec<&KvCache> = parts.iter().map(|(member, ..)| &*member.cache).collect();
        let layers = self.executor.manifest().layers.len() as u32;
        let all = Batch {
            rows: &rows,
            caches: &caches,
            spans: &spans,
        };
        for launch in launches(layers, Logits::None) {
            self.launch(launch, &all)?;
        }
        let wanted: Vec<(&Served, Span)> = parts
            .iter()
            .zip(&spans)
            .filter(|((_, _, last), _)| *last)
            .map(|((member, ..), span)| (&*member.served, *span))
            .collect();
        let mut done = Done {
            layers,
            ended: Vec::new(),
        };
        // More prompts may end here than the head takes at a time.
        for wanted in wanted.chunks(self.executor.options().batch) {
            let (served, spans): (Vec<&Served>, Vec<Span>) = wanted.iter().copied().unzip();
            let last = Batch {
                rows: &rows,
                caches: &[],
                spans: &spans,
            };
            self.launch(HEAD, &last)?;
            done.ended.extend(self.choose(&served)?);
        }
        Ok(done)
    }

    fn launch(&mut self, launch: Launch, batch: &Batch<'_>) -> Result<(), RuntimeError> {
        let begin = Instant::now();
        self.executor.launch(launch, batch)?;
        self.stopwatch.ran(launch, begin);
        Ok(())
    }

    /// Chooses the next token of each request after the logits that the head has just given.
    /// Says which of them have their last one.
    fn choose(&mut self, served: &[&Served]) -> Result<Vec<RequestId>, RuntimeError> {
        let logits = self.executor.logits(served.len())?;
        let width = logits.len() / served.len().max(1);
        let mut ended = Vec::new();
        for (served, row) in served.iter().zip(logits.chunks_exact_mut(width.max(1))) {
            if served.choose(row) == Chosen::Last {
                ended.push(served.id);
            }
        }
        Ok(ended)
    }
}

/// Rows of a segment in its prompt's activations.
fn span_in(prompt: &Prompt, segment: Segment) -> Span {
    Span {
        row: segment.position.saturating_sub(prompt.first) as usize,
        tokens: segment.tokens as usize,
        position: segment.position as usize,
    }
}

const HEAD: Launch = Launch {
    layer: None,
    group: Group::Head,
};
