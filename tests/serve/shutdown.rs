//! The start and end of a server: its socket, its signals, answers under way.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use heg_runtime::engine::EngineOptions;
use heg_sched::{Action, Event, Micros, Observer};
use heg_server::{Server, ServerOptions, shutdown_signal};
use heg_spec::shipped;
use heg_tests::chain;
use serde_json::{Value, json};

use crate::client::Connection;
use crate::host::{Host, bundle, served, served_and_engine, wait_until};

#[test]
fn the_socket_is_the_users_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("heg.sock");
    let options = ServerOptions {
        socket: Some(path.clone()),
        ..ServerOptions::default()
    };
    let server = Server::bind(options.clone()).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The socket is in use, and stays.
    let error = Server::bind(options.clone()).unwrap_err();
    let text = chain(&error, folder.path());
    assert!(
        text.starts_with("error: cannot listen on `unix:[folder]/heg.sock`"),
        "{text}"
    );
    drop(server);
    assert!(!path.exists());
    // A socket that a killed server left behind is replaced.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(Server::bind(options.clone()).unwrap());
    // A file is not.
    std::fs::write(&path, "mine").unwrap();
    Server::bind(options).unwrap_err();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn an_answer_under_way_is_finished() {
    let mut host = Host::new();
    let mut connection = host.open();
    let body = json!({"prompt": [5], "max_tokens": 200, "ignore_eos": true, "stream": true});
    connection
        .post("/v1/completions", "", &body.to_string())
        .unwrap();
    connection.read_until("data: ").unwrap();
    host.stop();
    wait_until("closed doors", || {
        Connection::open(&host.addresses[0]).is_err()
    });
    let rest = connection.read_until("0\r\n\r\n").unwrap();
    assert!(rest.contains("[DONE]"), "{rest}");
    host.end().unwrap();
}

/// Returns a request whose answer takes longer than a test can wait.
fn long(stream: bool) -> Value {
    json!({"prompt": [5], "max_tokens": 1000, "ignore_eos": true, "stream": stream})
}

/// Starts a stream, a whole answer, and a body that does not arrive; returns their last messages.
fn told_at_the_end(host: &mut Host, end: impl FnOnce(&mut Host)) -> [String; 3] {
    let mut stream = host.open();
    stream
        .post("/v1/completions", "", &long(true).to_string())
        .unwrap();
    stream.read_until("data: ").unwrap();
    let mut whole = host.open();
    whole
        .post("/v1/completions", "", &long(false).to_string())
        .unwrap();
    let mut body = host.open();
    body.write_all(
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
          expect: 100-continue\r\ncontent-length: 100\r\n\r\n",
    )
    .unwrap();
    body.read_until("100 Continue").unwrap();
    host.wait_for_metric("heg_connections 4");
    end(host);
    let rest = |connection: &mut Connection| {
        let mut bytes = Vec::new();
        let _ = connection.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    [rest(&mut stream), rest(&mut whole), rest(&mut body)]
}

fn check_told([stream, whole, body]: [String; 3]) {
    assert!(stream.contains(r#""code":"shutting_down""#), "{stream}");
    assert!(stream.ends_with("0\r\n\r\n") && !stream.contains("[DONE]"));
    for refused in [whole, body] {
        assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
        assert!(refused.contains(r#""code":"shutting_down""#), "{refused}");
    }
}

#[test]
fn who_is_not_answered_in_the_time_of_grace_is_told() {
    let mut host = Host::with(|options| options.limits.grace = Duration::from_millis(20));
    let told = told_at_the_end(&mut host, Host::stop);
    check_told(told);
    host.end().unwrap();
}

#[test]
fn a_second_signal_ends_the_time_of_grace() {
    let mut host = Host::with(|options| options.limits.grace = Duration::from_secs(600));
    let told = told_at_the_end(&mut host, |host| {
        host.stop();
        host.stop_now();
    });
    check_told(told);
    host.end().unwrap();
}

/// An observer that tells of its end.
struct Ended(Sender<&'static str>);

impl Observer for Ended {
    fn stepped(&mut self, _: Micros, _: &Event, _: &[Action]) {}
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.send("ended");
    }
}

/// A trace is whole when the server returns, though somebody still holds the engine.
#[test]
fn observers_end_before_the_server_does() {
    let (ended, told) = channel();
    let (handle, engine) = channel();
    let served = move || {
        let options = EngineOptions {
            observers: vec![Box::new(Ended(ended))],
            ..EngineOptions::default()
        };
        let policy = shipped::policy("agent-xpu").unwrap();
        let (served, engine) = served_and_engine(bundle(), "host-cpu", policy, options);
        handle.send(engine).unwrap();
        served
    };
    let host = Host::serving(served, |_| ());
    let engine = engine.recv().unwrap();
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    host.end().unwrap();
    assert_eq!(told.try_recv(), Ok("ended"));
    assert!(engine.status().is_err());
}

#[test]
fn signals_end_the_server() {
    let server = Server::bind(ServerOptions {
        port: Some(0),
        ..ServerOptions::default()
    });
    let server = server.unwrap();
    let address = server.addresses()[0].clone();
    let thread = thread::spawn(move || server.run(served(), shutdown_signal()));
    wait_until("an answer", || {
        let mut connection = Connection::open(&address).unwrap();
        let answered = connection
            .post("/v1/completions", "", r#"{"prompt":[5],"max_tokens":1}"#)
            .and_then(|()| connection.reply());
        answered.is_ok_and(|reply| reply.status == 200)
    });
    let own = std::process::id().to_string();
    let sent = Command::new("kill").args(["-TERM", &own]).status().unwrap();
    assert!(sent.success());
    thread.join().unwrap().unwrap();
    assert!(Connection::open(&address).is_err());
}
