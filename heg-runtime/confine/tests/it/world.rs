//! A worker for a test, and functions to watch its processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heg_confine::{TextWorker, WorkerAssets, WorkerProgram};
use heg_text::Tokenizer;

pub(crate) const EOS: u32 = 2041;

fn fixture(name: &str) -> Vec<u8> {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/tiny-agent"
    );
    fs::read(Path::new(folder).join(name)).unwrap()
}

pub(crate) fn assets() -> WorkerAssets {
    let special = [
        ("bos_token", "<|begin_of_text|>"),
        ("eos_token", "<|eot_id|>"),
    ];
    let special = special.map(|(name, text)| (name.to_owned(), text.to_owned()));
    WorkerAssets {
        tokenizer: Some(fixture("tokenizer.json")),
        template: Some(String::from_utf8(fixture("chat_template.jinja")).unwrap()),
        special_tokens: BTreeMap::from(special),
        eos_ids: vec![EOS],
    }
}

/// Starts a worker with tiny-agent's text side, changed by `change`.
pub(crate) fn worker(change: impl FnOnce(&mut WorkerAssets)) -> TextWorker {
    let program = WorkerProgram {
        path: env!("CARGO_BIN_EXE_confine_worker").into(),
        arguments: Vec::new(),
    };
    let mut assets = assets();
    change(&mut assets);
    TextWorker::start(program, move || Ok(assets.clone()))
}

pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_json(&fixture("tokenizer.json")).unwrap())
}

/// Returns the ids of all processes below the worker's, without zombies.
pub(crate) fn processes(worker: &TextWorker) -> Vec<u32> {
    let Some(first) = worker.process_id() else {
        return Vec::new();
    };
    let mut all = vec![first];
    let mut at = 0;
    while let Some(parent) = all.get(at).copied() {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let children = children.unwrap_or_default();
        let children = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        all.extend(children.filter(|pid| is_alive(*pid)));
        at += 1;
    }
    all.split_off(1)
}

pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// Waits until a condition holds that another process brings about; returns the time that it took.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !is_so() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "waited for: {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    begin.elapsed()
}
