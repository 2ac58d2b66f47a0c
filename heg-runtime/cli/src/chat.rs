//! `heg chat`: a conversation on the terminal. Only what is new is prefilled.

use std::io::{BufRead, Write};
use std::sync::Arc;

use clap::Args;
use heg_runtime::exec::{Executor, Sequence};
use heg_runtime::{Continue, GenerateOptions, RuntimeError, generate};
use heg_text::{ChatTemplate, Conversation, Message, Special, TextStream, Tokenizer};

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
    let executor = arguments.machine.executor(&loaded, 1)?;
    let options = GenerateOptions {
        tokens_max: arguments.max_tokens,
        sampling,
        eos_ids: loaded.bundle().manifest().text.eos_ids.clone(),
    };
    let system: Vec<Message> = arguments
        .system
        .iter()
        .map(|text| Message::new("system", text.as_str()))
        .collect();
    let mut chat = Chat {
        sequence: executor.sequence()?,
        executor,
        tokenizer: Arc::new(loaded.tokenizer()?),
        template: loaded.chat_template()?,
        messages: system.clone(),
        cached: Vec::new(),
        options,
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
    executor: Executor,
    sequence: Sequence,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    messages: Vec<Message>,
    /// Tokens in the KV cache.
    cached: Vec<u32>,
    options: GenerateOptions,
    descents_said: bool,
}

impl Chat {
    fn turn(&mut self, text: &str) -> anyhow::Result<()> {
        self.messages.push(Message::new("user", text));
        let conversation = Conversation {
            messages: self.messages.clone(),
            add_generation_prompt: true,
            ..Conversation::default()
        };
        let rendered = self
            .template
            .render(&conversation)
            .map_err(RuntimeError::from)?;
        let prompt = self
            .tokenizer
            .encode(&rendered, Special::AsWritten)
            .map_err(RuntimeError::from)?;
        // The last prompt token is always run again: its logits give the first token of the answer.
        let common = prompt
            .iter()
            .zip(&self.cached)
            .take_while(|(a, b)| a == b)
            .count();
        let kept = common.min(prompt.len().saturating_sub(1));
        self.sequence.truncate(kept);
        let mut stream = TextStream::new(Arc::clone(&self.tokenizer));
        let mut answer = String::new();
        let mut tokens = Vec::new();
        let eos_ids = self.options.eos_ids.clone();
        let descents = self.executor.descents();
        let mut said = std::mem::replace(&mut self.descents_said, true);
        generate(
            &mut self.executor,
            &mut self.sequence,
            &prompt[kept..],
            &self.options,
            |token| {
                if !std::mem::replace(&mut said, true) {
                    print_descents(descents.get());
                }
                tokens.push(token);
                if eos_ids.contains(&token) {
                    return Ok(Continue::No);
                }
                if let Some(piece) = stream.push(token)? {
                    show(&mut answer, &piece);
                }
                Ok(Continue::Yes)
            },
        )?;
        if let Some(piece) = stream.finish().map_err(RuntimeError::from)? {
            show(&mut answer, &piece);
        }
        println!();
        self.cached = prompt;
        self.cached.extend(tokens);
        self.cached.truncate(self.sequence.tokens());
        self.messages.push(Message::new("assistant", answer));
        Ok(())
    }
}

fn show(answer: &mut String, piece: &str) {
    answer.push_str(piece);
    print!("{}", shown(piece));
    // A closed output is noticed by the `println` at the end of the turn.
    let _ = std::io::stdout().flush();
}
