//! The source of an NPU compiler, and the start of a worker process around it.
//!
//! There are two providers: an OpenVINO for this system whose folder has the compiler library (Intel's archives), or
//! the Windows build under wine. `cargo xtask setup --npu` puts either into one folder in cargo's target folder and
//! records there that it works; this module finds and trusts that record. A worker reports its identity before its
//! first job, so that a record that has become wrong is noticed before a compile.
//!
//! ```text
//! <target>/npu-toolchain-2026.4.1/
//!   native.ron, wine.ron        the records, each written when its provider has compiled something
//!   native/heg-npu-worker
//!   windows/*.dll, heg-npu-worker.exe
//!   prefix/                     what wine takes for drive C
//! ```

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use heg_files::{Owners, open_regular};
use heg_openvino::precompile::PROTOCOL;
use heg_openvino::{OPENVINO_VERSION, find_libraries};
use heg_spec::NpuPlatform;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::error::NpuError;
use super::job::NpuJob;
use super::launch::{Launch, Services};
use super::pool::Pool;
use super::scratch::Scratch;
use super::worker::Worker;

/// The provider of the compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provider {
    /// An OpenVINO for this system.
    Native {
        /// The folder with its libraries, the NPU compiler among them.
        libraries: PathBuf,
    },
    /// OpenVINO for Windows, under wine.
    Wine,
}

/// Reason why no toolchain was found, and how to get one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no NPU toolchain: {reason}")]
pub struct Absent {
    /// The missing part.
    pub reason: String,
    /// Advice to the user.
    pub hint: &'static str,
}

/// An NPU compiler that has been set up.
#[derive(Debug, Clone)]
pub struct NpuToolchain {
    provider: Provider,
    identity: String,
    launch: Launch,
}

/// The record that setup writes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    protocol: u32,
    identity: String,
    libraries: Option<PathBuf>,
}

impl NpuToolchain {
    /// Finds the toolchain that was set up in the target folder of this executable (its folder or one of the three
    /// above). If the OpenVINO in use has an NPU compiler, that one; else the one under wine.
    pub fn find() -> Result<Self, Absent> {
        let executable = env::current_exe().unwrap_or_default();
        let mut folders = executable.ancestors().skip(1).take(FOLDERS_SEARCHED);
        let folder = folders
            .find_map(|target| Some(Self::folder(target)).filter(|folder| folder.is_dir()))
            .ok_or_else(|| absent("it has not been set up"))?;
        check_owners(&folder, &executable)?;
        let native = Provider::native().map_err(|error| absent(in_full(&error)))?;
        match native {
            Some(native) => Self::recorded(&folder, native),
            None if on_path(WINE) => Self::recorded(&folder, Provider::Wine),
            None => Err(absent("`wine` is not installed")),
        }
    }

    /// The folder of the toolchain within a target folder.
    pub fn folder(target: &Path) -> PathBuf {
        target.join(format!("npu-toolchain-{OPENVINO_VERSION}"))
    }

    /// The toolchain of this provider, if it was set up in `folder`.
    pub fn recorded(folder: &Path, provider: Provider) -> Result<Self, Absent> {
        let record: Record = read_record(&provider.record(folder))
            .and_then(|text| ron::from_str(&text).ok())
            .ok_or_else(|| absent(format!("{provider} has not been set up")))?;
        if record.protocol != PROTOCOL || record.libraries.as_deref() != provider.libraries() {
            return Err(absent(format!(
                "{provider} is not the one that was set up last"
            )));
        }
        if !provider.worker(folder).is_file() {
            return Err(absent(format!("{provider} has lost its worker")));
        }
        Ok(Self::new(folder, provider, record.identity))
    }

    /// Starts a worker that was put into `folder`, compiles a small model with it, and records its success.
    ///
    /// Errors: [`NpuError::Unusable`] if that failed, [`NpuError::Io`].
    pub fn set_up(folder: &Path, provider: Provider) -> Result<Self, NpuError> {
        let scratch = Scratch::new(&folder.join("scratch"))?;
        let mut toolchain = Self::new(folder, provider, String::new());
        let unusable = |message: String| NpuError::Unusable {
            toolchain: toolchain.to_string(),
            message,
        };
        let turn = toolchain.launch.turn_to_start(|| false)?;
        let mut worker = Worker::spawn(&toolchain, &scratch)?;
        // The first start fills wine's prefix.
        let identity = worker
            .identify(Pool::TIMEOUT)
            .map_err(|fault| unusable(fault.to_string()))?;
        drop(turn);
        let job = NpuJob {
            name: "tiny".to_owned(),
            ir: TINY_IR.to_owned(),
            constants: Vec::new(),
            platform: NpuPlatform::NPU3720,
            properties: Default::default(),
            cost: 0,
        };
        let blob = worker.run(&job, Pool::TIMEOUT)?;
        blob.map_err(|fault| unusable(fault.to_string()))?;
        toolchain.identity = identity;
        let record = Record {
            protocol: PROTOCOL,
            identity: toolchain.identity.clone(),
            libraries: toolchain.provider.libraries().map(Path::to_owned),
        };
        let path = toolchain.provider.record(folder);
        let text = ron::to_string(&record)
            .map_err(|error| NpuError::io("describe", &path)(std::io::Error::other(error)))?;
        fs::write(&path, text).map_err(NpuError::io("write", &path))?;
        Ok(toolchain)
    }

    fn new(folder: &Path, provider: Provider, identity: String) -> Self {
        let worker = provider.worker(folder);
        let launch = match &provider {
            Provider::Native { libraries } => Launch {
                program: worker,
                arguments: vec![libraries.into()],
                environment: Vec::new(),
                start_timeout: START_TIMEOUT,
                services: None,
            },
            Provider::Wine => Launch {
                program: WINE.into(),
                arguments: vec![worker.into()],
                environment: wine_environment(folder),
                start_timeout: START_TIMEOUT,
                services: Some(Services {
                    lock: folder.join("start.lock"),
                    end: ["wineserver", "-k"].map(OsString::from).to_vec(),
                }),
            },
        };
        Self::launched(provider, identity, launch)
    }

    /// Makes a toolchain with `launch` as the worker.
    pub(super) fn launched(provider: Provider, identity: String, launch: Launch) -> Self {
        Self {
            provider,
            identity,
            launch,
        }
    }

    /// Identity of the compiler, for cache keys and provenance: OpenVINO's version with its build number, and the
    /// system that it was built for.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The provider.
    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    /// The command that starts a worker, and what its start needs.
    pub(super) fn launch(&self) -> &Launch {
        &self.launch
    }
}

impl fmt::Display for NpuToolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.provider.fmt(f)
    }
}

impl Provider {
    /// The OpenVINO in use, if it has an NPU compiler (that of Python wheels for Linux has none).
    ///
    /// Errors: [`heg_openvino::OpenvinoError::LibraryExposed`] if others could change it.
    pub fn native() -> Result<Option<Self>, heg_openvino::OpenvinoError> {
        let libraries = match find_libraries() {
            Ok(libraries) => libraries,
            Err(exposed @ heg_openvino::OpenvinoError::LibraryExposed { .. }) => {
                return Err(exposed);
            }
            Err(_) => return Ok(None),
        };
        let has_compiler = libraries.join(COMPILER_LIBRARY).is_file();
        Ok(has_compiler.then_some(Self::Native { libraries }))
    }

    /// Path of the worker in a toolchain's folder; setup puts it there.
    pub fn worker(&self, folder: &Path) -> PathBuf {
        match self {
            Self::Native { .. } => folder.join("native").join("heg-npu-worker"),
            Self::Wine => Self::windows(folder).join("heg-npu-worker.exe"),
        }
    }

    /// Path of the Windows libraries in a toolchain's folder.
    pub fn windows(folder: &Path) -> PathBuf {
        folder.join("windows")
    }

    /// Path of wine's prefix in a toolchain's folder.
    pub fn prefix(folder: &Path) -> PathBuf {
        folder.join("prefix")
    }

    fn record(&self, folder: &Path) -> PathBuf {
        folder.join(match self {
            Self::Native { .. } => "native.ron",
            Self::Wine => "wine.ron",
        })
    }

    fn libraries(&self) -> Option<&Path> {
        match self {
            Self::Native { libraries } => Some(libraries),
            Self::Wine => None,
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native { libraries } => write!(f, "OpenVINO in {}", libraries.display()),
            Self::Wine => f.write_str("OpenVINO for Windows under wine"),
        }
    }
}

/// Environment for wine: its prefix, silence, and nothing started that a compiler does not need (menus outside of the
/// prefix, a debugger, .NET, a browser).
pub fn wine_environment(folder: &Path) -> Vec<(&'static str, OsString)> {
    vec![
        ("WINEPREFIX", Provider::prefix(folder).into()),
        ("WINEDEBUG", "-all".into()),
        (
            "WINEDLLOVERRIDES",
            "winemenubuilder.exe,winedbg.exe,mscoree,mshtml=".into(),
        ),
    ]
}

/// Refuses a toolchain that users could change who cannot change this program, since its parts are executed.
fn check_owners(folder: &Path, executable: &Path) -> Result<(), Absent> {
    let check = || {
        let owners = Owners::this_user().and_owner_of(executable)?;
        owners.check_content(folder)?;
        let parts = ["native", "windows", "prefix"].map(|part| folder.join(part));
        let mut parts = parts.iter().filter(|part| part.exists());
        parts.try_for_each(|part| owners.check_content(part))
    };
    check().map_err(|error| absent(in_full(&error)))
}

/// Formats an error with its causes in one line.
fn in_full(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    let causes = causes.map(|cause| format!(": {cause}"));
    std::iter::once(error.to_string()).chain(causes).collect()
}

/// Reads a record, which is a single line; `None` for anything else.
fn read_record(path: &Path) -> Option<String> {
    let mut text = String::new();
    let mut bounded = open_regular(path).ok()?.take(RECORD_BYTES_MAX);
    bounded.read_to_string(&mut text).ok()?;
    Some(text)
}

fn absent(reason: impl Into<String>) -> Absent {
    Absent {
        reason: reason.into(),
        hint: "run: cargo xtask setup --npu",
    }
}

fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

const WINE: &str = "wine";

/// Time limit of a start, which takes a second at most; chosen for a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest record: far above one line with a path.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// The library that makes an OpenVINO a native provider.
const COMPILER_LIBRARY: &str = "libopenvino_intel_npu_compiler.so";

/// Number of folders searched: the executable's own and three above it, as for OpenVINO's libraries.
const FOLDERS_SEARCHED: usize = 4;

/// A model for `y = relu(x)`.
const TINY_IR: &str = r#"<?xml version="1.0"?>
<net name="tiny" version="11">
<layers>
<layer id="0" name="x" type="Parameter" version="opset1">
<data shape="1,16" element_type="f16"/>
<output><port id="0" precision="FP16" names="x"><dim>1</dim><dim>16</dim></port></output>
</layer>
<layer id="1" name="y" type="ReLU" version="opset1">
<input><port id="0" precision="FP16"><dim>1</dim><dim>16</dim></port></input>
<output><port id="1" precision="FP16" names="y"><dim>1</dim><dim>16</dim></port></output>
</layer>
<layer id="2" name="result" type="Result" version="opset1">
<input><port id="0" precision="FP16"><dim>1</dim><dim>16</dim></port></input>
</layer>
</layers>
<edges>
<edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
<edge from-layer="1" from-port="1" to-layer="2" to-port="0"/>
</edges>
</net>
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(folder: &Path, provider: &Provider) -> String {
        NpuToolchain::recorded(folder, provider.clone())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn only_what_was_set_up_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let native = Provider::Native {
            libraries: "lib".into(),
        };
        let text = "no NPU toolchain: OpenVINO in lib has not been set up";
        assert_eq!(reason(folder, &native), text);
        let write = |protocol: u32, libraries: &str| {
            let record = Record {
                protocol,
                identity: "2026.4.1 linux".to_owned(),
                libraries: Some(libraries.into()),
            };
            fs::write(native.record(folder), ron::to_string(&record).unwrap()).unwrap();
        };
        for (protocol, libraries) in [(PROTOCOL + 1, "lib"), (PROTOCOL, "other")] {
            write(protocol, libraries);
            let text = "no NPU toolchain: OpenVINO in lib is not the one that was set up last";
            assert_eq!(reason(folder, &native), text);
        }
        write(PROTOCOL, "lib");
        let text = "no NPU toolchain: OpenVINO in lib has lost its worker";
        assert_eq!(reason(folder, &native), text);
        let worker = native.worker(folder);
        fs::create_dir_all(worker.parent().unwrap()).unwrap();
        fs::write(&worker, b"").unwrap();
        let found = NpuToolchain::recorded(folder, native).unwrap();
        assert_eq!(found.identity(), "2026.4.1 linux");
        assert_eq!(found.launch.command().get_program(), worker.as_os_str());
        fs::write(Provider::Wine.record(folder), "no record").unwrap();
        let text = "no NPU toolchain: OpenVINO for Windows under wine has not been set up";
        assert_eq!(reason(folder, &Provider::Wine), text);
    }

    #[cfg(unix)]
    #[test]
    fn what_others_could_change_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("npu-toolchain-2026.4.1");
        let worker = Provider::Wine.worker(&folder);
        fs::create_dir_all(worker.parent().unwrap()).unwrap();
        let record = Provider::Wine.record(&folder);
        for file in [&worker, &record] {
            fs::write(file, b"").unwrap();
        }
        let executable = env::current_exe().unwrap();
        check_owners(&folder, &executable).unwrap();
        for exposed in [&folder, &record, &Provider::windows(&folder), &worker] {
            let before = fs::metadata(exposed).unwrap().permissions();
            fs::set_permissions(exposed, fs::Permissions::from_mode(0o777)).unwrap();
            let text = check_owners(&folder, &executable).unwrap_err().to_string();
            let named = format!(
                "no NPU toolchain: other users can write to `{}`",
                exposed.display()
            );
            assert!(text.starts_with(&named), "{text}");
            fs::set_permissions(exposed, before).unwrap();
        }
    }
}
