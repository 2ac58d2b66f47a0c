//! Tests of what `lower/ops_tests` does not cover: the order of sums, damaged weights, and remembered answers. There
//! each operator is compared with its reference, in `tests/it/answers.rs` whole kernels with the CPU device.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use heg_artifacts::manifest::ElementType;
use heg_artifacts::{Bundle, SectionId, judge};
use heg_spec::Group;

use super::linear::linear;
use super::*;
use crate::graph::{Attention, Op};
use crate::{CompileOptions, Places, Silent, Target, compile, fixture};

/// Numbers whose sum depends on the order: large ones of either sign among small ones.
fn uneven(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count)
        .map(|at| next() * if at % 7 == 0 { 1e6 } else { 1.0 })
        .collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The specified order: element i goes into sum i mod 16, then sum l adds sum l + 8, l + 4, l + 2, l + 1.
fn dot(row: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 16];
    for (at, (w, x)) in row.iter().zip(x).enumerate() {
        sums[at % 16] += w * x;
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
    }
    sums[0]
}

#[test]
fn sums_have_one_order_for_any_width_and_number_of_tokens() {
    for width in [1, 15, 16, 17, 48, 100] {
        for tokens in [1, 2, 3, 5] {
            let x = Tensor {
                width,
                values: uneven(tokens * width, 3),
            };
            // More than a window of blocks if rows are long.
            let rows = 61;
            let matrix = uneven(rows * width, 5);
            let weight = Weight::of_bytes(ElementType::F32, &bytes(&matrix), None);
            let found = linear(&x, &weight, None).unwrap();
            let expected: Vec<f32> = x
                .rows()
                .flat_map(|x| matrix.chunks(width).map(|row| dot(row, x)))
                .collect();
            assert_eq!(found.width, rows);
            assert_eq!(found.values, expected, "{tokens} tokens of {width}");
        }
    }
}

#[test]
fn all_weights_of_eight_and_sixteen_bits_are_exact() {
    let one = Tensor {
        width: 1,
        values: vec![1.0],
    };
    let int8: Vec<u8> = (0..=255).collect();
    let (scales, centres) = (bytes(&[0.5; 256]), bytes(&[0.25; 256]));
    let weight = Weight::of_bytes(ElementType::I8, &int8, Some((&scales, Some(&centres))));
    let found = linear(&one, &weight, None).unwrap().values;
    let expected: Vec<f32> = int8
        .iter()
        .map(|x| f32::from(x.cast_signed()) / 2.0 + 0.25)
        .collect();
    assert_eq!(found, expected);
    let finite = (0..=u16::MAX)
        .map(half::f16::from_bits)
        .filter(|x| x.is_finite());
    let halves: Vec<half::f16> = finite.collect();
    let stored: Vec<u8> = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
    let weight = Weight::of_bytes(ElementType::F16, &stored, None);
    let found = linear(&one, &weight, None).unwrap().values;
    let expected: Vec<f32> = halves.iter().map(|x| x.to_f32()).collect();
    assert_eq!(found, expected);
}

/// Several windows, the last one and its last block shorter than others.
#[test]
fn sums_do_not_depend_on_threads_and_windows() {
    let (rows, width) = (3001, 1000);
    let x = Tensor {
        width,
        values: uneven(2 * width, 7),
    };
    let matrix = uneven(rows * width, 9);
    let weight = Weight::of_bytes(ElementType::F32, &bytes(&matrix), None);
    let expected: Vec<f32> = x
        .rows()
        .flat_map(|x| matrix.chunks(width).map(|row| dot(row, x)))
        .collect();
    for threads in [1, 2, 7] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let found = pool.build().unwrap().install(|| linear(&x, &weight, None));
        assert_eq!(found.unwrap().values, expected, "{threads} threads");
    }
}

struct Workbench(tempfile::TempDir);

impl Workbench {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn compile(&self, name: &str, progress: &dyn Progress) -> Result<Bundle, CompileError> {
        let target = Target::read(&fixture::path("golden/llama")).unwrap();
        let places = Places {
            bundle: self.0.path().join(name),
            store: self.0.path().join("store"),
        };
        compile(&target, &places, &CompileOptions::default(), progress)?;
        Ok(Bundle::open(&places.bundle).unwrap())
    }

    fn object(&self, id: SectionId) -> std::path::PathBuf {
        let name = id.to_string();
        self.0
            .path()
            .join("store/blake3")
            .join(&name[..2])
            .join(&name)
    }
}

fn spoil(object: &Path) {
    let mut bytes = std::fs::read(object).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    std::fs::remove_file(object).unwrap();
    std::fs::write(object, bytes).unwrap();
}

/// Answers are looked up, not recomputed; a lost one is recomputed, to the same bytes.
#[test]
fn answers_are_remembered() {
    let workbench = Workbench::new();
    let first = workbench.compile("first", &Silent).unwrap();
    let lost = first.manifest().head.answer.unwrap();
    let kept = first.manifest().layers[0].ffn.answer.unwrap();
    // A wrong byte shows whether the object was rewritten: a look-up only checks its length.
    spoil(&workbench.object(kept));
    let spoilt = std::fs::read(workbench.object(kept)).unwrap();
    std::fs::remove_file(workbench.object(lost)).unwrap();
    workbench.compile("first", &Silent).unwrap();
    assert_eq!(std::fs::read(workbench.object(kept)).unwrap(), spoilt);
    let again = std::fs::read(workbench.object(lost)).unwrap();
    assert_eq!(SectionId::of(&again), lost);
}

/// A wrong answer would outlive the damage, since it would be remembered. The weight is encoded again instead.
#[test]
fn damaged_weights_are_made_again_before_they_are_answered_for() {
    let workbench = Workbench::new();
    let first = workbench.compile("first", &Silent).unwrap();
    let manifest = first.manifest();
    let place = &manifest.layers[1].ffn;
    for weight in &place.weights {
        let weight = &manifest.weights[weight.0 as usize];
        for section in weight.sections() {
            let object = workbench.object(section);
            let whole = std::fs::read(&object).unwrap();
            std::fs::remove_file(workbench.object(place.answer.unwrap())).unwrap();
            spoil(&object);
            let noted = Noted::default();
            let cured = workbench.compile("first", &noted).unwrap();
            assert_eq!(cured.manifest(), manifest);
            assert_eq!(std::fs::read(&object).unwrap(), whole);
            let named = format!("(weight `{}`) has changed", weight.name);
            let noted = noted.0.into_inner().unwrap();
            assert!(noted.len() == 1 && noted[0].contains(&named), "{noted:?}");
        }
    }
}

#[derive(Default)]
struct Counted {
    expected: AtomicU64,
    done: AtomicU64,
    answering: std::sync::atomic::AtomicBool,
}

impl Progress for Counted {
    fn begin(&self, phase: Phase, total_bytes: u64) {
        self.answering
            .store(phase == Phase::Answer, Ordering::Relaxed);
        if phase == Phase::Answer {
            self.expected.store(total_bytes, Ordering::Relaxed);
        }
    }

    fn advance(&self, bytes: u64) {
        if self.answering.load(Ordering::Relaxed) {
            self.done.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn note(&self, _text: &str) {}
}

/// Records the notes that it gets.
#[derive(Default)]
struct Noted(std::sync::Mutex<Vec<String>>);

impl Progress for Noted {
    fn begin(&self, _phase: Phase, _total: u64) {}

    fn advance(&self, _amount: u64) {}

    fn note(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

/// Attention has no weights: both layers of the fixture share an answer.
#[test]
fn equal_places_are_answered_once_and_progress_is_whole() {
    let workbench = Workbench::new();
    for _ in 0..2 {
        let counted = Counted::default();
        let bundle = workbench.compile("first", &counted).unwrap();
        let layers = &bundle.manifest().layers;
        assert_eq!(layers[0].mha.answer, layers[1].mha.answer);
        assert_ne!(layers[0].ffn.answer, layers[1].ffn.answer);
        let expected = counted.expected.into_inner();
        assert!(expected > 0);
        assert_eq!(counted.done.into_inner(), expected);
    }
}

#[test]
fn the_question_fits_short_contexts() {
    for context in [1, 2, 3, 48, 49, 100_000] {
        let asked = question(context);
        assert!(asked.rows >= 1 && asked.rows <= asked.context && asked.context <= context);
    }
}

/// The answer of an attention has to detect a wrong position, and a wrong window if the context is longer, by more than
/// any tolerance.
#[test]
fn a_token_more_or_less_in_sight_is_found_out() {
    let asked = question(u32::MAX);
    let mut windows = 0;
    for family in fixture::FAMILIES {
        let heg = fixture::Described::family(family).heg();
        for body in heg
            .kernels
            .iter()
            .filter(|kernel| kernel.group == Group::Mha)
        {
            let right = attended(body, asked.position(), &asked);
            let wrong = attended(body, asked.position() - 1, &asked);
            let verdict = judge(&right, &wrong, 5e-2);
            assert!(!verdict.passes(), "{family}, position: {verdict}");
            let mut wider = body.clone();
            for op in &mut wider.ops {
                if let Op::Attention(Attention {
                    window: Some(window),
                    ..
                }) = &mut op.op
                {
                    *window += 1;
                    windows += usize::from(*window <= asked.context);
                }
            }
            if wider != *body {
                let verdict = judge(&right, &attended(&wider, asked.position(), &asked), 5e-2);
                assert!(!verdict.passes(), "{family}, window: {verdict}");
            }
        }
    }
    assert!(windows > 0);
}

fn attended(body: &KernelBody, position: u32, asked: &KnownAnswers) -> Vec<f32> {
    let input = |port: &Port| Tensor {
        width: port.width as usize,
        values: match port.role {
            Role::Position => vec![position as f32],
            _ => asked.values(port),
        },
    };
    let inputs: Vec<Tensor> = body.inputs.iter().map(input).collect();
    let mut outputs = evaluate(body, &inputs, &[]).unwrap();
    outputs.remove(0).values
}
