//! The vectors or scores of a request's texts, from the engine. Several texts are on their way at once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::admission::Permit;
use super::error::{ApiError, Result};
use super::text_metrics::RunningTexts;
use heg_runtime::engine::{Ending, Engine, Request, Update};
use heg_sched::{Finish, RequestId};

/// A request whose texts are asked for.
pub(super) struct TextsOf<'a> {
    pub(super) engine: &'a Engine,
    pub(super) permit: &'a Permit,
    pub(super) running: RunningTexts,
    pub(super) arrived: Instant,
    /// Time from the arrival after which the vectors are worthless.
    pub(super) deadline: Option<Duration>,
}

impl TextsOf<'_> {
    /// Asks the engine for the vectors of all texts, some of them at a time, and returns them in the order of the texts.
    pub(super) async fn vectors(
        mut self,
        texts: impl Iterator<Item = Request>,
    ) -> Result<Vec<Vec<f32>>> {
        let vectors = self.ask(texts).await;
        self.running.ended(&vectors);
        vectors
    }

    async fn ask(&mut self, mut texts: impl Iterator<Item = Request>) -> Result<Vec<Vec<f32>>> {
        let mut vectors = Vec::new();
        let mut under_way: VecDeque<UnderWay> = VecDeque::new();
        loop {
            while under_way.len() < TEXTS_AT_ONCE
                && let Some(text) = texts.next()
            {
                let left = self
                    .deadline
                    .map(|time| time.checked_sub(self.arrived.elapsed()));
                let request = Request {
                    deadline: left
                        .map(|left| left.ok_or(ApiError::Deadline))
                        .transpose()?,
                    ..text
                };
                under_way.push_back(UnderWay::submit(self.engine, request));
            }
            let Some(mut next) = under_way.pop_front() else {
                return Ok(vectors);
            };
            let ended = (&mut next.ended).await;
            next.is_over = true;
            let ended = ended.map_err(|_| ApiError::Failed {
                why: "the engine has ended".to_owned(),
            })?;
            let (vector, queued) = ended.map_err(|ending| refusal(*ending, self.permit))?;
            self.running.done(next.tokens, queued);
            vectors.push(vector);
        }
    }
}

/// A vector, and the time for which its text was queued.
type Vector = (Vec<f32>, Duration);

/// A text whose vector the engine is making; it is cancelled if nobody waits for it any more.
struct UnderWay {
    engine: Engine,
    id: RequestId,
    tokens: usize,
    ended: oneshot::Receiver<std::result::Result<Vector, Box<Ending>>>,
    is_over: bool,
}

impl UnderWay {
    fn submit(engine: &Engine, request: Request) -> Self {
        let (sender, ended) = oneshot::channel();
        let (mut sender, mut vector) = (Some(sender), None);
        let tokens = request.prompt.len();
        let id = engine.submit(request, move |update| match update {
            Update::Vector(found) => vector = Some(found),
            Update::Finished(ending) => {
                let vector = vector.take().filter(|_| ending.finish == Finish::Complete);
                if let Some(sender) = sender.take() {
                    // A failed send means that nobody waits.
                    let _ = sender.send(match vector {
                        Some(vector) => Ok((vector, ending.queued)),
                        None => Err(Box::new(ending)),
                    });
                }
            }
            Update::Accepted { .. } | Update::Prompt(_) | Update::Token { .. } => {}
        });
        Self {
            engine: engine.clone(),
            id,
            tokens,
            ended,
            is_over: false,
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.is_over {
            self.engine.cancel(self.id);
        }
    }
}

/// Returns the error for a text that has no vector.
fn refusal(ending: Ending, permit: &Permit) -> ApiError {
    match (ending.finish, ending.error) {
        (Finish::Deadline, _) => ApiError::Deadline,
        // A client that cancels waits for nothing, so this is the server's shutdown.
        (Finish::Cancelled, _) => ApiError::ShuttingDown,
        (Finish::Shed, _) => ApiError::Shed {
            retry_after: permit.retry().after(),
        },
        (Finish::Complete | Finish::Failed, Some(error)) => ApiError::Broken(error),
        (Finish::Complete | Finish::Failed, None) => ApiError::Failed {
            why: "a kernel failed".to_owned(),
        },
    }
}

/// Texts of one request that the engine has at a time. Chosen: a batch of short ones while the one before it runs; all
/// places in the queue together ask for no more than a policy takes.
const TEXTS_AT_ONCE: usize = 32;
