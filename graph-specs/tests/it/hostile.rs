//! Arbitrary text never causes a panic: expressions, and shipped files with bytes changed, cut out or doubled.

use heg_spec::expr::{EvalError, Expr, Scope, Value};
use heg_spec::{Architecture, Fusion, ModelSpec, Soc, Source, SpecError, shipped};
use proptest::prelude::*;

/// A scope where every name is a number and every key of the config is absent.
struct Anything;

impl Scope for Anything {
    fn name(&self, name: &str) -> Result<Value, EvalError> {
        Ok(Value::Number(name.len() as f64))
    }

    fn config(&self, _path: &str) -> Value {
        Value::None
    }
}

fn use_expression(text: &str) {
    if let Ok(expr) = Expr::parse(text) {
        assert_eq!(expr.text(), text);
        let _ = expr.eval(&Anything);
    }
}

/// Checks that a refused file is refused with positions within it.
fn use_file<T>(text: &str, parse: impl Fn(Source<'_>) -> Result<T, SpecError>) {
    let source = Source {
        file: "mutated.ron",
        text,
    };
    let Err(error) = parse(source) else { return };
    let SpecError::Invalid { problems } = error else {
        panic!("{error}");
    };
    assert!(!problems.is_empty());
    for problem in problems {
        assert!(problem.line >= 1 && problem.column >= 1, "{problem}");
        assert!(problem.line <= text.lines().count() + 1, "{problem}");
        assert!(!problem.message.is_empty());
    }
}

fn use_as_every_kind(text: &str) {
    use_file(text, Architecture::parse);
    use_file(text, Fusion::parse);
    use_file(text, ModelSpec::parse);
    use_file(text, Soc::parse);
}

fn shipped_text() -> impl Strategy<Value = &'static str> {
    let all = [shipped::ARCHITECTURES, shipped::FUSIONS, shipped::SOCS].concat();
    proptest::sample::select(all).prop_map(|(_, text)| text)
}

/// Generates replacements for a stretch of the file.
fn replacement() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[\\[\\](){}\",:\\\\/*#r'\n]{1,4}",
        "\\PC{0,8}",
        proptest::sample::select(vec!["Some(", "none", "1e999", "-1", "\"x\"", "r#\"", "/*"])
            .prop_map(str::to_owned),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_as_expression(text in "\\PC{0,40}") {
        use_expression(&text);
    }

    #[test]
    fn any_expression_like_text(
        text in "(config\\.|[a-z0-9'?:!()\\[\\]+*/%<>=&|. -]|\\?\\?|\\*\\*|none|1e-5|é){0,24}",
    ) {
        use_expression(&text);
    }

    #[test]
    fn any_text_as_file(text in "(?s).{0,80}") {
        use_as_every_kind(&text);
    }

    #[test]
    fn shipped_files_with_a_stretch_replaced(
        text in shipped_text(),
        at in any::<prop::sample::Index>(),
        length in 0..12_usize,
        replacement in replacement(),
    ) {
        let chars: Vec<char> = text.chars().collect();
        let start = at.index(chars.len());
        let end = (start + length).min(chars.len());
        let mutated: String = chars[..start].iter()
            .copied()
            .chain(replacement.chars())
            .chain(chars[end..].iter().copied())
            .collect();
        use_as_every_kind(&mutated);
    }

    #[test]
    fn shipped_files_cut_short(text in shipped_text(), at in any::<prop::sample::Index>()) {
        let end = at.index(text.chars().count());
        use_as_every_kind(&text.chars().take(end).collect::<String>());
    }
}

#[test]
fn nesting_is_bounded_everywhere() {
    for open in [
        "(", "[", "{", "Some(", "-", "!", "'", "a[", "a?", "1:", "/*", "x ? ", "x ?? (",
    ] {
        let deep = open.repeat(100_000);
        use_expression(&deep);
        use_as_every_kind(&deep);
        use_as_every_kind(&format!("(name: {deep}"));
        use_as_every_kind(&format!("(name: \"\", source: \"\", architecture: {deep}"));
    }
}

/// Long chains are not only parsed but evaluated, without running out of stack.
#[test]
fn long_chains_are_bounded() {
    for link in ["1 + ", "none ?? ", "1 ** ", "true && ", "1 < "] {
        use_expression(&(link.repeat(100_000) + "1"));
    }
    use_expression(&("a".to_owned() + &"[0]".repeat(100_000)));
}
