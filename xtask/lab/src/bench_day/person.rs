//! The person of a day: asks one thing after the other, and waits. In the middle of the day the system is killed and started
//! again; that wait is part of the next question's.

use super::client::Client;
use super::day::{Day, Turn};
use super::dialect::{CHAT, Prompt};
use anyhow::{Context, Result};
use heg_sched::Class;
use serde::{Deserialize, Serialize};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The times of one question, in ms, and all token ids of its answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TurnTimes {
    /// The start of a killed system.
    pub(super) start_ms: f64,
    /// A query's vector, and documents in order.
    pub(super) search_ms: f64,
    /// A tool's call, whole.
    pub(super) call_ms: f64,
    /// The first token of the answer behind the tool's result.
    pub(super) first_ms: f64,
    /// The whole answer, from the tool's result on.
    pub(super) answer_ms: f64,
    pub(super) ids: Vec<u32>,
}

impl TurnTimes {
    /// Time for which the person has nothing to read, in ms.
    pub(super) fn wait_ms(&self) -> f64 {
        self.start_ms + self.search_ms + self.call_ms + self.first_ms
    }
}

/// Lives a day. `restart` kills the system and starts it again.
pub(super) fn live(
    day: &Day,
    client: Client<'_>,
    mut restart: impl FnMut() -> Result<()>,
    mut said: impl FnMut(usize, &TurnTimes),
) -> Result<Vec<TurnTimes>> {
    let mut conversations = day.instructions.clone();
    let mut times = Vec::new();
    for (number, turn) in day.turns.iter().enumerate() {
        sleep(THINKING);
        let begin = Instant::now();
        let is_restarted = number == day.restart;
        if is_restarted {
            restart()?;
        }
        let start_ms = if is_restarted { ms(begin) } else { 0.0 };
        let conversation = conversations.get_mut(turn.agent);
        let conversation = conversation.context("a day has fewer agents than it says")?;
        let mut taken = ask(day, turn, conversation, client)
            .with_context(|| format!("question {} of {}", number + 1, day.turns.len()))?;
        taken.start_ms = start_ms;
        said(number, &taken);
        times.push(taken);
    }
    Ok(times)
}

/// Asks a question, to the end of its answer. All that was said is in the conversation then.
fn ask(
    day: &Day,
    turn: &Turn,
    conversation: &mut Vec<u32>,
    client: Client<'_>,
) -> Result<TurnTimes> {
    let begin = Instant::now();
    client.embed(std::slice::from_ref(&turn.query), Class::Reactive)?;
    client.rerank(&turn.query, &turn.documents)?;
    let search_ms = ms(begin);
    let mut say = |heard: &[u32], tokens: usize| {
        conversation.extend_from_slice(heard);
        let answer = client.complete(Prompt {
            model: CHAT,
            ids: conversation,
            tokens,
            class: Class::Reactive,
        })?;
        conversation.extend_from_slice(&answer.ids);
        anyhow::Ok(answer)
    };
    let call = say(&turn.question, day.call)?;
    sleep(TOOL);
    let answer = say(&turn.result, day.answer)?;
    Ok(TurnTimes {
        start_ms: 0.0,
        search_ms,
        call_ms: call.end.as_secs_f64() * 1e3,
        first_ms: answer.first.as_secs_f64() * 1e3,
        answer_ms: answer.end.as_secs_f64() * 1e3,
        ids: [call.ids, answer.ids].concat(),
    })
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Chosen: short, so that a day has an end; background work goes on meanwhile.
pub(super) const THINKING: Duration = Duration::from_millis(1000);
pub(super) const TOOL: Duration = Duration::from_millis(200);
