//! The text side of a bundle, on its way to the worker, which loads it.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use heg_text::{ChatTemplate, Grammars, TextError, Tokenizer};
use serde::{Deserialize, Serialize};

use crate::message::{from_bytes, to_bytes};
use crate::platform::{Frames, limits};

/// The files of a bundle that the worker needs.
#[derive(Debug, Clone, Default)]
pub struct WorkerAssets {
    /// Contents of the `tokenizer.json`, if there is one.
    pub tokenizer: Option<Vec<u8>>,
    /// The chat template, if there is one.
    pub template: Option<String>,
    /// Texts of special tokens, by their names in templates.
    pub special_tokens: BTreeMap<String, String>,
    /// The tokens that end an answer.
    pub eos_ids: Vec<u32>,
}

impl WorkerAssets {
    /// Sends the assets to a new worker, and waits until it has loaded them: the time of requests counts from then.
    pub(crate) fn send(&self, frames: &mut Frames) -> io::Result<()> {
        let until = Some(Instant::now() + START_MAX);
        let small = SmallAssets {
            has_tokenizer: self.tokenizer.is_some(),
            template: self.template.clone(),
            special_tokens: self.special_tokens.clone(),
            eos_ids: self.eos_ids.clone(),
        };
        let sent = frames.send_until(&to_bytes(&small), until).and_then(|()| {
            let tokenizer = self.tokenizer.as_deref().unwrap_or_default();
            frames.send_until(tokenizer, until)
        });
        let loaded = sent.and_then(|()| frames.receive_until(until));
        loaded.map(drop).map_err(io::Error::other)
    }
}

/// All assets but the tokenizer, whose bytes follow unencoded.
#[derive(Debug, Serialize, Deserialize)]
struct SmallAssets {
    has_tokenizer: bool,
    template: Option<String>,
    special_tokens: BTreeMap<String, String>,
    eos_ids: Vec<u32>,
}

/// The worker's loaded assets. An asset that could not be loaded is an error of all work that needs it.
pub(crate) struct TextSide {
    pub(crate) tokenizer: Result<Tokenizer, TextError>,
    pub(crate) template: Result<ChatTemplate, TextError>,
    eos_ids: Vec<u32>,
}

impl TextSide {
    /// Receives the assets on the worker's side, loads them under limits, and says so.
    pub(crate) fn receive(frames: &mut Frames) -> io::Result<Self> {
        let mut next = || frames.receive_until(None).map_err(io::Error::other);
        let small: Option<SmallAssets> = from_bytes(&next()?);
        let small = small.ok_or_else(|| io::Error::other("expected the assets of a bundle"))?;
        let tokenizer = next()?;
        limits::heap_from_here(LOADING_BYTES + LOADING_BYTES_PER_BYTE * tokenizer.len() as u64)?;
        limits::processor_seconds(LOADING_SECONDS)?;
        let text = Self::load(small, &tokenizer);
        drop(tokenizer);
        limits::no_limit_on_time()?;
        frames.send_until(&[], None).map_err(io::Error::other)?;
        Ok(text)
    }

    fn load(small: SmallAssets, tokenizer: &[u8]) -> Self {
        Self {
            tokenizer: match small.has_tokenizer {
                true => Tokenizer::from_json(tokenizer),
                false => Err(TextError::Tokenizer {
                    message: "the bundle has none".to_owned(),
                }),
            },
            template: match small.template {
                Some(source) => ChatTemplate::new(&source, small.special_tokens),
                None => Err(TextError::Template {
                    message: "the bundle has none".to_owned(),
                    line: None,
                }),
            },
            eos_ids: small.eos_ids,
        }
    }

    /// Builds the vocabulary for forms, which takes most of a second if the vocabulary is large.
    pub(crate) fn grammars(&self) -> Result<Grammars, TextError> {
        let tokenizer = self.tokenizer.as_ref().map_err(Clone::clone)?;
        Grammars::new(tokenizer, &self.eos_ids)
    }
}

/// Size of the largest tokenizer or template, in bytes. Chosen: ten times the largest published one.
pub(crate) const ASSET_BYTES_MAX: usize = 512 << 20;

/// The longest time that a worker may take to start and load. Chosen: a machine that swaps takes seconds.
const START_MAX: Duration = Duration::from_secs(60);

/// Memory that loading may take besides that for the file's size, in bytes.
const LOADING_BYTES: u64 = 256 << 20;

/// Memory that loading may take for each byte of the tokenizer's file, in bytes. Measured: 9 for 128 000 tokens.
const LOADING_BYTES_PER_BYTE: u64 = 64;

/// Processor time that loading may take, in seconds. Chosen: large vocabularies take half a second.
const LOADING_SECONDS: u64 = 60;
