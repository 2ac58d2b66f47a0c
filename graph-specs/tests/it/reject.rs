//! Files with one mistake each, and the message to the user: `file:line:column: message`.
//!
//! A file's first line, a comment, describes its mistake. In a comment below each wrong line a `^` marks the character
//! that the message must point at, so that positions are checked, not only pinned.

use heg_spec::{Architecture, Fusion, ModelSpec, Policy, Soc, Source, SpecError};

/// The message for `tests/reject/NAME.ron`.
fn message<T>(name: &str, parse: impl Fn(Source<'_>) -> Result<T, SpecError>) -> String {
    let path = format!("{}/tests/reject/{name}.ron", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let file = format!("{name}.ron");
    let source = Source {
        file: &file,
        text: &text,
    };
    let Err(error) = parse(source) else {
        panic!("{name} is accepted");
    };
    if let SpecError::Invalid { problems } = &error {
        assert!(!problems.is_empty(), "{name}");
        for problem in problems {
            assert_marked(&text, problem.line, problem.column, name);
        }
    }
    error.to_string()
}

fn assert_marked(text: &str, line: usize, column: usize, name: &str) {
    let marker = text.lines().nth(line).unwrap_or_default();
    let marked = marker.chars().nth(column - 1) == Some('^');
    assert!(marked, "{name}: nothing marks {line}:{column}");
}

macro_rules! rejected {
    ($($name:ident: $kind:ty),+ $(,)?) => {
        $(#[test]
        fn $name() {
            let name = stringify!($name);
            insta::assert_snapshot!(name, message(name, <$kind>::parse));
        })+

        #[test]
        fn every_file_is_tested() {
            let mut tested = vec![$(concat!(stringify!($name), ".ron")),+];
            tested.sort_unstable();
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reject");
            let mut found: Vec<String> = std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
                .collect();
            found.sort();
            assert_eq!(found, tested);
        }
    };
}

rejected!(
    attention_in_head: Architecture,
    deep_nesting: Architecture,
    duplicate_wire: Architecture,
    empty_head: Architecture,
    expression_nesting: Architecture,
    expression_syntax: Architecture,
    missing_field: Architecture,
    missing_paren: Architecture,
    missing_value: Architecture,
    no_attention: Architecture,
    several_mistakes: Architecture,
    unknown_field: Architecture,
    unknown_operator: Architecture,
    unknown_wire: Architecture,
    unknown_wire_in_head: Architecture,
    wrong_type: Architecture,
    fusion_group_missing: Fusion,
    fusion_unknown_anchor: Fusion,
    model_chunks_unsorted: ModelSpec,
    model_chunks_zero: ModelSpec,
    model_unknown_field: ModelSpec,
    model_unknown_platform: ModelSpec,
    model_unknown_weights: ModelSpec,
    policy_bad_numbers: Policy,
    policy_unknown_field: Policy,
    policy_unknown_scheduler: Policy,
    soc_bad_cores: Soc,
    soc_bad_numbers: Soc,
    soc_gpu_without_programs: Soc,
    soc_no_devices: Soc,
    soc_no_source: Soc,
    soc_unknown_class: Soc,
    soc_unknown_field: Soc,
);
