//! Models that give vectors of texts: against their reference, and the same bits in any company.

use std::path::{Path, PathBuf};
use std::time::Duration;

use heg_runtime::engine::{AnswerKind, Engine, EngineOptions, Generation, Request, Update};
use heg_runtime::exec::ExecutorOptions;
use heg_runtime::{Loaded, Texts};
use heg_sched::{Class, Finish};
use heg_spec::{WeightForm, shipped};
use heg_tests::{ENCODERS, Workbench, fetched, fixture, golden, openvino_or_skip};
use heg_text::Special;

/// Largest difference of an element from the reference in f32; vectors have length one.
const TOLERANCE: f32 = 2e-6;

pub(crate) fn bundle(workbench: &Workbench, model: &Path, form: WeightForm) -> PathBuf {
    let form_of = |spec: &mut heg_spec::ModelSpec| spec.weights = form;
    workbench.compile(model, "encoder", form_of).unwrap().0
}

pub(crate) fn engine(bundle: &Path, soc: &str, policy: &str) -> Engine {
    let loaded = Loaded::open(bundle).unwrap();
    let loader = loaded.loader(&shipped::soc(soc).unwrap()).unwrap();
    let policy = shipped::policy(policy).unwrap();
    let options = EngineOptions {
        exec: ExecutorOptions {
            chunk_tokens: 32,
            ..ExecutorOptions::default()
        },
        ..EngineOptions::default()
    };
    let engine = Engine::start(loader, policy, options).unwrap();
    engine.wait_ready().unwrap();
    assert!(engine.descents().is_empty(), "{:?}", engine.descents());
    engine
}

/// Waits for a vector. Nothing may take minutes here.
pub(crate) fn vector(mut generation: Generation) -> Vec<f32> {
    let mut found = None;
    loop {
        match generation.next_within(Duration::from_secs(120)).unwrap() {
            Update::Accepted { .. } => {}
            Update::Vector(vector) => assert!(found.replace(vector).is_none()),
            Update::Finished(ending) => {
                assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
                return found.unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let pairs = a.iter().zip(b);
        pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    assert_eq!(a.len(), b.len());
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn vectors_are_those_of_the_reference() {
    for family in ENCODERS {
        let workbench = Workbench::new().unwrap();
        let model = fixture(&format!("golden/{family}"));
        let cases = golden::family(family).unwrap();
        for (form, soc) in [
            (WeightForm::F32, "host-cpu-f32"),
            (WeightForm::F32, "host-cpu"),
            (WeightForm::F16, "host-cpu"),
            (WeightForm::W8A16, "host-cpu"),
        ] {
            let bundle = bundle(&workbench, &model, form);
            let engine = engine(&bundle, soc, "cpu-continuous-batching");
            for case in &cases {
                let found = vector(engine.generate(Request::vector(case.input_ids.clone())));
                let name = format!("{family}, {form}, {soc}, {}", case.input_ids.len());
                let similar = cosine(&found, &case.vector);
                println!("{name}: {similar}");
                match form {
                    WeightForm::F32 => {
                        let pairs = found.iter().zip(&case.vector);
                        let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                        assert!(worst < TOLERANCE, "{name}: {worst}");
                    }
                    WeightForm::F16 => assert!(similar > 0.999_99, "{name}: {similar}"),
                    _ => assert!(similar > 0.99, "{name}: {similar}"),
                }
            }
        }
    }
}

/// One by one, all at once, on both schedulers, and in either class, the bits are the same.
#[test]
fn bits_do_not_depend_on_company() {
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench, &fixture("golden/bert"), WeightForm::W8A16);
    let texts: Vec<Vec<u32>> = (0..40)
        .map(|number: u32| {
            let tokens = 1 + number * 37 % 150;
            (0..tokens).map(|at| (number * 7 + at * 13) % 256).collect()
        })
        .collect();
    let bits = |vector: Vec<f32>| vector.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let alone = engine(&bundle, "host-cpu", "cpu-continuous-batching");
    let expected: Vec<_> = texts
        .iter()
        .map(|text| bits(vector(alone.generate(Request::vector(text.clone())))))
        .collect();
    for policy in ["cpu-continuous-batching", "agent-xpu-one-device"] {
        let engine = engine(&bundle, "host-cpu", policy);
        let asked: Vec<Generation> = texts
            .iter()
            .zip([Class::Proactive, Class::Reactive].into_iter().cycle())
            .map(|(text, class)| {
                engine.generate(Request {
                    class,
                    ..Request::vector(text.clone())
                })
            })
            .collect();
        for (at, (generation, expected)) in asked.into_iter().zip(&expected).enumerate() {
            assert_eq!(&bits(vector(generation)), expected, "{policy}, text {at}");
        }
        let status = engine.status().unwrap();
        assert_eq!(status.kv_bytes, 0, "{policy}: nothing of a text is kept");
    }
}

#[test]
fn a_model_gives_one_kind_of_answer() {
    let workbench = Workbench::new().unwrap();
    let encoder = bundle(&workbench, &fixture("golden/bert"), WeightForm::F32);
    let encoder = engine(&encoder, "host-cpu", "cpu-continuous-batching");
    let said = encoder.check_kind(AnswerKind::Tokens).unwrap_err();
    let expected =
        "the model gives vectors of texts, and tokens were asked for: choose another model";
    assert_eq!(said.to_string(), expected);
    let (tokens, ending) = encoder
        .generate(Request::reactive(vec![1, 2, 3]))
        .wait()
        .unwrap();
    assert!(tokens.is_empty());
    assert_eq!(ending.finish, Finish::Failed);
    assert_eq!(ending.error.unwrap().to_string(), expected);
    let mut texts = Texts::new(&encoder);
    let long = texts.ask(Request::vector(vec![1; 193])).unwrap_err();
    insta::assert_snapshot!(long, @"193 tokens do not fit the context of 192 tokens");
    texts.ask(Request::vector(vec![1; 192])).unwrap();
    assert_eq!(texts.next().unwrap().unwrap().len(), 64);
    assert!(texts.next().is_none());

    let decoder = bundle(&workbench, &fixture("golden/llama"), WeightForm::F32);
    let decoder = engine(&decoder, "host-cpu", "cpu-continuous-batching");
    let said = decoder.check_kind(AnswerKind::Vector).unwrap_err();
    let expected =
        "the model gives tokens, and the vector of a text was asked for: choose another model";
    assert_eq!(said.to_string(), expected);
}

/// OpenVINO's plugins are given padding, which a token that sees everything would see.
#[test]
fn a_machine_without_programs_is_refused() {
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench, &fixture("golden/bert"), WeightForm::W8A16);
    if !openvino_or_skip("a_machine_without_programs_is_refused") {
        return;
    }
    let soc = shipped::soc("host-cpu-openvino").unwrap();
    let loader = Loaded::open(&bundle).unwrap().loader(&soc).unwrap();
    let policy = shipped::policy("cpu-continuous-batching").unwrap();
    let refused = Engine::start(loader, policy, EngineOptions::default());
    let said = refused.err().unwrap().to_string();
    insta::assert_snapshot!(said, @"nothing is left to run kernel `mha`: CPU: its tokens see their whole text, which only CPU programs on the CPU compute");
}

/// A model of logits whose folder says how vectors are pooled gives the hidden state behind its last norm, in chunks too.
#[test]
fn decoders_give_the_vector_of_the_last_token() {
    let workbench = Workbench::new().unwrap();
    let family = fixture("golden/qwen3");
    let model = workbench.path("models/qwen3-embedding");
    std::fs::create_dir_all(model.join("1_Pooling")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(family.join(file), model.join(file)).unwrap();
    }
    let modules = r#"[{"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]"#;
    std::fs::write(model.join("modules.json"), modules).unwrap();
    let pooling = r#"{"pooling_mode_lasttoken": true}"#;
    std::fs::write(model.join("1_Pooling/config.json"), pooling).unwrap();
    let bundle = bundle(&workbench, &model, WeightForm::F32);
    for policy in ["cpu-continuous-batching", "agent-xpu-one-device"] {
        let engine = engine(&bundle, "host-cpu-f32", policy);
        for case in golden::family("qwen3").unwrap() {
            let found = vector(engine.generate(Request::vector(case.input_ids.clone())));
            let expected = case.hidden_last_position.last().unwrap();
            let largest = expected.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
            let pairs = found.iter().zip(expected);
            let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert_eq!(found.len(), expected.len());
            assert!(
                worst <= 1e-3 * largest,
                "{policy}, {}: {worst}",
                case.input_ids.len()
            );
        }
    }
}

/// ONNX Runtime's vectors of the sentences in the model's own example, in f32.
#[test]
fn minilm_gives_the_vectors_of_its_example() {
    let Some(model) = fetched::minilm("minilm_gives_the_vectors_of_its_example") else {
        return;
    };
    let workbench = Workbench::new().unwrap();
    let bundle = bundle(&workbench, &model, WeightForm::F16);
    let tokenizer = Loaded::open(&bundle).unwrap().tokenizer().unwrap();
    let engine = engine(&bundle, "host-cpu", "cpu-continuous-batching");
    let mut texts = Texts::new(&engine);
    for text in ["This is an example sentence", "Each sentence is converted"] {
        let tokens = tokenizer.encode(text, Special::Add).unwrap();
        texts.ask(Request::vector(tokens)).unwrap();
    }
    let vectors: Vec<Vec<f32>> = texts.map(|vector| vector.unwrap()).collect();
    let near = |found: &[f32], expected: &[f32]| {
        let mut pairs = found.iter().zip(expected);
        pairs.all(|(found, expected)| (found - expected).abs() < 2e-4)
    };
    assert!(
        near(&vectors[0], &[0.0676, 0.0635, 0.0487]),
        "{:?}",
        &vectors[0][..3]
    );
    assert!(
        near(&vectors[1], &[0.0864, 0.1027, 0.0054]),
        "{:?}",
        &vectors[1][..3]
    );
}
