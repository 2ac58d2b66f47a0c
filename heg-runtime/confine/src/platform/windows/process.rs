//! The processes of the worker, from the server's side.

use std::io;
use std::os::windows::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use heg_text::Silence;
use windows_sys::Win32::Foundation::{STATUS_STACK_BUFFER_OVERRUN, STATUS_STACK_OVERFLOW};
use windows_sys::Win32::System::Threading::DETACHED_PROCESS;

use super::{Frames, Role};
use crate::assets::WorkerAssets;
use crate::platform::line::Line;
use crate::worker::WorkerProgram;

/// Returns the path of the program that runs now. An empty one, where the system does not say, cannot be started.
pub(crate) fn this_program() -> PathBuf {
    std::env::current_exe().unwrap_or_default()
}

/// A process of the worker, which ends with the last handle to it.
#[derive(Debug)]
pub(super) struct Process(Mutex<Child>);

impl Process {
    /// Ends the process, and returns why it was silent: the limit that it had reached before, if any.
    pub(super) fn end(&self) -> Silence {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has ended already keeps its exit code.
        let _ = child.kill();
        let code = child.wait().ok().and_then(|status| status.code());
        match code {
            Some(STATUS_STACK_OVERFLOW) => Silence::Ended {
                why: "it nests too deeply",
            },
            // Rust aborts so, where memory is refused.
            Some(STATUS_STACK_BUFFER_OVERRUN) => Silence::Ended {
                why: "it takes too much memory",
            },
            _ => Silence::Gone,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// A process that was started ahead, until it gets a piece of work.
pub(crate) struct Live(Option<Ahead>);

struct Ahead {
    frames: Frames,
    process: Arc<Process>,
}

impl Live {
    pub(crate) fn start(program: &WorkerProgram, assets: &WorkerAssets) -> io::Result<Self> {
        let mut command = Command::new(&program.path);
        command
            .args(&program.arguments)
            // The worker must not inherit secrets from the environment. Loading libraries may need the system's folder.
            .env_clear()
            .envs(std::env::var_os(SYSTEM_FOLDER).map(|folder| (SYSTEM_FOLDER, folder)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Without a console, the user's Ctrl-C is for this process only, which ends its worker.
            .creation_flags(DETACHED_PROCESS);
        let mut child = command.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let process = Arc::new(Process(Mutex::new(child)));
        let (input, output) = pipes.ok_or_else(|| io::Error::other("the process has no pipes"))?;
        let line = Line::new(input);
        let listening = Arc::clone(&line);
        // Ends with the process.
        std::thread::Builder::new()
            .name("text worker's line".to_owned())
            .spawn(move || listening.listen(output, REPLY_BYTES_MAX, drop))?;
        let mut frames = Frames::new(line.begin()?, Some(Arc::clone(&process)), REPLY_BYTES_MAX);
        assets.send(&mut frames)?;
        Ok(Self(Some(Ahead { frames, process })))
    }

    pub(crate) fn runs(&mut self) -> bool {
        let ahead = self.0.as_ref();
        ahead.is_some_and(|ahead| ahead.frames.is_quiet())
    }

    /// Returns whether the process has got its work, so that another one has to be started.
    pub(crate) fn is_spent(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn process_id(&self) -> Option<u32> {
        let child = &self.0.as_ref()?.process.0;
        let child = child.lock().unwrap_or_else(PoisonError::into_inner);
        Some(child.id())
    }

    /// Makes the process one that makes prompts.
    pub(crate) fn prompts(&mut self, bytes_max: usize) -> io::Result<Frames> {
        self.take(Role::Prompts, bytes_max)
    }

    /// Makes the process one that compiles a form.
    pub(crate) fn form(&mut self, bytes_max: usize) -> io::Result<Frames> {
        self.take(Role::Form, bytes_max)
    }

    fn take(&mut self, role: Role, bytes_max: usize) -> io::Result<Frames> {
        let ahead = self.0.take();
        let Ahead { mut frames, .. } = ahead.ok_or_else(|| io::Error::other("it has its work"))?;
        let sent = frames.send_until(&[role as u8], None);
        sent.map_err(io::Error::other)?;
        frames.receive_at_most(bytes_max);
        Ok(frames)
    }
}

/// The connection to a process that has compiled a form, and makes the masks of its answers.
#[derive(Debug)]
pub(crate) struct Control(Mutex<Frames>);

impl From<Frames> for Control {
    fn from(frames: Frames) -> Self {
        Self(Mutex::new(frames))
    }
}

impl Control {
    /// Starts the thread of an answer.
    pub(crate) fn answer(&self, bytes_max: usize) -> io::Result<Frames> {
        let frames = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        frames.beside(bytes_max)
    }
}

/// The variable with the folder of Windows.
const SYSTEM_FOLDER: &str = "SystemRoot";

/// Size of the largest reply of any process, in bytes: the tokens of a prompt.
const REPLY_BYTES_MAX: usize = 64 << 20;
