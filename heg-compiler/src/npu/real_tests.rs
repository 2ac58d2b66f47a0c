//! The installed toolchain, with kernels of the llama fixture. Reported as skipped without a toolchain; with
//! `HEG_REQUIRE_NPU` set, that is a failure.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use heg_artifacts::Store;
use heg_artifacts::manifest::{Binding, ElementType, ShapeClass};
use heg_spec::{Group, NpuPlatform, WeightForm};
use rustix::process::{Pid, Signal, kill_process};

use super::{NpuError, NpuJob, NpuToolchain, Pool, Precompiled, precompile};
use crate::fixture::Described;
use crate::lower::{Literals, Lowering, WeightsFirst, lower};

pub(crate) fn toolchain(test: &str) -> Option<NpuToolchain> {
    match NpuToolchain::find() {
        Ok(toolchain) => Some(toolchain),
        Err(absent) => {
            let text = format!("skipped: {test}: {absent} ({})", absent.hint);
            assert!(std::env::var_os("HEG_REQUIRE_NPU").is_none(), "{text}");
            // Not `println!`, which the test harness would swallow.
            let _ = writeln!(std::io::stderr(), "{text}");
            None
        }
    }
}

/// Jobs for the kernels that bind weights, for each of `platforms`, at a chunk of 32.
fn jobs(platforms: &[NpuPlatform]) -> Vec<NpuJob> {
    let lowering = Lowering {
        shape: ShapeClass::Static { tokens: 32 },
        binding: Binding::Input,
        activations: ElementType::F16,
        kv_cache: None,
        takes_trees: false,
        weights: WeightForm::W8A16,
        weights_first: WeightsFirst::NONE,
    };
    let heg = Described::family("llama").heg();
    let mut pool = Literals::default();
    let bodies = heg.kernels.iter().filter(|body| body.group != Group::Mha);
    let irs: Vec<_> = bodies
        .map(|body| (&body.name, lower(body, lowering, &mut pool)))
        .collect();
    let pool = pool.into_bytes();
    let job = |platform: &NpuPlatform, name: &str, ir: &str| {
        NpuJob::from_ir(format!("{name} c=32"), ir, &pool, *platform).unwrap()
    };
    let jobs = platforms
        .iter()
        .flat_map(|platform| irs.iter().map(move |(name, ir)| job(platform, name, ir)));
    jobs.collect()
}

/// Outcomes in the order of the jobs.
pub(super) fn compile(
    toolchain: &NpuToolchain,
    pool: &Pool,
    jobs: Vec<NpuJob>,
) -> Vec<Result<Vec<u8>, NpuError>> {
    let outcomes = pool.compile(toolchain, jobs).unwrap();
    let outcomes: BTreeMap<_, _> = outcomes.map(|found| (found.job, found.outcome)).collect();
    outcomes.into_values().collect()
}

pub(super) fn pool(folder: &Path, processes: usize) -> Pool {
    Pool {
        processes,
        ..Pool::new(folder.join("scratch"))
    }
}

/// Workers whose jobs are in `folder`.
fn workers(folder: &Path) -> Vec<Pid> {
    let folder = folder.canonicalize().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_worker = |process: &Path| {
        let works_there =
            std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&folder));
        let command = std::fs::read_to_string(process.join("cmdline"));
        works_there && command.is_ok_and(|command| command.contains("heg-npu-worker"))
    };
    processes
        .filter(|process| is_worker(&process.path()))
        .filter_map(|process| Pid::from_raw(process.file_name().to_str()?.parse().ok()?))
        .collect()
}

fn wait_until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "no {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn kernels_compile_to_the_same_bytes_and_a_broken_one_says_why() {
    let Some(toolchain) = toolchain("kernels compile") else {
        return;
    };
    assert!(toolchain.identity().starts_with("2026.4.1-"));
    let folder = tempfile::tempdir().unwrap();
    let jobs = jobs(&[NpuPlatform::NPU3720, NpuPlatform::NPU4000]);
    let mut with_broken = jobs.clone();
    let broken = NpuJob {
        name: "broken".to_owned(),
        ir: jobs[0]
            .ir
            .replace("type=\"MatMul\"", "type=\"NoSuchLayer\""),
        ..jobs[0].clone()
    };
    with_broken.insert(1, broken);
    let mut first = compile(&toolchain, &pool(folder.path(), 2), with_broken);
    let error = first.remove(1).unwrap_err().to_string();
    let begin = "`broken` does not compile for NPU 3720: ";
    assert!(
        error.starts_with(begin) && error.contains("NoSuchLayer"),
        "{error}"
    );
    let first: Vec<Vec<u8>> = first.into_iter().map(Result::unwrap).collect();
    for (blob, job) in first.iter().zip(&jobs) {
        let compatibility = format!("npu={};", job.platform);
        let names_platform = blob
            .windows(compatibility.len())
            .any(|window| window == compatibility.as_bytes());
        assert!(
            blob.starts_with(b"\x7fELF") && names_platform,
            "{}",
            job.name
        );
    }
    let backwards = jobs.iter().rev().cloned().collect();
    let again = compile(&toolchain, &pool(folder.path(), 1), backwards);
    let again = again.into_iter().rev().map(Result::unwrap);
    assert!(again.eq(first), "same jobs, same bytes, in whichever order");
}

#[test]
fn a_worker_killed_from_outside_is_replaced() {
    let Some(toolchain) = toolchain("a killed worker is replaced") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(folder.path(), 1);
    let jobs = jobs(&[NpuPlatform::NPU3720]);
    let compiling = pool.compile(&toolchain, jobs.clone()).unwrap();
    let killed = wait_until("job under way", || {
        let runs = std::fs::read_dir(&pool.scratch).unwrap().flatten();
        let mut files = runs.filter_map(|run| std::fs::read_dir(run.path()).ok());
        let mut files = files.next()?.flatten();
        files.find(|file| file.path().extension().is_some_and(|kind| kind == "bin"))?;
        workers(&pool.scratch).first().copied()
    });
    kill_process(killed, Signal::KILL).unwrap();
    let mut done = 0;
    for compiled in compiling {
        assert!(compiled.outcome.is_ok(), "{:?}", compiled.outcome.err());
        done += 1;
        assert!(!workers(&pool.scratch).contains(&killed));
    }
    assert_eq!(done, jobs.len());
}

#[test]
fn a_killed_run_is_resumed() {
    let Some(toolchain) = toolchain("a killed run is resumed") else {
        return;
    };
    let jobs = jobs(&[
        NpuPlatform::NPU3720,
        NpuPlatform::NPU4000,
        NpuPlatform::NPU5010,
    ]);
    let run = |folder: &Path, progress: &dyn Fn(usize, usize)| {
        let store = Store::open(folder.join("store")).unwrap();
        let found = precompile(&toolchain, &jobs, &store, &pool(folder, 1), progress).unwrap();
        let found = found.into_iter().map(Result::unwrap);
        found.collect::<Vec<Precompiled>>()
    };
    // This test starts itself as the process to be killed.
    if let Some(folder) = std::env::var_os(VICTIM) {
        let folder = PathBuf::from(folder);
        run(&folder, &|done, _| {
            std::fs::write(folder.join("done"), done.to_string()).unwrap();
        });
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "npu::real_tests::a_killed_run_is_resumed"])
        .env(VICTIM, folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("first blob", || {
        let done = std::fs::read_to_string(folder.join("done")).ok()?;
        done.parse::<usize>().ok().filter(|done| *done > 0)
    });
    victim.kill().unwrap();
    victim.wait().unwrap();
    let scratch = folder.join("scratch");
    wait_until("end of the workers", || {
        workers(&scratch).is_empty().then_some(())
    });
    let found = run(folder, &|_, _| ());
    let recalled = found.iter().filter(|blob| blob.recalled).count();
    assert!(recalled > 0 && recalled < jobs.len(), "{recalled}");
    let left = std::fs::read_dir(&scratch).unwrap().count();
    assert_eq!(left, 1, "nothing of the killed run but the lock");
    assert!(run(folder, &|_, _| ()).iter().all(|blob| blob.recalled));
}

/// Environment variable with the folder for the process to be killed.
const VICTIM: &str = "HEG_NPU_TEST_VICTIM";
