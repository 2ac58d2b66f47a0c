//! Recorded commands of launches. Where a layer takes less than a submission may, its three kernels are one (Agent.xpu §4.2):
//! recorded together, and submitted without a stop in between.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use heg_gpu::GpuOrder;
use heg_spec::Group;

use super::memory::LaneMemory;
use super::pass::Chosen;
use crate::error::ExecError;

/// Commands that were recorded, by what they do.
pub(super) type Recorded = BTreeMap<Key, Arc<GpuOrder>>;

/// A launch or a layer, its rows, and whether the head's rows are gathered on the device.
pub(super) type Key = (Option<u32>, Part, usize, bool);

/// The launches that are recorded as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Kernel(Group),
    /// All kernels of a layer.
    Layer,
}

/// Commands that are submitted in one go, with the launches that they are.
pub(super) struct Unit {
    pub(super) launches: Range<usize>,
    pub(super) order: Arc<GpuOrder>,
}

/// Kernels of a layer.
const LAYER_KERNELS: usize = 3;

/// Recordings that are kept. Chosen: some forty numbers of rows of a model of thirty layers.
const RECORDED_MAX: usize = 4096;

impl LaneMemory {
    /// The recorded commands of launches, at most `together` of them in a submission.
    pub(super) fn units(
        &mut self,
        launches: &[Chosen<'_>],
        together: usize,
    ) -> Result<Vec<Unit>, ExecError> {
        if self.recorded.len() + launches.len() > RECORDED_MAX {
            self.recorded.clear();
        }
        let mut units = Vec::with_capacity(launches.len());
        let mut first = 0;
        while let Some(rest @ [next, ..]) = launches.get(first..) {
            let layer = rest.get(..LAYER_KERNELS).filter(|it| is_layer(it));
            let layer = layer.filter(|layer| layer.len() <= together);
            let part = layer.map_or(Part::Kernel(next.launch.group), |_| Part::Layer);
            let own = layer.unwrap_or(std::slice::from_ref(next));
            let key = (next.launch.layer, part, next.rows, next.gathers);
            let order = match self.recorded.get(&key) {
                Some(order) => Arc::clone(order),
                None => {
                    let order = Arc::new(self.record(own)?);
                    self.recorded.insert(key, Arc::clone(&order));
                    order
                }
            };
            let launches = first..first + own.len();
            first = launches.end;
            units.push(Unit { launches, order });
        }
        Ok(units)
    }
}

/// Whether launches, as many as a layer has kernels and in their order, are of one layer and over the same rows.
fn is_layer(launches: &[Chosen<'_>]) -> bool {
    let same = |chosen: &Chosen<'_>| {
        launches.first().is_some_and(|first| {
            first.launch.layer == chosen.launch.layer && first.rows == chosen.rows
        })
    };
    launches.iter().all(same)
}
