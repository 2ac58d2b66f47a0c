//! Tests of what `lower/ops_tests` does not cover: damaged weights, and remembered answers. There
//! each operator is compared with its reference, in `tests/it/answers.rs` whole kernels with the CPU device.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use heg_artifacts::{Bundle, SectionId, judge};
use heg_spec::Group;

use super::*;
use crate::graph::{Attention, Op};
use crate::{CompileOptions, Places, Silent, Target, compile, fixture};

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
    let input = |port: &Port| ValueRows {
        width: port.width as usize,
        values: match port.role {
            Role::Position => vec![position as f32],
            _ => asked.values(port),
        },
    };
    let inputs: Vec<ValueRows> = body.inputs.iter().map(input).collect();
    let mut outputs = evaluate(body, &inputs, &[]).unwrap();
    outputs.remove(0).values
}
