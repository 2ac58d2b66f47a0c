//! The resources that a request holds until its answer is sent (its charge and its connection's slot), and those that
//! it gives back earlier (its place in the queue, its turn).

use std::io::{Read, Write};
use std::time::Duration;

use heg_server::ServerOptions;
use serde_json::{Value, json};

use crate::client::Connection;
use crate::host::{Host, wait_until};

const BARE: &str = "/v1/completions";

/// Returns a request whose answer has more than a megabyte.
fn large() -> Value {
    let prompt: Vec<usize> = (0..1000).map(|at| 5 + at * 7919 % 1900).collect();
    json!({"prompt": prompt, "max_tokens": 1, "echo": true, "logprobs": 5, "n": 8})
}

/// Returns a server with a socket, whose buffers are small, and the same everywhere.
fn host(change: impl FnOnce(&mut ServerOptions)) -> (Host, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::with(|options| {
        options.socket = Some(folder.path().join("heg.sock"));
        // A client that reads nothing stays for the whole test.
        options.limits.stall_time = Duration::from_secs(600);
        change(options);
    });
    (host, folder)
}

/// Sends a request over the socket, and reads only the beginning of the answer.
fn begin(host: &Host, body: &Value) -> (Connection, String) {
    let mut connection = Connection::open(&host.addresses[1]).unwrap();
    connection.post(BARE, "", &body.to_string()).unwrap();
    let mut start = [0; 1000];
    let read = connection.read(&mut start).unwrap();
    let start = String::from_utf8_lossy(&start[..read]).into_owned();
    (connection, start)
}

#[test]
fn answers_that_nobody_reads_are_charged() {
    let (host, _folder) = host(|options| {
        options.limits.budgets.own_bytes = 12 << 20;
        options.limits.budgets.account_bytes = 12 << 20;
    });
    let mut kept = Vec::new();
    let refused = loop {
        let (connection, start) = begin(&host, &large());
        if !start.starts_with("HTTP/1.1 200") {
            break start;
        }
        kept.push(connection);
        assert!(kept.len() <= 10, "they are more than the budget");
    };
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert!(kept.len() >= 2, "one has room beside those that are sent");
    // All is given back when the answers are read, or given up.
    let mut rest = Vec::new();
    kept.pop().unwrap().read_to_end(&mut rest).unwrap();
    assert!(rest.len() > 1 << 20 && rest.ends_with(b"}"));
    drop(kept);
    wait_until("room", || {
        begin(&host, &large()).1.starts_with("HTTP/1.1 200")
    });
}

#[test]
fn a_client_that_reads_slowly_keeps_its_connection() {
    let (host, _folder) = host(|options| options.limits.connections = 3);
    let (mut slow, start) = begin(&host, &large());
    assert!(start.starts_with("HTTP/1.1 200"), "{start}");
    let length = start.split("content-length: ").nth(1).unwrap();
    let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
    let head = start.find("\r\n\r\n").unwrap() + 4;
    // As soon as all slots are taken, the connection that has been idle the longest is closed.
    for _ in 0..5 {
        let mut newcomer = Connection::open(&host.addresses[1]).unwrap();
        newcomer
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .unwrap();
        newcomer.read_until("}").unwrap();
    }
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).unwrap();
    assert_eq!(start.len() - head + rest.len(), length);
}

#[test]
fn a_place_in_the_queue_is_free_when_the_engine_is_done() {
    let (host, _folder) = host(|options| options.limits.requests = 1);
    let long = json!({"prompt": [5, 6, 7], "max_tokens": 1000, "ignore_eos": true, "stream": true,
        "return_token_ids": true});
    let (mut unread, start) = begin(&host, &long);
    assert!(start.starts_with("HTTP/1.1 200"), "{start}");
    let short = json!({"prompt": [5], "max_tokens": 1});
    wait_until("a place", || {
        begin(&host, &short).1.starts_with("HTTP/1.1 200")
    });
    // Its answer waits for it.
    unread.read_until("[DONE]").unwrap();
}

/// Sends a request without the last byte of its body.
fn begin_slowly(host: &Host, body: &str) -> Connection {
    let mut connection = host.open();
    let length = body.len();
    let head = format!(
        "POST {BARE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n\
         expect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).unwrap();
    // Its head has arrived.
    connection.read_until("100 Continue").unwrap();
    connection
        .write_all(&body.as_bytes()[..length - 1])
        .unwrap();
    connection
}

#[test]
fn an_older_request_whose_body_is_slower_does_not_pass_a_newer_one() {
    let host = Host::new();
    let older = json!({"prompt": [5], "max_tokens": 1, "supersede_key": "typing"}).to_string();
    let mut during = begin_slowly(&host, &older);
    let mut after = begin_slowly(&host, &older);
    let newer = json!({"prompt": [5, 6], "max_tokens": 1000, "ignore_eos": true, "stream": true,
        "supersede_key": "typing"});
    let mut connection = host.open();
    connection.post(BARE, "", &newer.to_string()).unwrap();
    connection.read_until("data: ").unwrap();
    during.write_all(b"}").unwrap();
    let reply = during.reply().unwrap();
    assert_eq!(reply.status, 409, "{}", reply.body);
    let rest = connection.read_until("0\r\n\r\n").unwrap();
    assert!(rest.contains("[DONE]") && !rest.contains("superseded"));
    // Nor when the newer request was answered before.
    after.write_all(b"}").unwrap();
    assert_eq!(after.reply().unwrap().status, 409);
    let next = json!({"prompt": [5], "max_tokens": 1, "supersede_key": "typing"});
    assert_eq!(host.post(BARE, &next).status, 200);
}
