//! The worker's process, from the server's side and from its own.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use heg_text::{Grammars, TextError};

use super::frame::Frames;
use super::keeper::{Role, ask, keep};
use super::limits;
use crate::assets::{ASSET_BYTES_MAX, TextSide, WorkerAssets};
use crate::worker::WorkerProgram;
use crate::{form_child, prompt_child};

/// Returns the path of the program that runs now, also if its file was replaced since.
pub(crate) fn this_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

/// A running worker.
pub(crate) struct Live {
    process: Child,
    control: UnixStream,
    /// The connection to the process with the vocabulary for forms, opened at the first form.
    forms: Option<UnixStream>,
}

impl Live {
    pub(crate) fn start(program: &WorkerProgram, assets: &WorkerAssets) -> io::Result<Self> {
        let (control, theirs) = UnixStream::pair()?;
        let process = Command::new(&program.path)
            .args(&program.arguments)
            // The worker must not inherit secrets from the environment.
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            // The ends of processes are reported over the sockets.
            .stderr(Stdio::null())
            // Signals from the terminal are for this process, which ends its worker.
            .process_group(0)
            .spawn()?;
        let mut frames = Frames::new(control, 0)?;
        assets.send(&mut frames)?;
        Ok(Self {
            process,
            control: frames.into_socket(),
            forms: None,
        })
    }

    pub(crate) fn runs(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Returns `false`: a worker starts any number of processes.
    pub(crate) fn is_spent(&self) -> bool {
        false
    }

    pub(crate) fn process_id(&self) -> Option<u32> {
        Some(self.process.id())
    }

    /// Starts a process that makes prompts.
    pub(crate) fn prompts(&mut self, bytes_max: usize) -> io::Result<Frames> {
        Frames::new(ask(&self.control, Role::Prompts)?, bytes_max)
    }

    /// Starts a process that compiles one form.
    pub(crate) fn form(&mut self, bytes_max: usize) -> io::Result<Frames> {
        if let Some(forms) = &self.forms
            && let Ok(form) = ask(forms, Role::Form)
        {
            return Frames::new(form, bytes_max);
        }
        let forms = self.forms.insert(ask(&self.control, Role::Forms)?);
        Frames::new(ask(forms, Role::Form)?, bytes_max)
    }
}

impl Drop for Live {
    /// Ends the worker, and with it all its processes.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The connection to a process that has compiled a form, and keeps the processes of its answers.
#[derive(Debug)]
pub(crate) struct Control(UnixStream);

impl From<Frames> for Control {
    fn from(frames: Frames) -> Self {
        Self(frames.into_socket())
    }
}

impl Control {
    /// Starts the process of an answer.
    pub(crate) fn answer(&self, bytes_max: usize) -> io::Result<Frames> {
        Frames::new(ask(&self.0, Role::Answer)?, bytes_max)
    }
}

/// Runs as the worker, on the socket that is standard input, until that closes.
pub fn work() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<()> {
    let control = io::stdin().as_fd().try_clone_to_owned()?;
    limits::for_the_worker()?;
    let mut frames = Frames::new(UnixStream::from(control), ASSET_BYTES_MAX)?;
    let text = TextSide::receive(&mut frames)?;
    match keep(frames.into_socket()) {
        Some((Role::Prompts, socket)) => {
            limits::stack(prompt_child::STACK_BYTES as u64)?;
            prompt_child::serve(&text, Frames::new(socket, prompt_child::WORK_BYTES_MAX)?)
        }
        Some((Role::Forms, socket)) => forms(&text, socket),
        Some(_) | None => Ok(()),
    }?;
    // Exits without dropping, since the system frees the memory.
    std::process::exit(0)
}

/// Keeps the vocabulary, and the processes that compile forms with it.
fn forms(text: &TextSide, socket: UnixStream) -> io::Result<()> {
    let grammars = form_child::vocabulary(text)?;
    match keep(socket) {
        Some((Role::Form, socket)) => form(&grammars, socket),
        Some(_) | None => Ok(()),
    }
}

/// Compiles a form, and keeps the processes of its answers.
fn form(grammars: &Result<Grammars, TextError>, socket: UnixStream) -> io::Result<()> {
    limits::stack(heg_text::COMPILE_STACK_BYTES as u64)?;
    let mut frames = Frames::new(socket, form_child::FORM_BYTES_MAX)?;
    let Some(compiled) = form_child::compile(grammars, &mut frames)? else {
        return Ok(());
    };
    match keep(frames.into_socket()) {
        Some((Role::Answer, socket)) => {
            let frames = Frames::new(socket, form_child::STEP_BYTES_MAX)?;
            form_child::answer(compiled, frames)?;
            // Dropping a grammar would take longer than leaving it to the system.
            std::process::exit(0)
        }
        Some(_) | None => Ok(()),
    }
}
