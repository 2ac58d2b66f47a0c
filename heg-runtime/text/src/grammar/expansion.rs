//! The size to which the compiler expands a schema, computed without expanding it.
//!
//! The compiler copies the target of a `$ref` wherever it has to be merged with something: beside other keywords, below
//! `allOf`, and below `anyOf` or `oneOf` that stand beside others. Definitions that refer to their successor twice in
//! such a place double with every level. Patterns of property names are compared in pairs, and a pattern beside
//! constants is matched against each of them. These three are counted here; any other slow schema is bounded only by a
//! process that can be killed.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde_json::{Map, Value};

/// Checks that the compiler's expansion of a schema is bearable.
///
/// # Errors
/// With the limit, and the found and allowed values.
pub(super) fn check(schema: &Value) -> Result<()> {
    let root = Part::of(schema);
    let Totals {
        pattern_pairs,
        constant_bytes,
    } = root.totals;
    ensure!(
        pattern_pairs <= PATTERN_PAIRS_MAX,
        "expected at most {PATTERN_PAIRS_MAX} pairs of `patternProperties` (with each other, and with properties), \
         found {pattern_pairs}"
    );
    ensure!(
        constant_bytes <= CONSTANT_BYTES_MAX,
        "expected at most {CONSTANT_BYTES_MAX} as the number of constants times the bytes of the pattern beside them, \
         found {constant_bytes}"
    );
    let expanded = expanded_values(schema, root);
    ensure!(
        expanded <= EXPANDED_VALUES_MAX,
        "expected at most {EXPANDED_VALUES_MAX} values with what `$ref` means copied to where other keywords stand \
         beside it, found {}",
        match expanded {
            u64::MAX => "far more".to_owned(),
            count => count.to_string(),
        }
    );
    Ok(())
}

/// Returns the number of values of a schema and all definitions that are copied, each with the copies in it.
fn expanded_values<'a>(schema: &'a Value, root: Part<'a>) -> u64 {
    let mut sizes: BTreeMap<&str, Option<u64>> = BTreeMap::new();
    // Depth first, with an explicit stack, because untrusted chains have any length. Each entry holds the number of
    // copies visited, so that none is visited twice.
    let mut open = vec![("", root, 0)];
    let mut total = 0_u64;
    while let Some((name, part, looked_at)) = open.pop() {
        if let Some(&copy) = part.copies.get(looked_at) {
            open.push((name, part, looked_at + 1));
            if !sizes.contains_key(copy) {
                let target = copy.strip_prefix('#').and_then(|at| schema.pointer(at));
                // Marks the definition as visited; the compiler refuses one that refers to itself.
                sizes.insert(copy, None);
                open.push((copy, target.map_or_else(Part::default, Part::of), 0));
            }
            continue;
        }
        let copied = part
            .copies
            .iter()
            .filter_map(|copy| sizes.get(copy)?.as_ref());
        let size = copied.fold(part.values, |sum, size| sum.saturating_add(*size));
        total = total.saturating_add(size);
        if total > HOPELESS {
            return u64::MAX;
        }
        sizes.insert(name, Some(size));
    }
    total
}

/// A schema with everything inside it, references not followed.
#[derive(Default)]
struct Part<'a> {
    values: u64,
    /// References whose targets are copied into place.
    copies: Vec<&'a str>,
    totals: Totals,
}

#[derive(Default)]
struct Totals {
    pattern_pairs: u64,
    constant_bytes: u64,
}

impl<'a> Part<'a> {
    fn of(schema: &'a Value) -> Self {
        let mut part = Self::default();
        let mut open = vec![(schema, false)];
        while let Some((value, is_merged)) = open.pop() {
            part.values += 1;
            match value {
                Value::Object(keywords) => part.add(keywords, is_merged, &mut open),
                Value::Array(items) => open.extend(items.iter().map(|item| (item, is_merged))),
                _ => {}
            }
        }
        part
    }

    fn add(
        &mut self,
        keywords: &'a Map<String, Value>,
        is_merged: bool,
        open: &mut Vec<(&'a Value, bool)>,
    ) {
        let said = keywords
            .keys()
            .filter(|key| !SILENT.contains(&key.as_str()));
        let is_merged = is_merged || said.count() > 1;
        if let Some(Value::String(reference)) = keywords.get("$ref")
            && is_merged
        {
            self.copies.push(reference);
        }
        self.totals.add(keywords);
        // Definitions are counted at their uses, if they are copied.
        for (key, value) in keywords {
            let merges_below = match key.as_str() {
                "allOf" => true,
                "anyOf" | "oneOf" => is_merged,
                _ => false,
            };
            open.push((value, merges_below));
        }
    }
}

impl Totals {
    fn add(&mut self, keywords: &Map<String, Value>) {
        let count = |key: &str| match keywords.get(key) {
            Some(Value::Object(map)) => map.len() as u64,
            Some(Value::Array(list)) => list.len() as u64,
            Some(_) => 1,
            None => 0,
        };
        let patterns = count("patternProperties");
        let pairs = patterns * patterns.saturating_sub(1) / 2 + patterns * count("properties");
        self.pattern_pairs += pairs;
        let pattern_bytes = keywords.get("pattern").and_then(Value::as_str);
        let pattern_bytes = pattern_bytes.map_or(0, str::len) as u64;
        self.constant_bytes += (count("enum") + count("const")) * pattern_bytes;
    }
}

/// Keywords that are merged with nothing.
const SILENT: [&str; 15] = [
    "$anchor",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "readOnly",
    "writeOnly",
    "examples",
    "contentMediaType",
    "contentEncoding",
];

/// Maximum number of values of a schema with its copies. Measured: this many take 40 MB, and half a second.
const EXPANDED_VALUES_MAX: u64 = 50_000;

/// A count above which the exact number does not matter.
const HOPELESS: u64 = 1 << 40;

/// Maximum number of pairs of name patterns. Measured: 0.02 ms a pair.
const PATTERN_PAIRS_MAX: u64 = 5_000;

/// Maximum number of constants times bytes of the pattern beside them. Measured: 0.5 s for this many.
const CONSTANT_BYTES_MAX: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(schema: &Value) -> String {
        check(schema).map_or_else(|error| error.to_string(), |()| String::new())
    }

    /// Returns a chain of definitions, each of which refers to its successor `times` times, beside `type` or alone.
    fn chain(count: usize, times: usize, beside: bool) -> Value {
        let hold = |at: usize| match beside {
            true => json!({"type": "object", "$ref": format!("#/$defs/d{at}")}),
            false => json!({"$ref": format!("#/$defs/d{at}"), "description": "alone"}),
        };
        let link = |at: usize| {
            let held = (0..times).map(|name| (format!("p{name}"), hold(at + 1)));
            json!({"type": "object", "properties": held.collect::<Map<_, _>>()})
        };
        let mut defs: Map<_, _> = (0..count).map(|at| (format!("d{at}"), link(at))).collect();
        defs.insert(format!("d{count}"), json!({"type": "object"}));
        json!({"$ref": "#/$defs/d0", "$defs": defs})
    }

    #[test]
    fn definitions_that_double_are_refused() {
        let refusal =
            "values with what `$ref` means copied to where other keywords stand beside it";
        for (count, times) in [(40, 2), (12, 2), (3000, 1), (4, 40)] {
            let error = refused(&chain(count, times, true));
            assert!(error.contains(refusal), "{count} × {times}: {error}");
        }
        assert!(refused(&chain(40, 2, true)).ends_with("found far more"));
        for (count, times) in [(40, 2), (3000, 1), (300, 8)] {
            assert_eq!(
                refused(&chain(count, times, false)),
                "",
                "{count} × {times}"
            );
        }
        assert_eq!(refused(&chain(5, 2, true)), "");
    }

    #[test]
    fn what_is_merged_is_copied() {
        let double = |keyword: &str, beside: bool| {
            let mut defs = Map::new();
            for at in 0..40 {
                let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
                let mut held = json!({keyword: [next, next]});
                if beside {
                    held["type"] = json!("object");
                }
                defs.insert(format!("d{at}"), held);
            }
            defs.insert("d40".to_owned(), json!({"type": "object"}));
            refused(&json!({"$ref": "#/$defs/d0", "$defs": defs}))
        };
        assert!(double("allOf", false).contains("far more"));
        assert!(double("anyOf", true).contains("far more"));
        assert_eq!(double("anyOf", false), "");
    }

    /// The compiler refuses a circle, or makes a rule of it.
    #[test]
    fn references_in_circles_end() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"type": "object", "$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"properties": {"next": {"$ref": "#", "type": "object"}}}),
            json!({"type": "object", "$ref": "#/nowhere"}),
        ] {
            assert_eq!(refused(&schema), "", "{schema}");
        }
    }

    #[test]
    fn patterns_are_counted_with_what_they_meet() {
        let patterns = |count: usize| {
            let patterns: Map<_, _> = (0..count)
                .map(|at| (format!("^b{at}$"), json!({})))
                .collect();
            json!({"type": "object", "patternProperties": patterns})
        };
        assert_eq!(refused(&patterns(100)), "");
        let error = refused(&json!({"items": patterns(250)}));
        assert!(
            error.contains("at most 5000 pairs") && error.contains("found 31125"),
            "{error}"
        );
        let constants =
            |count: usize| json!({"pattern": "x".repeat(1000), "enum": vec!["y"; count]});
        assert_eq!(refused(&constants(1000)), "");
        let error = refused(&constants(1001));
        assert!(
            error.contains("at most 1000000") && error.ends_with("found 1001000"),
            "{error}"
        );
    }
}
