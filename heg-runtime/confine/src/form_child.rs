//! The processes of forms: one keeps the vocabulary, one compiles each form, and one makes the masks of each answer.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use heg_text::{AnswerForm, COMPILE_STACK_BYTES, CompiledForm, Grammars, TextError};

use crate::assets::TextSide;
use crate::frame::Frames;
use crate::keeper::{Role, keep};
use crate::limits;
use crate::message::{Compiled, from_bytes, to_bytes};

/// Keeps the vocabulary, and the processes that compile forms with it.
pub(crate) fn serve(text: &TextSide, socket: UnixStream) -> io::Result<()> {
    // A hostile vocabulary harms only its own server: all forms are refused.
    limits::processor_seconds(VOCABULARY_SECONDS)?;
    let grammars = text.grammars();
    limits::no_limit_on_time()?;
    match keep(socket) {
        Some((Role::Form, socket)) => form(&grammars, socket),
        Some(_) | None => Ok(()),
    }
}

/// Compiles a form, and keeps the processes of its answers.
fn form(grammars: &Result<Grammars, TextError>, socket: UnixStream) -> io::Result<()> {
    let mut frames = Frames::new(socket, FORM_BYTES_MAX)?;
    let Ok(message) = frames.receive_until(None) else {
        return Ok(());
    };
    let form: Option<AnswerForm> = from_bytes(&message);
    let form = form.ok_or_else(|| io::Error::other("expected a form"))?;
    drop(message);
    limits::stack(COMPILE_STACK_BYTES as u64)?;
    limits::heap_from_here(FORM_HEAP_BYTES)?;
    limits::processor_seconds(COMPILE_SECONDS)?;
    let compiled = match grammars {
        Ok(grammars) => grammars.compile(form),
        Err(error) => Err(error.clone()),
    };
    limits::no_limit_on_time()?;
    let reply = match &compiled {
        Ok(_) => Compiled::Done(limits::own_bytes()?),
        Err(error) => Compiled::Refused(error.clone().into()),
    };
    if frames.send_until(&to_bytes(&reply), None).is_err() {
        return Ok(());
    }
    let Ok(compiled) = compiled else {
        return Ok(());
    };
    match keep(frames.into_socket()) {
        Some((Role::Answer, socket)) => answer(compiled, socket),
        Some(_) | None => Ok(()),
    }
}

/// Makes the masks of an answer.
fn answer(compiled: CompiledForm, socket: UnixStream) -> io::Result<()> {
    limits::heap_from_here(ANSWER_HEAP_BYTES)?;
    let mut frames = Frames::new(socket, STEP_BYTES_MAX)?;
    compiled.attend(&mut frames);
    // Dropping a grammar would take longer than leaving it to the system.
    std::process::exit(0)
}

/// Returns the wall-clock deadline for compiling a form now: its process may have to wait for a core.
pub(crate) fn compiled_before() -> Instant {
    Instant::now() + COMPILE_WAIT_MAX
}

/// Memory that compiling a form may take, in bytes. Chosen: forms of agents take less than 1 MB, the largest admitted
/// schema takes 40.
pub const FORM_HEAP_BYTES: u64 = 64 << 20;

/// Memory that the masks of an answer may take beyond its form's, in bytes: the library's limit on states is 20 MB.
const ANSWER_HEAP_BYTES: u64 = 32 << 20;

/// Processor time that compiling a form may take, in seconds.
const COMPILE_SECONDS: u64 = 2;

/// The longest wait for a form, in wall-clock time. Chosen: on a busy machine it has a fifth of a core.
const COMPILE_WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(10);

/// Processor time that building the vocabulary may take, in seconds. Measured: 0.7 s for 128 000 tokens.
const VOCABULARY_SECONDS: u64 = 30;

/// Size of the largest form, in bytes: its schemas are bounded before.
const FORM_BYTES_MAX: usize = 64 << 20;

/// Size of the largest step, in bytes: drafts are short.
const STEP_BYTES_MAX: usize = 1 << 20;
