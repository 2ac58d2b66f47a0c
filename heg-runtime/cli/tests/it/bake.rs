//! `heg bake` reads once what conversations begin with; `heg run`, `chat` and `serve` go on behind it with the same answers.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use heg_tests::{Workbench, fixture};
use serde_json::{Value, json};

use crate::state::{Server, command};

/// Runs a command that must succeed; returns its output.
fn output(folder: &Path, arguments: &[&str]) -> (String, String) {
    let done = command(folder, arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(done.stdout), text(done.stderr));
    assert!(done.status.success(), "{arguments:?}: {err}");
    (out, err)
}

/// Runs a command that must be refused; returns its status and message.
fn refused(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let done = command(folder, arguments).output().unwrap();
    let error = String::from_utf8(done.stderr).unwrap();
    (done.status.code().unwrap(), error)
}

fn json_of(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&output(folder, arguments).0).unwrap()
}

/// A system message of a few hundred tokens.
fn system() -> String {
    let rules = (0..40).map(|at| format!("Rule {at}: call Ana at {at} pm. "));
    format!("You help with reminders.\n{}", rules.collect::<String>())
}

#[test]
fn answers_behind_a_state_are_those_without() {
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
    let (plain, folder) = (compiled.unwrap().0, tempfile::tempdir().unwrap());
    let folder = folder.path();
    let before = std::fs::read(&plain).unwrap();
    std::fs::write(folder.join("model.heg"), &before).unwrap();
    std::fs::write(folder.join("system.txt"), system() + "\n").unwrap();
    std::fs::write(folder.join("other.txt"), system().replace("39", "40")).unwrap();
    let tools = json!([{"type": "function", "function": {"name": "add_reminder", "description": "Adds a reminder", "parameters":
        {"type": "object", "properties": {"text": {"type": "string"}}}}}]);
    std::fs::write(folder.join("tools.json"), tools.to_string()).unwrap();

    let bake = ["bake", "model.heg", "--system", "system.txt", "--json"];
    let mail = json_of(folder, &[&bake[..], &["--state", "mail"]].concat());
    let tokens = mail["tokens"].as_u64().unwrap();
    assert!(tokens >= 256, "{mail}");
    let pages = tokens.div_ceil(64);
    assert_eq!(mail["pages"], pages);
    assert_eq!(mail["path"], "model.heg");
    // In place, and the other file is as it was.
    assert!(std::fs::read(&plain).unwrap() == before);
    output(folder, &["verify", "model.heg"]);
    let other = [
        "bake",
        "model.heg",
        "--system",
        "other.txt",
        "--tools",
        "tools.json",
    ];
    let (said, _) = output(
        folder,
        &[&other[..], &["--state", "a-2", "-o", "both.heg"]].concat(),
    );
    assert!(said.starts_with("state     a-2: "), "{said}");
    let (inspected, _) = output(folder, &["inspect", "both.heg"]);
    let states: Vec<&str> = inspected
        .lines()
        .filter(|it| it.starts_with("state"))
        .collect();
    assert!(states[0].starts_with("state     a-2: ") && states[1].starts_with("state     mail: "));
    assert!(states[1].contains(&format!("{tokens} tokens in {pages} pages")));
    assert!(states[1].ends_with("I8 activations, Bf16 keys and values, arithmetic 2"));
    // The same state again changes nothing, and another one of its name replaces it.
    let again = json_of(folder, &[&bake[..], &["--state", "mail"]].concat());
    assert_eq!(again["bundle"], mail["bundle"]);

    let plain = plain.to_str().unwrap();
    let prompt = "Remind me to call Ben at 6 pm.";
    let run = |bundle: &str, more: &[&str]| {
        let asked = [
            "run", bundle, "--soc", "host-cpu", "--prompt", prompt, "--json",
        ];
        json_of(folder, &[&asked[..], more].concat())
    };
    let expected = run(plain, &["--system", &system()]);
    for (bundle, more) in [
        ("model.heg", &["--system", &system()][..]),
        ("model.heg", &["--state", "mail"]),
        ("both.heg", &["--state", "mail"]),
    ] {
        let found = run(bundle, more);
        assert_eq!(found["token_ids"], expected["token_ids"], "{more:?}");
        assert_eq!(found["prompt_tokens"], expected["prompt_tokens"]);
        assert_eq!(found["baked_tokens"], tokens);
        assert_eq!(found["descents"], json!([]));
    }
    assert_eq!(expected["baked_tokens"], 0);
    // Another prompt, another form: an ordinary answer, and the reason.
    let asked = [
        "run",
        "model.heg",
        "--prompt-ids",
        "[5, 6, 7]",
        "--state",
        "mail",
        "--stats",
    ];
    let (_, said) = output(folder, &[&asked[..], &["--soc", "host-cpu"]].concat());
    assert!(said.contains("note: state `mail` is not used: the prompt begins with other tokens"));
    let (_, said) = output(folder, &[&asked[..], &["--soc", "host-cpu-f32"]].concat());
    assert!(
        said.contains("state `mail`: CPU pages -> CPU prefill: baked with I8"),
        "{said}"
    );
    let asked = [
        "run",
        "model.heg",
        "--prompt",
        prompt,
        "--state",
        "mail",
        "--stats",
    ];
    let (_, said) = output(folder, &[&asked[..], &["--soc", "host-cpu"]].concat());
    let told = format!(
        "{tokens} of {} prompt tokens read from state `mail`",
        expected["prompt_tokens"]
    );
    assert!(said.contains(&told), "{said}");

    chats(folder, plain, tokens);
    serves(folder, tokens);
    let refusals = [
        vec!["run", "model.heg", "--prompt", "a", "--state", "none"],
        vec!["run", "model.heg", "--prompt", "a", "--state", "../x"],
        vec![
            "bake",
            "model.heg",
            "--system",
            "tools.json",
            "--state",
            "short",
        ],
        vec!["bake", "model.heg", "--system", "absent", "--state", "x"],
    ];
    let said: Vec<String> = refusals
        .iter()
        .map(|arguments| {
            let (status, said) = refused(folder, arguments);
            let said = said
                .lines()
                .filter(|line| !line.starts_with("note: runs on"));
            format!("{status} {}", said.collect::<Vec<_>>().join("\n"))
        })
        .collect();
    insta::assert_snapshot!("bake_refusals", said.join("\n\n"));
}

/// A conversation begins with the state's messages.
fn chats(folder: &Path, plain: &str, tokens: u64) {
    let chat = |bundle: &str, more: &[&str]| {
        let asked = [
            "chat",
            bundle,
            "--soc",
            "host-cpu",
            "--json",
            "--max-tokens",
            "8",
        ];
        let mut chat = command(folder, &[&asked[..], more].concat());
        let chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut chat = chat.stderr(Stdio::null()).spawn().unwrap();
        let mut input = chat.stdin.take().unwrap();
        input.write_all(b"Call Ben at 6 pm.\nAnd Ana?\n").unwrap();
        drop(input);
        let said = String::from_utf8(chat.wait_with_output().unwrap().stdout).unwrap();
        let turns: Vec<Value> = said
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(turns.len(), 2);
        turns
    };
    let (with, without) = (
        chat("model.heg", &["--state", "mail"]),
        chat(plain, &["--system", &system()]),
    );
    for (with, without) in with.iter().zip(&without) {
        assert_eq!(with["text"], without["text"]);
    }
    assert_eq!(
        (
            with[0]["reused_tokens"].as_u64(),
            without[0]["reused_tokens"].as_u64()
        ),
        (Some(tokens), Some(0))
    );
    assert!(with[1]["reused_tokens"].as_u64() > Some(tokens));
}

/// Every client of a server goes on behind the state, and figures say so.
fn serves(folder: &Path, tokens: u64) {
    let model = folder.join("model.heg");
    let server = Server::start(folder, &model, &["--state-mib", "0"]);
    let beginning = heg_runtime::Loaded::open(&model).unwrap();
    let ids = &beginning.bundle().manifest().states[0].tokens;
    let prompt: Vec<u32> = ids.iter().copied().chain([5, 6, 7]).collect();
    assert_eq!(server.ask(prompt.into()).1, tokens);
    let metrics = server.get("/metrics");
    let counted = format!("heg_baked_tokens_total{{state=\"mail\"}} {tokens}");
    assert!(metrics.contains(&counted), "{metrics}");
}
