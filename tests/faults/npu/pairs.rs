//! An NPU and a thread of the CPU share every product: the NPU by pieces that the compiler made for the cuts of this
//! machine, the thread the rest, over OpenVINO's own plugin and an NPU in software. An NPU that fails leaves what it had
//! begun, and all that follows, to the thread.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use heg_compiler::{CompileOptions, NpuBlobs, Places, Silent, Target, compile};
use heg_runtime::exec::{Executor, ExecutorOptions, PairLanes, PairedRoles};
use heg_sched::{Logits, chunks};
use heg_spec::policy::{PairLevel, Pairing, Synchronisation};
use heg_spec::{ModelSpec, NpuPlatform, Side, Soc, Source, WeightForm};
use heg_tests::roles::loader;
use heg_tests::soft_npu::{InSoftNpu, SoftNpu, soft_npu_or_skip};
use heg_tests::{executor, fixture};

use super::FOLDER;
use super::agreement::Trained;
use crate::scene::play;

/// The bundle of a scene.
const BUNDLE: &str = "HEG_TEST_NPU_BUNDLE";

const PLATFORM: u32 = 4000;

/// Prompts of a scene.
const PROMPTS: usize = 3;

/// Most that the NPU's numbers move a logit, as a share of the deviation of all: pieces have f16 at their ports. Measured:
/// 0.012.
const MOVED_MAX: f32 = 0.03;

/// An NPU and a thread that are as fast as each other for products of a small model, and have nothing to wait for.
fn machine(activations: &str) -> Soc {
    let text = format!(
        "(name: \"npu-and-thread\", dram: (bytes_per_sec: 1e12, source: \"a test\"), devices: [\
         (class: Npu, programs: (activations: {activations}, threads: Some(1)), openvino: \"NPU\", \
         npu: (platform: {PLATFORM}, frequency_mhz: 1700, source: \"a test\"), \
         peaks: (flops_per_sec: 1e12, source: \"a test\")), \
         (class: Igpu, programs: (activations: {activations}, threads: Some(1)), openvino: \"CPU\", \
         peaks: (flops_per_sec: 1e11, source: \"a test\"))], \
         pair: (first: 0, second: 1, bytes_per_sec: 1e12, row_step: 32, static_tokens: [32], \
         fast: (prefill_us: 0, decode_us: 0, copy_us: 0), plain: (prefill_us: 0, decode_us: 0, copy_us: 0), \
         source: \"a test\"))"
    );
    let file = "npu-and-thread.ron";
    Soc::parse(Source { file, text: &text }).unwrap()
}

/// The tiny agent with the cuts of the machine, and their pieces for the NPU.
fn bundle() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soft-npu");
        std::fs::create_dir_all(&folder).unwrap();
        let mut target = Target::read(&fixture("tiny-agent")).unwrap();
        target.spec = ModelSpec {
            weights: WeightForm::W8A16,
            chunk_tokens: vec![32],
            mha_context_tokens: vec![1024],
            npu_platforms: vec![NpuPlatform::new(PLATFORM)],
            ..target.spec
        };
        let places = Places {
            bundle: folder.join("pair-w8a16.heg"),
            store: folder.join("store"),
        };
        let options = CompileOptions {
            npu_blobs: NpuBlobs::Required,
            partitions: vec![machine("F32")],
            ..CompileOptions::default()
        };
        let summary = compile(&target, &places, &options, &Silent).unwrap();
        println!("{}", summary.npu.cuts.join("\n"));
        places.bundle
    })
}

/// The world and the bundle of this process; else plays its scene in one.
fn inside(test: &str) -> Option<(InSoftNpu, PathBuf)> {
    if let (Some(folder), Some(bundle)) = (std::env::var_os(FOLDER), std::env::var_os(BUNDLE)) {
        return Some((InSoftNpu::new(Path::new(&folder)), PathBuf::from(bundle)));
    }
    if soft_npu_or_skip(test) {
        let world = SoftNpu::new();
        play(test, world.folder(), Duration::from_secs(300), |command| {
            let platform = PLATFORM.to_string();
            world.enter(command, bundle(), &[("PLATFORM", &platform)]);
            command.env(FOLDER, world.folder());
            command.env(BUNDLE, bundle());
        });
    }
    None
}

fn pair(bundle: &Path, soc: &Soc) -> (Executor, Arc<PairedRoles>, Vec<String>) {
    let pairing = Pairing {
        level: PairLevel::Tensor,
        synchronisation: Synchronisation::Fast,
    };
    let loader = loader(bundle, soc).paired(pairing, PairLanes::One);
    let loader = loader.unwrap();
    let (roles, runs) = (Arc::clone(loader.pair().unwrap()), loader.what_runs());
    let options = ExecutorOptions {
        chunk_tokens: 32,
        batch: 2,
        ..ExecutorOptions::default()
    };
    (Executor::new(loader, options).unwrap(), roles, runs)
}

/// Logits behind each chunk of a prompt, and behind two tokens that follow it.
fn logits(executor: &mut Executor, prompt: &[u32]) -> Vec<Vec<f32>> {
    let mut sequence = executor.sequence().unwrap();
    let mut found = Vec::new();
    for chunk in chunks(prompt.len(), 32) {
        let row = executor.prefill(&mut sequence, &prompt[chunk], Logits::LastRows);
        found.push(row.unwrap().to_vec());
    }
    for token in [11, 300] {
        let row = executor.decode(&mut [&mut sequence], &[token]);
        found.push(row.unwrap().to_vec());
    }
    found
}

/// The largest distance of two logits, as a share of the deviation of their row.
fn distance(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    let mut worst = 0.0_f32;
    for (found, expected) in found.iter().zip(expected) {
        let count = expected.len() as f32;
        let mean = expected.iter().sum::<f32>() / count;
        let deviation = (expected.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / count).sqrt();
        let both = found.iter().zip(expected);
        let most = both.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        worst = worst.max(most / deviation);
    }
    worst
}

fn best(logits: &[f32]) -> usize {
    let all = logits.iter().enumerate();
    all.max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0
}

#[test]
fn an_npu_computes_its_part_of_every_product() {
    let Some((inside, bundle)) = inside("npu::pairs::an_npu_computes_its_part_of_every_product")
    else {
        return;
    };
    let (mut both, roles, runs) = pair(&bundle, &machine("F32"));
    assert!(runs[0].contains("AI Boost"), "{runs:?}");
    // Their known answers are right, or kernels would be passed over.
    assert!(both.descents().get().is_empty());
    let mut alone = executor(&bundle, "host-cpu-f32", 32).unwrap();
    inside.forget();
    let before = roles.partner_parts();
    let mut worst = 0.0_f32;
    for prompt in Trained::TinyAgent8.prompts().iter().take(PROMPTS) {
        let [found, expected] = [&mut both, &mut alone].map(|it| logits(it, prompt));
        worst = worst.max(distance(&found, &expected));
        let rows = found.iter().zip(&expected);
        assert!(rows.into_iter().all(|(a, b)| best(a) == best(b)));
    }
    let hand_overs = roles.partner_hand_overs().unwrap();
    let [median, p99] = [0.5, 0.99].map(|part| hand_overs.quantile_us(part));
    println!("logits move by {worst}; there and back {median:?} and {p99:?} us");
    assert!(worst > 0.0 && worst < MOVED_MAX, "{worst}");
    assert_eq!(roles.why_lost(), None);
    assert!(roles.partner_parts() > before);
    let log = inside.log();
    assert_eq!(
        log.count("FAILED") + log.count("NO") + log.count("REFUSED"),
        0
    );
    let ran: BTreeSet<&str> = log.of("run").map(|run| run.field("kernel")).collect();
    println!("{ran:?}");
    // Some rows of whole prompts' products, those of queries, keys and values among them; of the deep matrix; of the head.
    let count = |part: &str| ran.iter().filter(|kernel| kernel.contains(part)).count();
    assert!(count("x192-over-32") >= 3, "{ran:?}");
    assert!(count("x448-over-32") >= 1 && count("x192-over-1") + count("x192-over-2") >= 1);
    assert!(ran.iter().all(|kernel| kernel.starts_with("piece-")));
    // Weights are lent with the bundle, and never copied.
    assert!(log.of("argument").all(|it| it.field("memory") != "unknown"));
}

#[test]
fn a_bundle_without_pieces_is_a_threads_and_says_why() {
    let test = "npu::pairs::a_bundle_without_pieces_is_a_threads_and_says_why";
    let Some((inside, _)) = inside(test) else {
        return;
    };
    let bundle = Trained::TinyAgent8.bundle().unwrap();
    let (mut both, roles, runs) = pair(&bundle, &machine("I8"));
    assert!(
        runs[0].contains("without the NPU: the bundle has no pieces"),
        "{runs:?}"
    );
    let mut alone = executor(&bundle, "host-cpu", 32).unwrap();
    let prompt = &Trained::TinyAgent8.prompts()[0];
    assert!(logits(&mut both, prompt) == logits(&mut alone, prompt));
    assert_eq!(roles.partner_parts(), 0);
    assert_eq!(inside.log().count("run"), 0);
}

/// Faults of the device, with whether it is lost to the pair by them.
const FAULTS: [(&str, bool); 7] = [
    ("late@9", false),
    ("lost@7", true),
    ("submit@3", true),
    ("abort@4", true),
    ("wrong@5", true),
    ("nan@6", true),
    ("unwritten@8", true),
];

#[test]
fn an_npu_that_fails_leaves_its_parts_to_the_thread() {
    let test = "npu::pairs::an_npu_that_fails_leaves_its_parts_to_the_thread";
    let Some((inside, bundle)) = inside(test) else {
        return;
    };
    let mut alone = executor(&bundle, "host-cpu-f32", 32).unwrap();
    let prompts = Trained::TinyAgent8.prompts();
    let expected = logits(&mut alone, &prompts[0]);
    for (fault, is_lost) in FAULTS {
        let (mut both, roles, _) = pair(&bundle, &machine("F32"));
        inside.forget();
        inside.plan(fault);
        let moved = distance(&logits(&mut both, &prompts[0]), &expected);
        assert!(moved < MOVED_MAX, "{fault}: {moved}");
        assert_eq!(inside.log().count("FAULT"), 1, "{fault}");
        let lost = is_lost.then_some(Side::First);
        assert_eq!(roles.lost_side(), lost, "{fault}");
        let parts = roles.partner_parts();
        let again = logits(&mut both, &prompts[0]);
        assert_eq!(roles.partner_parts() > parts, !is_lost, "{fault}");
        if is_lost {
            // All of it is the thread's.
            assert!(again == expected, "{fault}");
        }
        inside.plan("");
    }
}
