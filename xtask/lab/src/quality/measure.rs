//! Compares both sides' rows with the reference's: at the same positions, by the same measure of distance.

use super::Extent;
use super::model::Model;
use super::passages::{Scored, passages};
use super::report::{Distance, Entry, Report};
use super::rows::{RowReader, RowWriter};
use crate::bench_peers::genai;
use crate::precision::Precision;
use crate::process::text;
use crate::subject::Subject;
use anyhow::{Context, Result};
use heg_runtime::exec::{Executor, ExecutorOptions};
use heg_runtime::score::{Passage, RowKind, Tally, Teacher, rows_of};
use heg_runtime::{Loaded, read_soc};
use heg_spec::{KvForm, WeightForm};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::fetch::Consent;
use xtask::workspace::{self, note};

/// Measures a model; returns `None` if it is not on this machine.
pub(super) fn model(
    kind: Model,
    consent: Consent,
    scored: &Scored,
    (extent, precision): (Extent, Precision),
) -> Result<Option<Report>> {
    let Some(subject) = kind.subject(consent)? else {
        return Ok(None);
    };
    // GenAI's exporter does not support every model.
    let peer = match genai::prepare(&subject, None, precision) {
        Ok(peer) => Some(peer),
        Err(error) => {
            note(format!("{}: no figures of GenAI: {error:#}", kind.name()));
            None
        }
    };
    let exact = subject.bundle_as("f32", WeightForm::F32)?;
    let scratch = tempfile::tempdir().context("cannot create a folder")?;
    note(format!("{}: reference", kind.name()));
    let (passages, reference) = {
        let loaded = Loaded::open(&exact)?;
        let mut executor = executor(&loaded, REFERENCE_DEVICE)?;
        let passages = passages(kind, &subject.folder, &loaded, &mut executor, scored)?;
        let file = scratch.path().join("reference");
        write_rows(&mut executor, &passages, &file)?;
        let vocab = executor.manifest().model.vocab as usize;
        (passages, Reference { file, vocab })
    };
    let mut entries = entries(&subject, (extent, precision), &passages, &reference)?;
    let mut genai_settings = Value::Null;
    if let Some(peer) = peer {
        note(format!("{}: GenAI", kind.name()));
        let ([prefill, decode], settings) = theirs(&peer, &passages, &reference, scratch.path())?;
        genai_settings = settings;
        entries.push(Entry {
            form: precision.of_genai().to_owned(),
            device: GENAI,
            prefill,
            decode,
        });
    }
    Ok(Some(Report {
        model: subject.name.clone(),
        precision,
        passages: passages.len(),
        positions: passages.iter().map(Passage::scored).sum(),
        entries,
        genai_settings,
    }))
}

/// Measures each form of the weights on each device.
fn entries(
    subject: &Subject,
    (extent, precision): (Extent, Precision),
    passages: &[Passage],
    reference: &Reference,
) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut forms = Vec::new();
    if extent == Extent::All {
        for (name, form) in [("f32", WeightForm::F32), ("f16", WeightForm::F16)] {
            forms.push((
                name.to_owned(),
                subject.bundle_as(name, form)?,
                &DEVICES[..],
            ));
        }
    }
    // CPU programs alone take keys and values of 8 bits.
    let devices = match (extent, precision.kv) {
        (Extent::All, KvForm::Bf16) => &DEVICES[..],
        _ => &DEVICES[..1],
    };
    forms.push((precision.to_string(), subject.bundle(precision)?, devices));
    for (form, bundle, devices) in forms {
        for device in devices {
            note(format!("{}: {form} on {device}", subject.name));
            let [prefill, decode] = ours(&bundle, device, passages, reference)?;
            entries.push(Entry {
                form: form.clone(),
                device,
                prefill,
                decode,
            });
        }
    }
    Ok(entries)
}

/// The distributions for comparison.
struct Reference {
    file: PathBuf,
    vocab: usize,
}

impl Reference {
    fn rows(&self) -> Result<RowReader> {
        RowReader::open(&self.file, self.vocab)
    }
}

fn executor(loaded: &Loaded, device: &str) -> Result<Executor> {
    Ok(loaded.executor(&read_soc(device)?, ExecutorOptions::default())?)
}

/// Writes a model's prefill rows of all passages.
fn write_rows(model: &mut Executor, passages: &[Passage], file: &Path) -> Result<()> {
    let mut writer = RowWriter::create(file)?;
    for passage in passages {
        let mut teacher = Teacher::new(model, passage, RowKind::Prefill)?;
        while let Some(ready) = teacher.ready()? {
            for row in rows_of(teacher.logits(ready)?, ready) {
                writer.push(row)?;
            }
        }
    }
    writer.finish()
}

/// Scores one of our forms on a device: prefill rows, then decode rows.
fn ours(
    bundle: &Path,
    device: &str,
    passages: &[Passage],
    reference: &Reference,
) -> Result<[Distance; 2]> {
    let loaded = Loaded::open(bundle)?;
    let mut model = executor(&loaded, device)?;
    let mut measure = |rows| -> Result<Distance> {
        let mut expected = reference.rows()?;
        let mut tallies = Vec::with_capacity(passages.len());
        for passage in passages {
            let mut tally = Tally::default();
            let mut teacher = Teacher::new(&mut model, passage, rows)?;
            while let Some(ready) = teacher.ready()? {
                let targets = teacher.targets(ready);
                let logits = rows_of(teacher.logits(ready)?, ready);
                for (row, next) in logits.zip(targets) {
                    tally.add_against(row, expected.next()?, *next);
                }
            }
            tallies.push(tally);
        }
        Ok(Distance::of(&tallies))
    };
    Ok([measure(RowKind::Prefill)?, measure(RowKind::Decode)?])
}

/// Scores GenAI in the same way, and returns the settings that the plugin chose.
fn theirs(
    peer: &genai::GenAi,
    passages: &[Passage],
    reference: &Reference,
    scratch: &Path,
) -> Result<([Distance; 2], Value)> {
    let script = scratch.join("genai_logits.py");
    fs::write(&script, SCRIPT).context("cannot write a script")?;
    let lines: Vec<String> = passages
        .iter()
        .map(|passage| json!({ "tokens": passage.tokens(), "from": passage.from() }).to_string())
        .collect();
    let listed = scratch.join("passages.jsonl");
    fs::write(&listed, lines.join("\n")).context("cannot write the passages")?;
    let mut settings = Value::Null;
    let mut measure = |mode: &str| -> Result<Distance> {
        let output = scratch.join("genai");
        let mut command = Command::new(&peer.python);
        command
            .arg(&script)
            .args([mode, &text(&peer.model)])
            .arg(&listed)
            .arg(&output);
        let said = workspace::capture(&mut command, "running GenAI's model")?;
        settings = serde_json::from_str(&said).context("genai_logits.py printed no JSON")?;
        let mut found = RowReader::open(&output, reference.vocab)?;
        let mut expected = reference.rows()?;
        let mut tallies = Vec::with_capacity(passages.len());
        for passage in passages {
            let mut tally = Tally::default();
            for next in &passage.tokens()[passage.from()..] {
                tally.add_against(found.next()?, expected.next()?, *next);
            }
            tallies.push(tally);
        }
        Ok(Distance::of(&tallies))
    };
    let figures = [measure("prefill")?, measure("decode")?];
    Ok((figures, settings))
}

/// Name in the device column of GenAI's line.
pub(super) const GENAI: &str = "GenAI";

const REFERENCE_DEVICE: &str = "host-cpu-f32";

/// The first one is the default.
pub(super) const DEVICES: [&str; 3] = ["host-cpu", "host-cpu-f32", "host-roles-openvino"];

const SCRIPT: &str = include_str!("genai_logits.py");
