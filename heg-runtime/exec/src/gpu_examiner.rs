//! A GPU is examined in a process of its own before this one uses it, at first sight of its driver and of a bundle.
//!
//! A driver compiles pipelines inside the process that asks for them, and reads pages of the host that it says it can read;
//! where it crashes or hangs, a server would end with it. So another process runs the bundle's programs on the device once:
//! first with weights where they lie, then with a copy of them. What was found is kept beside the verdicts, by the identity
//! of device and driver, and by the bundle. An error that may pass is not kept, and a device that failed is not used.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use heg_artifacts::{Bundle, SectionId};
use heg_files::OwnFolder;
use heg_gpu::{
    Arithmetic, Fidelity, GpuDevice, GpuFindings, GpuInfo, GpuModel, GpuModelOptions, GpuOptions,
    Means, RowState, Sharing,
};
use heg_spec::Activations;
use serde::{Deserialize, Serialize};

use crate::child::{Said, ended_within};
use crate::error::{ExecError, chain};
use crate::platform::{Ended, ended};
use crate::verdict_file::{self, FOLDER};

/// A program that examines GPUs for a bundle, and the folder in which its findings are kept.
#[derive(Debug, Clone)]
pub struct GpuExaminer {
    /// Path of the executable.
    pub program: PathBuf,
    /// Arguments that make it call [`examine`], before those of this crate.
    pub arguments: Vec<OsString>,
    /// The bundle's file.
    pub bundle: PathBuf,
    /// The cache folder.
    pub cache: OwnFolder,
    /// The longest time of an examination.
    pub patience: Duration,
}

/// The questions of an examination, as one argument of the examiner's process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    bundle: PathBuf,
    /// Part of the name of the device or of its driver.
    gpu: Option<String>,
    activations: Activations,
    sharing: KnownSharing,
    /// The folder in which pipelines are kept.
    cache: PathBuf,
}

/// [`Sharing`] in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KnownSharing {
    Imported,
    Copied,
}

/// [`Arithmetic`] in files: what is carried out by steps of other operations, and whether bytes are multiplied by an
/// instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownArithmetic {
    fma_by_steps: bool,
    division_by_steps: bool,
    root_by_steps: bool,
    dots: bool,
}

/// [`GpuFindings`] in files, and as the examiner's process prints them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Found {
    sharing: KnownSharing,
    /// None where results have not the bits of the CPU programs.
    arithmetic: Option<KnownArithmetic>,
}

/// The outcome of an examination that a later start need not repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Sight {
    Usable(Found),
    /// Why the device is not used.
    Refused(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    revision: u32,
    sight: Sight,
}

/// The outcome of one process.
enum Answer {
    Usable(Found),
    /// The process was ended by the driver, or did not end: the driver will do so again.
    Fatal(String),
    /// An error that may pass.
    Error(String),
}

impl GpuExaminer {
    /// Returns the findings about a device, or the reason why it is not used.
    pub(crate) fn findings(
        &self,
        options: &GpuOptions,
        activations: Activations,
        bundle: &Bundle,
    ) -> Result<GpuFindings, String> {
        let info = GpuDevice::find(options).map_err(|error| chain(&error))?;
        let name = file_name(bundle, &info);
        if let Some(known) = recall(&self.cache, &name) {
            return known.taken();
        }
        let ask = |sharing| self.ask(options, activations, sharing);
        let mut answer = ask(KnownSharing::Imported);
        if !matches!(answer, Answer::Usable(_)) {
            answer = ask(KnownSharing::Copied);
        }
        let sight = match answer {
            Answer::Usable(found) => Sight::Usable(found),
            Answer::Fatal(reason) => Sight::Refused(format!("{}: {reason}", info.name)),
            Answer::Error(reason) => return Err(format!("{}: {reason}", info.name)),
        };
        self.remember(&name, &sight);
        sight.taken()
    }

    /// Has a process run the bundle on the device.
    fn ask(&self, options: &GpuOptions, activations: Activations, sharing: KnownSharing) -> Answer {
        let question = Question {
            bundle: self.bundle.clone(),
            gpu: options.name.clone(),
            activations,
            sharing,
            cache: self.cache.path().to_owned(),
        };
        let text = match serde_json::to_string(&question) {
            Ok(text) => text,
            Err(error) => return Answer::Error(error.to_string()),
        };
        let mut command = Command::new(&self.program);
        let command = command.args(&self.arguments).arg(text);
        let command = command.stdin(Stdio::null());
        let started = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        match started {
            Ok(process) => self.answer_of(process),
            Err(error) => {
                let program = self.program.display();
                Answer::Error(format!("its examiner `{program}` does not start: {error}"))
            }
        }
    }

    fn answer_of(&self, mut process: Child) -> Answer {
        let said = Said::listen(&mut process);
        let Some(status) = ended_within(&mut process, self.patience) else {
            let seconds = self.patience.as_secs();
            return Answer::Fatal(format!(
                "its driver did not end within {seconds} s in the process that examined it"
            ));
        };
        let Said { out, errors } = said;
        match ended(status) {
            Ended::Well => {
                let said = out.last().unwrap_or_default();
                match serde_json::from_str(&said) {
                    Ok(found) => Answer::Usable(found),
                    Err(error) => Answer::Error(format!(
                        "its examiner said `{said}`, expected findings: {error}"
                    )),
                }
            }
            Ended::Crashed(how) => Answer::Fatal(format!(
                "its driver ended the process that examined it ({how})"
            )),
            Ended::Otherwise(how) => Answer::Error(errors.last().unwrap_or(how)),
        }
    }

    /// Keeps an outcome. Where that fails, a later start examines the device again.
    fn remember(&self, name: &str, sight: &Sight) {
        let file = File {
            revision: REVISION,
            sight: sight.clone(),
        };
        // The file has only text, which JSON can always represent.
        let text = serde_json::to_string(&file).unwrap_or_default();
        let _ = verdict_file::write(&self.cache, name, &text);
    }
}

/// The outcome that an earlier process has kept.
fn recall(cache: &OwnFolder, name: &str) -> Option<Sight> {
    let text = verdict_file::read(cache, name, FILE_BYTES_MAX)?;
    let file: File = serde_json::from_slice(&text).ok()?;
    (file.revision == REVISION).then_some(file.sight)
}

impl Sight {
    fn taken(self) -> Result<GpuFindings, String> {
        match self {
            Self::Usable(found) => Ok(found.taken()),
            Self::Refused(reason) => Err(format!(
                "{reason}; it is not asked again before `heg doctor --clear`"
            )),
        }
    }
}

impl Found {
    fn of(device: &GpuDevice, sharing: Sharing) -> Self {
        let arithmetic = device.probe().arithmetic;
        let by_steps = |means| means == Means::Steps;
        let known = KnownArithmetic {
            fma_by_steps: by_steps(arithmetic.fma),
            division_by_steps: by_steps(arithmetic.division),
            root_by_steps: by_steps(arithmetic.root),
            dots: arithmetic.dots,
        };
        Self {
            sharing: match sharing {
                Sharing::Imported => KnownSharing::Imported,
                Sharing::Copied => KnownSharing::Copied,
            },
            arithmetic: (*device.fidelity() == Fidelity::Equal).then_some(known),
        }
    }

    fn taken(self) -> GpuFindings {
        let means = |by_steps| match by_steps {
            true => Means::Steps,
            false => Means::Instruction,
        };
        let arithmetic = self.arithmetic.map(|known| {
            Arithmetic::known(
                means(known.fma_by_steps),
                means(known.division_by_steps),
                means(known.root_by_steps),
                known.dots,
            )
        });
        GpuFindings {
            sharing: Some(match self.sharing {
                KnownSharing::Imported => Sharing::Imported,
                KnownSharing::Copied => Sharing::Copied,
            }),
            arithmetic,
        }
    }
}

/// Forgets what was found of GPUs for a bundle, and returns the number of those that were refused.
pub(crate) fn forget(cache: &OwnFolder, bundle: &Bundle) -> usize {
    let Ok(folder) = cache.folder(FOLDER) else {
        return 0;
    };
    let Ok(files) = std::fs::read_dir(folder.path()) else {
        return 0;
    };
    let prefix = prefix(bundle);
    let mut refused = 0;
    for name in files.flatten().map(|file| file.file_name()) {
        let Some(name) = name.to_str().filter(|name| name.starts_with(&prefix)) else {
            continue;
        };
        refused += usize::from(matches!(recall(cache, name), Some(Sight::Refused(_))));
        // One that stays is found again, and nothing else.
        let _ = std::fs::remove_file(folder.path().join(name));
    }
    refused
}

fn prefix(bundle: &Bundle) -> String {
    format!("gpu-{}-", bundle.manifest_id().short())
}

fn file_name(bundle: &Bundle, info: &GpuInfo) -> String {
    let identity = SectionId::of(info.identity.as_bytes());
    format!("{}{}.json", prefix(bundle), identity.short())
}

/// The examiner's side: runs a bundle's programs on a device, in passes of few rows and of many, and returns what to print of
/// the device, on a line of its own.
///
/// # Errors
///
/// [`ExecError::Examination`] for an argument that is no question, and what the device says.
pub fn examine(argument: &OsStr) -> Result<String, ExecError> {
    let text = argument.to_string_lossy();
    let wrong = |error: serde_json::Error| ExecError::Examination {
        message: format!("the question is `{text}`: {error}"),
    };
    let question: Question = serde_json::from_str(&text).map_err(wrong)?;
    let failed = |error: heg_gpu::GpuError| ExecError::Examination {
        message: chain(&error),
    };
    let bundle = Bundle::open(&question.bundle).map_err(ExecError::Section)?;
    let found = run(&question, Arc::new(bundle)).map_err(failed)?;
    // All of it is plain, which JSON can always represent.
    Ok(serde_json::to_string(&found).unwrap_or_default())
}

fn run(question: &Question, bundle: Arc<Bundle>) -> Result<Found, heg_gpu::GpuError> {
    let mut options = GpuOptions::from_environment();
    options.name = question.gpu.clone().or(options.name);
    options.known.sharing = match question.sharing {
        KnownSharing::Imported => None,
        KnownSharing::Copied => Some(Sharing::Copied),
    };
    let device = Arc::new(GpuDevice::open(&options)?);
    if let Ok(cache) = OwnFolder::create(&question.cache) {
        device.keep_pipelines(&cache)?;
    }
    if *device.fidelity() != Fidelity::Equal {
        // It runs nothing in any process.
        return Ok(Found::of(&device, device.sharing()));
    }
    let passes: &[u32] = match device.info().kind {
        "software" => &PASSES[..2],
        _ => &PASSES,
    };
    let rows = passes.iter().copied().max().unwrap_or(1);
    let model_options = GpuModelOptions {
        activations: question.activations,
        rows,
        cache_rows: rows,
    };
    let mut model = GpuModel::new(Arc::clone(&device), bundle, model_options)?;
    for count in passes {
        let row = |position| RowState {
            position,
            cache_row: position,
            ..RowState::default()
        };
        let states: Vec<_> = (0..*count).map(row).collect();
        model.run(&states, &[count - 1])?;
    }
    Ok(Found::of(&device, model.sharing()))
}

/// Rows of passes: a decode step, some rows, and on devices of hardware a chunk, whose products go by tiles.
const PASSES: [u32; 3] = [1, 4, 40];

const REVISION: u32 = 1;

/// Most bytes of a file. Chosen: a reason has a line of a driver's.
const FILE_BYTES_MAX: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sharing: KnownSharing) -> Found {
        Found {
            sharing,
            arithmetic: Some(KnownArithmetic {
                fma_by_steps: true,
                division_by_steps: false,
                root_by_steps: false,
                dots: true,
            }),
        }
    }

    #[test]
    fn an_outcome_is_read_as_it_was_written_and_no_other_is_believed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = OwnFolder::create(folder.path()).unwrap();
        let examiner = GpuExaminer {
            program: PathBuf::new(),
            arguments: Vec::new(),
            bundle: PathBuf::new(),
            cache,
            patience: Duration::ZERO,
        };
        for sight in [
            Sight::Usable(found(KnownSharing::Imported)),
            Sight::Usable(Found {
                arithmetic: None,
                ..found(KnownSharing::Copied)
            }),
            Sight::Refused("it crashed".to_owned()),
        ] {
            examiner.remember("gpu-x", &sight);
            assert_eq!(recall(&examiner.cache, "gpu-x"), Some(sight));
        }
        let path = folder.path().join(FOLDER).join("gpu-x");
        let text = std::fs::read_to_string(&path).unwrap();
        for wrong in [
            text.replace("\"revision\":1", "\"revision\":2"),
            text.replace("refused", "accepted"),
            text[..text.len() - 1].to_owned(),
            String::new(),
        ] {
            std::fs::write(&path, wrong).unwrap();
            assert_eq!(recall(&examiner.cache, "gpu-x"), None);
        }
    }

    /// A process that runs a line of the shell instead of a driver.
    #[cfg(unix)]
    fn told(line: &str) -> Answer {
        let folder = tempfile::tempdir().unwrap();
        let examiner = GpuExaminer {
            program: PathBuf::from("/bin/sh"),
            arguments: vec!["-c".into(), line.into()],
            bundle: PathBuf::new(),
            cache: OwnFolder::create(folder.path()).unwrap(),
            patience: Duration::from_millis(500),
        };
        examiner.ask(
            &GpuOptions::default(),
            Activations::I8,
            KnownSharing::Imported,
        )
    }

    #[cfg(unix)]
    #[test]
    fn however_the_process_ends_it_is_told_as_an_answer() {
        let expected = found(KnownSharing::Imported);
        let line = serde_json::to_string(&expected).unwrap();
        let usable = told(&format!("echo noise; echo '{line}'"));
        assert!(matches!(usable, Answer::Usable(found) if found == expected));
        let text = |answer| match answer {
            Answer::Fatal(reason) => format!("fatal: {reason}"),
            Answer::Error(reason) => format!("error: {reason}"),
            Answer::Usable(found) => format!("{found:?}"),
        };
        let lines = [
            "kill -ABRT $$",
            "kill -KILL $$",
            "exec sleep 60",
            "echo no memory >&2; exit 4",
            "exit 4",
            "echo nonsense",
        ];
        let told = lines.map(|line| format!("{line}\n  {}", text(told(line))));
        insta::assert_snapshot!(told.join("\n"));
    }
}
