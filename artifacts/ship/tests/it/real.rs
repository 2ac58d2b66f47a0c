//! The real components: Debian's registry, and skopeo between it and a folder.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use heg_ship::{BundleSource, Credentials, Digest, Layout, ModelName, Registry, ShipError};
use heg_trust::Word;

use crate::bundles::{Content, Device, Told, bundle, chain, id, name, open, skipped};
use crate::docker_registry::DockerRegistry;
use crate::signed::Publisher;

/// The program that was started; `None`, after saying so, where it is not installed and need not be.
pub(crate) fn or_skip<T>(test: &str, program: &str, started: std::io::Result<T>) -> Option<T> {
    match started {
        Ok(started) => Some(started),
        Err(error) => {
            let required = std::env::var_os("HEG_REQUIRE_REGISTRY").is_some();
            assert!(!required, "{test}: {program}: {error}");
            skipped(&format!("{test}: no {program} (Debian has it)"));
            None
        }
    }
}

fn registry_or_skip(test: &str, folder: &Path) -> Option<DockerRegistry> {
    or_skip(test, "docker-registry", DockerRegistry::start(folder))
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

/// A blob that one repository of a registry has is not sent to another.
#[test]
fn a_registry_mounts_what_a_sister_has() {
    let folder = tempfile::tempdir().unwrap();
    let test = "a_registry_mounts_what_a_sister_has";
    let Some(docker) = registry_or_skip(test, folder.path()) else {
        return;
    };
    let name = |text: &str| -> ModelName { format!("{}/{text}", docker.host).parse().unwrap() };
    let [chat, copy, empty] = ["acme/chat:v1", "beta/copy:v1", "acme/empty:v1"].map(name);
    let first = bundle(folder.path(), "one", &Content::default());
    let pushed = |to: &ModelName, file: &Path, sisters: &[ModelName]| {
        let registry = repository(to).mounting_from(sisters).unwrap();
        registry.push("v1", &[open(file)], None, &Told::default())
    };
    let sent = pushed(&chat, &first, &[]).unwrap();
    assert_eq!((sent.moved_bytes, sent.mounted_bytes), (sent.all_bytes, 0));
    let other = Content {
        template: "{{ other }}".to_owned(),
        ..Content::default()
    };
    let second = bundle(folder.path(), "two", &other);
    // Of the sisters one has nothing.
    let mounted = pushed(&copy, &second, &[empty.clone(), chat.clone()]).unwrap();
    assert!(mounted.moved_bytes < 60_000, "{}", mounted.moved_bytes);
    let both = mounted.moved_bytes + mounted.mounted_bytes;
    assert_eq!(both, mounted.all_bytes);
    let device = Device::trusting();
    device.pull(&repository(&copy), &copy).unwrap().unwrap();
    device.has(&copy, &second);

    let elsewhere = repository(&copy).mounting_from(&["h.example/chat".parse().unwrap()]);
    let error = elsewhere.err().unwrap().to_string();
    assert!(error.contains("a repository of the registry"), "{error}");
}

/// Copies with skopeo; `false`, after saying so, where it is not installed.
fn copied(test: &str, all: &[&str], from: &str, to: &str) -> bool {
    let mut skopeo = Command::new("skopeo");
    let plain = ["--src-tls-verify=false", "--dest-tls-verify=false"];
    skopeo.args(["--insecure-policy", "copy"]).args(plain);
    let output = skopeo.args(all).args([from, to]).output();
    let Some(output) = or_skip(test, "skopeo", output) else {
        return false;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    true
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
        if !copied(test, all, &from, &format!("oci:{}:{tag}", layout.display())) {
            return;
        }
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

/// The statement of a publisher is believed behind copies from registry to registry and to a folder, which change digests.
#[test]
fn copies_by_skopeo_are_signed() {
    let folder = tempfile::tempdir().unwrap();
    let test = "copies_by_skopeo_are_signed";
    let Some(docker) = registry_or_skip(test, folder.path()) else {
        return;
    };
    let Some(publisher) = Publisher::new(test) else {
        return;
    };
    let file = bundle(folder.path(), "one", &Content::default());
    let chat = name("h.example/chat:stable");
    let signed = publisher.release(&chat, 7, &[], &file);
    let origin: ModelName = format!("{}/acme/chat:stable", docker.host).parse().unwrap();
    let bundles = [open(&file)];
    repository(&origin)
        .push("stable", &bundles, Some(&signed), &Told::default())
        .unwrap();
    for (repository_name, all) in [("all", &["--all"][..]), ("one", &[])] {
        let second: ModelName = format!("{}/{repository_name}/chat:stable", docker.host)
            .parse()
            .unwrap();
        let layout = folder.path().join(repository_name);
        let to_layout = format!("oci:{}:stable", layout.display());
        let (from, to) = (format!("docker://{origin}"), format!("docker://{second}"));
        if !copied(test, all, &from, &to) {
            return;
        }
        copied(test, all, &to, &to_layout);
        let (second, layout) = (repository(&second), Layout::new(&layout));
        let sources: [&dyn BundleSource; 2] = [&second, &layout];
        for source in sources {
            let device = Device::with_policy(&publisher.policy(""));
            let pulled = device.pull(source, &chat).unwrap().unwrap();
            assert!(matches!(pulled.accepted.word, Word::Signed { .. }));
            assert_eq!(pulled.held.number, Some(7));
            device.has(&chat, &file);
        }
    }
}

/// A registry that lets nobody in without a login: it is read from Docker's file, and a wrong one is said to be.
#[test]
fn a_registry_with_logins_wants_them() {
    let folder = tempfile::tempdir().unwrap();
    let test = "a_registry_with_logins_wants_them";
    let users = folder.path().join("users");
    fs::write(&users, PASSWORDS).unwrap();
    let auth = format!(
        "auth: {{htpasswd: {{realm: heg, path: {}}}}}\n",
        users.display()
    );
    let started = DockerRegistry::start_with(folder.path(), &auth);
    let Some(docker) = or_skip(test, "docker-registry", started) else {
        return;
    };
    let host = &docker.host;
    let chat: ModelName = format!("{host}/acme/chat:stable").parse().unwrap();
    let as_user = |login: &str| {
        let path = folder.path().join("config.json");
        let auth = STANDARD.encode(login);
        let text = format!(r#"{{"auths": {{"{host}": {{"auth": "{auth}"}}}}}}"#);
        fs::write(&path, text).unwrap();
        Registry::new(&chat, Credentials::in_files(vec![path]), &[]).unwrap()
    };
    let file = bundle(folder.path(), "one", &Content::default());
    let push = |registry: Registry| {
        let bundles = [open(&file)];
        registry.push("stable", &bundles, None, &Told::default())
    };
    let refused = |error: ShipError| {
        let expected = format!("`{host}` does not let this user ");
        let text = chain(&error);
        assert!(text.starts_with(&expected), "{text}");
    };
    let device = Device::trusting();
    refused(push(repository(&chat)).unwrap_err());
    refused(push(as_user("ann:wrong")).unwrap_err());
    push(as_user("ann:correct horse")).unwrap();
    refused(device.pull(&repository(&chat), &chat).unwrap_err());
    refused(device.pull(&as_user("ann:wrong"), &chat).unwrap_err());
    let right = as_user("ann:correct horse");
    device.pull(&right, &chat).unwrap().unwrap();
    device.has(&chat, &file);
}

/// The line of `htpasswd -B` for the user `ann` of that test.
const PASSWORDS: &str = "ann:$2b$05$abcdefghijklmnopqrstuuHNbAKRhpaujgo33bRWs.NLUTJO3lOy2\n";

/// A bundle deleted at the registry is missed there, stays on devices, and comes back with the next push.
#[test]
fn what_a_registry_deleted_is_pushed_again() {
    let folder = tempfile::tempdir().unwrap();
    let test = "what_a_registry_deleted_is_pushed_again";
    let Some(docker) = registry_or_skip(test, folder.path()) else {
        return;
    };
    let chat: ModelName = format!("{}/acme/chat:stable", docker.host).parse().unwrap();
    let registry = repository(&chat);
    let file = bundle(folder.path(), "one", &Content::default());
    let bundles = [open(&file)];
    let push = || registry.push("stable", &bundles, None, &Told::default());
    let first = push().unwrap();
    let device = Device::trusting();
    device.pull(&registry, &chat).unwrap().unwrap();

    deleted(&docker, &format!("manifests/{}", first.index));
    let gone = device.pull(&registry, &chat).unwrap_err().to_string();
    let expected = format!("there is no `acme/chat:stable` at `{}`", docker.host);
    assert_eq!(gone, expected);
    device.has(&chat, &file);
    let again = push().unwrap();
    assert_eq!((again.moved_bytes, again.index), (0, first.index));

    // The part with the tokenizer: the longest layer.
    let tokenizer = longest_part(&registry);
    deleted(&docker, &format!("blobs/{tokenizer}"));
    let other = Device::trusting();
    let gone = other.pull(&registry, &chat).unwrap_err().to_string();
    let expected = format!("it names blob `{tokenizer}`, which is not there");
    assert!(gone.ends_with(&expected), "{gone}");
    let part = Content::default().tokenizer.len() as u64;
    let moved = push().unwrap().moved_bytes;
    assert_eq!(moved, part.next_multiple_of(4096), "that part alone");
    other.pull(&registry, &chat).unwrap().unwrap();
    other.has(&chat, &file);
}

/// The digest of the longest part behind `stable`, as a device finds it.
fn longest_part(registry: &Registry) -> Digest {
    let json = |bytes: Vec<u8>| serde_json::from_slice::<serde_json::Value>(&bytes).unwrap();
    let digest = |found: &serde_json::Value| found["digest"].as_str().unwrap().parse().unwrap();
    let index = json(registry.tagged("stable").unwrap());
    let manifest = json(registry.manifest(&digest(&index["manifests"][0])).unwrap());
    let layers = manifest["layers"].as_array().unwrap().iter();
    digest(layers.max_by_key(|it| it["size"].as_u64()).unwrap())
}

/// Deletes what is at a path of the repository, as a person does who tidies up there.
fn deleted(docker: &DockerRegistry, rest: &str) {
    let mut stream = TcpStream::connect(&docker.host).unwrap();
    let head = format!(
        "DELETE /v2/acme/chat/{rest} HTTP/1.1\r\nHost: {}\r\n",
        docker.host
    );
    write!(stream, "{head}Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
}
