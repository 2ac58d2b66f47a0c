//! `heg pull` killed in the middle: the next one fetches what was not there yet, and hardly a byte twice.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use heg_artifacts::SectionId;
use heg_tests::{Workbench, fixture};
use serde_json::Value;

use crate::registry::{heg_with_store, registry_or_skip};

/// A line to a registry that brings some bytes every millisecond, and counts them.
struct Line {
    host: String,
    bytes: Arc<AtomicU64>,
}

impl Line {
    fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let bytes = Arc::new(AtomicU64::new(0));
        let (count, target) = (Arc::clone(&bytes), target.to_owned());
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(&target).unwrap());
                let upwards = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || forward(upwards.0, upwards.1, None));
                let count = Arc::clone(&count);
                thread::spawn(move || forward(server, client, Some(&count)));
            }
        });
        Self { host, bytes }
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Hands on what comes until one side is gone. What is counted comes slowly, so that little of it is on its way.
fn forward(mut from: TcpStream, mut to: TcpStream, count: Option<&AtomicU64>) {
    let mut buffer = [0; 8 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if let Some(count) = count {
            count.fetch_add(read as u64, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    // The other side may be gone already.
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// The last line of JSON with this event.
fn event(output: &str, event: &str) -> Value {
    let lines = output.lines().rev();
    let mut found = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = found.find(|line| line["event"] == event);
    assert!(found.is_some(), "{event}: {output}");
    found.unwrap()
}

/// The file of the bundle that a folder's store has, by its hash.
fn exported(folder: &Path) -> SectionId {
    let file = folder.join("exported.heg");
    let mut export = heg_with_store(folder);
    let output = export.args(["export", "chat", "--to"]).arg(&file).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    SectionId::of(&std::fs::read(file).unwrap())
}

#[test]
fn a_pull_that_was_killed_goes_on() {
    let test = "a_pull_that_was_killed_goes_on";
    let [folder, whole, killed] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let Some(docker) = registry_or_skip(test, folder.path()) else {
        return;
    };
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
    let name = format!("{}/acme/chat:stable", docker.host);
    let mut push = heg_with_store(folder.path());
    let pushed = push.arg("push").arg(compiled.unwrap().0).arg(&name);
    assert!(pushed.output().unwrap().status.success());

    let line = Line::to(&docker.host);
    let name = format!("{}/acme/chat:stable", line.host);
    let pull = ["pull", &name, "--allow-unsigned", "--jobs", "1", "--json"];
    let pulled = |folder: &Path| {
        let output = heg_with_store(folder).args(pull).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let at_once = pulled(whole.path());
    let line_bytes = line.bytes();
    let bundle_bytes = event(&at_once, "planned")["bundle_bytes"].as_u64().unwrap();
    let document_bytes = line_bytes - bundle_bytes;

    let mut first = heg_with_store(killed.path());
    let mut first = first.args(pull).stdout(Stdio::null()).spawn().unwrap();
    while line.bytes() - line_bytes < document_bytes + bundle_bytes * 6 / 10 {
        assert!(first.try_wait().unwrap().is_none(), "it ended before");
        thread::sleep(Duration::from_millis(1));
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let before = line.bytes() - line_bytes - document_bytes;
    let second = pulled(killed.path());
    let here = event(&second, "planned")["here_bytes"].as_u64().unwrap();
    println!(
        "{bundle_bytes} bytes: {before} came before the kill, {here} of them were here after it"
    );
    // The one block that was on its way, and what the line had of it and of the next.
    assert!(
        here + BLOCK_BYTES > before,
        "{before} came, {here} are here"
    );
    assert!(here > bundle_bytes / 3, "{here} of {bundle_bytes} are here");
    assert_eq!(exported(killed.path()), exported(whole.path()));
}

/// Most bytes that are checked as one.
const BLOCK_BYTES: u64 = heg_artifacts::BLOCK_BYTES + (64 << 10);
