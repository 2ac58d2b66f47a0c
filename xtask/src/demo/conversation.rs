//! The first part of the demo: a conversation with a real model, in one `heg chat`. A question may build on the one
//! before, and each answer has to contain certain words.

use super::Asked;
use super::show::{print_title, print_turn, print_verdict};
use anyhow::{Context, Result};
use heg_compiler::CompileOptions;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use xtask::compile;
use xtask::fail::Fail;
use xtask::fetch::{self, Consent};
use xtask::workspace::{self, note};

/// The model's file, downloaded if necessary.
pub(super) fn fetch() -> Result<PathBuf> {
    fetch::ensure(MODEL, Consent::Ask, &workspace::output()).with_context(|| {
        let hint = "check the network, or keep to the model in this repository: cargo xtask demo --offline";
        Fail::environment(format!("cannot get {MODEL}")).hint(hint)
    })
}

/// Compiles the model in `file`, talks to it, and returns the result.
pub(super) fn run(heg: &Path, file: &Path) -> Result<Asked> {
    let output = workspace::output();
    let bundle = output.bundle(MODEL);
    note(format!("compiling {MODEL} (8-bit weights)"));
    let options = CompileOptions {
        name: Some(MODEL.to_owned()),
        ..compile::own_use()
    };
    let done = compile::compile(file, &bundle, &output.store(), &options)
        .with_context(|| format!("cannot compile {MODEL}"))?;
    println!("{done}");
    let wrong = talk(&mut workspace::heg(heg), &bundle)?;
    println!(
        "The first answer waited for the kernels to be prepared. A model of 135 million parameters is quick and often\n\
         wrong; these three it has to know.\n"
    );
    Ok(Asked {
        questions: QUESTIONS.len(),
        wrong,
        bundle,
    })
}

/// Asks all questions; returns the number of wrong answers.
fn talk(heg: &mut Command, bundle: &Path) -> Result<usize> {
    note("starting heg chat");
    let mut child = heg
        .args([
            "chat",
            "--json",
            "--temperature",
            "0",
            "--max-tokens",
            TOKENS_MAX,
        ])
        .arg(bundle)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context(Fail::environment("cannot start `heg chat`"))?;
    let input = child.stdin.take().context("a child without its input")?;
    let output = child.stdout.take().context("a child without its output")?;
    let wrong = ask_all(input, BufReader::new(output));
    // Its input is closed, so it ends.
    let status = child.wait().context("cannot wait for `heg chat`")?;
    if !status.success() {
        let failed = Fail::child(status.code(), format!("heg chat failed: {status}"));
        return Err(failed.into());
    }
    wrong
}

fn ask_all(mut heg: ChildStdin, mut answers: BufReader<ChildStdout>) -> Result<usize> {
    print_title("A conversation with SmolLM2-135M-Instruct");
    let mut wrong = 0;
    for question in &QUESTIONS {
        print_turn("user", question.text);
        writeln!(heg, "{}", question.text).context("heg chat hung up")?;
        let mut line = String::new();
        answers.read_line(&mut line).context("heg chat hung up")?;
        let reply: Value =
            serde_json::from_str(&line).context("heg chat --json printed no JSON object")?;
        let answer = reply["text"].as_str().unwrap_or_default().trim();
        print_turn("answer", answer);
        let is_right = question.is_answered(answer);
        print_verdict(is_right, &question.holds.join(" … "), &reply);
        wrong += usize::from(!is_right);
    }
    Ok(wrong)
}

/// A question, and the words that a right answer contains, in this order.
struct Question {
    text: &'static str,
    holds: &'static [&'static str],
}

impl Question {
    fn is_answered(&self, answer: &str) -> bool {
        let mut rest = Some(answer);
        for part in self.holds {
            rest = rest
                .and_then(|rest| rest.split_once(part))
                .map(|(_, rest)| rest);
        }
        rest.is_some()
    }
}

const MODEL: &str = "smollm2-135m-instruct";

/// In f32 each answer is right. Every token of the first two, and the first six of the third, lead the runner-up by at
/// least 0.9 nats: rounding does not flip them. The second question makes no sense without the first.
const QUESTIONS: [Question; 3] = [
    Question {
        text: "What is the capital of Japan?",
        holds: &["Tokyo"],
    },
    Question {
        text: "And of Italy?",
        holds: &["Rome"],
    },
    Question {
        text: "Write a Python function that adds two numbers.",
        holds: &["def ", "return ", " + "],
    },
];

/// Twice the length of the longest answer in f32.
const TOKENS_MAX: &str = "160";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_right_by_what_it_holds() {
        let [capital, follow_up, code] = &QUESTIONS;
        assert!(capital.is_answered("The capital of Japan is Tokyo."));
        assert!(!capital.is_answered("The capital of Japan is Lyon."));
        assert!(follow_up.is_answered("It is Rome."));
        assert!(!follow_up.is_answered("Italy is a country in Europe."));
        assert!(code.is_answered("```python\ndef add(a, b):\n    return a + b\n```"));
        assert!(!code.is_answered("return a + b, said def "));
        assert!(!code.is_answered(""));
    }
}
