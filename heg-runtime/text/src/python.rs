//! Features of Python that chat templates expect and the template engine lacks.
//!
//! The `tojson` of `transformers` is `json.dumps` with `ensure_ascii=False`: it puts a space after commas and
//! colons, escapes nothing for HTML and writes floats as Python does. A `Formatter` of `serde_json` could not do
//! it, since NaN, infinities and keys that are `null` never reach a formatter. String methods that `pycompat` lacks
//! are here too.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// The filter `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(
    value: &Value,
    ascii: Option<Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let ascii = match ascii {
        Some(ascii) => Some(ascii),
        None => options.get("ensure_ascii")?,
    };
    let indent: Option<Value> = options.get("indent")?;
    let separators: Option<Value> = options.get("separators")?;
    let sort_keys: Option<Value> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let indent = indent
        .filter(|indent| !indent.is_none())
        .map(indent_text)
        .transpose()?;
    let comma = if indent.is_some() { "," } else { ", " };
    let (comma, colon) = match separators.filter(|given| !given.is_none()) {
        Some(given) => (text_at(&given, 0)?, text_at(&given, 1)?),
        None => (comma.to_owned(), ": ".to_owned()),
    };
    let is_true = |option: Option<Value>| option.is_some_and(|option| option.is_true());
    let (ascii, sort_keys) = (is_true(ascii), is_true(sort_keys));
    let mut writer = JsonWriter {
        out: String::new(),
        ascii,
        indent,
        comma,
        colon,
        sort_keys,
        depth: 0,
    };
    writer.value(value)?;
    Ok(writer.out)
}

/// The test `sequence` of Jinja2: true for any value with a length and an index, which includes text and
/// dictionaries.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map
    )
}

/// Calls Python's methods of strings, lists and dictionaries.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, name, args);
    };
    match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => {
            let (mark,): (&str,) = from_args(args)?;
            let parts = text
                .split_once(mark)
                .map(|(left, right)| [left, mark, right]);
            Ok(Value::from_iter(parts.unwrap_or([text, "", ""])))
        }
        "rpartition" => {
            let (mark,): (&str,) = from_args(args)?;
            let parts = text
                .rsplit_once(mark)
                .map(|(left, right)| [left, mark, right]);
            Ok(Value::from_iter(parts.unwrap_or(["", "", text])))
        }
        "rsplit" => {
            let (mark, count): (&str, Option<i64>) = from_args(args)?;
            let parts_max = count.and_then(|count| usize::try_from(count).ok());
            let parts_max = parts_max.map_or(usize::MAX, |count| count.saturating_add(1));
            let mut parts: Vec<&str> = text.rsplitn(parts_max, mark).collect();
            parts.reverse();
            Ok(Value::from_iter(parts))
        }
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

struct JsonWriter {
    out: String,
    ascii: bool,
    /// Text of one indentation step, if each entry has its own line.
    indent: Option<String>,
    comma: String,
    colon: String,
    sort_keys: bool,
    depth: usize,
}

impl JsonWriter {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                self.entries('[', ']', items, |writer, item| writer.value(&item))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                if self.sort_keys {
                    keys.sort();
                }
                self.entries('{', '}', keys, |writer, key| {
                    writer.key(&key)?;
                    writer.out.push_str(&writer.colon);
                    writer.value(&value.get_item(&key)?)
                })?;
            }
            kind => return Err(not_json(format!("a value of kind {kind} has no JSON form"))),
        }
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        if let Some(text) = key.as_str() {
            self.string(text);
            return Ok(());
        }
        if !matches!(
            key.kind(),
            ValueKind::None | ValueKind::Bool | ValueKind::Number
        ) {
            return Err(not_json(format!(
                "a value of kind {} cannot be a JSON key",
                key.kind()
            )));
        }
        self.out.push('"');
        self.value(key)?;
        self.out.push('"');
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        match f64::try_from(value.clone()) {
            Ok(number) if !value.is_integer() => self.out.push_str(&python_float(number)),
            // An integer of any width.
            _ => self.out.push_str(&value.to_string()),
        }
    }

    fn string(&mut self, text: &str) {
        // Escapes the same characters as Python, except those of `ensure_ascii`.
        for letter in serde_json::Value::from(text).to_string().chars() {
            if self.ascii && letter > '~' {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(self.out, "\\u{unit:04x}");
                }
            } else {
                self.out.push(letter);
            }
        }
    }

    fn entries(
        &mut self,
        open: char,
        close: char,
        entries: Vec<Value>,
        write: impl Fn(&mut Self, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(not_json(format!("nested deeper than {DEPTH_MAX} levels")));
        }
        let some = !entries.is_empty();
        for (index, entry) in entries.into_iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.comma);
            }
            self.line();
            write(self, entry)?;
        }
        self.depth -= 1;
        if some {
            self.line();
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..self.depth {
                self.out.push_str(indent);
            }
        }
    }
}

/// Writes a float as Python's `repr` does, with the names that `json` gives to NaN and infinities.
fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned();
    }
    let shortest = format!("{number:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{number:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn indent_text(indent: Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_owned());
    }
    let spaces = i64::try_from(indent)?;
    Ok(" ".repeat(usize::try_from(spaces).unwrap_or(0).min(DEPTH_MAX)))
}

fn text_at(pair: &Value, index: usize) -> Result<String, Error> {
    let text = pair.get_item_by_index(index)?;
    let text = text.as_str().map(str::to_owned);
    text.ok_or_else(|| not_json("separators must be two strings".to_owned()))
}

fn not_json(message: String) -> Error {
    Error::new(ErrorKind::BadSerialization, message)
}

/// Maximum depth of a value. `serde_json` refuses deeper input too, so only values made by a template reach it.
const DEPTH_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use minijinja::value::Serde;
    use minijinja::{Environment, context};

    use super::*;

    fn check(template: &str, expect: &str) {
        let mut env = Environment::new();
        env.add_filter("tojson", tojson);
        env.set_unknown_method_callback(method);
        let text = "tab\t\"é\u{1f980}\u{1}</b>'";
        let value: serde_json::Value =
            serde_json::from_str(r#"{"b":[1,2.0,1e20,1e-7,0.1,true,null,[],{}],"a":{"k":"v"}}"#)
                .unwrap();
        let found = env.render_str(template, context! { text, value => Serde(value) });
        let found = found.unwrap_or_else(|error| format!("error: {error}"));
        assert_eq!(found, expect, "{template}");
    }

    /// The expectations were printed by CPython 3.12.
    #[test]
    fn tojson_equals_json_dumps() {
        check("{{ text | tojson }}", "\"tab\\t\\\"é🦀\\u0001</b>'\"");
        check(
            "{{ text | tojson(ensure_ascii=true) }}",
            "\"tab\\t\\\"\\u00e9\\ud83e\\udd80\\u0001</b>'\"",
        );
        let flat = r#"{"b": [1, 2.0, 1e+20, 1e-07, 0.1, true, null, [], {}], "a": {"k": "v"}}"#;
        check("{{ value | tojson }}", flat);
        check(
            "{{ value.a | tojson(separators=(',', ':')) }}",
            r#"{"k":"v"}"#,
        );
        check(
            "{{ {'b': 1, 'a': [2]} | tojson(indent=2, sort_keys=true) }}",
            "{\n  \"a\": [\n    2\n  ],\n  \"b\": 1\n}",
        );
        check(
            "{{ {1: 2, none: 3, false: 4} | tojson }}",
            r#"{"1": 2, "null": 3, "false": 4}"#,
        );
        check(
            "{{ [1234567890123456.0, 12345678901234567.0, -0.0, 0.0001] | tojson }}",
            "[1234567890123456.0, 1.2345678901234568e+16, -0.0, 0.0001]",
        );
        check(
            "{{ missing | tojson }}",
            "error: could not serialize to value: a value of kind undefined has no JSON form (in <string>:1)",
        );
    }

    #[test]
    fn string_methods_of_python() {
        check("{{ 'a.b.c'.rsplit('.', 1) | tojson }}", r#"["a.b", "c"]"#);
        check("{{ 'a.b.c'.rsplit('.')[0] }}", "a");
        check(
            "{{ 'a=b=c'.partition('=')[2] }} {{ 'abc'.partition('=')[0] }}",
            "b=c abc",
        );
        check("{{ 'a=b=c'.rpartition('=')[0] }}", "a=b");
        check(
            "{{ 'prefix.x'.removeprefix('prefix.') }}{{ 'x.py'.removesuffix('.py') }}",
            "xx",
        );
        check(
            "{{ ' x '.strip() }}{{ 'a,b'.split(',')[-1] }}{{ {'k': 1}.get('k') }}",
            "xb1",
        );
    }
}
