//! `heg doctor --npu`: what an owner of an NPU would look at first, as text, and as a recording that machines can be
//! compared by.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use heg_artifacts::plain::escape;
use heg_runtime::exec::{BlobFit, Examined, NpuReport};
use serde::Serialize;

use crate::failure::input;

/// The lines about an NPU.
pub(super) fn text(npu: &NpuReport, examined: &[Examined]) -> String {
    let known = |value: Option<String>| value.unwrap_or_else(|| "not told".to_owned());
    let number = |value: Option<u32>| known(value.map(|value| value.to_string()));
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        text.push_str(&format!("{name:<9} {}\n", escape(&value)));
    };
    match &npu.missing {
        Some(why) => line("npu", format!("cannot be used: {why}")),
        None => line(
            "npu",
            format!(
                "{}, platform {}, tiles {}, stepping {}",
                npu.name,
                number(npu.platform),
                number(npu.tiles),
                known(npu.stepping.clone())
            ),
        ),
    }
    let compiler = npu.compiler.clone();
    line(
        "driver",
        format!(
            "{}, compiler {}, firmware {}",
            known(npu.driver.clone()),
            compiler.unwrap_or_else(|| "none".to_owned()),
            known(npu.firmware.clone())
        ),
    );
    line("files", npu.files.clone());
    line("weights", npu.weights.clone());
    line(
        "rows",
        format!(
            "{} bytes given once, {} bytes refused, which are copied",
            npu.known_bytes, npu.refused_bytes
        ),
    );
    for blobs in blob_lines(&npu.blobs) {
        line("blobs", blobs);
    }
    for times in time_lines(examined) {
        line("answers", times);
    }
    text
}

/// The number of blobs that fit, and of those that do not, by reason.
fn blob_lines(blobs: &[BlobFit]) -> Vec<String> {
    let fit = blobs.iter().filter(|blob| blob.misfit.is_none()).count();
    let mut lines = vec![format!("{fit} of {} fit", blobs.len())];
    let mut misfits: BTreeMap<&str, usize> = BTreeMap::new();
    for misfit in blobs.iter().filter_map(|blob| blob.misfit.as_deref()) {
        *misfits.entry(misfit).or_default() += 1;
    }
    lines.extend(misfits.iter().map(|(why, count)| format!("{count}: {why}")));
    lines
}

/// The longest time of each kernel and form on an NPU, over its layers.
fn time_lines(examined: &[Examined]) -> Vec<String> {
    let mut longest: Vec<(String, Duration)> = Vec::new();
    let is_answer = |one: &&Examined| one.step.device == "NPU" && one.outcome.verdict().is_some();
    for one in examined.iter().filter(is_answer) {
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        let (shape, source) = (part(&one.step.shape), part(&one.step.source));
        let name = format!("{} {shape} {source}", one.kernel);
        match longest.iter_mut().find(|(known, _)| *known == name) {
            Some((_, took)) => *took = (*took).max(one.took),
            None => longest.push((name, one.took)),
        }
    }
    let line = |(name, took): (String, Duration)| {
        let ms = took.as_secs_f64() * 1e3;
        format!("{name}: {ms:.1} ms")
    };
    longest.into_iter().map(line).collect()
}

/// Writes a recording, in place of any before.
pub(super) fn record(path: &Path, report: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(report)?;
    std::fs::write(path, text + "\n").map_err(|error| {
        let path = path.display();
        input(format!("cannot write the recording `{path}`: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_that_do_not_fit_are_counted_by_reason() {
        let blob = |misfit: Option<&str>| BlobFit {
            kernel: "qkv".to_owned(),
            shape: "32".to_owned(),
            platform: 4000,
            misfit: misfit.map(str::to_owned),
        };
        let other = Some("the blob is for NPU 3720, the device is NPU 4000");
        let lines = blob_lines(&[blob(None), blob(other), blob(other)]);
        assert_eq!(
            lines,
            [
                "1 of 3 fit",
                "2: the blob is for NPU 3720, the device is NPU 4000"
            ]
        );
    }

    #[test]
    fn the_text_says_what_is_not_told() {
        let npu = NpuReport {
            name: "Intel(R) AI Boost".to_owned(),
            missing: None,
            platform: Some(4000),
            tiles: None,
            stepping: None,
            driver: Some("1000".to_owned()),
            compiler: None,
            files: "loader not found".to_owned(),
            firmware: None,
            weights: "the bundle is lent once, 4096 bytes".to_owned(),
            known_bytes: 8192,
            refused_bytes: 0,
            blobs: Vec::new(),
        };
        insta::assert_snapshot!(text(&npu, &[]), @r"
        npu       Intel(R) AI Boost, platform 4000, tiles not told, stepping not told
        driver    1000, compiler none, firmware not told
        files     loader not found
        weights   the bundle is lent once, 4096 bytes
        rows      8192 bytes given once, 0 bytes refused, which are copied
        blobs     0 of 0 fit
        ");
    }
}
