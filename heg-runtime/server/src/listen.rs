//! The server's addresses: loopback TCP and a Unix socket of the user's own.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tokio::net::TcpListener;

use super::account::Scope;
use super::client_stream::ClientStream;
use super::server_error::ServerError;
use super::socket::Socket;

/// The transport over which a client connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// Loopback: anyone on this machine.
    Tcp,
    /// The socket; the client is a user of this machine, by user id.
    Unix { user: u32 },
}

impl Transport {
    /// Returns the scope of a client on this transport, where no token is required.
    pub(super) fn scope(self) -> Scope {
        match self {
            Self::Tcp => Scope::Loopback,
            Self::Unix { user } => Scope::User(user),
        }
    }
}

/// The address on which a server listens.
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

/// The listening sockets.
#[derive(Debug)]
pub(super) struct Listeners {
    tcp: Option<TcpListener>,
    unix: Option<Socket>,
}

/// An accepted connection.
pub(super) struct Accepted {
    pub(super) stream: ClientStream,
    pub(super) transport: Transport,
}

impl Listeners {
    /// Binds the sockets. Must run in a tokio runtime.
    pub(super) async fn open(
        port: Option<u16>,
        socket: Option<&Path>,
    ) -> Result<Self, ServerError> {
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

    /// Returns the addresses of the sockets.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let tcp = self.tcp.as_ref();
        let tcp = tcp.and_then(|listener| listener.local_addr().ok());
        let unix = self.unix.as_ref().map(|socket| socket.path().to_owned());
        let tcp = tcp.map(Address::Tcp).into_iter();
        tcp.chain(unix.map(Address::Unix)).collect()
    }

    /// Waits for the next connection on loopback; forever if the port is closed.
    pub(super) async fn tcp(&self) -> io::Result<Accepted> {
        let Some(listener) = &self.tcp else {
            return pending().await;
        };
        let (stream, _) = listener.accept().await?;
        // Messages of a token are small, and each is worth a packet.
        stream.set_nodelay(true)?;
        Ok(Accepted {
            stream: stream.into(),
            transport: Transport::Tcp,
        })
    }

    /// Waits for the next connection on the Unix socket; forever if there is none.
    pub(super) async fn unix(&self) -> io::Result<Accepted> {
        let Some(socket) = &self.unix else {
            return pending().await;
        };
        let (stream, _) = socket.accept().await?;
        let user = stream.peer_cred()?.uid();
        Ok(Accepted {
            stream: stream.into(),
            transport: Transport::Unix { user },
        })
    }
}

fn listen_error(address: &Address, source: io::Error) -> ServerError {
    ServerError::Listen {
        address: address.to_string(),
        source,
    }
}
