//! `heg.exe` under wine says what this `heg` says, bit for bit: answers, keys and values, and what `heg serve` answers on
//! loopback; it serves on a named pipe, and pulls from a registry. `HEG_WINDOWS` is the path of the program, which `cargo
//! xtask ci --only windows` builds; without it, these tests are skipped.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use heg_tests::{Workbench, fixture, skipped};
use serde_json::{Value, json};

use crate::registry::registry_or_skip;
use crate::state::Server;

/// A folder with a bundle, for both programs.
struct World {
    folder: tempfile::TempDir,
    windows: PathBuf,
}

/// The programs that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    Here,
    Windows,
}

impl World {
    /// `None`, after saying so, where there is no program for Windows.
    fn or_skip(test: &str) -> Option<Self> {
        let Some(windows) = std::env::var_os("HEG_WINDOWS") else {
            skipped(&format!("{test}: HEG_WINDOWS names no `heg.exe`"));
            return None;
        };
        let workbench = Workbench::new().unwrap();
        let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
        let folder = tempfile::tempdir().unwrap();
        fs::copy(compiled.unwrap().0, folder.path().join(BUNDLE)).unwrap();
        let windows = windows.into();
        Some(Self { folder, windows })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// `heg` in the folder of the bundle, with a store and notes of its own.
    fn heg(&self, system: System, arguments: &[&str]) -> Command {
        let mut heg = match system {
            System::Here => Command::new(env!("CARGO_BIN_EXE_heg")),
            System::Windows => {
                let mut wine = Command::new("wine");
                wine.arg(&self.windows);
                wine
            }
        };
        heg.args(arguments).current_dir(self.path());
        // Paths that both systems take.
        heg.env("HEG_CACHE_DIR", format!("cache-{system:?}"));
        heg.env("HEG_STORE", format!("store-{system:?}"));
        heg
    }

    /// Runs `heg` with lines of input; returns what it prints.
    fn says(&self, system: System, arguments: &[&str], input: &str) -> String {
        let mut heg = self.heg(system, arguments);
        let pipes = heg.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut heg = pipes.stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = heg.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        printed(&heg.wait_with_output().unwrap())
    }

    /// Starts `heg serve` on a port, and on what else `arguments` say.
    fn server(&self, system: System, arguments: &[&str]) -> Server {
        let serve = ["serve", BUNDLE, "--port", "0", "--soc", "host-cpu"];
        let serve = [&serve[..], arguments].concat();
        Server::of(self.path(), self.heg(system, &serve))
    }
}

fn printed(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn answers_of_windows_have_the_same_tokens() {
    let Some(world) = World::or_skip("answers_of_windows_have_the_same_tokens") else {
        return;
    };
    let run = ["run", BUNDLE, "--prompt", PROMPT, "--soc", "host-cpu"];
    // Drawn, so that probabilities count and not only the likeliest token.
    let drawn = ["--temperature", "1", "--seed", "7", "--max-tokens", "64"];
    let run = [&run[..], &drawn, &["--json"]].concat();
    let [here, windows] = [System::Here, System::Windows].map(|system| {
        let said = world.says(system, &run, "");
        let said: Value = serde_json::from_str(&said).unwrap();
        (said["text"].clone(), said["token_ids"].clone())
    });
    assert!(here.1.as_array().unwrap().len() > 1, "{here:?}");
    assert_eq!(windows, here);

    let chat = ["chat", BUNDLE, "--json", "--soc", "host-cpu"];
    let chat = [&chat[..], &drawn].concat();
    let [here, windows] = [System::Here, System::Windows].map(|system| {
        let said = world.says(system, &chat, "Remind me to call Ana.\nAnd Bo at six.\n");
        let turns = said.lines().map(|line| serde_json::from_str(line).unwrap());
        let turns = turns.map(|turn: Value| (turn["text"].clone(), turn["reused_tokens"].clone()));
        turns.collect::<Vec<_>>()
    });
    assert_eq!(here.len(), 2);
    assert_eq!(windows, here);
}

#[test]
fn keys_and_values_of_windows_are_the_same_bytes() {
    let Some(world) = World::or_skip("keys_and_values_of_windows_are_the_same_bytes") else {
        return;
    };
    let instructions = "Answer with one call of a tool, and nothing else. ".repeat(20);
    fs::write(world.path().join("instructions.txt"), instructions).unwrap();
    let [here, windows] = [System::Here, System::Windows].map(|system| {
        let baked = format!("{system:?}.heg");
        let bake = ["bake", BUNDLE, "--system", "instructions.txt"];
        let to = ["--state", "trial", "--soc", "host-cpu", "-o", &baked];
        world.says(system, &[&bake[..], &to].concat(), "");
        fs::read(world.path().join(baked)).unwrap()
    });
    assert!(here.len() > fs::read(world.path().join(BUNDLE)).unwrap().len());
    assert!(here == windows, "the baked bundles differ");
}

/// Prompts and forms are made in processes of the worker, which are started in another way on Windows.
#[test]
fn a_server_on_windows_answers_on_loopback_and_on_a_pipe() {
    let Some(world) = World::or_skip("a_server_on_windows_answers_on_loopback_and_on_a_pipe")
    else {
        return;
    };
    let pipe = format!(r"\\.\pipe\heg-test-{}", std::process::id());
    let windows = world.server(System::Windows, &["--socket", &pipe]);
    let here = world.server(System::Here, &[]);
    let schema = json!({"type": "object", "required": ["city", "n"],
        "properties": {"city": {"enum": ["Oslo", "Bern"]}, "n": {"type": "integer"}}});
    let form = json!({"type": "json_schema", "json_schema": {"name": "trip", "schema": schema}});
    let refused = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"type": "string"}}}});
    for more in [
        json!({}),
        json!({"response_format": form, "n": 2}),
        json!({"response_format": form, "seed": 8}),
        json!({"response_format": refused}),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": PROMPT}], "seed": 7,
            "temperature": 1, "max_tokens": 48});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let answer = |server: &Server| {
            let said = server.post("/v1/chat/completions", &body);
            (said["choices"].clone(), said["error"]["message"].clone())
        };
        let (expected, found) = (answer(&here), answer(&windows));
        assert_ne!(expected, (Value::Null, Value::Null));
        assert_eq!(found, expected, "{body}");
    }

    let line = json!({"at_ms": 0, "class": "reactive", "prompt": PROMPT, "prompt_tokens": 9, "output_tokens": 8});
    fs::write(world.path().join("trace.jsonl"), format!("{line}\n")).unwrap();
    let replay = ["bench-serve", "--trace", "trace.jsonl", "--json"];
    let replay = [&replay[..], &["--ids-end", "2000", "--socket", &pipe]].concat();
    let said: Value = serde_json::from_str(&world.says(System::Windows, &replay, "")).unwrap();
    let requests = said["requests"].as_array().unwrap();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0]["failure"], Value::Null, "{said}");
}

#[test]
fn a_machine_with_windows_pulls_and_answers() {
    let test = "a_machine_with_windows_pulls_and_answers";
    let Some(world) = World::or_skip(test) else {
        return;
    };
    let registry = tempfile::tempdir().unwrap();
    let Some(docker) = registry_or_skip(test, registry.path()) else {
        return;
    };
    let name = format!("{}/acme/chat:stable", docker.host);
    world.says(System::Here, &["push", BUNDLE, &name], "");
    let pull = ["pull", &name, "--allow-unsigned"];
    let pulled = world.says(System::Windows, &pull, "");
    assert!(pulled.contains("nothing is left to hash"), "{pulled}");
    let again = world.says(System::Windows, &pull, "");
    assert!(!again.contains("nothing is left to hash"), "{again}");
    let run = ["run", "chat", "--prompt", PROMPT, "--soc", "host-cpu"];
    let run = [&run[..], &["--max-tokens", "8", "--temperature", "0"]].concat();
    let answer = world.says(System::Windows, &run, "");
    assert!(!answer.trim().is_empty());
}

const BUNDLE: &str = "tiny-agent.heg";

const PROMPT: &str = "Remind me to call Ana at 5 pm.";
