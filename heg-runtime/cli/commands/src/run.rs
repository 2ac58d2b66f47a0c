//! `heg run`: one prompt, one answer, streamed; or one JSON object for scripts.

mod history;
mod stats;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use heg_runtime::energy::EnergyMeter;
use heg_runtime::engine::{EndTokens, Engine, Request, ScopeId, Status, Update};
use heg_runtime::exec::Loader;
use heg_runtime::{Beginning, Descent, EngineError, FinishReason, Loaded, RuntimeError};
use heg_sched::Finish;
use heg_text::{
    AnswerText, Conversation, Message, Restriction, Said, Special, TextStream, ThoughtParser,
    Tokenizer, ToolCall, ToolCallParser, ToolSyntax,
};
use serde::{Deserialize, Serialize};

use crate::bake::Choice;
use crate::failure::{input, unfinished};
use crate::form::Form;
use crate::options::{Machine, Sampling, Speculate, print_descents};
use crate::terminal::shown;
use crate::text_guard::guarded;
use crate::told::{Output, Told};
use history::HistoryFile;
use stats::Timing;

/// Arguments of `heg run`.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    prompt: Prompt,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    baked: Choice,
    /// How two devices run kernels: `heterollm-tensor`, `heterollm-layer`, another shipped policy or a .ron file [default: each
    /// kernel on the best device for it]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_tokens: usize,
    #[command(flatten)]
    sampling: Sampling,
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Draft tokens that the prompt suggests, and verify several at once; the answer is the same
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Speculate::Chain)]
    speculate: Speculate,
    /// Keep answers in this file between runs, and draft from those that it has
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// A text that the answer is expected to be, to draft it from
    #[arg(long, value_name = "FILE")]
    prediction: Option<PathBuf>,
    /// Go on after end-of-sequence tokens
    #[arg(long)]
    ignore_eos: bool,
    /// Print one JSON object: prompt_tokens, token_ids, text, reasoning_content (if the model thought first), tool_calls (if
    /// tools are offered), finish_reason, ttft_ms, tpot_ms, steps, drafted_tokens, accepted_tokens, baked_tokens, descents
    #[arg(long)]
    json: bool,
    /// Print timings to standard error
    #[arg(long)]
    stats: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct PromptSource {
    /// The prompt; becomes the user's message unless --raw is given
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// The prompt as a JSON list of token ids
    #[arg(long, value_name = "IDS")]
    prompt_ids: Option<String>,
    /// A JSON file with `messages` and, optionally, `tools`, as OpenAI's chat interface has them
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
}

#[derive(Args)]
struct Prompt {
    #[command(flatten)]
    source: PromptSource,
    /// System message that comes before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "messages", "prompt_ids", "state"])]
    system: Option<String>,
    /// Apply no chat template
    #[arg(long, conflicts_with = "messages")]
    raw: bool,
}

/// Content of the file of `--messages`.
#[derive(Deserialize)]
struct MessagesFile {
    messages: Vec<Message>,
    #[serde(default)]
    tools: Vec<serde_json::Value>,
}

/// The prepared form of an answer.
#[derive(Default)]
pub(crate) struct Held {
    /// The grammar that the sampler follows.
    pub(crate) restriction: Option<Box<dyn Restriction>>,
    /// The syntax of tool calls, if the answer may have some.
    pub(crate) syntax: Option<ToolSyntax>,
}

/// The object that `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    prompt_tokens: usize,
    token_ids: &'a [u32],
    text: &'a str,
    /// The model's thought before the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    /// The calls in the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<ToolCall>>,
    finish_reason: &'static str,
    ttft_ms: f64,
    tpot_ms: f64,
    /// Number of decode iterations.
    steps: u64,
    /// Number of tokens that were drafted and verified.
    drafted_tokens: u64,
    /// Number of drafted tokens that became part of the answer.
    accepted_tokens: u64,
    /// Number of the prompt's tokens that came from a state of the bundle.
    baked_tokens: u64,
    /// Kernels that do not run on their best device, with the reasons.
    descents: &'a [Descent],
}

/// Runs the command; `started` is the start time of the process.
pub(crate) fn run(arguments: &Arguments, started: Instant) -> anyhow::Result<()> {
    let sampling = arguments.sampling.params()?;
    let loaded = arguments.machine.open()?;
    let history = arguments.past(&loaded)?;
    // From here on, kernels are prepared on their own threads while the prompt is tokenised.
    let loader = arguments.machine.loader(&loaded)?;
    let runs = loader.what_runs();
    let engine = arguments.engine(loader)?;
    if let Some(history) = &history {
        engine.recall(ScopeId::default(), history.answers());
    }
    let tokenizer = arguments.tokenizer(&loaded)?;
    let conversation = arguments.conversation(&loaded)?;
    let conversation = conversation.as_ref();
    let tokens = || {
        let prompt = &arguments.prompt;
        prompt.tokens(&loaded, tokenizer.as_deref(), conversation)
    };
    let prompt = guarded(tokens)?;
    let thoughts = arguments
        .prompt
        .thoughts(&loaded, tokenizer.as_ref(), &prompt)?;
    let held = arguments.form.hold(
        &loaded,
        tokenizer.as_deref(),
        conversation,
        thoughts.as_ref(),
    )?;
    let (end_tokens, eos_ids) = arguments.endings(&loaded);
    let prediction = arguments.prediction(tokenizer.as_deref())?;
    let mut answer = Answer::new(tokenizer, held.syntax, thoughts, &eos_ids, arguments);
    let (prompt_tokens, asked) = (prompt.len(), prompt.clone());
    let request = Request {
        tokens_max: arguments.max_tokens.try_into().unwrap_or(u32::MAX),
        end_tokens,
        sampling,
        restriction: held.restriction,
        prediction,
        ..Request::reactive(prompt)
    };
    let mut energy = EnergyMeter::of_machine().filter(|_| arguments.stats);
    let (reason, timing) = generate(&engine, request, &mut answer)?;
    answer.finish()?;
    let status = engine.status()?;
    print_losses(&status);
    arguments.baked.print_unused(&status, &engine);
    if arguments.json {
        let said = (&status, &engine.descents()[..]);
        answer.print_json(prompt_tokens, reason, &timing, said)?;
    }
    if arguments.stats {
        for line in runs {
            eprintln!("runs   {}", shown(&line));
        }
        stats::print(prompt_tokens, &timing, &status, started);
        stats::print_energy(energy.as_mut(), prompt_tokens + timing.generated);
    }
    if let Some(history) = history {
        history.add(&asked, &answer.token_ids)?;
    }
    arguments.machine.remember(&loaded)?;
    Ok(())
}

/// Prints to standard error which lanes lost a device in the answer.
fn print_losses(status: &Status) {
    for lost in &status.lost {
        let (lane, why) = (lost.lane, shown(&lost.why));
        eprintln!("note: lane {lane:?} went on without a device: {why}");
    }
}

impl Arguments {
    /// Reads the bundle's tokenizer; `None` if there is none and the prompt is token ids.
    fn tokenizer(&self, loaded: &Loaded) -> Result<Option<Arc<Tokenizer>>, RuntimeError> {
        match loaded.tokenizer() {
            Ok(tokenizer) => Ok(Some(Arc::new(tokenizer))),
            Err(RuntimeError::NoText { .. }) if self.prompt.source.prompt_ids.is_some() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the model's end tokens do, and which ones they are if they end the answer.
    fn endings(&self, loaded: &Loaded) -> (EndTokens, Vec<u32>) {
        match self.ignore_eos {
            true => (EndTokens::Ignored, Vec::new()),
            false => (
                EndTokens::End,
                loaded.bundle().manifest().text.eos_ids.clone(),
            ),
        }
    }

    /// Reads the file of earlier answers.
    fn past(&self, loaded: &Loaded) -> Result<Option<HistoryFile<'_>>, RuntimeError> {
        let path = self.history.as_deref();
        path.map(|path| HistoryFile::read(path, loaded)).transpose()
    }

    fn conversation(&self, loaded: &Loaded) -> anyhow::Result<Option<Conversation>> {
        let beginning = self.baked.beginning(loaded)?;
        self.prompt.conversation(&self.form, beginning)
    }

    fn engine(&self, loader: Loader) -> Result<Engine, RuntimeError> {
        let policy = self.policy.as_deref();
        self.machine
            .engine_by(policy, loader, self.speculate, self.baked.states())
    }

    /// Returns the tokens of the predicted answer.
    fn prediction(&self, tokenizer: Option<&Tokenizer>) -> anyhow::Result<Vec<u32>> {
        let Some(path) = &self.prediction else {
            return Ok(Vec::new());
        };
        let Some(tokenizer) = tokenizer else {
            return Err(input(
                "the bundle has no tokenizer: `--prediction` needs one",
            ));
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| input(format!("cannot read `{}`: {error}", path.display())))?;
        let tokens = guarded(|| tokenizer.encode(&text, Special::AsWritten));
        Ok(tokens.map_err(RuntimeError::from)?)
    }
}

/// Runs a request to its end, or to a stop text in its answer.
fn generate(
    engine: &Engine,
    request: Request,
    answer: &mut Answer,
) -> anyhow::Result<(FinishReason, Timing)> {
    engine.check(&request.prompt)?;
    let mut timing = Timing::default();
    if request.tokens_max == 0 {
        return Ok((FinishReason::Length, timing));
    }
    let submitted = Instant::now();
    let generation = engine.generate(request);
    engine.wait_ready()?;
    for update in generation {
        match update {
            Update::Accepted { .. } | Update::Prompt(_) | Update::Vector(_) => {}
            Update::Token { id: token, .. } => {
                timing.note_token(submitted);
                if timing.generated == 1 {
                    print_descents(&engine.descents());
                }
                if answer.push(token)? == Stop::Met {
                    return Ok((FinishReason::Stop, timing));
                }
            }
            Update::Finished(ending) if ending.finish == Finish::Complete => {
                return Ok((ending.reason, timing));
            }
            Update::Finished(ending) => return Err(unfinished(ending)),
        }
    }
    Err(EngineError::EngineGone.into())
}

impl Prompt {
    fn tokens(
        &self,
        loaded: &Loaded,
        tokenizer: Option<&Tokenizer>,
        conversation: Option<&Conversation>,
    ) -> anyhow::Result<Vec<u32>> {
        if let Some(ids) = &self.source.prompt_ids {
            return serde_json::from_str(ids).map_err(|error| {
                input(format!(
                    "`--prompt-ids`: expected a JSON list of token ids: {error}"
                ))
            });
        }
        let Some(tokenizer) = tokenizer else {
            return Err(input(
                "the bundle has no tokenizer: give the prompt with `--prompt-ids`",
            ));
        };
        match (conversation, self.raw) {
            (Some(conversation), false) => {
                let prompt = loaded
                    .chat_template()?
                    .prompt(conversation, tokenizer, usize::MAX);
                Ok(prompt.map_err(RuntimeError::from)?)
            }
            _ => {
                let text = self.source.prompt.as_deref().unwrap_or_default();
                Ok(tokenizer
                    .encode(text, Special::Add)
                    .map_err(RuntimeError::from)?)
            }
        }
    }

    /// Returns a parser of what the model thinks first; `None` where no template made the prompt, or it knows no thoughts.
    fn thoughts(
        &self,
        loaded: &Loaded,
        tokenizer: Option<&Arc<Tokenizer>>,
        prompt: &[u32],
    ) -> Result<Option<ThoughtParser>, RuntimeError> {
        let is_bare = self.raw || self.source.prompt_ids.is_some();
        match tokenizer.filter(|_| !is_bare) {
            Some(tokenizer) => {
                let template = loaded.chat_template()?;
                Ok(guarded(|| ThoughtParser::of(&template, prompt, tokenizer))?)
            }
            None => Ok(None),
        }
    }

    /// Returns the conversation to answer, behind a beginning if there is one.
    fn conversation(
        &self,
        form: &Form,
        beginning: Option<Beginning>,
    ) -> anyhow::Result<Option<Conversation>> {
        let (messages, tools) = if let Some(path) = &self.source.messages {
            let text = std::fs::read_to_string(path)
                .map_err(|error| input(format!("cannot read `{}`: {error}", path.display())))?;
            let file: MessagesFile = serde_json::from_str(&text)
                .map_err(|error| input(format!("`{}`: {error}", path.display())))?;
            (file.messages, file.tools)
        } else if let Some(prompt) = &self.source.prompt {
            let system = self.system.iter();
            let system = system.map(|text| Message::new("system", text.as_str()));
            let (mut messages, tools) = match beginning {
                Some(Beginning { messages, tools }) => (messages, tools),
                None => (system.collect(), Vec::new()),
            };
            messages.push(Message::new("user", prompt.as_str()));
            (messages, tools)
        } else {
            return Ok(None);
        };
        let mut conversation = Conversation {
            messages,
            tools,
            add_generation_prompt: true,
            ..Conversation::default()
        };
        form.offer_tools(&mut conversation)?;
        Ok(Some(conversation))
    }
}

/// Whether a stop text has been found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    None,
    Met,
}

/// The answer as it arrives.
struct Answer {
    text: AnswerText,
    syntax: Option<ToolSyntax>,
    token_ids: Vec<u32>,
    told: Told,
}

impl Answer {
    fn new(
        tokenizer: Option<Arc<Tokenizer>>,
        syntax: Option<ToolSyntax>,
        thoughts: Option<ThoughtParser>,
        eos_ids: &[u32],
        arguments: &Arguments,
    ) -> Self {
        let stream = tokenizer.map(|tokenizer| {
            TextStream::with_calls(tokenizer, syntax).with_thoughts(thoughts.as_ref())
        });
        Self {
            text: AnswerText::new(stream, arguments.stop.iter().cloned(), eos_ids),
            syntax,
            token_ids: Vec::new(),
            told: Told::new(thoughts, Output::of(arguments.json)),
        }
    }

    fn push(&mut self, token: u32) -> Result<Stop, RuntimeError> {
        self.token_ids.push(token);
        let emit = self.text.push(token)?;
        self.told.push(&emit.text);
        Ok(if emit.stopped { Stop::Met } else { Stop::None })
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        let rest = self.text.finish().map_err(RuntimeError::from)?;
        self.told.push(&rest);
        self.told.finish();
        Ok(())
    }

    fn tool_calls(&self) -> Option<Vec<ToolCall>> {
        let mut parser = ToolCallParser::new(self.syntax?);
        let said = [parser.push(&self.told.text), parser.finish()];
        let calls = said.into_iter().flatten().filter_map(|said| match said {
            Said::Call(call) => Some(call),
            Said::Text(_) | Said::Thought(_) => None,
        });
        Some(calls.collect())
    }

    fn print_json(
        &self,
        prompt_tokens: usize,
        reason: FinishReason,
        timing: &Timing,
        (status, descents): (&Status, &[Descent]),
    ) -> anyhow::Result<()> {
        let report = Report {
            prompt_tokens,
            token_ids: &self.token_ids,
            text: &self.told.text,
            reasoning_content: self.told.thought(),
            tool_calls: self.tool_calls(),
            finish_reason: reason.name(),
            ttft_ms: timing.ttft.as_secs_f64() * 1e3,
            tpot_ms: timing.tpot_ms(),
            steps: status.decode_steps,
            drafted_tokens: status.drafted_tokens,
            accepted_tokens: status.accepted_tokens,
            baked_tokens: stats::baked_tokens(status),
            descents,
        };
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
        Ok(())
    }
}
