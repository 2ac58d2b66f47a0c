//! One worker process: starting it, giving it jobs, reading its answers, killing it.
//!
//! A process leads its own group, so that all its child processes end with it. It also ends by itself when the pipe to
//! it is closed, as happens when this process is killed.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use heg_openvino::precompile::{Answer, Job, MARK};

use super::error::NpuError;
use super::job::NpuJob;
use super::scratch::Scratch;
use super::toolchain::NpuToolchain;

/// A running process that waits for a job.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    heard: Receiver<Heard>,
    interrupt: Sender<Heard>,
    folder: PathBuf,
    log: PathBuf,
}

/// Output of a worker process.
#[derive(Debug)]
pub(super) enum Heard {
    Answer(Answer),
    /// A line that is not a valid answer.
    Nonsense(String),
    /// The output is closed.
    End,
    /// A request from this process to stop waiting.
    Interrupt,
}

/// Reasons why a job has no blob.
#[derive(Debug)]
pub(super) enum Fault {
    /// OpenVINO refused the job; the worker continues.
    Refused(String),
    TimedOut,
    /// The process ended or gave an invalid answer; the text has the details and its last output.
    Crashed(String),
    Interrupted,
}

impl Worker {
    /// Waits until the process has loaded OpenVINO; returns the identity of its compiler.
    pub(super) fn identify(&mut self, timeout: Duration) -> Result<String, Fault> {
        match self.listen(Instant::now() + timeout)? {
            Answer::Ready { version, system } => Ok(format!("{version} {system}")),
            Answer::Unusable { message } => Err(Fault::Refused(message)),
            other => Err(self.crash(&format!("said `{other}`"))),
        }
    }

    /// Starts a process in the folder of its jobs.
    pub(super) fn spawn(toolchain: &NpuToolchain, scratch: &Scratch) -> Result<Self, NpuError> {
        let folder = scratch.path();
        let mut command = toolchain.launch().command();
        let program = PathBuf::from(command.get_program());
        let log = folder.join(format!("{}.log", NEXT.fetch_add(1, Ordering::Relaxed)));
        let log_file = fs::File::create(&log).map_err(NpuError::io("create", &log))?;
        command
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file);
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(NpuError::io("start", program))?;
        let input = child.stdin.take();
        let (interrupt, heard) = channel();
        if let Some(output) = child.stdout.take() {
            let sender = interrupt.clone();
            std::thread::spawn(move || hear(BufReader::new(output), &sender));
        }
        Ok(Self {
            child,
            input,
            heard,
            interrupt,
            folder: folder.to_owned(),
            log,
        })
    }

    /// Ends the wait of [`Worker::run`], from any thread.
    pub(super) fn interrupter(&self) -> Sender<Heard> {
        self.interrupt.clone()
    }

    /// Runs a job; returns the blob. After any fault but a refusal the worker cannot be used again.
    ///
    /// Errors: [`NpuError::Io`] if files on this side cannot be written or read.
    pub(super) fn run(
        &mut self,
        job: &NpuJob,
        timeout: Duration,
    ) -> Result<Result<Vec<u8>, Fault>, NpuError> {
        let deadline = Instant::now() + timeout;
        let files = JobFiles::write(&self.folder, job)?;
        // A broken pipe is noticed below, with a better message.
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{}", files.line(job)).and_then(|()| input.flush());
        }
        match self.listen(deadline) {
            Ok(Answer::Done { id, .. }) if id == files.id => files.blob(),
            Ok(Answer::Failed { id, message }) if id == files.id => {
                Ok(Err(Fault::Refused(message)))
            }
            Ok(other) => Ok(Err(self.crash(&format!("said `{other}`")))),
            Err(fault) => Ok(Err(fault)),
        }
    }

    fn listen(&mut self, deadline: Instant) -> Result<Answer, Fault> {
        let patience = deadline.saturating_duration_since(Instant::now());
        match self.heard.recv_timeout(patience) {
            Ok(Heard::Answer(answer)) => Ok(answer),
            Ok(Heard::Nonsense(line)) => Err(self.crash(&format!("said `{line}`"))),
            Ok(Heard::Interrupt) => Err(Fault::Interrupted),
            Err(RecvTimeoutError::Timeout) => Err(Fault::TimedOut),
            Ok(Heard::End) | Err(RecvTimeoutError::Disconnected) => {
                let how = self.end().map_or_else(
                    || "closed its output".to_owned(),
                    |status| format!("ended with {status}"),
                );
                Err(self.crash(&how))
            }
        }
    }

    /// The exit status of a process that has closed its output; it may need a moment to end.
    fn end(&mut self) -> Option<ExitStatus> {
        for _ in 0..END_POLLS {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(END_POLL);
        }
        None
    }

    /// The fault of a crash, with the last lines of the process's error output.
    fn crash(&self, how: &str) -> Fault {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
        let said = if last.is_empty() {
            String::new()
        } else {
            format!(": {}", last.join("\n"))
        };
        Fault::Crashed(format!("it {how}{said}"))
    }
}

impl Drop for Worker {
    /// Kills the process with all of its group.
    fn drop(&mut self) {
        self.input = None;
        #[cfg(unix)]
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            // An error means that the group is empty already.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.log);
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(message) | Self::Crashed(message) => f.write_str(message),
            Self::TimedOut => f.write_str("it took too long"),
            Self::Interrupted => f.write_str("it was interrupted"),
        }
    }
}

/// Reads lines until the end of the output. Skips lines that libraries print between answers.
fn hear(mut output: impl BufRead, sender: &Sender<Heard>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = output.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
        let heard = match read {
            Ok(0) | Err(_) => Heard::End,
            Ok(_) if !line.starts_with(MARK.as_bytes()) => continue,
            Ok(_) => understand(&line),
        };
        let end = matches!(heard, Heard::End);
        if sender.send(heard).is_err() || end {
            return;
        }
    }
}

/// Parses a line. A line without its end was not finished by the process.
fn understand(line: &[u8]) -> Heard {
    let text = String::from_utf8_lossy(line);
    let whole = text.strip_suffix('\n').map(str::trim_end);
    match whole.and_then(Answer::parse) {
        Some(answer) => Heard::Answer(answer),
        None => Heard::Nonsense(text.chars().take(SHOWN_CHARACTERS).collect()),
    }
}

/// The files of one job, removed when dropped.
struct JobFiles {
    id: u64,
    folder: PathBuf,
}

impl JobFiles {
    fn write(folder: &Path, job: &NpuJob) -> Result<Self, NpuError> {
        let files = Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            folder: folder.to_owned(),
        };
        for (kind, bytes) in [("xml", job.ir.as_bytes()), ("bin", &job.constants)] {
            let path = folder.join(files.name(kind));
            fs::write(&path, bytes).map_err(NpuError::io("write", path))?;
        }
        Ok(files)
    }

    fn line(&self, job: &NpuJob) -> Job {
        Job {
            id: self.id,
            ir: self.name("xml"),
            constants: self.name("bin"),
            blob: self.name("blob"),
            platform: job.platform.number(),
            properties: job
                .properties
                .iter()
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
        }
    }

    fn blob(&self) -> Result<Result<Vec<u8>, Fault>, NpuError> {
        let path = self.folder.join(self.name("blob"));
        match fs::read(&path) {
            Ok(blob) if blob.ends_with(BLOB_END) => Ok(Ok(blob)),
            Ok(blob) => {
                let text = format!("wrote {} bytes that are no blob", blob.len());
                Ok(Err(Fault::Crashed(text)))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Err(Fault::Crashed("wrote no blob".to_owned())))
            }
            Err(error) => Err(NpuError::io("read", path)(error)),
        }
    }

    fn name(&self, kind: &str) -> String {
        format!("{}.{kind}", self.id)
    }
}

impl Drop for JobFiles {
    fn drop(&mut self) {
        for kind in ["xml", "bin", "blob", "blob.part"] {
            let _ = fs::remove_file(self.folder.join(self.name(kind)));
        }
    }
}

/// Numbers of jobs and logs of this process, so that an answer to an earlier job cannot be taken for a later one's.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Pause between checks whether a process has ended after its output: a second in all. Chosen.
const END_POLL: Duration = Duration::from_millis(10);
const END_POLLS: u32 = 100;

/// Last bytes of an exported blob (`OVNPU`, after the metadata that the plugin appends).
const BLOB_END: &[u8] = b"OVNPU";

/// Longest line: a longer one is truncated and so not a valid answer. A message of OpenVINO's has a few thousand bytes.
const LINE_MAX: u64 = 1 << 20;

/// Characters of a line or error message that are shown. Chosen.
const SHOWN_CHARACTERS: usize = 200;
const LAST_LINES: usize = 6;
