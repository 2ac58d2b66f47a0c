//! Mirrors before a registry: what one does not give comes from the next, and a lie is no gift.

use std::num::NonZero;
use std::time::Duration;

use heg_ship::{BundleSource, Credentials, ModelName, Replicas, Sources};

use crate::bundles::{Device, chain};
use crate::lying::{Asked, Liar, Twist};
use crate::world::World;

/// Mirrors for all names of a registry, in this order.
fn sources(registry: &Liar, mirrors: &[String]) -> Sources {
    let text = format!(
        "(revision: 1, mirrors: [(prefix: \"{}/acme/\", at: {mirrors:?})])",
        registry.host
    );
    Sources::parse(&text, "sources.ron").unwrap()
}

/// The places for a name: one mirror, then its registry.
fn behind(mirror: &Liar, origin: &Liar, name: &ModelName) -> Replicas {
    let mirrors = [format!("{}/acme/", mirror.host)];
    let places = sources(origin, &mirrors).of(name, &Credentials::default(), &[]);
    places.unwrap()
}

fn is_blob(asked: &Asked) -> bool {
    asked.path.contains("/blobs/")
}

/// A mirror lies, breaks off or says no more: the registry is asked for those bytes, and first for all that follows.
#[test]
fn what_a_mirror_gives_wrongly_comes_from_the_next() {
    let world = World::new();
    let twists = [
        ("lies", Twist::Flip(0)),
        ("breaks off", Twist::Cut(100)),
        ("says no more", Twist::Stall(100)),
    ];
    for (what, twist) in twists {
        let mirror = world.liar(move |asked| match asked.is_long() {
            true => twist.clone(),
            false => Twist::Honest,
        });
        let origin = world.liar(|_| Twist::Honest);
        let name: ModelName = origin.name("acme/chat:v1");
        let mut device = Device::trusting();
        device.options.jobs = NonZero::<usize>::MIN;
        device.options.patience = Duration::from_millis(300);
        let pulled = device.pull(&behind(&mirror, &origin, &name), &name);
        pulled.expect(what);
        device.has(&name, &world.file);
        let asked = mirror.requests();
        let long = asked.iter().filter(|asked| asked.is_long()).count();
        assert_eq!(long, 1, "{what}: it was asked again");
        assert!(!origin.requests().is_empty(), "{what}");
    }
}

/// A head, a list of blocks and the values of kernels are believed no sooner than weights are.
#[test]
fn documents_that_a_mirror_made_up_come_from_the_next() {
    let world = World::new();
    let mirror = world.liar(|asked| match is_blob(asked) {
        true => Twist::Flip(0),
        false => Twist::Honest,
    });
    let origin = world.liar(|_| Twist::Honest);
    let name: ModelName = origin.name("acme/chat:v1");
    let device = Device::trusting();
    let places = behind(&mirror, &origin, &name);
    device.pull(&places, &name).unwrap().unwrap();
    device.has(&name, &world.file);
    assert!(origin.requests().iter().all(is_blob));
}

/// If all places lie alike, each is asked as often as a registry alone, and the error names them.
#[test]
fn a_lie_of_all_places_is_named() {
    let world = World::new();
    let lies = |asked: &Asked| match asked.is_long() {
        true => Twist::Flip(700_000),
        false => Twist::Honest,
    };
    let (mirror, origin) = (world.liar(lies), world.liar(lies));
    let name: ModelName = origin.name("acme/chat:v1");
    let mut device = Device::trusting();
    device.options.jobs = NonZero::<usize>::MIN;
    let places = behind(&mirror, &origin, &name);
    let error = chain(&device.pull(&places, &name).unwrap_err());
    let error = error.replace(&mirror.host, "MIRROR");
    insta::assert_snapshot!(
        error.replace(&origin.host, "HOST"),
        @"`MIRROR/acme/chat, HOST/acme/chat` has wrong bytes for tokenizer of part `tokenizer`, `6` times: nothing of them was kept"
    );
    assert_eq!(device.files("views"), 0);
}

#[test]
fn what_a_mirror_does_not_give_comes_from_the_next() {
    let world = World::new();
    let origin = world.liar(|_| Twist::Honest);
    let name: ModelName = origin.name("acme/chat:v1");
    let broken = world.liar(|_| Twist::Status(503, String::new()));
    // It names another manifest, and gives nothing else.
    let lying = world.liar(|asked| match asked.path.contains("/blobs/") {
        true => Twist::Status(404, String::new()),
        false => Twist::Body(b"{}".to_vec()),
    });
    let web = world.liar(|_| Twist::Honest);
    let mirrors = [
        format!("{}/copies/", broken.host),
        format!("http://{}/heg/", web.host),
    ];
    let places = sources(&origin, &mirrors)
        .of(&name, &Credentials::default(), &[])
        .unwrap();
    let device = Device::trusting();
    device.pull(&places, &name).unwrap().unwrap();
    device.has(&name, &world.file);
    assert!(!broken.requests().is_empty());
    assert!(!web.requests().is_empty());
    assert_eq!(origin.requests().len(), 0, "the web server had it all");

    let mirrors = [format!("{}/copies/", lying.host)];
    let places = sources(&origin, &mirrors)
        .of(&name, &Credentials::default(), &[])
        .unwrap();
    let digest = heg_ship::Digest::of(&places.tagged("v1").unwrap());
    assert_eq!(digest, heg_ship::Digest::of(b"{}"));
    let manifest = heg_ship::Layout::new(&world.layout()).tagged("v1").unwrap();
    let honest = places.manifest(&heg_ship::Digest::of(&manifest)).unwrap();
    assert!(honest == manifest, "a manifest by its digest is checked");
}

#[test]
fn a_list_of_sources_is_read_or_refused() {
    let read = |text: &str| Sources::parse(text, "sources.ron").map_err(|error| chain(&error));
    let good = "(revision: 1, aliases: {\"chat\": \"registry.example/acme/chat:stable\"})";
    let aliased = read(good).unwrap();
    let name = aliased.alias("chat").unwrap().to_string();
    assert_eq!(name, "registry.example/acme/chat:stable");
    assert_eq!(aliased.alias("mail"), None);
    let wrong = [
        "(revision: 2)",
        "(revision: 1, aliases: {\"a/b\": \"registry.example/chat\"})",
        "(revision: 1, aliases: {\"chat\": \"chat\"})",
        "(revision: 1, mirror: [])",
    ];
    let said: String = wrong
        .iter()
        .map(|text| format!("{text}\n  {}\n", read(text).unwrap_err()))
        .collect();
    insta::assert_snapshot!("sources", said);

    let places = |at: &str| {
        let text =
            format!("(revision: 1, mirrors: [(prefix: \"registry.example/\", at: [{at:?}])])");
        let name: ModelName = "registry.example/chat:1".parse().unwrap();
        let places = read(&text).unwrap().of(&name, &Credentials::default(), &[]);
        places
            .map(|places| places.place())
            .map_err(|error| chain(&error))
    };
    let seen = [
        "mirror.example/acme/",
        "https://files.example/heg/",
        "http://files.example/",
        "nowhere/",
    ]
    .map(|at| format!("{at}\n  {:?}\n", places(at)));
    insta::assert_snapshot!("mirrors", seen.concat());
}
