//! The input of `heg score`: lines of token ids, or a text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{ArgGroup, Args};
use heg_runtime::Loaded;
use heg_runtime::score::Passage;
use heg_text::Special;

use crate::failure::input;
use crate::text_guard::guarded;

/// Source of tokens, and those of them that are scored.
#[derive(Args)]
#[group(skip)]
#[command(group = ArgGroup::new("what").required(true).args(["text", "ids"]))]
pub(super) struct Source {
    /// A text to score
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Token ids to score: one JSON list a line
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    /// Score tokens from this position of each line on, counted from 0
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        conflicts_with = "from_file"
    )]
    from: usize,
    /// As --from, for each line of --ids its own: one number a line
    #[arg(long, value_name = "FILE", requires = "ids")]
    from_file: Option<PathBuf>,
}

impl Source {
    /// Returns the passages, checked against the model that is to read them.
    pub(super) fn passages(&self, loaded: &Loaded) -> anyhow::Result<Vec<Passage>> {
        match (&self.ids, &self.text) {
            (Some(path), _) => self.lines(path, loaded),
            (None, Some(path)) => self.windows(path, loaded),
            (None, None) => Err(input("nothing to score: give `--text` or `--ids`")),
        }
    }

    /// Reads lines of ids.
    fn lines(&self, path: &Path, loaded: &Loaded) -> anyhow::Result<Vec<Passage>> {
        let text = read(path)?;
        let count = text.lines().count();
        if count == 0 {
            return Err(input(format!(
                "`{}` is empty, expected one JSON list of token ids a line",
                path.display()
            )));
        }
        let from = match &self.from_file {
            Some(path) => starts(path, count)?,
            None => vec![self.from; count],
        };
        let manifest = loaded.bundle().manifest();
        let numbered = text.lines().zip(from).enumerate();
        let passages = numbered.map(|(index, (line, from))| {
            let place = || format!("line {} of `{}`", index + 1, path.display());
            if line.trim().is_empty() {
                return Err(input(format!(
                    "{} is empty, expected a JSON list of token ids",
                    place()
                )));
            }
            let ids: Vec<u32> = serde_json::from_str(line).map_err(|error| {
                input(format!(
                    "{} is no JSON list of token ids, such as [1, 15, 27]: {error}",
                    place()
                ))
            })?;
            Passage::new(ids, from, manifest).with_context(place)
        });
        passages.collect()
    }

    /// Reads a text in pieces of at most the model's context.
    fn windows(&self, path: &Path, loaded: &Loaded) -> anyhow::Result<Vec<Passage>> {
        let text = read(path)?;
        let tokenizer = loaded.tokenizer()?;
        let tokens = guarded(|| tokenizer.encode(&text, Special::Add))?;
        let manifest = loaded.bundle().manifest();
        let context = manifest.model.context_tokens as usize;
        let from = self.from.max(1);
        let place = || format!("`{}`", path.display());
        if tokens.len() <= from {
            // Makes a passage that gives the right error.
            return Ok(vec![
                Passage::new(tokens, from, manifest).with_context(place)?,
            ]);
        }
        let pieces = tokens.chunks(context.max(1));
        pieces
            .filter(|piece| piece.len() > from)
            .map(|piece| Passage::new(piece.to_vec(), from, manifest).with_context(place))
            .collect()
    }
}

/// Reads positions, one a line, as many as there are lines of ids.
fn starts(path: &Path, lines: usize) -> anyhow::Result<Vec<usize>> {
    let text = read(path)?;
    let numbered = text.lines().enumerate();
    let starts = numbered.map(|(index, line)| {
        line.trim().parse::<usize>().map_err(|_| {
            input(format!(
                "line {} of `{}` is `{}`, expected a position, such as 12",
                index + 1,
                path.display(),
                line.trim()
            ))
        })
    });
    let starts = starts.collect::<anyhow::Result<Vec<usize>>>()?;
    if starts.len() != lines {
        return Err(input(format!(
            "`{}` has {} positions, expected one for each of the {lines} lines of ids",
            path.display(),
            starts.len()
        )));
    }
    Ok(starts)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path)
        .map_err(|error| input(format!("cannot read `{}`: {error}", path.display())))
}
