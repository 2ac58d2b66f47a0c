//! Transfers that end anywhere, and partial files that are damaged in between: the result is the file, and what was there
//! and right is not fetched twice.

use std::fs;
use std::io::Read;
use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heg_artifacts::BLOCK_BYTES;
use heg_ship::{BundleSource, Digest, Layout, ShipError};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::bundles::{Device, name};
use crate::world::World;

/// A layout that gives some bytes of long blobs, and then is gone for good.
struct Ending<'a> {
    layout: Layout,
    /// Blobs of weights that this or an earlier transfer asked for.
    long: &'a Mutex<Vec<Digest>>,
    left: AtomicU64,
    given: AtomicU64,
}

impl<'a> Ending<'a> {
    fn new(world: &World, bytes: u64, long: &'a Mutex<Vec<Digest>>) -> Self {
        Self {
            layout: Layout::new(&world.layout()),
            long,
            left: AtomicU64::new(bytes),
            given: AtomicU64::new(0),
        }
    }

    /// Whether a range is of weights: documents and lists are shorter, but so is the rest of weights that is asked again.
    fn is_long(&self, digest: &Digest, range: &Range<u64>) -> bool {
        let mut long = self.long.lock().unwrap();
        if range.end - range.start > 300_000 {
            long.push(*digest);
        }
        long.contains(digest)
    }
}

impl BundleSource for Ending<'_> {
    fn place(&self) -> String {
        "ending".to_owned()
    }

    fn tagged(&self, tag: &str) -> Result<Vec<u8>, ShipError> {
        self.layout.tagged(tag)
    }

    fn manifest(&self, digest: &Digest) -> Result<Vec<u8>, ShipError> {
        self.layout.manifest(digest)
    }

    fn blob(
        &self,
        digest: &Digest,
        range: Range<u64>,
        deadline: Duration,
    ) -> Result<Box<dyn Read + '_>, ShipError> {
        if !self.is_long(digest, &range) {
            return self.layout.blob(digest, range, deadline);
        }
        let wanted = range.end - range.start;
        let given = self.left.load(Ordering::Relaxed).min(wanted);
        if given == 0 {
            return Err(ShipError::Missing {
                what: "blob".to_owned(),
                place: self.place(),
            });
        }
        self.left.fetch_sub(given, Ordering::Relaxed);
        self.given.fetch_add(given, Ordering::Relaxed);
        let reader = self.layout.blob(digest, range, deadline)?;
        Ok(Box::new(reader.take(given)))
    }
}

/// Changes a bit of the longest partial file; `false` if there is none.
fn damage(device: &Device, place: u64) -> bool {
    let folder = device.store.path().join("tmp");
    let files = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let Some(path) = files.max_by_key(|path| path.metadata().unwrap().len()) else {
        return false;
    };
    let mut bytes = fs::read(&path).unwrap();
    let at = usize::try_from(place).unwrap() % bytes.len();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    true
}

/// Transfers that end after some bytes, each followed by damage at a place of what came, if there is one.
type Ends = Vec<(u64, Option<u64>)>;

/// Bytes that came in all, and of these the ones that may have come twice.
fn transferred(world: &World, ends: &Ends) -> (u64, u64) {
    let chat = name("h.example/chat:v1");
    let mut device = Device::trusting();
    device.options.jobs = NonZero::<usize>::MIN;
    let long = Mutex::default();
    let (mut given, mut twice) = (0, 0);
    for (bytes, place) in ends.iter().chain([&(u64::MAX, None)]) {
        let source = Ending::new(world, *bytes, &long);
        let pulled = device.pull(&source, &chat);
        given += source.given.load(Ordering::Relaxed);
        if pulled.is_ok() {
            break;
        }
        // The block in which it ended, and one that is damaged.
        twice += BLOCK_BYTES;
        if place.is_some_and(|place| damage(&device, place)) {
            twice += BLOCK_BYTES;
        }
    }
    device.has(&chat, &world.file);
    (given, twice)
}

#[test]
fn what_was_there_is_not_fetched_twice() {
    let world = World::new();
    let (whole, _) = transferred(&world, &Vec::new());
    assert!(whole > 3_000_000, "{whole}");
    // The rest of the last block is short, and counts like all others.
    let cut = transferred(&world, &vec![(whole - 1, None)]);
    assert!((whole..=whole + cut.1).contains(&cut.0), "{cut:?}");
    // Each transfer that ends waits a moment before it gives up.
    let mut runner = TestRunner::new(Config {
        cases: 6,
        failure_persistence: None,
        ..Config::default()
    });
    let end = (0..whole, prop::option::of(any::<u64>()));
    let outcome = runner.run(&prop::collection::vec(end, 1..3), |ends| {
        let (given, twice) = transferred(&world, &ends);
        prop_assert!(
            (whole..=whole + twice).contains(&given),
            "{given} bytes for {whole}, {twice} may come twice"
        );
        Ok(())
    });
    outcome.unwrap();
}
