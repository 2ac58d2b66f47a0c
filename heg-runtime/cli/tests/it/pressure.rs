//! Tests of `heg` on a machine that others use too: with less memory than its weights take, and with cores that other
//! processes keep busy. It gets slower, and its answers stay the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use heg_tests::{Workbench, fetched, fixture};
use tempfile::TempDir;

/// A control group with a limit on memory, removed at the end.
struct Group {
    folder: PathBuf,
}

impl Group {
    /// Creates a group; `None` if this user may not.
    fn new(limit_bytes: u64) -> Option<Self> {
        let name = format!("heg-test-{}", std::process::id());
        let versions = [
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ];
        versions.into_iter().find_map(|(root, file)| {
            let folder = Path::new(root).join(&name);
            fs::create_dir(&folder).ok()?;
            let group = Self { folder };
            // In an ordinary folder this creates a new file; in a control group the system has the file already.
            let limit = group.folder.join(file);
            let is_group = limit.exists() && fs::write(&limit, limit_bytes.to_string()).is_ok();
            is_group.then_some(group)
        })
    }

    /// Returns a command that runs in the group, so that the pages that it reads first count for the group.
    fn command(&self, program: &str) -> Command {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.folder.join("cgroup.procs"))
            .arg(program);
        shell
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

/// A process that only keeps a core busy.
struct Neighbour(Child);

impl Neighbour {
    fn new() -> Self {
        let mut shell = Command::new("sh");
        Self(shell.args(["-c", "while :; do :; done"]).spawn().unwrap())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sets up a short run, which ends by itself.
fn run<'a>(heg: &'a mut Command, workbench: &Workbench, bundle: &Path) -> &'a mut Command {
    heg.args(["run", "--prompt-ids", "[5, 6, 7]", "--ignore-eos"])
        .args(["--max-tokens", "4"])
        .arg(bundle)
        .env("HEG_CACHE_DIR", workbench.path("cache"))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn answer(output: &Output) -> &str {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

const HEG: &str = env!("CARGO_BIN_EXE_heg");

#[test]
fn weights_above_a_memory_limit_come_and_go_and_cannot_be_locked() {
    let Some(model) = fetched::smollm2("weights above a memory limit") else {
        return;
    };
    // Less than the bundle's 142 MB.
    const LIMIT_BYTES: u64 = 112 << 20;
    let Some(group) = Group::new(LIMIT_BYTES) else {
        heg_tests::skipped(
            "weights above a memory limit: this user may make no control group with one",
        );
        return;
    };
    let workbench = Workbench::new().unwrap();
    let bundle = workbench.compile(&model, "smollm2", |_| ()).unwrap().0;
    let bytes = fs::metadata(&bundle).unwrap().len();
    assert!(bytes > LIMIT_BYTES);
    let calm = run(&mut Command::new(HEG), &workbench, &bundle)
        .output()
        .unwrap();
    // The pages of the original bundle belong to another group, and those of a file in memory never go.
    let disk = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let copy = disk.path().join("copy.heg");
    let copied = group.command("cp").args([&bundle, &copy]).status();
    assert!(copied.unwrap().success());
    let tight = run(&mut group.command(HEG), &workbench, &copy)
        .output()
        .unwrap();
    assert_eq!(answer(&tight), answer(&calm));
    let refused = run(&mut group.command(HEG), &workbench, &copy)
        .arg("--lock-weights")
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(4));
    let said = text(&refused.stderr);
    let expected = format!(
        "error: cannot lock the {bytes} bytes of the bundle in memory: this process may have {LIMIT_BYTES} bytes, by \
         the machine's memory or the limit of a control group\nhint: leave `--lock-weights` out"
    );
    assert!(said.starts_with(&expected), "{said}");
}

#[test]
fn a_neighbour_on_every_core_costs_time_and_nothing_else() {
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
    let bundle = compiled.unwrap().0;
    let calm = run(&mut Command::new(HEG), &workbench, &bundle)
        .output()
        .unwrap();
    let cores = thread::available_parallelism().unwrap().get();
    let _neighbours: Vec<Neighbour> = (0..cores).map(|_| Neighbour::new()).collect();
    let mut heg = Command::new(HEG);
    let heg = run(&mut heg, &workbench, &bundle).stdout(Stdio::piped());
    let mut heg = heg.stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while heg.try_wait().unwrap().is_none() {
        if begin.elapsed() > PATIENCE {
            heg.kill().unwrap();
            panic!("it hangs beside busy neighbours");
        }
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(answer(&heg.wait_with_output().unwrap()), answer(&calm));
}

/// Many times what a run takes on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(120);
