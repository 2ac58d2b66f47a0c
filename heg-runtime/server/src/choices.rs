//! The answers to one request, one or several (`n`). Each is a request of its own to the engine.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::account::Charge;
use super::answering::{AnswerEvent, AnswerStats, Answering};
use super::error::Result;
use heg_sched::RequestId;

/// The running answers to one request, in the order of their index. Dropping them cancels them.
pub(super) struct Choices(Vec<Choice>);

struct Choice {
    answering: Answering,
    /// Whether the answer's last event was taken.
    is_over: bool,
}

impl Choices {
    pub(super) fn new(answerings: Vec<Answering>) -> Self {
        let choice = |answering| Choice {
            answering,
            is_over: false,
        };
        Self(answerings.into_iter().map(choice).collect())
    }

    /// Returns the charge for the memory of the answers; `None` if there are no answers.
    pub(super) fn charge(&self) -> Option<Arc<Charge>> {
        let first = self.0.first();
        first.map(|choice| Arc::clone(choice.answering.charge()))
    }

    /// Returns the engine's name of the first answer; `None` if there are no answers.
    pub(super) fn first(&self) -> Option<RequestId> {
        self.0.first().map(|choice| choice.answering.id())
    }

    /// Returns the number of answers.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Waits until the scheduler has accepted all requests; returns the shortest predicted TTFT.
    pub(super) async fn accepted(&mut self) -> Result<Duration> {
        let mut first = Duration::MAX;
        for choice in &mut self.0 {
            first = first.min(choice.answering.accepted().await?);
        }
        Ok(first)
    }

    /// Returns the next event of any answer, with the answer's index; `None` once all are over.
    pub(super) async fn next(&mut self) -> Option<(usize, Result<AnswerEvent>)> {
        let running = self.0.iter_mut().enumerate();
        let mut running: Vec<(usize, Pin<Box<dyn Future<Output = _> + Send + '_>>)> = running
            .filter(|(_, choice)| !choice.is_over)
            .map(|(index, choice)| (index, Box::pin(choice.answering.next()) as _))
            .collect();
        if running.is_empty() {
            return None;
        }
        // An answer that is dropped while it waits has taken no event yet.
        let (index, event) = poll_fn(|context| {
            for (index, next) in &mut running {
                if let Poll::Ready(event) = next.as_mut().poll(context) {
                    return Poll::Ready((*index, event));
                }
            }
            Poll::Pending
        })
        .await;
        drop(running);
        if let (Some(choice), Err(_) | Ok(AnswerEvent::End { .. })) =
            (self.0.get_mut(index), &event)
        {
            choice.is_over = true;
        }
        Some((index, event))
    }

    /// Returns whether every answer has had its last event.
    pub(super) fn are_over(&self) -> bool {
        self.0.iter().all(|choice| choice.is_over)
    }

    /// Returns the statistics of one answer.
    pub(super) fn stats_of(&self, index: usize) -> AnswerStats {
        let choice = self.0.get(index);
        choice.map_or_else(AnswerStats::default, |choice| *choice.answering.stats())
    }

    /// Returns the statistics of all answers together: their tokens, and the times of the one that took longest. The
    /// prompt counts once.
    pub(super) fn stats(&self) -> AnswerStats {
        let all = || self.0.iter().map(|choice| choice.answering.stats());
        let longest = all().max_by_key(|stats| stats.ttft + stats.decode);
        AnswerStats {
            answer_tokens: all().map(|stats| stats.answer_tokens).sum(),
            thought_tokens: all().map(|stats| stats.thought_tokens).sum(),
            reused_tokens: all().map(|stats| stats.reused_tokens).max().unwrap_or(0),
            drafts: all().map(|stats| stats.drafts).sum(),
            ..longest.copied().unwrap_or_default()
        }
    }
}
