//! Answers in a form, which also have drafts of the tokens that the form forces.

use heg_runtime::Loaded;
use heg_runtime::engine::{Engine, Request, Speculation};
use heg_spec::WeightForm;
use heg_text::{Calls, Grammar, Grammars, Tool, ToolChoice, ToolSyntax};
use serde_json::json;

use super::{Subject, answer, request};

#[test]
fn answers_in_a_form_are_the_same() {
    let schema = json!({"type": "object", "properties": {
        "reminder": {"type": "string", "maxLength": 12}, "is_important": {"type": "boolean"},
        "category": {"enum": ["household", "appointment"]},
    }, "required": ["reminder", "is_important", "category"], "additionalProperties": false});
    are_the_same(&|grammars| grammars.json_schema(&schema).unwrap());
}

#[test]
fn calls_of_tools_are_the_same() {
    let parameters = json!({"type": "object", "properties": {
        "town": {"type": "string", "maxLength": 12}, "unit": {"enum": ["celsius", "fahrenheit"]},
    }, "required": ["town", "unit"], "additionalProperties": false});
    let tools = ["look_up_the_weather", "look_up_the_time"].map(|name| Tool {
        name: name.to_owned(),
        parameters: Some(parameters.clone()),
    });
    are_the_same(&|grammars| {
        let choice = &ToolChoice::Required;
        let grammar = grammars.tool_calls(ToolSyntax::Tagged, &tools, choice, Calls::One);
        grammar.unwrap().unwrap()
    });
}

/// Checks that answers of a form are the same without drafts, with chains and with trees.
fn are_the_same(form: &dyn Fn(&Grammars) -> Grammar) {
    let subject = Subject::tiny_agent(WeightForm::F32);
    let loaded = Loaded::open(&subject.bundle).unwrap();
    let eos_ids = &loaded.bundle().manifest().text.eos_ids;
    let grammars = Grammars::new(&loaded.tokenizer().unwrap(), eos_ids).unwrap();
    let ask = |engine: &Engine, at: usize| {
        answer(engine.generate(Request {
            restriction: Some(Box::new(form(&grammars))),
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
        // The length of drafts depends on the time that rows take on a busy machine.
        assert!(a_step > 1.0, "{speculation:?}: {a_step}");
    }
}
