//! Tests of forms in the worker.

use std::time::{Duration, Instant};

use heg_confine::{Confined, Forms, Leash, Wait};
use heg_text::{
    AnswerForm, ArgumentsKey, Calls, Grammar, GrammarState, Grammars, Restriction, Tool,
    ToolChoice, ToolSyntax,
};
use serde_json::{Value, json};

use crate::world::{EOS, processes, tokenizer, wait_until, worker};

fn schema(schema: Value) -> AnswerForm {
    AnswerForm::JsonSchema(schema)
}

fn ordinary() -> AnswerForm {
    schema(
        json!({"type": "object", "properties": {"city": {"enum": ["Oslo", "Bern"]}, "n": {"type": "integer"},
        "list": {"type": "array", "items": {"type": "string", "maxLength": 9}}}, "required": ["city", "n"]}),
    )
}

/// Forms that are within all limits on size, but for which the compiler takes all the time or all the memory.
fn hostile() -> Vec<AnswerForm> {
    let constants = |count| (0..count).map(|at| format!("c{at}")).collect::<Vec<_>>();
    let words: Vec<String> = (0..400).map(|at| format!("d{at}")).collect();
    let words = format!("^(c[0-9]+|{})$", words.join("|"));
    let repeats = "(ab?){1,9}".repeat(2000);
    vec![
        schema(
            json!({"allOf": [{"enum": constants(19_000)}, {"type": "string", "pattern": words}]}),
        ),
        schema(
            json!({"allOf": [{"enum": constants(9000)}, {"type": "string", "pattern": repeats}]}),
        ),
    ]
}

/// Returns the masks and states of an answer whose tokens are chosen by `seed`.
fn walk(grammar: &mut dyn Restriction, seed: u64) -> Vec<(Vec<f32>, Option<GrammarState>)> {
    let mut random = seed;
    let mut seen = Vec::new();
    grammar.look_ahead();
    for step in 0..60 {
        let mut logits = vec![0.0; 2100];
        grammar.restrict(&mut logits).unwrap();
        let allowed: Vec<u32> = (0..2100)
            .filter(|token| logits[*token as usize] == 0.0)
            .collect();
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let token = allowed[(random >> 33) as usize % allowed.len()];
        if step % 5 == 4 {
            let _ = grammar.chosen(token).unwrap();
            grammar.undo().unwrap();
        }
        if token == EOS {
            return seen;
        }
        let state = grammar.chosen(token).unwrap();
        seen.push((logits, Some(state)));
        if state == GrammarState::Complete {
            return seen;
        }
    }
    seen
}

#[test]
fn answers_are_what_this_process_would_allow() {
    let forms = Forms::new(worker(|_| ()));
    let here = Grammars::new(&tokenizer(), &[EOS]).unwrap();
    let tools = vec![Tool {
        name: "weather".to_owned(),
        parameters: Some(json!({"type": "object", "properties": {"city": {"type": "string"}}})),
    }];
    let (syntax, choice, calls) = (
        ToolSyntax::Bare(ArgumentsKey::Arguments),
        ToolChoice::Required,
        Calls::One,
    );
    let AnswerForm::JsonSchema(of_ordinary) = ordinary() else {
        panic!("it is a schema")
    };
    let made: [(AnswerForm, Box<dyn Fn() -> Grammar + '_>); 4] = [
        (
            AnswerForm::JsonObject,
            Box::new(|| here.json_object().unwrap()),
        ),
        (
            ordinary(),
            Box::new(|| here.json_schema(&of_ordinary).unwrap()),
        ),
        (
            AnswerForm::Regex("[a-f]{3,9}( and| or)x*".to_owned()),
            Box::new(|| here.regex("[a-f]{3,9}( and| or)x*").unwrap()),
        ),
        (
            AnswerForm::ToolCalls {
                syntax,
                tools: tools.clone(),
                choice: choice.clone(),
                calls,
            },
            Box::new(|| {
                here.tool_calls(syntax, &tools, &choice, calls)
                    .unwrap()
                    .unwrap()
            }),
        ),
    ];
    for (form, local) in made {
        let held = forms.hold(1, &form, 3, Wait::default()).unwrap();
        assert!(
            held.kept_bytes > 0 && held.kept_bytes < 16 << 20,
            "{}",
            held.kept_bytes
        );
        for (seed, mut grammar) in held.grammars.into_iter().enumerate() {
            let expected = walk(&mut local(), seed as u64);
            assert_eq!(walk(&mut grammar, seed as u64), expected, "{form:?}");
            assert!(!expected.is_empty());
        }
    }
}

/// One process keeps the vocabulary, one the form, and one each answer.
#[test]
fn a_form_is_compiled_once() {
    let worker = worker(|_| ());
    let forms = Forms::new(worker.clone());
    let held = forms.hold(1, &ordinary(), 8, Wait::default()).unwrap();
    assert_eq!(held.grammars.len(), 8);
    assert_eq!(processes(&worker).len(), 2 + 8);
    let again = forms.hold(1, &ordinary(), 1, Wait::default()).unwrap();
    assert_eq!(processes(&worker).len(), 2 + 9);
    assert!(forms.knows(1, &ordinary()));
    drop((held, again));
    wait_until("answers end", || processes(&worker).len() == 2);
    // Another client's form is not found, and is compiled again.
    assert!(!forms.knows(2, &ordinary()));
    let strangers = forms.hold(2, &ordinary(), 1, Wait::default()).unwrap();
    assert_eq!(processes(&worker).len(), 2 + 2);
    // Unused forms are dropped, but not while they have answers.
    for n in 0..9 {
        drop(
            forms
                .hold(2, &schema(json!({"const": n})), 1, Wait::default())
                .unwrap(),
        );
    }
    wait_until("the oldest end", || {
        processes(&worker).len() == 1 + 1 + 4 + 2
    });
    assert!(!forms.knows(2, &ordinary()) && forms.knows(1, &ordinary()));
    drop(strangers);
    wait_until("the form ends with its answer", || {
        processes(&worker).len() == 1 + 1 + 4
    });
}

#[test]
fn forms_that_take_too_much_are_refused() {
    let worker = worker(|_| ());
    let forms = Forms::new(worker.clone());
    for form in hostile() {
        let refused = forms.hold(1, &form, 1, Wait::default());
        let Err(Confined::Refused(error)) = &refused else {
            panic!("{refused:?}")
        };
        println!("{error}");
        assert!(error.to_string().starts_with("JSON schema: "), "{error}");
        wait_until("its process ends", || processes(&worker).len() == 1);
        // The form is known now, and is refused without a process.
        assert!(forms.knows(1, &form) && !forms.knows(2, &form));
        assert_eq!(
            forms.hold(1, &form, 1, Wait::default()).unwrap_err(),
            refused.unwrap_err()
        );
        let ordinary = forms.hold(2, &ordinary(), 1, Wait::default()).unwrap();
        drop((ordinary, Forms::new(worker.clone())));
        wait_until("answers end", || processes(&worker).len() == 2);
        assert!(
            forms
                .hold(
                    2,
                    &schema(json!({"not": {"type": "string"}})),
                    1,
                    Wait::default()
                )
                .is_err()
        );
        for n in 0..4 {
            assert!(forms.hold(2, &schema(json!({"minimum": 1, "maximum": 0, "type": "integer", "title": n.to_string()})), 1, Wait::default()).is_err());
        }
        wait_until("the ordinary form is given up", || {
            processes(&worker).len() == 1
        });
    }
}

#[test]
fn a_form_that_nobody_waits_for_ends() {
    let worker = worker(|_| ());
    let forms = Forms::new(worker.clone());
    let form = &hostile()[0];
    let wait = Wait {
        deadline: Some(Instant::now() + Duration::from_millis(300)),
        leash: None,
    };
    assert_eq!(
        forms.hold(1, form, 1, wait).unwrap_err(),
        Confined::Deadline
    );
    wait_until("the late process ends", || processes(&worker).len() == 1);
    // The form may be compiled another time: the sender's time was over, which says nothing about the form.
    assert!(!forms.knows(1, form));
    let leash = Leash::default();
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let wait = Wait {
                deadline: None,
                leash: Some(&leash),
            };
            forms.hold(1, form, 1, wait).map(|held| held.kept_bytes)
        });
        wait_until("it is being compiled", || processes(&worker).len() == 2);
        // Other clients still get theirs.
        assert!(forms.hold(2, &ordinary(), 1, Wait::default()).is_ok());
        leash.end();
        assert_eq!(work.join().unwrap(), Err(Confined::Gone));
    });
    let took = wait_until("the left process ends", || processes(&worker).len() == 2);
    println!("a process that was left ended after {took:?}");
}

/// If an answer's process is killed, the answer ends with an error, and the next one gets another process.
#[test]
fn an_answer_whose_process_is_lost_ends() {
    let worker = worker(|_| ());
    let forms = Forms::new(worker.clone());
    let mut held = forms.hold(1, &ordinary(), 1, Wait::default()).unwrap();
    let answer = *processes(&worker).last().unwrap();
    let status = std::process::Command::new("kill")
        .args(["-9", &answer.to_string()])
        .status();
    assert!(status.unwrap().success());
    let grammar = &mut held.grammars[0];
    let mut logits = vec![0.0; 2048];
    grammar.restrict(&mut logits).unwrap();
    let token = logits.iter().position(|logit| *logit == 0.0).unwrap();
    let error = grammar.chosen(token as u32).unwrap_err();
    assert!(
        error.to_string().contains("cannot be held to its form"),
        "{error}"
    );
    assert!(forms.hold(1, &ordinary(), 1, Wait::default()).is_ok());
    let form = processes(&worker)[1];
    let status = std::process::Command::new("kill")
        .args(["-9", &form.to_string()])
        .status();
    assert!(status.unwrap().success());
    wait_until("the form's process ends", || {
        !processes(&worker).contains(&form)
    });
    assert!(forms.hold(1, &ordinary(), 1, Wait::default()).is_ok());
}
