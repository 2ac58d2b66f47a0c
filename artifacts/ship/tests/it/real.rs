//! The real components: Debian's registry, and skopeo between it and a folder.

use std::path::Path;
use std::process::Command;

use heg_ship::{Credentials, Layout, ModelName, Registry};

use crate::bundles::{Content, Device, Told, bundle, id, name, open, skipped};
use crate::docker_registry::DockerRegistry;

fn registry_or_skip(test: &str, folder: &Path) -> Option<DockerRegistry> {
    match DockerRegistry::start(folder) {
        Ok(registry) => Some(registry),
        Err(error) => {
            let required = std::env::var_os("HEG_REQUIRE_REGISTRY").is_some();
            assert!(!required, "{test}: docker-registry: {error}");
            skipped(&format!("{test}: no docker-registry (Debian has it)"));
            None
        }
    }
}

fn repository(name: &ModelName) -> Registry {
    Registry::new(name, Credentials::default(), &[]).unwrap()
}

#[test]
fn a_registry_takes_and_gives_what_changed() {
    let folder = tempfile::tempdir().unwrap();
    let test = "a_registry_takes_and_gives_what_changed";
    let Some(docker) = registry_or_skip(test, folder.path()) else {
        return;
    };
    let chat: ModelName = format!("{}/acme/chat:stable", docker.host).parse().unwrap();
    let registry = repository(&chat);
    let device = Device::trusting();
    let first = bundle(folder.path(), "one", &Content::default());
    let pushed = registry
        .push("stable", &[open(&first)], None, &Told::default())
        .unwrap();
    assert_eq!(pushed.moved_bytes, pushed.all_bytes);
    let again = registry
        .push("stable", &[open(&first)], None, &Told::default())
        .unwrap();
    assert_eq!((again.moved_bytes, again.index), (0, pushed.index));
    device.pull(&registry, &chat).unwrap().unwrap();
    device.has(&chat, &first);
    assert!(device.pull(&registry, &chat).unwrap().is_none());

    let other = Content {
        template: "{{ other }}".to_owned(),
        ..Content::default()
    };
    let second = bundle(folder.path(), "two", &other);
    registry
        .push("stable", &[open(&second)], None, &Told::default())
        .unwrap();
    let pulled = device.pull(&registry, &chat).unwrap().unwrap();
    device.has(&chat, &second);
    assert_eq!(pulled.changed_parts, ["head", "text"]);
    assert!(pulled.moved_bytes < 60_000, "{}", pulled.moved_bytes);

    let absent: ModelName = format!("{}/acme/nothing:stable", docker.host)
        .parse()
        .unwrap();
    let error = device.pull(&repository(&absent), &absent).unwrap_err();
    let expected = format!("there is no `acme/nothing:stable` at `{}`", docker.host);
    assert_eq!(error.to_string(), expected);
}

/// Copies of copies are the bundle, with all slices and with one.
#[test]
fn copies_by_skopeo_are_the_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let test = "copies_by_skopeo_are_the_bundle";
    let Some(docker) = registry_or_skip(test, folder.path()) else {
        return;
    };
    let chat: ModelName = format!("{}/acme/chat:stable", docker.host).parse().unwrap();
    let file = bundle(folder.path(), "one", &Content::default());
    repository(&chat)
        .push("stable", &[open(&file)], None, &Told::default())
        .unwrap();
    let from = format!("docker://{chat}");
    for (tag, all) in [("all", &["--all"][..]), ("one", &[])] {
        let layout = folder.path().join(tag);
        let mut skopeo = Command::new("skopeo");
        skopeo
            .args(["--insecure-policy", "copy", "--src-tls-verify=false"])
            .args(all);
        skopeo
            .arg(&from)
            .arg(format!("oci:{}:{tag}", layout.display()));
        let Ok(output) = skopeo.output() else {
            skipped(&format!("{test}: no skopeo (Debian has it)"));
            return;
        };
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let device = Device::trusting();
        let copied = name(&format!("h.example/chat:{tag}"));
        device
            .pull(&Layout::new(&layout), &copied)
            .unwrap()
            .unwrap();
        device.has(&copied, &file);
        assert_eq!(device.store.bundles().unwrap(), [id(&file)]);
    }
}
