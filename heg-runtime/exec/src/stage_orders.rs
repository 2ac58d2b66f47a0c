//! The order in which a model's kernels run: that of the bundle's execution graphs.

use heg_artifacts::manifest::{Manifest, StageGraph};
use heg_sched::{LayerKernel, LayerOrder, WorkStage};
use heg_spec::bug;

use crate::error::ExecError;

/// The order of a layer's kernels in each stage.
#[derive(Debug, Clone, Copy)]
pub struct StageOrders {
    prefill: LayerOrder,
    decode: LayerOrder,
}

impl StageOrders {
    /// Returns the orders that a bundle's graphs say.
    ///
    /// # Errors
    ///
    /// [`ExecError::Bug`] if a graph says none, which no bundle that was opened does.
    pub fn of(manifest: &Manifest) -> Result<Self, ExecError> {
        Ok(Self {
            prefill: layer_order(&manifest.heg.prefill, manifest)?,
            decode: layer_order(&manifest.heg.decode, manifest)?,
        })
    }

    /// Returns the order of a stage.
    pub fn at(self, stage: WorkStage) -> LayerOrder {
        match stage {
            WorkStage::Prefill => self.prefill,
            WorkStage::Decode => self.decode,
        }
    }
}

fn layer_order(graph: &StageGraph, manifest: &Manifest) -> Result<LayerOrder, ExecError> {
    let order = || {
        let groups = graph.layer_order(&manifest.kernels)?;
        let kernels: Option<Vec<LayerKernel>> = groups.into_iter().map(LayerKernel::of).collect();
        let (writes, reads) = graph.cache_ends(&manifest.kernels)?;
        let cache = (LayerKernel::of(writes)?, LayerKernel::of(reads)?);
        LayerOrder::new(&kernels?, cache)
    };
    order().ok_or_else(|| bug!("the execution graph of an opened bundle has no order").into())
}

#[cfg(test)]
mod tests {
    use heg_artifacts::Bundle;

    use super::*;

    const TINY: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../artifacts/testdata/v1/tiny.heg"
    );

    #[test]
    fn the_order_of_each_stage_is_that_of_its_graph() {
        let mut manifest = Bundle::open(TINY).unwrap().manifest().clone();
        let orders = StageOrders::of(&manifest).unwrap();
        let whole = [LayerKernel::Qkv, LayerKernel::Mha, LayerKernel::Ffn];
        assert_eq!(orders.at(WorkStage::Decode).kernels(), whole);
        let edges = &mut manifest.heg.decode.edges;
        let attended = edges.iter().position(|edge| (edge.from, edge.to) == (1, 2));
        // `ffn` writes what `qkv` of its own layer reads: no bundle says so, but the order is the graph's.
        let edge = &mut edges[attended.unwrap()];
        (edge.from, edge.to) = (2, 0);
        let turned = StageOrders::of(&manifest).unwrap();
        let kernels = [LayerKernel::Ffn, LayerKernel::Qkv, LayerKernel::Mha];
        assert_eq!(turned.at(WorkStage::Decode).kernels(), kernels);
        assert_eq!(turned.at(WorkStage::Prefill).kernels(), whole);
    }
}
