//! Updates on a machine whose kernels give other answers than the bundle says, and after somebody went back.

use std::path::{Path, PathBuf};

use heg_artifacts::manifest::Manifest;
use heg_artifacts::{Bundle, Store, write_bundle};
use heg_tests::{Workbench, fixture};

use crate::registry::{heg_with_store, registry_or_skip};

/// A machine, the registry that it asks, and the names that differ from run to run.
struct Machine<'m> {
    folder: &'m Path,
    host: &'m str,
    told: Vec<(String, &'static str)>,
}

impl Machine<'_> {
    /// Runs `heg`; returns its exit status and what it printed.
    fn heg(&self, arguments: &[&str]) -> String {
        let output = heg_with_store(self.folder)
            .args(arguments)
            .output()
            .unwrap();
        let mut text = format!("$ heg {}\n", arguments.join(" "));
        text.push_str(&String::from_utf8(output.stdout).unwrap());
        text.push_str(&String::from_utf8(output.stderr).unwrap());
        text.push_str(&format!("exit status {}\n", output.status.code().unwrap()));
        for (found, shown) in &self.told {
            text = text.replace(found, shown);
        }
        text.replace(self.host, "HOST")
            .replace(&self.folder.display().to_string(), "FOLDER")
    }

    /// Publishes a bundle as `chat:stable`.
    fn publish(&mut self, bundle: &Path, shown: &'static str) {
        let id = Bundle::open(bundle).unwrap().manifest_id();
        self.told.push((id.to_string(), shown));
        self.told.push((id.short().to_string(), shown));
        let name = format!("{}/acme/chat:stable", self.host);
        let pushed = self.heg(&["push", bundle.to_str().unwrap(), &name, "--json"]);
        assert!(pushed.ends_with("exit status 0\n"), "{pushed}");
    }

    /// Asks for updates, without the lines that say how long they took.
    fn update(&self) -> String {
        let text = self.heg(&["update", "--allow-unsigned"]);
        let lines = text.lines().filter(|line| !line.starts_with("pulled "));
        lines.collect::<Vec<_>>().join("\n") + "\n"
    }
}

/// Writes a bundle anew, with sections and a manifest that are a little different.
pub(crate) fn altered(
    bundle: &Path,
    to: &Path,
    alter: fn(&mut Manifest, &Bundle, &Store),
) -> PathBuf {
    let whole = Bundle::open(bundle).unwrap();
    let store = Store::open(to.with_extension("store")).unwrap();
    for section in &whole.manifest().sections {
        store.put_bytes(whole.section(section.id).unwrap()).unwrap();
    }
    let mut manifest = whole.manifest().clone();
    alter(&mut manifest, &whole, &store);
    write_bundle(to, &manifest, &store, &|_| ()).unwrap();
    to.to_owned()
}

/// Kernels of this machine seem to compute wrongly: the last one's known answer is another.
fn other_answer(manifest: &mut Manifest, bundle: &Bundle, store: &Store) {
    let answer = manifest.head.answer.unwrap();
    let values = bundle.section(answer).unwrap().chunks_exact(4);
    let values = values.map(|value| 2.0 * f32::from_le_bytes(value.try_into().unwrap()) + 1.0);
    let doubled: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    let section = store.put_bytes(&doubled).unwrap();
    manifest.sections.retain(|section| section.id != answer);
    manifest.head.answer = Some(section.id);
    manifest.sections.push(section);
}

fn other_name(manifest: &mut Manifest, _: &Bundle, _: &Store) {
    manifest.model.name = "tiny-agent-3".to_owned();
}

#[test]
fn a_bad_release_is_not_taken_twice() {
    let test = "a_bad_release_is_not_taken_twice";
    let folder = tempfile::tempdir().unwrap();
    let Some(docker) = registry_or_skip(test, folder.path()) else {
        return;
    };
    let mut machine = Machine {
        folder: folder.path(),
        host: &docker.host,
        told: Vec::new(),
    };
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
    let first = compiled.unwrap().0;
    let path = |name: &str| folder.path().join(name);
    let second = altered(&first, &path("second.heg"), other_answer);
    let third = altered(&first, &path("third.heg"), other_name);

    let name = format!("{}/acme/chat:stable", docker.host);
    machine.publish(&first, "FIRST");
    machine.heg(&["pull", &name, "--allow-unsigned"]);
    machine.publish(&second, "SECOND");
    let mut seen = machine.update();
    seen.push_str(&machine.update());
    seen.push_str(&machine.heg(&["update", "--json"]));
    machine.publish(&third, "THIRD");
    seen.push_str(&machine.update());
    seen.push_str(&machine.heg(&["rollback", "chat"]));
    seen.push_str(&machine.update());
    let ran = machine.heg(&["run", "chat", "--prompt", "Hello", "--max-tokens", "4"]);
    assert!(ran.ends_with("exit status 0\n"), "{ran}");
    seen.push_str(&machine.heg(&["rollback", "chat"]));
    seen.push_str(&machine.update());
    insta::assert_snapshot!(seen);
}
