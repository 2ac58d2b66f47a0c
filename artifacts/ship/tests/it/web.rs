//! A layout behind a real web server: with ranges, without them, and over a slow line.

use std::num::NonZero;
use std::time::{Duration, Instant};

use heg_ship::{Credentials, ModelName, Sources};

use crate::bundles::{Content, Device};
use crate::nginx::Nginx;
use crate::real::or_skip;
use crate::world::World;

/// A name whose registry does not answer, and nginx as its mirror.
struct Mirror {
    world: World,
    nginx: Nginx,
}

impl Mirror {
    fn start(test: &str, more: &str) -> Option<Self> {
        let world = World::new();
        let folder = world.folder.path().join("nginx");
        let started = Nginx::start(&folder, &world.layout(), "", more);
        let nginx = or_skip(test, "nginx", started)?;
        Some(Self { world, nginx })
    }

    /// Pulls, with this many connections; returns the bytes that came.
    fn pull(&self, jobs: usize) -> u64 {
        let name: ModelName = "127.0.0.1:1/acme/chat:v1".parse().unwrap();
        let text = format!(
            "(revision: 1, mirrors: [(prefix: \"127.0.0.1:1/acme/chat\", at: [\"http://{}/\"])])",
            self.nginx.host
        );
        let sources = Sources::parse(&text, "sources.ron").unwrap();
        let places = sources.of(&name, &Credentials::default(), &[]).unwrap();
        let mut device = Device::trusting();
        device.options.jobs = NonZero::new(jobs).unwrap();
        let pulled = device.pull(&places, &name).unwrap().unwrap();
        device.has(&name, &self.world.file);
        pulled.moved_bytes
    }

    /// The answers with a status: their number, and the bytes of their bodies.
    fn answers(&self, status: &str) -> (usize, u64) {
        let text = self.nginx.answers();
        let lines = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let bytes: Vec<u64> = lines
            .filter(|words| words[0] == status)
            .map(|words| words[1].parse().unwrap())
            .collect();
        (bytes.len(), bytes.iter().sum())
    }
}

/// Each byte is sent once, as a range, and nothing but the documents as a whole.
#[test]
fn a_web_server_gives_ranges() {
    let Some(mirror) = Mirror::start("a_web_server_gives_ranges", "") else {
        return;
    };
    let moved = mirror.pull(4);
    let (documents, document_bytes) = mirror.answers("200");
    let (_, range_bytes) = mirror.answers("206");
    // The layout's own index, that of the tag, and the manifest.
    assert_eq!(documents, 3);
    let index = std::fs::metadata(mirror.world.layout().join("index.json")).unwrap();
    assert_eq!(moved, range_bytes + document_bytes - index.len());
}

#[test]
fn a_web_server_without_ranges_is_read_through() {
    let test = "a_web_server_without_ranges_is_read_through";
    let Some(mirror) = Mirror::start(test, "max_ranges 0;") else {
        return;
    };
    mirror.pull(4);
    assert_eq!(mirror.answers("206"), (0, 0));
}

/// A line of two megabytes a second for each connection.
#[test]
fn a_slow_web_server_takes_its_time() {
    let test = "a_slow_web_server_takes_its_time";
    let Some(mirror) = Mirror::start(test, "limit_rate 2m;") else {
        return;
    };
    let started = Instant::now();
    mirror.pull(1);
    let bytes = Content::default().tokenizer.len() as f64;
    // It sends the rate of the first second at once.
    let least = Duration::from_secs_f64(bytes / f64::from(2 << 20) - 1.0);
    assert!(started.elapsed() >= least, "{:?}", started.elapsed());
}
