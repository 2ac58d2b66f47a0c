//! Mirrors before a registry: what one does not give comes from the next, and a lie is no gift.

use heg_ship::{BundleSource, Credentials, ModelName, Sources};

use crate::bundles::{Device, chain};
use crate::lying::{Liar, Twist};
use crate::world::World;

/// Mirrors for all names of a registry, in this order.
fn sources(registry: &Liar, mirrors: &[String]) -> Sources {
    let text = format!(
        "(revision: 1, mirrors: [(prefix: \"{}/acme/\", at: {mirrors:?})])",
        registry.host
    );
    Sources::parse(&text, "sources.ron").unwrap()
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
