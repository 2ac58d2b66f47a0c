//! Connections: accepted up to a number, each under time limits, and ended in good order.

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutWriter;

use super::State;
use super::listen::{Caller, Doors, Way};
use super::route::route;

/// All connections of a server.
pub(super) struct Connections {
    state: Arc<State>,
    places: Arc<Semaphore>,
    tasks: JoinSet<()>,
    ending: GracefulShutdown,
}

impl Connections {
    pub(super) fn new(state: Arc<State>) -> Self {
        allow_descriptors(state.limits.connections);
        let places = Arc::new(Semaphore::new(state.limits.connections));
        Self {
            state,
            places,
            tasks: JoinSet::new(),
            ending: GracefulShutdown::new(),
        }
    }

    /// Serves whoever comes until `stop`, and then those who are there for the time of grace.
    pub(super) async fn serve<T>(mut self, doors: Doors, stop: impl Future<Output = T>) -> T {
        let mut stop = std::pin::pin!(stop);
        let stopped = loop {
            tokio::select! {
                stopped = &mut stop => break stopped,
                () = self.accept(&doors) => {}
            }
            // Tasks that ended leave their results.
            while self.tasks.try_join_next().is_some() {}
        };
        // No longer in anyone's way: the socket's file is removed here.
        drop(doors);
        let grace = self.state.limits.grace;
        // A stream that does not end is cancelled with its task.
        let _ = tokio::time::timeout(grace, self.ending.shutdown()).await;
        self.tasks.shutdown().await;
        stopped
    }

    async fn accept(&mut self, doors: &Doors) {
        let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
            return;
        };
        match doors.accept().await {
            Ok(Caller::Tcp(stream)) => self.spawn(stream, Way::Tcp, place),
            Ok(Caller::Unix(stream)) => match stream.peer_cred() {
                Ok(peer) => self.spawn(stream, Way::Unix { user: peer.uid() }, place),
                // The caller is gone already.
                Err(_) => {}
            },
            // The caller is gone already, or there are no descriptors left; those come back.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }

    fn spawn(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        way: Way,
        place: tokio::sync::OwnedSemaphorePermit,
    ) {
        let limits = &self.state.limits;
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(limits.stall_time));
        let state = Arc::clone(&self.state);
        let service = service_fn(move |request| route(Arc::clone(&state), way, request));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_time)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let connection = self.ending.watch(connection);
        let metrics = Arc::clone(&self.state.metrics);
        self.tasks.spawn(async move {
            metrics.connections.inc();
            // Clients break off and send garbage. What has no head that can be read gets hyper's own 400, 414 or 431,
            // whose body is empty: hyper writes it by itself, with its length, and has no hook for it.
            let _ = connection.await;
            metrics.connections.dec();
            drop(place);
        });
    }
}

/// Raises this process's limit of open files as far as `connections` need. What the system does not grant is noticed
/// when accepting, which then waits.
fn allow_descriptors(connections: usize) {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = connections as u64 + DESCRIPTORS_BESIDE;
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |most| most.min(wanted)));
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Descriptors that are no connections: the bundle, libraries, devices. Chosen.
const DESCRIPTORS_BESIDE: u64 = 512;

/// Bytes of a connection's buffer for reading, which a request's head has to fit, and of that for writing.
const BUFFER_BYTES: usize = 32 << 10;

/// Time before the next try to accept. Chosen.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
