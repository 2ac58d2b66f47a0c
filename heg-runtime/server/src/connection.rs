//! Connections: a bounded number on each transport, each with time limits, and a graceful shutdown.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, TRANSFER_ENCODING};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, timeout};
use tokio_io_timeout::TimeoutWriter;

use super::State;
use super::framing::Ambiguity;
use super::listen::{Accepted, Listeners, Transport};
use super::pace::ConnectionPace;
use super::platform::raise_open_files;
use super::pool::{Activity, Busy, Pool, Slot};
use super::route::{Answered, Asked, ChargedBody, route};
use super::sending::Sending;
use super::server_error::ServerError;

/// All connections of a server.
pub(super) struct Connections {
    state: Arc<State>,
    /// Each transport has slots of its own: a client that fills one leaves the other open.
    tcp: Pool,
    local: Pool,
    tasks: JoinSet<()>,
    ending: GracefulShutdown,
}

impl Connections {
    pub(super) fn new(state: Arc<State>) -> Self {
        let per_transport = allow_descriptors(state.limits.connections);
        let pool = || match state.tokens.is_empty() {
            true => Pool::new(per_transport),
            false => Pool::shared(per_transport),
        };
        Self {
            tcp: pool(),
            local: pool(),
            state,
            tasks: JoinSet::new(),
            ending: GracefulShutdown::new(),
        }
    }

    /// Serves new connections until `stop` completes, and open ones for the grace period after that, or until `now`
    /// completes. Unanswered requests are then told that the server is shutting down.
    pub(super) async fn serve(
        mut self,
        listeners: Listeners,
        stop: impl Future<Output = Result<(), ServerError>>,
        now: impl Future<Output = Result<(), ServerError>>,
    ) -> Result<(), ServerError> {
        let mut stop = std::pin::pin!(stop);
        let mut stopped = loop {
            tokio::select! {
                stopped = &mut stop => break stopped,
                (accepted, slot) = admit(&self.tcp, || listeners.tcp()) => self.spawn(accepted, slot),
                (accepted, slot) = admit(&self.local, || listeners.local()) => self.spawn(accepted, slot),
            }
            // Reaps completed tasks, whose results would pile up.
            while self.tasks.try_join_next().is_some() {}
            // A flood of new connections must not starve the open ones.
            yield_now().await;
        };
        // Removes the file of the socket, so that another server can take its place.
        drop(listeners);
        let mut ended = std::pin::pin!(self.ending.shutdown());
        tokio::select! {
            () = &mut ended => return stopped,
            () = tokio::time::sleep(self.state.limits.grace) => {}
            at_once = now => stopped = stopped.and(at_once),
        }
        self.state.closing.begin();
        // Clients are told, and hang up. The server does not wait for one that does not read.
        let _ = timeout(LAST_WORDS, ended).await;
        self.tasks.shutdown().await;
        stopped
    }

    fn spawn(&mut self, accepted: Accepted, slot: Slot) {
        let Accepted { stream, transport } = accepted;
        let limits = &self.state.limits;
        let closed = stream.closed();
        let client = Arc::new(Client {
            state: Arc::clone(&self.state),
            transport,
            activity: slot.occupy(),
            ambiguity: stream.ambiguity(),
            pace: self.state.pace.connection(Instant::now()),
        });
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(limits.stall_time));
        let service = service_fn(move |request| {
            let client = Arc::clone(&client);
            async move { Ok::<_, Infallible>(client.answer(request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_time)
            .max_header_size(HEAD_BYTES_MAX)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let connection = self.ending.watch(connection);
        let state = Arc::clone(&self.state);
        let held = Arc::clone(&self.state.metrics.held);
        self.tasks.spawn(held.measure(async move {
            state.metrics.connections.inc();
            tokio::select! {
                biased;
                // Clients disconnect and send garbage. hyper answers an unreadable head itself, with 400, 414 or 431
                // and an empty body, and has no hook for that.
                _ = connection => {}
                () = closed.wait() => {}
                () = slot.evicted() => {}
            }
            state.metrics.connections.dec();
            drop(slot);
        }));
    }
}

/// The client of a connection.
struct Client {
    state: Arc<State>,
    transport: Transport,
    activity: Activity,
    ambiguity: Ambiguity,
    pace: ConnectionPace,
}

impl Client {
    /// Answers a request. The connection counts as busy until the answer is sent.
    async fn answer(&self, request: Request<Incoming>) -> Response<Sending<ChargedBody, Busy>> {
        let mut busy = self.activity.busy();
        let asked = Asked {
            transport: self.transport,
            activity: self.activity.clone(),
            pace: &self.pace,
            is_ambiguous: self.ambiguity.was_seen(),
            request,
        };
        let is_chunked = asked.request.headers().contains_key(TRANSFER_ENCODING);
        let mut response = route(&self.state, asked).await;
        if is_chunked {
            // Bytes after this request are no longer checked.
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        let is_light = response.extensions().get::<Answered>().is_none();
        if is_light {
            // From here on, the connection may be closed to make room for others.
            drop(busy);
            self.pace.turn().await;
            busy = self.activity.busy();
        }
        response.map(|body| Sending::new(body, busy))
    }
}

/// Waits for a free slot, and then for a connection to fill it.
async fn admit<F: Future<Output = std::io::Result<Accepted>>>(
    pool: &Pool,
    accept: impl Fn() -> F,
) -> (Accepted, Slot) {
    let slot = pool.slot().await;
    loop {
        match accept().await {
            Ok(accepted) => return (accepted, slot),
            // The client is gone already, or the process is out of descriptors, which come back.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Raises the process's limit on open files to the need of `connections` on each transport, and returns the number that
/// each may have. A lower limit is divided between them here, since accepting could only fail.
fn allow_descriptors(connections: usize) -> usize {
    match raise_open_files(2 * connections as u64 + DESCRIPTORS_BESIDE) {
        Some(granted) => per_transport(connections, granted),
        None => connections,
    }
}

fn per_transport(connections: usize, descriptors: u64) -> usize {
    let most = descriptors.saturating_sub(DESCRIPTORS_BESIDE) / 2;
    connections
        .min(usize::try_from(most).unwrap_or(usize::MAX))
        .max(1)
}

/// Number of descriptors for other uses than connections: the bundle, libraries, devices. Chosen.
const DESCRIPTORS_BESIDE: u64 = 512;

/// Size of a connection's read buffer, which has to hold a request's head, and of its write buffer, in bytes.
const BUFFER_BYTES: usize = 32 << 10;

/// Size of the largest request head, in bytes.
const HEAD_BYTES_MAX: usize = BUFFER_BYTES;

/// Time in which clients are told that the server shuts down. Chosen.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Time before the next try to accept. Chosen.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_share_what_descriptors_there_are() {
        assert_eq!(per_transport(4096, 1 << 20), 4096);
        assert_eq!(per_transport(4096, 1024), 256);
        assert_eq!(per_transport(4096, 100), 1);
    }
}
