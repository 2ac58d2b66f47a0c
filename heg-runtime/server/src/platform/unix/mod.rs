//! Unix: a socket in the file system, whose clients the kernel names.

mod socket;

use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memmap2::{Advice, MmapMut};
use rustix::process::{Resource, geteuid, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::signal::unix::{SignalKind, signal};

use socket::Socket;

/// The stream of a client of this machine.
pub(crate) type LocalStream = UnixStream;

/// The place where clients of this machine connect.
#[derive(Debug)]
pub(crate) struct LocalListener(Socket);

impl LocalListener {
    /// Listens at a path. Must run in a tokio runtime.
    ///
    /// # Errors
    /// Another server has the path, something else is there, or other users could replace the socket.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        Socket::bind(path).map(Self)
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    /// Waits for a client, and returns its user's id with its stream.
    pub(crate) async fn accept(&self) -> io::Result<(LocalStream, u32)> {
        let (stream, _) = self.0.accept().await?;
        let user = stream.peer_cred()?.uid();
        Ok((stream, user))
    }
}

/// Returns how messages name the place of a local listener.
pub(crate) fn local_address(path: &Path) -> String {
    format!("unix:{}", path.display())
}

/// Returns this process's user.
pub(crate) fn this_user() -> u32 {
    geteuid().as_raw()
}

/// Does nothing: sockets are closed in programs that this process starts.
pub(crate) fn keep_from_children(_socket: &impl AsFd) -> io::Result<()> {
    Ok(())
}

/// Waits until the client has closed its side, even while bytes wait to be read.
pub(crate) async fn tcp_closed(stream: &TcpStream) {
    // Linux reports urgent data under this name. But the end of the stream counts as every kind of event, and unlike
    // `READABLE` this one is not set merely because bytes wait. Other code that uses the stream will see an error.
    let _ = stream.ready(Interest::PRIORITY).await;
}

/// Waits as [`tcp_closed`] does.
pub(crate) async fn local_closed(stream: &LocalStream) {
    let _ = stream.ready(Interest::PRIORITY).await;
}

/// Says under which permissions others than the owner can read a file, and what helps; `None` if they cannot.
pub(crate) fn others_can_read(data: &Metadata) -> Option<String> {
    let can_read = data.mode() & 0o044 != 0;
    can_read.then(|| {
        format!(
            "other users can read it (mode {:04o}), expected one that they cannot: run `chmod go-r` on it",
            data.mode() & 0o7777
        )
    })
}

/// Raises the process's limit on open files to `wanted`, if it is lower and may be, and returns the limit; `None` if
/// there is none.
pub(crate) fn raise_open_files(wanted: u64) -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |most| most.min(wanted)));
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current
}

/// Advises against huge pages for memory of which little may be used.
pub(crate) fn advise_small_pages(pages: &MmapMut) {
    let _ = pages.advise(Advice::NoHugePage);
}

/// Returns the processor time that this thread has had.
pub(crate) fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // It counts from the thread's start.
    Duration::try_from(time).unwrap_or_default()
}

/// Waits for SIGTERM or SIGINT.
pub(crate) async fn told_to_end() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
