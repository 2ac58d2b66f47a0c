//! Tests of `heg` as a process on machines of all kinds, with a model that runs: without OpenVINO, with little lockable
//! memory, and with another process that writes to the bundle.

use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use heg_files::OwnFolder;
use heg_runtime::exec::GpuVerdict;
use heg_tests::{Workbench, fixture, skipped};
use heg_vk_faults::{Installed, VkEntry, VkFault, VkPlan};

/// A folder with the tiny agent's bundle.
struct Machine {
    workbench: Workbench,
    bundle: PathBuf,
}

impl Machine {
    fn new() -> Self {
        let workbench = Workbench::new().unwrap();
        let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
        Self {
            bundle: compiled.unwrap().0,
            workbench,
        }
    }

    /// `heg` in an environment with only a cache.
    fn heg(&self, program: &Path) -> Command {
        let mut heg = Command::new(program);
        heg.env_clear()
            .env("HEG_CACHE_DIR", self.workbench.path("cache"));
        heg
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn assert_status(output: &Output, status: i32) {
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{out}{error}");
}

const IDS: &str = "[5, 6, 7]";

#[test]
fn cpu_programs_need_no_openvino() {
    let machine = Machine::new();
    // OpenVINO is searched for beside the program and in three folders above it.
    let folder = machine.workbench.path("a/b/c");
    fs::create_dir_all(&folder).unwrap();
    let alone = folder.join("heg");
    // Another process copies the file: if this one wrote it, a child that another test starts could hold a handle to it
    // for a moment, and a program that is open for writing does not start.
    let mut copy = Command::new("cp");
    let copied = copy.arg(env!("CARGO_BIN_EXE_heg")).arg(&alone).status();
    assert!(copied.unwrap().success());
    let heg = |command: &str, arguments: &[&str]| {
        let mut heg = machine.heg(&alone);
        let heg = heg.arg(command).arg(&machine.bundle);
        heg.args(arguments).output().unwrap()
    };
    for soc in ["host-cpu", "host-cpu-f32"] {
        let run = heg("run", &["--soc", soc, "--prompt-ids", IDS, "--stats"]);
        assert_status(&run, 0);
        let said = text(&run.stderr);
        assert!(said.starts_with("runs   CPU programs ("), "{said}");
        let doctor = heg("doctor", &["--soc", soc]);
        assert_status(&doctor, 0);
        let said = text(&doctor.stdout);
        let rungs = |verdict: &str| said.lines().filter(|line| line.ends_with(verdict)).count();
        let found = (
            rungs("  right"),
            rungs("  not tried: OpenVINO is not there"),
        );
        assert_eq!(found, (4, 4), "{said}");
    }
    let missing = heg(
        "run",
        &["--soc", "host-roles-openvino", "--prompt-ids", IDS],
    );
    assert_status(&missing, 4);
    let said = text(&missing.stderr);
    let doing =
        "error: OpenVINO: load the libraries, which SoC `host-roles-openvino` needs for its npu\n";
    assert!(said.starts_with(doing), "{said}");
    assert!(said.contains("hint: run `cargo xtask setup`"), "{said}");
    assert!(said.ends_with("`--soc host-cpu`\n"), "{said}");
}

/// Nobody names devices: the CPU runs, a line says so, and nothing of Vulkan is looked for before a GPU was examined.
#[test]
fn auto_is_the_cpu_until_a_gpu_was_examined() {
    let machine = Machine::new();
    let heg = |arguments: &[&str]| {
        let mut heg = machine.heg(Path::new(env!("CARGO_BIN_EXE_heg")));
        heg.args(arguments).output().unwrap()
    };
    let bundle = machine.bundle.to_str().unwrap();
    let run = |arguments: &[&str]| {
        let run = heg(&[&["run", bundle, "--prompt-ids", IDS], arguments].concat());
        assert_status(&run, 0);
        (text(&run.stdout), text(&run.stderr))
    };
    let (expected, silence) = run(&["--soc", "host-cpu"]);
    assert_eq!(silence, "");
    let unexamined =
        "note: runs on host-cpu: no GPU was examined here, which `heg doctor --gpu` does\n";
    assert_eq!(run(&[]), (expected.clone(), unexamined.to_owned()));
    assert_eq!(
        run(&["--soc", "auto"]),
        (expected.clone(), unexamined.to_owned())
    );
    let cache = OwnFolder::create(&machine.workbench.path("cache")).unwrap();
    let verdict = GpuVerdict {
        name: "a GPU that was taken out".to_owned(),
        identity: "0-0-0".to_owned(),
        is_software: false,
        differs: None,
    };
    verdict.remember(&cache).unwrap();
    let (answer, said) = run(&[]);
    assert_eq!(answer, expected);
    assert!(
        said.starts_with("note: runs on host-cpu: ") && said.lines().count() == 1,
        "{said}"
    );
    let doctor = heg(&["doctor", "--gpu", "lavapipe"]);
    if !doctor.status.success() {
        let required = std::env::var_os("HEG_REQUIRE_GPU").is_some();
        assert!(!required, "{}", text(&doctor.stderr));
        skipped("auto_is_the_cpu_until_a_gpu_was_examined: no lavapipe");
        return;
    }
    let (answer, said) = run(&[]);
    assert_eq!(answer, expected);
    assert!(
        said.starts_with("note: runs on host-cpu: `llvmpipe"),
        "{said}"
    );
    assert!(said.ends_with("` is emulated on the CPU\n"), "{said}");
    // Named, it runs, and keeps its pipelines.
    let (answer, said) = run(&["--soc", "host-gpu", "--stats"]);
    assert_eq!(answer, expected);
    let runs = ", I8, the bundle's modules, caches imported)";
    assert!(said.contains(runs), "{said}");
    let copied = "\ncopied      0.00 MB  of keys and values between host and GPU\n";
    assert!(said.contains(copied), "{said}");
    assert_eq!(
        fs::read_dir(cache.path().join("pipelines"))
            .unwrap()
            .count(),
        1
    );
}

/// A driver that crashes while it compiles ends the process that examines the GPU, and no command.
#[test]
fn a_driver_that_crashes_ends_no_command() {
    let machine = Machine::new();
    let folder = machine.workbench.path("layer");
    fs::create_dir_all(&folder).unwrap();
    let layer = Installed::new(&folder).unwrap();
    let run = |soc: &str| {
        let mut heg = machine.heg(Path::new(env!("CARGO_BIN_EXE_heg")));
        let heg = heg.arg("run").arg(&machine.bundle).args(["--soc", soc]);
        let heg = heg.args(["--prompt-ids", IDS]).envs(layer.environment());
        let run = heg.output().unwrap();
        assert_status(&run, 0);
        (text(&run.stdout), text(&run.stderr))
    };
    let (expected, _) = run("host-cpu");
    // Behind the pipelines of the probe.
    let plan = VkPlan::of(VkFault::CrashAtPipeline, 6, 1);
    layer.plan(&plan).unwrap();
    for _ in 0..2 {
        let (answer, said) = run("host-gpu");
        assert_eq!(answer, expected);
        if !layer.record().unwrap().contains(&VkEntry::Device) {
            let required = std::env::var_os("HEG_REQUIRE_GPU").is_some();
            assert!(!required, "{said}");
            skipped("a_driver_that_crashes_ends_no_command: no Vulkan device");
            return;
        }
        let reason = "its driver ended the process that examined it (signal 6)";
        assert!(said.contains(reason), "{said}");
    }
}

/// The dynamic loader says what it searches for.
#[cfg(target_os = "linux")]
#[test]
fn vulkan_is_not_searched_for_where_no_gpu_was_examined() {
    let machine = Machine::new();
    let searches = |soc: &str| {
        let mut heg = machine.heg(Path::new(env!("CARGO_BIN_EXE_heg")));
        let heg = heg.arg("run").arg(&machine.bundle).env("LD_DEBUG", "libs");
        let run = heg
            .args(["--prompt-ids", IDS, "--soc", soc])
            .output()
            .unwrap();
        assert!(run.status.success());
        String::from_utf8_lossy(&run.stderr).contains("libvulkan")
    };
    assert!(searches("host-gpu"));
    assert!(!searches("auto"));
}

/// Drafts of an answer come from an earlier run's answer, and the answer is the same.
#[test]
fn answers_are_kept_between_runs() {
    let machine = Machine::new();
    let history = machine.workbench.path("history.json");
    let heg = |bundle: &Path| {
        let mut heg = machine.heg(Path::new(env!("CARGO_BIN_EXE_heg")));
        let heg = heg.arg("run").arg(bundle).arg("--history").arg(&history);
        let heg = heg.args(["--prompt-ids", IDS, "--max-tokens", "40", "--ignore-eos"]);
        heg.args(["--json", "--soc", "host-cpu-f32"])
            .output()
            .unwrap()
    };
    let run = || -> serde_json::Value {
        let output = heg(&machine.bundle);
        assert_status(&output, 0);
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (first, second) = (run(), run());
    assert_eq!(first["token_ids"], second["token_ids"]);
    let steps = |report: &serde_json::Value| report["steps"].as_u64().unwrap();
    assert!(steps(&second) < steps(&first), "{first}\n{second}");
    let kept = fs::read_to_string(&history).unwrap();
    fs::write(
        &history,
        kept.replace("\"tokenizer\":\"", "\"tokenizer\":\"x"),
    )
    .unwrap();
    let refused = heg(&machine.bundle);
    assert_status(&refused, 2);
    let said = text(&refused.stderr);
    assert!(
        said.contains("of another tokenizer than the bundle's"),
        "{said}"
    );
}

/// A conversation with `heg chat`.
struct Chat {
    heg: Child,
    answers: BufReader<ChildStdout>,
}

impl Chat {
    fn start(machine: &Machine, arguments: &[&str]) -> Self {
        let mut heg = machine.heg(Path::new(env!("CARGO_BIN_EXE_heg")));
        let heg = heg.arg("chat").arg(&machine.bundle).args(arguments);
        let heg = heg.args(["--json", "--max-tokens", "2"]);
        let heg = heg.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut heg = heg.stderr(Stdio::piped()).spawn().unwrap();
        Self {
            answers: BufReader::new(heg.stdout.take().unwrap()),
            heg,
        }
    }

    /// Sends a message and returns the line that answers it; empty if the process has ended.
    fn ask(&mut self) -> String {
        // A process that has ended takes no message.
        let _ = writeln!(self.heg.stdin.as_mut().unwrap(), "Hello");
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line
    }

    fn end(self) -> Output {
        self.heg.wait_with_output().unwrap()
    }
}

#[test]
fn a_bundle_may_be_replaced_and_not_be_written_to() {
    let machine = Machine::new();
    // Longer than before, or of the same length with other bytes.
    for place in [SeekFrom::End(0), SeekFrom::Start(1 << 20)] {
        let mut chat = Chat::start(&machine, &[]);
        assert!(chat.ask().starts_with('{'));
        let elsewhere = machine.workbench.path("elsewhere.heg");
        fs::copy(&machine.bundle, machine.workbench.path("new.heg")).unwrap();
        fs::rename(&machine.bundle, &elsewhere).unwrap();
        fs::rename(machine.workbench.path("new.heg"), &machine.bundle).unwrap();
        assert!(chat.ask().starts_with('{'));
        let mut file = fs::File::options().write(true).open(&elsewhere).unwrap();
        file.seek(place).unwrap();
        file.write_all(b"!").unwrap();
        assert_eq!(chat.ask(), "");
        assert_changed(chat);
    }
}

fn assert_changed(chat: Chat) {
    let ended = chat.end();
    assert_status(&ended, 3);
    let said = text(&ended.stderr);
    let changed = "error: the bundle changed while it was in use\ncaused by: `";
    assert!(said.contains(changed), "{said}");
    assert!(said.contains("hint: start again"), "{said}");
}

/// Truncation between two passes is noticed before the next one; within a pass, a page is missing.
#[cfg(target_os = "linux")]
#[test]
fn a_bundle_that_is_cut_off_ends_a_run_with_a_plain_line() {
    let machine = Machine::new();
    let whole = fs::read(&machine.bundle).unwrap();
    // An answer may be over before its bundle is truncated.
    for _ in 0..20 {
        fs::write(&machine.bundle, &whole).unwrap();
        let mut heg = machine.heg(Path::new(env!("CARGO_BIN_EXE_heg")));
        let heg = heg.arg("run").arg(&machine.bundle);
        let heg = heg.args(["--prompt-ids", IDS, "--soc", "host-cpu-f32"]);
        let heg = heg.args(["--ignore-eos", "--max-tokens", "1000"]);
        let heg = heg.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut heg = heg.spawn().unwrap();
        let mut first = [0];
        heg.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        let file = fs::File::options().write(true).open(&machine.bundle);
        file.unwrap().set_len(4096).unwrap();
        let ended = heg.wait_with_output().unwrap();
        if ended.status.success() {
            continue;
        }
        assert_status(&ended, 3);
        let said = text(&ended.stderr);
        let noticed = "error: the bundle changed while it was in use\n";
        let lost = "error: a mapped file cannot be read any more: the bundle was cut off";
        assert!(
            said.starts_with(noticed) || said.starts_with(lost),
            "{said}"
        );
        return;
    }
    panic!("no answer was long enough");
}

/// Returns a shell command without the privilege to lock any memory; `None` if that cannot be given up.
#[cfg(target_os = "linux")]
fn unprivileged(script: &str) -> Option<Command> {
    const LOCK_MEMORY: u64 = 1 << 14;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let privileges = u64::from_str_radix(line.unwrap().trim(), 16).unwrap();
    if privileges & LOCK_MEMORY == 0 {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        return Some(shell);
    }
    let without = ["--bounding-set", "-ipc_lock", "sh", "-c"];
    let tried = Command::new("setpriv").args(without).arg("true").output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        heg_tests::skipped("a limit on locked memory (this user may lock all)");
        return None;
    }
    let mut shell = Command::new("setpriv");
    shell.args(without).arg(script);
    Some(shell)
}

#[cfg(target_os = "linux")]
#[test]
fn weights_are_locked_in_memory_or_the_limit_is_named() {
    let machine = Machine::new();
    let bytes = fs::metadata(&machine.bundle).unwrap().len();
    let mut chat = Chat::start(&machine, &["--lock-weights"]);
    // If the limit of this machine is lower, the rest of this test still holds.
    if !chat.ask().is_empty() {
        let status = fs::read_to_string(format!("/proc/{}/status", chat.heg.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
        let locked = line.unwrap().trim().strip_suffix(" kB").unwrap();
        assert!(locked.trim().parse::<u64>().unwrap() * 1024 >= bytes);
        assert_status(&chat.end(), 0);
    }
    let Some(mut shell) = unprivileged("ulimit -l 0; exec \"$0\" \"$@\"") else {
        return;
    };
    let heg = shell.arg(env!("CARGO_BIN_EXE_heg")).arg("run");
    let heg = heg.env("HEG_CACHE_DIR", machine.workbench.path("cache"));
    let heg = heg.arg(&machine.bundle).args(["--prompt-ids", IDS]);
    let refused = heg.arg("--lock-weights").output().unwrap();
    assert_status(&refused, 4);
    let said = text(&refused.stderr);
    let asked = format!(
        "error: cannot lock the {bytes} bytes of the bundle in memory: this process may lock 0 bytes (RLIMIT_MEMLOCK)\n"
    );
    assert!(said.starts_with(&asked), "{said}");
    assert!(
        said.contains("\nhint: raise the limit with `ulimit -l`"),
        "{said}"
    );
}
