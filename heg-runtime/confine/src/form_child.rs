//! The work of processes for forms: build the vocabulary, compile a form, and make the masks of an answer.

use std::io;
use std::time::Instant;

use heg_text::{AnswerForm, CompiledForm, Grammars, TextError};

use crate::assets::TextSide;
use crate::message::{Compiled, from_bytes, to_bytes};
use crate::platform::{Frames, limits};

/// Builds the vocabulary, with which any number of forms is compiled.
pub(crate) fn vocabulary(text: &TextSide) -> io::Result<Result<Grammars, TextError>> {
    // A hostile vocabulary harms only its own server: all forms are refused.
    limits::processor_seconds(VOCABULARY_SECONDS)?;
    let grammars = text.grammars();
    limits::no_limit_on_time()?;
    Ok(grammars)
}

/// Receives a form, compiles it, and says so; `None` if there is none, or it is refused.
pub(crate) fn compile(
    grammars: &Result<Grammars, TextError>,
    frames: &mut Frames,
) -> io::Result<Option<CompiledForm>> {
    let Ok(message) = frames.receive_until(None) else {
        return Ok(None);
    };
    let form: Option<AnswerForm> = from_bytes(&message);
    let form = form.ok_or_else(|| io::Error::other("expected a form"))?;
    drop(message);
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
    let is_heard = frames.send_until(&to_bytes(&reply), None).is_ok();
    Ok(compiled.ok().filter(|_| is_heard))
}

/// Makes the masks of an answer, until its other end is gone.
pub(crate) fn answer(compiled: CompiledForm, mut frames: Frames) -> io::Result<()> {
    limits::heap_from_here(ANSWER_HEAP_BYTES)?;
    compiled.attend(&mut frames);
    Ok(())
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
pub(crate) const FORM_BYTES_MAX: usize = 64 << 20;

/// Size of the largest step, in bytes: drafts are short.
pub(crate) const STEP_BYTES_MAX: usize = 1 << 20;
