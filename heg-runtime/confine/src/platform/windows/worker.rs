//! The worker's own side.

use std::io;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use heg_text::COMPILE_STACK_BYTES;

use super::{Frames, Role, limits};
use crate::assets::{ASSET_BYTES_MAX, TextSide};
use crate::platform::line::{Line, Talk};
use crate::{form_child, prompt_child};

/// Runs as the worker, on the pipes that are standard input and output, until the first one closes.
pub fn work() -> ExitCode {
    let line = Line::new(io::stdout());
    let (begun, talks) = channel();
    let worker = thread::Builder::new().stack_size(STACK_BYTES);
    let started = worker.spawn(move || {
        let code = i32::from(serve(&talks).is_err());
        // Exits without dropping, since the system frees the memory.
        std::process::exit(code)
    });
    if started.is_err() {
        return ExitCode::FAILURE;
    }
    // The server is gone after this, and with it whoever waits for the work.
    line.listen(io::stdin(), prompt_child::WORK_BYTES_MAX, |talk| {
        let _ = begun.send(talk);
    });
    ExitCode::SUCCESS
}

fn serve(talks: &Receiver<Talk>) -> io::Result<()> {
    limits::for_the_worker()?;
    let talk = talks.recv().map_err(io::Error::other)?;
    let mut frames = Frames::new(talk, None, ASSET_BYTES_MAX);
    let text = TextSide::receive(&mut frames)?;
    let role = frames.receive_until(None).map_err(io::Error::other)?;
    match Role::of(&role) {
        Some(Role::Prompts) => {
            frames.receive_at_most(prompt_child::WORK_BYTES_MAX);
            prompt_child::serve(&text, frames)
        }
        Some(Role::Form) => {
            frames.receive_at_most(form_child::FORM_BYTES_MAX);
            form(&text, frames, talks)
        }
        None => Err(io::Error::other("expected a role")),
    }
}

/// Compiles a form, and makes the masks of each answer on a thread of its own.
fn form(text: &TextSide, mut frames: Frames, talks: &Receiver<Talk>) -> io::Result<()> {
    let grammars = form_child::vocabulary(text)?;
    let Some(compiled) = form_child::compile(&grammars, &mut frames)? else {
        return Ok(());
    };
    // The conversation about the form stays open for as long as there may be answers.
    while let Ok(talk) = talks.recv() {
        let compiled = compiled.clone();
        let frames = Frames::new(talk, None, form_child::STEP_BYTES_MAX);
        let answer = move || form_child::answer(compiled, frames);
        thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(answer)?;
    }
    Ok(())
}

/// Size of the stack of a thread that works, in bytes, of which the system gives as much as is used.
const STACK_BYTES: usize = match COMPILE_STACK_BYTES > prompt_child::STACK_BYTES {
    true => COMPILE_STACK_BYTES,
    false => prompt_child::STACK_BYTES,
};
