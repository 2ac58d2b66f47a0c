//! The event loop does no work that grows with a request: no route holds it for long, whatever is sent.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::host::{Host, wait_until};

const BARE: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Bodies of the largest admitted size, and requests with the largest answers.
fn largest(bytes: usize) -> Vec<(&'static str, String)> {
    let text = "a b ".repeat(bytes / 4 - 100);
    let zeros = "0,".repeat(bytes / 2 - 100);
    let prompt: Vec<usize> = (0..1000).map(|at| 5 + at * 7919 % 1900).collect();
    let scored = |fields: Value| {
        let mut body =
            json!({"prompt": prompt, "max_tokens": 20, "echo": true, "logprobs": 5, "n": 8});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        (BARE, body.to_string())
    };
    let messages = r#"{"role":"user","content":""},"#.repeat(bytes / 30);
    vec![
        (BARE, format!(r#"{{"prompt":[{zeros}0]}}"#)),
        (BARE, format!(r#"{{"prompt":"{text}"}}"#)),
        (BARE, format!(r#"{{"prompt":"a","logit_bias":[{zeros}0]}}"#)),
        (CHAT, format!(r#"{{"messages":[{messages}5]}}"#)),
        (
            CHAT,
            format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#),
        ),
        ("/v1/flows/end", format!(r#"{{"flow_id":"{text}"}}"#)),
        scored(json!({})),
        scored(json!({"stream": true})),
        scored(json!({"return_token_ids": true, "max_tokens": 2})),
    ]
}

#[test]
fn no_route_holds_the_event_loop() {
    let host = Host::with(|options| options.limits.body_bytes = Some(8 << 20));
    wait_until("ready", || host.get("/healthz").status == 200);
    let paths = ["/", "/healthz", "/metrics", "/dashboard.json", "/v1/models"];
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            for (path, body) in largest(8 << 20) {
                let mut connection = host.open();
                // It may be refused before it has arrived.
                let _ = connection.post(path, "", &body);
                let reply = connection.reply().unwrap();
                assert!([200, 400].contains(&reply.status), "{path}: {}", reply.body);
            }
        });
        while !asking.is_finished() {
            for path in paths {
                assert_eq!(host.get(path).status, 200, "{path}");
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    let metrics = host.get("/metrics").body;
    let mut lines = metrics.lines();
    let stall = lines.find_map(|line| line.strip_prefix("heg_event_loop_stall_seconds "));
    let stall: f64 = stall.unwrap().parse().unwrap();
    println!("the longest stall of the event loop: {:.1} ms", stall * 1e3);
    assert!(stall > 0.0 && stall < STALL_SECONDS_MAX, "{stall} s");
}

/// However many ask for metrics, requests for answers hardly wait.
#[test]
fn a_flood_of_light_requests_has_a_pace() {
    let host = Host::new();
    wait_until("ready", || host.get("/healthz").status == 200);
    let ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    let begin = Instant::now();
    let mut flood: Vec<_> = (0..20).map(|_| host.open()).collect();
    for connection in &mut flood {
        std::io::Write::write_all(connection, &ask).unwrap();
    }
    for connection in &mut flood {
        let mut left = 100;
        while left > 0 {
            let got = connection.read_until("}").unwrap();
            left -= got.matches('}').count();
        }
    }
    // Of 2000, each connection has eight at once; the others come every two milliseconds, except for those earned
    // meanwhile.
    assert!(
        begin.elapsed() > Duration::from_secs(2),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(host.get("/healthz").status, 200);
}

/// Longest time for which the event loop may be held, in seconds. Chosen: many times the measured time, since this
/// build is not optimised. It is processor time, which other programs do not change.
const STALL_SECONDS_MAX: f64 = 0.5;
