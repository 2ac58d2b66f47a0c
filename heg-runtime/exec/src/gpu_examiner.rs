//! A GPU is examined in a process of its own before this one uses it, at first sight of its driver and of a bundle.
//!
//! A driver compiles pipelines inside the process that asks for them, and reads pages of the host that it says it can read;
//! where it crashes or hangs, a server would end with it. So another process runs the bundle's programs on the device once:
//! first with weights where they lie, then with a copy of them. What was found is kept beside the verdicts, by the identity
//! of device and driver, and by the bundle. An error that may pass is not kept, and a device that failed is not used.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use heg_artifacts::{Bundle, SectionId};
use heg_files::OwnFolder;
use heg_gpu::{
    Arithmetic, CacheMemory, Fidelity, GpuDevice, GpuFindings, GpuInfo, GpuModel, GpuModelOptions,
    GpuOptions, Means, RowState, Sharing,
};
use heg_spec::Activations;
use serde::{Deserialize, Serialize};

use crate::error::{ExecError, chain};
use crate::gpu_process::{GpuProcess, NoAnswer};
use crate::gpu_report::report;
use crate::verdict_file::{self, FOLDER};

/// A program that examines GPUs for a bundle, and the folder in which its findings are kept.
#[derive(Debug, Clone)]
pub struct GpuExaminer {
    /// The program.
    pub process: GpuProcess,
    /// The bundle's file.
    pub bundle: PathBuf,
    /// The cache folder.
    pub cache: OwnFolder,
}

/// A question, as one argument of the examiner's process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Question {
    /// Whether a device runs a bundle, and how.
    Bundle(BundleQuestion),
    /// The facts of a device.
    Device {
        /// Part of the name of the device or of its driver.
        gpu: Option<String>,
    },
}

/// The question whether a device runs a bundle.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BundleQuestion {
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

/// [`CacheMemory`] in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KnownCaches {
    Imported,
    Shared,
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
    caches: KnownCaches,
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

impl GpuExaminer {
    /// Returns the findings about a device, or the reason why it is not used.
    pub(crate) fn findings(
        &self,
        info: &GpuInfo,
        options: &GpuOptions,
        activations: Activations,
        bundle: &Bundle,
    ) -> Result<GpuFindings, String> {
        let name = file_name(bundle, info);
        if let Some(known) = recall(&self.cache, &name) {
            return known.taken();
        }
        let ask = |sharing| {
            self.process.ask(&Question::Bundle(BundleQuestion {
                bundle: self.bundle.clone(),
                gpu: options.name.clone(),
                activations,
                sharing,
                cache: self.cache.path().to_owned(),
            }))
        };
        let found = ask(KnownSharing::Imported).or_else(|_| ask(KnownSharing::Copied));
        let sight = match found {
            Ok(found) => Sight::Usable(found),
            Err(NoAnswer::Fatal(reason)) => Sight::Refused(format!("{}: {reason}", info.name)),
            Err(NoAnswer::Error(reason)) => return Err(format!("{}: {reason}", info.name)),
        };
        self.remember(&name, &sight);
        sight.taken()
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
            caches: match device.cache_memory() {
                CacheMemory::Imported => KnownCaches::Imported,
                CacheMemory::Shared => KnownCaches::Shared,
                CacheMemory::Copied => KnownCaches::Copied,
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
            caches: Some(match self.caches {
                KnownCaches::Imported => CacheMemory::Imported,
                KnownCaches::Shared => CacheMemory::Shared,
                KnownCaches::Copied => CacheMemory::Copied,
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

/// The examiner's side: runs a bundle's programs on a device, in passes of few rows and of many, or probes a device, and
/// returns what to print of it, on a line of its own.
///
/// # Errors
///
/// [`ExecError::Examination`] for an argument that is no question, and what the device says.
pub fn examine(argument: &OsStr) -> Result<String, ExecError> {
    let text = argument.to_string_lossy();
    let wrong = |error: serde_json::Error| ExecError::Examination {
        message: format!("the question is `{text}`: {error}"),
    };
    let failed = |error: heg_gpu::GpuError| ExecError::Examination {
        message: chain(&error),
    };
    let said = match serde_json::from_str(&text).map_err(wrong)? {
        Question::Bundle(question) => {
            let bundle = Bundle::open(&question.bundle).map_err(ExecError::Section)?;
            serde_json::to_string(&run(&question, Arc::new(bundle)).map_err(failed)?)
        }
        Question::Device { gpu } => serde_json::to_string(&report(gpu).map_err(failed)?),
    };
    // All of it is plain, which JSON can always represent.
    Ok(said.unwrap_or_default())
}

fn run(question: &BundleQuestion, bundle: Arc<Bundle>) -> Result<Found, heg_gpu::GpuError> {
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

/// 2: with the memory of keys and values.
const REVISION: u32 = 2;

/// Most bytes of a file. Chosen: a reason has a line of a driver's.
const FILE_BYTES_MAX: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn found(sharing: KnownSharing) -> Found {
        Found {
            sharing,
            caches: KnownCaches::Shared,
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
            process: GpuProcess {
                program: PathBuf::new(),
                arguments: Vec::new(),
                patience: Duration::ZERO,
            },
            bundle: PathBuf::new(),
            cache,
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
            text.replace("\"revision\":2", "\"revision\":3"),
            text.replace("refused", "accepted"),
            text[..text.len() - 1].to_owned(),
            String::new(),
        ] {
            std::fs::write(&path, wrong).unwrap();
            assert_eq!(recall(&examiner.cache, "gpu-x"), None);
        }
    }
}
