//! The worker: its start, and the requests to it for processes.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::assets::{SmallAssets, TextSide, WorkerAssets};
use crate::error::Confined;
use crate::frame::Frames;
use crate::keeper::{Role, ask, keep};
use crate::message::{from_bytes, to_bytes};
use crate::{form_child, limits, prompt_child};

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
            path: PathBuf::from("/proc/self/exe"),
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

/// A running worker.
struct Live {
    process: Child,
    control: UnixStream,
    /// The connection to the process with the vocabulary for forms, opened at the first form.
    forms: Option<UnixStream>,
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
        let inner = Arc::clone(&worker.0);
        let begin = move || {
            // A failure here happens again when a process is requested, and is reported then.
            let _ = inner.with_live(|_| Ok(()));
        };
        let thread = std::thread::Builder::new().name("text worker".to_owned());
        // If the thread cannot be started, the worker starts when it is needed.
        let _ = thread.spawn(begin);
        worker
    }

    /// Returns the worker's process id, if it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.0.lock().as_ref().map(|live| live.process.id())
    }

    /// Starts a process that makes prompts.
    pub(crate) fn prompts(&self) -> Result<UnixStream, Confined> {
        self.0.with_live(|live| ask(&live.control, Role::Prompts))
    }

    /// Starts a process that compiles one form.
    pub(crate) fn form(&self) -> Result<UnixStream, Confined> {
        self.0.with_live(|live| {
            if let Some(forms) = &live.forms
                && let Ok(form) = ask(forms, Role::Form)
            {
                return Ok(form);
            }
            let forms = live.forms.insert(ask(&live.control, Role::Forms)?);
            ask(forms, Role::Form)
        })
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

impl Live {
    fn start(program: &WorkerProgram, assets: &WorkerAssets) -> io::Result<Self> {
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
        let until = Some(Instant::now() + START_MAX);
        let small = SmallAssets {
            has_tokenizer: assets.tokenizer.is_some(),
            template: assets.template.clone(),
            special_tokens: assets.special_tokens.clone(),
            eos_ids: assets.eos_ids.clone(),
        };
        let sent = frames.send_until(&to_bytes(&small), until).and_then(|()| {
            let tokenizer = assets.tokenizer.as_deref().unwrap_or_default();
            frames.send_until(tokenizer, until)
        });
        // The time of requests counts from here, after loading.
        let loaded = sent.and_then(|()| frames.receive_until(until));
        loaded.map_err(io::Error::other)?;
        Ok(Self {
            process,
            control: frames.into_socket(),
            forms: None,
        })
    }

    fn runs(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Live {
    /// Ends the worker, and with it all its processes.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
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
    let mut next = || frames.receive_until(None).map_err(io::Error::other);
    let small: Option<SmallAssets> = from_bytes(&next()?);
    let small = small.ok_or_else(|| io::Error::other("expected the assets of a bundle"))?;
    let tokenizer = next()?;
    limits::heap_from_here(LOADING_BYTES + LOADING_BYTES_PER_BYTE * tokenizer.len() as u64)?;
    limits::processor_seconds(LOADING_SECONDS)?;
    let text = TextSide::load(small, &tokenizer);
    drop(tokenizer);
    limits::no_limit_on_time()?;
    frames.send_until(&[], None).map_err(io::Error::other)?;
    match keep(frames.into_socket()) {
        Some((Role::Prompts, socket)) => prompt_child::serve(&text, socket),
        Some((Role::Forms, socket)) => form_child::serve(&text, socket),
        Some(_) | None => Ok(()),
    }?;
    // Exits without dropping, since the system frees the memory.
    std::process::exit(0)
}

/// The longest time that a worker may take to start and load. Chosen: a machine that swaps takes seconds.
const START_MAX: Duration = Duration::from_secs(60);

/// Size of the largest tokenizer or template, in bytes. Chosen: ten times the largest published one.
const ASSET_BYTES_MAX: usize = 512 << 20;

/// Memory that loading may take besides that for the file's size, in bytes.
const LOADING_BYTES: u64 = 256 << 20;

/// Memory that loading may take for each byte of the tokenizer's file, in bytes. Measured: 9 for 128 000 tokens.
const LOADING_BYTES_PER_BYTE: u64 = 64;

/// Processor time that loading may take, in seconds. Chosen: large vocabularies take half a second.
const LOADING_SECONDS: u64 = 60;
