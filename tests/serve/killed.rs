//! A server that is killed leaves nothing behind that disturbs the next one, and loses no saved state.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use heg_files::OwnFolder;
use heg_runtime::engine::EngineOptions;
use heg_server::{Address, Server, ServerOptions, shutdown_signal};
use heg_spec::shipped;
use serde_json::{Value, json};

use crate::client::{Connection, Reply};
use crate::host::{bundle, served_by, wait_until};

/// Environment variable with the folder of [`serves_until_it_is_killed`], set only for it.
const FOLDER: &str = "HEG_TEST_KILLED_FOLDER";
const BUNDLE: &str = "HEG_TEST_KILLED_BUNDLE";

fn socket(folder: &Path) -> PathBuf {
    folder.join("heg.sock")
}

/// The process that is killed below; by itself it tests nothing.
#[test]
fn serves_until_it_is_killed() {
    let (Some(folder), Some(bundle)) = (std::env::var_os(FOLDER), std::env::var_os(BUNDLE)) else {
        return;
    };
    let folder = PathBuf::from(folder);
    let server = Server::bind(ServerOptions {
        socket: Some(socket(&folder)),
        cache: Some(OwnFolder::create(&folder.join("cache")).unwrap()),
        ..ServerOptions::default()
    });
    let mut policy = shipped::policy("agent-xpu").unwrap();
    // A token takes 3 KiB: memory for about 680 of them.
    policy.limits.kv_mib = 2;
    policy.limits.flash_mib = 64;
    let options = EngineOptions {
        flash: Some(folder.join("flash")),
        ..EngineOptions::default()
    };
    let served = served_by(Path::new(&bundle), "host-cpu", policy, options);
    server.unwrap().run(served, shutdown_signal()).unwrap();
}

/// A server in a process of its own, killed when dropped.
struct Victim(Child);

impl Victim {
    fn start(folder: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::serves_until_it_is_killed"])
            .env(FOLDER, folder)
            .env(BUNDLE, bundle())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut victim = Self(child);
        wait_until("an answer", || {
            assert!(victim.0.try_wait().unwrap().is_none(), "it has ended");
            let reply = post(folder, &json!({"prompt": [5], "max_tokens": 1}));
            reply.is_ok_and(|reply| reply.status == 200)
        });
        victim
    }

    /// Returns the number of unnamed files in a folder that the process has open.
    fn unnamed_files(&self, folder: &Path) -> usize {
        let open = fs::read_dir(format!("/proc/{}/fd", self.0.id())).unwrap();
        let targets = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        targets.filter(|target| target.starts_with(folder)).count()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn post(folder: &Path, body: &Value) -> std::io::Result<Reply> {
    let mut connection = Connection::open(&Address::Local(socket(folder)))?;
    connection.post("/v1/completions", "", &body.to_string())?;
    connection.reply()
}

#[test]
fn a_killed_server_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let flash = folder.join("flash");
    fs::create_dir(&flash).unwrap();
    // A file that changed a moment ago is not remembered.
    let changed = fs::metadata(bundle()).unwrap().modified().unwrap();
    wait_until("an older bundle", || {
        changed.elapsed().unwrap() > Duration::from_secs(4)
    });
    let victim = Victim::start(folder);
    for flow in 0..6 {
        let prompt: Vec<u32> = (0..300).map(|token| 5 + flow * 300 + token).collect();
        let body = json!({"prompt": prompt, "max_tokens": 2, "flow_id": flow.to_string()});
        assert_eq!(post(folder, &body).unwrap().status, 200);
    }
    wait_until("caches on flash", || victim.unnamed_files(&flash) > 0);
    wait_until("a note that the bundle was verified", || {
        fs::read_dir(folder.join("cache/verified")).is_ok_and(|notes| notes.count() == 1)
    });
    // In the midst of an answer.
    let mut connection = Connection::open(&Address::Local(socket(folder))).unwrap();
    let body = json!({"prompt": [5], "max_tokens": 600, "ignore_eos": true, "stream": true});
    connection
        .post("/v1/completions", "", &body.to_string())
        .unwrap();
    connection.read_until("data: ").unwrap();
    drop(victim);
    assert!(connection.read_until("[DONE]").is_err());
    assert!(socket(folder).exists(), "nobody has tidied up");
    assert_eq!(fs::read_dir(&flash).unwrap().count(), 0);

    drop(Victim::start(folder));
}
