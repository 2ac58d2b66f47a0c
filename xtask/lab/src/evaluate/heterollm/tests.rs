//! The evaluation's output: equal input gives equal tables.

use super::super::line::{Outcome, Standing};
use super::*;

#[test]
fn the_report_is_the_same_on_any_machine() {
    let (report, lines) = evaluate().unwrap();
    insta::assert_snapshot!(report);
    assert!(lines.iter().all(|line| line.reached || line.note.is_some()));
    assert!(lines.iter().all(|line| line.ours.is_finite()), "{lines:?}");
    let json = serde_json::to_value(&lines).unwrap();
    let lines = json.as_array().unwrap();
    for field in ["name", "unit", "paper", "ours", "reached", "origin", "note"] {
        assert!(
            lines.iter().all(|line| line.get(field).is_some()),
            "{field}"
        );
    }
}

/// Only what nothing was fitted to is evidence; and a line that is beyond the paper's says in what way the model flatters.
#[test]
fn lines_that_are_fitted_or_repeat_others_are_not_counted() {
    let (_, lines) = evaluate().unwrap();
    let of = |start: &str| {
        let mut found = lines.iter().filter(|line| line.name.starts_with(start));
        found.next().unwrap_or_else(|| panic!("no line `{start}`"))
    };
    for (start, standing) in [
        (
            "prompt of 256, 8B, layers placed, against MNN",
            Standing::Fitted,
        ),
        (
            "prompt of 1024, 8B, tensors cut, against MNN",
            Standing::Repeats,
        ),
        (
            "prompt of 256, 1.8B, tensors cut, against mllm",
            Standing::Repeats,
        ),
        (
            "decoding, llama-3-8b, tensors cut, against MNN",
            Standing::Repeats,
        ),
        ("prompt of 256, 8B, tensors cut, plain", Standing::Fitted),
        ("drawn by the products of a token", Standing::Input),
        ("power, 8B at 256, layers placed", Standing::Input),
        ("decoding, llama-3-8b, tensors cut", Standing::Counts),
        (
            "fast synchronisation in decoding, llama-3-8b",
            Standing::Counts,
        ),
    ] {
        assert_eq!(of(start).standing, standing, "{start}");
    }
    // Three to four times what the paper has is no success.
    let small = of("fast synchronisation in decoding, llama-3.2-3b");
    assert_eq!(small.outcome, Outcome::Beyond);
    assert!(!small.reached);
    assert!(of("decoding, llama-3-8b, tensors cut, against the GPU alone").reached);
}
