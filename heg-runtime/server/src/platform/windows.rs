//! Windows: a named pipe in place of a Unix socket.
//!
//! The system's default permissions of a pipe let its user, the administrators and the system write to it, and others
//! only read what is written to them, which is nothing before they ask. So whoever asks is this user.

use std::fs::Metadata;
use std::future::pending;
use std::io;
use std::os::windows::io::AsSocket;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::net::windows::named_pipe::{NamedPipeServer, ServerOptions};
use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};
use tokio::sync::Mutex;

/// The stream of a client of this machine.
pub(crate) type LocalStream = NamedPipeServer;

/// The place where clients of this machine connect.
#[derive(Debug)]
pub(crate) struct LocalListener {
    path: PathBuf,
    /// The instance of the pipe that the next client gets.
    next: Mutex<NamedPipeServer>,
}

impl LocalListener {
    /// Listens at the name of a pipe, as in `\\.\pipe\heg`. Must run in a tokio runtime.
    ///
    /// # Errors
    /// It is no name of a pipe, or another process has it.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        if !path.to_string_lossy().to_lowercase().starts_with(PIPES) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(r"expected the name of a pipe, as in `{PIPES}heg`"),
            ));
        }
        let first = options().first_pipe_instance(true).create(path);
        Ok(Self {
            path: path.to_owned(),
            next: Mutex::new(first?),
        })
    }

    /// Returns the pipe's name.
    pub(crate) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Waits for a client, and returns its user's id with its stream.
    pub(crate) async fn accept(&self) -> io::Result<(LocalStream, u32)> {
        let mut next = self.next.lock().await;
        if let Err(error) = next.connect().await {
            // A client that has gone already leaves the instance behind.
            let _ = next.disconnect();
            return Err(error);
        }
        // The pipe always has an instance, so that nobody else can take its name, and clients find it.
        let stream = std::mem::replace(&mut *next, options().create(&self.path)?);
        Ok((stream, this_user()))
    }
}

fn options() -> ServerOptions {
    let mut options = ServerOptions::new();
    options.reject_remote_clients(true);
    options
}

/// Returns how messages name the place of a local listener.
pub(crate) fn local_address(path: &Path) -> String {
    path.display().to_string()
}

/// Returns this process's user: the only one that this process knows of.
pub(crate) fn this_user() -> u32 {
    0
}

/// Keeps a socket from programs that this process starts: one that has it, too, would keep the connection open.
pub(crate) fn keep_from_children(socket: &impl AsSocket) -> io::Result<()> {
    SockRef::from(socket).set_no_inherit(true)
}

/// Waits for ever: the system does not tell of an end behind bytes that wait to be read. The end of a stream that has
/// none is seen by reading, and any other by writing.
pub(crate) async fn tcp_closed(_stream: &TcpStream) {
    pending().await
}

/// Waits as [`tcp_closed`] does.
pub(crate) async fn local_closed(_stream: &LocalStream) {
    pending().await
}

/// Returns `None`: lists of who may read a file are left to its folder.
pub(crate) fn others_can_read(_data: &Metadata) -> Option<String> {
    None
}

/// Returns `None`: there is no limit on open files.
pub(crate) fn raise_open_files(_wanted: u64) -> Option<u64> {
    None
}

/// Does nothing: pages are small unless a process asks for others.
pub(crate) fn advise_small_pages(_pages: &MmapMut) {}

/// Returns the time since the first call: a thread's own is not asked for.
pub(crate) fn thread_time() -> Duration {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed()
}

/// Waits for Ctrl-C, Ctrl-Break, or the end of the console or of the system.
pub(crate) async fn told_to_end() -> io::Result<()> {
    let (mut interrupt, mut stop) = (ctrl_c()?, ctrl_break()?);
    let (mut close, mut shutdown) = (ctrl_close()?, ctrl_shutdown()?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = stop.recv() => {}
        _ = close.recv() => {}
        _ = shutdown.recv() => {}
    }
    Ok(())
}

/// The beginning of every pipe's name.
const PIPES: &str = r"\\.\pipe\";
