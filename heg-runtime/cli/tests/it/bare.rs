//! `heg` on a root file system that has nothing but it and the libraries that its Debian package declares: no compiler, no
//! Python, no OpenVINO, no shell. With `HEG_DIST`, the folder that `cargo xtask dist` wrote, it is that of the archive; the
//! static one, a program in C and the Python wheel are tried too, each on a root of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use heg_tests::{Workbench, fixture, skipped};

use crate::bare_root::{BareRoot, DECLARED, libraries, python};
use crate::docker_registry::DockerRegistry;
use crate::registry::registry_or_skip;

/// A registry with a bundle, and a folder for roots.
struct World {
    folder: tempfile::TempDir,
    /// Name of the bundle.
    name: String,
    _docker: DockerRegistry,
}

impl World {
    /// `None`, after saying so, without a registry or user namespaces.
    fn or_skip(test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let docker = registry_or_skip(test, folder.path())?;
        let probe = BareRoot::new(&folder.path().join("probe"));
        probe.put_program(env!("CARGO_BIN_EXE_heg").as_ref(), "heg");
        if probe.run(&["/heg", "--version"]).is_err() {
            skipped(&format!("{test}: no user namespaces, or no unshare 2.38"));
            return None;
        }
        let name = format!("{}/acme/chat:stable", docker.host);
        let workbench = Workbench::new().unwrap();
        let compiled = workbench.compile(&fixture("tiny-agent"), "tiny-agent", |_| ());
        let bundle = compiled.unwrap().0;
        let mut push = Command::new(env!("CARGO_BIN_EXE_heg"));
        let pushed = push.arg("push").arg(bundle).arg(&name).output().unwrap();
        assert!(pushed.status.success(), "{pushed:?}");
        Some(Self {
            folder,
            name,
            _docker: docker,
        })
    }

    fn root(&self) -> BareRoot {
        BareRoot::new(&self.folder.path().join("root"))
    }

    /// Unpacks the archive of `HEG_DIST` whose name begins and ends like this.
    fn unpacked(&self, begin: &str, end: &str) -> PathBuf {
        let archive = dist_file(begin, end);
        let unpacked = self.folder.path().join(format!("{begin}{end}"));
        fs::create_dir(&unpacked).unwrap();
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(&archive).arg("-C").arg(&unpacked);
        let status = tar.arg("--strip-components=1").status().unwrap();
        assert!(status.success(), "cannot unpack {archive:?}");
        unpacked
    }

    /// Has `heg` of a root fetch the bundle.
    fn pull(&self, root: &BareRoot) {
        let pull = ["/heg", "pull", &self.name, "--allow-unsigned"];
        let pulled = root.run(&pull).unwrap();
        assert!(pulled.contains("nothing is left to hash"), "{pulled}");
    }

    /// Pulls and answers with a `heg` that needs nothing but its libraries.
    fn pulls_and_answers(&self, program: &Path) {
        let root = self.root();
        for library in root.put_program(program, "heg") {
            let name = library.file_name().unwrap().to_str().unwrap();
            assert!(DECLARED.contains(&name), "`{name}` is not declared");
        }
        self.pull(&root);
        let ask = ["/heg", "run", "chat", "--prompt", "Hello"];
        let ask = [&ask[..], &["--max-tokens", "1", "--temperature", "0"]].concat();
        in_time("heg", || root.run(&ask).unwrap());
        let doctor = root.run(&["/heg", "doctor", "chat", "--json"]).unwrap();
        assert!(doctor.contains("\"healthy\":true"), "{doctor}");
    }
}

/// The folder of `cargo xtask dist`.
fn dist() -> Option<PathBuf> {
    std::env::var_os("HEG_DIST").map(PathBuf::from)
}

/// The folder of `cargo xtask dist`, or a line that says that there is none.
fn dist_or_skip(test: &str) -> Option<PathBuf> {
    let dist = dist();
    if dist.is_none() {
        skipped(&format!(
            "{test}: HEG_DIST names no folder of `cargo xtask dist`"
        ));
    }
    dist
}

fn dist_file(begin: &str, end: &str) -> PathBuf {
    let listed = fs::read_dir(dist().unwrap()).unwrap();
    let mut found = listed.map(|entry| entry.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with(begin) && name.ends_with(end)
    });
    let found = found.next();
    assert!(found.is_some(), "HEG_DIST has no {begin}…{end}");
    found.unwrap()
}

/// Answers before the time is over, counted from the end of the pull.
fn in_time(what: &str, answer: impl FnOnce() -> String) {
    let started = Instant::now();
    let answer = answer();
    let first_token = started.elapsed();
    assert!(first_token < FIRST_TOKEN, "{what} took {first_token:?}");
    assert!(!answer.trim().is_empty(), "{what} says nothing");
    println!("{what}: first token {first_token:?} after the pull");
}

#[test]
fn a_machine_with_nothing_else_pulls_and_answers() {
    let Some(world) = World::or_skip("a_machine_with_nothing_else_pulls_and_answers") else {
        return;
    };
    let program = match dist() {
        Some(_) => world.unpacked("heg-", "-linux.tar.gz").join("heg"),
        None => env!("CARGO_BIN_EXE_heg").into(),
    };
    world.pulls_and_answers(&program);
}

#[test]
fn a_static_program_needs_no_library() {
    let test = "a_static_program_needs_no_library";
    let Some(world) = dist_or_skip(test).and_then(|_| World::or_skip(test)) else {
        return;
    };
    let program = world.unpacked("heg-", "-linux-musl.tar.gz").join("heg");
    assert_eq!(libraries(&program), [""; 0].map(PathBuf::from));
    world.pulls_and_answers(&program);
}

/// Built by the system's compiler against the header and the shared library of the archive, and carried to the root.
#[test]
fn a_program_in_c_answers() {
    let test = "a_program_in_c_answers";
    let Some(world) = dist_or_skip(test).and_then(|_| World::or_skip(test)) else {
        return;
    };
    let library = world.unpacked("libheg-", "-linux.tar.gz");
    let program = world.folder.path().join("program");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"]);
    compile.arg(library.join("include"));
    compile.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/first_token.c"));
    compile.arg("-L").arg(library.join("lib"));
    compile
        .args(["-lheg", "-Wl,-rpath,/lib", "-o"])
        .arg(&program);
    let compiled = compile.output().unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    let root = world.root();
    root.put_program(env!("CARGO_BIN_EXE_heg").as_ref(), "heg");
    let shared = library.join("lib/libheg.so.1");
    root.put_libraries(&libraries(&shared));
    // By both of its names, as in the archive.
    for name in ["lib/libheg.so", "lib/libheg.so.1"] {
        root.put(&shared, name);
    }
    root.put(&program, "program");
    world.pull(&root);
    root.run(&["/heg", "export", "chat", "--to", "chat.heg"])
        .unwrap();
    in_time("a program in C", || {
        root.run(&["/program", "chat.heg"]).unwrap()
    });
}

/// A machine with Python and pip alone: the wheel is installed there, by its file.
#[test]
fn the_wheel_answers_where_only_python_is() {
    let test = "the_wheel_answers_where_only_python_is";
    let Some(world) = dist_or_skip(test).and_then(|_| World::or_skip(test)) else {
        return;
    };
    let root = world.root();
    root.put_program(env!("CARGO_BIN_EXE_heg").as_ref(), "heg");
    let Some(python) = python(&root) else {
        return skipped(&format!("{test}: no python3 with pip"));
    };
    let wheel = dist_file("heg-", ".whl");
    let name = wheel.file_name().unwrap().to_str().unwrap();
    root.put(&wheel, &format!("root/{name}"));
    world.pull(&root);
    root.run(&["/heg", "export", "chat", "--to", "chat.heg"])
        .unwrap();
    let wheel = format!("./{name}");
    let install = [&python, "-m", "pip", "install", "--no-index", &wheel];
    let installed = root.run(&install).unwrap();
    assert!(
        installed.contains("Successfully installed heg"),
        "{installed}"
    );
    let program = "import heg\nwith heg.Engine('chat.heg') as engine:\n    \
                   print(engine.ask('Hello', max_tokens=1).text())\n";
    in_time("Python", || root.run(&[&python, "-c", program]).unwrap());
}

/// Longest time from the end of the pull to the first token.
const FIRST_TOKEN: Duration = Duration::from_secs(5);
