//! `heg chat`: a conversation on the terminal. Only what is new is prefilled.

use std::io::{BufRead, Write};
use std::sync::Arc;

use clap::Args;
use heg_runtime::RuntimeError;
use heg_runtime::engine::{Engine, Request, Update};
use heg_sched::{Finish, FlowId};
use heg_text::{
    ChatTemplate, Conversation, Message, SamplingParams, Special, TextStream, Tokenizer,
};

use crate::failure::unfinished;
use crate::options::{Machine, Sampling, print_descents};
use crate::terminal::shown;

/// Arguments of `heg chat`.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    sampling: Sampling,
    /// System message that begins the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens per answer
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_tokens: usize,
}

/// Runs the command until the input ends or `/exit` is entered.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let sampling = arguments.sampling.params()?;
    let loaded = arguments.machine.open()?;
    let engine = arguments.machine.engine(&loaded)?;
    let system: Vec<Message> = arguments
        .system
        .iter()
        .map(|text| Message::new("system", text.as_str()))
        .collect();
    let mut chat = Chat {
        flow: engine.new_flow(),
        engine,
        tokenizer: Arc::new(loaded.tokenizer()?),
        template: loaded.chat_template()?,
        messages: system.clone(),
        tokens_max: arguments.max_tokens.try_into().unwrap_or(u32::MAX),
        sampling,
        descents_said: false,
    };
    arguments.machine.remember(&loaded)?;
    eprintln!("/reset forgets the conversation, /exit ends it");
    loop {
        eprint!("> ");
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
    tokens_max: u32,
    sampling: SamplingParams,
    descents_said: bool,
}

impl Chat {
    fn turn(&mut self, text: &str) -> anyhow::Result<()> {
        self.messages.push(Message::new("user", text));
        let prompt = self.prompt()?;
        self.engine.check(&prompt)?;
        let answer = match self.tokens_max {
            0 => String::new(),
            _ => self.answer(prompt)?,
        };
        println!();
        self.messages.push(Message::new("assistant", answer));
        Ok(())
    }

    fn prompt(&self) -> Result<Vec<u32>, RuntimeError> {
        let conversation = Conversation {
            messages: self.messages.clone(),
            add_generation_prompt: true,
            ..Conversation::default()
        };
        let rendered = self.template.render(&conversation)?;
        Ok(self.tokenizer.encode(&rendered, Special::AsWritten)?)
    }

    /// Shows the answer to a prompt as it comes.
    fn answer(&mut self, prompt: Vec<u32>) -> anyhow::Result<String> {
        let generation = self.engine.generate(Request {
            tokens_max: self.tokens_max,
            sampling: self.sampling,
            flow: Some(self.flow),
            ..Request::reactive(prompt)
        });
        self.engine.wait_ready()?;
        let mut stream = TextStream::new(Arc::clone(&self.tokenizer));
        let mut answer = String::new();
        for update in generation {
            match update {
                Update::Accepted { .. } => {}
                Update::Token(token) => {
                    if !std::mem::replace(&mut self.descents_said, true) {
                        print_descents(&self.engine.descents());
                    }
                    if self.engine.manifest().text.eos_ids.contains(&token) {
                        continue;
                    }
                    if let Some(piece) = stream.push(token).map_err(RuntimeError::from)? {
                        show(&mut answer, &piece);
                    }
                }
                Update::Finished(ending) if ending.finish == Finish::Complete => {
                    if let Some(piece) = stream.finish().map_err(RuntimeError::from)? {
                        show(&mut answer, &piece);
                    }
                    return Ok(answer);
                }
                Update::Finished(ending) => return Err(unfinished(ending)),
            }
        }
        Err(RuntimeError::EngineGone.into())
    }
}

fn show(answer: &mut String, piece: &str) {
    answer.push_str(piece);
    print!("{}", shown(piece));
    // A closed output is noticed by the `println` at the end of the turn.
    let _ = std::io::stdout().flush();
}
