//! `heg serve` as a process, and its clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use heg_tests::soft_npu::SoftNpu;
use serde_json::{Value, json};

use super::{bundle, command, end_of};

/// A question whose greedy answer is ahead of all others on every device (by 3.7 nats). With most questions the tiny agent
/// wavers: devices that round in other ways answer in other ways, and which of a server's lanes computes a part of a prompt
/// depends on the load of the machine.
pub(super) const CLEAR: &str = "Wake me at 7 am.";

/// The answer to it.
pub(super) const CLEAR_ANSWER: &str = "None of my tools can do that.";

/// A server, killed when dropped.
pub(super) struct Server {
    process: Child,
    address: String,
}

impl Server {
    /// Starts a server of the tiny agent in a world.
    pub(super) fn start(
        world: &SoftNpu,
        soc: &str,
        arguments: &[&str],
        settings: &[(&str, &str)],
    ) -> Self {
        let mut serve = command(world, bundle(), settings);
        let serve = serve.arg("serve").arg(bundle());
        let serve = serve.args(["--port", "0", "--soc", soc]).args(arguments);
        let serve = serve.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = serve.spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let (_, address) = line.trim_end().rsplit_once("http://").unwrap();
        let address = address.split('/').next().unwrap().to_owned();
        Self { process, address }
    }

    /// Address at which it listens.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Asks for a greedy answer, and waits for it.
    pub(super) fn ask(&self, prompt: &str, tokens: u32, priority: &str) -> String {
        let reply = self.try_ask(prompt, tokens, priority);
        let text = reply["choices"][0]["message"]["content"].as_str();
        text.unwrap_or_else(|| panic!("{reply}")).to_owned()
    }

    /// Asks for a greedy answer; returns the reply, which may be an error.
    pub(super) fn try_ask(&self, prompt: &str, tokens: u32, priority: &str) -> Value {
        let body = json!({
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "priority": priority,
        })
        .to_string();
        let mut server = TcpStream::connect(&self.address).unwrap();
        write!(
            server,
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut reply = String::new();
        server.read_to_string(&mut reply).unwrap();
        let (_, body) = reply.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|_| panic!("{reply}"))
    }

    /// Its health, as it says.
    pub(super) fn health(&self) -> String {
        let mut server = TcpStream::connect(&self.address).unwrap();
        let asked = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        server.write_all(asked.as_bytes()).unwrap();
        let mut reply = String::new();
        server.read_to_string(&mut reply).unwrap();
        reply
    }

    /// Tells it to end, and waits for that; returns how long that took.
    #[track_caller]
    pub(super) fn end(mut self) -> Duration {
        let begin = Instant::now();
        let process = self.process.id().to_string();
        let stopped = Command::new("kill").arg(process).status();
        assert!(stopped.unwrap().success());
        assert_eq!(end_of(&mut self.process).code(), Some(0));
        begin.elapsed()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
