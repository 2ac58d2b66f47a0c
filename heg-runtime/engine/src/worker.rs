//! The thread of a lane: runs one order of launches after the other, and chooses tokens from the logits.
//!
//! A decode iteration is one order: it asks between kernels whether to continue, and between layers whether the
//! scheduler wants the lane for other work. Kernels of plugins are started asynchronously and waited for, so that a
//! hung one can be cancelled from outside.

use std::slice::ChunksExact;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use heg_spec::policy::DraftPolicy;
use heg_spec::{Group, bug};

use super::calibration::Slice;
use super::device_turns::{EngineTurns, Turn};
use super::job::{Job, Order};
use super::lane::{LaneSetup, Signals};
use super::machine::LaneExecutor;
use super::message::Message;
use super::report::{Done, Failure, LaneLoss, Report};
use super::scores::Score;
use super::served::{Member, NextToken, Prompt, Served};
use super::stopwatch::Stopwatch;
use super::vectors::{Pool, PooledText};
use crate::error::EngineError;
use heg_exec::mem::{ActivationRows, KvCache};
use heg_exec::{Batch, ExecError};
use heg_sched::{Class, Lane, Launch, LayerKernel, RequestId, Segment, Span, Ticket, WorkStage};

mod calibrate;
mod iteration;

/// A lane's thread.
pub(super) struct Worker {
    lane: Lane,
    executor: Box<dyn LaneExecutor>,
    signals: Arc<Signals>,
    inbox: Sender<Message>,
    stopwatch: Stopwatch,
    /// The mechanisms of drafts that the policy has on.
    drafts: DraftPolicy,
    turns: EngineTurns,
    /// The lane's turn, while a job runs.
    turn: Turn,
}

impl Worker {
    pub(super) fn new(
        lane: Lane,
        executor: Box<dyn LaneExecutor>,
        signals: Arc<Signals>,
        setup: LaneSetup,
    ) -> Self {
        let LaneSetup {
            inbox,
            drafts,
            turns,
        } = setup;
        Self {
            lane,
            executor,
            signals,
            inbox,
            stopwatch: Stopwatch::new(),
            drafts,
            turns,
            turn: Turn::none(),
        }
    }

    /// Carries out orders until the conductor drops the sender.
    pub(super) fn run(mut self, orders: &Receiver<Order>) {
        let ready = self.executor.wait_ready().map_err(EngineError::from);
        let failed = ready.is_err();
        if self.inbox.send(Message::Ready(self.lane, ready)).is_err() || failed {
            return;
        }
        loop {
            let order = match self.next(orders) {
                Ok(Some(order)) => order,
                Ok(None) => return,
                Err(loss) => {
                    let _ = self.inbox.send(Message::Lost(self.lane, loss));
                    return;
                }
            };
            let start = Instant::now();
            let (ticket, mut job) = match order {
                Order::Run(ticket, class, job) => {
                    self.signals.is_given();
                    self.turn = self.turns.take(self.lane, class);
                    self.executor.begin(class, &job.requests());
                    (ticket, job)
                }
                Order::Calibrate(slice) => {
                    if !self.report_calibration(slice) {
                        return;
                    }
                    continue;
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
            self.stopwatch.start();
            let refused = job.cut_drafts();
            self.executor.expect(job.coming());
            let outcome = self.carry_out(ticket, &job);
            self.stopwatch.may_yield();
            let waited = std::mem::replace(&mut self.turn, Turn::none()).end();
            let report = Report {
                lane: self.lane,
                ticket,
                outcome,
                refused,
                took: start.elapsed().saturating_sub(waited),
                waited,
                longest: self.stopwatch.longest(),
            };
            // Memory that only the job still holds is freed before its end is reported.
            drop(job);
            let message = match report.loss() {
                Some(loss) => Message::Lost(self.lane, loss),
                None => Message::Done(report),
            };
            let is_last = matches!(message, Message::Lost(..));
            if self.inbox.send(message).is_err() || is_last {
                return;
            }
        }
    }

    /// Finds likely tokens after rows of a prompt. Returns whether the conductor has heard of them.
    fn report_calibration(&mut self, slice: Slice) -> bool {
        self.turn = self.turns.take(self.lane, Class::Proactive);
        let found = self.calibrate(&slice);
        self.turn = Turn::none();
        let place = (slice.request, slice.segment.position);
        // Memory that only the slice still holds is freed before its end is reported.
        drop(slice);
        self.inbox.send(Message::Calibrated(place, found)).is_ok()
    }

    /// Waits for the next order, and lets the executor use the time; `None` if the conductor is gone.
    fn next(&mut self, orders: &Receiver<Order>) -> Result<Option<Order>, LaneLoss> {
        loop {
            match orders.recv_timeout(REST) {
                Ok(order) => return Ok(Some(order)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    let rested = self.executor.rest();
                    let is_more = rested.map_err(|error| {
                        let loss = LaneLoss::of(&error);
                        loss.unwrap_or_else(|| LaneLoss::failed(heg_exec::chain(&error)))
                    })?;
                    if !is_more {
                        return Ok(orders.recv().ok());
                    }
                }
            }
        }
    }

    fn carry_out(&mut self, ticket: Ticket, job: &Job) -> Result<Done, Failure> {
        match job {
            Job::Prefill {
                prompt,
                segment,
                layer,
                kernel,
            } => self.prefill(prompt, *segment, *layer, *kernel),
            Job::Head {
                prompt,
                last,
                unscored,
                is_kept,
            } => {
                let mut done = self.head(prompt, *last, unscored)?;
                if *is_kept {
                    done.last_layer = last_layer(prompt, *last);
                }
                Ok(done)
            }
            Job::Decode { batch, layers } => self.decode(ticket, batch, layers.clone()),
            Job::Mixed { batch, prompts } => self.mixed(batch, prompts),
        }
    }

    fn prefill(
        &mut self,
        prompt: &Prompt,
        segment: Segment,
        layer: u32,
        kernel: LayerKernel,
    ) -> Result<Done, Failure> {
        let cache = cache_of(&prompt.member)?;
        let span = span_in(prompt, segment);
        let order = self.executor.order(WorkStage::Prefill);
        if (layer, kernel) == (0, order.first()) {
            let (from, to) = (segment.position as usize, segment.context() as usize);
            prompt.member.served.with_tokens(|tokens| {
                let tokens = tokens.get(from..to);
                let tokens = tokens.ok_or_else(|| bug!("a segment has tokens that are unknown"))?;
                let run = prompt.member.served.run_of(tokens, span.position);
                self.executor.embed(run, &prompt.rows.rows, span.row)
            })?;
        }
        let launch = Launch {
            layer: Some(layer),
            group: kernel.into(),
        };
        self.launch(
            launch,
            &Batch {
                rows: &prompt.rows.rows,
                caches: &[&cache],
                spans: &[span],
                trees: &[],
            },
        )?;
        let is_last = (layer + 1, kernel) == (self.executor.layers(), order.last());
        if !is_last {
            return Ok(Done::default());
        }
        let served = &prompt.member.served;
        let scores = match self.score_span(served, &prompt.rows.rows, span) {
            // A lane of static kernels may have no head. The lane that has one computes the logits of these rows
            // later.
            Err(EngineError::Exec(ExecError::Launch { .. })) => Vec::new(),
            scores => scores?,
        };
        let mut done = Done::default();
        done.add_scores(served.id, scores);
        Ok(done)
    }

    /// Runs the head on the rows of a span that have passed the last layer, as far as their logits are wanted.
    fn score_span(
        &mut self,
        served: &Served,
        rows: &ActivationRows,
        span: Span,
    ) -> Result<Vec<Score>, EngineError> {
        let wanted = served.scored_rows(span.position as u32, span.tokens as u32);
        let spans: Vec<Span> = wanted
            .zip(span.row..)
            .map(|(position, row)| Span {
                row,
                tokens: 1,
                position: position as usize,
            })
            .collect();
        self.score_rows(served, rows, &spans)
    }

    fn score_rows(
        &mut self,
        served: &Served,
        rows: &ActivationRows,
        spans: &[Span],
    ) -> Result<Vec<Score>, EngineError> {
        let mut scores = Vec::with_capacity(spans.len());
        for spans in spans.chunks(self.executor.head_rows().max(1)) {
            let rows = spans.iter().zip(self.run_head(rows, spans)?);
            scores.extend(rows.filter_map(|(span, row)| served.score(span.position as u32, row)));
        }
        Ok(scores)
    }

    /// Runs the head on rows, no more than it takes at a time, and returns its output for each.
    fn run_head(
        &mut self,
        rows: &ActivationRows,
        spans: &[Span],
    ) -> Result<ChunksExact<'_, f32>, EngineError> {
        let batch = Batch {
            rows,
            caches: &[],
            spans,
            trees: &[],
        };
        self.launch(HEAD, &batch)?;
        let outputs = self.executor.logits(spans.len())?;
        let width = (outputs.len() / spans.len().max(1)).max(1);
        Ok(outputs.chunks_exact(width))
    }

    /// Pools the vectors of texts whose rows have passed the last layer.
    fn vectors(
        &mut self,
        rows: &ActivationRows,
        texts: &[PooledText],
    ) -> Result<Vec<(RequestId, Vec<f32>)>, EngineError> {
        let mut pools: Vec<Pool> = texts.iter().map(|text| Pool::new(text.vectors)).collect();
        let all: Vec<(usize, Span)> = (0..)
            .zip(texts)
            .flat_map(|(of, text)| text.spans.iter().map(move |span| (of, *span)))
            .collect();
        for some in all.chunks(self.executor.head_rows().max(1)) {
            let spans: Vec<Span> = some.iter().map(|(_, span)| *span).collect();
            for ((of, _), row) in some.iter().zip(self.run_head(rows, &spans)?) {
                pools[*of].add(row);
            }
        }
        let vectors = texts.iter().zip(pools);
        Ok(vectors
            .map(|(text, pool)| (text.id, pool.vector()))
            .collect())
    }

    fn head(&mut self, prompt: &Prompt, last: u32, unscored: &[u32]) -> Result<Done, Failure> {
        let row = |position| {
            let segment = Segment {
                position,
                tokens: 1,
            };
            span_in(prompt, segment)
        };
        if let Some(vectors) = prompt.member.served.vectors {
            let id = prompt.member.served.id;
            let text = PooledText::new(id, vectors, last as usize + 1, |at| row(at as u32));
            return Ok(Done {
                vectors: self.vectors(&prompt.rows.rows, &[text])?,
                ..Done::default()
            });
        }
        let there = unscored.iter().filter(|row| **row >= prompt.rows.first);
        let there: Vec<Span> = there.map(|&position| row(position)).collect();
        let scores = self.score_rows(&prompt.member.served, &prompt.rows.rows, &there)?;
        self.launch(
            HEAD,
            &Batch {
                rows: &prompt.rows.rows,
                caches: &[],
                spans: &[row(last)],
                trees: &[],
            },
        )?;
        let mut done = Done {
            tokens: self.choose(&[&prompt.member.served])?,
            ..Done::default()
        };
        done.add_scores(prompt.member.served.id, scores);
        Ok(done)
    }

    fn launch(&mut self, launch: Launch, batch: &Batch<'_>) -> Result<(), EngineError> {
        self.launch_all(&[launch], batch, None)?;
        Ok(())
    }

    /// Runs launches one after the other, and returns the number of those that ran: fewer than all if the job of
    /// `ticket` is asked to yield before a layer.
    fn launch_all(
        &mut self,
        launches: &[Launch],
        batch: &Batch<'_>,
        ticket: Option<Ticket>,
    ) -> Result<usize, EngineError> {
        // The rest of a job whose kernel was cancelled is not needed, even if that kernel completed.
        if self.signals.is_reset() {
            return Err(ExecError::Abandoned.into());
        }
        let first = Group::from(self.executor.order(WorkStage::Decode).first());
        let signals = &self.signals;
        self.stopwatch.begin_kernel();
        let watch = Mutex::new(Watch {
            stopwatch: &mut self.stopwatch,
            running: launches.iter(),
            turn: &mut self.turn,
        });
        let ended = || {
            let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
            watch.ended();
            watch
        };
        let goes_on = |next: Launch| {
            let mut watch = ended();
            if signals.is_reset() {
                return false;
            }
            if next.group == first
                && let Some(ticket) = ticket
            {
                if signals.yields(ticket) {
                    return false;
                }
                watch.stopwatch.may_yield();
            }
            watch.make_way();
            true
        };
        let ran = self.executor.launch_all(launches, batch, &goes_on)?;
        if ran == launches.len() {
            drop(ended());
        } else if signals.is_reset() {
            return Err(ExecError::Abandoned.into());
        }
        Ok(ran)
    }

    /// Chooses the next token of each request after the logits that the head has just given.
    fn choose(&mut self, served: &[&Served]) -> Result<Vec<(RequestId, NextToken)>, EngineError> {
        let logits = self.executor.logits(served.len())?;
        let width = logits.len() / served.len().max(1);
        let rows = logits.chunks_exact_mut(width.max(1));
        let choose = |(served, row): (&&Served, &mut [f32])| (served.id, served.choose(row));
        Ok(served.iter().zip(rows).map(choose).collect())
    }
}

/// Launches that run one after the other, as their lane watches them.
struct Watch<'a> {
    stopwatch: &'a mut Stopwatch,
    /// The one that runs, and those behind it.
    running: std::slice::Iter<'a, Launch>,
    turn: &'a mut Turn,
}

impl Watch<'_> {
    fn ended(&mut self) {
        if let Some(launch) = self.running.next() {
            self.stopwatch.ran(*launch);
        }
    }

    /// Lets another engine have the lane, if a person waits there.
    fn make_way(&mut self) {
        if self.turn.make_way() {
            self.stopwatch.resume();
        }
    }
}

/// Idle time after which a lane rests. Chosen: longer than any pause between two launches of one request.
const REST: Duration = Duration::from_millis(250);

/// Returns the cache of a request, with all its rows.
fn cache_of(member: &Member) -> Result<Arc<KvCache>, Failure> {
    member.cache.read().map_err(|error| Failure {
        error,
        unread: Some(member.served.id),
    })
}

fn caches_of<'a>(members: impl Iterator<Item = &'a Member>) -> Result<Vec<Arc<KvCache>>, Failure> {
    members.map(cache_of).collect()
}

/// Copies the keys and values of the last layer up to a position; `None` if there is no room for them, which costs no
/// answer.
fn last_layer(prompt: &Prompt, last: u32) -> Option<(RequestId, KvCache)> {
    let cache = cache_of(&prompt.member).ok()?;
    let copy = cache.last_layer(last as usize + 1).ok()?;
    Some((prompt.member.served.id, copy))
}

/// The rows of a segment in its prompt's activations.
fn span_in(prompt: &Prompt, segment: Segment) -> Span {
    Span {
        row: prompt.rows.row_of(segment.position),
        tokens: segment.tokens as usize,
        position: segment.position as usize,
    }
}

const HEAD: Launch = Launch {
    layer: None,
    group: Group::Head,
};
