//! `heg run` and `heg inspect` of a bundle whose products an NPU and a thread of the CPU share.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use heg_spec::WeightForm;
use heg_tests::fixture;
use heg_tests::soft_npu::{
    SoftNpu, ThreadSpeed, compile_for_pair, npu_and_thread, soft_npu_or_skip,
};

use super::server::{CLEAR, CLEAR_ANSWER};
use super::{Ran, folder, heg, heg_in};

/// The tiny agent with its cuts for an NPU and a thread.
fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let model = fixture("tiny-agent");
        let named = (model.as_path(), "tiny-pair");
        compile_for_pair(
            &folder(),
            named,
            WeightForm::W8A16,
            (4000, ThreadSpeed::Near),
        )
    })
}

/// Answers the prompt on the pair, with faults of the NPU if there are any.
fn answered(faults: &str) -> Ran {
    let world = SoftNpu::new();
    let soc = world.folder().join("npu-and-thread.ron");
    std::fs::write(&soc, npu_and_thread(4000, "I8", ThreadSpeed::Near)).unwrap();
    let (path, soc) = (bundle().to_str().unwrap(), soc.to_str().unwrap());
    let options = ["--prompt", CLEAR, "--max-tokens", "12", "--json"];
    let policy = ["--policy", "heterollm-tensor", "--stats"];
    let arguments = [&["run", path, "--soc", soc], &options[..], &policy].concat();
    let settings = [("PLATFORM", "4000"), ("FAULTS", faults)];
    let settings = &settings[..1 + usize::from(!faults.is_empty())];
    heg_in(&world, bundle(), &arguments, settings)
}

#[test]
fn an_answer_is_the_pairs_and_stats_tell_of_it() {
    if !soft_npu_or_skip("an NPU and a thread that answer together") {
        return;
    }
    let ran = answered("");
    assert_eq!(ran.json()["text"], CLEAR_ANSWER, "{}", ran.error);
    assert!(ran.log.count("run") > 40, "{}", ran.log.count("run"));
    for said in [
        "AI Boost",
        "median way there and back of",
        "as the bundle says",
    ] {
        assert!(ran.error.contains(said), "{said}: {}", ran.error);
    }
    // No product is cut by what has no piece.
    assert!(ran.error.contains("products: 0 by measured pieces"));
    assert!(
        ran.error.contains("0 by speeds of this run"),
        "{}",
        ran.error
    );
    let inspected = heg(bundle(), &["inspect", bundle().to_str().unwrap()], &[]);
    let pieces = inspected.out.lines().filter(|it| it.starts_with("piece "));
    assert!(pieces.count() > 5, "{}", inspected.out);
}

#[test]
fn an_npu_that_is_lost_is_told_with_its_reason() {
    if !soft_npu_or_skip("an NPU that is lost to a pair") {
        return;
    }
    let ran = answered("lost@3");
    assert_eq!(ran.json()["text"], CLEAR_ANSWER, "{}", ran.error);
    assert!(
        ran.error.contains("the first device was lost: "),
        "{}",
        ran.error
    );
}
