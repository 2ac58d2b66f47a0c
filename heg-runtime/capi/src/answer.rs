//! An answer as it arrives: pieces of text, then its ending.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heg_runtime::FinishReason;
use heg_runtime::engine::{Ending, Engine, EngineError, Generation, Update};
use heg_runtime::text::{
    AnswerText, Said, ThoughtParser, ThoughtSplit, ToolCall, ToolCallParser, ToolSyntax,
};
use heg_sched::{Finish, RequestId};
use serde_json::Value;

use crate::ask::{Ask, Prepared};
use crate::failure::InterfaceError;
use crate::opened::OpenedBundle;
use crate::report;

/// A request that was submitted. Any thread may cancel it; one at a time hears it.
pub(crate) struct Answer {
    engine: Engine,
    id: RequestId,
    hearing: Mutex<Hearing>,
}

/// The reader's side of an answer.
struct Hearing {
    generation: Generation,
    text: AnswerText,
    syntax: Option<ToolSyntax>,
    thoughts: Option<ThoughtParser>,
    prompt_tokens: usize,
    thought: String,
    said: String,
    token_ids: Vec<u32>,
    stop: Stop,
    ending: Option<Ending>,
    /// The last piece, with a zero behind it, for a caller who reads it in place.
    piece: Vec<u8>,
}

/// Whether a stop text ended the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    None,
    Met,
}

/// The next event of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Text, not empty.
    Piece(String),
    /// Nothing within the time.
    Pending,
    /// The answer is over.
    Over,
}

/// Address of the last piece: it stays until the answer is heard again, or dropped.
pub(crate) struct Lying {
    pub(crate) text: *const u8,
    pub(crate) bytes: usize,
}

impl Answer {
    /// Submits a request.
    pub(crate) fn submit(opened: &OpenedBundle, ask: Ask) -> Result<Self, InterfaceError> {
        let Prepared {
            request,
            text,
            syntax,
            thoughts,
        } = ask.prepare(opened)?;
        let prompt_tokens = request.prompt.len();
        let generation = opened.engine.generate(request);
        Ok(Self {
            engine: opened.engine.clone(),
            id: generation.id(),
            hearing: Mutex::new(Hearing {
                generation,
                text,
                syntax,
                thoughts,
                prompt_tokens,
                thought: String::new(),
                said: String::new(),
                token_ids: Vec::new(),
                stop: Stop::None,
                ending: None,
                piece: vec![0],
            }),
        })
    }

    /// Asks the engine to stop.
    pub(crate) fn cancel(&self) {
        self.engine.cancel(self.id);
    }

    /// Waits for the next piece of text, for ever where there is no patience.
    pub(crate) fn hear(&self, patience: Option<Duration>) -> Result<Heard, InterfaceError> {
        self.hearing().hear(patience)
    }

    /// As [`hear`](Self::hear), with the piece kept where the answer is.
    pub(crate) fn hear_in_place(
        &self,
        patience: Option<Duration>,
    ) -> Result<(Heard, Lying), InterfaceError> {
        let mut hearing = self.hearing();
        let heard = hearing.hear(patience)?;
        let piece = match &heard {
            Heard::Piece(piece) => piece.as_bytes(),
            Heard::Pending | Heard::Over => &[],
        };
        hearing.piece.clear();
        hearing.piece.extend_from_slice(piece);
        hearing.piece.push(0);
        let lying = Lying {
            text: hearing.piece.as_ptr(),
            bytes: piece.len(),
        };
        Ok((heard, lying))
    }

    /// Reports an answer that is over.
    pub(crate) fn ending(&self) -> Result<Value, InterfaceError> {
        let hearing = self.hearing();
        let ending = hearing.ending.as_ref().ok_or(InterfaceError::GoesOn)?;
        Ok(report::ending(&report::Ended {
            ending,
            finish_reason: hearing.finish_reason(ending),
            thought: Some(&*hearing.thought).filter(|thought| !thought.is_empty()),
            text: &hearing.said,
            token_ids: &hearing.token_ids,
            tool_calls: hearing.tool_calls(),
            prompt_tokens: hearing.prompt_tokens,
        }))
    }

    fn hearing(&self) -> MutexGuard<'_, Hearing> {
        self.hearing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hearing {
    fn hear(&mut self, patience: Option<Duration>) -> Result<Heard, InterfaceError> {
        if let Some(ending) = &self.ending {
            return over(ending);
        }
        let until = patience.map(|patience| Instant::now() + patience);
        loop {
            let Some(update) = self.update(until)? else {
                return Ok(Heard::Pending);
            };
            let piece = self.take(update)?;
            if !piece.is_empty() {
                self.said.push_str(&piece);
                return Ok(Heard::Piece(piece));
            }
            if let Some(ending) = &self.ending {
                return over(ending);
            }
        }
    }

    /// Waits for the next update; `None` if it has not come in time.
    fn update(&mut self, until: Option<Instant>) -> Result<Option<Update>, InterfaceError> {
        let Some(until) = until else {
            let update = self.generation.next();
            return update.map(Some).ok_or(EngineError::EngineGone.into());
        };
        let left = until.saturating_duration_since(Instant::now());
        let update = self.generation.next_within(left);
        // Only an engine that is gone answers before the time has passed.
        if update.is_none() && Instant::now() < until {
            return Err(EngineError::EngineGone.into());
        }
        Ok(update)
    }

    /// Takes an update; returns the text that it lets the reader see.
    fn take(&mut self, update: Update) -> Result<String, InterfaceError> {
        match update {
            Update::Accepted { .. } | Update::Prompt(_) | Update::Vector(_) => Ok(String::new()),
            // Tokens behind a stop text are under way until the engine hears of it.
            Update::Token { .. } if self.stop == Stop::Met => Ok(String::new()),
            Update::Token { id, .. } => {
                self.token_ids.push(id);
                let emit = self.text.push(id)?;
                if emit.stopped {
                    self.stop = Stop::Met;
                    self.generation.cancel();
                }
                Ok(self.behind_thought(emit.text))
            }
            Update::Finished(ending) => {
                self.ending = Some(ending);
                let rest = self.text.finish()?;
                let mut text = self.behind_thought(rest);
                if let Some(thoughts) = &mut self.thoughts {
                    let rest = thoughts.finish();
                    self.thought.push_str(&rest.thought);
                    text.push_str(&rest.text);
                }
                Ok(text)
            }
        }
    }

    /// Keeps what is a thought of a piece; returns the rest.
    fn behind_thought(&mut self, piece: String) -> String {
        let Some(thoughts) = &mut self.thoughts else {
            return piece;
        };
        let ThoughtSplit { thought, text } = thoughts.push(&piece);
        self.thought.push_str(&thought);
        text
    }

    fn finish_reason(&self, ending: &Ending) -> &'static str {
        if self.stop == Stop::Met {
            return FinishReason::Stop.name();
        }
        match ending.finish {
            Finish::Complete => ending.reason.name(),
            Finish::Cancelled => "cancelled",
            Finish::Deadline => "deadline",
            Finish::Failed => "failed",
            Finish::Shed => "shed",
        }
    }

    fn tool_calls(&self) -> Option<Vec<ToolCall>> {
        let mut parser = ToolCallParser::new(self.syntax?);
        let said = [parser.push(&self.said), parser.finish()];
        let calls = said.into_iter().flatten().filter_map(|said| match said {
            Said::Call(call) => Some(call),
            Said::Text(_) | Said::Thought(_) => None,
        });
        Some(calls.collect())
    }
}

/// The end of an answer: an error only if the engine failed.
fn over(ending: &Ending) -> Result<Heard, InterfaceError> {
    match &ending.error {
        Some(error) => Err(InterfaceError::Request(Arc::clone(error))),
        None => Ok(Heard::Over),
    }
}

#[cfg(test)]
mod tests {
    use heg_tests::Workbench;
    use heg_tests::thinker::{self, ANSWER, QUESTION, SYSTEM, THOUGHT};
    use serde_json::json;

    use super::*;
    use crate::opened::OpenOptions;

    /// Pieces of an answer, and its ending.
    fn answer(opened: &OpenedBundle, fields: Value) -> (String, Value) {
        let messages = [("system", SYSTEM), ("user", QUESTION)];
        let messages = messages.map(|(role, text)| json!({"role": role, "content": text}));
        let mut request = json!({"messages": messages, "max_tokens": 40});
        for (name, field) in fields.as_object().unwrap() {
            request[name] = field.clone();
        }
        let ask = Ask::parse(&request.to_string()).unwrap();
        let answer = Answer::submit(opened, ask).unwrap();
        let mut pieces = String::new();
        while let Heard::Piece(piece) = answer.hear(None).unwrap() {
            pieces.push_str(&piece);
        }
        (pieces, answer.ending().unwrap())
    }

    #[test]
    fn thoughts_are_in_the_ending() {
        let workbench = Workbench::new().unwrap();
        let bundle = thinker::compile(&workbench).unwrap();
        let options: OpenOptions = serde_json::from_value(json!({"soc": "host-cpu-f32"})).unwrap();
        let opened = OpenedBundle::open(&bundle, options).unwrap();
        let (pieces, ending) = answer(&opened, json!({}));
        assert_eq!((&*pieces, &ending["text"]), (ANSWER, &json!(ANSWER)));
        assert_eq!(ending["reasoning_content"], THOUGHT);

        // In the text, as before.
        let (pieces, ending) = answer(&opened, json!({"reasoning_format": "none"}));
        assert!(
            pieces.contains(THOUGHT) && pieces.ends_with(ANSWER),
            "{pieces}"
        );
        assert_eq!(ending["reasoning_content"], Value::Null);

        // A form holds what comes behind.
        let form =
            json!({"json_schema": {"enum": ["wagon"]}, "variables": {"enable_thinking": true}});
        let (pieces, ending) = answer(&opened, form);
        assert_eq!(pieces, "\"wagon\"", "{ending}");
        assert!(ending["reasoning_content"].is_string(), "{ending}");
    }
}
