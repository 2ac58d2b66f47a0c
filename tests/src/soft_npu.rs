//! Worlds with a software NPU: OpenVINO's libraries beside the loader of `tests/soft-npu`, for one process each, and
//! the log of what that process asked of the device.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use heg_compiler::npu::NpuToolchain;
use heg_compiler::{CompileOptions, NpuBlobs, Places, Silent, Target, compile};
use heg_spec::{ModelSpec, NpuPlatform, Soc, Source, WeightForm};
use tempfile::TempDir;

use crate::{openvino_or_skip, skipped};

/// An NPU and the SoC that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NpuSoc {
    /// Name of a shipped SoC.
    pub soc: &'static str,
    /// Platform of its NPU.
    pub platform: u32,
}

/// The shipped SoCs with NPUs.
pub const NPU_SOCS: [NpuSoc; 3] = [
    NpuSoc {
        soc: "core-ultra-5-125h",
        platform: 3720,
    },
    NpuSoc {
        soc: "core-ultra-7-258v",
        platform: 4000,
    },
    NpuSoc {
        soc: "core-ultra-x7-358h",
        platform: 5010,
    },
];

/// Returns whether tests with a software NPU can run: they need OpenVINO, and the NPU's compiler for their blobs. If
/// not, reports it once per test; with `HEG_REQUIRE_NPU` set, a missing compiler is a failure.
pub fn soft_npu_or_skip(test: &str) -> bool {
    if !openvino_or_skip(test) {
        return false;
    }
    match NpuToolchain::find() {
        Ok(_) => true,
        Err(absent) => {
            let text = format!("{test}: {absent} ({})", absent.hint);
            assert!(std::env::var_os("HEG_REQUIRE_NPU").is_none(), "{text}");
            skipped(&text);
            false
        }
    }
}

/// The software NPU's library, which cargo builds beside the test's program.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.with_file_name("libze_loader.so");
    assert!(
        library.is_file(),
        "`{}` is not there: cargo builds it with the tests",
        library.display()
    );
    library
}

/// Compiles a model to `NAME.heg` with a blob for each of its NPU forms: one chunk, and one bucket of attention. The
/// store stays in `folder`, so that a second run of the tests finds the blobs there.
pub fn compile_with_blobs(
    folder: &Path,
    (model, name): (&Path, &str),
    weights: WeightForm,
    platforms: &[u32],
) -> PathBuf {
    compile_for(folder, (model, name), weights, platforms, Vec::new())
}

/// The same for the NPU and the thread of [`npu_and_thread`], with the cuts of their products and the NPU's pieces.
pub fn compile_for_pair(
    folder: &Path,
    named: (&Path, &str),
    weights: WeightForm,
    (platform, thread): (u32, ThreadSpeed),
) -> PathBuf {
    let pair = npu_and_thread(platform, "F32", thread);
    let file = "npu-and-thread.ron";
    let soc = Soc::parse(Source { file, text: &pair }).unwrap();
    compile_for(folder, named, weights, &[platform], vec![soc])
}

/// The speed of a thread beside an NPU, which decides the cuts of their products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadSpeed {
    /// As fast as the NPU for products of a small model over some tokens: these are cut by rows.
    Near,
    /// So slow that the NPU has whole products.
    Slow,
}

/// A SoC file of an NPU and a thread that have nothing to wait for.
pub fn npu_and_thread(platform: u32, activations: &str, thread: ThreadSpeed) -> String {
    let flops_per_sec = match thread {
        ThreadSpeed::Near => "1e11",
        ThreadSpeed::Slow => "1e10",
    };
    let programs = format!("programs: (activations: {activations}, threads: Some(1))");
    let source = "source: \"a test\"";
    let hand_over = "(prefill_us: 0, decode_us: 0, copy_us: 0)";
    format!(
        "(name: \"npu-and-thread\", dram: (bytes_per_sec: 1e12, {source}), devices: [\
         (class: Npu, {programs}, openvino: \"NPU\", \
         npu: (platform: {platform}, frequency_mhz: 1000, {source}), \
         peaks: (flops_per_sec: 1e12, {source})), \
         (class: Igpu, {programs}, openvino: \"CPU\", peaks: (flops_per_sec: {flops_per_sec}, {source}))], \
         pair: (first: 0, second: 1, bytes_per_sec: 1e12, row_step: 32, static_tokens: [32], \
         fast: {hand_over}, plain: {hand_over}, {source}))"
    )
}

fn compile_for(
    folder: &Path,
    (model, name): (&Path, &str),
    weights: WeightForm,
    platforms: &[u32],
    partitions: Vec<Soc>,
) -> PathBuf {
    let mut target = Target::read(model).unwrap();
    target.spec = ModelSpec {
        weights,
        chunk_tokens: vec![CHUNK_TOKENS],
        mha_context_tokens: vec![BUCKET_TOKENS],
        npu_platforms: platforms.iter().copied().map(NpuPlatform::new).collect(),
        ..target.spec
    };
    let places = Places {
        bundle: folder.join(format!("{name}.heg")),
        store: folder.join("store"),
    };
    let options = CompileOptions {
        npu_blobs: NpuBlobs::Required,
        partitions,
        ..CompileOptions::default()
    };
    compile(&target, &places, &options, &Silent).unwrap();
    places.bundle
}

/// The chunk of bundles with blobs: one form of each kernel, as the NPU's compiler takes a second for each.
const CHUNK_TOKENS: u32 = 32;

/// The bucket of their attention: the tiny agent's longest context, so that each of its calls has a form.
pub const BUCKET_TOKENS: u32 = 1024;

/// A folder with OpenVINO's libraries, the software NPU, a cache and a log, for one process. Without a GPU, unless one is
/// put beside it.
pub struct SoftNpu {
    folder: TempDir,
    /// Name of the GPU beside it.
    gpu: Option<&'static str>,
}

impl SoftNpu {
    /// Lays the libraries out. They are links: OpenVINO finds its plugins beside itself, and the NPU's plugin its
    /// loader.
    pub fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let libraries = folder.path().join("openvino");
        std::fs::create_dir(&libraries).unwrap();
        for entry in std::fs::read_dir(heg_openvino::find_libraries().unwrap()).unwrap() {
            let path = entry.unwrap().path();
            symlink(&path, libraries.join(path.file_name().unwrap())).unwrap();
        }
        symlink(library(), libraries.join("libze_loader.so.1")).unwrap();
        Self { folder, gpu: None }
    }

    /// Puts a GPU beside the NPU, which SoCs then use even if it is one in software.
    #[must_use]
    pub fn beside_gpu(self, name: &'static str) -> Self {
        Self {
            gpu: Some(name),
            ..self
        }
    }

    /// Gives a command this world, for bundles with blobs; `settings` are named without `SOFT_NPU_`.
    pub fn enter(&self, command: &mut Command, bundle: &Path, settings: &[(&str, &str)]) {
        command
            .env("OPENVINO_DIR", self.folder.path().join("openvino"))
            .env("SOFT_NPU_BUNDLES", bundle)
            .env("SOFT_NPU_LOG", self.inside().log_file())
            .env("SOFT_NPU_PLAN", self.inside().plan_file());
        match self.gpu {
            Some(name) => command.env("HEG_VK_DRIVER", name),
            None => command.env_remove("HEG_VK_DRIVER"),
        };
        for (name, value) in settings {
            command.env(format!("SOFT_NPU_{name}"), value);
        }
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The calls that the device has had so far.
    pub fn log(&self) -> DeviceLog {
        self.inside().log()
    }

    fn inside(&self) -> InSoftNpu {
        InSoftNpu::new(self.folder.path())
    }
}

/// The same world, as a process in it that lives through many plans sees it.
pub struct InSoftNpu {
    folder: PathBuf,
}

impl InSoftNpu {
    /// The world of a folder.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    /// Plans faults, in the words of `SOFT_NPU_FAULTS`, in place of all that there were.
    pub fn plan(&self, faults: &str) {
        let whole = self.folder.join("plan-to-be");
        std::fs::write(&whole, faults).unwrap();
        std::fs::rename(whole, self.plan_file()).unwrap();
    }

    /// The calls that the device has had since they were forgotten last.
    pub fn log(&self) -> DeviceLog {
        DeviceLog::parse(&std::fs::read_to_string(self.log_file()).unwrap_or_default())
    }

    /// Forgets the calls so far.
    pub fn forget(&self) {
        // The device writes at the end of the file, wherever that is.
        let file = std::fs::File::options().write(true).open(self.log_file());
        if let Ok(file) = file {
            file.set_len(0).unwrap();
        }
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn plan_file(&self) -> PathBuf {
        self.folder.join("plan")
    }
}

impl Default for SoftNpu {
    fn default() -> Self {
        Self::new()
    }
}

/// Calls that the software NPU wrote down, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceLog(Vec<DeviceCall>);

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCall {
    /// Time since the first call.
    pub at_us: u64,
    /// The first word, which says what it is.
    pub word: String,
    /// The rest.
    pub text: String,
}

impl DeviceLog {
    fn parse(text: &str) -> Self {
        let call = |line: &str| {
            let (at_us, rest) = line.split_once(' ')?;
            let (word, text) = rest.split_once(' ').unwrap_or((rest, ""));
            Some(DeviceCall {
                at_us: at_us.parse().ok()?,
                word: word.to_owned(),
                text: text.to_owned(),
            })
        };
        let calls = text.lines().map(|line| call(line).unwrap());
        Self(calls.collect())
    }

    /// The calls with this word.
    pub fn of<'l>(&'l self, word: &'l str) -> impl Iterator<Item = &'l DeviceCall> {
        self.0.iter().filter(move |call| call.word == word)
    }

    /// Number of calls with this word.
    pub fn count(&self, word: &str) -> usize {
        self.of(word).count()
    }

    /// Numbers of what callers held when the context was destroyed: buffers, imports, graphs, queues, lists and
    /// fences. `None` if it never was.
    pub fn left(&self) -> Option<[u64; 6]> {
        let last = self.of("context-destroy").last()?;
        let kinds = ["own", "imported", "graphs", "queues", "lists", "fences"];
        Some(kinds.map(|kind| last.number(kind)))
    }
}

impl DeviceCall {
    /// A field; empty if it is not there.
    pub fn field(&self, key: &str) -> &str {
        let mut fields = self.text.split(' ');
        let found = fields.find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or("")
    }

    /// A field that is a number, decimal or hexadecimal.
    pub fn number(&self, key: &str) -> u64 {
        let field = self.field(key);
        let number = match field.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => field.parse(),
        };
        number.unwrap_or_else(|_| panic!("`{key}` of `{} {}`", self.word, self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_by_words_and_fields() {
        let log = DeviceLog::parse(
            "3 run kernel=ffn us=20 code=0x0\n9 run kernel=mha us=7 code=0x70000001\n\
             12 context-destroy own=1 imported=2 graphs=3 queues=4 lists=5 fences=6 own_peak=7\n",
        );
        assert_eq!(log.count("run"), 2);
        let last = log.of("run").last().unwrap();
        assert_eq!((last.at_us, last.field("kernel")), (9, "mha"));
        assert_eq!(last.number("code"), 0x7000_0001);
        assert_eq!(log.left(), Some([1, 2, 3, 4, 5, 6]));
        assert_eq!(DeviceLog::parse("").left(), None);
    }
}
