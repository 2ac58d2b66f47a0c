//! A root file system in a folder, with what a test puts there and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A root file system in a folder.
pub(crate) struct BareRoot {
    folder: PathBuf,
}

impl BareRoot {
    /// One with the folders of every Linux.
    pub(crate) fn new(folder: &Path) -> Self {
        for name in ["dev", "proc", "tmp", "root"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::write(folder.join("dev/null"), "").unwrap();
        Self {
            folder: folder.to_owned(),
        }
    }

    /// Copies a file there, which may be run.
    pub(crate) fn put(&self, file: &Path, place: &str) {
        let place = self.folder.join(place.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(file, &place).unwrap();
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Copies a program there with the libraries that it is linked with, which are returned.
    pub(crate) fn put_program(&self, program: &Path, place: &str) -> Vec<PathBuf> {
        self.put(program, place);
        let libraries = libraries(program);
        self.put_libraries(&libraries);
        let mut glibc = libraries.iter().filter(|path| path.ends_with("libc.so.6"));
        if let Some(folder) = glibc.next().and_then(|path| path.parent()) {
            self.put_rest_of_glibc(folder);
        }
        libraries
    }

    /// Copies those libraries of glibc that are empty since version 2.34, which no program of this system is linked with, but
    /// each system has for older ones.
    fn put_rest_of_glibc(&self, folder: &Path) {
        let names = [
            "libdl.so.2",
            "libpthread.so.0",
            "librt.so.1",
            "libutil.so.1",
        ];
        let there = names.map(|name| folder.join(name)).into_iter();
        self.put_libraries(&there.filter(|path| path.exists()).collect::<Vec<_>>());
    }

    /// Copies libraries to where they are here.
    pub(crate) fn put_libraries(&self, libraries: &[PathBuf]) {
        for library in libraries {
            self.put(library, library.to_str().unwrap());
        }
    }

    /// Runs a program in it, as root of a user namespace of its own. Returns its output, or, where it fails or the system
    /// allows no such thing, all that was said.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new("unshare");
        command
            .args(["--map-root-user", "--mount", "--pid", "--fork"])
            .arg("--mount-proc=/proc")
            .arg(format!("--root={}", self.folder.display()))
            .arg("--wd=/root")
            .args(arguments);
        command
            .env_clear()
            .env("HOME", "/root")
            .env("PATH", "/usr/bin:/bin");
        let output = command.output().map_err(|error| error.to_string())?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        match output.status.success() {
            true => Ok(out),
            false => Err(format!("{arguments:?}: {out}{error}")),
        }
    }
}

/// The libraries that a program is linked with, and the loader, by their paths here; none for a static one.
pub(crate) fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text.split_whitespace();
    let words = words.filter(|word| word.starts_with('/') && !word.ends_with(':'));
    words.map(PathBuf::from).collect()
}

/// Puts this machine's Python there with its standard library, what that is linked with, and pip. Returns the program's
/// path; `None` without a Python with pip.
pub(crate) fn python(root: &BareRoot) -> Option<String> {
    let mut ask = Command::new("python3");
    let script = "import sys, sysconfig, pip, os\nprint(os.path.realpath(sys.executable))\n\
                  print(sysconfig.get_path('stdlib'))\nprint(pip.__path__[0])";
    let output = ask.args(["-c", script]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut lines = text.lines();
    let [executable, library, pip] = [lines.next()?, lines.next()?, lines.next()?];
    root.put_program(executable.as_ref(), executable);
    let mut needed = BTreeSet::new();
    for folder in [library, pip] {
        put_folder(root, folder.as_ref(), &mut needed);
    }
    root.put_libraries(&needed.into_iter().collect::<Vec<_>>());
    Some(executable.to_owned())
}

/// Copies a folder to where it is here, but for tests and for packages that were installed. Adds the libraries that its
/// modules are linked with.
fn put_folder(root: &BareRoot, folder: &Path, needed: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if LEFT_OUT.contains(&name) || name.starts_with("config-") {
            continue;
        }
        if path.is_dir() {
            put_folder(root, &path, needed);
            continue;
        }
        root.put(&path, path.to_str().unwrap());
        if name.ends_with(".so") {
            needed.extend(libraries(&path));
        }
    }
}

/// Folders of Python that no program needs, or that are not the machine's own.
const LEFT_OUT: [&str; 7] = [
    "__pycache__",
    "dist-packages",
    "ensurepip",
    "idlelib",
    "site-packages",
    "test",
    "tkinter",
];

/// Libraries of `libc6` and `libgcc-s1`, on which the Debian package depends.
pub(crate) const DECLARED: [&str; 7] = [
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
];
