//! `heg embed` and `heg rerank` with models that run: in any company, a text has the line that it has alone.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use heg_spec::WeightForm;
use heg_tests::{Workbench, fixture};
use serde_json::Value;

/// A model of texts, compiled.
struct Model {
    workbench: Workbench,
    bundle: PathBuf,
}

impl Model {
    fn of(family: &str) -> Self {
        let workbench = Workbench::new().unwrap();
        let f32 = |spec: &mut heg_spec::ModelSpec| spec.weights = WeightForm::F32;
        let compiled = workbench.compile(&fixture(&format!("golden/{family}")), family, f32);
        Self {
            bundle: compiled.unwrap().0,
            workbench,
        }
    }

    /// Runs a command of `heg` with lines on its standard input; returns what it printed.
    fn heg(&self, command: &str, options: &[&str], lines: &str) -> String {
        let mut heg = Command::new(Path::new(env!("CARGO_BIN_EXE_heg")))
            .env("HEG_CACHE_DIR", self.workbench.path("cache"))
            .arg(command)
            .arg(&self.bundle)
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        heg.stdin
            .take()
            .unwrap()
            .write_all(lines.as_bytes())
            .unwrap();
        let done = heg.wait_with_output().unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout).unwrap()
    }
}

const TEXTS: [&str; 3] = ["the cat sat on the mat", "it will rain", "an example"];

#[test]
fn vectors_come_line_by_line() {
    let model = Model::of("bert");
    let together = model.heg("embed", &[], &(TEXTS.join("\n") + "\n"));
    assert_eq!(together.lines().count(), TEXTS.len());
    for (text, line) in TEXTS.iter().zip(together.lines()) {
        assert_eq!(model.heg("embed", &["--text", text], "").trim_end(), line);
    }
}

#[test]
fn the_best_document_comes_first() {
    let model = Model::of("bert_reranker");
    let rank = |options: &[&str], lines: &str| -> Vec<Value> {
        let options = [&["--query", "will it rain?", "--json"], options].concat();
        let printed = model.heg("rerank", &options, lines);
        let lines = printed.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    };
    let ranked = rank(&[], &(TEXTS.join("\n") + "\n"));
    assert_eq!(ranked.len(), TEXTS.len());
    let scores = ranked.iter().map(|line| line["score"].as_f64().unwrap());
    assert!(scores.is_sorted_by(|a, b| a > b), "{ranked:?}");
    for line in &ranked {
        let document = line["document"].as_str().unwrap();
        assert_eq!(TEXTS[line["index"].as_u64().unwrap() as usize], document);
        let alone = rank(&["--document", document], "");
        assert_eq!(alone[0]["score"], line["score"]);
    }
    let best = rank(&["--top", "1"], &(TEXTS.join("\n") + "\n"));
    assert_eq!(best, ranked[..1]);
}
