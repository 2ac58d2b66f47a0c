//! Prints the demo's questions and answers.

use serde_json::Value;

pub(super) fn print_title(title: &str) {
    println!("── {title} ──");
}

/// Prints a speaker's text, with a bar in front of each line.
pub(super) fn print_turn(who: &str, text: &str) {
    for (index, line) in text.lines().enumerate() {
        let who = if index == 0 { who } else { "" };
        println!("{who:>9} │ {line}");
    }
}

/// Prints whether the last answer was right, its time, and the right answer.
pub(super) fn print_verdict(is_right: bool, expected: &str, reply: &Value) {
    match is_right {
        true => println!("{:>9}   correct{}", "", timing(reply)),
        false => print_turn("WRONG", &format!("expected: {expected}")),
    }
    println!();
}

/// The times of an answer, as reported by `heg`.
fn timing(reply: &Value) -> String {
    let number = |key: &str| reply[key].as_f64();
    match (number("ttft_ms"), number("tpot_ms")) {
        (Some(first), Some(each)) => {
            format!(", first token after {first:.0} ms, then {each:.1} ms each")
        }
        (Some(first), None) => format!(", first token after {first:.0} ms"),
        _ => String::new(),
    }
}
