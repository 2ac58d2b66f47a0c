//! Orders: consecutive launches on one back end, which carries them out in one go.

use std::time::Instant;

use heg_gpu::GpuError;
use heg_spec::{Group, bug};

use crate::backend::Order;
use crate::batch::{Batch, Coming, GoesOn};
use crate::error::ExecError;
use crate::executor::Executor;
use crate::form::BackendIndex;
use crate::pair_ways::{PairWay, PassKind};
use crate::stage_orders::StageOrders;
use heg_sched::{Launch, Logits, WorkStage, launches};

impl Executor {
    /// Number of layers of the model.
    pub fn layers(&self) -> u32 {
        self.manifest().layers.len() as u32
    }

    /// The order of each layer's kernels.
    pub fn orders(&self) -> StageOrders {
        self.orders
    }

    /// Bytes of keys and values of a token over all layers, as the bundle's execution graph counts them.
    ///
    /// # Errors
    ///
    /// [`ExecError::Bug`] if the graph does not know the element type, which is that of a variant.
    pub fn kv_bytes_per_token(&self) -> Result<u64, ExecError> {
        let element = self.needs.ladder.elements().kv;
        let bytes = self.manifest().heg.decode.cache_bytes(element);
        bytes.ok_or_else(|| bug!("a graph does not know the element type of the cache").into())
    }

    /// Runs one launch.
    ///
    /// # Errors
    ///
    /// Errors of the device, and [`ExecError::Launch`] for a launch that no form can run.
    pub fn launch(&mut self, launch: Launch, batch: &Batch<'_>) -> Result<(), ExecError> {
        self.launch_all(&[launch], batch, &|_| true)?;
        Ok(())
    }

    /// Runs launches over the same rows one after the other, and returns the number of those that ran. A back end
    /// gets its consecutive launches as one order. Before each launch but the first, `goes_on` is asked whether to
    /// run it.
    ///
    /// # Errors
    ///
    /// The errors of [`launch`](Self::launch).
    pub fn launch_all(
        &mut self,
        launches: &[Launch],
        batch: &Batch<'_>,
        goes_on: &GoesOn<'_>,
    ) -> Result<usize, ExecError> {
        self.recheck.before(&self.needs.loader, launches.len())?;
        let Some(kind) = self.choose_way(launches, batch) else {
            return self.launch_each(launches, batch, goes_on);
        };
        let (way, begin) = (self.forms.way, Instant::now());
        let pair = self.needs.loader.pair().cloned();
        let run_as = |way| pair.iter().for_each(|pair| pair.run_as(way));
        run_as(way);
        let ran = self.launch_each(launches, batch, goes_on);
        self.forms.way = PairWay::Together;
        run_as(PairWay::Together);
        let Some(ways) = &mut self.forms.ways else {
            return ran;
        };
        match &ran {
            // The rows that the pass began with are as they were: the CPU runs it.
            Err(error) if way == PairWay::Partner && may_run_again(error) => {
                ways.lose_partner();
                self.launch_each(launches, batch, goes_on)
            }
            Ok(count) => {
                let took = begin.elapsed();
                if *count == launches.len() {
                    ways.learn(kind, way, took);
                }
                if let Some(pair) = &pair {
                    pair.count_pass(way);
                    if way == PairWay::Together {
                        ways.expect(kind, pair.prospect());
                    }
                }
                ran
            }
            Err(_) => ran,
        }
    }

    /// Chooses the way of a pair's pass, and returns what it is measured as; `None` where there is but one way.
    fn choose_way(&mut self, launches: &[Launch], batch: &Batch<'_>) -> Option<PassKind> {
        let ways = self.forms.ways.as_mut()?;
        let pair = self.needs.loader.pair()?;
        let kind = PassKind {
            class: self.class,
            launches: launches.len(),
            rows: batch.tokens().next_power_of_two(),
        };
        self.forms.way = match pair.only_way() {
            _ if pair.lost_side().is_some() => PairWay::Together,
            Some(way) => way,
            None => ways.choose(kind, pair.first_prospect()),
        };
        Some(kind)
    }

    /// Runs launches on the forms of the way that was chosen: see [`launch_all`](Self::launch_all).
    fn launch_each(
        &mut self,
        launches: &[Launch],
        batch: &Batch<'_>,
        goes_on: &GoesOn<'_>,
    ) -> Result<usize, ExecError> {
        let mut done = 0;
        while let Some(rest @ [first, ..]) = launches.get(done..) {
            if done > 0 && !goes_on(*first) {
                break;
            }
            let backend = self.backend(*first, batch)?;
            let is_same = |launch: &&Launch| self.backend(**launch, batch).ok() == Some(backend);
            let given = rest.iter().take_while(is_same).count();
            let ran = self.carry_out(backend, rest.get(..given).unwrap_or(rest), batch, goes_on)?;
            done += ran;
            if ran < given {
                break;
            }
        }
        Ok(done)
    }

    fn carry_out(
        &mut self,
        backend: BackendIndex,
        launches: &[Launch],
        batch: &Batch<'_>,
        goes_on: &GoesOn<'_>,
    ) -> Result<usize, ExecError> {
        let session = self.sessions.get_mut(backend.0);
        let session = session.ok_or_else(|| bug!("a back end has no session"))?;
        session.carry_out(Order {
            launches,
            batch,
            forms: &mut self.forms,
            scratch: &self.scratch,
            class: self.class,
            cancel: self.cancel.as_deref(),
            goes_on,
        })
    }

    /// Returns the back end of a launch.
    fn backend(&self, launch: Launch, batch: &Batch<'_>) -> Result<BackendIndex, ExecError> {
        let (rows, context) = batch.size_for(launch.group);
        self.forms
            .backend(self.forms.target(launch)?, rows, context)
    }

    /// Whether a sequence may have `tokens` new tokens that are a tree, if it has `context` with them: the attention of all
    /// layers has to take it. No other kernel minds.
    pub fn takes_trees(&self, tokens: usize, context: usize) -> bool {
        let order = self.orders.at(WorkStage::Decode);
        let layers = launches(order, 0..self.layers(), Logits::None);
        let mut attention = layers.filter(|launch| launch.group == Group::Mha);
        attention.all(|launch| {
            let target = self.forms.target(launch);
            let form = target.and_then(|target| self.forms.ready(target, tokens, context));
            form.is_ok_and(|form| form.runner.takes_trees())
        })
    }

    /// Whether a launch waits for no load of a graph.
    pub fn is_at_hand(&mut self, launch: Launch) -> bool {
        let mut sessions = self.sessions.iter_mut();
        sessions.all(|session| session.is_at_hand(launch, &mut self.forms))
    }

    /// Announces the work that the following launches belong to.
    pub fn expect(&mut self, coming: Coming) {
        for session in &mut self.sessions {
            session.expect(coming);
        }
    }

    /// Uses idle time. Returns whether there is more to do.
    ///
    /// # Errors
    ///
    /// [`ExecError::DeviceLost`] if a device is found to compute wrongly.
    pub fn rest(&mut self) -> Result<bool, ExecError> {
        let mut is_more = self.recheck.rest(&self.needs.loader)?;
        for session in &mut self.sessions {
            is_more |= session.rest(&mut self.forms);
        }
        Ok(is_more)
    }

    /// Sets a check that is asked before every load of a graph whether it may succeed.
    #[cfg(feature = "faults")]
    pub fn permit_loads(&mut self, permit: crate::LoadPermit) {
        for session in &mut self.sessions {
            session.permit_loads(&permit);
        }
    }

    /// Switches every block of layers each time before it computes.
    #[cfg(feature = "faults")]
    pub fn switch_always(&mut self) {
        for session in &mut self.sessions {
            session.switch_always();
        }
    }
}

/// Whether a GPU that failed writes nothing any more, so that its pass may run elsewhere.
fn may_run_again(error: &ExecError) -> bool {
    match error {
        ExecError::Gpu { source, .. } => !matches!(source, GpuError::Late { .. }),
        _ => false,
    }
}
