//! One running request: turns the engine's updates into text, tool calls and the result that the client gets.
//!
//! Runs in the connection's task: the engine only sends token ids into a channel, which holds at most the tokens of
//! one answer, however slow the client is. A dropped `Answering` cancels its request.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::account::Charge;
use super::admission::Permit;
use super::echo::{Echo, Echoed};
use super::error::{ApiError, Result};
use super::log_probs::ScoredToken;
use super::metrics::{Metrics, Outcome};
use super::supersede::Turn;
use heg_runtime::FinishReason;
use heg_runtime::RuntimeError;
use heg_runtime::engine::{DraftCounts, Ending, Engine, Request, Update};
use heg_sched::{Class, Finish, RequestId};
use heg_text::{AnswerText, Said, TokenLogProbs, ToolCallParser, ToolSyntax};

/// A request that was submitted to the engine.
pub(super) struct Answering {
    engine: Engine,
    id: RequestId,
    updates: UnboundedReceiver<Update>,
    text: AnswerText,
    /// Parser of tool calls, if the answer may have some.
    calls: Option<ToolCallParser>,
    /// The prompt, until it was sent back.
    echo: Option<Echo>,
    /// Whether that waits for its log probabilities.
    echo_waits: bool,
    /// Characters of the prompt in front of the answer.
    echoed_chars: usize,
    shows: Shows,
    state: State,
    stats: AnswerStats,
    class: Class,
    metrics: Arc<Metrics>,
    /// Its turn among requests with the same key.
    turn: Turn,
    /// Its permit, given back at the end.
    permit: Permit,
    /// The charge for what it keeps, on its client's account, with the other answers to its request.
    _charge: Arc<Charge>,
}

/// The text side of a request.
pub(super) struct TextSide {
    pub(super) text: AnswerText,
    /// Syntax of tool calls, if the answer may have some.
    pub(super) syntax: Option<ToolSyntax>,
    /// The prompt, if it is to come back.
    pub(super) echo: Option<Echo>,
    pub(super) shows: Shows,
}

/// Whether an answer is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shows {
    Answer,
    /// Only the prompt was asked for; the engine makes one token all the same.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Tokens are arriving.
    Running,
    /// A stop text was found; the engine has not reported the end yet.
    Stopped,
    /// The engine has reported the end.
    Over,
}

/// An event in the course of an answer.
pub(super) enum AnswerEvent {
    /// The prompt that comes back, before everything else.
    Prompt(Echoed),
    /// A token, and the text and calls that can be shown now.
    Token {
        id: u32,
        said: Vec<Said>,
        /// Its log probabilities, if they are asked for.
        scored: Option<ScoredToken>,
    },
    /// The end of the answer, with the text and calls held back until now.
    End {
        said: Vec<Said>,
        reason: FinishReason,
    },
}

/// Counts and times of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct AnswerStats {
    pub(super) prompt_tokens: u32,
    pub(super) answer_tokens: u32,
    pub(super) reused_tokens: u32,
    /// How its tokens were drafted.
    pub(super) drafts: DraftCounts,
    pub(super) predicted_ttft: Duration,
    pub(super) queued: Duration,
    pub(super) ttft: Duration,
    pub(super) decode: Duration,
    /// Time per token after the first.
    pub(super) tpot: Duration,
}

impl Answering {
    /// Submits a request to the engine.
    pub(super) fn submit(
        engine: &Engine,
        request: Request,
        side: TextSide,
        turn: Turn,
        (permit, charge): (Permit, Arc<Charge>),
        metrics: &Arc<Metrics>,
    ) -> Self {
        let (sender, updates) = unbounded_channel();
        let class = request.class;
        let echo_waits = request.prompt_log_probs.is_some();
        let stats = AnswerStats {
            prompt_tokens: request.prompt.len().try_into().unwrap_or(u32::MAX),
            ..AnswerStats::default()
        };
        // A failed send means that nobody listens any more: the cancellation is under way.
        let id = engine.submit(request, move |update| drop(sender.send(update)));
        Self {
            engine: engine.clone(),
            id,
            updates,
            text: side.text,
            calls: side.syntax.map(ToolCallParser::new),
            echo: side.echo,
            echo_waits,
            echoed_chars: 0,
            shows: side.shows,
            state: State::Running,
            stats,
            class,
            metrics: Arc::clone(metrics),
            turn,
            permit,
            _charge: charge,
        }
    }

    /// Waits until the scheduler has accepted it; returns the predicted TTFT.
    pub(super) async fn accepted(&mut self) -> Result<Duration> {
        match self.update().await? {
            Update::Accepted { predicted_ttft } => {
                self.stats.predicted_ttft = predicted_ttft;
                Ok(predicted_ttft)
            }
            Update::Finished(ending) => {
                self.end(ending)?;
                Err(out_of_turn())
            }
            Update::Prompt(_) | Update::Token { .. } => Err(out_of_turn()),
        }
    }

    /// The next event of an accepted request. `End` and errors are the last. Nothing is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Result<AnswerEvent> {
        if let Some(echo) = self.echo.take_if(|_| !self.echo_waits) {
            return self.echoed(echo.read(None)?);
        }
        loop {
            match self.update().await? {
                Update::Prompt(log_probs) => {
                    if let Some(echo) = self.echo.take() {
                        return self.echoed(echo.read(Some(log_probs))?);
                    }
                }
                // The engine says what it knows of the prompt first.
                Update::Token { .. } if self.echo.is_some() => return Err(out_of_turn()),
                Update::Token { id, log_probs }
                    if self.state == State::Running && self.shows == Shows::Answer =>
                {
                    return self.token(id, log_probs);
                }
                Update::Token { .. } => {}
                Update::Finished(ending) => return self.end(ending),
                Update::Accepted { .. } => return Err(out_of_turn()),
            }
        }
    }

    async fn update(&mut self) -> Result<Update> {
        tokio::select! {
            biased;
            () = self.turn.passed() => Err(ApiError::Superseded),
            update = self.updates.recv() => update.ok_or_else(engine_gone),
        }
    }

    /// The statistics so far; complete after the end.
    pub(super) fn stats(&self) -> &AnswerStats {
        &self.stats
    }

    fn echoed(&mut self, echoed: Echoed) -> Result<AnswerEvent> {
        self.echoed_chars = echoed.text.chars().count();
        Ok(AnswerEvent::Prompt(echoed))
    }

    fn token(&mut self, id: u32, log_probs: Option<Box<TokenLogProbs>>) -> Result<AnswerEvent> {
        self.stats.answer_tokens += 1;
        let offset = self.echoed_chars + self.text.chars();
        let emit = self.text.push(id).map_err(RuntimeError::from)?;
        if emit.stopped {
            self.state = State::Stopped;
            self.engine.cancel(self.id);
        }
        Ok(AnswerEvent::Token {
            id,
            said: self.said(emit.text),
            scored: log_probs.map(|log_probs| ScoredToken {
                id,
                log_probs: Some(log_probs),
                offset,
            }),
        })
    }

    /// Splits a piece of text into text and calls.
    fn said(&mut self, text: String) -> Vec<Said> {
        match &mut self.calls {
            Some(calls) => calls.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![Said::Text(text)],
        }
    }

    fn last_said(&mut self) -> Result<Vec<Said>> {
        let text = self.text.finish().map_err(RuntimeError::from)?;
        let mut said = self.said(text);
        if let Some(calls) = &mut self.calls {
            said.extend(calls.finish());
        }
        Ok(said)
    }

    fn end(&mut self, ending: Ending) -> Result<AnswerEvent> {
        let stopped = self.state == State::Stopped;
        self.state = State::Over;
        self.stats.reused_tokens = ending.reused_tokens;
        self.stats.drafts = ending.drafts.unwrap_or_default();
        self.stats.queued = ending.queued;
        self.stats.ttft = ending.ttft;
        self.stats.decode = ending.decode;
        self.stats.tpot = ending.decode / ending.generated.saturating_sub(1).max(1);
        let outcome = match ending.finish {
            _ if stopped => Outcome::Complete,
            Finish::Complete => Outcome::Complete,
            Finish::Cancelled => Outcome::Cancelled,
            Finish::Deadline => Outcome::Deadline,
            Finish::Failed => Outcome::Failed,
            Finish::Shed => Outcome::Shed,
        };
        self.metrics.ended(self.class, outcome, Some(&self.stats));
        match outcome {
            Outcome::Complete => Ok(AnswerEvent::End {
                said: self.last_said()?,
                reason: match self.shows {
                    Shows::Nothing => FinishReason::Length,
                    Shows::Answer if stopped => FinishReason::Stop,
                    Shows::Answer => ending.reason,
                },
            }),
            // A client that cancels drops the answer, so this is the server's shutdown.
            Outcome::Cancelled => Err(ApiError::ShuttingDown),
            Outcome::Deadline => Err(ApiError::Deadline),
            Outcome::Failed => Err(ApiError::Failed {
                why: ending
                    .error
                    .map_or_else(|| "a kernel failed".to_owned(), |error| error.chain()),
            }),
            Outcome::Shed => Err(ApiError::Shed {
                retry_after: self.permit.retry_after(),
            }),
        }
    }
}

fn out_of_turn() -> ApiError {
    ApiError::Failed {
        why: "the engine answered out of turn; this is a bug".to_owned(),
    }
}

fn engine_gone() -> ApiError {
    ApiError::Failed {
        why: "the engine has ended".to_owned(),
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if self.state != State::Over {
            self.engine.cancel(self.id);
            self.metrics.ended(self.class, Outcome::Cancelled, None);
        }
    }
}
