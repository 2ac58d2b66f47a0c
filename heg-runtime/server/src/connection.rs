//! Connections: a bounded number on each transport, each with time limits, and a graceful shutdown.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutWriter;

use super::State;
use super::listen::{Accepted, Listeners};
use super::pool::{Pool, Slot};
use super::route::route;
use super::sending::Sending;

/// All connections of a server.
pub(super) struct Connections {
    state: Arc<State>,
    /// Each transport has slots of its own: a client that fills one leaves the other open.
    tcp: Pool,
    unix: Pool,
    tasks: JoinSet<()>,
    ending: GracefulShutdown,
}

impl Connections {
    pub(super) fn new(state: Arc<State>) -> Self {
        let per_transport = allow_descriptors(state.limits.connections);
        Self {
            state,
            tcp: Pool::new(per_transport),
            unix: Pool::new(per_transport),
            tasks: JoinSet::new(),
            ending: GracefulShutdown::new(),
        }
    }

    /// Serves new connections until `stop` completes, and open ones for the grace period after that.
    pub(super) async fn serve<T>(
        mut self,
        listeners: Listeners,
        stop: impl Future<Output = T>,
    ) -> T {
        let mut stop = std::pin::pin!(stop);
        let stopped = loop {
            tokio::select! {
                stopped = &mut stop => break stopped,
                (accepted, slot) = admit(&self.tcp, || listeners.tcp()) => self.spawn(accepted, slot),
                (accepted, slot) = admit(&self.unix, || listeners.unix()) => self.spawn(accepted, slot),
            }
            // Completed tasks leave their results behind.
            while self.tasks.try_join_next().is_some() {}
        };
        // Removes the file of the socket, so that another server can take its place.
        drop(listeners);
        let grace = self.state.limits.grace;
        // A stream that does not end is cancelled with its task.
        let _ = tokio::time::timeout(grace, self.ending.shutdown()).await;
        self.tasks.shutdown().await;
        stopped
    }

    fn spawn(&mut self, accepted: Accepted, slot: Slot) {
        let Accepted { stream, transport } = accepted;
        let limits = &self.state.limits;
        let closed = stream.closed();
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(limits.stall_time));
        let state = Arc::clone(&self.state);
        let activity = slot.occupy();
        let service = service_fn(move |request| {
            let busy = activity.busy();
            let answer = route(Arc::clone(&state), transport, request);
            async move { Ok::<_, Infallible>(answer.await?.map(|body| Sending::new(body, busy))) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_time)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let connection = self.ending.watch(connection);
        let metrics = Arc::clone(&self.state.metrics);
        self.tasks.spawn(async move {
            metrics.connections.inc();
            tokio::select! {
                biased;
                // Clients disconnect and send garbage. A request with an unreadable head gets hyper's own 400, 414 or
                // 431, whose body is empty: hyper writes it by itself, with its length, and has no hook for it.
                _ = connection => {}
                () = closed.wait() => {}
                () = slot.evicted() => {}
            }
            metrics.connections.dec();
            drop(slot);
        });
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
            // The client is gone already, or no descriptors are left; those come back.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Raises this process's limit of open files to what `connections` on each transport need, and returns how many each may
/// have. A lower limit is divided here, since accepting could only fail.
fn allow_descriptors(connections: usize) -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = 2 * connections as u64 + DESCRIPTORS_BESIDE;
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |most| most.min(wanted)));
        let _ = setrlimit(Resource::Nofile, limit);
    }
    match getrlimit(Resource::Nofile).current {
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

/// Descriptors for other things than connections: the bundle, libraries, devices. Chosen.
const DESCRIPTORS_BESIDE: u64 = 512;

/// Bytes of a connection's buffer for reading, which a request's head has to fit, and of that for writing.
const BUFFER_BYTES: usize = 32 << 10;

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
