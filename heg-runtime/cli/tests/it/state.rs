//! `heg serve` keeps prompts for its next run, and `heg state` shows and removes them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use heg_tests::{Workbench, fixture};
use serde_json::{Value, json};

/// A server, killed when dropped.
pub(crate) struct Server {
    process: Child,
    address: String,
    /// Its standard error before it served.
    said: Vec<String>,
}

pub(crate) fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heg"));
    let command_ = command.args(arguments).current_dir(folder);
    command_.env("HEG_CACHE_DIR", folder.join("cache"));
    command
}

impl Server {
    pub(crate) fn start(folder: &Path, bundle: &Path, arguments: &[&str]) -> Self {
        let mut serve = command(folder, &["serve", "--port", "0", "--soc", "host-cpu"]);
        serve.args(arguments).arg(bundle);
        Self::of(folder, serve)
    }

    /// Starts a server by a command that names a port.
    pub(crate) fn of(folder: &Path, mut serve: Command) -> Self {
        let log = folder.join("log");
        let file = std::fs::File::create(&log).unwrap();
        let serve = serve.stdout(Stdio::piped()).stderr(file);
        let mut process = serve.spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let said = std::fs::read_to_string(log).unwrap();
        let (_, address) = line.trim_end().rsplit_once("http://").unwrap();
        let address = address.split('/').next().unwrap().to_owned();
        Self {
            process,
            address,
            said: said.lines().map(str::to_owned).collect(),
        }
    }

    /// Memory that a mapped file takes in the server's process, in KiB, from Linux's `/proc`.
    #[cfg(target_os = "linux")]
    pub(crate) fn mapped_kib(&self, file: &str) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{}/smaps", self.process.id())).unwrap();
        let mut sum = 0;
        let mut is_files = false;
        for line in maps.lines() {
            match line.strip_prefix("Rss:") {
                Some(rest) if is_files => {
                    let kib = rest.trim().strip_suffix(" kB").unwrap();
                    sum += kib.parse::<u64>().unwrap();
                }
                // A mapping begins with its addresses, and ends with its file.
                None if line
                    .split('-')
                    .next()
                    .is_some_and(|it| u64::from_str_radix(it, 16).is_ok()) =>
                {
                    is_files = line.ends_with(file);
                }
                _ => {}
            }
        }
        sum
    }

    /// Returns whether its standard error had this before it served.
    pub(crate) fn has_said(&self, text: &str) -> bool {
        self.said.iter().any(|line| line.contains(text))
    }

    /// Returns the text of an answer, and the tokens of the prompt that were not computed.
    pub(crate) fn ask(&self, prompt: Value) -> (String, u64) {
        let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0});
        let body = self.post("/v1/completions", &body);
        let text = body["choices"][0]["text"].as_str().unwrap().to_owned();
        let cached = &body["usage"]["prompt_tokens_details"]["cached_tokens"];
        (text, cached.as_u64().unwrap())
    }

    /// Returns the reply to a request.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        serde_json::from_str(&self.exchange(&head)).unwrap()
    }

    /// Returns what is at a path.
    pub(crate) fn get(&self, path: &str) -> String {
        self.exchange(&format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        ))
    }

    /// Sends a request; returns the body of the reply.
    fn exchange(&self, request: &str) -> String {
        let mut server = TcpStream::connect(&self.address).unwrap();
        server.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        server.read_to_string(&mut reply).unwrap();
        reply.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn state(folder: &Path, arguments: &[&str]) -> Value {
    let output = command(folder, &["state", "--json"])
        .args(arguments)
        .output();
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_server_keeps_prompts_and_people_can_see_and_remove_them() {
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
    let (bundle, folder) = (compiled.unwrap().0, tempfile::tempdir().unwrap());
    let folder = folder.path();
    assert_eq!(state(folder, &["list"])["prefixes"], json!([]));

    let prompt = "Remind me to call Ana at 5 pm. ".repeat(30);
    let server = Server::start(folder, &bundle, &[]);
    let said = server
        .said
        .iter()
        .find(|line| line.contains("keeps prompts"))
        .unwrap();
    assert!(
        said.contains("0 pages, 0 of 2048 MiB") && said.contains("--state-mib 0"),
        "{said}"
    );
    let (answer, cached) = server.ask(prompt.as_str().into());
    assert_eq!(cached, 0);
    let begin = Instant::now();
    while state(folder, &["list"])["prefixes"] == json!([]) {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "nothing was kept"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(server);

    let none = Server::start(folder, &bundle, &["--state-mib", "0"]);
    assert!(
        !none.said.iter().any(|line| line.contains("keeps prompts")),
        "{:?}",
        none.said
    );
    assert_eq!(none.ask(prompt.as_str().into()), (answer.clone(), 0));
    drop(none);

    let server = Server::start(folder, &bundle, &[]);
    let (again, cached) = server.ask(prompt.as_str().into());
    assert_eq!(again, answer);
    assert!(cached >= 64 && cached % 64 == 0, "{cached}");
    drop(server);

    let listed = state(folder, &["list"]);
    let prefix = &listed["prefixes"][0];
    assert!(prefix["whole"].as_bool().unwrap() && prefix["tokens"].as_u64().unwrap() >= cached);
    let name = prefix["name"].as_str().unwrap();
    let shown = state(
        folder,
        &["show", name, "--bundle", bundle.to_str().unwrap()],
    );
    assert!(
        prompt.starts_with(&shown["text"].as_str().unwrap()[..60]),
        "{shown}"
    );
    let text = command(folder, &["state", "list"]).output().unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(&name[..12]), "{text}");

    assert_eq!(state(folder, &["purge"])["pages"], listed["pages"]);
    assert_eq!(state(folder, &["list"])["bytes"], 0);
    let unknown = command(folder, &["state", "show", name]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
}
