//! A conversation with a process, or a process's own with the server.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heg_text::{FrameLink, Silence};

use super::process::Process;
use crate::platform::line::Talk;

/// An end of a conversation that carries messages.
#[derive(Debug)]
pub(crate) struct Frames {
    talk: Talk,
    /// The process at the other end, which ends with the last of its conversations; `None` in the process itself.
    process: Option<Arc<Process>>,
    /// Maximum length of a message that is received.
    bytes_max: usize,
}

impl Frames {
    pub(super) fn new(talk: Talk, process: Option<Arc<Process>>, bytes_max: usize) -> Self {
        Self {
            talk,
            process,
            bytes_max,
        }
    }

    /// Begins another conversation with the same process.
    pub(super) fn beside(&self, bytes_max: usize) -> io::Result<Self> {
        Ok(Self::new(
            self.talk.another()?,
            self.process.clone(),
            bytes_max,
        ))
    }

    /// Returns what ends the process at the other end.
    pub(crate) fn collar(&self) -> io::Result<Collar> {
        let process = self.process.clone();
        let process = process.ok_or_else(|| io::Error::other("the other end is the server"));
        process.map(Collar)
    }

    /// Sets the maximum length of a message that is received.
    pub(crate) fn receive_at_most(&mut self, bytes: usize) {
        self.bytes_max = bytes;
    }

    /// Returns whether the other end is open and has sent nothing.
    pub(crate) fn is_quiet(&self) -> bool {
        self.talk.is_quiet()
    }

    /// Sends a message. It waits for no deadline, since a process takes messages even while it works.
    pub(crate) fn send_until(&mut self, message: &[u8], _: Option<Instant>) -> Result<(), Silence> {
        self.talk.send(message).map_err(|silence| self.why(silence))
    }

    /// Receives the next message, if it arrives before `until`.
    pub(crate) fn receive_until(&mut self, until: Option<Instant>) -> Result<Vec<u8>, Silence> {
        let message = self.talk.receive(until);
        let message = message.map_err(|silence| self.why(silence))?;
        match message.len() <= self.bytes_max {
            true => Ok(message),
            false => Err(Silence::Gone),
        }
    }

    /// Returns why the other end is silent: the process says it by its exit code.
    fn why(&self, silence: Silence) -> Silence {
        match (&silence, &self.process) {
            (Silence::Gone, Some(process)) => process.end(),
            _ => silence,
        }
    }
}

impl FrameLink for Frames {
    fn send(&mut self, message: &[u8]) -> Result<(), Silence> {
        self.send_until(message, None)
    }

    fn receive(&mut self, wait: Option<Duration>) -> Result<Vec<u8>, Silence> {
        self.receive_until(wait.map(|wait| Instant::now() + wait))
    }
}

/// Ends the process at the other end of a conversation.
#[derive(Debug)]
pub(crate) struct Collar(Arc<Process>);

impl Collar {
    pub(crate) fn end(&self) {
        let _ = self.0.end();
    }
}
