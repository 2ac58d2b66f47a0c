//! Access to clients' loads, and the requests that a browser may send.

use heg_server::{Token, Tokens};
use serde_json::json;

use crate::client::Reply;
use crate::host::Host;

fn get(host: &Host, path: &str, headers: &str) -> Reply {
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
    host.send(request.as_bytes())
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

#[test]
fn a_client_sees_its_own_load_and_an_operator_that_of_all() {
    let host = Host::with(|options| {
        let mut tokens = Tokens::default();
        for name in ["ours", "theirs", "watch"] {
            tokens.add(Token::new(name).unwrap(), Some(name)).unwrap();
        }
        tokens.allow_operator("watch");
        options.tokens = tokens;
    });
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": true});
    let reply = host.post_with("/v1/completions", &bearer("ours"), &body);
    assert_eq!(reply.status, 200);
    let metrics = |who: &str| get(&host, "/metrics", &bearer(who)).body;
    let line = r#"heg_requests_total{class="reactive",outcome="complete"} 1"#;
    assert!(metrics("ours").contains(line) && metrics("watch").contains(line));
    let theirs = metrics("theirs");
    assert!(!theirs.contains("heg_requests_total{"), "{theirs}");
    for all in [
        "heg_lane_busy",
        "heg_kv_bytes",
        "heg_connections",
        "heg_live_requests",
    ] {
        assert!(!theirs.contains(all), "{theirs}");
        assert!(metrics("watch").contains(all));
    }
    assert!(theirs.contains(r#"heg_own_live_requests{class="reactive"} 0"#));
    let page = |who: &str| get(&host, "/dashboard.json", &bearer(who));
    let refused = page("theirs");
    assert_eq!(refused.status, 403, "{}", refused.body);
    assert!(refused.body.contains("operator"), "{}", refused.body);
    assert_eq!(page("watch").status, 200);
}

#[test]
fn a_page_from_elsewhere_is_refused() {
    let host = Host::new();
    for site in ["cross-site", "same-site"] {
        let headers = format!("sec-fetch-site: {site}\r\n");
        for path in ["/dashboard.json", "/metrics", "/v1/models"] {
            assert_eq!(get(&host, path, &headers).status, 403, "{path}");
        }
        // These are the same for all clients, and nothing is kept.
        assert_eq!(get(&host, "/", &headers).status, 200);
    }
    let own = "sec-fetch-site: same-origin\r\n";
    assert_eq!(get(&host, "/dashboard.json", own).status, 200);
}

#[test]
fn heads_that_others_may_read_differently_are_refused() {
    let host = Host::new();
    let status = |head: &str, body: &str| {
        let request = format!("{head}connection: close\r\n\r\n{body}");
        host.send(request.as_bytes()).status
    };
    let post =
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let body = r#"{"prompt":[5],"max_tokens":1}"#;
    let chunks = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let (length, chunked) = ("content-length: 29\r\n", "transfer-encoding: chunked\r\n");
    assert_eq!(status(&format!("{post}{length}"), body), 200);
    assert_eq!(status(&format!("{post}{chunked}"), &chunks), 200);
    assert_eq!(status(&format!("{post}{length}{chunked}"), &chunks), 400);
    assert_eq!(status(&format!("{post}{chunked}{length}"), &chunks), 400);
    let get = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\n";
    assert_eq!(status(get, ""), 200);
    assert_eq!(status(&format!("{get}host: localhost\r\n"), ""), 400);
    let foreign = "GET http://evil.example/v1/models HTTP/1.1\r\nhost: localhost\r\n";
    assert_eq!(status(foreign, ""), 400);
    let filler = |bytes: usize| format!("{get}x: {}\r\n", "a".repeat(bytes));
    assert_eq!(status(&filler(31 << 10), ""), 200);
    assert_eq!(status(&filler(33 << 10), ""), 431);
}
