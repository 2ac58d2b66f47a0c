//! Grammars of tool calls, in the library's own dialect of Lark.
//!
//! If text is allowed beside calls, only special tokens and the beginning of a call are forbidden in it: text that
//! begins like a call must be one, so that every call in an answer is valid, requested or not.

use anyhow::{Result, bail, ensure};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Map, Value, json};

use super::super::tools::{Calls, Tool, ToolChoice, ToolSyntax};
use super::markers::{LIST_END, Markers, PYTHON_TAG};
use super::schema::{self, UnknownKeywords};

/// Returns the grammar of an answer with calls of `tools`.
pub(super) fn grammar(
    syntax: ToolSyntax,
    markers: &Markers,
    tools: &[Tool],
    choice: &ToolChoice,
    calls: Calls,
) -> Result<TopLevelGrammar> {
    let lark = lark(syntax, markers, choice, calls);
    let schema = calls_schema(syntax, &offered(tools, choice)?, calls)?;
    Ok(TopLevelGrammar {
        grammars: vec![
            GrammarWithLexer::from_lark(lark),
            GrammarWithLexer {
                name: Some("json".to_owned()),
                ..GrammarWithLexer::from_json_schema(schema)
            },
        ],
        max_tokens: None,
    })
}

/// Returns the tools that may be called.
fn offered<'a>(tools: &'a [Tool], choice: &ToolChoice) -> Result<Vec<&'a Tool>> {
    let ToolChoice::Named(name) = choice else {
        ensure!(!tools.is_empty(), "a call is required, and there are none");
        return Ok(tools.iter().collect());
    };
    match tools.iter().find(|tool| tool.name == *name) {
        Some(tool) => Ok(vec![tool]),
        None => bail!("`{name}` is required, and is not one of them"),
    }
}

/// Returns the grammar around the JSON, which is the rule `@json`.
fn lark(syntax: ToolSyntax, markers: &Markers, choice: &ToolChoice, calls: Calls) -> String {
    let text_too = *choice == ToolChoice::Auto;
    let opening = syntax
        .opening()
        .map(|marker| (marker, markers.token(marker)));
    // `head` is text up to and including the opening of a call, or the opening alone.
    let head = match (opening, text_too) {
        (None, _) => String::new(),
        (Some((_, Some(token))), true) => format!("head: TEXT? {token}"),
        (Some((marker, None)), true) => format!("head[lazy]: TEXT {marker:?}"),
        (Some((marker, _)), false) => format!("head: {}", markers.symbol(marker)),
    };
    let (call, text) = match syntax {
        ToolSyntax::Bare(_) => (
            match markers.token(PYTHON_TAG) {
                Some(tag) => format!("{tag}? WS? @json"),
                None => "WS? @json".to_owned(),
            },
            // An answer that begins like a call is one.
            r"/[ \t\r\n]{0,8}[^{ \t\r\n](.|\n)*/",
        ),
        ToolSyntax::Tagged => {
            let closing = markers.symbol(syntax.closing().unwrap_or_default());
            (format!("head WS? @json WS? {closing}"), ANY_TEXT)
        }
        ToolSyntax::Listed(_) => match markers.token(LIST_END) {
            Some(end) => (format!("head WS? @json {end}?"), ANY_TEXT),
            None => ("head WS? @json".to_owned(), ANY_TEXT),
        },
    };
    let many = syntax == ToolSyntax::Tagged && calls == Calls::Many;
    let start = match (text_too, many) {
        (true, true) => "call* TEXT?",
        (true, false) => "TEXT? | call",
        (false, true) => "call (WS? call)*",
        (false, false) => "call",
    };
    format!("start: {start}\ncall: {call}\n{head}\nTEXT: {text}\nWS: /[ \\t\\r\\n]{{1,8}}/\n")
}

/// Returns the schema of the JSON in a call, or in a list of calls.
fn calls_schema(syntax: ToolSyntax, tools: &[&Tool], calls: Calls) -> Result<Value> {
    let mut values = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        values.push(call_schema(syntax, tool, index)?);
    }
    let mut schema = Map::new();
    schema.insert("anyOf".to_owned(), Value::Array(values));
    if let ToolSyntax::Listed(_) = syntax {
        let items = std::mem::take(&mut schema);
        schema.extend([
            ("type".to_owned(), json!("array")),
            ("items".to_owned(), Value::Object(items)),
            ("minItems".to_owned(), json!(1)),
        ]);
        if calls == Calls::One {
            schema.insert("maxItems".to_owned(), json!(1));
        }
    }
    schema::prepared(&Value::Object(schema), UnknownKeywords::Ignored)
}

/// Returns the schema of a call, as the `index`-th alternative.
fn call_schema(syntax: ToolSyntax, tool: &Tool, index: usize) -> Result<Value> {
    let key = syntax.arguments_key();
    let list = match syntax {
        ToolSyntax::Listed(_) => "/items",
        _ => "",
    };
    let place = format!("{list}/anyOf/{index}/properties/{key}");
    let arguments = match &tool.parameters {
        Some(parameters) => {
            schema::check(parameters)?;
            object(parameters, &place)
        }
        None => json!({"type": "object", "additionalProperties": false}),
    };
    Ok(json!({
        "type": "object",
        "properties": {"name": {"const": tool.name}, key: arguments},
        "required": ["name", key],
        "additionalProperties": false,
    }))
}

/// Returns the schema of the arguments, for `place`: always an object.
fn object(parameters: &Value, place: &str) -> Value {
    if parameters["type"] == "object" {
        return closed(schema::moved(parameters, place));
    }
    let parameters = schema::moved(parameters, &format!("{place}/allOf/0"));
    json!({"type": "object", "allOf": [parameters]})
}

/// Forbids arguments that a tool does not name, unless its schema says more about them than their names.
fn closed(mut parameters: Value) -> Value {
    let Value::Object(keywords) = &mut parameters else {
        return parameters;
    };
    let Some(Value::Object(known)) = keywords.get("properties") else {
        return parameters;
    };
    let required = keywords.get("required").and_then(Value::as_array);
    let mut required = required.into_iter().flatten().filter_map(Value::as_str);
    let plain = |keyword: &String| CLOSABLE.contains(&keyword.as_str());
    if required.all(|name| known.contains_key(name)) && keywords.keys().all(plain) {
        keywords.insert("additionalProperties".to_owned(), json!(false));
    }
    parameters
}

/// Keywords of schemas that still have instances when nothing but the named properties is allowed.
const CLOSABLE: [&str; 8] = [
    "type",
    "properties",
    "required",
    "title",
    "description",
    "$defs",
    "definitions",
    "$schema",
];

/// Any text, in whole letters.
pub(super) const ANY_TEXT: &str = r"/(.|\n)*/";
