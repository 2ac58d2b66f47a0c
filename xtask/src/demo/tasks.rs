//! The second part of the demo: tiny-agent, a model in the repository, gets three tasks of a personal agent. It was
//! trained on such tasks, so that each answer is compared as a whole.

use super::Asked;
use super::show::{print_title, print_turn, print_verdict};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use xtask::compile;
use xtask::workspace::{self, note, root};

/// Compiles tiny-agent, runs its tasks, and returns the result.
pub(super) fn run(heg: &Path) -> Result<Asked> {
    let bundle = compile_tiny_agent()?;
    let scratch = tempfile::tempdir().context("cannot create a temporary folder")?;
    let mut wrong = 0;
    for case in &cases()? {
        let file = scratch.path().join("messages.json");
        let mut request = json!({ "messages": case.messages });
        if !case.tools.is_null() {
            request["tools"] = case.tools.clone();
        }
        fs::write(&file, request.to_string()).context("cannot write the messages")?;
        let reply = ask(heg, &bundle, &file)?;
        wrong += usize::from(!print_case(case, &reply));
    }
    Ok(Asked {
        questions: CHOSEN.len(),
        wrong,
        bundle,
    })
}

fn compile_tiny_agent() -> Result<PathBuf> {
    let output = workspace::output();
    let bundle = output.bundle("tiny-agent");
    note("compiling tests/fixtures/tiny-agent (8-bit weights)");
    let options = compile::own_use();
    let done = compile::compile(&model_dir(), &bundle, &output.store(), &options)
        .context("cannot compile tiny-agent")?;
    println!("{done}");
    Ok(bundle)
}

fn ask(heg: &Path, bundle: &Path, messages: &Path) -> Result<Value> {
    let mut command = workspace::heg(heg);
    command
        .arg("run")
        .arg(bundle)
        .arg("--messages")
        .arg(messages)
        .args(["--max-tokens", "96", "--temperature", "0", "--json"]);
    let said = workspace::capture(&mut command, "heg run")?;
    serde_json::from_str(&said).context("heg run --json printed no JSON object")
}

/// One question with the answer that the model was trained to give.
struct Case {
    title: &'static str,
    messages: Value,
    tools: Value,
    answer: String,
}

/// The chosen lines of the fixture's held-out evaluation prompts.
fn cases() -> Result<Vec<Case>> {
    let path = model_dir().join("eval.jsonl");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let lines: Vec<Value> = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .with_context(|| format!("`{}` is no JSON lines file", path.display()))?;
    CHOSEN
        .into_iter()
        .map(|(id, title)| {
            let Some(line) = lines.iter().find(|line| line["id"] == id) else {
                bail!("`{}` has no line with id {id}", path.display());
            };
            let answer = line["answer"].as_str().context("`answer` is no text")?;
            Ok(Case {
                title,
                messages: line["messages"].clone(),
                tools: line["tools"].clone(),
                answer: answer.trim().to_string(),
            })
        })
        .collect()
}

/// Prints a case with its answer; returns whether that is right.
fn print_case(case: &Case, reply: &Value) -> bool {
    print_title(case.title);
    for message in case.messages.as_array().into_iter().flatten() {
        let role = message["role"].as_str().unwrap_or("?");
        print_turn(role, message["content"].as_str().unwrap_or_default());
    }
    if let Some(tools) = case.tools.as_array() {
        let names = tools.iter().filter_map(|t| t["function"]["name"].as_str());
        print_turn("tools", &names.collect::<Vec<_>>().join(", "));
    }
    let answer = reply["text"].as_str().unwrap_or_default().trim();
    print_turn("answer", answer);
    let is_right = answer == case.answer;
    print_verdict(is_right, &case.answer, reply);
    is_right
}

fn model_dir() -> PathBuf {
    root().join("tests").join("fixtures").join("tiny-agent")
}

/// Ids in eval.jsonl. Each is answered correctly in float32, and with 8-bit weights no token of
/// the answer leads the runner-up by less than 10 (measured in PyTorch): rounding cannot flip it.
const CHOSEN: [(u64, &str); 3] = [
    (118, "A function call"),
    (47, "A question over notes"),
    (21, "A digest of events"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_cases_are_what_their_titles_say() {
        let path = model_dir().join("eval.jsonl");
        let text = fs::read_to_string(path).unwrap();
        let kinds = [
            ("function_call", "call"),
            ("context_qa", "notes"),
            ("event_monitor", "digest"),
        ];
        for ((id, title), (task, kind)) in CHOSEN.into_iter().zip(kinds) {
            let line: Value = text
                .lines()
                .map(|l| serde_json::from_str::<Value>(l).unwrap())
                .find(|l| l["id"] == id)
                .unwrap();
            assert_eq!(
                (&line["task"], &line["kind"]),
                (&json!(task), &json!(kind)),
                "{title}"
            );
            assert_eq!(line["correct_float32"], true, "{title}");
        }
        assert_eq!(cases().unwrap().len(), CHOSEN.len());
    }
}
