//! A release: the binaries that go in, and the files that come out.

use super::archive::{Compression, Content, Entry, tar_gz, zip};
use super::glibc::Glibc;
use super::{debian, wheel};
use crate::workspace;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Version and target of a release.
#[derive(Debug, Clone)]
pub struct Shipment {
    /// The version of the workspace.
    pub version: String,
    /// The time of the commit, in seconds since 1970.
    pub epoch: u64,
}

impl Shipment {
    /// The release of this checkout: its version, and `SOURCE_DATE_EPOCH` or the time of its commit.
    ///
    /// # Errors
    ///
    /// Without a git work tree there is no time.
    pub fn of_checkout() -> Result<Self> {
        let told = std::env::var("SOURCE_DATE_EPOCH");
        let time = told.or_else(|_| {
            let mut command = Command::new("git");
            command.args(["log", "-1", "--format=%ct"]);
            workspace::capture(command.current_dir(workspace::root()), "git log")
        })?;
        let epoch = time.trim().parse();
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: epoch.with_context(|| format!("expected a time in seconds, found `{time}`"))?,
        })
    }
}

/// The binaries that go in.
pub struct Binaries {
    pub(super) heg: Vec<u8>,
    pub(super) hegc: Vec<u8>,
    pub(super) libheg: Vec<u8>,
    /// The static library, if there is one.
    pub(super) libheg_static: Option<Vec<u8>>,
    /// `heg` without a library of the system, if it was built.
    pub(super) heg_static: Option<Vec<u8>>,
    /// `heg` for Windows, if it was built.
    pub(super) heg_windows: Option<Vec<u8>>,
}

impl Binaries {
    /// Reads the binaries of a folder.
    ///
    /// # Errors
    ///
    /// A file that is missing is named.
    pub fn read(folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))
        };
        Ok(Self {
            heg: read("heg")?,
            hegc: read("hegc")?,
            libheg: read("libheg.so")?,
            libheg_static: read("libheg.a").ok(),
            heg_static: read(STATIC_HEG).ok(),
            heg_windows: read(WINDOWS_HEG).ok(),
        })
    }
}

/// The licences of dependencies, which differ from system to system.
pub(super) struct Licences {
    pub(super) linux: String,
    pub(super) windows: String,
}

/// A file that comes out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// Makes the files of a release, in the order of their names.
pub(super) fn files(
    release: &Shipment,
    binaries: &Binaries,
    pages: &[Entry],
    licences: &Licences,
    oldest: Glibc,
) -> Result<Vec<File>> {
    let version = &release.version;
    let mut files = for_linux(release, binaries, pages, &licences.linux, oldest)?;
    if let Some(program) = &binaries.heg_windows {
        files.push(File {
            name: format!("heg-{version}-x86_64-windows.zip"),
            bytes: for_windows(version, program, pages, &licences.windows)?,
        });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn for_linux(
    release: &Shipment,
    binaries: &Binaries,
    pages: &[Entry],
    licences: &str,
    oldest: Glibc,
) -> Result<Vec<File>> {
    let version = &release.version;
    let pages: Vec<Entry> = pages
        .iter()
        .filter(|it| !is_for_windows(it))
        .cloned()
        .collect();
    let archive = |name: &str, system: &str, entries: Vec<Entry>| -> Result<File> {
        let folder = format!("{name}-{version}-x86_64-{system}");
        let entries = entries.into_iter().chain(terms(licences));
        let entries = entries.map(|entry| entry.below(&folder)).collect();
        Ok(File {
            name: format!("{folder}.tar.gz"),
            bytes: tar_gz(entries, release.epoch)?,
        })
    };
    let programs = vec![
        Entry::program("heg", &binaries.heg),
        Entry::program("hegc", &binaries.hegc),
    ];
    let mut commands = programs.clone();
    commands.extend(pages.iter().cloned());
    let readme = Entry::plain("README.md", include_str!("../../../README.md"));
    commands.push(readme.clone());
    let platform = format!("manylinux_{}_x86_64", oldest.tag());
    let mut files = vec![
        archive("heg", "linux", commands)?,
        archive("libheg", "linux", library(version, binaries))?,
        File {
            name: format!("heg_{version}_amd64.deb"),
            bytes: debian::write(release, programs, &pages, licences, oldest)?,
        },
        File {
            name: wheel::name(release, &platform),
            bytes: wheel::bytes(
                release,
                &binaries.libheg,
                licences,
                &platform,
                Compression::Small,
            )?,
        },
    ];
    if let Some(program) = &binaries.heg_static {
        let mut entries = vec![Entry::program("heg", program), readme];
        entries.push(Entry::plain("LICENCE-musl.txt", MUSL_TERMS));
        entries.extend(pages.iter().filter(|it| !it.path.contains("hegc")).cloned());
        files.push(archive("heg", "linux-musl", entries)?);
    }
    Ok(files)
}

/// Makes the archive for Windows.
fn for_windows(version: &str, program: &[u8], pages: &[Entry], licences: &str) -> Result<Vec<u8>> {
    let manual = include_str!("../../../docs/windows.md");
    let mut entries = vec![
        Entry::program(WINDOWS_HEG, program),
        Entry::plain("windows.md", manual),
        Entry::plain("README.md", include_str!("../../../README.md")),
        Entry::plain("LICENCE-mingw-w64.txt", MINGW_TERMS),
    ];
    let pages = pages
        .iter()
        .filter(|it| is_for_windows(it) && !it.path.contains("hegc"));
    entries.extend(pages.cloned());
    entries.extend(terms(licences));
    let folder = format!("heg-{version}-x86_64-windows");
    let mut entries: Vec<Entry> = entries.into_iter().map(|it| it.below(&folder)).collect();
    entries.sort();
    let files = entries.iter().filter_map(|entry| match &entry.content {
        Content::Plain(bytes) | Content::Program(bytes) => Some((entry.path.as_str(), &bytes[..])),
        Content::Link(_) => None,
    });
    zip(files, Compression::Small)
}

/// Whether a page is a completion for PowerShell.
fn is_for_windows(page: &Entry) -> bool {
    page.path.ends_with(".ps1")
}

/// The entries of the library's archive.
fn library(version: &str, binaries: &Binaries) -> Vec<Entry> {
    let header = include_str!("../../../heg-runtime/capi/include/heg.h");
    // A program that links the static library needs what Rust's standard library does.
    let settings = format!(
        "prefix=${{pcfiledir}}/../..\nName: heg\nDescription: Runs HEG bundles\nVersion: {version}\n\
         Cflags: -I${{prefix}}/include\nLibs: -L${{prefix}}/lib -lheg\nLibs.private: {SYSTEM_LIBRARIES}\n"
    );
    let mut entries = vec![
        Entry::plain("include/heg.h", header),
        Entry::plain(format!("lib/{SONAME}"), binaries.libheg.clone()),
        Entry {
            path: "lib/libheg.so".to_owned(),
            content: Content::Link(SONAME.to_owned()),
        },
        Entry::plain("lib/pkgconfig/heg.pc", settings),
    ];
    let bytes = binaries.libheg_static.iter();
    entries.extend(bytes.map(|bytes| Entry::plain("lib/libheg.a", bytes.clone())));
    entries
}

/// Under which terms all of it is.
fn terms(licences: &str) -> [Entry; 2] {
    [
        Entry::plain("LICENSE", include_str!("../../../LICENSE")),
        Entry::plain("LICENCES.txt", licences),
    ]
}

/// The terms of the C library that is part of the static `heg`.
const MUSL_TERMS: &str = include_str!("musl.txt");

/// The terms of the C library's parts in `heg.exe`.
const MINGW_TERMS: &str = include_str!("mingw.txt");

/// The file name of `heg` for Windows.
pub(super) const WINDOWS_HEG: &str = "heg.exe";

/// The file name of the static `heg` beside the other.
pub(super) const STATIC_HEG: &str = "heg-static";

/// The name by which programs find the shared library; its number is `HEG_ABI` of the header.
pub(super) const SONAME: &str = "libheg.so.1";

/// Libraries that Rust's standard library needs of the system, as `rustc --print native-static-libs` says.
pub(super) const SYSTEM_LIBRARIES: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl";
