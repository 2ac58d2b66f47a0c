//! Compiles that cannot finish: interrupted, on a full disk, into a read-only folder. Nothing is left at the bundle's
//! place, an earlier bundle stays, and a later compile continues from the encoded objects.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use heg_compiler::{CompileOptions, Phase, Places, Progress, Silent, Target, compile};
use heg_tests::model_folder::ModelFolder;
use heg_tests::{Workbench, chain, files_below, fixture, left_behind};

/// Unwinds at a certain progress of a phase, as if the process was interrupted there.
struct InterruptAt {
    phase: Phase,
    bytes: u64,
    done: AtomicU64,
    there: AtomicBool,
}

impl Progress for InterruptAt {
    fn begin(&self, phase: Phase, _total_bytes: u64) {
        self.done.store(0, Ordering::Relaxed);
        if phase == self.phase && self.bytes == 0 {
            resume_unwind(Box::new("interrupted"));
        }
        self.there.store(phase == self.phase, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if self.there.load(Ordering::Relaxed) && done >= self.bytes {
            resume_unwind(Box::new("interrupted"));
        }
    }

    fn note(&self, _text: &str) {}
}

/// Compiles tiny-agent until it is interrupted.
fn interrupt(workbench: &Workbench, model: &Path, phase: Phase, bytes: u64) {
    let target = Target::read(model).unwrap();
    let progress = InterruptAt {
        phase,
        bytes,
        done: AtomicU64::new(0),
        there: AtomicBool::new(false),
    };
    let places = workbench.places("tiny-agent");
    let result = catch_unwind(AssertUnwindSafe(|| {
        compile(&target, &places, &CompileOptions::default(), &progress)
    }));
    assert!(result.is_err(), "{phase:?} was not interrupted");
}

/// Objects of encoded weights and of known answers, with their inodes: no later run should write them again.
fn encoded(workbench: &Workbench) -> BTreeMap<PathBuf, u64> {
    let store = workbench.path("store/recipes");
    let recipes = files_below(&store).unwrap_or_default();
    let objects = recipes.iter().flat_map(|recipe| {
        let text = fs::read_to_string(store.join(recipe)).unwrap();
        let ids = text
            .lines()
            .filter_map(|line| Some(line.split_once(' ')?.0.to_owned()));
        ids.filter(|id| id.len() == 64).collect::<Vec<_>>()
    });
    objects
        .map(|id| {
            let path = workbench.path("store/blake3").join(&id[..2]).join(&id);
            let inode = fs::metadata(&path).unwrap().ino();
            (path, inode)
        })
        .collect()
}

/// Removes half of the recipes: threads that are at work when one unwinds run to the end, and this is the state after a
/// kill.
fn forget_half(workbench: &Workbench) {
    let store = workbench.path("store/recipes");
    for recipe in files_below(&store).unwrap().into_iter().step_by(2) {
        fs::remove_file(store.join(recipe)).unwrap();
    }
}

#[test]
fn an_interrupted_compile_leaves_nothing_and_is_resumed() {
    let reference = Workbench::new().unwrap();
    let model = fixture("tiny-agent");
    let (expected, _) = reference.compile(&model, "tiny-agent", |_| {}).unwrap();
    let expected = fs::read(expected).unwrap();
    let all = encoded(&reference).len();
    for (phase, bytes, encoded_min) in [
        (Phase::Ingest, 0, 0),
        (Phase::Lower, 0, 0),
        (Phase::Encode, 0, 0),
        (Phase::Encode, 1_000_000, 5),
        (Phase::Encode, 4_000_000, 30),
        (Phase::Answer, 0, 30),
        (Phase::Answer, 1_000_000, 30),
        (Phase::Bundle, 0, all),
        (Phase::Bundle, 1_000_000, all),
    ] {
        let name = format!("{phase:?} at {bytes} bytes");
        let workbench = Workbench::new().unwrap();
        interrupt(&workbench, &model, phase, bytes);
        assert_eq!(left_behind(&workbench), "", "{name}");
        if phase == Phase::Encode {
            forget_half(&workbench);
        }
        let before = encoded(&workbench);
        assert!(before.len() >= encoded_min, "{name}: {}", before.len());
        let (bundle, _) = workbench.compile(&model, "tiny-agent", |_| {}).unwrap();
        assert!(fs::read(bundle).unwrap() == expected, "{name}");
        let after = encoded(&workbench);
        for (object, inode) in &before {
            let again = after[object] != *inode;
            assert!(!again, "{name}: encoded again: {}", object.display());
        }
        println!("{name}: {} of {all} were there", before.len());
    }
}

#[test]
fn a_failed_compile_leaves_the_earlier_bundle() {
    let workbench = Workbench::new().unwrap();
    let folder = workbench.path("models/tiny-agent");
    let model = ModelFolder::copy(&fixture("tiny-agent"), &folder).unwrap();
    let (bundle, _) = workbench.compile(&folder, "tiny-agent", |_| {}).unwrap();
    let before = fs::read(&bundle).unwrap();
    let nan = |bytes: &mut [u8]| bytes[..2].copy_from_slice(&0x7fc0_u16.to_le_bytes());
    model.change_tensor("model.norm.weight", nan).unwrap();
    let error = workbench
        .compile(&folder, "tiny-agent", |_| {})
        .unwrap_err();
    assert!(error.to_string().contains("`model.norm.weight`"), "{error}");
    interrupt(&workbench, &fixture("tiny-agent"), Phase::Lower, 0);
    assert!(fs::read(&bundle).unwrap() == before);
    assert_eq!(left_behind(&workbench), "\nleft behind: tiny-agent.heg");
}

/// A separate file system of a few pages; unmounted at the end.
struct Mount(PathBuf);

impl Mount {
    /// Mounts it; `None` if this process may not mount.
    fn new(folder: PathBuf, options: &str) -> Option<Self> {
        fs::create_dir_all(&folder).unwrap();
        let mount = Self(folder);
        mount.run("mount", &["-t", "tmpfs", "-o", options, "tmpfs"])?;
        Some(mount)
    }

    fn change(&self, options: &str) -> Option<()> {
        self.run("mount", &["-o", &format!("remount,{options}")])
    }

    fn run(&self, command: &str, arguments: &[&str]) -> Option<()> {
        let output = Command::new(command).args(arguments).arg(&self.0).output();
        output
            .is_ok_and(|output| output.status.success())
            .then_some(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.run("umount", &[]);
    }
}

/// Compiles tiny-agent to given places and describes the refusal, without the parts that differ from run to run.
fn refusal(workbench: &Workbench, places: &Places) -> String {
    let target = Target::read(&fixture("tiny-agent")).unwrap();
    let text = match compile(&target, places, &CompileOptions::default(), &Silent) {
        Err(error) => chain(&error, workbench.folder()),
        Ok(_) => "compiled".to_owned(),
    };
    let own = format!("{}-", std::process::id());
    let mut pieces = text.split(&own);
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| {
        text + "[process]-[n]" + piece.trim_start_matches(|c: char| c.is_ascii_digit())
    })
}

#[test]
fn a_full_disk_is_reported_and_gets_no_rubbish() {
    let workbench = Workbench::new().unwrap();
    let Some(small) = Mount::new(workbench.path("small"), "size=256k") else {
        heg_tests::skipped("a_full_disk_is_reported_and_gets_no_rubbish (cannot mount a tmpfs)");
        return;
    };
    let bundle_there = Places {
        bundle: workbench.path("small/tiny-agent.heg"),
        store: workbench.path("store"),
    };
    let store_there = Places {
        bundle: workbench.path("tiny-agent.heg"),
        store: workbench.path("small/store"),
    };
    let mut text = String::new();
    for (name, places) in [("bundle", &bundle_there), ("store", &store_there)] {
        text.push_str(&format!(
            "# no room for the {name}\n{}\n\n",
            refusal(&workbench, places)
        ));
        assert!(!places.bundle.exists());
        let left = files_below(&workbench.path("small")).unwrap();
        let kept = |file: &PathBuf| file.starts_with("store") && !file.starts_with("store/tmp");
        assert!(left.iter().all(kept), "{name}: {left:?}");
    }
    insta::assert_snapshot!("full_disk", text);
    small.change("size=64m").unwrap();
    let target = Target::read(&fixture("tiny-agent")).unwrap();
    for places in [bundle_there, store_there] {
        compile(&target, &places, &CompileOptions::default(), &Silent).unwrap();
    }
}

#[test]
fn places_that_cannot_be_written() {
    let workbench = Workbench::new().unwrap();
    let places = |bundle: &str, store: &str| Places {
        bundle: workbench.path(bundle),
        store: workbench.path(store),
    };
    fs::write(workbench.path("file"), "").unwrap();
    fs::create_dir_all(workbench.path("folder.heg/full")).unwrap();
    let mut text = String::new();
    for (name, places) in [
        (
            "the bundle's folder is a file",
            places("file/x.heg", "store"),
        ),
        ("the bundle is a folder", places("folder.heg", "store")),
        ("the store is a file", places("x.heg", "file")),
    ] {
        text.push_str(&format!("# {name}\n{}\n\n", refusal(&workbench, &places)));
        assert_eq!(left_behind(&workbench), "\nleft behind: file", "{name}");
    }
    insta::assert_snapshot!("unwritable_places", text);
}

#[test]
fn a_read_only_folder() {
    let workbench = Workbench::new().unwrap();
    let folder = workbench.path("read-only");
    fs::create_dir(&folder).unwrap();
    // Root may write whatever the permissions are: as root the test needs a file system.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    let mount = if fs::write(folder.join("probe"), "").is_ok() {
        let mount = Mount::new(folder.clone(), "ro");
        if mount.is_none() {
            heg_tests::skipped("a_read_only_folder (permissions do not hold, and cannot mount)");
            return;
        }
        mount
    } else {
        None
    };
    let places = Places {
        bundle: folder.join("tiny-agent.heg"),
        store: workbench.path("store"),
    };
    let refusal = refusal(&workbench, &places);
    let expected =
        "error: cannot create `[folder]/read-only/.tiny-agent.heg.tmp-[process]-[n]`\ncaused by: ";
    assert!(refusal.starts_with(expected), "{refusal}");
    assert_eq!(left_behind(&workbench), "");
    drop(mount);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
}
