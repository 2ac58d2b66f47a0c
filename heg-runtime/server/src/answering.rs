//! One running request: turns the engine's updates into text, tool calls and the result that the client gets.
//!
//! Runs in the connection's task: the engine only sends token ids into a channel, which holds at most the tokens of
//! one answer, however slow the client is. Dropping an `Answering` cancels its request. The request's place in the
//! queue is free once the engine is done with it; its memory is charged until the client has received the whole
//! answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::account::Charge;
use super::admission::{Permit, Retry};
use super::echo::Echo;
use super::error::{ApiError, Result};
use super::log_probs::ScoredToken;
use super::metrics::{ClientMetrics, Outcome};
use super::supersede::Turn;
use heg_runtime::FinishReason;
use heg_runtime::RuntimeError;
use heg_runtime::engine::{DraftCounts, Ending, Engine, Request, Update};
use heg_sched::{Class, Finish, RequestId};
use heg_text::{
    AnswerText, Said, ThoughtParser, ThoughtSplit, TokenLogProbs, ToolCallParser, ToolSyntax,
};

/// A request that was submitted to the engine.
pub(super) struct Answering {
    engine: Engine,
    id: RequestId,
    updates: UnboundedReceiver<Told>,
    text: AnswerText,
    /// Parser of what the model thinks, if that is shown apart.
    thoughts: Option<ThoughtParser>,
    /// Parser of tool calls, if the answer may have some.
    calls: Option<ToolCallParser>,
    /// The prompt, until it has been sent back.
    echo: Option<Echo>,
    /// Whether the echo still waits for its log probabilities.
    echo_waits: bool,
    shows: Shows,
    state: State,
    stats: AnswerStats,
    class: Class,
    metrics: ClientMetrics,
    /// The request's turn among those with the same key.
    turn: Turn,
    /// The estimate of when to retry if the request is shed.
    retry: Retry,
    charge: Arc<Charge>,
}

/// The resources that a request holds.
pub(super) struct Holding {
    /// The request's turn among those with the same key.
    pub(super) turn: Turn,
    /// The request's place in the queue, given back when the engine is done with it.
    pub(super) permit: Permit,
    /// The charge on the client's account, shared with the other answers to the same request.
    pub(super) charge: Arc<Charge>,
}

/// An engine update, in the form in which it waits for a client that may be slow.
enum Told {
    Accepted(Duration),
    Prompt(Vec<TokenLogProbs>),
    Token {
        id: u32,
        log_probs: Option<Box<TokenLogProbs>>,
    },
    /// A vector, for which no answer asks.
    Vector,
    Finished(Box<Ending>),
}

impl From<Update> for Told {
    fn from(update: Update) -> Self {
        match update {
            Update::Accepted { predicted_ttft } => Self::Accepted(predicted_ttft),
            Update::Prompt(log_probs) => Self::Prompt(log_probs),
            Update::Token { id, log_probs } => Self::Token { id, log_probs },
            Update::Vector(_) => Self::Vector,
            Update::Finished(ending) => Self::Finished(Box::new(ending)),
        }
    }
}

/// The text side of a request.
pub(super) struct TextSide {
    pub(super) text: AnswerText,
    /// Parser of what the model thinks, if that is shown apart.
    pub(super) thoughts: Option<ThoughtParser>,
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
    /// Nothing but the prompt was asked for; the engine makes one token all the same.
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
    Prompt(Echo),
    /// A token, and the text and calls that can be shown now.
    Token {
        id: u32,
        said: Vec<Said>,
        /// The token's log probabilities, if they are asked for; the offset does not count an echoed prompt.
        scored: Option<ScoredToken>,
    },
    /// The end of the answer, with the text and calls held back until now.
    End { said: Vec<Said>, end: AnswerEnd },
}

/// The end of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AnswerEnd {
    pub(super) reason: FinishReason,
    /// The stop text that ended the answer, if one did.
    pub(super) stop_text: Option<String>,
}

impl From<FinishReason> for AnswerEnd {
    fn from(reason: FinishReason) -> Self {
        Self {
            reason,
            stop_text: None,
        }
    }
}

/// Counts and times of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct AnswerStats {
    pub(super) prompt_tokens: u32,
    pub(super) answer_tokens: u32,
    /// Number of tokens of what the model thought, if that is shown apart: up to the one that ends the thought.
    pub(super) thought_tokens: Option<u32>,
    pub(super) reused_tokens: u32,
    /// Counts of the answer's drafted and accepted tokens.
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
        holding: Holding,
        metrics: ClientMetrics,
    ) -> Self {
        let Holding {
            turn,
            permit,
            charge,
        } = holding;
        let (sender, updates) = unbounded_channel();
        let class = request.class;
        let echo_waits = request.prompt_log_probs.is_some();
        let stats = AnswerStats {
            prompt_tokens: request.prompt.len().try_into().unwrap_or(u32::MAX),
            ..AnswerStats::default()
        };
        let retry = permit.retry();
        // The engine works with the charged memory whether or not anybody listens.
        let mut while_it_runs = Some((permit, Arc::clone(&charge)));
        let id = engine.submit(request, move |update| {
            if matches!(update, Update::Finished(_)) {
                drop(while_it_runs.take());
            }
            // A failed send means that the receiver is gone and the cancellation is under way.
            let _ = sender.send(update.into());
        });
        Self {
            engine: engine.clone(),
            id,
            updates,
            text: side.text,
            thoughts: side.thoughts,
            calls: side.syntax.map(ToolCallParser::new),
            echo: side.echo,
            echo_waits,
            shows: side.shows,
            state: State::Running,
            stats,
            class,
            metrics,
            turn,
            retry,
            charge,
        }
    }

    /// Waits until the scheduler has accepted the request; returns the predicted TTFT.
    pub(super) async fn accepted(&mut self) -> Result<Duration> {
        match self.update().await? {
            Told::Accepted(predicted_ttft) => {
                self.stats.predicted_ttft = predicted_ttft;
                Ok(predicted_ttft)
            }
            Told::Finished(ending) => {
                self.end(*ending)?;
                Err(out_of_turn())
            }
            Told::Prompt(_) | Told::Token { .. } | Told::Vector => Err(out_of_turn()),
        }
    }

    /// Returns the next event of an accepted request. `End` and errors are the last. Nothing is lost if the future is
    /// dropped.
    pub(super) async fn next(&mut self) -> Result<AnswerEvent> {
        if let Some(echo) = self.echo.take_if(|_| !self.echo_waits) {
            return Ok(AnswerEvent::Prompt(echo));
        }
        loop {
            match self.update().await? {
                Told::Prompt(log_probs) => {
                    if let Some(mut echo) = self.echo.take() {
                        echo.log_probs = Some(log_probs);
                        return Ok(AnswerEvent::Prompt(echo));
                    }
                }
                // The engine reports the prompt before the first token.
                Told::Token { .. } if self.echo.is_some() => return Err(out_of_turn()),
                Told::Token { id, log_probs }
                    if self.state == State::Running && self.shows == Shows::Answer =>
                {
                    return self.token(id, log_probs);
                }
                Told::Token { .. } => {}
                Told::Finished(ending) => return self.end(*ending),
                Told::Accepted(_) | Told::Vector => return Err(out_of_turn()),
            }
        }
    }

    async fn update(&mut self) -> Result<Told> {
        tokio::select! {
            biased;
            () = self.turn.passed() => Err(ApiError::Superseded),
            update = self.updates.recv() => update.ok_or_else(engine_gone),
        }
    }

    /// Returns the statistics so far; complete after the end.
    pub(super) fn stats(&self) -> &AnswerStats {
        &self.stats
    }

    /// Returns the engine's name of the request.
    pub(super) fn id(&self) -> RequestId {
        self.id
    }

    /// Returns the request's charge, which its other answers share.
    pub(super) fn charge(&self) -> &Arc<Charge> {
        &self.charge
    }

    fn token(&mut self, id: u32, log_probs: Option<Box<TokenLogProbs>>) -> Result<AnswerEvent> {
        self.stats.answer_tokens += 1;
        let offset = self.text.chars();
        let emit = self.text.push(id).map_err(RuntimeError::from)?;
        if emit.stopped {
            self.state = State::Stopped;
            self.engine.cancel(self.id);
        }
        let said = self.said(emit.text);
        self.stats.thought_tokens = self.thoughts.as_ref().map(ThoughtParser::pieces);
        Ok(AnswerEvent::Token {
            id,
            said,
            scored: log_probs.map(|log_probs| ScoredToken {
                id,
                log_probs: Some(log_probs),
                offset,
            }),
        })
    }

    /// Splits a piece of text into thoughts, text and calls.
    fn said(&mut self, text: String) -> Vec<Said> {
        let split = match &mut self.thoughts {
            Some(thoughts) => thoughts.push(&text),
            None => ThoughtSplit {
                text,
                ..ThoughtSplit::default()
            },
        };
        self.said_apart(split)
    }

    /// Splits the text behind a thought into text and calls.
    fn said_apart(&mut self, split: ThoughtSplit) -> Vec<Said> {
        let ThoughtSplit { thought, text } = split;
        let thought = Some(thought).filter(|thought| !thought.is_empty());
        let mut said: Vec<Said> = thought.map(Said::Thought).into_iter().collect();
        match &mut self.calls {
            Some(calls) => said.extend(calls.push(&text)),
            None if text.is_empty() => {}
            None => said.push(Said::Text(text)),
        }
        said
    }

    fn last_said(&mut self) -> Result<Vec<Said>> {
        let text = self.text.finish().map_err(RuntimeError::from)?;
        let mut said = self.said(text);
        if let Some(thoughts) = &mut self.thoughts {
            let split = thoughts.finish();
            said.extend(self.said_apart(split));
        }
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
                end: match self.shows {
                    Shows::Nothing => FinishReason::Length.into(),
                    Shows::Answer if stopped => AnswerEnd {
                        reason: FinishReason::Stop,
                        stop_text: self.text.stop_text().map(str::to_owned),
                    },
                    Shows::Answer => ending.reason.into(),
                },
            }),
            // A client that cancels drops the answer, so this is the server's shutdown.
            Outcome::Cancelled => Err(ApiError::ShuttingDown),
            Outcome::Deadline => Err(ApiError::Deadline),
            Outcome::Failed => Err(match ending.error {
                Some(error) => ApiError::Broken(error),
                None => ApiError::Failed {
                    why: "a kernel failed".to_owned(),
                },
            }),
            Outcome::Shed => Err(ApiError::Shed {
                retry_after: self.retry.after(),
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
        // Waiting updates are freed one by one: if there are many, on another thread than the event loop's.
        if self.updates.len() > WAITING_MAX
            && let Ok(runtime) = Handle::try_current()
        {
            let (_, nothing) = unbounded_channel();
            let waiting = std::mem::replace(&mut self.updates, nothing);
            let charge = Arc::clone(&self.charge);
            runtime.spawn_blocking(move || drop((waiting, charge)));
        }
    }
}

/// Memory of a token that waits for its client, in bytes: in the channel, and as text.
pub(super) const WAITING_TOKEN_BYTES: usize = size_of::<Told>() + 8;

/// Largest number of waiting updates that are dropped on the event loop. Chosen: they take a tenth of a millisecond.
const WAITING_MAX: usize = 4096;
