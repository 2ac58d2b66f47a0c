//! Mishaps around a transfer: links that expire, servers that fall silent, bundles of a later day, another command at the
//! store, files that a power cut took.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use heg_artifacts::{BundleHead, layout};
use heg_ship::ShipErrorKind;

use crate::bundles::{Content, Device, bundle, chain, name, open};
use crate::lying::Twist;
use crate::world::World;

/// Registries send on to links that work for a while: each range asks for its own.
#[test]
fn a_link_that_expired_is_asked_for_anew() {
    let world = World::new();
    let used = Mutex::new(BTreeSet::new());
    let target = world.liar(move |asked| {
        let is_new = used.lock().unwrap().insert(asked.path.clone());
        match (is_new, asked.is_long()) {
            (false, _) => Twist::Status(403, String::new()),
            (true, true) => Twist::Cut((1 << 20) + 77),
            (true, false) => Twist::Honest,
        }
    });
    let elsewhere = target.host.clone();
    let liar = world.liar(move |asked| match asked.path.split_once("/blobs/") {
        Some((_, digest)) => {
            let link = format!("http://{elsewhere}/v2/link-{}/blobs/{digest}", asked.number);
            Twist::Status(307, format!("Location: {link}"))
        }
        None => Twist::Honest,
    });
    let mut device = Device::trusting();
    device.options.jobs = NonZero::<usize>::MIN;
    let name = liar.name("chat:v1");
    device.pull(&liar.registry(&name, None), &name).unwrap();
    device.has(&name, &world.file);
    let long = target.requests().iter().filter(|it| it.is_long()).count();
    assert!(long > 1, "the line broke, and a new link went on");
}

/// A server that never ends a range: when its time is over, the rest of it is asked for again.
#[test]
fn a_range_that_never_ends_is_given_up() {
    let world = World::new();
    let long = AtomicUsize::new(0);
    let liar = world.liar(move |asked| {
        let is_first = asked.is_long() && long.fetch_add(1, Ordering::Relaxed) == 0;
        match is_first {
            true => Twist::Stall((1 << 20) + 77),
            false => Twist::Honest,
        }
    });
    let mut device = Device::trusting();
    device.options.jobs = NonZero::<usize>::MIN;
    device.options.patience = Duration::from_millis(500);
    let name = liar.name("chat:v1");
    let started = Instant::now();
    device.pull(&liar.registry(&name, None), &name).unwrap();
    let took = started.elapsed();
    assert!(took >= device.options.patience, "{took:?}");
    device.has(&name, &world.file);
    let mut long = liar.requests().into_iter().filter(|it| it.is_long());
    let ranges: Vec<(u64, u64)> = long.by_ref().filter_map(|it| it.range).collect();
    // The block that had come whole is not asked for again.
    let [(first, _), (second, _)] = ranges[..] else {
        panic!("{ranges:?}");
    };
    assert_eq!(second, first + (1 << 20));
}

/// A program that is too old for a bundle says what it lacks after the head, before any other byte of the bundle.
#[test]
fn what_is_too_new_is_told_before_the_download() {
    let world = World::new();
    let head = BundleHead::of_bundle(&open(&world.file)).unwrap();
    let mut of_later_format = head.bytes().to_vec();
    of_later_format[layout::MAGIC.len()] = 2;
    let mut of_later_revision = head.bytes().to_vec();
    let text = b"revision: 1,";
    let at = of_later_revision
        .windows(text.len())
        .position(|found| found == text)
        .unwrap();
    of_later_revision[at + text.len() - 2] = b'9';
    layout::reseal(&mut of_later_revision);
    let mut said = Vec::new();
    for changed in [of_later_format, of_later_revision] {
        let liar = world.liar(move |asked| match asked.path.contains("/blobs/") {
            true => Twist::Body(changed.clone()),
            false => Twist::Honest,
        });
        let device = Device::trusting();
        let name = liar.name("chat:v1");
        let error = device.pull(&liar.registry(&name, None), &name).unwrap_err();
        assert_eq!(error.kind(), ShipErrorKind::Bundle);
        said.push(chain(&error).replace(&liar.host, "HOST"));
        assert_eq!(liar.requests().len(), 3, "index, manifest and head");
        assert_eq!(device.files("tmp"), 0);
    }
    insta::assert_snapshot!("too_new", said.join("\n"));
}

#[test]
fn a_second_pull_waits_for_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let one = bundle(folder.path(), "one", &Content::default());
    let (device, chat) = (Device::trusting(), name("chat"));
    let first = device.store.lock(&|| ()).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| device.import(&one, &chat).unwrap());
        let told = || device.told.lines.lock().unwrap().clone();
        while told().is_empty() {
            assert!(!second.is_finished(), "it did not wait");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(
            told(),
            ["another command changes the store: waiting for it"]
        );
        assert!(device.store.name(&chat).unwrap().is_none());
        drop(first);
    });
    device.has(&chat, &one);
}

/// A view has lost a part, and a part its end: the missing bytes come again, and no others.
#[test]
fn what_a_power_cut_took_comes_again() {
    let world = World::new();
    let liar = world.liar(|_| Twist::Honest);
    let (device, chat) = (Device::trusting(), liar.name("chat:v1"));
    let registry = liar.registry(&chat, None);
    let first = device.pull(&registry, &chat).unwrap().unwrap();
    let view = device.store.view(first.held.bundle).unwrap().unwrap();
    let parts = device.store.path().join("parts");
    for (part, whole) in view.parts().iter().zip(&first.changed_parts) {
        let path = part.id.path_in(&parts);
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        if part.bytes > 1 << 20 {
            fs::write(&path, &bytes[..bytes.len() - 4096]).unwrap();
        }
        let again = device.pull(&registry, &chat).unwrap().unwrap();
        assert_eq!(&again.changed_parts, std::slice::from_ref(whole));
        device.has(&chat, &world.file);
    }
    assert!(device.pull(&registry, &chat).unwrap().is_none());
}
