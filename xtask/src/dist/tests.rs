//! A release of small binaries, twice, and as other people's programs read it.

use super::archive::Entry;
use super::package::{Binaries, File, Licences, Shipment, files};
use super::{glibc, licences};
use std::path::Path;
use std::process::Command;

/// A release of programs that every Linux has.
fn release(pages: &[Entry]) -> Vec<File> {
    let program = std::fs::read("/bin/true").unwrap();
    let release = Shipment {
        version: "1.2.3".to_owned(),
        epoch: 1_700_000_000,
    };
    let binaries = Binaries {
        heg: program.clone(),
        hegc: program.clone(),
        libheg: program.clone(),
        libheg_static: Some(b"!<arch>\n".to_vec()),
        heg_static: Some(program.clone()),
        heg_windows: Some(program.clone()),
    };
    let oldest = glibc::newest_needed(&[&program]).unwrap();
    let licences = Licences {
        linux: "licences".to_owned(),
        windows: "licences".to_owned(),
    };
    files(&release, &binaries, pages, &licences, oldest).unwrap()
}

fn pages() -> Vec<Entry> {
    [
        "man/heg.1",
        "man/hegc.1",
        "completions/heg.bash",
        "completions/heg.fish",
        "completions/_heg",
        "completions/_heg.ps1",
        "completions/_hegc.ps1",
    ]
    .map(|path| Entry::plain(path, path))
    .to_vec()
}

/// Lines that a program prints about a file; `None` without the program.
fn lines(program: &str, arguments: &[&str], file: &Path) -> Option<Vec<String>> {
    let output = Command::new(program)
        .args(arguments)
        .arg(file)
        .output()
        .ok()?;
    assert!(output.status.success(), "{program}: {:?}", output.stderr);
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(str::to_owned).collect())
}

#[test]
fn the_same_binaries_give_the_same_bytes() {
    let mut backwards = pages();
    backwards.reverse();
    assert!(release(&pages()) == release(&backwards));
}

#[test]
fn other_peoples_programs_read_what_was_packed() {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    for File { name, bytes } in release(&pages()) {
        let path = folder.path().join(&name);
        std::fs::write(&path, bytes).unwrap();
        let listed = match path.extension().and_then(|it| it.to_str()) {
            Some("gz") => lines("tar", &["--utc", "-tvzf"], &path),
            Some("deb") => lines("dpkg-deb", &["-f"], &path).map(|mut fields| {
                // What `/bin/true` of this machine needs, and how long it is.
                fields.retain(|it| !it.starts_with("Depends") && !it.starts_with("Installed"));
                fields.extend(lines("dpkg-deb", &["-c"], &path).unwrap());
                fields
            }),
            _ => lines("python3", &["-m", "zipfile", "-l"], &path),
        };
        let Some(listed) = listed else {
            return println!("skipped: no tar, dpkg-deb or python3 here");
        };
        let name = name.split("-py3").next().unwrap();
        seen.push(format!("{name}:"));
        // Lengths are of this machine's `/bin/true`.
        seen.extend(listed.into_iter().map(|line| {
            let words = line
                .split_whitespace()
                .filter(|it| it.parse::<u64>().is_err());
            format!("  {}", words.collect::<Vec<_>>().join(" "))
        }));
    }
    insta::assert_snapshot!(seen.join("\n"));
}

#[test]
fn licences_are_those_of_what_ships() {
    let list = licences::of(&["heg-capi"], "x86_64-unknown-linux-gnu").unwrap();
    let has = |name: &str| list.lines().any(|line| line.starts_with(name));
    assert!(has("blake3 "), "a dependency");
    assert!(!has("tokio "), "of the server only");
    assert!(!has("proptest "), "of tests only");
    assert!(list.contains("Apache License"));
    let (texts, _) = list.split_once("-----").unwrap();
    assert!(
        texts
            .lines()
            .skip(2)
            .filter(|line| !line.is_empty())
            .all(|it| it.contains(": "))
    );
}
