//! Every command that runs a bundle, on every SoC with an NPU.

use std::path::Path;

use heg_spec::WeightForm;
use heg_tests::soft_npu::{NPU_SOCS, NpuSoc, SoftNpu, compile_with_blobs, soft_npu_or_skip};
use heg_tests::{fetched, fixture};
use serde_json::Value;

use super::server::{CLEAR, CLEAR_ANSWER, Server};
use super::{Ran, answer, bundle, expected, folder, four_bit_bundle, heg};

/// Runs a command on each SoC, with its platform.
fn on_each_soc(command: &str, arguments: &[&str], mut check: impl FnMut(NpuSoc, Ran)) {
    for npu in NPU_SOCS {
        let platform = npu.platform.to_string();
        let mut all = vec![command, bundle().to_str().unwrap(), "--soc", npu.soc];
        all.extend(arguments);
        check(npu, heg(bundle(), &all, &[("PLATFORM", &platform)]));
    }
}

/// Names and verdicts of the blobs in a report of `heg doctor`.
fn blobs(report: &Value, platform: u32) -> Vec<(String, String)> {
    let source = format!("blob {platform}");
    let kernels = report["kernels"].as_array().unwrap().iter();
    let mut found: Vec<(String, String)> = kernels
        .filter(|entry| entry["source"] == source.as_str())
        .map(|entry| {
            let text = |key: &str| entry[key].as_str().unwrap().to_owned();
            (text("kernel"), text("verdict"))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

fn all_right() -> Vec<(String, String)> {
    let kernels = ["ffn", "head", "mha", "qkv"];
    kernels
        .map(|kernel| (kernel.to_owned(), "right".to_owned()))
        .to_vec()
}

#[test]
fn doctor_finds_every_blob_right() {
    if !soft_npu_or_skip("doctor over a software NPU") {
        return;
    }
    on_each_soc("doctor", &["--json"], |npu, ran| {
        let report = ran.json();
        assert_eq!(report["healthy"], true, "{npu:?}");
        assert_eq!(blobs(&report, npu.platform), all_right(), "{npu:?}");
        let entries = report["kernels"].as_array().unwrap();
        let of_npu = entries.iter().filter(|entry| entry["device"] == "NPU");
        let worst = of_npu.filter_map(|entry| entry["worst"].as_f64());
        // Ports are f16, and what is between them is f32.
        let worst = worst.fold(0.0, f64::max);
        assert!(worst < 1e-3, "{npu:?}: {worst}");
        assert_eq!(ran.log.count("FAILED") + ran.log.count("NO"), 0);
    });
}

#[test]
fn answers_are_those_of_a_cpu() {
    if !soft_npu_or_skip("answers over a software NPU") {
        return;
    }
    for prompt in ["Hello", "Will it rain in Oslo tomorrow?"] {
        let expected = expected(bundle(), prompt);
        let arguments = ["--prompt", prompt, "--max-tokens", "12", "--json"];
        on_each_soc("run", &arguments, |npu, ran| {
            assert_eq!(ran.tokens(), expected, "{npu:?}: {prompt}");
            // Nothing but what lacks a GPU goes down, for programs and for OpenVINO, and that to the NPU.
            let descents = ran.json()["descents"].as_array().unwrap().clone();
            let from: Vec<&Value> = descents.iter().map(|it| &it["from"]["device"]).collect();
            assert_eq!(from, ["GPU", "GPU"], "{}", ran.error);
            let kernels = ["qkv", "mha", "ffn", "head"];
            let of = |kernel| {
                ran.log
                    .of("run")
                    .filter(move |run| run.field("kernel") == kernel)
            };
            assert!(kernels.iter().all(|kernel| of(*kernel).count() > 6));
            assert!(ran.log.of("run").all(|run| run.number("code") == 0));
        });
    }
}

#[test]
fn weights_of_four_bits_are_right_too() {
    if !soft_npu_or_skip("four bits over a software NPU") {
        return;
    }
    let (bundle, soc) = (four_bit_bundle(), "core-ultra-7-258v");
    let settings = [("PLATFORM", "4000")];
    let doctor = ["doctor", bundle.to_str().unwrap(), "--soc", soc, "--json"];
    let report = heg(bundle, &doctor, &settings).json();
    assert_eq!(blobs(&report, 4000), all_right());
    let prompt = "Remind me to call Ana at 5 pm.";
    let ran = heg(bundle, &answer(bundle, soc, prompt), &settings);
    assert_eq!(ran.tokens(), expected(bundle, prompt));
}

/// A trained model: its known answers, and the tokens of a CPU for the prompts of its reference.
#[test]
fn smollm2_answers_as_a_cpu() {
    let test = "SmolLM2 over a software NPU";
    if !soft_npu_or_skip(test) {
        return;
    }
    let Some(model) = fetched::smollm2(test) else {
        return;
    };
    let named = (model.as_path(), "smollm2");
    let bundle = compile_with_blobs(&folder(), named, WeightForm::W8A16, &[4000]);
    let path = bundle.to_str().unwrap();
    let (soc, settings) = ("core-ultra-7-258v", [("PLATFORM", "4000")]);
    let report = heg(
        &bundle,
        &["doctor", path, "--soc", soc, "--json"],
        &settings,
    )
    .json();
    assert_eq!(blobs(&report, 4000), all_right());
    let cases = std::fs::read_to_string(fixture("smollm2/greedy.json")).unwrap();
    let cases: Value = serde_json::from_str(&cases).unwrap();
    for case in 0..2 {
        let ids = cases["cases"][case]["input_ids"].to_string();
        let run = |soc| {
            let arguments = ["run", path, "--soc", soc, "--prompt-ids", &ids, "--json"];
            let arguments = [&arguments[..], &["--ignore-eos", "--max-tokens", "6"]].concat();
            heg(&bundle, &arguments, &settings).tokens()
        };
        assert_eq!(run(soc), run("host-cpu-f32"), "case {case}");
    }
}

#[test]
fn scores_are_close_to_those_of_a_cpu() {
    if !soft_npu_or_skip("scores over a software NPU") {
        return;
    }
    let world = SoftNpu::new();
    let text = world.folder().join("text");
    std::fs::write(&text, "Will it rain in Oslo? Remind me to call Ana.").unwrap();
    let text = text.to_str().unwrap();
    let arguments = ["--text", text, "--rows", "both", "--json"];
    let on_cpu = ["score", bundle().to_str().unwrap(), "--soc", "host-cpu-f32"];
    let expected = heg(bundle(), &[&on_cpu[..], &arguments].concat(), &[]).json();
    on_each_soc("score", &arguments, |npu, ran| {
        let found = ran.json();
        for rows in [&[][..], &["decode"]] {
            let nll = |report: &Value| {
                let at = rows.iter().fold(report, |at, key| &at[*key]);
                at["nll"].as_f64().unwrap()
            };
            let (found, expected) = (nll(&found), nll(&expected));
            let off = (found - expected).abs() / expected;
            assert!(off < 1e-3, "{npu:?}: {found}, expected {expected}");
        }
    });
}

#[test]
fn rates_are_measured() {
    if !soft_npu_or_skip("rates over a software NPU") {
        return;
    }
    let arguments = ["--prefill", "32", "--decode", "2", "--batch", "2", "--json"];
    on_each_soc("bench", &arguments, |npu, ran| {
        let report = ran.json();
        for rate in [
            &report["prefill_tokens_per_s"]["32"],
            &report["decode_tokens_per_s"],
            &report["batch_decode_tokens_per_s"],
        ] {
            assert!(rate.as_f64().unwrap() > 0.0, "{npu:?}: {report}");
        }
    });
}

#[test]
fn kernels_are_profiled_in_the_time_that_they_take() {
    if !soft_npu_or_skip("a profile over a software NPU") {
        return;
    }
    // Chosen: more than their computing, and so what is measured.
    let times = ("TIMES", "ffn=4000,qkv=2000,*=1000");
    let world = SoftNpu::new();
    let profile = world.folder().join("profile.ron");
    let (bundle, soc) = (bundle(), "core-ultra-7-258v");
    let arguments = [
        "profile",
        bundle.to_str().unwrap(),
        "--soc",
        soc,
        "--budget",
        "1",
        "--chunk",
        "32",
        "--context",
        "64",
        "--output",
        profile.to_str().unwrap(),
    ];
    let ran = super::heg_in(&world, bundle, &arguments, &[("PLATFORM", "4000"), times]);
    ran.assert_well();
    let runs = |kernel: &'static str| {
        let runs = ran
            .log
            .of("run")
            .filter(move |run| run.field("kernel") == kernel);
        runs.map(|run| run.number("us")).min().unwrap()
    };
    assert!(runs("ffn") >= 4000 && runs("qkv") >= 2000 && runs("mha") >= 1000);
    let written = std::fs::read_to_string(profile).unwrap();
    assert!(written.contains("Npu"), "{written}");
}

/// The answer that a server's lanes give does not depend on which of them has time for a part of the prompt: it is that of
/// programs in f32, of programs that round activations to 8 bits, and of OpenVINO's plugin, which does so in its way.
#[test]
fn a_clear_question_has_one_answer_on_all_devices() {
    if !soft_npu_or_skip("a clear question") {
        return;
    }
    for soc in ["host-cpu-f32", "host-cpu", "host-cpu-openvino"] {
        let world = SoftNpu::new();
        let server = Server::start(&world, soc, &[], &[]);
        assert_eq!(server.ask(CLEAR, 12, "reactive"), CLEAR_ANSWER, "{soc}");
        server.end();
    }
}

/// A server answers, its work is on the device, and it ends with nothing left.
#[test]
fn a_server_answers_and_ends() {
    if !soft_npu_or_skip("a server over a software NPU") {
        return;
    }
    for npu in NPU_SOCS {
        let world = SoftNpu::new();
        let platform = npu.platform.to_string();
        let server = Server::start(&world, npu.soc, &[], &[("PLATFORM", &platform)]);
        let text = server.ask(CLEAR, 12, "reactive");
        assert_eq!(text, CLEAR_ANSWER, "{npu:?}");
        server.end();
        let log = world.log();
        assert!(log.count("run") > 0, "{npu:?}");
        assert_eq!(log.left(), Some([0; 6]), "{npu:?}");
    }
}

/// The bundle that the device computes with has only to have the blobs: nothing of its weights is used.
#[test]
fn a_bundle_of_nothing_gives_wrong_answers() {
    if !soft_npu_or_skip("a software NPU without its bundle") {
        return;
    }
    let doctor = |known: &Path| {
        let (bundle, soc) = (bundle().to_str().unwrap(), "core-ultra-7-258v");
        let arguments = ["doctor", bundle, "--soc", soc, "--json"];
        heg(known, &arguments, &[("PLATFORM", "4000")])
    };
    let ran = doctor(Path::new(""));
    assert_eq!(ran.status, Some(3), "{}", ran.error);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let found = blobs(&report, 4000);
    assert!(
        found.iter().all(|(_, verdict)| verdict == "WRONG"),
        "{found:?}"
    );
    assert_eq!(ran.log.count("NO"), 4);
}
