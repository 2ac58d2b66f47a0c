//! How a server begins and ends: its socket, its signals, answers under way.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use heg_server::{Server, ServerOptions, shutdown_signal};
use heg_tests::chain;
use serde_json::json;

use crate::client::Connection;
use crate::host::{Host, served, wait_until};

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
    // It is in use, and stays.
    let error = Server::bind(options.clone()).unwrap_err();
    let text = chain(&error, folder.path());
    assert!(
        text.starts_with("error: cannot listen on `unix:[folder]/heg.sock`"),
        "{text}"
    );
    drop(server);
    assert!(!path.exists());
    // One that a killed server left behind is replaced.
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

#[test]
fn an_answer_is_cut_after_the_time_of_grace() {
    let mut host = Host::with(|options| options.limits.grace = Duration::from_millis(20));
    let mut connection = host.open();
    let body = json!({"prompt": [5], "max_tokens": 1000, "ignore_eos": true, "stream": true});
    connection
        .post("/v1/completions", "", &body.to_string())
        .unwrap();
    connection.read_until("data: ").unwrap();
    host.stop();
    host.end().unwrap();
    assert!(connection.read_until("[DONE]").is_err());
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
