//! The state of a server with lost lanes, as seen through `/healthz` and requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use heg_confine::WorkerProgram;
use heg_runtime::Loaded;
use heg_runtime::engine::{Fault, Victim};
use heg_sched::Lane;
use heg_server::{Address, ServedModel, Server, ServerOptions, Timeline};
use tokio::sync::oneshot;

use crate::world::{TWO_LANES, World, bundle};

/// Returns status and body of an answer.
fn ask(address: SocketAddr, request: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let head = format!(
        "{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

#[test]
fn health_says_which_lanes_are_lost_and_when_nothing_is_left() {
    let world = World::new("agent-xpu", TWO_LANES);
    let loaded = Loaded::open(bundle()).unwrap();
    let served = ServedModel::new(
        &loaded,
        world.engine.clone(),
        Timeline::default(),
        WorkerProgram {
            path: env!("CARGO_BIN_EXE_tests_text_worker").into(),
            arguments: Vec::new(),
        },
    )
    .unwrap();
    let server = Server::bind(ServerOptions {
        port: Some(0),
        ..ServerOptions::default()
    });
    let server = server.unwrap();
    let Address::Tcp(address) = server.addresses()[0] else {
        unreachable!("{:?}", server.addresses());
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let running = thread::spawn(move || {
        server.run(served, async {
            let _ = stopped.await;
            Ok(())
        })
    });
    let wait_for = |status: u16, expected: &str| {
        let begin = Instant::now();
        loop {
            let (found, body) = ask(address, "GET /healthz", "");
            if (found, body.contains(expected)) == (status, true) {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{found} {body}");
            thread::sleep(Duration::from_millis(5));
        }
    };
    let complete = || {
        // Whole chunks, which run on the NPU.
        let prompt = &world.references[5].prompt;
        let body = format!(r#"{{"prompt": {prompt:?}, "max_tokens": 3, "ignore_eos": true}}"#);
        ask(address, "POST /v1/completions", &body)
    };
    wait_for(200, r#""status":"ok""#);
    world.expect(Fault::Panic, Victim::Lane(Lane::Npu), 0, 1);
    assert_eq!(complete().0, 200);
    wait_for(200, r#""status":"degraded""#);
    assert!(
        ask(address, "GET /healthz", "")
            .1
            .contains(r#""lost":["npu"]"#)
    );
    assert!(
        ask(address, "GET /metrics", "")
            .1
            .contains("heg_lanes_lost 1")
    );
    assert_eq!(complete().0, 200);

    world.expect(Fault::Panic, Victim::Lane(Lane::Igpu), 0, 1);
    let (status, body) = complete();
    assert_eq!(status, 500);
    assert!(body.contains("panicked: a fault on purpose"), "{body}");
    wait_for(503, "engine_failed");
    assert_eq!(complete().0, 500);
    drop(stop);
    running.join().unwrap().unwrap();
}
