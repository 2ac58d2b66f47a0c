//! `heg` on a root file system that has nothing but it and the libraries that its Debian package declares: no compiler, no
//! Python, no OpenVINO, no shell. With `HEG_DIST_ARCHIVE` it is that of an archive of `cargo xtask dist`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use heg_tests::{Workbench, fixture, skipped};

use crate::registry::registry_or_skip;

/// A root file system in a folder.
struct BareRoot<'r> {
    folder: &'r Path,
}

impl<'r> BareRoot<'r> {
    /// Puts a program there with the libraries that it is linked with, and the folders of every Linux.
    fn new(folder: &'r Path, program: &Path) -> Self {
        for name in ["dev", "proc", "tmp", "root"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::write(folder.join("dev/null"), "").unwrap();
        fs::copy(program, folder.join("heg")).unwrap();
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.join("heg"), executable).unwrap();
        for library in libraries(program) {
            let place = folder.join(library.strip_prefix("/").unwrap());
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::copy(&library, place).unwrap();
        }
        Self { folder }
    }

    /// Runs `heg` in it, as root of a user namespace of its own; an error where the system allows no such thing.
    fn heg(&self, arguments: &[&str]) -> std::io::Result<Output> {
        let mut command = Command::new("unshare");
        command
            .args(["--map-root-user", "--mount", "--pid", "--fork"])
            .arg("--mount-proc=/proc")
            .arg(format!("--root={}", self.folder.display()))
            .args(["--wd=/root", "/heg"])
            .args(arguments);
        command
            .env_clear()
            .env("HOME", "/root")
            .env("PATH", "/usr/bin:/bin");
        command.output()
    }
}

/// The libraries that a program is linked with, and the loader, by their paths here.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text.split_whitespace();
    let paths: Vec<PathBuf> = words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect();
    let names: BTreeSet<_> = paths
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap())
        .collect();
    let mut undeclared = names.iter().filter(|name| !DECLARED.contains(*name));
    let undeclared = undeclared.next();
    assert_eq!(undeclared, None, "needs a library that is not declared");
    paths
}

/// Libraries of `libc6` and `libgcc-s1`, on which the Debian package depends.
const DECLARED: [&str; 7] = [
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
];

/// The program under test: that of an archive, or the one that was built with this test.
fn program(folder: &Path) -> PathBuf {
    let Some(archive) = std::env::var_os("HEG_DIST_ARCHIVE") else {
        return env!("CARGO_BIN_EXE_heg").into();
    };
    let unpacked = folder.join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).arg("-C").arg(&unpacked);
    tar.arg("--strip-components=1");
    let status = tar.status().unwrap();
    assert!(status.success(), "cannot unpack {archive:?}");
    unpacked.join("heg")
}

#[test]
fn a_machine_with_nothing_else_pulls_and_answers() {
    let test = "a_machine_with_nothing_else_pulls_and_answers";
    let folder = tempfile::tempdir().unwrap();
    let Some(docker) = registry_or_skip(test, folder.path()) else {
        return;
    };
    let root = folder.path().join("root");
    let bare = BareRoot::new(&root, &program(folder.path()));
    let probe = bare.heg(&["--version"]);
    if !probe.is_ok_and(|output| output.status.success()) {
        return skipped(&format!("{test}: no user namespaces, or no unshare 2.38"));
    }
    let name = format!("{}/acme/chat:stable", docker.host);
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
    let bundle = compiled.unwrap().0;
    let mut push = Command::new(env!("CARGO_BIN_EXE_heg"));
    let pushed = push.arg("push").arg(bundle).arg(&name).output().unwrap();
    assert!(pushed.status.success(), "{pushed:?}");

    let succeeds = |arguments: &[&str]| {
        let output = bare.heg(arguments).unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{arguments:?}: {out}{error}");
        (out, error)
    };
    let (pulled, _) = succeeds(&["pull", &name, "--allow-unsigned"]);
    assert!(pulled.contains("nothing is left to hash"), "{pulled}");
    let started = Instant::now();
    let ask = ["run", "chat", "--prompt", "Hello", "--max-tokens", "1"];
    succeeds(&[&ask[..], &["--temperature", "0"]].concat());
    let first_token = started.elapsed();
    assert!(first_token < FIRST_TOKEN, "took {first_token:?}");
    println!("first token {first_token:?} after the pull");

    let doctor = succeeds(&["doctor", "chat", "--json"]).0;
    assert!(doctor.contains("\"healthy\":true"), "{doctor}");
}

/// Longest time from the end of the pull to the first token.
const FIRST_TOKEN: Duration = Duration::from_secs(5);
