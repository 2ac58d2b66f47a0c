//! Tests of forms on tiny-agent's vocabulary.

use serde_json::json;

use super::super::Special;
use super::super::thoughts::{ThoughtOpening, ThoughtSyntax};
use super::super::tokenizer::tests::tiny_agent;
use super::super::tools::ArgumentsKey;
use super::*;

const EOS: u32 = 2041;

pub(super) fn grammars() -> Grammars {
    Grammars::new(&tiny_agent(), &[EOS]).unwrap()
}

/// Returns the state after a text if the text is an answer of this form; the state says whether the answer must end
/// there.
fn accepts(mut grammar: Grammar, text: &str) -> Option<GrammarState> {
    let tokenizer = tiny_agent();
    let mut answer = GrammarState::Open;
    let mut logits = vec![0.0; 2048];
    for token in tokenizer.encode(text, Special::AsWritten).unwrap() {
        logits.fill(0.0);
        grammar.restrict(&mut logits).ok()?;
        if logits[token as usize] != 0.0 {
            return None;
        }
        answer = grammar.chosen(token).unwrap();
    }
    logits.fill(0.0);
    grammar.restrict(&mut logits).ok()?;
    (logits[EOS as usize] == 0.0).then_some(answer)
}

fn schema(schema: Value) -> Result<Grammar> {
    grammars().json_schema(&schema)
}

/// Returns the error message of a schema.
fn refused(form: Result<Grammar>) -> String {
    form.err()
        .map(|error| error.to_string())
        .unwrap_or_default()
}

#[test]
fn instances_of_a_schema() {
    let age = json!({"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}},
        "required": ["age"], "additionalProperties": false});
    let check = |text: &str| accepts(schema(age.clone()).unwrap(), text);
    assert_eq!(check(r#"{"age":7}"#), Some(GrammarState::Complete));
    assert_eq!(check(r#"{ "age": 7 }"#), Some(GrammarState::Complete));
    for wrong in [
        r#"{"age":"7"}"#,
        r#"{"age":-7}"#,
        r#"{"age":7"#,
        "{}",
        "",
        "7",
        r#"{"age":7} "#,
    ] {
        assert_eq!(check(wrong), None, "{wrong}");
    }
    assert_eq!(check(r#"{  "age":7}"#), None);
    // The number may have more digits.
    assert_eq!(
        accepts(schema(json!(true)).unwrap(), "7"),
        Some(GrammarState::Open)
    );
    let any = || grammars().json_object().unwrap();
    assert_eq!(
        accepts(any(), r#"{"é":{"b":[1,null]}}"#),
        Some(GrammarState::Complete)
    );
    assert_eq!(accepts(any(), "[]"), None);
    assert_eq!(
        accepts(grammars().regex("[a-c]+").unwrap(), "abc"),
        Some(GrammarState::Open)
    );
    assert_eq!(
        accepts(grammars().regex("a/b").unwrap(), "a/b"),
        Some(GrammarState::Complete)
    );
}

/// Returns the state after an answer of a form that the model may think before.
fn behind_thought(opening: ThoughtOpening, form: AnswerForm, text: &str) -> Option<GrammarState> {
    let syntax = ThoughtSyntax::Tagged;
    let form = AnswerForm::BehindThought {
        syntax,
        opening,
        form: Box::new(form),
    };
    accepts(grammars().grammar(form).unwrap(), text)
}

#[test]
fn a_form_holds_what_comes_behind_a_thought() {
    use ThoughtOpening::{InAnswer, InPrompt};
    let json = |opening, text| behind_thought(opening, AnswerForm::JsonObject, text);
    let done = Some(GrammarState::Complete);
    assert_eq!(json(InPrompt, "a\n\n{b}\n</think>\n\n{\"a\":1}"), done);
    assert_eq!(json(InPrompt, "</think>{}"), done);
    assert_eq!(json(InAnswer, "{}"), done);
    assert_eq!(json(InAnswer, "\n<think>\na < b</think>\n\n{}"), done);
    for wrong in [
        "{}",
        "a",
        "a</think>",
        "a</think>b",
        "a</think>[]",
        "a</think>{}</think>",
    ] {
        assert_eq!(json(InPrompt, wrong), None, "{wrong}");
    }
    for wrong in ["a</think>{}", "<think>{}", "<think>a</think>", "<thin{}"] {
        assert_eq!(json(InAnswer, wrong), None, "{wrong}");
    }
}

#[test]
fn calls_are_held_behind_a_thought() {
    use ThoughtOpening::{InAnswer, InPrompt};
    let tool =
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let calls = |choice| AnswerForm::ToolCalls {
        syntax: ToolSyntax::Bare(ArgumentsKey::Arguments),
        tools: vec![Tool::from_json(&tool).unwrap()],
        choice,
        calls: Calls::One,
    };
    let call = r#"{"name": "f", "arguments": {}}"#;
    for choice in [ToolChoice::Auto, ToolChoice::Required] {
        let accepts = |opening, text: &str| behind_thought(opening, calls(choice.clone()), text);
        let done = Some(GrammarState::Complete);
        assert_eq!(accepts(InPrompt, &format!("a</think>\n\n{call}")), done);
        assert_eq!(accepts(InAnswer, call), done);
        // Where text is allowed, a thought that the answer opens may be some, and so may all behind it.
        let opened = accepts(InAnswer, &format!("<think>a</think>{call}"));
        assert_eq!(opened == done, choice == ToolChoice::Required);
        assert!(opened.is_some());
        let other = call.replace("\"f\"", "\"g\"");
        assert_eq!(accepts(InPrompt, &format!("a</think>{other}")), None);
        let said = accepts(InPrompt, "a</think>b").is_some();
        assert_eq!(said, choice == ToolChoice::Auto);
    }
}

/// These options, set by an untrusted schema, would make something else than JSON.
#[test]
fn options_of_the_library_are_not_taken_from_schemas() {
    let grammar = schema(json!({"type": "array", "x-guidance": {"item_separator": ";"}}));
    assert_eq!(accepts(grammar.unwrap(), "[1;2]"), None);
}

#[test]
fn schemas_that_cannot_be_used_are_refused() {
    let deep = |levels| (0..levels).fold(json!({}), |schema, _| json!({"items": schema}));
    let text = "x".repeat(300_000);
    let refusals = [
        schema(json!(3)),
        schema(json!({"type": "text"})),
        schema(json!({"type": "integer", "minimum": 2, "maximum": 1})),
        schema(json!({"not": {"type": "string"}})),
        schema(json!({"$ref": "https://example.org/schema"})),
        schema(json!({"$ref": "#/$defs/missing"})),
        schema(json!({"type": "string", "format": "swift"})),
        schema(json!({"type": "string", "pattern": "(?=a)"})),
        schema(json!({"type": "string", "pattern": "("})),
        schema(json!({"enum": vec![0; 20_000]})),
        schema(deep(129)),
        schema(json!({"const": text})),
        grammars().regex("("),
        grammars().regex(&text),
    ];
    let refusals: Vec<String> = refusals.into_iter().map(refused).collect();
    insta::assert_snapshot!("refused_forms", refusals.join("\n"));
}

/// Before it was bounded, each of these took the compiler long, or much stack or memory.
#[test]
fn hostile_schemas_are_bounded() {
    let chain: serde_json::Map<_, _> = (0..4000)
        .map(|link| {
            (
                format!("d{link}"),
                json!({"$ref": format!("#/$defs/d{}", link + 1)}),
            )
        })
        .chain([("d4000".to_owned(), json!({"type": "null"}))])
        .collect();
    let choices = || (0..60).map(|n| json!({"properties": {format!("p{n}"): {"minLength": n}}}));
    let factor = || json!({"anyOf": choices().collect::<Vec<_>>()});
    let hostile = [
        json!({"$ref": "#/$defs/d0", "$defs": chain}),
        json!({"allOf": [factor(), factor(), factor(), factor()]}),
        json!({"type": "string", "minLength": 1_000_000_000}),
        json!({"type": "string", "pattern": "(.*a){60}(.*b){60}"}),
        json!({"type": "array", "minItems": u64::MAX}),
        json!({"type": "number", "multipleOf": 1e-300, "minimum": -1e300, "maximum": 1e300}),
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"anyOf": (0..5000).map(|n| json!({"const": format!("c{n}")})).collect::<Vec<_>>()}),
    ];
    let hostile = hostile.into_iter().chain([
        json!({"type": "string", "pattern": "(a{1000}){1000}"}),
        json!({"type": "string", "pattern": "(".repeat(50_000)}),
        json!({"type": "string", "pattern": format!("{}a{}", "(".repeat(200), "{0,9})".repeat(200))}),
    ]);
    let grammars = grammars();
    for schema in hostile {
        let begin = std::time::Instant::now();
        if let Ok(mut grammar) = grammars.json_schema(&schema) {
            // A grammar that compiles must give a token or an error.
            let _ = grammar.restrict(&mut [0.0; 2048]);
        }
        let (took, start) = (begin.elapsed(), schema.to_string());
        assert!(
            took.as_secs() < 10,
            "{took:?}: {}",
            &start[..start.len().min(80)]
        );
    }
}

#[test]
fn a_token_that_was_forbidden_is_an_error() {
    let mut grammar = schema(json!({"type": "null"})).unwrap();
    let error = grammar.chosen(EOS).unwrap_err();
    assert!(matches!(error, TextError::Restriction { .. }), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
}

fn tools() -> Vec<Tool> {
    let parameters = json!({"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}},
        "required": ["city"], "additionalProperties": false, "$defs": {"city": {"enum": ["Oslo", "Bern"]}}});
    let tool = |name: &str, parameters| Tool {
        name: name.into(),
        parameters,
    };
    vec![tool("weather", Some(parameters)), tool("stop", None)]
}

const OSLO: &str = r#"{"name": "weather", "arguments": {"city": "Oslo"}}"#;
const STOP: &str = r#"{"name":"stop","arguments":{}}"#;
const BARE: ToolSyntax = ToolSyntax::Bare(ArgumentsKey::Arguments);
const LISTED: ToolSyntax = ToolSyntax::Listed("[TOOL_CALLS]");

#[test]
fn arguments_that_a_tool_does_not_name_are_not_made_up() {
    let completes = |parameters: Value, arguments: &str| {
        let tool = Tool {
            name: "f".into(),
            parameters: Some(parameters),
        };
        let grammar = grammars().tool_calls(BARE, &[tool], &ToolChoice::Required, Calls::One);
        let call = format!(r#"{{"name": "f", "arguments": {arguments}}}"#);
        accepts(grammar.unwrap().unwrap(), &call) == Some(GrammarState::Complete)
    };
    let known = json!({"a": {"type": "integer"}});
    let plain = json!({"type": "object", "properties": known});
    assert!(completes(plain.clone(), r#"{"a": 1}"#));
    assert!(!completes(plain, r#"{"a": 1, "b": 2}"#));
    // A schema that says more about further properties is left unchanged.
    for open in [
        json!({"type": "object", "properties": known, "additionalProperties": true}),
        json!({"type": "object", "properties": known, "required": ["b"]}),
        json!({"type": "object", "properties": known, "allOf": [{"required": ["b"]}]}),
        json!({"type": "object"}),
    ] {
        assert!(completes(open.clone(), r#"{"a": 1, "b": 2}"#), "{open}");
    }
}

/// Agents send the schemas of their own validators.
#[test]
fn keywords_that_are_not_known_hold_no_arguments() {
    let parameters = json!({"type": "object", "additionalProperties": false, "properties": {
        "names": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}},
        "at": {"type": "string", "format": "of my own"},
    }});
    assert!(refused(schema(parameters.clone())).contains("propertyNames"));
    let tool = Tool {
        name: "f".into(),
        parameters: Some(parameters),
    };
    let completes = |arguments: &str| {
        let tools = std::slice::from_ref(&tool);
        let grammar = grammars().tool_calls(BARE, tools, &ToolChoice::Required, Calls::One);
        let call = format!(r#"{{"name": "f", "arguments": {arguments}}}"#);
        accepts(grammar.unwrap().unwrap(), &call) == Some(GrammarState::Complete)
    };
    assert!(completes(r#"{"names": {"a": 1}, "at": "5 pm"}"#));
    assert!(!completes(r#"{"names": 1}"#));
}

/// Returns whether an answer of tool calls, or of text, is valid.
fn answers(
    syntax: ToolSyntax,
    choice: &ToolChoice,
    calls: Calls,
    text: &str,
) -> Option<GrammarState> {
    let grammar = grammars().tool_calls(syntax, &tools(), choice, calls);
    accepts(grammar.unwrap().unwrap(), text)
}

#[test]
fn required_calls() {
    let required = |syntax, calls, text: &str| answers(syntax, &ToolChoice::Required, calls, text);
    let (open, complete) = (Some(GrammarState::Open), Some(GrammarState::Complete));
    assert_eq!(required(BARE, Calls::Many, OSLO), complete);
    assert_eq!(
        required(BARE, Calls::One, &format!("<|python_tag|>{STOP}")),
        complete
    );
    let wrong = OSLO.replace("Oslo", "Rome");
    for wrong in [
        "None.",
        "",
        &wrong,
        r#"{"name":"stop","arguments":{"a":1}}"#,
        r#"{"name":"go","arguments":{}}"#,
    ] {
        assert_eq!(required(BARE, Calls::Many, wrong), None, "{wrong}");
    }
    let tagged = format!("<tool_call>\n{OSLO}\n</tool_call>");
    assert_eq!(required(ToolSyntax::Tagged, Calls::One, &tagged), complete);
    assert_eq!(required(ToolSyntax::Tagged, Calls::Many, &tagged), open);
    let two = format!("{tagged}\n{tagged}");
    assert_eq!(required(ToolSyntax::Tagged, Calls::Many, &two), open);
    assert_eq!(required(ToolSyntax::Tagged, Calls::One, &two), None);
    assert_eq!(
        required(ToolSyntax::Tagged, Calls::Many, &format!("Yes. {tagged}")),
        None
    );
    let listed = |calls: &[&str]| format!("[TOOL_CALLS] [{}]", calls.join(", "));
    assert_eq!(required(LISTED, Calls::One, &listed(&[OSLO])), complete);
    assert_eq!(
        required(LISTED, Calls::Many, &listed(&[OSLO, STOP])),
        complete
    );
    assert_eq!(required(LISTED, Calls::One, &listed(&[OSLO, STOP])), None);
    assert_eq!(required(LISTED, Calls::Many, &listed(&[])), None);
}

/// Arguments are an object whatever their schema says.
#[test]
fn arguments_are_an_object() {
    let called = |parameters, arguments: &str| {
        let tool = Tool {
            name: "f".into(),
            parameters: Some(parameters),
        };
        let grammar = grammars().tool_calls(BARE, &[tool], &ToolChoice::Required, Calls::One);
        accepts(
            grammar.ok()??,
            &format!(r#"{{"name":"f","arguments":{arguments}}}"#),
        )
    };
    let defined = json!({"$defs": {"n": {"type": "null"}}, "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"]});
    for parameters in [json!(true), json!({}), defined.clone()] {
        assert_eq!(
            called(parameters.clone(), r#"{"a":null}"#),
            Some(GrammarState::Complete)
        );
        assert_eq!(called(parameters, "null"), None);
    }
    assert_eq!(called(defined, r#"{"a":1}"#), None);
    assert_eq!(called(json!({"type": "string"}), r#""a""#), None);
}

#[test]
fn a_named_tool_is_the_only_one() {
    let stop = ToolChoice::Named("stop".into());
    assert_eq!(
        answers(BARE, &stop, Calls::One, STOP),
        Some(GrammarState::Complete)
    );
    assert_eq!(answers(BARE, &stop, Calls::One, OSLO), None);
    let go = ToolChoice::Named("go".into());
    let errors = [
        grammars().tool_calls(BARE, &tools(), &go, Calls::One),
        grammars().tool_calls(BARE, &[], &ToolChoice::Required, Calls::One),
    ];
    assert_eq!(
        errors.map(|error| error.unwrap_err().to_string()),
        [
            "tools: `go` is required, and is not one of them",
            "tools: a call is required, and there are none"
        ]
    );
    for (tools, choice) in [(tools(), ToolChoice::None), (Vec::new(), ToolChoice::Auto)] {
        let free = grammars().tool_calls(BARE, &tools, &choice, Calls::Many);
        assert!(free.unwrap().is_none());
    }
}

#[test]
fn text_or_calls() {
    let auto = |syntax, calls, text: &str| answers(syntax, &ToolChoice::Auto, calls, text);
    let (open, complete) = (Some(GrammarState::Open), Some(GrammarState::Complete));
    for syntax in [BARE, ToolSyntax::Tagged, LISTED] {
        for text in [
            "",
            "None of my tools can do that, é.",
            " a < {b} [",
            "two\n\nlines\n",
        ] {
            assert_eq!(auto(syntax, Calls::Many, text), open, "{syntax:?}: {text}");
        }
        assert_eq!(auto(syntax, Calls::Many, "a<|python_tag|>"), None);
    }
    assert_eq!(auto(BARE, Calls::Many, OSLO), complete);
    assert_eq!(auto(BARE, Calls::Many, &format!("\n{OSLO}")), complete);
    // An answer that begins like a call must be one.
    assert_eq!(
        auto(BARE, Calls::Many, r#"{"name":"go","arguments":{}}"#),
        None
    );
    let tagged = format!("<tool_call>{OSLO}</tool_call>");
    assert_eq!(
        auto(
            ToolSyntax::Tagged,
            Calls::Many,
            &format!("Yes.\n{tagged}\n{tagged} Done.")
        ),
        open
    );
    assert_eq!(
        auto(ToolSyntax::Tagged, Calls::One, &format!("Yes.\n{tagged}")),
        complete
    );
    assert_eq!(
        auto(ToolSyntax::Tagged, Calls::Many, "<tool_call>{}</tool_call>"),
        None
    );
    assert_eq!(
        auto(
            LISTED,
            Calls::Many,
            &format!("Yes. [TOOL_CALLS][{OSLO}, {STOP}]")
        ),
        complete
    );
    assert_eq!(auto(LISTED, Calls::Many, "[TOOL_CALLS] none"), None);
}

#[test]
fn vocabularies_of_words_are_refused() {
    let json =
        r#"{"version":"1.0","model":{"type":"WordLevel","unk_token":"?","vocab":{"?":0,"hi":1}}}"#;
    let words = Tokenizer::from_json(json.as_bytes()).unwrap();
    assert_eq!(
        Grammars::new(&words, &[]).unwrap_err().to_string(),
        "vocabulary: expected byte-level BPE or SentencePiece with byte fallback"
    );
}
