//! The official clients: OpenAI's and Anthropic's for Python and for JavaScript, and LangChain's on top of the first.
//!
//! They live in folders below the target folder, which `cargo xtask setup --clients` makes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use heg_server::{ServedModel, Token};

use crate::host::{Host, served};

/// A file or folder of the clients, by its path below the target folder; `None`, with a message, if it is missing.
fn installed_or_skip(test: &str, path: &str) -> Option<PathBuf> {
    // This program is in `<target folder>/<profile>/deps`.
    let program = std::env::current_exe().unwrap();
    let found = program.ancestors().nth(3).unwrap().join(path);
    if found.exists() {
        return Some(found);
    }
    let text = format!("{test}: no `{path}` (run: cargo xtask setup --clients)");
    assert!(std::env::var_os("HEG_REQUIRE_CLIENTS").is_none(), "{text}");
    heg_tests::skipped(&text);
    None
}

/// Runs a script from this folder on a server of its own, which requires the token `s3cret`. Returns `None` if a
/// requirement is missing, which was reported.
pub(crate) fn run_or_skip(test: &str, script: &str, base_path: &str) -> Option<Output> {
    run_on_or_skip(test, script, base_path, served)
}

/// Runs a script as [`run_or_skip`] does, on a server of another model.
pub(crate) fn run_on_or_skip(
    test: &str,
    script: &str,
    base_path: &str,
    served: impl FnOnce() -> ServedModel + Send + 'static,
) -> Option<Output> {
    let python = installed_or_skip(test, "clients/bin/python")?;
    Some(output_of(
        Command::new(python).arg(in_this_folder(script)),
        base_path,
        served,
    ))
}

/// Runs a script for Node.js as [`run_or_skip`] does one for Python.
fn node_or_skip(test: &str, script: &str, base_path: &str) -> Option<Output> {
    let packages = installed_or_skip(test, "clients-javascript/packages.json")?;
    let mut node = Command::new("node");
    node.arg(in_this_folder(script)).args(packages.parent());
    Some(output_of(&mut node, base_path, served))
}

/// Runs a command with a server's address and token as its last arguments.
fn output_of(
    command: &mut Command,
    base_path: &str,
    served: impl FnOnce() -> ServedModel + Send + 'static,
) -> Output {
    let host = Host::serving(served, |options| {
        options.tokens = Token::new("s3cret").unwrap().into()
    });
    let api = host.addresses[0].to_string();
    let root = api.trim_end_matches("/v1");
    let command = command.arg(format!("{root}{base_path}")).arg("s3cret");
    command.output().unwrap()
}

fn in_this_folder(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("serve")
        .join(script)
}

/// Returns the output of a script.
pub(crate) fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{out}{err}")
}

#[test]
fn the_clients_of_openai_and_langchain_are_answered() {
    let test = "the_clients_of_openai_and_langchain_are_answered";
    let Some(output) = run_or_skip(test, "clients.py", "/v1") else {
        return;
    };
    assert!(output.status.success(), "{}", said(&output));
    insta::assert_snapshot!(String::from_utf8(output.stdout).unwrap());
}

#[test]
fn the_client_of_openai_has_conversations() {
    let test = "the_client_of_openai_has_conversations";
    let Some(output) = run_or_skip(test, "responses_client.py", "/v1") else {
        return;
    };
    assert!(output.status.success(), "{}", said(&output));
    insta::assert_snapshot!(String::from_utf8(output.stdout).unwrap());
}

#[test]
fn the_client_of_anthropic_is_answered() {
    let test = "the_client_of_anthropic_is_answered";
    let Some(output) = run_or_skip(test, "anthropic_client.py", "") else {
        return;
    };
    assert!(output.status.success(), "{}", said(&output));
    insta::assert_snapshot!(String::from_utf8(output.stdout).unwrap());
}

#[test]
fn the_clients_for_javascript_are_answered() {
    let test = "the_clients_for_javascript_are_answered";
    for (script, base_path) in [("openai_client.mjs", "/v1"), ("anthropic_client.mjs", "")] {
        let Some(output) = node_or_skip(test, script, base_path) else {
            return;
        };
        assert!(output.status.success(), "{}", said(&output));
        insta::assert_snapshot!(script, String::from_utf8(output.stdout).unwrap());
    }
}
