//! Where the server is reached: loopback TCP and a Unix socket of the user's own.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream};

use crate::error::RuntimeError;

/// The way a client came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Loopback: anyone on this machine.
    Tcp,
    /// The socket, as a user of this machine, by number.
    Unix { user: u32 },
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A port of 127.0.0.1.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}/v1"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The open doors.
#[derive(Debug)]
pub(super) struct Doors {
    tcp: Option<TcpListener>,
    unix: Option<Socket>,
}

/// Someone at a door.
pub(super) enum Caller {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Doors {
    /// Opens them. In a runtime of tokio.
    pub(super) async fn open(
        port: Option<u16>,
        socket: Option<&Path>,
    ) -> Result<Self, RuntimeError> {
        let tcp = match port {
            Some(port) => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                let listener = TcpListener::bind(address).await;
                Some(listener.map_err(|source| listen_error(&Address::Tcp(address), source))?)
            }
            None => None,
        };
        let unix = match socket {
            Some(path) => {
                let socket = Socket::bind(path);
                let address = Address::Unix(path.to_owned());
                Some(socket.map_err(|source| listen_error(&address, source))?)
            }
            None => None,
        };
        Ok(Self { tcp, unix })
    }

    /// Where they are.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let tcp = self.tcp.as_ref();
        let tcp = tcp.and_then(|listener| listener.local_addr().ok());
        let unix = self.unix.as_ref().map(|socket| socket.path.clone());
        let tcp = tcp.map(Address::Tcp).into_iter();
        tcp.chain(unix.map(Address::Unix)).collect()
    }

    /// Waits for the next caller.
    pub(super) async fn accept(&self) -> io::Result<Caller> {
        let tcp = async {
            let Some(listener) = &self.tcp else {
                return pending().await;
            };
            let (stream, _) = listener.accept().await?;
            // Tokens are small, and each is worth a packet.
            stream.set_nodelay(true)?;
            Ok(Caller::Tcp(stream))
        };
        let unix = async {
            let Some(socket) = &self.unix else {
                return pending().await;
            };
            let (stream, _) = socket.listener.accept().await?;
            Ok(Caller::Unix(stream))
        };
        tokio::select! {
            caller = tcp => caller,
            caller = unix => caller,
        }
    }
}

fn listen_error(address: &Address, source: io::Error) -> RuntimeError {
    RuntimeError::Listen {
        address: address.to_string(),
        source,
    }
}

/// A listening Unix socket, removed when it is dropped.
#[derive(Debug)]
struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file that we made.
    file: (u64, u64),
}

impl Socket {
    /// Makes the socket, in place of one that a killed server left behind.
    fn bind(path: &Path) -> io::Result<Self> {
        remove_stale(path)?;
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        // Nobody can connect before `listen`, so nobody can have come in with other permissions.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let file = identity(path)?;
        Ok(Self {
            listener: socket.listen(BACKLOG)?,
            path: path.to_owned(),
            file,
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Not one that another server has put there since.
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let data = std::fs::symlink_metadata(path)?;
    Ok((data.dev(), data.ino()))
}

/// Removes a socket that nobody answers. Other files, and sockets in use, stay: `bind` says so.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err_and(refused) {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
