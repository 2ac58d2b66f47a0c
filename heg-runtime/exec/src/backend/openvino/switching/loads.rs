//! The thread that loads graphs, one after the other, while others compute.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::graph::Graph;
use crate::backend::{LoadPermit, Tailor};
use crate::error::ExecError;
use crate::form::Form;
use crate::ladder::Rung;
use crate::padding::SHORT_ROWS;
use crate::place::Place;

/// A graph that is to be loaded.
struct Request {
    block: usize,
    graph: Graph,
    places: Vec<(Place, Rung)>,
}

/// The outcome of a load.
pub(super) struct Loaded {
    pub(super) block: usize,
    pub(super) graph: Graph,
    pub(super) outcome: Result<Vec<(Place, Form)>, ExecError>,
    pub(super) took: Duration,
}

/// Loads of graphs: at most one is under way.
pub(super) struct Loads {
    requests: Option<Sender<Request>>,
    outcomes: Receiver<Loaded>,
    is_busy: bool,
    thread: Option<JoinHandle<()>>,
}

impl Loads {
    /// Starts the thread.
    pub(super) fn start(tailor: Tailor, permit: Option<LoadPermit>) -> Self {
        let (sender, requests) = channel::<Request>();
        let (done, outcomes) = channel();
        let work = move || {
            while let Ok(request) = requests.recv() {
                let start = Instant::now();
                let permitted = permit.as_ref().map_or(Ok(()), |permit| permit());
                let outcome = permitted.and_then(|()| load(&tailor, &request));
                let loaded = Loaded {
                    block: request.block,
                    graph: request.graph,
                    outcome,
                    took: start.elapsed(),
                };
                if done.send(loaded).is_err() {
                    return;
                }
            }
        };
        Self {
            requests: Some(sender),
            outcomes,
            is_busy: false,
            thread: Some(std::thread::spawn(work)),
        }
    }

    /// Whether a load is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Begins a load. That the thread is gone, [`wait`](Self::wait) says.
    pub(super) fn begin(&mut self, block: usize, graph: Graph, places: Vec<(Place, Rung)>) {
        self.is_busy = true;
        if let Some(requests) = &self.requests {
            let _ = requests.send(Request {
                block,
                graph,
                places,
            });
        }
    }

    /// The load that has ended, if it has.
    pub(super) fn finished(&mut self) -> Result<Option<Loaded>, ExecError> {
        match self.outcomes.try_recv() {
            Ok(loaded) => {
                self.is_busy = false;
                Ok(Some(loaded))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(ExecError::LoaderGone),
        }
    }

    /// Waits for the load that is under way, or until `cancel` is set.
    pub(super) fn wait(&mut self, cancel: Option<&AtomicBool>) -> Result<Loaded, ExecError> {
        loop {
            match self.outcomes.recv_timeout(PATIENCE) {
                Ok(loaded) => {
                    self.is_busy = false;
                    return Ok(loaded);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(ExecError::LoaderGone),
                Err(RecvTimeoutError::Timeout) => {
                    if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                        return Err(ExecError::Abandoned);
                    }
                }
            }
        }
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // Nobody wants what it loads, nor why it could not.
            let _ = thread.join();
        }
    }
}

/// Loads a graph of every place, and lets each compute its known answer: that packs its weights as well.
fn load(tailor: &Tailor, request: &Request) -> Result<Vec<(Place, Form)>, ExecError> {
    let rows = match request.graph {
        Graph::Long => None,
        Graph::Short => Some(SHORT_ROWS),
    };
    let of_place = |(place, rung): &(Place, Rung)| Ok((*place, tailor(*place, *rung, rows)?));
    request.places.iter().map(of_place).collect()
}

/// Interval at which the cancel flag is read.
const PATIENCE: Duration = Duration::from_millis(100);
