//! Bundles that turned out badly: no update takes them again unasked.

use std::path::{Path, PathBuf};

use heg_ship::{BadReason, Layout, Pull, PullOutcome, ShipError, export_layout};

use crate::bundles::{Content, Device, Told, bundle, id, name, open};

/// A name of a layout, whose releases are files.
struct Published {
    folder: tempfile::TempDir,
    layout: Layout,
}

impl Published {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(&folder.path().join("layout"));
        Self { folder, layout }
    }

    /// Publishes a bundle with this template in place of the one before.
    fn release(&self, template: &str) -> PathBuf {
        let content = Content {
            template: template.to_owned(),
            ..Content::default()
        };
        let file = bundle(self.folder.path(), template, &content);
        let layout = self.folder.path().join("layout");
        export_layout(&layout, "stable", &[open(&file)], None, &Told::default()).unwrap();
        file
    }

    /// An update, after which the new kernels are right or wrong.
    fn update(&self, device: &Device, right: bool) -> String {
        let chat = name("h.example/chat:stable");
        let examine = |_: &Path| match right {
            true => Ok(()),
            false => Err(ShipError::Kept {
                name: "chat".to_owned(),
                reason: "wrong".to_owned(),
            }),
        };
        let outcome = device.with(&chat, |pull| {
            let update = Pull {
                examine: &examine,
                takes_bad: false,
                ..*pull
            };
            update.from_source(&self.layout, "stable")
        });
        match outcome {
            Ok(PullOutcome::Pulled(_)) => "pulled".to_owned(),
            Ok(PullOutcome::Unchanged) => "unchanged".to_owned(),
            Ok(PullOutcome::PassedOver(bad)) => format!("passed over, since {}", bad.reason),
            Err(error) => error.to_string(),
        }
    }
}

#[test]
fn wrong_answers_are_remembered_until_a_person_asks() {
    let (published, device) = (Published::new(), Device::trusting());
    let chat = name("h.example/chat:stable");
    let first = published.release("one");
    assert_eq!(published.update(&device, true), "pulled");
    let second = published.release("two");
    let kept = "`chat` stands for what it stood for: wrong";
    assert_eq!(published.update(&device, false), kept);
    device.has(&chat, &first);
    let parts = device.files("parts");
    device.store.prune(&|| ()).unwrap();
    assert!(device.files("parts") < parts, "the bad one is garbage");

    // Even where its kernels would answer right now, and nothing is fetched to find out.
    let passed = "passed over, since its kernels gave wrong answers on this machine";
    let parts = device.files("parts");
    for _ in 0..2 {
        assert_eq!(published.update(&device, true), passed);
    }
    assert_eq!(device.files("parts"), parts);
    device.has(&chat, &first);

    // The next release is none of it; nor is the bad one forgotten, until somebody asks for it.
    published.release("three");
    assert_eq!(published.update(&device, true), "pulled");
    published.release("two");
    assert_eq!(published.update(&device, true), passed);
    device.pull(&published.layout, &chat).unwrap().unwrap();
    device.has(&chat, &second);
    let record = device.store.name(&chat).unwrap().unwrap();
    assert_eq!(record.bad, []);
    assert_eq!(published.update(&device, true), "unchanged");
}

#[test]
fn what_was_rolled_back_from_does_not_come_back() {
    let (published, device) = (Published::new(), Device::trusting());
    let chat = name("h.example/chat:stable");
    let first = published.release("one");
    published.update(&device, true);
    let second = published.release("two");
    published.update(&device, true);
    device.store.roll_back(&chat).unwrap();
    device.has(&chat, &first);
    let passed = "passed over, since it was rolled back from";
    assert_eq!(published.update(&device, true), passed);
    let record = device.store.name(&chat).unwrap().unwrap();
    let bad = record.bad(id(&second)).unwrap();
    assert_eq!((bad.reason, record.bad.len()), (BadReason::RolledBack, 1));

    // There again is no verdict on the one that the name leaves.
    device.store.roll_back(&chat).unwrap();
    device.has(&chat, &second);
    assert_eq!(device.store.name(&chat).unwrap().unwrap().bad, []);
    assert_eq!(published.update(&device, true), "unchanged");
    device.store.roll_back(&chat).unwrap();
    let third = published.release("three");
    assert_eq!(published.update(&device, true), "pulled");
    device.has(&chat, &third);
}

/// A record from before there were marks is read, and one without marks is written as it was.
#[test]
fn a_record_without_marks_is_as_before() {
    let (published, device) = (Published::new(), Device::trusting());
    published.release("one");
    published.update(&device, true);
    let record = device.store.path().join("names");
    let file = std::fs::read_dir(record).unwrap().next().unwrap().unwrap();
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert!(!text.contains("bad"), "{text}");
    assert_eq!(published.update(&device, true), "unchanged");
}

/// Of an endless line of bad releases the oldest are forgotten.
#[test]
fn marks_have_a_bound() {
    let (published, device) = (Published::new(), Device::trusting());
    let chat = name("h.example/chat:stable");
    published.release("one");
    published.update(&device, true);
    let record = device
        .store
        .path()
        .join("names/h.example%2Fchat%3Astable.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    let bundle = |number: usize| blake3::hash(&number.to_le_bytes()).to_string();
    let marks = (0..150).map(|number| {
        serde_json::json!({"bundle": bundle(number), "number": number, "reason": "wrong-answers"})
    });
    json["bad"] = marks.collect();
    std::fs::write(&record, json.to_string()).unwrap();
    published.release("two");
    published.update(&device, false);
    let marks = device.store.name(&chat).unwrap().unwrap().bad;
    assert_eq!(marks.len(), 100);
    assert_eq!(marks[1].number, Some(0));
}
