//! Tests with answers in each syntax, whole and cut at every place.

use super::super::ArgumentsKey;
use super::*;

const BARE: ToolSyntax = ToolSyntax::Bare(ArgumentsKey::Arguments);
const LISTED: ToolSyntax = ToolSyntax::Listed("[TOOL_CALLS]");

fn text(text: &str) -> Said {
    Said::Text(text.into())
}

fn call(name: &str, arguments: &str) -> Said {
    Said::Call(ToolCall {
        name: name.into(),
        arguments: arguments.into(),
    })
}

/// Returns the parsed parts, with neighbouring text joined.
fn parse<'a>(syntax: ToolSyntax, pieces: impl IntoIterator<Item = &'a str>) -> Vec<Said> {
    let mut parser = ToolCallParser::new(syntax);
    let pieces = pieces.into_iter();
    let mut all: Vec<Said> = pieces.flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    let mut joined: Vec<Said> = Vec::new();
    for part in all {
        match (joined.last_mut(), part) {
            (Some(Said::Text(before)), Said::Text(text)) => before.push_str(&text),
            (_, part) => joined.push(part),
        }
    }
    joined
}

/// Checks an answer at once, letter by letter, and in two pieces cut anywhere.
fn check(syntax: ToolSyntax, answer: &str, expected: &[Said]) {
    assert_eq!(parse(syntax, [answer]), expected, "{answer}");
    let letters: Vec<String> = answer.chars().map(String::from).collect();
    let found = parse(syntax, letters.iter().map(String::as_str));
    assert_eq!(found, expected, "{answer}, letter by letter");
    for (cut, _) in answer.char_indices() {
        let (before, after) = answer.split_at(cut);
        assert_eq!(parse(syntax, [before, after]), expected, "{before}|{after}");
    }
}

#[test]
fn bare_calls() {
    let arguments = r#"{"city": "Oslo\n", "days":1e400}"#;
    let answer = format!(r#" {{"name":"weather","arguments":{arguments}}}"#);
    check(BARE, &answer, &[call("weather", arguments)]);
    let called = [call("f", "{}")];
    check(BARE, r#"{"name":"f","parameters":{}}"#, &called);
    let typed = r#"{"type":"function","name":"\u0066","parameters":{}}"#;
    check(BARE, typed, &called);
    for answer in [
        r#"{"action":"none"}"#,
        r#"{"name":"f","arguments":{}"#,
        r#"{"name":"f","arguments":{}} and more"#,
        r#"{"name":"f","arguments":[]}"#,
        r#"{"name":"f"}"#,
        r#"None of {"name":"f","arguments":{}}"#,
        "fine  ",
        "{",
    ] {
        check(BARE, answer, &[text(answer)]);
    }
    check(BARE, "", &[]);
}

#[test]
fn tagged_calls() {
    let syntax = ToolSyntax::Tagged;
    let two = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1]}}\n</tool_call>
        <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
    let (f, g) = (call("f", r#"{"a": [1]}"#), call("g", "{}"));
    check(syntax, two, &[f.clone(), g.clone()]);
    let between = format!("Let me see.\n{two}\nDone, é.");
    let expected = [text("Let me see."), f, g.clone(), text("Done, é.")];
    check(syntax, &between, &expected);
    // The closing stands inside a string of the call.
    let arguments = r#"{"a\"":"</tool_call>é</tool_call>{"}"#;
    let answer = format!(r#"<tool_call>{{"name":"f","arguments":{arguments}}}</tool_call>"#);
    check(syntax, &answer, &[call("f", arguments)]);
    // The model ended without a closing.
    let answer = r#"<tool_call>{"name":"g","arguments":{}}"#;
    check(syntax, answer, std::slice::from_ref(&g));
    let answer = r#"<tool_call>no</tool_call><tool_call>{"name":"g","arguments":{}}</tool_call>"#;
    check(syntax, answer, &[text("<tool_call>no</tool_call>"), g]);
    for answer in [
        "a < b, <tool, <<tool_call ",
        "<tool_call>",
        r#"<tool_call>{"name":"f","#,
        r#"<tool_call>{"name":"f"}</tool_call>"#,
        r#"<tool_call>{"name":"f","arguments":{}} or <"#,
        "two\n\nlines\n",
    ] {
        check(syntax, answer, &[text(answer)]);
    }
}

#[test]
fn listed_calls() {
    let f = r#"{"name":"f","arguments":{}}"#;
    let g = r#"{"name":"g","arguments":{"a":[]},"id":"x"}"#;
    let answer = format!("Wait. [TOOL_CALLS] [{f}, {g}]");
    let expected = [text("Wait."), call("f", "{}"), call("g", r#"{"a":[]}"#)];
    check(LISTED, &answer, &expected);
    for answer in [
        "[TOOL_CALLS] []",
        r#"[TOOL_CALLS][{"name":"f","arguments":{}}"#,
        "[TOOL_CALL] fine",
    ] {
        check(LISTED, answer, &[text(answer)]);
    }
}
