//! `heg chat`: a conversation on the terminal, or one JSON object per answer for scripts. Only new tokens are
//! prefilled.

use std::io::{BufRead, Write};
use std::sync::Arc;

use clap::Args;
use heg_runtime::engine::{Ending, Engine, Request, Update};
use heg_runtime::{Beginning, EngineError, FinishReason, RuntimeError};
use heg_sched::{Finish, FlowId};
use heg_text::{
    ChatTemplate, Conversation, Message, SamplingParams, TextStream, ThoughtParser, Tokenizer,
};
use serde::Serialize;

use crate::bake::Choice;
use crate::failure::unfinished;
use crate::options::{Machine, Sampling, Speculate, print_descents};
use crate::text_guard::guarded;
use crate::told::{Output, Told};

/// Arguments of `heg chat`.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    baked: Choice,
    /// System message that begins the conversation
    #[arg(long, value_name = "TEXT", conflicts_with = "state")]
    system: Option<String>,
    /// Most tokens per answer
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_tokens: usize,
    /// Draft tokens that the conversation suggests, and verify several at once; answers are the same
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Speculate::Chain)]
    speculate: Speculate,
    /// Print no prompts, and for each line of input one JSON object: prompt_tokens, reused_tokens, text, reasoning_content
    /// (if the model thought first), finish_reason, ttft_ms, tpot_ms
    #[arg(long)]
    json: bool,
}

/// The object that `--json` prints.
#[derive(Serialize)]
struct Turn<'a> {
    prompt_tokens: usize,
    /// Number of prompt tokens that were in the KV cache already.
    reused_tokens: u32,
    text: &'a str,
    /// The model's thought before the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    finish_reason: &'static str,
    ttft_ms: f64,
    tpot_ms: f64,
}

/// Runs the command until the input ends or `/exit` is entered.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let sampling = arguments.sampling.params()?;
    let loaded = arguments.machine.open()?;
    let machine = &arguments.machine;
    let engine = machine.engine(
        machine.loader(&loaded)?,
        arguments.speculate,
        arguments.baked.states(),
    )?;
    let beginning = arguments.baked.beginning(&loaded)?;
    let (system, tools) = beginning.map_or_else(
        || {
            let system = arguments.system.iter();
            let system = system.map(|text| Message::new("system", text.as_str()));
            (system.collect(), Vec::new())
        },
        |Beginning { messages, tools }| (messages, tools),
    );
    let mut chat = Chat {
        flow: engine.new_flow(),
        engine,
        tokenizer: Arc::new(loaded.tokenizer()?),
        template: loaded.chat_template()?,
        messages: system.clone(),
        tools,
        tokens_max: arguments.max_tokens.try_into().unwrap_or(u32::MAX),
        sampling,
        output: Output::of(arguments.json),
        descents_said: false,
    };
    arguments.machine.remember(&loaded)?;
    if chat.output == Output::Text {
        eprintln!("/reset forgets the conversation, /exit ends it");
    }
    loop {
        if chat.output == Output::Text {
            eprint!("> ");
        }
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.trim() {
            "" => {}
            "/exit" => return Ok(()),
            "/reset" => chat.messages.clone_from(&system),
            text => chat.turn(text)?,
        }
    }
}

struct Chat {
    engine: Engine,
    /// The flow whose KV cache holds the conversation so far.
    flow: FlowId,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    messages: Vec<Message>,
    /// The tools that the conversation offers.
    tools: Vec<serde_json::Value>,
    tokens_max: u32,
    sampling: SamplingParams,
    output: Output,
    descents_said: bool,
}

impl Chat {
    fn turn(&mut self, text: &str) -> anyhow::Result<()> {
        self.messages.push(Message::new("user", text));
        let prompt = self.prompt()?;
        self.engine.check(&prompt)?;
        let prompt_tokens = prompt.len();
        let thoughts = guarded(|| ThoughtParser::of(&self.template, &prompt, &self.tokenizer));
        let thoughts = thoughts.map_err(RuntimeError::from)?;
        let mut told = Told::new(thoughts, self.output);
        let ending = match self.tokens_max {
            0 => None,
            _ => Some(self.answer(prompt, &mut told)?),
        };
        told.finish();
        if self.output == Output::Json {
            print_json(&Turn::new(prompt_tokens, &told, ending.as_ref()))?;
        }
        let said = Message::new("assistant", told.text.as_str());
        self.messages.push(match told.thought() {
            Some(thought) => said.behind_thought(thought),
            None => said,
        });
        Ok(())
    }

    fn prompt(&self) -> Result<Vec<u32>, RuntimeError> {
        let conversation = Conversation {
            messages: self.messages.clone(),
            tools: self.tools.clone(),
            add_generation_prompt: true,
            ..Conversation::default()
        };
        guarded(|| {
            let prompt = self
                .template
                .prompt(&conversation, &self.tokenizer, usize::MAX);
            Ok(prompt?)
        })
    }

    /// Generates the answer to a prompt.
    fn answer(&mut self, prompt: Vec<u32>, told: &mut Told) -> anyhow::Result<Ending> {
        let generation = self.engine.generate(Request {
            tokens_max: self.tokens_max,
            sampling: self.sampling,
            flow: Some(self.flow),
            ..Request::reactive(prompt)
        });
        self.engine.wait_ready()?;
        let mut stream =
            TextStream::new(Arc::clone(&self.tokenizer)).with_thoughts(told.thoughts.as_ref());
        for update in generation {
            match update {
                Update::Accepted { .. } | Update::Prompt(_) | Update::Vector(_) => {}
                Update::Token { id: token, .. } => {
                    if !std::mem::replace(&mut self.descents_said, true) {
                        print_descents(&self.engine.descents());
                    }
                    if self.engine.manifest().text.eos_ids.contains(&token) {
                        continue;
                    }
                    if let Some(piece) = stream.push(token).map_err(RuntimeError::from)? {
                        told.push(&piece);
                    }
                }
                Update::Finished(ending) if ending.finish == Finish::Complete => {
                    if let Some(piece) = stream.finish().map_err(RuntimeError::from)? {
                        told.push(&piece);
                    }
                    return Ok(ending);
                }
                Update::Finished(ending) => return Err(unfinished(ending)),
            }
        }
        Err(EngineError::EngineGone.into())
    }
}

impl<'a> Turn<'a> {
    /// Creates the object of an answer and its ending; no ending if no token was requested.
    fn new(prompt_tokens: usize, told: &'a Told, ending: Option<&Ending>) -> Self {
        let (text, reasoning_content) = (told.text.as_str(), told.thought());
        let Some(ending) = ending else {
            return Self {
                prompt_tokens,
                reused_tokens: 0,
                text,
                reasoning_content,
                finish_reason: FinishReason::Length.name(),
                ttft_ms: 0.0,
                tpot_ms: 0.0,
            };
        };
        let decode_ms = ending.decode.as_secs_f64() * 1e3;
        Self {
            prompt_tokens,
            reused_tokens: ending.reused_tokens,
            text,
            reasoning_content,
            finish_reason: ending.reason.name(),
            ttft_ms: ending.ttft.as_secs_f64() * 1e3,
            tpot_ms: match ending.generated {
                0 | 1 => 0.0,
                generated => decode_ms / f64::from(generated - 1),
            },
        }
    }
}

fn print_json(turn: &Turn<'_>) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(turn)?)?;
    Ok(output.flush()?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn json_has_the_promised_fields() {
        let ending = Ending {
            finish: Finish::Complete,
            reason: FinishReason::Stop,
            error: None,
            reused_tokens: 44,
            kept_tokens: 0,
            baked_tokens: 0,
            queued: Duration::ZERO,
            ttft: Duration::from_millis(25),
            decode: Duration::from_millis(30),
            generated: 4,
            drafts: None,
        };
        let said = |text: &str, thought: &str, ending| {
            let mut told = Told::new(None, Output::Json);
            (told.text, told.thought) = (text.to_owned(), thought.to_owned());
            serde_json::to_string(&Turn::new(59, &told, ending)).unwrap()
        };
        assert_eq!(
            said("It is Rome.", "", Some(&ending)),
            r#"{"prompt_tokens":59,"reused_tokens":44,"text":"It is Rome.","finish_reason":"stop","ttft_ms":25.0,"tpot_ms":10.0}"#
        );
        assert_eq!(
            said("Rome.", "Italy?", Some(&ending)),
            r#"{"prompt_tokens":59,"reused_tokens":44,"text":"Rome.","reasoning_content":"Italy?","finish_reason":"stop","ttft_ms":25.0,"tpot_ms":10.0}"#
        );
        assert_eq!(
            said("", "", None),
            r#"{"prompt_tokens":59,"reused_tokens":0,"text":"","finish_reason":"length","ttft_ms":0.0,"tpot_ms":0.0}"#
        );
    }
}
