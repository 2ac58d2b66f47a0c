//! A registry that breaks off, lies, sends elsewhere: the bundle arrives whole, or not at all, and the error says why.

use std::fs;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use heg_ship::ShipErrorKind;

use crate::bundles::{Content, Device, chain};
use crate::lying::{Asked, Liar, Twist};
use crate::world::World;

fn one_job(mut device: Device) -> Device {
    device.options.jobs = NonZero::<usize>::MIN;
    device
}

/// Pulls; returns the error as it is shown, with the server's address taken out.
fn refused(device: &Device, liar: &Liar) -> (String, ShipErrorKind) {
    let name = liar.name("chat:v1");
    let error = device.pull(&liar.registry(&name, None), &name).unwrap_err();
    assert!(device.store.name(&name).unwrap().is_none());
    (chain(&error).replace(&liar.host, "HOST"), error.kind())
}

#[test]
fn an_honest_registry_is_asked_for_each_byte_once() {
    let world = World::new();
    let liar = world.liar(|_| Twist::Honest);
    let device = Device::trusting();
    let name = liar.name("chat:v1");
    let pulled = device
        .pull(&liar.registry(&name, None), &name)
        .unwrap()
        .unwrap();
    device.has(&name, &world.file);
    assert_eq!(pulled.requests as usize, liar.requests().len());
    let mut ranges: Vec<(String, u64, u64)> = liar
        .requests()
        .into_iter()
        .filter_map(|asked| asked.range.map(|(from, to)| (asked.path, from, to)))
        .collect();
    ranges.sort();
    let twice = ranges
        .windows(2)
        .any(|pair| pair[0].0 == pair[1].0 && pair[1].1 <= pair[0].2);
    assert!(!twice, "{ranges:?}");
}

/// Each of these is got over: what came right is kept, and the rest is asked for again.
#[test]
fn what_passes_is_got_over() {
    let world = World::new();
    let twists = [
        ("cut", Twist::Cut(1_200_000)),
        ("cut at once", Twist::Cut(0)),
        ("flipped", Twist::Flip(700_000)),
        ("shifted", Twist::Shifted),
        ("busy", Twist::Status(503, String::new())),
        ("too many", Twist::Status(429, String::new())),
    ];
    for (what, twist) in twists {
        let tries = AtomicUsize::new(0);
        let twisted = twist.clone();
        let liar = world.liar(move |asked| {
            let is_first = asked.is_long() && tries.fetch_add(1, Ordering::Relaxed) == 0;
            if is_first {
                twisted.clone()
            } else {
                Twist::Honest
            }
        });
        let device = one_job(Device::trusting());
        let name = liar.name("chat:v1");
        device.pull(&liar.registry(&name, None), &name).expect(what);
        device.has(&name, &world.file);
    }
}

#[test]
fn a_server_without_ranges_is_read_through() {
    let world = World::new();
    let liar = world.liar(|asked| match asked.path.contains("/blobs/") {
        true => Twist::NoRanges,
        false => Twist::Honest,
    });
    let device = Device::trusting();
    let name = liar.name("chat:v1");
    device.pull(&liar.registry(&name, None), &name).unwrap();
    device.has(&name, &world.file);
}

#[test]
fn what_stays_wrong_is_named_and_nothing_of_it_kept() {
    let world = World::new();
    let twists = [
        Twist::Flip(700_000),
        Twist::OtherRange,
        Twist::Status(416, String::new()),
        Twist::Status(404, String::new()),
    ];
    let mut all = Vec::new();
    for twist in twists {
        let liar = world.liar(move |asked| {
            if asked.is_long() {
                twist.clone()
            } else {
                Twist::Honest
            }
        });
        let device = one_job(Device::trusting());
        let (text, kind) = refused(&device, &liar);
        all.push(format!("{kind:?}: {}", shortened(&text)));
        assert_eq!(device.files("views"), 0);
    }
    insta::assert_snapshot!("wrong", all.join("\n"));
}

/// Digests of the fixture's blobs stay out of snapshots.
fn shortened(text: &str) -> String {
    let (mut shown, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("sha256:") {
        shown.push_str(&rest[..at + 7]);
        rest = rest[at + 7..].trim_start_matches(|c: char| c.is_ascii_hexdigit());
        shown.push('…');
    }
    shown + rest
}

/// Documents are compared with their digests and bounded before they are read.
#[test]
fn a_rewritten_manifest_is_refused() {
    let world = World::new();
    let mut all = Vec::new();
    let manifest_of = |asked: &Asked| asked.path.contains("/manifests/sha256:");
    let bodies: [(&str, Vec<u8>); 3] = [
        (
            "other",
            br#"{"schemaVersion":2,"config":{},"layers":[]}"#.to_vec(),
        ),
        ("empty", Vec::new()),
        ("long", vec![b' '; (4 << 20) + 1]),
    ];
    for (what, body) in bodies {
        let liar = world.liar(move |asked| match manifest_of(asked) {
            true => Twist::Body(body.clone()),
            false => Twist::Honest,
        });
        let (text, kind) = refused(&Device::trusting(), &liar);
        all.push(format!("{what}: {kind:?}: {}", shortened(&text)));
    }
    insta::assert_snapshot!("rewritten", all.join("\n"));
}

/// A transfer that broke off goes on where it was: nothing that came right is asked for again.
#[test]
fn a_transfer_goes_on_where_it_broke_off() {
    let world = World::new();
    let broken = one_job(Device::trusting());
    let first = AtomicUsize::new(0);
    let liar = world.liar(move |asked| match asked.is_long() {
        true if first.fetch_add(1, Ordering::Relaxed) == 0 => Twist::Cut(2 << 20),
        true => Twist::Status(503, String::new()),
        false => Twist::Honest,
    });
    let (text, kind) = refused(&broken, &liar);
    assert!(text.starts_with("the transfer broke off: "), "{text}");
    assert!(
        text.contains("% of `HOST/chat:v1` is here, run the command again to go on"),
        "{text}"
    );
    assert_eq!(kind, ShipErrorKind::Environment);
    assert!(broken.store.partial_bytes().unwrap() > 3 << 20);

    let honest = world.liar(|_| Twist::Honest);
    let name = honest.name("chat:v1");
    let pulled = broken
        .pull(&honest.registry(&name, None), &name)
        .unwrap()
        .unwrap();
    broken.has(&name, &world.file);
    // Two blocks of the long section were there, and the parts that came before it.
    let long = Content::default().tokenizer.len() as u64;
    assert!(pulled.amounts.here_bytes >= 2 << 20, "{:?}", pulled.amounts);
    assert!(
        pulled.moved_bytes < long - (2 << 20) + 150_000,
        "{}",
        pulled.moved_bytes
    );
}

/// Whatever came right with each cut is kept, so that even a line that always breaks brings the bundle.
#[test]
fn a_line_that_always_breaks_brings_the_bundle() {
    let world = World::new();
    let liar = world.liar(|asked| match asked.is_long() {
        true => Twist::Cut((1 << 20) + 77),
        false => Twist::Honest,
    });
    let device = one_job(Device::trusting());
    let name = liar.name("chat:v1");
    device.pull(&liar.registry(&name, None), &name).unwrap();
    device.has(&name, &world.file);
}

/// Logins go to the registry that asked for them, and never along a redirect.
#[test]
fn a_login_is_not_sent_on() {
    let world = World::new();
    let target = world.liar(|_| Twist::Honest);
    let elsewhere = target.host.clone();
    let liar = world.liar(move |asked| match asked {
        Asked {
            authorization: None,
            ..
        } => Twist::Status(401, "WWW-Authenticate: Basic realm=\"r\"".to_owned()),
        Asked { path, .. } if path.contains("/blobs/") => {
            Twist::Status(307, format!("Location: http://{elsewhere}{path}"))
        }
        _ => Twist::Honest,
    });
    let logins = world.folder.path().join("config.json");
    let name = liar.name("chat:v1");
    let without = Device::trusting()
        .pull(&liar.registry(&name, None), &name)
        .unwrap_err();
    assert_eq!(
        without.to_string().replace(&liar.host, "HOST"),
        "`HOST` does not let this user read from there: log in with `docker login HOST` or `podman login HOST`"
    );
    let text = format!(
        r#"{{"auths": {{"{}": {{"auth": "dXNlcjpwYXNz"}}}}}}"#,
        liar.host
    );
    fs::write(&logins, text).unwrap();
    let device = Device::trusting();
    device
        .pull(&liar.registry(&name, Some(logins)), &name)
        .unwrap();
    device.has(&name, &world.file);
    assert!(
        liar.requests()
            .iter()
            .any(|asked| asked.authorization.as_deref() == Some("Basic dXNlcjpwYXNz"))
    );
    let sent = target.requests();
    assert!(!sent.is_empty() && sent.iter().all(|asked| asked.authorization.is_none()));
}

/// A registry that names a stranger for its tokens gets no login sent there, and no redirect leaves TLS or leads astray.
#[test]
fn addresses_that_lead_astray_are_refused() {
    let world = World::new();
    let mut all = Vec::new();
    for location in [
        "http://registry.example/v2/x",
        "ftp://registry.example/x",
        "//registry.example/x",
        "https://user@registry.example/x",
        "",
    ] {
        let header = format!("Location: {location}");
        let liar = world.liar(move |asked| match asked.path.contains("/blobs/") {
            true => Twist::Status(302, header.clone()),
            false => Twist::Honest,
        });
        all.push(refused(&Device::trusting(), &liar).0);
    }
    let around = world.liar(|asked| match asked.path.contains("/blobs/") {
        true => Twist::Status(302, format!("Location: {}", asked.path)),
        false => Twist::Honest,
    });
    all.push(shortened(&refused(&Device::trusting(), &around).0));
    let realm = "WWW-Authenticate: Bearer realm=\"http://tokens.example/token\",service=\"s\"";
    let stranger = world.liar(move |_| Twist::Status(401, realm.to_owned()));
    all.push(refused(&Device::trusting(), &stranger).0);
    insta::assert_snapshot!("astray", all.join("\n"));
}

/// One rate for all connections.
#[test]
fn a_limit_is_kept() {
    let world = World::new();
    let liar = world.liar(|_| Twist::Honest);
    let mut device = Device::trusting();
    device.options.limit_bytes_per_s = NonZero::new(4 << 20);
    let name = liar.name("chat:v1");
    let started = std::time::Instant::now();
    let pulled = device
        .pull(&liar.registry(&name, None), &name)
        .unwrap()
        .unwrap();
    let least = pulled.amounts.fetch_bytes as f64 / (4 << 20) as f64;
    assert!(
        started.elapsed().as_secs_f64() >= least * 0.9,
        "{:?}",
        started.elapsed()
    );
}
