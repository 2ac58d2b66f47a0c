//! The worker as its users see it: its start, and the requests to it for processes.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::assets::WorkerAssets;
use crate::error::Confined;
use crate::platform::{self, Frames, Live};

/// The worker's program: this program, except in tests.
#[derive(Debug, Clone)]
pub struct WorkerProgram {
    /// Path of the executable.
    pub path: PathBuf,
    /// Arguments that make it the worker.
    pub arguments: Vec<OsString>,
}

impl WorkerProgram {
    /// Returns the program that runs now, with a subcommand.
    pub fn this(subcommand: &str) -> Self {
        Self {
            path: platform::this_program(),
            arguments: vec![subcommand.into()],
        }
    }
}

/// Reads the assets of a bundle; called again when the worker has to be restarted.
type ReadAssets = Box<dyn Fn() -> Result<WorkerAssets, String> + Send + Sync>;

/// A worker that runs until this is dropped. If it ends by itself, it is started again when it is needed.
#[derive(Clone)]
pub struct TextWorker(Arc<Inner>);

struct Inner {
    program: WorkerProgram,
    assets: ReadAssets,
    live: Mutex<Option<Live>>,
}

impl TextWorker {
    /// Creates a worker, which is started on another thread.
    pub fn start(
        program: WorkerProgram,
        assets: impl Fn() -> Result<WorkerAssets, String> + Send + Sync + 'static,
    ) -> Self {
        let worker = Self(Arc::new(Inner {
            program,
            assets: Box::new(assets),
            live: Mutex::default(),
        }));
        worker.start_ahead();
        worker
    }

    /// Returns the worker's process id, if it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.0.lock().as_ref().and_then(Live::process_id)
    }

    /// Starts a process that makes prompts, and whose replies have at most `bytes_max` bytes.
    pub(crate) fn prompts(&self, bytes_max: usize) -> Result<Frames, Confined> {
        self.ask(|live| live.prompts(bytes_max))
    }

    /// Starts a process that compiles one form, and whose replies have at most `bytes_max` bytes.
    pub(crate) fn form(&self, bytes_max: usize) -> Result<Frames, Confined> {
        self.ask(|live| live.form(bytes_max))
    }

    fn ask<T>(&self, ask: impl Fn(&mut Live) -> io::Result<T>) -> Result<T, Confined> {
        let (answer, is_spent) = self.0.with_live(|live| Ok((ask(live)?, live.is_spent())))?;
        if is_spent {
            self.start_ahead();
        }
        Ok(answer)
    }

    fn start_ahead(&self) {
        let inner = Arc::clone(&self.0);
        let begin = move || {
            // A failure here happens again when a process is requested, and is reported then.
            let _ = inner.with_live(|_| Ok(()));
        };
        let thread = std::thread::Builder::new().name("text worker".to_owned());
        // If the thread cannot be started, the worker starts when it is needed.
        let _ = thread.spawn(begin);
    }
}

impl std::fmt::Debug for TextWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextWorker")
            .field("program", &self.0.program.path)
            .finish()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Option<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the worker for something; asks a new worker if the first one is gone.
    fn with_live<T>(&self, ask: impl Fn(&mut Live) -> io::Result<T>) -> Result<T, Confined> {
        let mut live = self.lock();
        if let Some(live) = live.as_mut()
            && live.runs()
            && let Ok(answer) = ask(live)
        {
            return Ok(answer);
        }
        let new = Live::start(&self.program, &(self.assets)().map_err(Confined::lost)?);
        let new = live.insert(new.map_err(Confined::lost)?);
        ask(new).map_err(Confined::lost)
    }
}
