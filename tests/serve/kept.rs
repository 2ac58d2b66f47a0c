//! A server that is killed has kept its prompts: the next one goes on behind them with the same answers. Whoever is
//! another client finds nothing of them, and learns nothing from figures.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use heg_runtime::engine::EngineOptions;
use heg_server::{Address, Server, ServerOptions, Token, Tokens, shutdown_signal};
use heg_spec::shipped;
use heg_state::{KeptLimits, StateFolder};
use serde_json::{Value, json};

use crate::client::{Connection, Reply};
use crate::host::{bundle, served_by, wait_until};

/// Environment variable with the folder of [`serves_until_it_is_killed`], set only for it.
const FOLDER: &str = "HEG_TEST_KEPT_FOLDER";
const BUNDLE: &str = "HEG_TEST_KEPT_BUNDLE";

const ANN: &str = "authorization: Bearer ann\r\n";
const BEN: &str = "authorization: Bearer ben\r\n";

fn tokens() -> Tokens {
    let mut tokens = Tokens::default();
    for name in ["ann", "ben"] {
        tokens.add(Token::new(name).unwrap(), Some(name)).unwrap();
    }
    tokens
}

/// The process that is killed below; by itself it tests nothing.
#[test]
fn serves_until_it_is_killed() {
    let (Some(folder), Some(bundle)) = (std::env::var_os(FOLDER), std::env::var_os(BUNDLE)) else {
        return;
    };
    let folder = PathBuf::from(folder);
    let server = Server::bind(ServerOptions {
        socket: Some(folder.join("heg.sock")),
        tokens: tokens(),
        ..ServerOptions::default()
    });
    let kept = StateFolder::open(&folder.join("state"), KeptLimits::of_mib(64)).unwrap();
    let options = EngineOptions {
        state: Some(Arc::new(kept)),
        ..EngineOptions::default()
    };
    let policy = shipped::policy("agent-xpu-one-device").unwrap();
    let served = served_by(Path::new(&bundle), "host-cpu", policy, options);
    server.unwrap().run(served, shutdown_signal()).unwrap();
}

/// A server in a process of its own, killed when dropped.
struct Victim<'f>(Child, &'f Path);

impl<'f> Victim<'f> {
    fn start(folder: &'f Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kept::serves_until_it_is_killed"])
            .env(FOLDER, folder)
            .env(BUNDLE, bundle())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut victim = Self(child, folder);
        wait_until("an answer", || {
            assert!(victim.0.try_wait().unwrap().is_none(), "it has ended");
            let body = json!({"prompt": [5], "max_tokens": 1});
            let reply = victim.post(BEN, &body);
            reply.is_ok_and(|reply| reply.status == 200)
        });
        victim
    }

    fn post(&self, who: &str, body: &Value) -> std::io::Result<Reply> {
        let mut connection = Connection::open(&Address::Local(self.1.join("heg.sock")))?;
        connection.post("/v1/completions", who, &body.to_string())?;
        connection.reply()
    }

    /// Asks a client's prompt; returns the token ids of the answer, and the prompt's tokens that were not computed.
    fn ask(&self, who: &str, prompt: &[u32]) -> (Value, u64) {
        let body = json!({
            "prompt": prompt, "max_tokens": 12, "ignore_eos": true, "return_token_ids": true,
            "temperature": 0,
        });
        let reply = self.post(who, &body).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        let reply: Value = serde_json::from_str(&reply.body).unwrap();
        let cached = &reply["usage"]["prompt_tokens_details"]["cached_tokens"];
        (reply["choices"][0].clone(), cached.as_u64().unwrap())
    }
}

impl Drop for Victim<'_> {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn pages(folder: &Path) -> usize {
    let files = fs::read_dir(folder.join("state")).into_iter().flatten();
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    names.filter(|name| name.ends_with(".kv")).count()
}

#[test]
fn a_killed_server_goes_on_behind_what_it_kept() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let prompts: Vec<Vec<u32>> = (0..6)
        .map(|number| (0..300).map(|at| 5 + number * 300 + at).collect())
        .collect();
    let victim = Victim::start(folder);
    let first: Vec<_> = prompts
        .iter()
        .map(|prompt| victim.ask(ANN, prompt))
        .collect();
    assert!(first.iter().all(|(_, cached)| *cached == 0));
    // Prompts of 300 tokens, and answers of 12.
    wait_until("pages of all prompts", || pages(folder) == 6 * 4);
    drop(victim);

    let victim = Victim::start(folder);
    for (prompt, (answer, _)) in prompts.iter().zip(&first) {
        assert_eq!(victim.ask(BEN, prompt), (answer.clone(), 0), "a stranger");
    }
    drop(victim);

    let victim = Victim::start(folder);
    for (prompt, (answer, _)) in prompts.iter().zip(&first) {
        assert_eq!(victim.ask(ANN, prompt), (answer.clone(), 256));
    }
    let mut connection = Connection::open(&Address::Local(folder.join("heg.sock"))).unwrap();
    let get = format!("GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{BEN}\r\n");
    connection.write_all(get.as_bytes()).unwrap();
    let seen = connection.reply().unwrap();
    // Who asks over the socket is the server's own user, who may see all.
    assert!(
        seen.body.contains("heg_kept_tokens_total 1536"),
        "{}",
        seen.body
    );
}
