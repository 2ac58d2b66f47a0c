//! A registry that serves a layout, and lies where a test says so.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use heg_ship::{BundleSource, Credentials, Layout, ModelName, Registry};

/// A request as the server sees it.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Number of the request, from 0.
    pub(crate) number: usize,
    pub(crate) path: String,
    /// First and last byte.
    pub(crate) range: Option<(u64, u64)>,
    pub(crate) authorization: Option<String>,
}

impl Asked {
    /// Whether it is for a blob of more than some bytes: a part, not the head or a list.
    pub(crate) fn is_long(&self) -> bool {
        self.path.contains("/blobs/") && self.range.is_some_and(|(from, to)| to - from > 500_000)
    }
}

/// The server's treatment of a request.
#[derive(Debug, Clone)]
pub(crate) enum Twist {
    Honest,
    /// Sends this many bytes of the body, then closes.
    Cut(usize),
    /// Sends this many bytes of the body, then nothing more, and keeps the line.
    Stall(usize),
    /// Changes a bit of the byte at this place of the body.
    Flip(usize),
    /// Sends bytes from another place, and says the right one.
    Shifted,
    /// Says another range than was asked for.
    OtherRange,
    /// Knows no ranges: sends all, with 200.
    NoRanges,
    /// Says this status, with a header.
    Status(u16, String),
    /// Sends this body with status 200.
    Body(Vec<u8>),
}

type Behaviour = dyn Fn(&Asked) -> Twist + Send + Sync;

/// The server. It ends with the process of the tests.
pub(crate) struct Liar {
    pub(crate) host: String,
    pub(crate) asked: Arc<Mutex<Vec<Asked>>>,
}

impl Liar {
    pub(crate) fn new(
        layout: &Path,
        behaviour: impl Fn(&Asked) -> Twist + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let behaviour: Arc<Behaviour> = Arc::new(behaviour);
        let (seen, layout) = (Arc::clone(&asked), layout.to_owned());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, layout, behaviour) =
                    (Arc::clone(&seen), layout.clone(), Arc::clone(&behaviour));
                thread::spawn(move || {
                    // A client that goes away is no concern of the server.
                    let _ = answer(stream.unwrap(), &seen, &layout, &*behaviour);
                });
            }
        });
        Self { host, asked }
    }

    pub(crate) fn name(&self, rest: &str) -> ModelName {
        format!("{}/{rest}", self.host).parse().unwrap()
    }

    /// The repository of a name, with the logins of a file of Docker.
    pub(crate) fn registry(&self, name: &ModelName, logins: Option<PathBuf>) -> Registry {
        let credentials = Credentials::in_files(logins.into_iter().collect());
        Registry::new(name, credentials, &[]).unwrap()
    }

    pub(crate) fn requests(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(
    stream: TcpStream,
    seen: &Mutex<Vec<Asked>>,
    layout: &Path,
    behaviour: &Behaviour,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let Some(mut asked) = read_request(&mut reader)? else {
        return Ok(());
    };
    {
        let mut seen = seen.lock().unwrap();
        asked.number = seen.len();
        seen.push(asked.clone());
    }
    let stream = reader.get_mut();
    let whole = content(layout, &asked.path);
    let twist = behaviour(&asked);
    let (status, header, mut body) = match (&twist, whole) {
        (Twist::Status(status, header), _) => (*status, header.clone(), Vec::new()),
        (Twist::Body(body), _) => (200, String::new(), body.clone()),
        (_, None) => (404, String::new(), Vec::new()),
        (Twist::NoRanges, Some(whole)) => (200, String::new(), whole),
        (twist, Some(whole)) => match asked.range {
            None => (200, String::new(), whole),
            Some((from, to)) => {
                let shift = if matches!(twist, Twist::Shifted) {
                    4096
                } else {
                    0
                };
                let other = if matches!(twist, Twist::OtherRange) {
                    1
                } else {
                    0
                };
                let (first, last) = (
                    from as usize + shift,
                    (to as usize + shift).min(whole.len() - 1),
                );
                let header = format!("Content-Range: bytes {}-{to}/{}", from + other, whole.len());
                (206, header, whole[first..=last].to_vec())
            }
        },
    };
    let length = body.len();
    match twist {
        Twist::Cut(at) | Twist::Stall(at) => body.truncate(at),
        Twist::Flip(at) if at < length => body[at] ^= 1,
        _ => {}
    }
    let header = if header.is_empty() {
        header
    } else {
        format!("{header}\r\n")
    };
    write!(
        stream,
        "HTTP/1.1 {status} Said\r\nContent-Length: {length}\r\nConnection: close\r\n{header}\r\n"
    )?;
    stream.write_all(&body)?;
    if let Twist::Stall(_) = twist {
        thread::sleep(STALL);
    }
    Ok(())
}

fn read_request(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<Asked>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut range, mut authorization) = (None, None);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let (from, to) = value
                    .strip_prefix("bytes=")
                    .unwrap()
                    .split_once('-')
                    .unwrap();
                range = Some((from.parse().unwrap(), to.parse().unwrap()));
            }
            "authorization" => authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    Ok(Some(Asked {
        number: 0,
        path,
        range,
        authorization,
    }))
}

/// Time for which a line is kept without a word: longer than any test waits.
const STALL: Duration = Duration::from_secs(60);

/// The document or blob at a path; a repository's name is not looked at.
fn content(layout: &Path, path: &str) -> Option<Vec<u8>> {
    let source = Layout::new(layout);
    if let Some((_, digest)) = path.split_once("/blobs/") {
        let hex = digest.strip_prefix("sha256")?;
        let hex = hex.trim_start_matches([':', '/']);
        return fs::read(layout.join("blobs/sha256").join(hex)).ok();
    }
    // As a web server in front of the folder.
    if path.ends_with("/index.json") {
        return fs::read(layout.join("index.json")).ok();
    }
    let (_, reference) = path.split_once("/manifests/")?;
    match reference.parse() {
        Ok(digest) => source.manifest(&digest).ok(),
        Err(_) => source.tagged(reference).ok(),
    }
}
