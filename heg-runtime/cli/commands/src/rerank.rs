//! `heg rerank`: documents by how well they answer a query, the best first.

use std::io::{BufRead, Write};

use clap::Args;
use heg_runtime::engine::Request;
use heg_runtime::{RuntimeError, TEXTS_MAX, Texts};
use serde::Serialize;

use crate::failure::input;
use crate::options::Machine;
use crate::text_engine::{TextEngine, no_vector};
use crate::text_guard::guarded;

/// Arguments of `heg rerank`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    machine: Machine,
    /// The query that documents are ordered by
    #[arg(long, value_name = "TEXT")]
    query: String,
    /// A document; may be given several times [default: each line of standard input is one]
    #[arg(long, value_name = "TEXT")]
    document: Vec<String>,
    /// Print the best N only [default: all]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Print a JSON object for each document
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  heg rerank reranker.heg --query 'Will it rain in Oslo?' --document 'Oslo: showers.' --document 'Rome: sun.'
  grep -h . notes/*.txt | heg rerank reranker.heg --query 'holiday in May' --top 5 --json";

/// The line that is printed for a document with `--json`.
#[derive(Serialize)]
struct Line<'a> {
    /// Its place among the documents, from 0.
    index: usize,
    score: f32,
    document: &'a str,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let texts = TextEngine::start(&arguments.machine)?;
    let documents = match arguments.document.as_slice() {
        [] => std::io::stdin()
            .lock()
            .lines()
            .collect::<Result<_, _>>()
            .map_err(|error| input(format!("cannot read the documents: {error}")))?,
        given => given.to_vec(),
    };
    let mut ranked: Vec<(usize, f32)> = scores(&texts, &arguments.query, &documents)?
        .into_iter()
        .enumerate()
        .collect();
    ranked.sort_by(|(at, a), (other, b)| b.total_cmp(a).then(at.cmp(other)));
    ranked.truncate(arguments.top.unwrap_or(usize::MAX));
    let mut out = std::io::stdout().lock();
    for (index, score) in ranked {
        let document = documents.get(index).map_or("", String::as_str);
        if arguments.json {
            let line = Line {
                index,
                score,
                document,
            };
            writeln!(out, "{}", serde_json::to_string(&line)?)?;
        } else {
            writeln!(out, "{score}\t{document}")?;
        }
    }
    texts.remember(&arguments.machine)
}

/// The score of each document with the query, in their order.
fn scores(texts: &TextEngine, query: &str, documents: &[String]) -> anyhow::Result<Vec<f32>> {
    let mut asked = Texts::new(&texts.engine);
    let mut scores = Vec::with_capacity(documents.len());
    let mut take = |asked: &mut Texts<'_>, left: usize| -> anyhow::Result<()> {
        while asked.len() > left
            && let Some(score) = asked.next()
        {
            // A score is a vector of one element.
            let score = score.map_err(no_vector)?;
            scores.push(score.first().copied().unwrap_or(f32::NAN));
        }
        Ok(())
    };
    for document in documents {
        let pair = guarded(|| texts.tokenizer.encode_pair(query, document));
        let (tokens, second_at) = pair.map_err(RuntimeError::from)?;
        let second_at = u32::try_from(second_at)?;
        asked.ask(Request::score(tokens, second_at))?;
        take(&mut asked, TEXTS_MAX - 1)?;
    }
    take(&mut asked, 0)?;
    Ok(scores)
}
