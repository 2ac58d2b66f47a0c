//! Tests of chat templates: the fixtures, and the Jinja features that published templates use.
//!
//! The templates in `testdata` are ours, written in the manner of well-known families. The expected texts in
//! `expected.json` were made with Jinja2 itself, configured as in `transformers`.

use super::super::Special;
use super::super::tokenizer::tests::{fixture, tiny_agent};
use super::*;

#[test]
fn golden_prompts_are_rendered_and_encoded() {
    #[derive(serde::Deserialize)]
    struct Golden {
        cases: Vec<Case>,
    }
    #[derive(serde::Deserialize)]
    struct Case {
        messages: Vec<Message>,
        tools: Option<Vec<serde_json::Value>>,
        rendered: String,
        input_ids: Vec<u32>,
        output_ids: Vec<u32>,
        output_text: String,
    }
    let golden = std::fs::read(fixture!("golden.json")).unwrap();
    let golden: Golden = serde_json::from_slice(&golden).unwrap();
    let special = std::fs::read(fixture!("special_tokens_map.json")).unwrap();
    let source = std::fs::read_to_string(fixture!("chat_template.jinja")).unwrap();
    let template = ChatTemplate::new(&source, serde_json::from_slice(&special).unwrap()).unwrap();
    let tokenizer = tiny_agent();
    assert_eq!(golden.cases.len(), 20);
    for case in golden.cases {
        let tools = case.tools.unwrap_or_default();
        let conversation = Conversation {
            messages: case.messages,
            tools,
            add_generation_prompt: true,
            ..Conversation::default()
        };
        let rendered = template.render(&conversation).unwrap();
        assert_eq!(rendered, case.rendered);
        assert_eq!(
            tokenizer.encode(&rendered, Special::AsWritten).unwrap(),
            case.input_ids
        );
        assert_eq!(
            tokenizer.decode(&case.output_ids).unwrap(),
            case.output_text
        );
    }
}

#[derive(serde::Deserialize)]
struct Talk {
    messages: Vec<Message>,
    tools: Option<Vec<serde_json::Value>>,
}

#[derive(serde::Deserialize)]
struct Expected {
    cases: Vec<ExpectedCase>,
}

/// One of `text`, `refused` (by `raise_exception`) and `failed`.
#[derive(serde::Deserialize)]
struct ExpectedCase {
    template: String,
    conversation: String,
    text: Option<String>,
    refused: Option<String>,
}

fn special_tokens() -> BTreeMap<String, String> {
    let token = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    [token("bos_token", "<s>"), token("eos_token", "</s>")].into()
}

#[test]
fn templates_of_many_families_equal_jinja() {
    let sources = BTreeMap::from([
        ("llama_style", include_str!("testdata/llama_style.jinja")),
        ("qwen_style", include_str!("testdata/qwen_style.jinja")),
        ("gemma_style", include_str!("testdata/gemma_style.jinja")),
        ("phi_style", include_str!("testdata/phi_style.jinja")),
        (
            "mistral_style",
            include_str!("testdata/mistral_style.jinja"),
        ),
        ("features", include_str!("testdata/features.jinja")),
    ]);
    let talks: BTreeMap<String, Talk> =
        serde_json::from_str(include_str!("testdata/conversations.json")).unwrap();
    let expected: Expected = serde_json::from_str(include_str!("testdata/expected.json")).unwrap();
    assert_eq!(expected.cases.len(), sources.len() * talks.len());
    for case in expected.cases {
        let talk = &talks[&case.conversation];
        let template =
            ChatTemplate::new(sources[case.template.as_str()], special_tokens()).unwrap();
        let conversation = Conversation {
            messages: talk.messages.clone(),
            tools: talk.tools.clone().unwrap_or_default(),
            add_generation_prompt: true,
            now: Some(DateTime::from_unix_seconds(1_709_210_096)),
            variables: [("enable_thinking".to_owned(), false.into())]
                .into_iter()
                .collect(),
        };
        let found = template.render(&conversation);
        let name = format!("{} of {}", case.template, case.conversation);
        match (case.text, case.refused) {
            (Some(text), _) => assert_eq!(found, Ok(text), "{name}"),
            (None, Some(message)) => {
                assert_eq!(found, Err(TextError::Refused { message }), "{name}")
            }
            (None, None) => assert!(
                matches!(found, Err(TextError::Template { .. })),
                "{name}: {found:?}"
            ),
        }
    }
}

fn render(source: &str) -> Result<String> {
    let messages = vec![Message::new("user", "hi")];
    let conversation = Conversation {
        messages,
        ..Conversation::default()
    };
    ChatTemplate::new(source, BTreeMap::new())?.render(&conversation)
}

fn check_error(source: &str, expect: &str) {
    let found = render(source).map_err(|error| error.to_string());
    assert_eq!(found, Err(expect.to_owned()), "{source}");
}

#[test]
fn broken_templates_are_errors_with_a_line() {
    check_error(
        "a\n{% if %}",
        "chat template, line 2: syntax error: unexpected end of block",
    );
    check_error(
        "{{ x.y }}",
        "chat template, line 1: undefined value: `x` is undefined",
    );
    check_error(
        "{{ x | nope }}",
        "chat template, line 1: unknown filter: filter nope is unknown",
    );
    check_error(
        "\n{{ raise_exception('no ' ~ messages[0].role) }}",
        "chat template refuses the conversation: no user",
    );
    check_error(
        "{{ 'a' * 10 ** 12 }}",
        "chat template, line 1: invalid operation: repeated string is too large",
    );
    check_error(
        "{{ 'a' | indent(10 ** 19) }}",
        "chat template: the template engine stopped at this input",
    );
}

#[test]
fn endless_templates_run_out_of_fuel() {
    let numbers =
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
    check_error(numbers, "chat template, line 1: engine ran out of fuel");
    let calls = "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}";
    assert!(render(calls).is_err());
    let nested = "{% set ns = namespace(x=[]) %}{% for a in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}";
    check_error(
        nested,
        "chat template, line 1: could not serialize to value: nested deeper than 128 levels",
    );
}

/// Messages are untrusted; rendering their prompt ends at the first byte beyond the limit.
#[test]
fn prompts_end_where_there_is_no_room() {
    let source = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    let template = ChatTemplate::new(source, BTreeMap::new()).unwrap();
    let conversation = Conversation {
        messages: vec![Message::new("user", "é".repeat(50)); 10],
        ..Conversation::default()
    };
    let whole = template.render(&conversation).unwrap();
    assert_eq!(whole.len(), 1010);
    assert_eq!(template.render_within(&conversation, 1010), Ok(whole));
    let error = template.render_within(&conversation, 1009).unwrap_err();
    assert_eq!(error, TextError::TooLong { bytes_max: 1009 });
    // A hundred megabytes a step, for as long as the fuel lasts.
    let source = "{% for a in range(9999) %}{{ messages[0].content * 10 ** 6 }}{% endfor %}";
    let template = ChatTemplate::new(source, BTreeMap::new()).unwrap();
    let outcome = template.render_within(&conversation, 1 << 20);
    assert_eq!(outcome, Err(TextError::TooLong { bytes_max: 1 << 20 }));
}

#[test]
fn errors_quote_little_of_what_a_stranger_wrote() {
    let long = "x".repeat(1_000_000);
    let check = |error: TextError| assert!(error.to_string().len() < 1000);
    let refusing = "{{ raise_exception('no ' ~ messages[0].content) }}";
    let template = ChatTemplate::new(refusing, BTreeMap::new()).unwrap();
    let conversation = Conversation {
        messages: vec![Message::new("user", long.clone())],
        ..Conversation::default()
    };
    check(template.render(&conversation).unwrap_err());
    check(Message::try_from(serde_json::json!([long])).unwrap_err());
    check(super::super::Tool::from_json(&serde_json::json!([long])).unwrap_err());
}

/// As agents write them: several system messages, an environment before the task, and notes of the application later.
#[test]
fn templates_that_want_turns_get_them() {
    let said = |role: &str, text: &str| Message::new(role, text);
    let conversation = Conversation {
        messages: vec![
            said("system", "Be brief."),
            said("system", "Ask first."),
            said("user", "In /tmp."),
            said("user", "List it."),
            said("assistant", "Done."),
            said("system", "It is late."),
            said("user", "Thanks."),
        ],
        ..Conversation::default()
    };
    let render = |source: &str| {
        let template = ChatTemplate::new(source, special_tokens()).unwrap();
        template.render_or_in_turns(&conversation, 1 << 20).unwrap()
    };
    assert_eq!(
        render(include_str!("testdata/gemma_style.jinja")),
        "<s><turn>user\nBe brief.\n\nAsk first.\n\nIn /tmp.\n\nList it.<end>\n<turn>model\nDone.<end>\n\
         <turn>user\nIt is late.\n\nThanks.<end>\n"
    );
    // One that takes everything as it is gets it as it is.
    let roles = "{% for message in messages %}{{ message.role[0] }}{% endfor %}";
    assert_eq!(render(roles), "ssuuasu");
    assert!(conversation.in_turns().unwrap().in_turns().is_none());
}

proptest::proptest! {
    /// Whoever speaks in whichever order, in turns one system message begins, no two messages of the user are neighbours,
    /// and everything is said in its order.
    #[test]
    fn conversations_in_turns(roles in proptest::collection::vec(0..4usize, 0..12)) {
        let name = |role: usize| ["system", "user", "assistant", "tool"][role];
        let messages = roles.iter().enumerate();
        let messages = messages.map(|(place, role)| Message::new(name(*role), format!("<{place}>")));
        let conversation = Conversation { messages: messages.collect(), ..Conversation::default() };
        let turns = conversation.in_turns().unwrap_or_else(|| conversation.clone());
        proptest::prop_assert!(turns.in_turns().is_none());
        let roles: Vec<&str> = turns.messages.iter().map(Message::role).collect();
        proptest::prop_assert!(!roles.iter().skip(1).any(|role| *role == "system"));
        proptest::prop_assert!(!roles.windows(2).any(|pair| pair == ["user", "user"]));
        let said = |conversation: &Conversation| -> String {
            let texts = conversation.messages.iter().map(|it| it.fields()["content"].as_str().unwrap());
            texts.collect::<String>().replace("\n\n", "")
        };
        proptest::prop_assert_eq!(said(&turns), said(&conversation));
    }
}

#[test]
fn without_a_date_the_function_is_undefined() {
    let source = "{{ strftime_now('%Y') if strftime_now is defined else 'no date' }}";
    assert_eq!(render(source), Ok("no date".to_owned()));
}

#[test]
fn variables_cannot_hide_the_messages() {
    let variables = [
        ("messages".to_owned(), 3.into()),
        ("mode".to_owned(), "x".into()),
    ];
    let messages = vec![Message::new("user", "hi")];
    let variables = variables.into_iter().collect();
    let conversation = Conversation {
        messages,
        variables,
        ..Conversation::default()
    };
    let template =
        ChatTemplate::new("{{ messages[0].content }} {{ mode }}", BTreeMap::new()).unwrap();
    assert_eq!(template.render(&conversation), Ok("hi x".to_owned()));
}

#[test]
fn generation_tags_have_no_effect() {
    assert_eq!(
        without_generation_tags("a{%- generation -%}b{% endgeneration %}"),
        "a{%- if true -%}b{% endif %}"
    );
    for same in [
        "",
        "{%",
        "{% if generation %}",
        "{% x %",
        "{{ generation }}",
        "a {% set x = '{%' %}",
    ] {
        assert_eq!(without_generation_tags(same), same);
    }
}

#[test]
fn messages_need_a_role() {
    let check = |json: &str, expect: &str| {
        let message: serde_json::Result<Message> = serde_json::from_str(json);
        assert_eq!(message.unwrap_err().to_string(), expect);
    };
    check("3", "message: expected an object, found 3");
    check("{}", "message: expected a field `role`, found {}");
    check(
        r#"{"role":null}"#,
        "message: expected a text as `role`, found null",
    );
    let json = r#"{"role":"user","z":1,"a":{"c":2,"b":3}}"#;
    let message: Message = serde_json::from_str(json).unwrap();
    assert_eq!((message.role(), message.fields().len()), ("user", 3));
    assert_eq!(serde_json::to_string(&message).unwrap(), json);
}

#[test]
fn a_template_reads_variables_and_fields_of_messages() {
    let source = "{{ a }}{{ m.b }}{{ m['c'] }}{{ m[\"d\"] }}{{ m.eff }}{{ 'f g' }}{# h #}";
    let template = ChatTemplate::new(source, Default::default()).unwrap();
    for name in ["a", "b", "c", "d", "eff"] {
        assert!(template.reads(name), "{name}");
    }
    for name in ["e", "f", "g", "h", "ef", "x"] {
        assert!(!template.reads(name), "{name}");
    }
}

#[test]
fn loaded_things_are_shared_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<ChatTemplate>();
    check::<super::super::Tokenizer>();
    check::<super::super::TextStream>();
}
