//! `heg-npu-worker [FOLDER]`: compiles OpenVINO IR to NPU blobs, with the OpenVINO in FOLDER (by default, the
//! one beside this program), on a machine that need not have an NPU.
//!
//! Reads jobs and answers them, line by line, in the protocol of `heg_openvino::precompile`. Built for Linux
//! it loads Intel's archive; built for Windows it runs under wine beside the Windows libraries. When its
//! input ends nobody waits for answers any more, and it ends at once, even amid a job, so that nothing is
//! left running when the process that started it was killed.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use heg_openvino::precompile::{Answer, Job};
use heg_openvino::{Core, HostBuffer, Memory, OpenvinoError, Tensor, TensorType};

fn main() -> ExitCode {
    let core = match libraries().and_then(|folder| Ok(Core::load_from(&folder)?)) {
        Ok(core) => core,
        Err(error) => {
            say(&Answer::Unusable {
                message: error.to_string(),
            });
            return ExitCode::FAILURE;
        }
    };
    say(&Answer::Ready {
        version: core.version().to_owned(),
        system: std::env::consts::OS.to_owned(),
    });
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            OPEN.fetch_add(1, Ordering::AcqRel);
            if sender.send(line).is_err() {
                break;
            }
        }
        // Amid a job nothing may be torn down, since the compiler is using it. Otherwise the last sender is
        // dropped now, and `main` returns.
        if OPEN.load(Ordering::Acquire) > 0 {
            std::process::abort();
        }
    });
    for line in lines {
        let Some(job) = Job::parse(line.trim_end()) else {
            eprintln!("not a job: `{line}`");
            return ExitCode::FAILURE;
        };
        let start = Instant::now();
        let answer = match compile(&core, &job) {
            Ok(()) => Answer::Done {
                id: job.id,
                took: start.elapsed(),
            },
            Err(error) => Answer::Failed {
                id: job.id,
                message: error.to_string(),
            },
        };
        // Decremented before the answer, on which the other side may close our input.
        OPEN.fetch_sub(1, Ordering::AcqRel);
        say(&answer);
    }
    ExitCode::SUCCESS
}

/// Number of jobs that were read and are not done.
static OPEN: AtomicUsize = AtomicUsize::new(0);

type Failure = Box<dyn std::error::Error>;

/// Returns the folder named on the command line, or this program's own.
fn libraries() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::args_os().nth(1) {
        return Ok(PathBuf::from(named));
    }
    let own = std::env::current_exe()?;
    Ok(own.parent().map_or_else(PathBuf::new, Path::to_path_buf))
}

fn compile(core: &Core, job: &Job) -> Result<(), Failure> {
    let ir = std::fs::read(&job.ir).map_err(cannot("read", &job.ir))?;
    let constants = match job.constants.as_str() {
        "" => None,
        file => constants(&std::fs::read(file).map_err(cannot("read", file))?)?,
    };
    let model = core.read_model(&ir, constants.as_ref())?;
    let platform = job.platform.to_string();
    let mut properties = vec![
        ("NPU_PLATFORM", platform.as_str()),
        ("NPU_COMPILER_TYPE", "PLUGIN"),
    ];
    let given = job.properties.iter();
    properties.extend(given.map(|(key, value)| (key.as_str(), value.as_str())));
    let compiled = core.compile(&model, "NPU", &properties)?;
    let unfinished = format!("{}.part", job.blob);
    compiled.export_to(Path::new(&unfinished))?;
    std::fs::rename(&unfinished, &job.blob).map_err(cannot("rename", &unfinished))?;
    Ok(())
}

fn constants(bytes: &[u8]) -> Result<Option<Tensor>, OpenvinoError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let buffer = Arc::new(HostBuffer::new(bytes.len())?);
    buffer.write(0, bytes)?;
    let memory: Arc<dyn Memory> = buffer;
    let shape = [bytes.len()];
    Tensor::new(memory, 0, TensorType::U8, &shape).map(Some)
}

fn cannot(action: &str, file: &str) -> impl FnOnce(std::io::Error) -> String {
    move |error| format!("cannot {action} `{file}`: {error}")
}

/// Prints an answer on a line of its own, whatever the libraries printed last. A closed output is no error
/// here: the end of the input tells the same.
fn say(answer: &Answer) {
    let mut output = std::io::stdout().lock();
    let _ = write!(output, "\n{answer}\n").and_then(|()| output.flush());
}
