//! The server's addresses: loopback TCP, and a Unix socket of the user's own or, on Windows, a named pipe.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tokio::net::TcpListener;

use super::account::Scope;
use super::client_stream::ClientStream;
use super::platform::{LocalListener, keep_from_children, local_address};
use super::server_error::ServerError;

/// The transport over which a client connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// Loopback: anyone on this machine.
    Tcp,
    /// The socket or pipe; the client is a user of this machine, by user id.
    Local { user: u32 },
}

impl Transport {
    /// Returns the scope of a client on this transport, where no token is required.
    pub(super) fn scope(self) -> Scope {
        match self {
            Self::Tcp => Scope::Loopback,
            Self::Local { user } => Scope::User(user),
        }
    }
}

/// The address on which a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A port of 127.0.0.1.
    Tcp(SocketAddr),
    /// A socket in the file system, or a named pipe.
    Local(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}/v1"),
            Self::Local(path) => f.write_str(&local_address(path)),
        }
    }
}

/// The listening sockets.
#[derive(Debug)]
pub(super) struct Listeners {
    tcp: Option<TcpListener>,
    local: Option<LocalListener>,
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
                let listener = listener.and_then(|listener| {
                    keep_from_children(&listener)?;
                    Ok(listener)
                });
                Some(listener.map_err(|source| listen_error(&Address::Tcp(address), source))?)
            }
            None => None,
        };
        let local = match socket {
            Some(path) => {
                let listener = LocalListener::bind(path);
                let address = Address::Local(path.to_owned());
                Some(listener.map_err(|source| listen_error(&address, source))?)
            }
            None => None,
        };
        Ok(Self { tcp, local })
    }

    /// Returns the addresses of the sockets.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let tcp = self.tcp.as_ref();
        let tcp = tcp.and_then(|listener| listener.local_addr().ok());
        let local = self.local.as_ref().map(LocalListener::path);
        let tcp = tcp.map(Address::Tcp).into_iter();
        tcp.chain(local.map(Address::Local)).collect()
    }

    /// Waits for the next connection on loopback; forever if the port is closed.
    pub(super) async fn tcp(&self) -> io::Result<Accepted> {
        let Some(listener) = &self.tcp else {
            return pending().await;
        };
        let (stream, _) = listener.accept().await?;
        keep_from_children(&stream)?;
        // Messages of a token are small, and each is worth a packet.
        stream.set_nodelay(true)?;
        Ok(Accepted {
            stream: stream.into(),
            transport: Transport::Tcp,
        })
    }

    /// Waits for the next connection on the socket or pipe; forever if there is none.
    pub(super) async fn local(&self) -> io::Result<Accepted> {
        let Some(listener) = &self.local else {
            return pending().await;
        };
        let (stream, user) = listener.accept().await?;
        Ok(Accepted {
            stream: stream.into(),
            transport: Transport::Local { user },
        })
    }
}

fn listen_error(address: &Address, source: io::Error) -> ServerError {
    ServerError::Listen {
        address: address.to_string(),
        source,
    }
}
