//! Drivers of other versions, machines that lack a part, and the names that the plugin looks up.

use std::collections::{BTreeMap, BTreeSet};

use heg_tests::openvino_or_skip;
use heg_tests::soft_npu::{library, soft_npu_or_skip};

use super::{answer, bundle, expected, heg};

const SOC: &str = "core-ultra-7-258v";

/// From the first version without a persistent blob on to the newest: the same answer, and blobs in place from 1.13 on.
#[test]
fn every_level_of_the_graph_extension_answers_the_same() {
    if !soft_npu_or_skip("versions of the graph extension") {
        return;
    }
    let expected = expected(bundle(), "Hello");
    for (graph, backing) in [("1.5", "Copied"), ("1.12", "Copied"), ("1.18", "Lent")] {
        let settings = [("PLATFORM", "4000"), ("GRAPH", graph)];
        let ran = heg(bundle(), &answer(bundle(), SOC, "Hello"), &settings);
        assert_eq!(ran.tokens(), expected, "{graph}");
        let found: BTreeSet<&str> = ran
            .log
            .of("graph")
            .map(|graph| graph.field("backing"))
            .collect();
        assert_eq!(found, BTreeSet::from([backing]), "{graph}");
    }
}

/// An older loader, no context, no queues, no options and no lists that can be changed: all still answer on the NPU.
#[test]
fn drivers_that_lack_a_part_answer_the_same() {
    if !soft_npu_or_skip("a driver that lacks a part") {
        return;
    }
    let expected = expected(bundle(), "Hello");
    for setting in [
        ("LOADER", "1.17"),
        ("WITHOUT", "context,queue,driver,options"),
        ("WITHOUT", "mutable"),
        ("WITHOUT", "import"),
    ] {
        let settings = [("PLATFORM", "4000"), setting];
        let ran = heg(bundle(), &answer(bundle(), SOC, "Hello"), &settings);
        assert_eq!(ran.tokens(), expected, "{setting:?}");
        assert!(ran.log.count("run") > 0, "{setting:?}");
    }
}

/// A machine without its NPU, or with one that no blob fits, answers on its CPU and says why.
#[test]
fn a_machine_that_no_blob_fits_answers_on_its_cpu() {
    if !soft_npu_or_skip("a machine that no blob fits") {
        return;
    }
    let expected = expected(bundle(), "Hello");
    for (setting, why) in [
        (("WITHOUT", "device"), "the device cannot be used"),
        (("WITHOUT", "graph"), "the device cannot be used"),
        (("TILES", "1"), "tiles, the device has 1"),
        (("DEVICE_ID", "1"), "platform"),
        (("ELF", "1.1.0"), "the driver reads 1.1.0"),
    ] {
        let settings = [("PLATFORM", "4000"), setting];
        let ran = heg(bundle(), &answer(bundle(), SOC, "Hello"), &settings);
        assert_eq!(ran.tokens(), expected, "{setting:?}");
        assert!(ran.error.contains(why), "{setting:?}: {}", ran.error);
        assert_eq!(ran.log.count("run"), 0, "{setting:?}");
    }
}

/// A setting that means nothing is said, and there is no NPU.
#[test]
fn a_setting_that_means_nothing_is_said() {
    if !soft_npu_or_skip("a setting of the software NPU that means nothing") {
        return;
    }
    let ran = heg(
        bundle(),
        &answer(bundle(), SOC, "Hello"),
        &[("PLATFORM", "9999")],
    );
    let said = "software NPU: environment variable `SOFT_NPU_PLATFORM` is `9999`, expected `3720`, \
                `4000` or `5010`";
    assert!(ran.error.contains(said), "{}", ran.error);
    assert_eq!(ran.log.count("run"), 0);
}

/// Texts of a library that are names as Level Zero's are.
fn names(bytes: &[u8]) -> Vec<&str> {
    let texts = bytes.split(|byte| *byte == 0);
    let texts = texts.filter_map(|text| std::str::from_utf8(text).ok());
    let is_name = |text: &&str| {
        let rest = text
            .strip_prefix("zel")
            .or_else(|| text.strip_prefix("ze"))
            .unwrap_or_default();
        rest.starts_with(|c: char| c.is_ascii_uppercase())
            && rest.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let mut names: Vec<&str> = texts.filter(is_name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The committed list is that of the plugin in use, and the software NPU has every name of it.
#[test]
fn names_that_the_plugin_looks_up_are_there() {
    if !openvino_or_skip("names that the NPU's plugin looks up") {
        return;
    }
    let list = include_str!("../../../../../tests/soft-npu/plugin-symbols.txt");
    let listed: BTreeMap<&str, bool> = list
        .lines()
        .map(|line| match line.strip_suffix(" optional") {
            Some(name) => (name, false),
            None => (line, true),
        })
        .collect();
    let folder = heg_openvino::find_libraries().unwrap();
    let plugin = std::fs::read(folder.join("libopenvino_intel_npu_plugin.so")).unwrap();
    let mut asked = names(&plugin);
    // For its messages only: the function is in a table.
    asked.retain(|name| *name != "zeSetWorkloadType");
    let listed_names: Vec<&str> = listed.keys().copied().collect();
    assert_eq!(asked, listed_names);
    assert_eq!(
        listed.values().filter(|is_required| **is_required).count(),
        73
    );
    let ours = std::fs::read(library()).unwrap();
    let ours = names(&ours);
    let missing = asked.iter().filter(|name| !ours.contains(name));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new());
}
