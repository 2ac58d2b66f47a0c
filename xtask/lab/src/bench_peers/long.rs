//! Long prompts: the rate at which one is read, the rate of an answer behind it, and memory, each side in a process of its own.

use super::genai::GenAi;
use super::llama::Llama;
use super::ours::Ours;
use super::samples::Samples;
use super::{DECODE_TOKENS, Sides};
use anyhow::Result;
use clap::ValueEnum;
use xtask::workspace::note;

/// Tokens of a long prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Long {
    /// An agent's instructions, tools and files
    #[value(name = "8192")]
    Agent,
    /// A book's chapter, which fills a context of 32768 tokens with its answer
    #[value(name = "32768")]
    Chapter,
}

impl Long {
    pub(super) fn tokens(self) -> u32 {
        match self {
            Self::Agent => 8192,
            // The prompt gives the first token, and that one is not counted.
            Self::Chapter => 32_768 - (1 + DECODE_TOKENS),
        }
    }

    /// The keys of the prompt's rate, of the answer's behind it, and of the memory.
    pub(super) const fn keys(self) -> [&'static str; 3] {
        match self {
            Self::Agent => [
                "prefill_tokens_per_s/8192",
                "decode_tokens_per_s_behind/8192",
                "peak_rss_bytes_behind/8192",
            ],
            Self::Chapter => [
                "prefill_tokens_per_s/32768",
                "decode_tokens_per_s_behind/32768",
                "peak_rss_bytes_behind/32768",
            ],
        }
    }
}

/// The figures of one side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LongFigures {
    pub(super) prefill_tokens_per_s: f64,
    pub(super) decode_tokens_per_s: f64,
    pub(super) peak_rss_bytes: f64,
}

impl LongFigures {
    fn add_to(self, samples: &mut Samples, long: Long) {
        let [prefill, decode, memory] = long.keys();
        samples.add(prefill, self.prefill_tokens_per_s);
        samples.add(decode, self.decode_tokens_per_s);
        samples.add(memory, self.peak_rss_bytes);
    }
}

/// Measures all sides once.
pub(super) fn measure(
    long: Long,
    (ours, genai, llama): (&Ours, Option<&GenAi>, Option<&Llama>),
    sides: Sides<'_>,
) -> Result<()> {
    let (tokens, answer) = (long.tokens(), DECODE_TOKENS);
    let announce = |side| note(format!("a prompt of {tokens} tokens: {side}"));
    announce("HEG");
    ours.long(tokens, answer)?.add_to(sides.ours, long);
    if let Some(genai) = genai {
        announce("GenAI");
        genai.long(tokens)?.add_to(sides.genai, long);
    }
    if let Some(llama) = llama {
        announce("llama.cpp");
        llama.long(tokens, answer)?.add_to(sides.llama, long);
    }
    Ok(())
}
