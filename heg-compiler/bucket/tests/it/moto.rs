//! Amazon's storage, as moto plays it on loopback.

use crate::place;
use heg_artifacts::{RecipeKey, Section, SharedPlace, Store, StoreKey, StoreSharing};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A server on loopback, which ends with the test.
struct Moto {
    child: Child,
    endpoint: String,
}

impl Moto {
    /// Starts it with a bucket; `None`, with a message, if it is missing.
    fn start_or_skip(test: &str) -> Option<Self> {
        let Some(program) = program() else {
            let text = format!("{test}: no moto_server (run: cargo xtask setup --clients)");
            assert!(std::env::var_os("HEG_REQUIRE_CLIENTS").is_none(), "{text}");
            println!("skipped: {text}");
            return None;
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let endpoint = format!("http://{address}");
        let moto = Self {
            child: child.unwrap(),
            endpoint,
        };
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "moto does not start"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut line = TcpStream::connect(address).unwrap();
        let ask =
            "PUT /farm HTTP/1.1\r\nHost: moto\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        line.write_all(ask.as_bytes()).unwrap();
        let mut answer = String::new();
        line.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Some(moto)
    }

    /// A folder of its bucket.
    fn bucket(&self) -> Arc<dyn SharedPlace> {
        let setting = |name: &str| match name {
            "AWS_ENDPOINT_URL" => Some(self.endpoint.clone()),
            "AWS_ACCESS_KEY_ID" | "AWS_SECRET_ACCESS_KEY" => Some("test".to_owned()),
            _ => None,
        };
        heg_bucket::open("s3://farm/heg", setting).unwrap()
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn amazons_storage_keeps_what_is_sent() {
    let Some(moto) = Moto::start_or_skip("amazons_storage_keeps_what_is_sent") else {
        return;
    };
    place::keeps_what_is_sent(&*moto.bucket());
}

#[test]
fn machines_make_a_section_once_and_fetch_it_from_the_bucket() {
    let test = "machines_make_a_section_once_and_fetch_it_from_the_bucket";
    let Some(moto) = Moto::start_or_skip(test) else {
        return;
    };
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [first, second, stranger] = ["farm", "farm", "stranger"].map(|secret| {
        let key = StoreKey::of(secret.as_bytes());
        StoreSharing::Place(key, moto.bucket())
    });
    let stores = [
        (&folders[0], first),
        (&folders[1], second),
        (&folders[2], stranger),
    ]
    .map(|(folder, sharing)| Store::open(folder.path()).unwrap().shared(sharing));
    let step = |name: &str| RecipeKey::of("quantise 1", [name]);
    // From several threads, as the compiler does it.
    let names = ["a", "b", "c", "d", "e", "f"];
    let made: Vec<Vec<Section>> = std::thread::scope(|scope| {
        let all = names.map(|name| {
            let store = &stores[0];
            scope.spawn(move || {
                let section = store.put_bytes(&name.as_bytes().repeat(3 << 20)).unwrap();
                store.record(&step(name), &[section]).unwrap();
                vec![section]
            })
        });
        all.map(|one| one.join().unwrap()).into()
    });
    for (name, made) in names.iter().zip(made) {
        assert_eq!(stores[2].recall(&step(name)).unwrap(), None);
        assert_eq!(stores[1].recall(&step(name)).unwrap().as_ref(), Some(&made));
        stores[1].check(made[0].id).unwrap();
    }
}

/// `moto_server` of the environment that holds the clients of tests.
fn program() -> Option<PathBuf> {
    // This program is in `<target folder>/<profile>/deps`.
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).unwrap();
    let program = target.join("clients/bin/moto_server");
    program.is_file().then_some(program)
}
