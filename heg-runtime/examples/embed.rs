//! Two requests on one engine: a person's question, and background work that gives way to it.
//!
//! `cargo run --example embed -- model.heg "What is the weather in Oslo?"`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use heg_runtime::engine::{EngineOptions, Request, Update};
use heg_runtime::text::{Conversation, Message, TextStream};
use heg_runtime::{Loaded, read_policy, read_soc};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let bundle = arguments.next().ok_or("expected the path of a bundle")?;
    let question = arguments.next().unwrap_or_else(|| "Hello!".to_owned());
    answer(bundle.as_ref(), &question, |piece| print!("{piece}"))
}

/// Answers `question` piece by piece, with another request under way; prints how both went.
pub(crate) fn answer(
    bundle: &Path,
    question: &str,
    mut show: impl FnMut(&str),
) -> Result<(), Box<dyn Error>> {
    let loaded = Loaded::open(bundle)?;
    let (soc, policy) = (read_soc("host-cpu")?, read_policy("agent-xpu-one-device")?);
    // Kernels are prepared in the background from here on; requests may come at once.
    let engine = loaded.engine(&soc, policy, EngineOptions::default())?;
    let tokenizer = Arc::new(loaded.tokenizer()?);
    let template = loaded.chat_template()?;
    let prompt = |text: &str| {
        let conversation = Conversation {
            messages: vec![Message::new("user", text)],
            add_generation_prompt: true,
            ..Conversation::default()
        };
        template.prompt(&conversation, &tokenizer, usize::MAX)
    };

    let summary = engine.generate(Request::proactive(prompt("Sum up today's meetings.")?));
    let answer = engine.generate(Request {
        tokens_max: 64,
        ..Request::reactive(prompt(question)?)
    });
    let mut text = TextStream::new(Arc::clone(&tokenizer));
    for update in answer {
        match update {
            Update::Accepted { predicted_ttft } => eprintln!("predicted: {predicted_ttft:?}"),
            Update::Token { id, .. } => text.push(id)?.iter().for_each(|piece| show(piece)),
            // Where a request asks how likely its prompt is.
            Update::Prompt(_) | Update::Vector(_) => {}
            Update::Finished(ending) => {
                eprintln!("reactive: {:?}, {:?}", ending.finish, ending.ttft)
            }
        }
    }
    text.finish()?.iter().for_each(|piece| show(piece));
    let (tokens, ending) = summary.wait()?;
    eprintln!("proactive: {:?}, {} tokens", ending.finish, tokens.len());
    Ok(())
}
