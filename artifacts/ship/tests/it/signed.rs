//! Signatures over whole transfers, made with the real minisign, and whose word counts.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use heg_ship::{Layout, ModelName, SignedChange, SignedRelease, Statement, export_layout};

use crate::bundles::{Content, Device, Told, bundle, chain, name, open, skipped};

/// A publisher with a key of minisign.
pub(crate) struct Publisher {
    folder: tempfile::TempDir,
    key: String,
}

impl Publisher {
    /// `None`, after saying so, where there is no minisign.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("minisign");
        command
            .current_dir(&folder)
            .args(["-G", "-W", "-p", "key.pub", "-s", "key.sec"]);
        let made = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !made.is_ok_and(|status| status.success()) {
            skipped(&format!("{test}: no minisign 0.11"));
            return None;
        }
        let text = fs::read_to_string(folder.path().join("key.pub")).unwrap();
        let key = text.lines().nth(1).unwrap().to_owned();
        Some(Self { folder, key })
    }

    pub(crate) fn policy(&self, more: &str) -> String {
        let key = &self.key;
        format!(
            r#"(revision: 1, publishers: [(names: ["h.example/*"], copies: ["m.example/*"], threshold: 1, keys: ["{key}"]{more})])"#
        )
    }

    pub(crate) fn release(
        &self,
        name: &ModelName,
        number: u64,
        withdrawn: &[u64],
        file: &Path,
    ) -> SignedRelease {
        let statement = Statement {
            name,
            number,
            version: "2026",
            valid_days: Some(30),
            withdrawn: BTreeSet::from_iter(withdrawn.iter().copied()),
        };
        let path = self.folder.path().join("release.json");
        fs::write(&path, statement.text(&[open(file)]).unwrap()).unwrap();
        let mut command = Command::new("minisign");
        command
            .current_dir(&self.folder)
            .args(["-S", "-s", "key.sec", "-m", "release.json"]);
        let signed = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
        assert!(signed.unwrap().success());
        SignedRelease::read(&path).unwrap()
    }
}

impl Publisher {
    /// The signature over a text, as a key service gives it.
    fn signature(&self, text: &[u8]) -> Vec<u8> {
        let path = self.folder.path().join("change");
        fs::write(&path, text).unwrap();
        let mut command = Command::new("minisign");
        command
            .current_dir(&self.folder)
            .args(["-S", "-s", "key.sec", "-m", "change"]);
        let signed = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
        assert!(signed.unwrap().success());
        fs::read(path.with_extension("minisig")).unwrap()
    }
}

struct World {
    folder: tempfile::TempDir,
    layout: PathBuf,
    files: [PathBuf; 2],
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = ["one", "two"].map(|template| {
            let content = Content {
                template: template.to_owned(),
                ..Content::default()
            };
            bundle(folder.path(), template, &content)
        });
        Self {
            layout: folder.path().join("layout"),
            files,
            folder,
        }
    }

    fn publish(&self, file: usize, signed: Option<&SignedRelease>) {
        let bundles = [open(&self.files[file])];
        export_layout(&self.layout, "stable", &bundles, signed, &Told::default()).unwrap();
    }
}

#[test]
fn a_signed_name_takes_newer_releases_and_no_other_word() {
    let Some(publisher) = Publisher::new("a_signed_name_takes_newer_releases_and_no_other_word")
    else {
        return;
    };
    let (world, chat) = (World::new(), name("h.example/chat:stable"));
    let device = Device::with_policy(&publisher.policy(""));
    let source = Layout::new(&world.layout);
    let pull = |name: &ModelName| match device.pull(&source, name) {
        Ok(Some(pulled)) => format!("release {:?}", pulled.held.number.unwrap()),
        Ok(None) => "unchanged".to_owned(),
        Err(error) => chain(&error),
    };
    let mut all = Vec::new();
    let mut step = |what: &str, outcome: String| all.push(format!("{what}: {outcome}"));
    let five = publisher.release(&chat, 5, &[], &world.files[0]);
    let six = publisher.release(&chat, 6, &[], &world.files[1]);
    let seven = publisher.release(&chat, 7, &[6], &world.files[0]);
    world.publish(0, None);
    step("unsigned", pull(&chat));
    world.publish(0, Some(&five));
    step("first", pull(&chat));
    step("again", pull(&chat));
    step("under another name", pull(&name("h.example/other:stable")));
    step("from a mirror", pull(&name("m.example/chat:stable")));
    world.publish(1, Some(&six));
    step("newer", pull(&chat));
    world.publish(0, Some(&five));
    step("an older one again", pull(&chat));
    device.has(&chat, &world.files[1]);
    let mut stolen = six.clone();
    stolen.release.push(b'\n');
    world.publish(1, Some(&stolen));
    step("a changed statement", pull(&chat));
    world.publish(0, None);
    step("no longer signed", pull(&chat));
    device.has(&chat, &world.files[1]);
    world.publish(0, Some(&seven));
    step("one that withdraws", pull(&chat));

    let opened = |name: &ModelName| {
        let held = device.store.name(name).unwrap().unwrap().now;
        match device.trust.at_open(&device.store, name, &held) {
            Ok(accepted) => format!("opened, {} warnings", accepted.warnings().len()),
            Err(error) => chain(&error),
        }
    };
    step("at start", opened(&chat));
    device.store.roll_back(&chat).unwrap();
    step("back to what was withdrawn", opened(&chat));
    let path = world.folder.path().display().to_string();
    insta::assert_snapshot!("word", all.join("\n").replace(&path, "FOLDER"));
}

/// The change of keys travels with the release, through files and layouts, and the store remembers it for other names.
#[test]
fn a_publisher_changes_its_keys() {
    let test = "a_publisher_changes_its_keys";
    let Some((old, new)) = Publisher::new(test).zip(Publisher::new(test)) else {
        return;
    };
    let (world, chat) = (World::new(), name("h.example/chat:stable"));
    let mail = name("h.example/mail:stable");
    let device = Device::with_policy(&old.policy(""));
    let source = Layout::new(&world.layout);
    let text = format!(
        r#"{{"heg": "keys/1", "names": ["h.example/*"], "serial": 1, "threshold": 1, "keys": ["{}"]}}"#,
        new.key
    );
    let change = SignedChange {
        signatures: vec![
            old.signature(text.as_bytes()),
            new.signature(text.as_bytes()),
        ],
        keys: text.into_bytes(),
    };
    world.publish(0, Some(&old.release(&chat, 1, &[], &world.files[0])));
    device.pull(&source, &chat).unwrap().unwrap();
    let mut second = new.release(&chat, 2, &[], &world.files[1]);
    world.publish(1, Some(&second));
    let refused = chain(&device.pull(&source, &chat).unwrap_err());
    assert!(refused.contains("`0` accepted keys"), "{refused}");
    // Without the new keys' signature, or with the release still signed by the old ones, no machine would follow.
    let half = SignedChange {
        signatures: vec![old.signature(&change.keys)],
        keys: change.keys.clone(),
    };
    let mut not_followed = second.clone();
    not_followed.changes.push(half);
    let mut not_turned = old.release(&chat, 2, &[], &world.files[1]);
    not_turned.changes.push(change.clone());
    let folder = world.folder.path().join("refused");
    let said = [not_followed, not_turned].map(|signed| {
        let bundles = [open(&world.files[1])];
        let pushed = export_layout(&folder, "v", &bundles, Some(&signed), &Told::default());
        chain(&pushed.unwrap_err())
    });
    assert!(
        said[0].contains("`0` new keys, expected `1`"),
        "{}",
        said[0]
    );
    assert!(
        said[1].contains("`0` accepted keys, expected `1`"),
        "{}",
        said[1]
    );
    second.changes.push(change);
    let path = world.folder.path().join("release.json");
    second.write(&path).unwrap();
    second = SignedRelease::read(&path).unwrap();
    world.publish(1, Some(&second));
    device.pull(&source, &chat).unwrap().unwrap();
    device.has(&chat, &world.files[1]);
    let held = device.store.name(&chat).unwrap().unwrap().now;
    device.trust.at_open(&device.store, &chat, &held).unwrap();
    // What the device hands on is followed by the next one, which has seen nothing.
    let kept = device
        .store
        .release(held.release.unwrap())
        .unwrap()
        .unwrap();
    assert_eq!(kept, second);
    let stick = world.folder.path().join("stick");
    let bundles = [open(&world.files[1])];
    export_layout(&stick, "stable", &bundles, Some(&kept), &Told::default()).unwrap();
    let next = Device::with_policy(&old.policy(""));
    next.pull(&Layout::new(&stick), &chat).unwrap().unwrap();

    world.publish(0, Some(&old.release(&mail, 1, &[], &world.files[0])));
    let refused = chain(&device.pull(&source, &mail).unwrap_err());
    assert!(refused.contains("`0` accepted keys"), "{refused}");
    world.publish(0, Some(&new.release(&mail, 1, &[], &world.files[0])));
    device.pull(&source, &mail).unwrap().unwrap();
}

/// Going back on purpose is not what an attacker does, and goes on to be allowed.
#[test]
fn a_name_goes_back_to_an_older_release() {
    let Some(publisher) = Publisher::new("a_name_goes_back_to_an_older_release") else {
        return;
    };
    let (world, chat) = (World::new(), name("h.example/chat:stable"));
    let device = Device::with_policy(&publisher.policy(""));
    let source = Layout::new(&world.layout);
    for (number, file) in [(1, 0), (2, 1)] {
        let signed = publisher.release(&chat, number, &[], &world.files[file]);
        world.publish(file, Some(&signed));
        device.pull(&source, &chat).unwrap();
    }
    let at_open = || {
        let held = device.store.name(&chat).unwrap().unwrap().now;
        device
            .trust
            .at_open(&device.store, &chat, &held)
            .map(|_| held.number)
    };
    assert_eq!(at_open().unwrap(), Some(2));
    device.store.roll_back(&chat).unwrap();
    assert_eq!(at_open().unwrap(), Some(1));
    device.store.roll_back(&chat).unwrap();
    assert_eq!(at_open().unwrap(), Some(2));
}

/// A slice that the statement does not list: its bundle is another.
#[test]
fn a_mixed_slice_is_refused() {
    let Some(publisher) = Publisher::new("a_mixed_slice_is_refused") else {
        return;
    };
    let (world, chat) = (World::new(), name("h.example/chat:stable"));
    let device = Device::with_policy(&publisher.policy(""));
    let of_other = publisher.release(&chat, 1, &[], &world.files[0]);
    let bundles = [open(&world.files[1])];
    let refused = export_layout(
        &world.layout,
        "stable",
        &bundles,
        Some(&of_other),
        &Told::default(),
    );
    assert!(chain(&refused.unwrap_err()).contains("release `1` does not name bundle `"));
    // A registry that puts the statement of one bundle before the layers of another.
    world.publish(0, Some(&of_other));
    swap_layers(&world);
    let error = chain(&device.pull(&Layout::new(&world.layout), &chat).unwrap_err());
    assert!(
        error.contains("has bundle `") && error.contains("under the name of"),
        "{error}"
    );
    assert_eq!(device.files("names"), 0);
}

/// Gives the published manifest the layers of the other bundle, with digests that are right.
fn swap_layers(world: &World) {
    let json = |path: PathBuf| -> serde_json::Value {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    };
    let blob = |digest: &serde_json::Value| {
        let hex = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
        world.layout.join("blobs/sha256").join(hex)
    };
    let manifest_of = |tag: &str| {
        let index = json(world.layout.join("index.json"));
        let entries = index["manifests"].as_array().unwrap().clone();
        let is = |entry: &&serde_json::Value| {
            entry["annotations"]["org.opencontainers.image.ref.name"] == tag
        };
        let entry = entries.iter().find(is).unwrap().clone();
        json(blob(
            &json(blob(&entry["digest"]))["manifests"][0]["digest"],
        ))
    };
    let other = [open(&world.files[1])];
    export_layout(&world.layout, "other", &other, None, &Told::default()).unwrap();
    let (mut mixed, other) = (manifest_of("stable"), manifest_of("other"));
    let layers = mixed["layers"].as_array_mut().unwrap();
    layers.retain(|layer| {
        layer["annotations"]["heg.part"].is_null()
            && layer["annotations"]["org.cncf.model.filepath"] != "blocks"
    });
    layers.extend(other["layers"].as_array().unwrap().clone());
    // As the manifest under the tag, which a registry may change as it likes.
    let text = serde_json::to_vec(&mixed).unwrap();
    let digest = heg_ship::Digest::of(&text);
    fs::write(world.layout.join("blobs/sha256").join(digest.hex()), &text).unwrap();
    let mut index = json(world.layout.join("index.json"));
    index["manifests"] = serde_json::json!([{
        "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest.to_string(), "size": text.len(),
        "annotations": {"org.opencontainers.image.ref.name": "stable"}
    }]);
    fs::write(world.layout.join("index.json"), index.to_string()).unwrap();
}
