//! A Unix socket that only its user can connect to, at a path that one server has at a time.
//!
//! Two servers that start, end or are killed at the same moment must not remove each other's socket. So only the holder
//! of a lock on a file beside the socket creates and removes it, and it holds the lock for as long as it listens. The
//! kernel releases the lock of a killed server; the next server then knows that the socket left behind is stale.

use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use heg_files::Owners;
use rustix::fs::OFlags;
use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// A listening socket, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// The identity of the socket file that this process made.
    file: FileId,
    /// The lock, dropped last: until then nobody else creates a socket here.
    _lock: Lock,
}

impl Socket {
    /// Creates the socket, in place of one that a killed server left behind.
    ///
    /// # Errors
    /// Another server has the path, something else is there, or other users could replace the socket.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        // Other users who may write to the folder could put another socket in its place.
        Owners::this_user()
            .check_place(path)
            .map_err(io::Error::other)?;
        let lock = Lock::take(path)?;
        remove_stale(path)?;
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        // Nobody can connect before `listen`, so nobody has connected under other permissions.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        let file = id(&fs::symlink_metadata(path)?);
        Ok(Self {
            listener: socket.listen(BACKLOG)?,
            path: path.to_owned(),
            file,
            _lock: lock,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) async fn accept(&self) -> io::Result<(UnixStream, tokio::net::unix::SocketAddr)> {
        self.listener.accept().await
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The holder of the lock owns the file, unless somebody replaced it by hand.
        let there = fs::symlink_metadata(&self.path);
        if there.is_ok_and(|there| id(&there) == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The right to create and remove a socket: an exclusive lock on a file beside it.
#[derive(Debug)]
struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the lock if it is free.
    fn take(socket: &Path) -> io::Result<Self> {
        let mut name = socket.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        // Does not follow another user's link, nor wait for the reader of a pipe.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        loop {
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(flags.bits().cast_signed())
                .open(&path)
                .map_err(|source| at(&path, source))?;
            let own = file.metadata()?;
            let owners = Owners::this_user();
            owners.check(&path).map_err(io::Error::other)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(io::Error::new(
                        io::ErrorKind::AddrInUse,
                        format!("another server has it (it holds `{}`)", path.display()),
                    ));
                }
                Err(TryLockError::Error(source)) => return Err(at(&path, source)),
            }
            // The previous holder may have removed the file since it was opened here: the lock would then protect
            // nothing.
            let there = fs::symlink_metadata(&path);
            if there.is_ok_and(|there| id(&there) == id(&own)) {
                return Ok(Self { file, path });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The lock is still held: another process that opens the file before this gets the lock after it, and sees that
        // the file is gone.
        let _ = fs::remove_file(&self.path);
        let _ = self.file.unlock();
    }
}

/// Device and inode.
type FileId = (u64, u64);

fn id(data: &Metadata) -> FileId {
    (data.dev(), data.ino())
}

fn at(path: &Path, source: io::Error) -> io::Error {
    io::Error::new(source.kind(), format!("`{}`: {source}", path.display()))
}

/// Removes a stale socket. Other files stay, and so do sockets of programs that listen without our lock: `bind` reports
/// them.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err_and(refused) {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    }

    #[tokio::test]
    async fn the_socket_of_a_server_that_starts_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("heg.sock");
        // Bound but not listening yet: connections are refused.
        let lock = Lock::take(&path).unwrap();
        let starting = UnixSocket::new_stream().unwrap();
        starting.bind(&path).unwrap();
        let error = Socket::bind(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
        let listener = starting.listen(1).unwrap();
        UnixStream::connect(&path).await.unwrap();
        drop((listener, lock));
        // The socket left behind is replaced.
        assert!(path.exists());
        drop(Socket::bind(&path).unwrap());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    /// Clients reach the process that made the socket for as long as it listens.
    #[test]
    fn servers_that_start_and_end_at_once_do_not_take_each_others_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("heg.sock");
        let made = AtomicUsize::new(0);
        let serve = || {
            let runtime = runtime();
            while made.load(Ordering::Relaxed) < 200 {
                let Ok(socket) = runtime.block_on(async { Socket::bind(&path) }) else {
                    continue;
                };
                runtime.block_on(async {
                    let (client, server) =
                        tokio::join!(UnixStream::connect(&path), socket.accept());
                    assert!(client.is_ok() && server.is_ok());
                });
                made.fetch_add(1, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(serve);
            }
        });
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn folders_that_others_can_write_to_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("heg.sock");
        let mode = |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o777);
        let error = Socket::bind(&path).unwrap_err().to_string();
        assert!(error.contains("other users can write to"), "{error}");
        for fine in [0o1777, 0o755] {
            mode(fine);
            drop(Socket::bind(&path).unwrap());
        }
    }

    #[test]
    fn a_lock_that_is_a_link_or_a_pipe_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [path, lock] = ["heg.sock", "heg.sock.lock"].map(|name| folder.path().join(name));
        let target = folder.path().join("mine");
        std::os::unix::fs::symlink(&target, &lock).unwrap();
        Lock::take(&path).unwrap_err();
        assert!(!target.exists());
        fs::remove_file(&lock).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&lock).status();
        assert!(made.unwrap().success());
        Lock::take(&path).unwrap_err();
    }
}
