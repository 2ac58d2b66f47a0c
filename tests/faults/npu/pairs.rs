//! An NPU and a thread of the CPU share every product: the NPU by pieces that the compiler made for the cuts of this
//! machine, the thread the rest, over OpenVINO's own plugin and an NPU in software. An NPU that fails leaves what it had
//! begun, and all that follows, to the thread.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use heg_runtime::exec::{Executor, ExecutorOptions, PairLanes, PairedRoles, Partition, WorkItem};
use heg_sched::{Logits, chunks};
use heg_spec::policy::{PairLevel, Pairing, Synchronisation};
use heg_spec::{Cut, CutProduct, Side, Soc, Source, WeightForm};
use heg_tests::roles::loader;
use heg_tests::soft_npu::{
    InSoftNpu, SoftNpu, ThreadSpeed, compile_for_pair, npu_and_thread, soft_npu_or_skip,
};
use heg_tests::{executor, fixture, four_bits};

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

/// The machine of the scenes, with activations of the thread's products in this form.
fn machine(activations: &str) -> Soc {
    let text = npu_and_thread(PLATFORM, activations, ThreadSpeed::Near);
    let file = "npu-and-thread.ron";
    Soc::parse(Source { file, text: &text }).unwrap()
}

/// The weights of a bundle, and the platform of its pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    /// In 8 bits, for a platform that the bundle is lent to.
    Bytes,
    /// In 4 bits, for one that has a copy of the weights. Pieces are of whole matrices.
    Nibbles,
}

impl Made {
    const fn platform(self) -> u32 {
        match self {
            Self::Bytes => PLATFORM,
            Self::Nibbles => 3720,
        }
    }

    /// The tiny agent with the cuts of the machine, and their pieces for the NPU.
    fn bundle(self) -> &'static Path {
        static BYTES: OnceLock<PathBuf> = OnceLock::new();
        static NIBBLES: OnceLock<PathBuf> = OnceLock::new();
        let made = |name: &str, weights, thread| {
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soft-npu");
            std::fs::create_dir_all(&folder).unwrap();
            let model = fixture("tiny-agent");
            compile_for_pair(&folder, (&model, name), weights, (self.platform(), thread))
        };
        match self {
            Self::Bytes => {
                BYTES.get_or_init(|| made("pair-w8a16", WeightForm::W8A16, ThreadSpeed::Near))
            }
            Self::Nibbles => {
                NIBBLES.get_or_init(|| made("pair-w4a16", four_bits(false), ThreadSpeed::Slow))
            }
        }
    }
}

/// The world and the bundle of this process; else plays its scene in one.
fn inside(test: &str, made: Made) -> Option<(InSoftNpu, PathBuf)> {
    if let (Some(folder), Some(bundle)) = (std::env::var_os(FOLDER), std::env::var_os(BUNDLE)) {
        return Some((InSoftNpu::new(Path::new(&folder)), PathBuf::from(bundle)));
    }
    if soft_npu_or_skip(test) {
        let (world, bundle) = (SoftNpu::new(), made.bundle());
        play(test, world.folder(), Duration::from_secs(300), |command| {
            let platform = made.platform().to_string();
            world.enter(command, bundle, &[("PLATFORM", &platform)]);
            command.env(FOLDER, world.folder());
            command.env(BUNDLE, bundle);
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
    let test = "npu::pairs::an_npu_computes_its_part_of_every_product";
    let Some((inside, bundle)) = inside(test, Made::Bytes) else {
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

/// Cuts every product in one way.
struct Always(Cut);

impl Partition for Always {
    fn cut(&self, work: WorkItem) -> Cut {
        match work.product {
            Some(CutProduct::Attention) | None => Cut::Whole(Side::Second),
            Some(_) => self.0.clone(),
        }
    }
}

/// In 4 bits, on a platform that has a copy of the weights. The pieces are of whole matrices, so that cuts by tokens are the
/// NPU's too, and cuts by some rows are not.
#[test]
fn cuts_by_tokens_of_four_bit_weights_are_an_npus_too() {
    let test = "npu::pairs::cuts_by_tokens_of_four_bit_weights_are_an_npus_too";
    let Some((inside, bundle)) = inside(test, Made::Nibbles) else {
        return;
    };
    let (mut both, roles, runs) = pair(&bundle, &machine("F32"));
    assert!(runs[0].contains("AI Boost"), "{runs:?}");
    let mut alone = executor(&bundle, "host-cpu-f32", 32).unwrap();
    let prompt = &Trained::TinyAgent8.prompts()[0];
    let expected = logits(&mut alone, prompt);
    let written = logits(&mut both, prompt);
    let moved = distance(&written, &expected);
    println!("as the bundle says, logits move by {moved}");
    assert!(moved > 0.0 && moved < MOVED_MAX, "{moved}");
    assert!(roles.partner_parts() > 0 && roles.cuts().written > 0);
    let tokens = |sizes: &[u32]| Cut::Tokens {
        sizes: sizes.to_vec(),
    };
    let margin = Cut::Hybrid {
        first: u32::MAX,
        padded_tokens: 16,
    };
    let none = Cut::Rows { first: 24 };
    for cut in [tokens(&[16]), tokens(&[16, 8]), margin, none.clone()] {
        inside.forget();
        assert!(roles.share_by(Box::new(Always(cut.clone()))));
        let moved = distance(&logits(&mut both, prompt), &expected);
        let ran = inside.log().count("run");
        println!("{cut}: logits move by {moved} in {ran} runs");
        assert!(moved < MOVED_MAX, "{cut}: {moved}");
        assert_eq!(ran == 0 && moved == 0.0, cut == none, "{cut}");
    }
    assert_eq!(roles.why_lost(), None);
    assert_eq!(inside.log().count("FAILED") + inside.log().count("NO"), 0);
}

/// With activations in 8 bits the NPU's numbers and the thread's are as near to those in f32 as the thread's are alone.
#[test]
fn activations_of_eight_bits_are_no_worse_on_an_npu() {
    let test = "npu::pairs::activations_of_eight_bits_are_no_worse_on_an_npu";
    let Some((_, bundle)) = inside(test, Made::Bytes) else {
        return;
    };
    let (mut both, roles, _) = pair(&bundle, &machine("I8"));
    let [mut exact, mut alone] =
        ["host-cpu-f32", "host-cpu"].map(|soc| executor(&bundle, soc, 32).unwrap());
    let [mut of_both, mut of_alone] = [0.0_f32; 2];
    for prompt in Trained::TinyAgent8.prompts().iter().take(PROMPTS) {
        let expected = logits(&mut exact, prompt);
        of_both = of_both.max(distance(&logits(&mut both, prompt), &expected));
        of_alone = of_alone.max(distance(&logits(&mut alone, prompt), &expected));
    }
    println!("logits move by {of_both}, and without the NPU by {of_alone}");
    assert!(of_both < 1.5 * of_alone, "{of_both}, {of_alone}");
    assert_eq!(roles.why_lost(), None);
    assert!(roles.partner_parts() > 0);
}

#[test]
fn a_bundle_without_pieces_is_a_threads_and_says_why() {
    let test = "npu::pairs::a_bundle_without_pieces_is_a_threads_and_says_why";
    let Some((inside, _)) = inside(test, Made::Bytes) else {
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

/// The NPU in software takes many times as long for its pieces as the thread.
#[test]
fn passes_that_an_npu_makes_slower_are_the_threads_alone() {
    let test = "npu::pairs::passes_that_an_npu_makes_slower_are_the_threads_alone";
    let Some((_, bundle)) = inside(test, Made::Bytes) else {
        return;
    };
    let (mut both, roles, _) = pair(&bundle, &machine("F32"));
    let mut alone = executor(&bundle, "host-cpu-f32", 32).unwrap();
    let prompt = &Trained::TinyAgent8.prompts()[0];
    let expected = logits(&mut alone, prompt);
    let parts = roles.partner_parts();
    let mut passes = |times: usize| {
        let before = roles.cpu_passes();
        for _ in 0..times {
            let moved = distance(&logits(&mut both, prompt), &expected);
            assert!(moved < MOVED_MAX, "{moved}");
        }
        roles.cpu_passes() - before
    };
    // Of each kind of pass some are both's, before it is known how long they take.
    let first = passes(1);
    assert!(first == 0 && roles.partner_parts() > parts);
    passes(20);
    let all = (4 * (chunks(prompt.len(), 32).count() + 2)) as u64;
    let later = passes(4);
    println!("{later} of {all} passes are the thread's alone");
    assert!(later > 3 * all / 4, "{later} of {all}");
    assert_eq!(roles.why_lost(), None);
}

/// Faults of the device, with whether it is lost to the pair by them.
const FAULTS: [(&str, bool); 8] = [
    ("late@9", false),
    ("lost@7", true),
    ("submit@3", true),
    ("abort@4", true),
    ("wrong@5", true),
    ("nan@6", true),
    // Found out where a request runs for the first time.
    ("negated@2", true),
    ("unwritten@8", true),
];

#[test]
fn an_npu_that_fails_leaves_its_parts_to_the_thread() {
    let test = "npu::pairs::an_npu_that_fails_leaves_its_parts_to_the_thread";
    let Some((inside, bundle)) = inside(test, Made::Bytes) else {
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
