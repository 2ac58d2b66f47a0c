//! Tests of `heg-npu-worker` built for this system, with the installed OpenVINO: everything but the compiler, which
//! wheels for Linux lack. `heg-compiler/src/npu` tests it with the compiler.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::tiny_models::core;
use heg_openvino::find_libraries;
use heg_openvino::precompile::{Answer, Job};

struct Worker {
    process: Child,
    jobs: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(libraries: &Path, folder: &Path) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_heg-npu-worker"))
            .arg(libraries)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            jobs: process.stdin.take(),
            lines: BufReader::new(process.stdout.take().unwrap()).lines(),
            process,
        }
    }

    fn answer(&mut self) -> Answer {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        lines
            .find_map(|line| Answer::parse(&line))
            .expect("an answer")
    }

    fn send(&mut self, line: impl std::fmt::Display) {
        writeln!(self.jobs.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Closes the worker's input; returns its exit status and its error output.
    fn end(mut self) -> (Option<i32>, String) {
        self.jobs = None;
        let mut said = String::new();
        let errors = self.process.stderr.as_mut().unwrap();
        errors.read_to_string(&mut said).unwrap();
        (self.process.wait().unwrap().code(), said)
    }
}

fn job(ir: &str) -> Job {
    Job {
        id: 12,
        ir: ir.to_owned(),
        constants: String::new(),
        blob: "a.blob".to_owned(),
        platform: 3720,
        properties: Vec::new(),
    }
}

#[test]
fn a_worker_says_what_it_is_and_answers_each_job() {
    let Some(core) = core() else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("broken.xml"), "no IR").unwrap();
    let mut worker = Worker::start(&find_libraries().unwrap(), folder.path());
    let ready = Answer::Ready {
        version: core.version().to_owned(),
        system: std::env::consts::OS.to_owned(),
    };
    assert_eq!(worker.answer(), ready);
    for (ir, says) in [
        ("none.xml", "cannot read `none.xml`: "),
        (
            "broken.xml",
            "`ov_core_read_model_from_memory_buffer` failed",
        ),
    ] {
        worker.send(job(ir));
        match worker.answer() {
            Answer::Failed { id: 12, message } => assert!(message.starts_with(says), "{message}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(worker.end(), (Some(0), String::new()));
    assert!(!folder.path().join("a.blob").exists());
}

#[test]
fn a_line_that_is_no_job_ends_the_worker() {
    if core().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(&find_libraries().unwrap(), folder.path());
    worker.answer();
    worker.send("compile everything");
    assert!(worker.lines.all(|line| line.unwrap().is_empty()));
    let (status, said) = worker.end();
    assert_eq!(status, Some(1));
    assert_eq!(said, "not a job: `compile everything`\n");
}

#[test]
fn a_folder_without_openvino_is_unusable() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(folder.path(), folder.path());
    match worker.answer() {
        Answer::Unusable { message } => {
            assert!(
                message.starts_with("OpenVINO `2026.4.1` not found"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(worker.end().0, Some(1));
}
