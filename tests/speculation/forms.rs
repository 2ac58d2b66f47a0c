//! Answers in a form, which have drafts of what the form alone allows, too.

use heg_runtime::Loaded;
use heg_runtime::engine::{Engine, Request, Speculation};
use heg_spec::WeightForm;
use heg_text::Grammars;
use serde_json::json;

use super::{Subject, answer, request};

#[test]
fn answers_in_a_form_are_the_same() {
    let subject = Subject::tiny_agent(WeightForm::F32);
    let loaded = Loaded::open(&subject.bundle).unwrap();
    let eos_ids = &loaded.bundle().manifest().text.eos_ids;
    let grammars = Grammars::new(&loaded.tokenizer().unwrap(), eos_ids).unwrap();
    let schema = json!({"type": "object", "properties": {
        "reminder": {"type": "string", "maxLength": 12}, "is_important": {"type": "boolean"},
        "category": {"enum": ["household", "appointment"]},
    }, "required": ["reminder", "is_important", "category"], "additionalProperties": false});
    let ask = |engine: &Engine, at: usize| {
        let grammar = grammars.json_schema(&schema).unwrap();
        answer(engine.generate(Request {
            restriction: Some(Box::new(grammar)),
            tokens_max: 100,
            ..request(at, &subject.prompts[at])
        }))
    };
    let plain = subject.engine(Speculation::Off);
    let asked = 0..subject.prompts.len();
    let expected: Vec<_> = asked.clone().map(|at| ask(&plain, at).0).collect();
    for speculation in [Speculation::Chain, Speculation::Tree] {
        let drafting = subject.engine(speculation);
        let (mut steps, mut decoded) = (0, 0);
        for at in asked.clone() {
            let (tokens, ending) = ask(&drafting, at);
            assert_eq!(tokens, expected[at], "{speculation:?}, prompt {at}");
            let drafts = ending.drafts.unwrap();
            (steps, decoded) = (steps + drafts.steps, decoded + ending.generated - 1);
        }
        let a_step = f64::from(decoded) / f64::from(steps);
        println!("{speculation:?}: {a_step:.2} tokens a step in a form");
        // How much is drafted depends on the time that rows take on a busy machine.
        assert!(a_step > 1.0, "{speculation:?}: {a_step}");
    }
}
