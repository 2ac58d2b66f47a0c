//! Connections: accepted up to a number at each door, each under time limits, and ended in good order.

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
use super::listen::{Caller, Doors};
use super::pool::{Pool, Slot};
use super::route::route;
use super::sending::Sending;

/// All connections of a server.
pub(super) struct Connections {
    state: Arc<State>,
    /// Each door has places of its own: whoever fills one leaves the other open.
    tcp: Pool,
    unix: Pool,
    tasks: JoinSet<()>,
    ending: GracefulShutdown,
}

impl Connections {
    pub(super) fn new(state: Arc<State>) -> Self {
        let at_each_door = allow_descriptors(state.limits.connections);
        Self {
            state,
            tcp: Pool::new(at_each_door),
            unix: Pool::new(at_each_door),
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
                (caller, slot) = admit(&self.tcp, || doors.tcp()) => self.spawn(caller, slot),
                (caller, slot) = admit(&self.unix, || doors.unix()) => self.spawn(caller, slot),
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

    fn spawn(&mut self, caller: Caller, slot: Slot) {
        let Caller { stream, way } = caller;
        let limits = &self.state.limits;
        let closed = stream.closed();
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(limits.stall_time));
        let state = Arc::clone(&self.state);
        let activity = slot.occupy();
        let service = service_fn(move |request| {
            let busy = activity.busy();
            let answer = route(Arc::clone(&state), way, request);
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
                // Clients break off and send garbage. What has no head that can be read gets hyper's own 400, 414 or
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

/// Waits for a free slot, and for somebody to take it.
async fn admit<F: Future<Output = std::io::Result<Caller>>>(
    pool: &Pool,
    accept: impl Fn() -> F,
) -> (Caller, Slot) {
    let slot = pool.slot().await;
    loop {
        match accept().await {
            Ok(caller) => return (caller, slot),
            // The caller is gone already, or there are no descriptors left; those come back.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Raises this process's limit of open files as far as `connections` at each door need, and says how many there may be
/// at each: what the system does not grant is shared out here, since nobody can share it out when accepting fails.
fn allow_descriptors(connections: usize) -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = 2 * connections as u64 + DESCRIPTORS_BESIDE;
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |most| most.min(wanted)));
        let _ = setrlimit(Resource::Nofile, limit);
    }
    match getrlimit(Resource::Nofile).current {
        Some(granted) => at_each_door(connections, granted),
        None => connections,
    }
}

fn at_each_door(connections: usize, descriptors: u64) -> usize {
    let most = descriptors.saturating_sub(DESCRIPTORS_BESIDE) / 2;
    connections
        .min(usize::try_from(most).unwrap_or(usize::MAX))
        .max(1)
}

/// Descriptors that are no connections: the bundle, libraries, devices. Chosen.
const DESCRIPTORS_BESIDE: u64 = 512;

/// Bytes of a connection's buffer for reading, which a request's head has to fit, and of that for writing.
const BUFFER_BYTES: usize = 32 << 10;

/// Time before the next try to accept. Chosen.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_share_what_descriptors_there_are() {
        assert_eq!(at_each_door(4096, 1 << 20), 4096);
        assert_eq!(at_each_door(4096, 1024), 256);
        assert_eq!(at_each_door(4096, 100), 1);
    }
}
