//! Refusals: of garbage, strangers and mistakes; each with a status and a reason.

use heg_server::Token;
use serde_json::json;

use crate::host::Host;

fn request(line: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

#[test]
fn garbage_gets_a_reason() {
    let host = Host::with(|options| options.limits.body_bytes = Some(10_000));
    let json = "content-type: application/json\r\n";
    let post = |body: &[u8]| request("POST /v1/chat/completions", json, body);
    let bare = |body: &str| request("POST /v1/completions", json, body.as_bytes());
    let deep = format!("{{\"messages\": {}", "[".repeat(9000));
    let long_context = json!({"prompt": vec![5; 1024]}).to_string();
    let chunked = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        transfer-encoding: chunked\r\nconnection: close\r\n\r\n4000\r\n";
    let cases: [(&str, Vec<u8>); 18] = [
        (
            "not HTTP",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".into(),
        ),
        (
            "head too long",
            [b"GET / HTTP/1.1\r\nx: ".as_slice(), &[b'a'; 100_000]].concat(),
        ),
        ("no such path", request("GET /v2", "", b"")),
        (
            "what was seen",
            request("GET /dashboard.json?after=-1", "", b""),
        ),
        ("wrong method", request("GET /v1/chat/completions", "", b"")),
        (
            "wrong type",
            request(
                "POST /v1/completions",
                "content-type: text/plain\r\n",
                b"{}",
            ),
        ),
        ("no type", request("POST /v1/completions", "", b"{}")),
        ("too large", post(&[b' '; 10_001])),
        (
            "too large, in chunks",
            [chunked.as_bytes(), &[b' '; 0x4000], b"\r\n0\r\n\r\n"].concat(),
        ),
        ("no body", post(b"")),
        (
            "invalid UTF-8",
            post(b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xc3\x28\"}]}"),
        ),
        ("nested", post(deep.as_bytes())),
        ("outside the vocabulary", bare("{\"prompt\": [1, 2048]}")),
        ("no tokens", bare("{\"prompt\": []}")),
        ("too long", bare(&long_context)),
        (
            "another model",
            bare("{\"prompt\": \"a\", \"model\": \"gpt-4\"}"),
        ),
        (
            "refused by the template",
            post(b"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [5]}"),
        ),
        (
            "foreign host",
            b"GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n".into(),
        ),
    ];
    let mut text = String::new();
    for (name, bytes) in cases {
        let reply = host.send(&bytes);
        text.push_str(&format!("{name}: {} {}\n", reply.status, reply.body));
    }
    insta::assert_snapshot!(text);
    // The server still answers.
    let body = json!({"prompt": "a", "max_tokens": 1});
    assert_eq!(host.post("/v1/completions", &body).status, 200);
}

#[test]
fn a_token_is_asked_for() {
    let host = Host::with(|options| options.tokens = Token::new("s3cret").unwrap().into());
    let body = json!({"prompt": "a", "max_tokens": 1});
    let with = |headers: &str| host.post_with("/v1/completions", headers, &body).status;
    assert_eq!(with(""), 401);
    assert_eq!(with("authorization: Bearer other\r\n"), 401);
    assert_eq!(with("authorization: Bearer s3cret\r\n"), 200);
    assert_eq!(host.get("/metrics").status, 401);
    assert_eq!(
        host.get("/v1/models").header("www-authenticate"),
        Some("Bearer")
    );
    crate::host::wait_until("ready", || host.get("/healthz").status == 200);
}
