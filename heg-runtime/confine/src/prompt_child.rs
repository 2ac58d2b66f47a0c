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
        let tokens_max = usize::try_from(work.tokens_max).unwrap_or(usize::MAX);
        let reply = reply(text, work.texts, tokens_max);
        if frames.send_until(&reply, None).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Writes the tokens of texts, each with their number, up to the first text that is refused.
fn reply(side: &TextSide, texts: Vec<TextToEncode>, tokens_max: usize) -> Vec<u8> {
    let mut reply = Vec::new();
    for text in texts {
        match tokens(side, text) {
            Ok(mut tokens) => {
                tokens.truncate(tokens_max);
                let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
                let numbers = std::iter::once(count).chain(tokens);
                reply.push(TOKENS);
                reply.extend(numbers.flat_map(u32::to_le_bytes));
            }
            Err(error) => {
                reply.push(REFUSED);
                reply.extend(to_bytes(&Refusal::from(error)));
                break;
            }
        }
    }
    reply
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

/// The tokens of texts, and the error of the text behind them if that was refused.
pub(crate) type Reply = (Vec<Vec<u32>>, Option<TextError>);

/// Parses a reply; `None` if it is none.
pub(crate) fn read_reply(mut reply: &[u8]) -> Option<Reply> {
    let mut texts = Vec::new();
    while let Some((kind, rest)) = reply.split_first() {
        match *kind {
            TOKENS => {
                let (count, rest) = rest.split_first_chunk()?;
                let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
                let (numbers, rest) = rest.split_at_checked(count.checked_mul(4)?)?;
                let (tokens, _) = numbers.as_chunks();
                texts.push(tokens.iter().map(|it| u32::from_le_bytes(*it)).collect());
                reply = rest;
            }
            REFUSED => {
                let refusal: Refusal = from_bytes(rest)?;
                return Some((texts, Some(refusal.into())));
            }
            _ => return None,
        }
    }
    Some((texts, None))
}

/// First byte of a text's tokens in a reply.
const TOKENS: u8 = 1;

/// First byte of an error in a reply.
const REFUSED: u8 = 2;

/// Size of the stack, in bytes: a template's values are dropped by recursion. Chosen: four times a thread's.
pub(crate) const STACK_BYTES: usize = 8 << 20;

/// Size of the largest piece of work, in bytes: the server bounds bodies.
pub(crate) const WORK_BYTES_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_reply_does_harm(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = read_reply(&bytes);
        }
    }
}
