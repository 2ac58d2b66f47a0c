//! Thoughts of a model (`heg_tests::thinker`): on standard error, in a field of JSON, and before a form.

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use heg_tests::Workbench;
use heg_tests::thinker::{self, ANSWER, QUESTION, SYSTEM, THOUGHT};
use serde_json::{Value, json};

use crate::state::command;

/// Runs a command of `heg` on the thinking agent, with these lines of input.
fn heg(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let arguments = [
        &arguments[..1],
        &["thinker.heg", "--soc", "host-cpu-f32", "--system", SYSTEM],
        &arguments[1..],
    ];
    let mut command = command(folder, &arguments.concat());
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
    let stdin = process.stdin.take();
    stdin.unwrap().write_all(input.as_bytes()).unwrap();
    process.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Objects of JSON, one on each line.
fn objects(output: &Output) -> Vec<Value> {
    let lines = text(&output.stdout).lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn standard_output_has_the_answer_alone() {
    let workbench = Workbench::new().unwrap();
    thinker::compile(&workbench).unwrap();
    let folder = workbench.folder();
    let ask = ["run", "--prompt", QUESTION, "--max-tokens", "40"];
    let output = heg(folder, &ask, "");
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(text(&output.stdout), format!("{ANSWER}\n"));
    assert!(said.ends_with(&format!("{THOUGHT}\n\n")), "{said}");

    let output = heg(folder, &[&ask[..], &["--json"]].concat(), "");
    let report = &objects(&output)[0];
    assert_eq!(report["text"], ANSWER);
    assert_eq!(report["reasoning_content"], THOUGHT);
}

#[test]
fn a_form_holds_the_answer_behind_a_thought() {
    let workbench = Workbench::new().unwrap();
    thinker::compile(&workbench).unwrap();
    let folder = workbench.folder();
    let schema = json!({
        "type": "object",
        "properties": {"what": {"enum": ["wagon"]}},
        "required": ["what"],
        "additionalProperties": false,
    });
    std::fs::write(folder.join("schema.json"), schema.to_string()).unwrap();
    let ask = [
        "run",
        "--prompt",
        QUESTION,
        "--json",
        "--json-schema",
        "schema.json",
    ];
    let output = heg(folder, &ask, "");
    let report = &objects(&output)[0];
    assert_eq!(report["reasoning_content"], THOUGHT, "{report}");
    let answer: Value = serde_json::from_str(report["text"].as_str().unwrap()).unwrap();
    assert_eq!(answer, json!({"what": "wagon"}));
}

#[test]
fn a_conversation_goes_on_behind_thoughts() {
    let workbench = Workbench::new().unwrap();
    thinker::compile(&workbench).unwrap();
    let question = QUESTION.replace('\n', " ");
    let lines = format!("{question}\n{question}\n");
    let output = heg(workbench.folder(), &["chat", "--json"], &lines);
    let [first, second] = &objects(&output)[..] else {
        panic!("{}", text(&output.stderr));
    };
    let (thought, answer) = (&first["reasoning_content"], &first["text"]);
    assert_eq!([thought, answer], [THOUGHT, ANSWER]);
    assert!(second["reused_tokens"].as_u64() >= first["prompt_tokens"].as_u64());

    // The thought is in the next prompt, as the template has it.
    let asked = json!({"role": "user", "content": question});
    let answered = json!({"role": "assistant", "content": answer, "reasoning_content": thought});
    let system = json!({"role": "system", "content": SYSTEM});
    let conversation = json!({"messages": [system, asked, answered, asked]});
    let file = workbench.path("messages.json");
    std::fs::write(&file, conversation.to_string()).unwrap();
    let ask = [
        "run",
        "thinker.heg",
        "--messages",
        "messages.json",
        "--json",
    ];
    let output = command(workbench.folder(), &ask).output().unwrap();
    let whole = &objects(&output)[0];
    assert_eq!(second["prompt_tokens"], whole["prompt_tokens"]);
}
