//! The official clients: OpenAI's for Python, and LangChain's on top of it.
//!
//! They live in a Python environment below the target folder, which `cargo xtask setup --clients` makes.

use std::path::{Path, PathBuf};
use std::process::Command;

use heg_runtime::server::{Address, Token};
use heg_tests::openvino_or_skip;

use crate::host::Host;

/// Python with the clients' packages, where there is one; where not, says so.
pub(crate) fn python_or_skip(test: &str) -> Option<PathBuf> {
    // This program is in `<target folder>/<profile>/deps`.
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).unwrap();
    let python = target.join("clients/bin/python");
    if python.is_file() {
        return Some(python);
    }
    let text = format!("{test}: no Python clients (run: cargo xtask setup --clients)");
    assert!(std::env::var_os("HEG_REQUIRE_CLIENTS").is_none(), "{text}");
    println!("skipped: {text}");
    None
}

#[test]
fn the_clients_of_openai_and_langchain_are_answered() {
    let test = "the_clients_of_openai_and_langchain_are_answered";
    if !openvino_or_skip(test) {
        return;
    }
    let Some(python) = python_or_skip(test) else {
        return;
    };
    let host = Host::with(|options| options.token = Token::new("s3cret"));
    let Address::Tcp(address) = host.addresses[0] else {
        panic!("no port");
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("serve/clients.py");
    let output = Command::new(python)
        .arg(script)
        .arg(format!("http://{address}/v1"))
        .arg("s3cret")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    insta::assert_snapshot!(String::from_utf8(output.stdout).unwrap());
}
