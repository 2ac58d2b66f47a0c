//! The evaluation's output: equal input gives equal tables.

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

#[test]
fn the_issues_lines_are_reached() {
    let (_, lines) = evaluate().unwrap();
    let of = |start: &str| {
        let mut found = lines.iter().filter(|line| line.name.starts_with(start));
        found.next().unwrap_or_else(|| panic!("no line `{start}`"))
    };
    for start in [
        "tensors cut against layers placed, 8B, mean",
        "prompt of 525, 8B, tensors cut against padding",
        "prompt of 525, 8B, tensors cut against the pipe",
        "decoding, llama-3-8b, tensors cut, against the GPU alone",
        "decoding, llama-3.2-3b, tensors cut, against the GPU alone",
        "decoding, internlm2-1.8b, tensors cut, against the GPU alone",
        "fast synchronisation in decoding, llama-3-8b",
        "fast synchronisation in decoding, llama-3.2-3b",
    ] {
        assert!(of(start).reached, "{:?}", of(start));
    }
}
