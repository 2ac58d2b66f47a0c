//! The pool with a shell script as its worker: it behaves as each job's IR says, since a compiler cannot be made to
//! crash or hang at will. `real_tests` has the real compiler.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use heg_artifacts::Store;
use heg_spec::NpuPlatform;

use super::launch::{Launch, Services};
use super::pool::{Compiling, Pool};
use super::toolchain::{NpuToolchain, Provider};
use super::{NpuError, NpuJob, precompile};

/// No process outlives `$dir`: everything that a test checks is written there.
const SCRIPT: &str = r#"
mark="heg-npu"; tab="$(printf '\t')"; count=0
echo start >> "$dir/starts"
if [ -e "$dir/never-ready" ]; then echo "no library" >&2; exit 3; fi
if [ -e "$dir/slow" ]; then sleep 1; echo ready > "$dir/ready"; fi
while [ -e "$dir/wedged" ]; do sleep 0.1; done
printf '%s\tready\t1\t%s\tlinux\n' $mark "$version"
while IFS="$tab" read -r word id ir constants blob platform rest; do
  text="$(cat "$ir")"; count=$((count + 1))
  echo "$text" >> "$dir/begun"
  case "$text" in
    crash*) echo "terminate called" >&2; kill -SEGV $$;;
    once*) if [ ! -e "$dir/crashed" ]; then touch "$dir/crashed"; exit 7; fi;;
    second*) if [ $count -gt 1 ]; then exit 9; fi;;
    hang*) sleep 600 & echo $! > "$dir/child"; wait;;
    garbage*) printf '%s\tdone\tyes\n' $mark;;
    partial*) printf '%s\tdone\t%s' $mark "$id"; exit 0;;
    wrong*) printf '%s\tdone\t0\t5\n' $mark;;
    empty*) printf '%s\tdone\t%s\t5\n' $mark "$id"; continue;;
    refuse*) printf '%s\tfailed\t%s\tno such layer:\\n\\tFoo\n' $mark "$id"; continue;;
    chatty*) echo "[WARNING] something"; echo "half a line";;
  esac
  printf '%s %s%s OVNPU' "$text" "$platform" "$rest" > "$blob"
  printf '\n%s\tdone\t%s\t5\n' $mark "$id"
done
"#;

struct Bench {
    folder: tempfile::TempDir,
    pool: Pool,
}

impl Bench {
    fn new(processes: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pool = Pool {
            processes,
            timeout: Duration::from_secs(60),
            scratch: folder.path().join("scratch"),
        };
        Self { folder, pool }
    }

    fn toolchain(&self) -> NpuToolchain {
        let launch = Launch {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), SCRIPT.into()],
            environment: vec![
                ("dir", self.folder.path().into()),
                ("version", "2026.4.1".into()),
            ],
            start_timeout: Duration::from_secs(2),
            services: Some(Services {
                lock: self.folder.path().join("start.lock"),
                end: ["/bin/sh", "-c", "rm $dir/wedged"].map(Into::into).to_vec(),
            }),
        };
        NpuToolchain::launched(Provider::Wine, "2026.4.1 linux".to_owned(), launch)
    }

    fn compile(&self, texts: &[&str]) -> Compiling {
        let jobs = texts.iter().map(|text| job(text)).collect();
        self.pool.compile(&self.toolchain(), jobs).unwrap()
    }

    /// Outcomes as text, in the order of the jobs.
    fn outcomes(&self, texts: &[&str]) -> Vec<String> {
        let outcomes = self.compile(texts).map(|compiled| {
            let outcome = compiled
                .outcome
                .map(|blob| String::from_utf8(blob).unwrap());
            (compiled.job, outcome.unwrap_or_else(|e| e.to_string()))
        });
        let outcomes: BTreeMap<usize, String> = outcomes.collect();
        assert!(outcomes.keys().copied().eq(0..texts.len()));
        self.nothing_is_left();
        outcomes.into_values().collect()
    }

    fn lines(&self, file: &str) -> usize {
        self.text(file).lines().count()
    }

    fn text(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(file)).unwrap_or_default()
    }

    fn nothing_is_left(&self) {
        let left = std::fs::read_dir(&self.pool.scratch).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
    }

    /// Waits for a file written by the script.
    fn wait_for(&self, file: &str) -> String {
        let start = Instant::now();
        while self.lines(file) == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "no `{file}`");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.text(file)
    }
}

fn job(text: &str) -> NpuJob {
    NpuJob::from_ir(text, text, b"", NpuPlatform::NPU4000).unwrap()
}

/// Waits until a killed process has ended, which takes a moment.
fn assert_gone(pid: &str) {
    let file = Path::new("/proc").join(pid.trim()).join("status");
    let is_alive =
        || std::fs::read_to_string(&file).is_ok_and(|status| !status.contains("State:\tZ"));
    let start = Instant::now();
    while is_alive() {
        assert!(start.elapsed() < Duration::from_secs(10), "{pid} lives");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn one_process_serves_many_jobs() {
    let bench = Bench::new(1);
    let found = bench.outcomes(&["a", "chatty", "c"]);
    assert_eq!(found, ["a 4000 OVNPU", "chatty 4000 OVNPU", "c 4000 OVNPU"]);
    assert_eq!(bench.lines("starts"), 1);
}

#[test]
fn no_jobs_start_no_process() {
    let bench = Bench::new(2);
    assert_eq!(bench.outcomes(&[]), [""; 0]);
    assert_eq!(bench.lines("starts"), 0);
}

#[test]
fn a_refused_job_keeps_its_process() {
    let bench = Bench::new(1);
    let found = bench.outcomes(&["refuse", "b"]);
    let text = "`refuse` does not compile for NPU 4000: no such layer:\n\tFoo";
    assert_eq!(found, [text, "b 4000 OVNPU"]);
    assert_eq!(bench.lines("starts"), 1);
}

#[test]
fn what_crashes_is_tried_twice_and_harms_no_other() {
    for (text, says) in [
        (
            "crash",
            "it ended with signal: 11 (SIGSEGV) (core dumped): terminate called",
        ),
        ("garbage", "it said `heg-npu\tdone\tyes\n`"),
        ("wrong", "it said `heg-npu\tdone\t0\t5`"),
        ("empty", "wrote no blob"),
    ] {
        let bench = Bench::new(1);
        let found = bench.outcomes(&[text, "b"]);
        let begin = format!("the compiler crashed twice over `{text}` for NPU 4000: ");
        // A core is dumped if the system is configured to.
        let says = [says.to_owned(), says.replace(" (core dumped)", "")];
        assert!(
            says.iter().any(|says| found[0] == format!("{begin}{says}")),
            "{}",
            found[0]
        );
        assert_eq!(found[1], "b 4000 OVNPU");
        assert_eq!(bench.lines("starts"), 3, "{text}");
    }
}

#[test]
fn an_unfinished_line_is_no_answer() {
    let bench = Bench::new(1);
    let found = bench.outcomes(&["partial"]);
    assert!(
        found[0].contains("it said `heg-npu\tdone\t"),
        "{}",
        found[0]
    );
}

#[test]
fn a_crash_that_does_not_come_again_is_survived() {
    let bench = Bench::new(1);
    assert_eq!(bench.outcomes(&["a", "once", "c"])[1], "once 4000 OVNPU");
    assert_eq!(bench.lines("starts"), 2);
}

#[test]
fn a_process_spoilt_by_an_earlier_job_is_no_try() {
    let bench = Bench::new(1);
    // Crashes in any process that has run a job before.
    assert_eq!(bench.outcomes(&["a", "second"])[1], "second 4000 OVNPU");
    assert_eq!(bench.text("begun"), "a\nsecond\nsecond\n");
}

#[test]
fn what_hangs_is_given_up_with_its_children() {
    let mut bench = Bench::new(2);
    bench.pool.timeout = Duration::from_secs(1);
    let found = bench.outcomes(&["hang", "b", "c"]);
    assert_eq!(found[0], "`hang` for NPU 4000 was given up after 1 s");
    assert_eq!(found[1..], ["b 4000 OVNPU", "c 4000 OVNPU"]);
    assert_eq!(
        bench.text("begun").matches("hang").count(),
        1,
        "no second try"
    );
    assert_gone(&bench.text("child"));
}

#[test]
fn dropping_the_iterator_ends_everything() {
    let bench = Bench::new(2);
    let compiling = bench.compile(&["hang", "hang", "c"]);
    let child = bench.wait_for("child");
    let start = Instant::now();
    drop(compiling);
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_gone(&child);
    bench.nothing_is_left();
    assert!(!bench.text("begun").contains('c'));
}

#[test]
fn one_worker_starts_at_a_time_and_a_run_that_waits_for_its_turn_can_be_dropped() {
    let bench = Bench::new(2);
    let toolchain = bench.toolchain();
    let turn = toolchain.launch().turn_to_start(|| false).unwrap();
    assert!(turn.is_some());
    let compiling = bench.compile(&["a", "b"]);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(bench.lines("starts"), 0);
    drop(compiling);
    let compiling = bench.compile(&["a", "b"]);
    drop(turn);
    assert_eq!(compiling.count(), 2);
    assert!(bench.lines("starts") > 0);
}

#[test]
fn a_start_is_never_cut_off() {
    let bench = Bench::new(1);
    std::fs::write(bench.folder.path().join("slow"), b"").unwrap();
    let compiling = bench.compile(&["a"]);
    bench.wait_for("starts");
    drop(compiling);
    assert_eq!(bench.text("ready"), "ready\n");
    assert_eq!(bench.lines("begun"), 0);
}

#[test]
fn services_that_never_get_ready_are_started_again() {
    let bench = Bench::new(2);
    std::fs::write(bench.folder.path().join("wedged"), b"").unwrap();
    assert_eq!(
        bench.outcomes(&["a", "b"]),
        ["a 4000 OVNPU", "b 4000 OVNPU"]
    );
}

#[test]
fn workers_that_never_get_ready_make_the_toolchain_unusable() {
    let bench = Bench::new(1);
    std::fs::write(bench.folder.path().join("never-ready"), b"").unwrap();
    let found = bench.outcomes(&["a", "b"]);
    let text = "the NPU toolchain `OpenVINO for Windows under wine` does not work: \
                it ended with exit status: 3: no library";
    assert_eq!(found, [text; 2]);
    assert_eq!(bench.lines("starts"), 2, "no try for the second job");
}

#[test]
fn another_compiler_than_was_set_up_is_refused() {
    let bench = Bench::new(1);
    let mut toolchain = bench.toolchain();
    toolchain = NpuToolchain::launched(
        toolchain.provider().clone(),
        "2026.4.1 windows".to_owned(),
        toolchain.launch().clone(),
    );
    let mut compiling = bench.pool.compile(&toolchain, vec![job("a")]).unwrap();
    let error = compiling.next().unwrap().outcome.unwrap_err().to_string();
    let text = "it is `2026.4.1 linux`, but `2026.4.1 windows` was set up";
    assert!(error.ends_with(text), "{error}");
}

#[test]
fn the_dearest_job_is_begun_first() {
    let bench = Bench::new(1);
    let jobs = [("a", 1), ("b", 3), ("c", 0), ("d", 3)];
    let jobs = jobs.map(|(text, cost)| NpuJob { cost, ..job(text) });
    let compiling = bench.pool.compile(&bench.toolchain(), jobs.to_vec());
    let order: Vec<usize> = compiling.unwrap().map(|compiled| compiled.job).collect();
    assert_eq!(order, [1, 3, 0, 2]);
}

#[test]
fn blobs_are_recalled_and_errors_are_not() {
    let bench = Bench::new(2);
    let store = Store::open(bench.folder.path().join("store")).unwrap();
    let mut jobs = ["a", "refuse", "a", "b"].map(job).to_vec();
    (jobs[2].name, jobs[3].platform) = ("the same".to_owned(), NpuPlatform::NPU3720);
    let property = ("NPU_TURBO".to_owned(), "YES".to_owned());
    jobs[3].properties = BTreeMap::from([property]);
    let run = || {
        let seen = RefCell::new(Vec::new());
        let progress = |done, total| seen.borrow_mut().push((done, total));
        let found = precompile(&bench.toolchain(), &jobs, &store, &bench.pool, &progress);
        (found.unwrap(), seen.into_inner())
    };
    let (first, seen) = run();
    assert_eq!((seen.first(), seen.last()), (Some(&(0, 4)), Some(&(4, 4))));
    assert_eq!(bench.lines("begun"), 3, "equal jobs are one");
    assert!(matches!(first[1], Err(NpuError::Refused { .. })));
    let blob = |index: usize| *first[index].as_ref().unwrap();
    assert_eq!(blob(0), blob(2));
    assert!(!blob(3).recalled);
    let bytes = store.map(blob(3).blob.id).unwrap();
    assert_eq!(&*bytes, b"b 3720NPU_TURBO=YES OVNPU");
    let (second, seen) = run();
    assert_eq!(seen, [(3, 4), (4, 4)]);
    assert_eq!(bench.lines("begun"), 4, "the error is tried again");
    let again = second[3].as_ref().unwrap();
    assert!(again.recalled && again.blob == blob(3).blob);
}

#[test]
fn what_was_done_before_a_run_was_cut_off_is_kept() {
    let bench = Bench::new(1);
    let store = Store::open(bench.folder.path().join("store")).unwrap();
    let jobs = ["a", "b", "c"].map(job);
    let run = |progress: &dyn Fn(usize, usize)| {
        precompile(&bench.toolchain(), &jobs, &store, &bench.pool, progress)
    };
    let cut = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        run(&|done, _| assert!(done < 2, "cut off"))
    }));
    assert!(cut.is_err());
    bench.nothing_is_left();
    let found = run(&|_, _| ()).unwrap();
    let recalled = found.iter().filter(|blob| blob.as_ref().unwrap().recalled);
    assert_eq!(recalled.count(), 2);
}
