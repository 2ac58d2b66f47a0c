//! A server with the tiny agent, for one test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use heg_confine::WorkerProgram;
use heg_runtime::Loaded;
use heg_runtime::engine::{Engine, EngineOptions, Speculation};
use heg_server::{Address, Models, ServedModel, Server, ServerError, ServerOptions, Timeline};
use heg_spec::{Policy, shipped};
use heg_tests::{Workbench, fixture};
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::sync::oneshot;

use crate::client::{Connection, Reply};

/// A server that runs until it is dropped.
pub(crate) struct Host {
    pub(crate) addresses: Vec<Address>,
    stop: Option<oneshot::Sender<()>>,
    now: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

/// Returns the tiny agent's bundle, compiled once. It is in Cargo's folder, since nothing removes the files of a
/// static.
pub(crate) fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let workbench = Workbench::new().unwrap();
        let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let copy = NamedTempFile::new_in(folder).unwrap();
        fs::copy(compiled.unwrap().0, copy.path()).unwrap();
        let bundle = folder.join("serve-tiny-agent.heg");
        copy.persist(&bundle).unwrap();
        bundle
    })
}

/// Returns the bundle on an engine of its own.
pub(crate) fn served() -> ServedModel {
    let policy = shipped::policy("agent-xpu").unwrap();
    served_by(bundle(), "host-cpu", policy, EngineOptions::default())
}

/// Returns the bundle on an engine that computes the same on every machine.
pub(crate) fn exact() -> ServedModel {
    let policy = shipped::policy("agent-xpu-one-device").unwrap();
    served_by(bundle(), "host-cpu-f32", policy, EngineOptions::default())
}

/// Returns the bundle on an engine that drafts its answers, however long rows take here.
pub(crate) fn drafting() -> ServedModel {
    let mut policy = shipped::policy("agent-xpu-one-device").unwrap();
    policy.drafts.fixed_tokens = Some(12);
    let options = EngineOptions {
        speculation: Speculation::Chain,
        ..EngineOptions::default()
    };
    served_by(bundle(), "host-cpu-f32", policy, options)
}

/// Returns the program that makes prompts and compiles forms.
pub(crate) fn worker_program() -> WorkerProgram {
    WorkerProgram {
        path: env!("CARGO_BIN_EXE_tests_text_worker").into(),
        arguments: Vec::new(),
    }
}

/// Returns a bundle on an engine of its own, on a shipped SoC.
pub(crate) fn served_by(
    bundle: &Path,
    soc: &str,
    policy: Policy,
    options: EngineOptions,
) -> ServedModel {
    served_and_engine(bundle, soc, policy, options).0
}

/// Returns the bundle on an engine of its own, and another handle of that engine.
pub(crate) fn served_and_engine(
    bundle: &Path,
    soc: &str,
    policy: Policy,
    mut options: EngineOptions,
) -> (ServedModel, Engine) {
    let loaded = Loaded::open(bundle).unwrap();
    let loader = loaded.loader(&shipped::soc(soc).unwrap()).unwrap();
    let timeline = Timeline::default();
    options.observers.push(Box::new(timeline.clone()));
    let engine = Engine::start(loader, policy, options).unwrap();
    let served = ServedModel::new(&loaded, engine.clone(), timeline, worker_program());
    (served.unwrap(), engine)
}

impl Host {
    /// Starts a server on a free port.
    pub(crate) fn new() -> Self {
        Self::with(|_| ())
    }

    /// Starts a server with other options.
    pub(crate) fn with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::serving(served, change)
    }

    /// Starts a server of another model, with other options.
    pub(crate) fn serving(
        served: impl FnOnce() -> ServedModel + Send + 'static,
        change: impl FnOnce(&mut ServerOptions),
    ) -> Self {
        Self::serving_all(|| served().into(), change)
    }

    /// Starts a server of several models, with other options.
    pub(crate) fn serving_all(
        models: impl FnOnce() -> Models + Send + 'static,
        change: impl FnOnce(&mut ServerOptions),
    ) -> Self {
        let mut options = ServerOptions {
            port: Some(0),
            ..ServerOptions::default()
        };
        change(&mut options);
        let server = Server::bind(options).unwrap();
        let addresses = server.addresses();
        let [(stop, stopped), (now, at_once)] = [(); 2].map(|()| oneshot::channel());
        let told = async |by: oneshot::Receiver<()>| {
            let _ = by.await;
            Ok(())
        };
        let thread =
            thread::spawn(move || server.run_until(models(), told(stopped), told(at_once)));
        Self {
            addresses,
            stop: Some(stop),
            now: Some(now),
            thread: Some(thread),
        }
    }

    pub(crate) fn open(&self) -> Connection {
        Connection::open(&self.addresses[0]).unwrap()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_with(path, "", body)
    }

    /// Posts a body with further headers, each with its line end.
    pub(crate) fn post_with(&self, path: &str, headers: &str, body: &Value) -> Reply {
        let mut connection = self.open();
        connection.post(path, headers, &body.to_string()).unwrap();
        connection.reply().unwrap()
    }

    /// Sends any bytes.
    pub(crate) fn send(&self, bytes: &[u8]) -> Reply {
        use std::io::Write;
        let mut connection = self.open();
        // The server may have answered and closed before it has read everything.
        let _ = connection.write_all(bytes);
        connection.reply().unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send(
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
    }

    /// Waits until the metrics have this line.
    pub(crate) fn wait_for_metric(&self, line: &str) {
        wait_until(line, || {
            self.get("/metrics").body.lines().any(|found| found == line)
        });
    }

    /// Tells the server to shut down.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Tells a server that is shutting down to end the grace period.
    pub(crate) fn stop_now(&mut self) {
        drop(self.now.take());
    }

    /// Returns whether the server has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the server, and returns its result.
    pub(crate) fn end(mut self) -> Result<(), ServerError> {
        self.stop();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take()
            && !thread::panicking()
        {
            thread.join().unwrap().unwrap();
        }
    }
}

/// Waits for a condition that other threads or processes bring about.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "waited for: {what}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}
