//! Clients cannot harm each other: by too many requests, too slow ones, closed connections, late or replaced ones.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Connection;
use crate::host::Host;

const BARE: &str = "/v1/completions";

/// Returns a request that runs for as long as the context allows.
fn long(fields: Value) -> Value {
    let mut body =
        json!({"prompt": [5, 6, 7], "max_tokens": 1000, "ignore_eos": true, "stream": true});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Sends a request and reads the beginning of its answer.
fn begin(host: &Host, body: &Value) -> Connection {
    let mut connection = host.open();
    connection.post(BARE, "", &body.to_string()).unwrap();
    connection.read_until("data: ").unwrap();
    connection
}

#[test]
fn a_client_that_goes_away_is_not_answered() {
    let host = Host::new();
    drop(begin(&host, &long(json!({}))));
    host.wait_for_metric(r#"heg_requests_total{class="reactive",outcome="cancelled"} 1"#);
    // While it waits for a whole answer, too.
    let mut connection = host.open();
    let body = long(json!({"stream": false, "priority": "proactive"}));
    connection.post(BARE, "", &body.to_string()).unwrap();
    host.wait_for_metric(r#"heg_connections 2"#);
    drop(connection);
    host.wait_for_metric(r#"heg_requests_total{class="proactive",outcome="cancelled"} 1"#);
    host.wait_for_metric(r#"heg_live_requests{class="reactive",phase="decoding"} 0"#);
    host.wait_for_metric(r#"heg_live_requests{class="proactive",phase="decoding"} 0"#);
}

#[test]
fn a_client_that_has_sent_more_and_goes_away_is_not_answered() {
    let host = Host::new();
    let body = long(json!({"stream": false})).to_string();
    let length = body.len();
    let request = format!(
        "POST {BARE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    let mut connection = host.open();
    // The next request arrives before the answer to the first.
    connection.write_all(request.repeat(2).as_bytes()).unwrap();
    host.wait_for_metric(r#"heg_connections 2"#);
    drop(connection);
    host.wait_for_metric(r#"heg_requests_total{class="reactive",outcome="cancelled"} 1"#);
    host.wait_for_metric(r#"heg_live_requests{class="reactive",phase="decoding"} 0"#);
    host.wait_for_metric(r#"heg_connections 1"#);
}

#[test]
fn a_full_queue_turns_its_class_away() {
    let host = Host::with(|options| options.limits.requests = 1);
    let busy = begin(&host, &long(json!({"priority": "proactive"})));
    let short = json!({"prompt": [5], "max_tokens": 1, "priority": "proactive"});
    let refused = host.post(BARE, &short);
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert!(
        refused
            .header("retry-after")
            .unwrap()
            .parse::<u64>()
            .unwrap()
            >= 1
    );
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    let reactive = json!({"prompt": [5], "max_tokens": 1});
    assert_eq!(host.post(BARE, &reactive).status, 200);
    drop(busy);
    crate::host::wait_until("a place", || host.post(BARE, &short).status == 200);
}

#[test]
fn a_newer_request_takes_the_place_of_an_older_one() {
    let host = Host::new();
    let mut older = begin(&host, &long(json!({"supersede_key": "typing"})));
    let other = begin(&host, &long(json!({"supersede_key": "else"})));
    let newer = json!({"prompt": [5, 6, 7, 8], "max_tokens": 3});
    let reply = host.post_with(BARE, "heg-supersede-key: typing\r\n", &newer);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let rest = older.read_until("0\r\n\r\n").unwrap();
    assert!(rest.contains(r#""code":"superseded""#), "{rest}");
    drop(other);
}

#[test]
fn a_deadline_ends_an_answer() {
    let host = Host::new();
    let reply = host.post(BARE, &long(json!({"stream": false, "deadline_ms": 30})));
    assert_eq!(reply.status, 504, "{}", reply.body);
    assert_eq!(reply.json()["error"]["code"], "deadline_exceeded");
}

#[test]
fn slow_clients_are_not_waited_for() {
    let host = Host::with(|options| {
        options.limits.head_time = Duration::from_millis(200);
        options.limits.body_pace.time_max = Duration::from_millis(200);
    });
    let begin = Instant::now();
    let mut head = host.open();
    head.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: loc")
        .unwrap();
    let mut silent = host.open();
    let mut body = host.open();
    let request = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n\
        content-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    body.write_all(request.as_bytes()).unwrap();
    let reply = body.read_until("}}").unwrap();
    assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
    let mut rest = Vec::new();
    head.read_to_end(&mut rest).unwrap();
    silent.read_to_end(&mut rest).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_client_that_reads_nothing_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::with(|options| {
        // The socket's buffers are small, and the same everywhere; those of TCP may hold a whole answer.
        options.socket = Some(folder.path().join("heg.sock"));
        options.limits.stall_time = Duration::from_millis(100);
    });
    let mut stalled = Connection::open(&host.addresses[1]).unwrap();
    let body = long(json!({"return_token_ids": true}));
    stalled.post(BARE, "", &body.to_string()).unwrap();
    // No other request waits for it.
    let short = json!({"prompt": [5], "max_tokens": 1});
    assert_eq!(host.post(BARE, &short).status, 200);
    host.wait_for_metric(r#"heg_requests_total{class="reactive",outcome="cancelled"} 1"#);
    host.wait_for_metric(r#"heg_live_requests{class="reactive",phase="decoding"} 0"#);
    host.wait_for_metric("heg_connections 1");
    let mut sent = Vec::new();
    let _ = stalled.read_to_end(&mut sent);
    let sent = String::from_utf8_lossy(&sent);
    assert!(sent.starts_with("HTTP/1.1 200") && !sent.contains("[DONE]"));
}

#[test]
fn a_thousand_connections_are_answered_at_once() {
    let host = Host::with(|options| options.limits.requests = 600);
    // Connections first: all of them are open at the same time.
    let mut connections: Vec<Connection> = (0..1000).map(|_| host.open()).collect();
    for (place, connection) in connections.iter_mut().enumerate() {
        let class = ["reactive", "proactive"][place % 2];
        let body = json!({"prompt": [5, 6, place], "max_tokens": 2, "priority": class, "ignore_eos": true});
        connection.post(BARE, "", &body.to_string()).unwrap();
    }
    for connection in &mut connections {
        let reply = connection.reply().unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.json()["usage"]["completion_tokens"], 2);
    }
}
