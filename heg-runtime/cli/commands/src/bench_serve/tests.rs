//! Replays against a server that follows a script: it speaks HTTP and SSE, and holds no model.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use heg_workload::Prompt;

use super::*;

/// The parts that the server sends after a request, each with a pause in ms before it; then it closes the connection.
type Script = &'static [(u64, &'static str)];

const HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
const TOKEN: &str = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n";
const END: &str =
    "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n";

/// Starts a server that answers the n-th connection by the n-th script, and all further ones by the last script.
fn server(scripts: &'static [Script]) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for (index, stream) in listener.incoming().enumerate() {
            let script = scripts[index.min(scripts.len() - 1)];
            thread::spawn(move || play(stream.unwrap(), script));
        }
    });
    Endpoint::new(&url, None, Dialect::Openai, PriorityField::On, None).unwrap()
}

fn play(mut stream: TcpStream, script: Script) {
    let mut request = Vec::new();
    // The body is one JSON object, and only its end is a brace.
    while request.last() != Some(&b'}') {
        let mut some = [0; 4096];
        let read = stream.read(&mut some).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&request));
        request.extend(&some[..read]);
    }
    for (pause_ms, part) in script {
        thread::sleep(Duration::from_millis(*pause_ms));
        if stream.write_all(part.as_bytes()).is_err() {
            return; // the client has lost patience
        }
    }
}

fn request(at_ms: u64, class: Class) -> ReplayRequest {
    ReplayRequest {
        at_ms,
        class,
        prompt: Prompt::Ids(vec![11; 5]),
        prompt_tokens: 5,
        output_tokens: 3,
    }
}

fn replay(
    endpoint: Endpoint,
    requests: Vec<ReplayRequest>,
    patience_ms: u64,
    alone: bool,
) -> Vec<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let replay = Replay {
        endpoint: Arc::new(endpoint),
        patience: Duration::from_millis(patience_ms),
        progress: ProgressBar::hidden(),
    };
    let outcomes = runtime.block_on(async {
        match alone {
            true => replay.one_by_one(requests).await,
            false => replay.at_their_times(requests).await,
        }
    });
    outcomes.unwrap()
}

#[test]
fn requests_leave_at_their_time_while_others_are_answered() {
    const SLOW: Script = &[
        (0, HEAD),
        (100, TOKEN),
        (0, ": still here\n\n"),
        (300, TOKEN),
        (100, TOKEN),
        (0, END),
    ];
    let endpoint = server(&[SLOW]);
    let requests = [
        (0, Class::Reactive),
        (50, Class::Proactive),
        (100, Class::Reactive),
    ];
    let requests = requests
        .map(|(at_ms, class)| request(at_ms, class))
        .to_vec();
    let outcomes = replay(endpoint, requests, 60_000, false);
    for (outcome, at_ms) in outcomes.iter().zip([0.0, 50.0, 100.0]) {
        assert_eq!(outcome.failure, None);
        assert_eq!((outcome.at_ms, outcome.output_tokens), (at_ms, 3));
        assert!(
            outcome.ttft_ms >= 100.0 && outcome.latency_ms >= 500.0,
            "{outcome:?}"
        );
        assert!(outcome.gap_ms_max >= 250.0, "{outcome:?}");
    }
    // One after the other they would take 1500 ms.
    let last = outcomes.iter().map(|o| o.at_ms + o.latency_ms);
    assert!(last.fold(0.0, f64::max) < 1400.0, "{outcomes:?}");
}

#[test]
fn alone_a_request_waits_for_the_one_before() {
    const SHORT: Script = &[(0, HEAD), (200, TOKEN), (0, END)];
    let requests = vec![request(0, Class::Reactive), request(0, Class::Reactive)];
    let outcomes = replay(server(&[SHORT]), requests, 60_000, true);
    let [first, second] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    assert!(
        second.at_ms >= first.at_ms + first.latency_ms - 1.0,
        "{outcomes:?}"
    );
    assert!(second.ttft_ms < 400.0, "{outcomes:?}");
}

#[test]
fn whatever_fails_is_told() {
    const REFUSED: Script = &[(
        0,
        "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 30\r\n\r\n{\"error\":{\"message\":\"queue\"}} ",
    )];
    const BROKEN: Script = &[
        (0, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
        (0, "4\r\ndata\r\n"),
    ];
    const ERROR: Script = &[
        (0, HEAD),
        (0, TOKEN),
        (0, "data: {\"error\":{\"message\":\"lost\"}}\n\n"),
    ];
    const EMPTY: Script = &[(0, HEAD), (0, END)];
    const STALLED: Script = &[(0, HEAD), (0, TOKEN), (3_000, TOKEN)];
    const DONE: Script = &[(0, HEAD), (0, TOKEN), (0, TOKEN), (0, END)];
    let endpoint = server(&[REFUSED, BROKEN, ERROR, EMPTY, STALLED, DONE]);
    let class = |index| match index {
        0 => Class::Proactive,
        _ => Class::Reactive,
    };
    let requests = (0..6).map(|index| request(0, class(index))).collect();
    let mut outcomes = replay(endpoint, requests, 1_000, true);
    // Times depend on the machine; the rest comes from the script.
    for outcome in &mut outcomes {
        (outcome.at_ms, outcome.ttft_ms, outcome.gap_ms_max) = (0.0, 20.0, 15.0);
        outcome.latency_ms = 40.0;
    }
    insta::assert_snapshot!(report::table(&outcomes));
    insta::assert_snapshot!(report::json(&outcomes, None)["requests"][5]);
}

#[test]
fn a_server_that_is_not_ready_is_waited_for() {
    const LOADING: Script = &[(
        0,
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 7\r\n\r\nloading",
    )];
    const READY: Script = &[(0, HEAD), (0, TOKEN), (0, END)];
    let wait = |endpoint: Endpoint, patience_ms| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let warm_up = request(0, Class::Reactive);
        let patience = Duration::from_millis(patience_ms);
        runtime.block_on(wait_ready(&endpoint, &warm_up, patience))
    };
    wait(server(&[LOADING, LOADING, READY]), 60_000).unwrap();
    let error = wait(server(&[LOADING]), 500).unwrap_err();
    let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
    assert_eq!(
        chain,
        [
            "the server was not ready after 0 s",
            "503 Service Unavailable: loading"
        ]
    );
}
