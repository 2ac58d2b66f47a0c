//! Clients are strangers to each other: they see nothing of each other, and leave each other room.

use std::io::Write;
use std::time::Duration;

use heg_server::{Prefixes, Token, Tokens};
use serde_json::{Value, json};

use crate::client::{Connection, Reply};
use crate::host::{Host, wait_until};

const BARE: &str = "/v1/completions";
const OURS: &str = "authorization: Bearer ours\r\n";
const THEIRS: &str = "authorization: Bearer theirs\r\n";
const WATCH: &str = "authorization: Bearer watch\r\n";

fn tokens() -> Tokens {
    let mut tokens = Tokens::default();
    for text in ["ours", "theirs"] {
        tokens.add(Token::new(text).unwrap(), None).unwrap();
    }
    tokens
}

/// Returns a prompt with enough tokens to be looked for in caches.
fn prompt(first: u32) -> Vec<u32> {
    (first..first + 100).collect()
}

fn short(first: u32, fields: Value) -> Value {
    let mut body = json!({"prompt": prompt(first), "max_tokens": 2, "ignore_eos": true});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn cached_tokens(reply: &Reply) -> u64 {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let cached = &reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().unwrap()
}

/// Number of tokens of a cached prompt; the last token of a prompt is always computed.
const ALL: u64 = 99;

#[test]
fn a_client_learns_nothing_of_anothers_prompts() {
    let host = Host::with(|options| options.tokens = tokens());
    let ask = |who: &str, body: &Value| cached_tokens(&host.post_with(BARE, who, body));
    let unnamed = short(5, json!({}));
    assert_eq!(ask(OURS, &unnamed), 0);
    assert_eq!(ask(THEIRS, &unnamed), 0);
    assert_eq!(ask(OURS, &unnamed), ALL);
    assert_eq!(ask(THEIRS, &unnamed), ALL);

    let named = short(200, json!({"flow_id": "notes"}));
    assert_eq!(ask(OURS, &named), 0);
    assert_eq!(ask(THEIRS, &named), 0);
    let end = |who| {
        host.post_with("/v1/flows/end", who, &json!({"flow_id": "notes"}))
            .json()
    };
    assert_eq!(end(THEIRS)["ended"], true);
    assert_eq!(end(THEIRS)["ended"], false);
    assert_eq!(ask(OURS, &named), ALL);
    assert_eq!(ask(THEIRS, &named), 0);

    // A key identifies a flow if none is named.
    let keyed = short(400, json!({"supersede_key": "typing"}));
    assert_eq!(ask(OURS, &keyed), 0);
    assert_eq!(ask(THEIRS, &keyed), 0);
    assert_eq!(ask(OURS, &keyed), ALL);
    // A flow of the same name is another one.
    let namesake = short(400, json!({"flow_id": "typing"}));
    assert_eq!(ask(OURS, &namesake), 0);
}

#[test]
fn prefixes_are_shared_where_that_is_asked_for() {
    let host = Host::with(|options| {
        options.tokens = tokens();
        options.prefixes = Prefixes::Shared;
    });
    let ask = |who: &str, body: &Value| cached_tokens(&host.post_with(BARE, who, body));
    let unnamed = short(5, json!({}));
    assert_eq!(ask(OURS, &unnamed), 0);
    assert_eq!(ask(THEIRS, &unnamed), ALL);
    // Each client keeps its own names.
    let named = short(200, json!({"flow_id": "notes"}));
    assert_eq!(ask(OURS, &named), 0);
    assert_eq!(ask(THEIRS, &named), 0);
}

#[test]
fn without_tokens_doors_are_strangers() {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::with(|options| options.socket = Some(folder.path().join("heg.sock")));
    let ask = |door: usize, body: &Value| {
        let mut connection = Connection::open(&host.addresses[door]).unwrap();
        connection.post(BARE, "", &body.to_string()).unwrap();
        cached_tokens(&connection.reply().unwrap())
    };
    for body in [short(5, json!({})), short(200, json!({"flow_id": "notes"}))] {
        assert_eq!(ask(0, &body), 0);
        assert_eq!(ask(1, &body), 0);
        assert_eq!(ask(0, &body), ALL);
    }
}

#[test]
fn a_client_does_not_supersede_another() {
    let host = Host::with(|options| options.tokens = tokens());
    let long = json!({
        "prompt": [5, 6, 7], "max_tokens": 1000, "ignore_eos": true, "stream": true, "supersede_key": "typing",
    });
    let mut ours = host.open();
    ours.post(BARE, OURS, &long.to_string()).unwrap();
    ours.read_until("data: ").unwrap();
    let newer = short(5, json!({"supersede_key": "typing"}));
    assert_eq!(host.post_with(BARE, THEIRS, &newer).status, 200);
    // The request goes on until a newer one of the same client arrives.
    ours.read_until("data: ").unwrap();
    assert_eq!(host.post_with(BARE, OURS, &newer).status, 200);
    let rest = ours.read_until("0\r\n\r\n").unwrap();
    assert!(rest.contains(r#""code":"superseded""#), "{rest}");
}

/// Sends a request whose body lacks its last byte, which never comes.
fn begin_large(host: &Host, who: &str) -> Connection {
    const BYTES: usize = 8 << 20;
    let mut connection = host.open();
    let head = format!(
        "POST {BARE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {BYTES}\r\n{who}\r\n"
    );
    connection.write_all(head.as_bytes()).unwrap();
    // The server may refuse it before it has taken everything.
    let _ = connection.write_all(&vec![b' '; BYTES - 1]);
    connection
}

/// Returns whether the received bytes begin with `text`.
fn has_come(connection: &Connection, text: &str) -> bool {
    let Connection::Tcp(stream) = connection else {
        return false;
    };
    stream.set_nonblocking(true).unwrap();
    let mut buffer = [0; 12];
    let read = stream.peek(&mut buffer);
    read.is_ok_and(|read| buffer[..read] == *text.as_bytes())
}

#[test]
fn bodies_that_never_end_leave_others_room() {
    let host = Host::with(|options| {
        options.tokens = tokens();
        options.limits.body_bytes = Some(8 << 20);
        // They stay for the whole test.
        options.limits.body_pace.time_max = Duration::from_secs(600);
        options.limits.body_pace.grace = Duration::from_secs(600);
    });
    let nine = [(); 9].map(|()| begin_large(&host, OURS));
    // A client has room for only eight; which of them comes too late is not fixed.
    wait_until("a refusal", || {
        nine.iter()
            .any(|connection| has_come(connection, "HTTP/1.1 429"))
    });
    let small = short(5, json!({}));
    assert_eq!(host.post_with(BARE, OURS, &small).status, 200);
    // Another client still has room for a large one.
    let mut large = small.to_string();
    large.push_str(&" ".repeat(7 << 20));
    let mut theirs = host.open();
    theirs.post(BARE, THEIRS, &large).unwrap();
    assert_eq!(theirs.reply().unwrap().status, 200);
}

#[test]
fn a_door_whose_places_are_taken_leaves_the_other_open() {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::with(|options| {
        options.socket = Some(folder.path().join("heg.sock"));
        options.limits.connections = 3;
        // Bodies that have begun stay for the whole test.
        options.limits.body_pace.time_max = Duration::from_secs(600);
    });
    let _idle = [(); 6].map(|()| host.open());
    // A connection with a request under way is not closed for others.
    let busy = [(); 3].map(|()| {
        let mut connection = host.open();
        let head = format!(
            "POST {BARE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             expect: 100-continue\r\ncontent-length: 100\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).unwrap();
        connection
    });
    wait_until("three requests", || {
        busy.iter()
            .all(|connection| has_come(connection, "HTTP/1.1 100"))
    });
    let mut connection = Connection::open(&host.addresses[1]).unwrap();
    connection
        .post(BARE, "", &short(5, json!({})).to_string())
        .unwrap();
    assert_eq!(connection.reply().unwrap().status, 200);
}

#[test]
fn a_client_that_fills_the_queue_leaves_the_others_places() {
    let host = Host::with(|options| {
        options.tokens = tokens();
        options.limits.requests = 2;
    });
    let long = json!({"prompt": [5, 6, 7], "max_tokens": 1000, "ignore_eos": true, "stream": true});
    let _busy = [(); 2].map(|()| {
        let mut connection = host.open();
        connection.post(BARE, OURS, &long.to_string()).unwrap();
        connection.read_until("data: ").unwrap();
        connection
    });
    let small = short(5, json!({}));
    assert_eq!(host.post_with(BARE, OURS, &small).status, 429);
    assert_eq!(host.post_with(BARE, THEIRS, &small).status, 200);
}

/// Returns a figure of `/metrics`, as an operator sees it.
fn metric(host: &Host, name: &str) -> u64 {
    let request =
        format!("GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{WATCH}\r\n");
    let reply = host.send(request.as_bytes());
    let mut lines = reply.body.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    assert!(line.is_some(), "no {name} in {}", reply.body);
    line.unwrap().parse().unwrap()
}

/// Without turns it waits for one of 32 answers to 1000 tokens to end, hundreds of iterations later.
#[test]
fn a_short_request_waits_for_no_long_ones_of_a_stranger() {
    const TRIES: u32 = 20;
    const ROWS: u64 = 32;
    let host = Host::with(|options| {
        options.tokens = tokens();
        let watch = Token::new("watch").unwrap();
        options.tokens.add(watch, Some("watch")).unwrap();
        options.tokens.allow_operator("watch");
    });
    let long = json!({"prompt": [5, 6, 7], "max_tokens": 1000, "ignore_eos": true});
    let _busy: Vec<Connection> = (0..60)
        .map(|_| {
            let mut connection = host.open();
            connection.post(BARE, OURS, &long.to_string()).unwrap();
            connection
        })
        .collect();
    let steps = || metric(&host, "heg_decode_steps_total");
    wait_until("a full batch", || steps() > 50);
    let before = steps();
    for place in 0..TRIES {
        let ask = short(10 + place, json!({"max_tokens": 8}));
        let reply = host.post_with(BARE, THEIRS, &ask);
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
    // A step is a row of an iteration; metrics are up to a tenth of a second old.
    let taken = (steps() - before) / ROWS;
    let live = r#"heg_live_requests{class="reactive",phase="decoding"}"#;
    let left = metric(&host, live);
    assert!(
        taken < 600,
        "{taken} iterations for {TRIES} answers to 8 tokens"
    );
    assert!(
        left >= 60,
        "{left} are left of 60, so some have ended meanwhile"
    );
    wait_until("turns", || metric(&host, "heg_client_turns_total") > 0);
}
