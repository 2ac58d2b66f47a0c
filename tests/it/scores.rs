//! Models that give scores of pairs of texts: against their reference, and the same bits in any company.

use heg_runtime::engine::{AnswerKind, Engine, Generation, Request};
use heg_sched::Class;
use heg_spec::{ScoreForm, WeightForm};
use heg_tests::{RERANKERS, Workbench, fixture, golden};

use crate::vectors::{bundle, engine, vector};

/// Largest difference of a score from the reference in f32; the reference's scores are below 4.
const TOLERANCE: f32 = 2e-5;

fn score(generation: Generation) -> f32 {
    let found = vector(generation);
    assert_eq!(found.len(), 1);
    found[0]
}

fn ask(engine: &Engine, case: &golden::Case) -> Generation {
    let second_at = case.second_at.unwrap();
    engine.generate(Request::score(case.input_ids.clone(), second_at))
}

#[test]
fn scores_are_those_of_the_reference() {
    for family in RERANKERS {
        let workbench = Workbench::new().unwrap();
        let model = fixture(&format!("golden/{family}"));
        for (form, soc, tolerance) in [
            (WeightForm::F32, "host-cpu-f32", TOLERANCE),
            (WeightForm::F32, "host-cpu", TOLERANCE),
            (WeightForm::F16, "host-cpu", 0.02),
            (WeightForm::W8A16, "host-cpu", 0.3),
        ] {
            let bundle = bundle(&workbench, &model, form);
            let engine = engine(&bundle, soc, "cpu-continuous-batching");
            for case in golden::family(family).unwrap() {
                let (found, expected) = (score(ask(&engine, &case)), case.score.unwrap());
                let name = format!("{family}, {form}, {soc}, {}", case.input_ids.len());
                println!("{name}: {found} for {expected}");
                assert!(
                    (found - expected).abs() < tolerance,
                    "{name}: {found} for {expected}"
                );
            }
        }
    }
}

#[test]
fn the_second_text_has_a_type_of_its_own() {
    let workbench = Workbench::new().unwrap();
    let model = fixture("golden/bert_reranker");
    let bundle = bundle(&workbench, &model, WeightForm::F32);
    let engine = engine(&bundle, "host-cpu-f32", "cpu-continuous-batching");
    let case = &golden::family("bert_reranker").unwrap()[3];
    let tokens = case.input_ids.len() as u32;
    let of = |second_at| {
        let request = Request::score(case.input_ids.clone(), second_at);
        score(engine.generate(request)).to_bits()
    };
    let all_first = of(tokens);
    assert_eq!(all_first, of(u32::MAX));
    assert_ne!(all_first, of(case.second_at.unwrap()));
    assert_ne!(all_first, of(0));
}

/// One by one and all at once, on both schedulers and in either class, the bits are the same.
#[test]
fn bits_of_scores_do_not_depend_on_company() {
    let workbench = Workbench::new().unwrap();
    let model = fixture("golden/bert_reranker");
    let bundle = bundle(&workbench, &model, WeightForm::W8A16);
    let cases = golden::family("bert_reranker").unwrap();
    let alone = engine(&bundle, "host-cpu", "cpu-continuous-batching");
    let expected: Vec<u32> = cases
        .iter()
        .map(|case| score(ask(&alone, case)).to_bits())
        .collect();
    for policy in ["cpu-continuous-batching", "agent-xpu-one-device"] {
        let engine = engine(&bundle, "host-cpu", policy);
        let classes = [Class::Proactive, Class::Reactive].into_iter().cycle();
        let asked: Vec<Generation> = cases
            .iter()
            .zip(classes)
            .map(|(case, class)| {
                engine.generate(Request {
                    class,
                    ..Request::score(case.input_ids.clone(), case.second_at.unwrap())
                })
            })
            .collect();
        for (at, (generation, expected)) in asked.into_iter().zip(&expected).enumerate() {
            let found = score(generation).to_bits();
            assert_eq!(found, *expected, "{policy}, pair {at}");
        }
    }
}

/// The model's config says whether a score is the logit or a probability; a model of scores gives nothing else.
#[test]
fn the_config_chooses_the_form_of_scores() {
    let workbench = Workbench::new().unwrap();
    let family = fixture("golden/bert_reranker");
    let model = workbench.path("models/probable");
    std::fs::create_dir_all(&model).unwrap();
    std::fs::copy(
        family.join("model.safetensors"),
        model.join("model.safetensors"),
    )
    .unwrap();
    let config = std::fs::read_to_string(family.join("config.json")).unwrap();
    let config = config.replace("linear.Identity", "activation.Sigmoid");
    std::fs::write(model.join("config.json"), config).unwrap();
    let bundle = bundle(&workbench, &model, WeightForm::F32);
    let engine = engine(&bundle, "host-cpu-f32", "cpu-continuous-batching");
    let vectors = engine.manifest().vectors.unwrap();
    assert_eq!(vectors.scores, Some(ScoreForm::Probability));
    for case in golden::family("bert_reranker").unwrap() {
        let found = score(ask(&engine, &case));
        let expected = 1.0 / (1.0 + (-case.score.unwrap()).exp());
        assert!(
            (found - expected).abs() < TOLERANCE,
            "{found} for {expected}"
        );
    }
    for asked in [AnswerKind::Vector, AnswerKind::Tokens] {
        let said = engine.check_kind(asked).unwrap_err().to_string();
        assert!(
            said.starts_with("the model gives scores of pairs of texts, and "),
            "{said}"
        );
    }
}

/// A model with several labels has no score to rank by.
#[test]
fn several_labels_are_refused() {
    let workbench = Workbench::new().unwrap();
    let family = fixture("golden/bert_reranker");
    let model = workbench.path("models/labelled");
    std::fs::create_dir_all(&model).unwrap();
    std::fs::copy(
        family.join("model.safetensors"),
        model.join("model.safetensors"),
    )
    .unwrap();
    let config = std::fs::read_to_string(family.join("config.json")).unwrap();
    let config = config.replace(r#""0": "LABEL_0""#, r#""0": "no", "1": "yes""#);
    std::fs::write(model.join("config.json"), config).unwrap();
    let refused = workbench.compile(&model, "labelled", |_| ()).unwrap_err();
    let said = refused.to_string();
    let expected = "expected one label, whose score ranks documents";
    assert!(
        said.contains("id2label") && said.contains(expected),
        "{said}"
    );
}
