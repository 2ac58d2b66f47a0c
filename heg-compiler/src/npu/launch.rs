//! The start of a worker: its command, and the services that it shares with workers of other processes.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::error::NpuError;

/// The command that starts a worker, and what its start needs.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(&'static str, OsString)>,
    /// Time limit of a start.
    pub(super) start_timeout: Duration,
    /// The services that the first worker starts, if there are any.
    pub(super) services: Option<Services>,
}

/// Services that workers of all processes share. The first worker starts them and the others wait for them, in vain if
/// it was killed amid that: wine then waits for minutes.
#[derive(Debug, Clone)]
pub(super) struct Services {
    /// A file that is locked while a worker starts.
    pub(super) lock: PathBuf,
    /// The command that ends them, with every program that uses them.
    pub(super) end: Vec<OsString>,
}

/// The right to start a worker, until this is dropped.
#[derive(Debug)]
pub(super) struct TurnToStart {
    _lock: Option<fs::File>,
}

impl Launch {
    /// Waits until this process may start a worker; another may when the result is dropped. `None` if `is_cancelled`
    /// said so meanwhile.
    ///
    /// Errors: [`NpuError::Io`] if the file cannot be created or locked.
    pub(super) fn turn_to_start(
        &self,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<Option<TurnToStart>, NpuError> {
        let Some(Services { lock, .. }) = &self.services else {
            return Ok(Some(TurnToStart { _lock: None }));
        };
        let file = fs::File::create(lock).map_err(NpuError::io("create", lock))?;
        while !is_cancelled() {
            match file.try_lock() {
                Ok(()) => return Ok(Some(TurnToStart { _lock: Some(file) })),
                Err(fs::TryLockError::WouldBlock) => std::thread::sleep(START_POLL),
                Err(fs::TryLockError::Error(error)) => {
                    return Err(NpuError::io("lock", lock)(error));
                }
            }
        }
        Ok(None)
    }

    /// Ends the services, for a worker that did not get ready in time: the next one starts them again.
    pub(super) fn end_services(&self, _turn: &TurnToStart) {
        let services = self.services.as_ref();
        let Some((program, arguments)) = services.and_then(|services| services.end.split_first())
        else {
            return;
        };
        let mut end = self.in_environment(Command::new(program));
        // Without them there is nothing to end.
        let _ = end.args(arguments).status();
    }

    /// The command that starts a worker.
    pub(super) fn command(&self) -> Command {
        let mut command = self.in_environment(Command::new(&self.program));
        command.args(&self.arguments);
        command
    }

    fn in_environment(&self, mut command: Command) -> Command {
        let environment = self.environment.iter();
        command.envs(environment.map(|(name, value)| (name, value)));
        // Wine would look for a display.
        command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
        command
    }
}

/// Pause between tries to lock. A start takes half a second.
const START_POLL: Duration = Duration::from_millis(10);
