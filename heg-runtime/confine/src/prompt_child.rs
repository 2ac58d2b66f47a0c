//! The process that makes prompts: renders a conversation and encodes text, one piece of work after the other.

use std::io;

use heg_text::{Special, TextError};

use crate::assets::TextSide;
use crate::message::{PromptWork, Refusal, TextToEncode, from_bytes, to_bytes};
use crate::platform::{Frames, limits};

/// Serves work until the other end is gone.
pub(crate) fn serve(text: &TextSide, mut frames: Frames) -> io::Result<()> {
    // The limit on the heap counts from here, whatever earlier work has left behind.
    while let Ok(work) = frames.receive_until(None) {
        let Some(work) = PromptWork::from_bytes(&work) else {
            return Ok(());
        };
        limits::heap_from_here(work.heap_bytes)?;
        limits::processor_seconds(work.seconds)?;
        let reply = match tokens(text, work.text) {
            Ok(tokens) => {
                let tokens_max = usize::try_from(work.tokens_max).unwrap_or(usize::MAX);
                let tokens = tokens.iter().take(tokens_max);
                let bytes = tokens.flat_map(|token| token.to_le_bytes());
                std::iter::once(TOKENS).chain(bytes).collect()
            }
            Err(error) => [&[REFUSED], to_bytes(&Refusal::from(error)).as_slice()].concat(),
        };
        if frames.send_until(&reply, None).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn tokens(side: &TextSide, text: TextToEncode) -> Result<Vec<u32>, TextError> {
    let tokenizer = side.tokenizer.as_ref().map_err(Clone::clone)?;
    match text {
        TextToEncode::Chat(conversation, bytes_max) => {
            let template = side.template.as_ref().map_err(Clone::clone)?;
            template.prompt(&conversation, tokenizer, bytes_max)
        }
        TextToEncode::Bare(text) => tokenizer.encode(&text, Special::Add),
        TextToEncode::AsWritten(text) => tokenizer.encode(&text, Special::AsWritten),
        TextToEncode::Pair(first, second) => {
            let (mut tokens, second_at) = tokenizer.encode_pair(&first, &second)?;
            tokens.insert(0, u32::try_from(second_at).unwrap_or(u32::MAX));
            Ok(tokens)
        }
    }
}

/// Parses the tokens or the error of a reply; `None` if it is neither.
pub(crate) fn read_reply(reply: &[u8]) -> Option<Result<Vec<u32>, TextError>> {
    match reply.split_first()? {
        (&TOKENS, bytes) => {
            let (tokens, rest) = bytes.as_chunks();
            let tokens = tokens.iter().map(|token| u32::from_le_bytes(*token));
            rest.is_empty().then(|| Ok(tokens.collect()))
        }
        (&REFUSED, bytes) => {
            let refusal: Refusal = from_bytes(bytes)?;
            Some(Err(refusal.into()))
        }
        _ => None,
    }
}

/// First byte of a reply with tokens.
const TOKENS: u8 = 1;

/// First byte of a reply with an error.
const REFUSED: u8 = 2;

/// Size of the stack, in bytes: a template's values are dropped by recursion. Chosen: four times a thread's.
pub(crate) const STACK_BYTES: usize = 8 << 20;

/// Size of the largest piece of work, in bytes: the server bounds bodies.
pub(crate) const WORK_BYTES_MAX: usize = 1 << 30;
