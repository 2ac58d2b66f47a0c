//! Scoring against a naive computation over the executor alone: golden models, and tiny-agent in 8 bits beside f32.

use std::path::Path;

use heg_runtime::RuntimeError;
use heg_runtime::exec::Executor;
use heg_runtime::score::{Passage, RowKind, Scores, score, score_against};
use heg_tests::{FAMILIES, Workbench, executor, fetched, fixture, openvino_or_skip};
use serde_json::Value;

/// ln softmax of a row, implemented independently of the library.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
    logits.iter().map(|x| f64::from(*x) - sum.ln()).collect()
}

/// Log probabilities of every scored position, one token a step.
fn naive(model: &mut Executor, passages: &[Passage]) -> Vec<(u32, Vec<f64>)> {
    let mut rows = Vec::new();
    for passage in passages {
        let mut sequence = model.sequence().unwrap();
        for (position, pair) in passage.tokens().windows(2).enumerate() {
            let logits = model.decode(&mut [&mut sequence], &pair[..1]).unwrap();
            if position + 1 >= passage.from() {
                rows.push((pair[1], log_softmax(logits)));
            }
        }
    }
    rows
}

fn naive_nll(rows: &[(u32, Vec<f64>)]) -> f64 {
    let sum: f64 = rows.iter().map(|(next, row)| -row[*next as usize]).sum();
    sum / rows.len() as f64
}

fn most_likely(row: &[f64]) -> Option<usize> {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]))
}

/// Returns the share of equal choices, and mean KL(reference ‖ model).
fn naive_distance(model: &[(u32, Vec<f64>)], reference: &[(u32, Vec<f64>)]) -> (f64, f64) {
    let (mut same, mut kl) = (0.0, 0.0);
    for ((_, q), (_, p)) in model.iter().zip(reference) {
        same += f64::from(u8::from(most_likely(p) == most_likely(q)));
        kl += p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
    }
    (same / model.len() as f64, kl / model.len() as f64)
}

fn assert_near(found: f64, expected: f64, bound: f64, what: &str) {
    let difference = (found - expected).abs();
    assert!(
        difference <= bound,
        "{what}: {found}, expected {expected} within {bound}"
    );
}

/// Prompts and answers of a golden file, scored from the first token of the answer on.
fn golden(
    folder: &Path,
    (cases, prompt, answer): (&str, &str, &str),
    model: &Executor,
) -> Vec<Passage> {
    let text = std::fs::read_to_string(folder.join("golden.json")).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
    let cases = file[cases].as_array().unwrap();
    let passages = cases.iter().map(|case| {
        let prompt = ids(&case[prompt]);
        let from = prompt.len();
        let tokens = [prompt, ids(&case[answer])].concat();
        Passage::new(tokens, from, model.manifest()).unwrap()
    });
    passages.collect()
}

const FAMILY_KEYS: (&str, &str, &str) = ("cases", "input_ids", "greedy_ids");
const TRAINED_KEYS: (&str, &str, &str) = ("cases", "input_ids", "output_ids");

fn both(model: &mut Executor, passages: &[Passage]) -> [Scores; 2] {
    [RowKind::Prefill, RowKind::Decode]
        .map(|rows| score(model, passages, rows, &mut |_| ()).unwrap())
}

/// Chunks of 16 tokens cut the prompts, whose scored rows begin within a chunk; from the first token on, and from the
/// answer on.
#[test]
fn golden_models_score_as_written_down() {
    if !openvino_or_skip("golden_models_score_as_written_down") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    for family in FAMILIES {
        let folder = fixture("golden").join(family);
        let f32 = heg_spec::WeightForm::F32;
        let (bundle, _) = workbench
            .compile(&folder, family, |spec| spec.weights = f32)
            .unwrap();
        let mut model = executor(&bundle, "host-cpu-f32", 16).unwrap();
        let mut passages = golden(&folder, FAMILY_KEYS, &model);
        let whole = passages[1].tokens().to_vec();
        passages.push(Passage::new(whole, 0, model.manifest()).unwrap());
        let rows = naive(&mut model, &passages);
        let scored: usize = passages.iter().map(Passage::scored).sum();
        let expected = naive_nll(&rows);
        let [prefill, decode] = both(&mut model, &passages);
        assert_eq!(
            (prefill.tokens, decode.tokens),
            (scored as u64, scored as u64)
        );
        assert_near(decode.nll, expected, 1e-5, family);
        assert_near(prefill.nll, expected, 1e-4, family);
        assert_near(prefill.perplexity, prefill.nll.exp(), 1e-9, family);
        assert_eq!((prefill.kl, prefill.top1), (None, None));
    }
}

#[test]
fn another_model_is_as_far_as_written_down() {
    if !openvino_or_skip("another_model_is_as_far_as_written_down") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let folder = fixture("tiny-agent");
    let (exact, _) = workbench
        .compile(&folder, "f32", |spec| {
            spec.weights = heg_spec::WeightForm::F32
        })
        .unwrap();
    let (rounded, _) = workbench.compile(&folder, "w8a16", |_| ()).unwrap();
    let mut model = executor(&rounded, "host-cpu", 64).unwrap();
    let mut reference = executor(&exact, "host-cpu-f32", 48).unwrap();
    let mut passages = golden(&folder, TRAINED_KEYS, &model);
    passages.sort_by_key(|passage| passage.tokens().len());
    passages.truncate(6);

    let (ours, theirs) = (
        naive(&mut model, &passages),
        naive(&mut reference, &passages),
    );
    let (top1, kl) = naive_distance(&ours, &theirs);
    let mut measure =
        |rows| score_against(&mut model, &mut reference, &passages, rows, &mut |_| ()).unwrap();
    let decode = measure(RowKind::Decode);
    assert_near(decode.nll, naive_nll(&ours), 1e-5, "nll");
    assert_near(decode.top1.unwrap(), top1, 1e-9, "top1");
    assert_near(decode.kl.unwrap(), kl, 1e-5, "kl");
    let prefill = measure(RowKind::Prefill);
    assert_near(prefill.kl.unwrap(), kl, 1e-5, "kl of prefill rows");

    let mut again = executor(&exact, "host-cpu-f32", 48).unwrap();
    for rows in [RowKind::Prefill, RowKind::Decode] {
        let same = score_against(&mut again, &mut reference, &passages, rows, &mut |_| ()).unwrap();
        assert_eq!((same.kl, same.top1), (Some(0.0), Some(1.0)));
    }
}

/// KL of the default form on the default device against f32, over prefill rows.
fn default_kl(
    workbench: &Workbench,
    model: &Path,
    passages: impl Fn(&Executor) -> Vec<Passage>,
) -> f64 {
    let f32 = heg_spec::WeightForm::F32;
    let (exact, _) = workbench
        .compile(model, "exact", |spec| spec.weights = f32)
        .unwrap();
    let (default, _) = workbench.compile(model, "default", |_| ()).unwrap();
    let mut model = executor(&default, "host-cpu", 256).unwrap();
    let mut reference = executor(&exact, "host-cpu-f32", 256).unwrap();
    let passages = passages(&model);
    let rows = RowKind::Prefill;
    let found = score_against(&mut model, &mut reference, &passages, rows, &mut |_| ()).unwrap();
    println!("{}: {found:?}", default.display());
    found.kl.unwrap()
}

/// Measured with activations in groups of 32: 2.8e-5; in groups of 128 it is 6.4e-5.
#[test]
fn the_default_stays_as_accurate_as_it_is() {
    if !openvino_or_skip("the_default_stays_as_accurate_as_it_is") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let folder = fixture("tiny-agent");
    let passages = |model: &Executor| golden(&folder, TRAINED_KEYS, model);
    let kl = default_kl(&workbench, &folder, passages);
    assert!(kl <= 4.5e-5, "{kl}");
}

/// Answers of the f32 model to the prompts of `cargo xtask quality`. OpenVINO GenAI has 0.0082 at these positions, and
/// activations in groups of 128 had 0.0159. Measured: 0.0080.
#[test]
fn smollm2_is_no_less_accurate_than_genai_makes_it() {
    let test = "smollm2_is_no_less_accurate_than_genai_makes_it";
    let Some(file) = fetched::smollm2(test) else {
        return;
    };
    if !openvino_or_skip(test) {
        return;
    }
    let text = std::fs::read_to_string(fixture("smollm2/answers.jsonl")).unwrap();
    let passages = |model: &Executor| {
        let passages = text.lines().map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let tokens: Vec<u32> = serde_json::from_value(line["tokens"].clone()).unwrap();
            let from = line["from"].as_u64().unwrap() as usize;
            Passage::new(tokens, from, model.manifest()).unwrap()
        });
        passages.collect()
    };
    let kl = default_kl(&Workbench::new().unwrap(), &file, passages);
    assert!(kl <= 0.0082, "{kl}");
}

#[test]
fn models_of_other_vocabularies_are_not_compared() {
    if !openvino_or_skip("models_of_other_vocabularies_are_not_compared") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let (trained, _) = workbench
        .compile(&fixture("tiny-agent"), "trained", |_| ())
        .unwrap();
    let (family, _) = workbench
        .compile(&fixture("golden/llama"), "family", |_| ())
        .unwrap();
    let [mut model, mut other] =
        [&trained, &family].map(|bundle| executor(bundle, "host-cpu", 64).unwrap());
    let passage = Passage::new(vec![1, 2, 3], 1, other.manifest()).unwrap();
    let found = score_against(
        &mut model,
        &mut other,
        &[passage],
        RowKind::Prefill,
        &mut |_| (),
    );
    assert!(matches!(
        found,
        Err(RuntimeError::Vocabularies {
            model: 2048,
            against: 256
        })
    ));
}
