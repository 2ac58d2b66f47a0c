//! The functions of `heg.h`, in its order. The header's declarations and comments are made of this file
//! (`tests/it/header.rs`), so their words are for a reader who writes C.
#![allow(
    unsafe_code,
    reason = "functions of a C interface have fixed names and take pointers"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "the header's preamble asks the same of callers of all of them"
)]

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::answer::{Answer, Heard};
use crate::ask::Ask;
use crate::boundary::{
    ErrorHandle, Listener, ListenerFunction, Outcome, conclude, conclude_with_json, contained,
    give, object, place, take_back, take_back_text, text, text_or_none,
};
use crate::failure::InterfaceError;
use crate::opened::{OpenOptions, OpenedBundle};
use crate::report;

/// An engine that a caller holds: `heg_engine`.
pub struct EngineHandle(OpenedBundle);

/// An answer that a caller holds: `heg_answer`.
pub struct AnswerHandle {
    answer: Arc<Answer>,
    /// The thread that calls the listener, if there is one.
    telling: Option<JoinHandle<()>>,
}

/// Returns the version of the library, such as "0.1.0". It is not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn heg_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the number of this interface: HEG_ABI of the header that the library was built with. It changes when a program
/// that was built with an older header would no longer work.
#[unsafe(no_mangle)]
pub extern "C" fn heg_abi() -> u32 {
    ABI
}

/// The number of the interface.
const ABI: u32 = 1;

/// Opens the bundle at `path` and starts its engine; kernels are still being prepared when this returns, and requests may
/// be submitted at once. `options` is NULL or a JSON object: soc ("host-cpu"; a shipped machine or a .ron file), threads,
/// policy, kv_mib (memory for keys and values), speculate ("off", "chain", "tree"), state_dir and state_mib (prompts that
/// are kept on disk for later processes), lock_weights, verify (hash every byte now).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_open(
    path: *const c_char,
    options: *const c_char,
    engine: *mut *mut EngineHandle,
    error: *mut *mut ErrorHandle,
) -> i32 {
    let work = || {
        let engine = place("engine", engine)?;
        // SAFETY: the caller gives texts that end with a zero, or NULL.
        let (path, options) = unsafe { (text("path", path)?, text_or_none("options", options)?) };
        let options = match options {
            None => OpenOptions::default(),
            Some(json) => {
                serde_json::from_str(json).map_err(|source| InterfaceError::Document {
                    argument: "options",
                    source,
                })?
            }
        };
        let opened = OpenedBundle::open(Path::new(path), options)?;
        // SAFETY: the caller gives a place for the engine.
        unsafe { engine.put(give(EngineHandle(opened))) };
        Ok(Outcome::Ok)
    };
    // SAFETY: the caller gives a place for an error, or NULL.
    unsafe { conclude(error, work) }
}

/// Waits until every kernel is ready. Nobody has to: it tells errors of kernels before the first request does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_ready(
    engine: *const EngineHandle,
    error: *mut *mut ErrorHandle,
) -> i32 {
    let work = || {
        // SAFETY: the caller gives an engine of ours, or NULL.
        let EngineHandle(opened) = unsafe { object("engine", engine) }?;
        opened.wait_ready()?;
        Ok(Outcome::Ok)
    };
    // SAFETY: the caller gives a place for an error, or NULL.
    unsafe { conclude(error, work) }
}

/// Frees an engine; NULL is ignored. Answers that are under way go on: the engine ends with the last of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_close(engine: *mut EngineHandle) {
    // SAFETY: the caller gives an engine of ours that is not used any more, or NULL.
    unsafe { take_back(engine) };
}

/// Tells of the model as JSON: name, architecture, weights, parameters, vocabulary, context_tokens, kv_tokens, bundle,
/// fingerprint, chat, version. Free the text by heg_text_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_describe(
    engine: *const EngineHandle,
    json: *mut *mut c_char,
    error: *mut *mut ErrorHandle,
) -> i32 {
    let work = || {
        // SAFETY: the caller gives an engine of ours, or NULL.
        let EngineHandle(opened) = unsafe { object("engine", engine) }?;
        Ok(report::model(opened))
    };
    // SAFETY: the caller gives places for the text and for an error, or NULL.
    unsafe { conclude_with_json(json, error, work) }
}

/// Tells of the engine's state as JSON: health ("loading", "ready", "degraded", "failed") and why, requests in each phase,
/// memory of keys and values, tokens since the start, kept state, kernels that run elsewhere than on their best device
/// (descents). Free the text by heg_text_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_status(
    engine: *const EngineHandle,
    json: *mut *mut c_char,
    error: *mut *mut ErrorHandle,
) -> i32 {
    let work = || {
        // SAFETY: the caller gives an engine of ours, or NULL.
        let EngineHandle(opened) = unsafe { object("engine", engine) }?;
        report::status(opened)
    };
    // SAFETY: the caller gives places for the text and for an error, or NULL.
    unsafe { conclude_with_json(json, error, work) }
}

/// Returns the number of a new flow, for the `flow` of requests that build on each other: they run one after the other, and
/// each finds the keys and values that the last one left. Returns 0 for a NULL engine, else at least 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_flow_new(engine: *const EngineHandle) -> u64 {
    let work = || {
        // SAFETY: the caller gives an engine of ours, or NULL.
        let EngineHandle(opened) = unsafe { object("engine", engine) }?;
        Ok(opened.new_flow())
    };
    contained(work).unwrap_or(0)
}

/// Ends a flow: its memory is freed once its last request has ended. An unknown flow, and a NULL engine, are ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_flow_end(engine: *const EngineHandle, flow: u64) {
    let work = || {
        // SAFETY: the caller gives an engine of ours, or NULL.
        let EngineHandle(opened) = unsafe { object("engine", engine) }?;
        opened.end_flow(flow);
        Ok(())
    };
    let _ = contained(work);
}

/// Counts the tokens of a request's prompt without submitting it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_count(
    engine: *const EngineHandle,
    request: *const c_char,
    tokens: *mut usize,
    error: *mut *mut ErrorHandle,
) -> i32 {
    let work = || {
        let tokens = place("tokens", tokens)?;
        // SAFETY: the caller gives an engine of ours and a text that ends with a zero, or NULL.
        let (EngineHandle(opened), request) =
            unsafe { (object("engine", engine)?, text("request", request)?) };
        let prompt = Ask::parse(request)?.prompt_tokens(opened)?;
        // SAFETY: the caller gives a place for the number.
        unsafe { tokens.put(prompt.len()) };
        Ok(Outcome::Ok)
    };
    // SAFETY: the caller gives a place for an error, or NULL.
    unsafe { conclude(error, work) }
}

/// Submits a request and returns at once with its answer. `request` is a JSON object with one of messages (a list of objects
/// with role and content), prompt (a text, no template) and prompt_ids; and, if wanted: tools, tool_choice ("auto", "none",
/// "required" or a name), json_schema, reasoning_format ("auto": what the model thinks first is apart from the text; "none": in
/// it), variables (of the template), max_tokens (256), stop (a list), ignore_eos, temperature (0), top_k, top_p, min_p,
/// repetition_penalty, presence_penalty, frequency_penalty, seed, priority ("reactive", "proactive"), deadline_ms, flow, client
/// (requests of different clients find nothing of each other), keep (whether the prompt is kept on disk), prediction,
/// speculate. A field that is not known is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_submit(
    engine: *const EngineHandle,
    request: *const c_char,
    answer: *mut *mut AnswerHandle,
    error: *mut *mut ErrorHandle,
) -> i32 {
    let work = || {
        let answer = place("answer", answer)?;
        // SAFETY: the caller gives an engine of ours and a text that ends with a zero, or NULL.
        let submitted = unsafe { submit(engine, request) }?;
        let handle = AnswerHandle {
            answer: Arc::new(submitted),
            telling: None,
        };
        // SAFETY: the caller gives a place for the answer.
        unsafe { answer.put(give(handle)) };
        Ok(Outcome::Ok)
    };
    // SAFETY: the caller gives a place for an error, or NULL.
    unsafe { conclude(error, work) }
}

/// Submits a request like heg_submit, whose answer `listener` hears on a thread of the library: with HEG_OK for each piece of
/// text, and at last once with HEG_END and the JSON of heg_ending, or with the code and the message of an error. The text ends
/// with a zero, which `bytes` does not count, and stays for the call. The listener may call any function but heg_next; it may
/// free its own answer, as its last act.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_submit_to(
    engine: *const EngineHandle,
    request: *const c_char,
    listener: Option<ListenerFunction>,
    user: *mut c_void,
    answer: *mut *mut AnswerHandle,
    error: *mut *mut ErrorHandle,
) -> i32 {
    let work = || {
        let answer = place("answer", answer)?;
        // SAFETY: the caller gives a function that may be called with `user` on another thread, or NULL.
        let listener = unsafe { Listener::new(listener, user) }?;
        // SAFETY: the caller gives an engine of ours and a text that ends with a zero, or NULL.
        let submitted = Arc::new(unsafe { submit(engine, request) }?);
        let heard = Arc::clone(&submitted);
        // The place is written before the listener can be called, which may free what is there.
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let telling = std::thread::Builder::new()
            .name("heg listener".to_owned())
            .spawn(move || {
                let _ = gone.recv();
                tell(&heard, &listener);
            })
            .map_err(InterfaceError::Thread)?;
        let handle = AnswerHandle {
            answer: submitted,
            telling: Some(telling),
        };
        // SAFETY: the caller gives a place for the answer.
        unsafe { answer.put(give(handle)) };
        drop(go);
        Ok(Outcome::Ok)
    };
    // SAFETY: the caller gives a place for an error, or NULL.
    unsafe { conclude(error, work) }
}

/// Waits for the next piece of an answer's text: at most `patience_ms`, not at all for 0, for ever if it is negative. Returns
/// HEG_OK with a piece, which ends with a zero that `bytes` does not count and stays until the next call or the end of the
/// answer; HEG_PENDING if none has come; HEG_END when the answer is over, also if it was cancelled. `bytes` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_next(
    answer: *const AnswerHandle,
    patience_ms: i64,
    piece: *mut *const c_char,
    bytes: *mut usize,
    error: *mut *mut ErrorHandle,
) -> i32 {
    let work = || {
        let piece = place("piece", piece)?;
        // SAFETY: the caller gives an answer of ours, or NULL.
        let handle = unsafe { object("answer", answer) }?;
        if handle.telling.is_some() {
            let expected = "expected an answer of `heg_submit`, found one that a listener hears";
            return Err(InterfaceError::Asked(expected.to_owned()));
        }
        let patience = u64::try_from(patience_ms).ok().map(Duration::from_millis);
        let (heard, lying) = handle.answer.hear_in_place(patience)?;
        // SAFETY: the caller gives a place for the piece.
        unsafe { piece.put(lying.text.cast()) };
        if let Ok(bytes) = place("bytes", bytes) {
            // SAFETY: it is not NULL, so the caller gives a place for the length.
            unsafe { bytes.put(lying.bytes) };
        }
        Ok(match heard {
            Heard::Piece(_) => Outcome::Ok,
            Heard::Pending => Outcome::Pending,
            Heard::Over => Outcome::End,
        })
    };
    // SAFETY: the caller gives a place for an error, or NULL.
    unsafe { conclude(error, work) }
}

/// Asks for an answer to end soon; any thread may. Its end still comes, with finish_reason "cancelled" unless it had ended
/// already. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_cancel(answer: *const AnswerHandle) {
    let work = || {
        // SAFETY: the caller gives an answer of ours, or NULL.
        unsafe { object("answer", answer) }?.answer.cancel();
        Ok(())
    };
    let _ = contained(work);
}

/// Tells of an answer that is over, as JSON: finish_reason ("stop", "length", "cancelled", "deadline", "shed", "failed"),
/// text, reasoning_content (if the model thought first), token_ids, tool_calls (if tools were offered), prompt_tokens,
/// reused_tokens, kept_tokens, baked_tokens (from the bundle), queued_ms, ttft_ms, decode_ms, and counts of drafts. Free the
/// text by heg_text_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_ending(
    answer: *const AnswerHandle,
    json: *mut *mut c_char,
    error: *mut *mut ErrorHandle,
) -> i32 {
    let work = || {
        // SAFETY: the caller gives an answer of ours, or NULL.
        unsafe { object("answer", answer) }?.answer.ending()
    };
    // SAFETY: the caller gives places for the text and for an error, or NULL.
    unsafe { conclude_with_json(json, error, work) }
}

/// Frees an answer; NULL is ignored. If it goes on it is cancelled; if it has a listener, that has been called for the last
/// time when this returns, unless the listener calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_answer_free(answer: *mut AnswerHandle) {
    // SAFETY: the caller gives an answer of ours that is not used any more, or NULL.
    unsafe { take_back(answer) };
}

/// Returns the code of an error: what the function that gave it returned. HEG_OK for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_error_code(error: *const ErrorHandle) -> i32 {
    // SAFETY: the caller gives an error of ours, or NULL.
    unsafe { object("error", error) }.map_or(Outcome::Ok as i32, |error| error.code)
}

/// Returns the text of an error, on one line, which stays until the error is freed. An empty text for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_error_message(error: *const ErrorHandle) -> *const c_char {
    // SAFETY: the caller gives an error of ours, or NULL.
    unsafe { object("error", error) }.map_or(c"".as_ptr(), |error| error.message.as_ptr())
}

/// Frees an error; NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_error_free(error: *mut ErrorHandle) {
    // SAFETY: the caller gives an error of ours that is not used any more, or NULL.
    unsafe { take_back(error) };
}

/// Frees a text of heg_describe, heg_status or heg_ending; NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heg_text_free(text: *mut c_char) {
    // SAFETY: the caller gives a text of ours that is not used any more, or NULL.
    unsafe { take_back_text(text) };
}

/// Submits a request.
///
/// # Safety
///
/// `engine` is NULL or one of ours, `request` is NULL or a text that ends with a zero.
unsafe fn submit(
    engine: *const EngineHandle,
    request: *const c_char,
) -> Result<Answer, InterfaceError> {
    // SAFETY: passed on to the caller.
    let (EngineHandle(opened), request) =
        unsafe { (object("engine", engine)?, text("request", request)?) };
    Answer::submit(opened, Ask::parse(request)?)
}

/// Tells a listener an answer, to its end.
fn tell(answer: &Answer, listener: &Listener) {
    let end = loop {
        match contained(|| answer.hear(None)) {
            Ok(Heard::Piece(piece)) => listener.tell(Outcome::Ok as i32, &piece),
            Ok(Heard::Pending) => {}
            Ok(Heard::Over) => break contained(|| answer.ending()),
            Err(error) => break Err(error),
        }
    };
    match end {
        Ok(ending) => listener.tell(Outcome::End as i32, &ending.to_string()),
        Err(error) => listener.tell(error.code(), &error.message()),
    }
}

impl Drop for AnswerHandle {
    fn drop(&mut self) {
        self.answer.cancel();
        // A listener that frees its own answer is not waited for: it would wait for itself.
        if let Some(telling) = self.telling.take()
            && telling.thread().id() != std::thread::current().id()
        {
            let _ = telling.join();
        }
    }
}
