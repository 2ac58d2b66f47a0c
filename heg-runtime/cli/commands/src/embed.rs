//! `heg embed`: the vectors of texts, from an option or line by line from standard input.

use std::io::{BufRead, Write};

use clap::Args;
use heg_runtime::engine::Request;
use heg_runtime::{RuntimeError, TEXTS_MAX, Texts};
use heg_text::Special;
use serde::Serialize;

use crate::failure::input;
use crate::options::Machine;
use crate::text_engine::{TextEngine, no_vector};
use crate::text_guard::guarded;

/// Arguments of `heg embed`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    machine: Machine,
    /// A text; may be given several times [default: each line of standard input is one]
    #[arg(long, value_name = "TEXT")]
    text: Vec<String>,
    /// Print a JSON object for each text
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  heg embed minilm.heg --text 'Will it rain in Oslo tomorrow?'
  heg embed minilm.heg --json < sentences.txt > vectors.jsonl";

/// The line that is printed for a text with `--json`.
#[derive(Serialize)]
struct Line {
    /// The vector.
    vector: Vec<f32>,
    /// Tokens of the text.
    tokens: usize,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let engine = TextEngine::start(&arguments.machine)?;
    let mut work = Embedding {
        engine: &engine,
        json: arguments.json,
        texts: Texts::new(&engine.engine),
        tokens: Vec::new(),
    };
    if arguments.text.is_empty() {
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|error| input(format!("cannot read the texts: {error}")))?;
            work.ask(&line)?;
        }
    } else {
        arguments.text.iter().try_for_each(|text| work.ask(text))?;
    }
    work.finish()?;
    engine.remember(&arguments.machine)
}

/// Texts on their way to the output.
struct Embedding<'a> {
    engine: &'a TextEngine,
    json: bool,
    texts: Texts<'a>,
    /// Tokens of each text whose vector was not printed yet.
    tokens: Vec<usize>,
}

impl Embedding<'_> {
    /// Asks for the vector of a text, and prints those that came before if too many are on their way.
    fn ask(&mut self, text: &str) -> anyhow::Result<()> {
        let tokens = guarded(|| self.engine.tokenizer.encode(text, Special::Add));
        let tokens = tokens.map_err(RuntimeError::from)?;
        let count = tokens.len();
        self.texts.ask(Request::vector(tokens))?;
        self.tokens.push(count);
        match self.texts.len() < TEXTS_MAX {
            true => Ok(()),
            false => self.print_next(),
        }
    }

    /// Prints the vectors of all texts that are left.
    fn finish(&mut self) -> anyhow::Result<()> {
        while !self.texts.is_empty() {
            self.print_next()?;
        }
        Ok(())
    }

    fn print_next(&mut self) -> anyhow::Result<()> {
        let Some(vector) = self.texts.next() else {
            return Ok(());
        };
        let vector = vector.map_err(no_vector)?;
        let tokens = self.tokens.remove(0);
        let mut out = std::io::stdout().lock();
        if self.json {
            let line = serde_json::to_string(&Line { vector, tokens })?;
            writeln!(out, "{line}")?;
        } else {
            let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
            writeln!(out, "{}", numbers.join(" "))?;
        }
        Ok(())
    }
}
