//! Distributes many jobs over several worker processes.
//!
//! Each thread keeps one process and gives it job after job. A job that hangs or crashes takes only its process with
//! it: a crash is retried once in a fresh process, a hang is not.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::error::NpuError;
use super::job::NpuJob;
use super::scratch::Scratch;
use super::toolchain::NpuToolchain;
use super::worker::{Fault, Heard, Worker};

/// Settings for running jobs.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Number of worker processes at a time, at least one.
    pub processes: usize,
    /// Time limit of a job.
    pub timeout: Duration,
    /// Folder for the files of running jobs; created if absent, and left empty.
    pub scratch: PathBuf,
}

/// The outcome of a job.
#[derive(Debug)]
pub struct Compiled {
    /// Index of the job.
    pub job: usize,
    /// The blob, or the error.
    pub outcome: Result<Vec<u8>, NpuError>,
}

/// Running jobs: an iterator over their outcomes, in the order in which they end. Dropping it kills the workers and
/// waits for them to end.
#[derive(Debug)]
pub struct Compiling {
    run: Arc<Run>,
    outcomes: Option<Receiver<Compiled>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Default time limit of a job. The longest that we compile take 10 s.
    pub const TIMEOUT: Duration = Duration::from_secs(300);

    /// As many processes as cores.
    pub fn new(scratch: impl Into<PathBuf>) -> Self {
        Self {
            processes: thread::available_parallelism().map_or(1, usize::from),
            timeout: Self::TIMEOUT,
            scratch: scratch.into(),
        }
    }

    /// Starts `jobs`, the most expensive first.
    ///
    /// An outcome of [`NpuError::Unusable`] means that workers do not start; all jobs that had not started get it.
    ///
    /// Errors: [`NpuError::Io`] if the scratch folder cannot be created.
    pub fn compile(
        &self,
        toolchain: &NpuToolchain,
        jobs: Vec<NpuJob>,
    ) -> Result<Compiling, NpuError> {
        let threads = self.processes.max(1).min(jobs.len());
        let mut queue: Vec<(usize, NpuJob)> = jobs.into_iter().enumerate().collect();
        queue.sort_by_key(|(_, job)| std::cmp::Reverse(job.cost));
        let (sender, outcomes) = channel();
        let mut compiling = Compiling {
            run: Arc::new(Run {
                toolchain: toolchain.clone(),
                timeout: self.timeout,
                scratch: Scratch::new(&self.scratch)?,
                state: Mutex::new(State {
                    queue: queue.into(),
                    unusable: None,
                    interrupters: vec![None; threads],
                    cancelled: false,
                }),
            }),
            outcomes: Some(outcomes),
            threads: Vec::new(),
        };
        for index in 0..threads {
            let (run, sender) = (Arc::clone(&compiling.run), sender.clone());
            let body = move || run.serve(index, &sender);
            let thread = thread::Builder::new().name(format!("npu-{index}"));
            let thread = thread
                .spawn(body)
                .map_err(NpuError::io("start", "thread"))?;
            compiling.threads.push(thread);
        }
        Ok(compiling)
    }
}

impl Iterator for Compiling {
    type Item = Compiled;

    fn next(&mut self) -> Option<Compiled> {
        self.outcomes.as_ref()?.recv().ok()
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        self.run.cancel();
        self.outcomes = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The state that the threads of a run share.
#[derive(Debug)]
struct Run {
    toolchain: NpuToolchain,
    timeout: Duration,
    scratch: Scratch,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<(usize, NpuJob)>,
    /// Set if workers do not start: no further job is tried.
    unusable: Option<NpuError>,
    /// One per thread with a worker.
    interrupters: Vec<Option<Sender<Heard>>>,
    cancelled: bool,
}

impl Run {
    /// Runs one thread: takes jobs until there are none.
    fn serve(&self, index: usize, outcomes: &Sender<Compiled>) {
        let mut worker = None;
        while let Some((job, next)) = self.take() {
            let outcome = match next {
                Ok(next) => self.perform(index, &mut worker, &next),
                Err(unusable) => Some(Err(unusable)),
            };
            let Some(outcome) = outcome else { return };
            if outcomes.send(Compiled { job, outcome }).is_err() {
                return;
            }
        }
    }

    /// Takes the next job, or the reason why it will not be tried.
    fn take(&self) -> Option<(usize, Result<NpuJob, NpuError>)> {
        let mut state = self.state();
        let (index, job) = state.queue.pop_front()?;
        Some((index, state.unusable.clone().map_or(Ok(job), Err)))
    }

    /// Runs a job, in the present worker or a fresh one; returns `None` if the run was cancelled.
    fn perform(
        &self,
        index: usize,
        worker: &mut Option<Worker>,
        job: &NpuJob,
    ) -> Option<Result<Vec<u8>, NpuError>> {
        let mut crash = String::new();
        // An earlier job may have broken the present worker, so it does not count as a try.
        let tries = if worker.is_some() { 3 } else { 2 };
        for _ in 0..tries {
            let mut current = match worker.take() {
                Some(current) => current,
                None => match self.start(index) {
                    Ok(started) => started?,
                    Err(error) => return Some(Err(error)),
                },
            };
            let fault = match current.run(job, self.timeout) {
                Err(error) => return Some(Err(error)),
                Ok(Ok(blob)) => {
                    *worker = Some(current);
                    return Some(Ok(blob));
                }
                Ok(Err(fault)) => fault,
            };
            let (name, platform) = (job.name.clone(), job.platform);
            match fault {
                Fault::Refused(message) => {
                    *worker = Some(current);
                    return Some(Err(NpuError::Refused {
                        job: name,
                        platform,
                        message,
                    }));
                }
                Fault::TimedOut => {
                    return Some(Err(NpuError::TimedOut {
                        job: name,
                        platform,
                        limit: self.timeout,
                    }));
                }
                Fault::Interrupted => return None,
                Fault::Crashed(message) => crash = message,
            }
        }
        Some(Err(NpuError::Crashed {
            job: job.name.clone(),
            platform: job.platform,
            message: crash,
        }))
    }

    /// Starts a fresh worker, with a second try if necessary; returns `None` if the run was cancelled. A start that has
    /// begun is waited for: killed amid it, the worker would leave services that never get ready.
    fn start(&self, index: usize) -> Result<Option<Worker>, NpuError> {
        let (launch, expected) = (self.toolchain.launch(), self.toolchain.identity());
        let mut message = String::new();
        for _ in 0..2 {
            let turn = launch.turn_to_start(|| self.state().cancelled)?;
            let Some(turn) = turn else {
                return Ok(None);
            };
            let mut worker = Worker::spawn(&self.toolchain, &self.scratch)?;
            message = match worker.identify(launch.start_timeout) {
                Ok(identity) if identity == expected => {
                    let wanted = self.may_wait_for(index, &worker);
                    return Ok(wanted.then_some(worker));
                }
                Ok(identity) => format!("it is `{identity}`, but `{expected}` was set up"),
                Err(fault) => {
                    if matches!(fault, Fault::TimedOut) {
                        launch.end_services(&turn);
                    }
                    fault.to_string()
                }
            };
        }
        let error = NpuError::Unusable {
            toolchain: self.toolchain.to_string(),
            message,
        };
        self.state().unusable = Some(error.clone());
        Err(error)
    }

    /// Lets `cancel` interrupt the worker from now on; false if `cancel` was called already.
    fn may_wait_for(&self, index: usize, worker: &Worker) -> bool {
        let mut state = self.state();
        state.interrupters[index] = Some(worker.interrupter());
        !state.cancelled
    }

    fn cancel(&self) {
        let mut state = self.state();
        state.cancelled = true;
        state.queue.clear();
        for interrupter in state.interrupters.iter().flatten() {
            // A worker that has ended is not waiting.
            let _ = interrupter.send(Heard::Interrupt);
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
