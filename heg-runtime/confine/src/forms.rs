//! Forms, compiled in processes of the worker and kept for the next answer of the same client.
//!
//! Kept forms are never shared between clients, so the time that a form takes does not reveal whether another
//! client has used it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blake3::Hash;
use heg_text::{AnswerForm, FrameLink, Grammar, Silence, TextError};

use crate::error::Confined;
use crate::form_child::compiled_before;
use crate::leash::Wait;
use crate::message::{Compiled, from_bytes, to_bytes};
use crate::platform::{Control, FORMS_KEPT, Frames};
use crate::worker::TextWorker;

/// The compiled forms of all clients; each client finds only its own.
#[derive(Debug)]
pub struct Forms {
    worker: TextWorker,
    /// The kept forms, the most recently used last.
    kept: Mutex<VecDeque<Kept>>,
}

/// A form for the answers to a request.
#[derive(Debug)]
pub struct HeldForm {
    /// The grammars of the answers.
    pub grammars: Vec<Grammar>,
    /// Memory that each answer takes, in bytes: its process, and its share of the form's, as measured.
    pub kept_bytes: usize,
}

#[derive(Debug)]
struct Kept {
    /// Id of the client.
    owner: u64,
    /// Hash of the form's message. Only the same message has it.
    form: Hash,
    outcome: Result<Arc<FormProcess>, (TextError, Instant)>,
}

/// A process that has compiled a form. It ends with its last answer and its entry here.
#[derive(Debug)]
struct FormProcess {
    control: Control,
    own_bytes: usize,
}

impl Forms {
    /// Creates an empty store of forms over the vocabulary of a worker.
    pub fn new(worker: TextWorker) -> Self {
        Self {
            worker,
            kept: Mutex::default(),
        }
    }

    /// Returns whether a client's form is kept, so that it need not be compiled.
    pub fn knows(&self, owner: u64, form: &AnswerForm) -> bool {
        self.find(owner, blake3::hash(&to_bytes(form))).is_some()
    }

    /// Returns the grammars of `count` answers of a form, which is compiled once.
    ///
    /// # Errors
    /// `Refused`, if the form cannot be compiled, or exceeds a limit; `Deadline`, `Gone`, `Lost`.
    pub fn hold(
        &self,
        owner: u64,
        form: &AnswerForm,
        count: usize,
        wait: Wait<'_>,
    ) -> Result<HeldForm, Confined> {
        form.check()?;
        let message = to_bytes(form);
        let hash = blake3::hash(&message);
        if let Some(found) = self.find(owner, hash) {
            // A form whose process has gone meanwhile is compiled again.
            if let Ok(held) = found?.answers(count) {
                return Ok(held);
            }
        }
        let compiled = self.compile(form, &message, wait);
        let outcome = match &compiled {
            Ok(process) => Some(Ok(Arc::clone(process))),
            Err(Confined::Refused(error)) => Some(Err((error.clone(), Instant::now()))),
            Err(Confined::Deadline | Confined::Gone | Confined::Lost { .. }) => None,
        };
        if let Some(outcome) = outcome {
            self.keep(Kept {
                owner,
                form: hash,
                outcome,
            });
        }
        compiled?.answers(count)
    }

    fn compile(
        &self,
        form: &AnswerForm,
        message: &[u8],
        wait: Wait<'_>,
    ) -> Result<Arc<FormProcess>, Confined> {
        let mut frames = self.worker.form(REPLY_BYTES_MAX)?;
        let collar = frames.collar().map_err(Confined::lost)?;
        let until = Some(wait.until(compiled_before()));
        let reply = wait.holding(collar, || {
            let sent = frames.send_until(message, until);
            let reply = sent.and_then(|()| frames.receive_until(until));
            reply.map_err(|silence| {
                wait.failure(silence, |why| TextError::Form {
                    form: form.name(),
                    message: format!("{why} to compile; use a simpler form"),
                })
            })
        })?;
        match from_bytes(&reply) {
            Some(Compiled::Done(own_bytes)) => Ok(Arc::new(FormProcess {
                control: frames.into(),
                own_bytes: usize::try_from(own_bytes).unwrap_or(usize::MAX),
            })),
            Some(Compiled::Refused(refusal)) => Err(TextError::from(refusal).into()),
            None => Err(Confined::lost("a reply that is none")),
        }
    }

    /// Finds a kept form, and marks it as the most recently used.
    fn find(&self, owner: u64, form: Hash) -> Option<Result<Arc<FormProcess>, TextError>> {
        let mut kept = self.lock();
        let at = kept
            .iter()
            .position(|kept| kept.owner == owner && kept.form == form)?;
        let found = kept.remove(at)?;
        let outcome = match &found.outcome {
            Ok(process) => Ok(Arc::clone(process)),
            Err((error, since)) if since.elapsed() < REFUSED_TIME => Err(error.clone()),
            Err(_) => return None,
        };
        kept.push_back(found);
        Some(outcome)
    }

    /// Keeps a form, and drops the client's oldest one, or the oldest of all, if there are too many.
    fn keep(&self, new: Kept) {
        let mut kept = self.lock();
        kept.retain(|kept| (kept.owner, kept.form) != (new.owner, new.form));
        kept.push_back(new);
        let owner = kept.back().map(|kept| kept.owner);
        while kept.iter().filter(|kept| Some(kept.owner) == owner).count() > KEPT_BY_ONE {
            let oldest = kept.iter().position(|kept| Some(kept.owner) == owner);
            oldest.and_then(|oldest| kept.remove(oldest));
        }
        while kept.len() > FORMS_KEPT || kept.iter().map(Kept::bytes).sum::<usize>() > KEPT_BYTES {
            kept.pop_front();
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn bytes(&self) -> usize {
        self.outcome.as_ref().map_or(0, |process| process.own_bytes)
    }
}

impl FormProcess {
    /// Starts the processes of the answers.
    fn answers(self: Arc<Self>, count: usize) -> Result<HeldForm, Confined> {
        let links: Result<Vec<AnswerLink>, Confined> =
            (0..count).map(|_| AnswerLink::to(&self)).collect();
        let grammars = links?.into_iter().map(|link| Grammar::over(Box::new(link)));
        let grammars: Result<Vec<Grammar>, TextError> = grammars.collect();
        Ok(HeldForm {
            grammars: grammars.map_err(Confined::lost)?,
            kept_bytes: self.own_bytes / count.max(1) + ANSWER_BYTES,
        })
    }
}

/// The connection to the process of an answer, which ends with it.
struct AnswerLink {
    frames: Frames,
    /// The process that keeps the answer's process.
    _form: Arc<FormProcess>,
}

impl AnswerLink {
    fn to(form: &Arc<FormProcess>) -> Result<Self, Confined> {
        let frames = form.control.answer(MASK_BYTES_MAX);
        Ok(Self {
            frames: frames.map_err(Confined::lost)?,
            _form: Arc::clone(form),
        })
    }
}

impl FrameLink for AnswerLink {
    fn send(&mut self, message: &[u8]) -> Result<(), Silence> {
        self.frames.send(message)
    }

    fn receive(&mut self, wait: Option<Duration>) -> Result<Vec<u8>, Silence> {
        self.frames.receive(wait)
    }
}

/// Maximum number of kept forms of one client. Chosen: an agent uses one or two.
const KEPT_BY_ONE: usize = 4;

/// Maximum memory of all kept forms, in bytes.
const KEPT_BYTES: usize = 64 << 20;

/// Time for which a refused form is refused again without being compiled.
const REFUSED_TIME: Duration = Duration::from_secs(60);

/// Memory of an answer's process besides its form, in bytes: page tables, its stack, the memory that it writes.
const ANSWER_BYTES: usize = 512 << 10;

/// Size of the largest reply to a form, in bytes: an error message.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// Size of the largest mask, in bytes: a bit for each of 8 million tokens.
const MASK_BYTES_MAX: usize = 1 << 20;
