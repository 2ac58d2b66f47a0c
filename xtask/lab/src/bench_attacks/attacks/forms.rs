//! Forms that are far more expensive to compile than to send: references that copy, deep values, products of patterns.

use super::super::attack::{Attack, CHAT, posting};
use super::super::other::Ask;
use super::super::scene::Scene;
use super::super::wire::Ending;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

pub(super) fn attacks() -> Vec<Attack> {
    let mut all = vec![
        form(
            "schema-bomb",
            "12",
            "40 definitions, each holding its successor twice",
            vec![doubling(40)],
        ),
        form(
            "schema-bomb-19",
            "12",
            "19 such definitions, which memory can hold",
            vec![doubling(19)],
        ),
        Attack::beside(
            "tool-bomb",
            "12b",
            "18 such definitions in a tool's parameters",
            posting(CHAT, 1, &[tool(18)]),
        ),
        form(
            "schema-chain",
            "13",
            "3 000 arrays, each within the one before",
            vec![nested("array", 3000, 1)],
        ),
        form(
            "schema-nested",
            "14",
            "86 definitions of 110 levels",
            ["array", "prefix", "object", "inner"]
                .map(|shape| nested(shape, 86, 110))
                .into(),
        ),
        form(
            "schema-references",
            "01",
            "chains of references through 8 keywords",
            SHAPES.map(chained).into(),
        ),
        form(
            "enum-pattern",
            "02",
            "19 000 constants beside a pattern of 120 kB",
            vec![constants(19_000, 120_000)],
        ),
        form(
            "pattern-properties",
            "20",
            "500 and 1 000 patterns of properties",
            vec![patterns(500), patterns(1000)],
        ),
        Attack::beside(
            "gone-sender",
            "15",
            "a slow schema whose sender closes after half a second",
            gone,
        ),
    ];
    for attack in &mut all {
        attack.ask = Ask::Form;
        attack.budget = Some(FORM_BUDGET);
    }
    all
}

/// Time limit of compiling a form: that of its masks in API.md.
const FORM_BUDGET: Duration = Duration::from_secs(2);

fn form(
    name: &'static str,
    script: &'static str,
    about: &'static str,
    schemas: Vec<Value>,
) -> Attack {
    let bodies: Vec<Value> = schemas.into_iter().map(asking).collect();
    Attack::beside(name, script, about, posting(CHAT, 1, &bodies))
}

/// A chat whose answer must have the form of a schema.
fn asking(schema: Value) -> Value {
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    json!({
        "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 4,
        "response_format": format,
    })
}

/// Definitions that contain their successor twice beside a `$ref`, so that a compiler that copies makes 2^count of
/// them.
fn doubling(count: usize) -> Value {
    let hold = |at: usize| json!({ "type": "object", "$ref": format!("#/$defs/d{at}") });
    let mut defs: Map<String, Value> = (0..count)
        .map(|at| {
            let properties = json!({ "a": hold(at + 1), "b": hold(at + 1) });
            (
                format!("d{at}"),
                json!({ "type": "object", "properties": properties }),
            )
        })
        .collect();
    defs.insert(format!("d{count}"), json!({ "type": "object" }));
    json!({ "$ref": "#/$defs/d0", "$defs": defs })
}

fn tool(count: usize) -> Value {
    let defs = doubling(count)["$defs"].take();
    let parameters = json!({
        "type": "object", "required": ["x"], "$defs": defs,
        "properties": { "x": { "type": "object", "description": "d", "$ref": "#/$defs/d0" } },
    });
    let function = json!({ "name": "f", "description": "d", "parameters": parameters });
    json!({
        "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 4,
        "tools": [{ "type": "function", "function": function }], "tool_choice": "required",
    })
}

/// Definitions with `levels` levels each, whose innermost refers to the next one beside `type`.
fn nested(shape: &str, count: usize, levels: usize) -> Value {
    let wrap = |inner: Value| match shape {
        "prefix" => json!({ "type": "array", "prefixItems": [inner] }),
        "object" => json!({ "type": "object", "additionalProperties": inner }),
        "inner" => json!({ "type": "object", "properties": { "a": inner } }),
        _ => json!({ "type": "array", "items": inner }),
    };
    let kind = wrap(json!({}))["type"].take();
    let mut defs: Map<String, Value> = (0..count)
        .map(|at| {
            let next = json!({ "type": kind, "$ref": format!("#/$defs/{:x}", at + 1) });
            (
                format!("{at:x}"),
                (0..levels).fold(next, |inner, _| wrap(inner)),
            )
        })
        .collect();
    defs.insert(format!("{count:x}"), json!({ "type": kind }));
    json!({ "$ref": "#/$defs/0", "$defs": defs })
}

const SHAPES: [&str; 8] = [
    "items",
    "additionalProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "properties",
    "prefixItems",
    "patternProperties",
];

/// A chain of definitions as long as a body may be, each as deep as JSON may be.
fn chained(keyword: &str) -> Value {
    let (wrap, values): (fn(&str, Value) -> Value, usize) = match keyword {
        "items" | "additionalProperties" => (|key, inner| json!({ key: inner }), 1),
        "properties" | "patternProperties" => (|key, inner| json!({ key: { "a": inner } }), 2),
        _ => (|key, inner| json!({ key: [inner] }), 2),
    };
    let levels = 110 / values;
    let chains = VALUES / (levels * values + 2);
    let defs: Map<String, Value> = (0..chains)
        .map(|at| {
            let next = match at + 1 < chains {
                true => json!({ "$ref": format!("#/$defs/d{}", at + 1) }),
                false => json!({ "type": "null" }),
            };
            let deep = (0..levels).fold(next, |inner, _| wrap(keyword, inner));
            (format!("d{at}"), deep)
        })
        .collect();
    json!({ "$ref": "#/$defs/d0", "$defs": defs })
}

/// Number of JSON values in a chain: just below the server's bound.
const VALUES: usize = 19_000;

/// Constants, each of which a compiler may intersect with one long pattern.
fn constants(count: usize, pattern_bytes: usize) -> Value {
    let words: Vec<String> = (0..pattern_bytes / 6)
        .map(|at| format!("b{at:x}"))
        .collect();
    let constants: Vec<String> = (0..count).map(|at| format!("b{at:x}")).collect();
    json!({ "type": "string", "pattern": format!("({})*", words.join("|")), "enum": constants })
}

fn patterns(count: usize) -> Value {
    let all: Map<String, Value> = (0..count)
        .map(|at| (format!("^b{at:x}$"), json!({})))
        .collect();
    json!({ "type": "object", "patternProperties": all })
}

/// Sends a slow schema and disconnects after half a second, again and again.
fn gone(scene: &Scene<'_>) {
    let request = Scene::request(CHAT, &asking(constants(6000, 24_000)));
    while !scene.is_over() {
        let begin = Instant::now();
        let Ok(mut wire) = scene.open(None) else {
            scene.record(begin, &Ending::Cut);
            return;
        };
        if wire.send(&request).is_ok() {
            let ending = wire.reply(&|| scene.is_over() || begin.elapsed() > STAY);
            scene.record(begin, &ending);
        }
        wire.close();
        scene.pause(Duration::from_millis(500));
    }
}

/// Time until the sender disconnects, as in the audit.
const STAY: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bodies_are_the_audits() {
        let bytes = |schema: Value| asking(schema).to_string().len();
        // Python writes a space after each comma and colon.
        assert!((4_000..6_000).contains(&bytes(doubling(40))));
        assert!((5_000..8_000).contains(&bytes(patterns(500))));
        assert!((250_000..300_000).contains(&bytes(constants(19_000, 120_000))));
        assert_eq!(
            doubling(2)["$defs"]["d0"]["properties"]["b"]["$ref"],
            "#/$defs/d1"
        );
        assert_eq!(
            nested("inner", 1, 1)["$defs"]["0"]["properties"]["a"]["$ref"],
            "#/$defs/1"
        );
    }

    #[test]
    fn every_reference_has_a_definition() {
        for schema in SHAPES
            .map(chained)
            .into_iter()
            .chain([doubling(5), nested("array", 5, 3)])
        {
            let text = schema.to_string();
            for reference in text.split("#/$defs/").skip(1) {
                let (name, _) = reference.split_once('"').unwrap();
                assert!(schema["$defs"].get(name).is_some(), "{name}");
            }
        }
    }
}
