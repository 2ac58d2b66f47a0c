//! Fusion plans: which operators become one kernel, given by the kernel's boundary.
//!
//! A kernel holds every operator between its inputs and its outputs. Boundaries are anchors that each layer has,
//! whatever its family: the layer's input and output and the ends of its attention.

use serde::Deserialize;

use crate::error::SpecError;
use crate::source::{Problems, Source};
use crate::vocabulary::Group;

/// A plan for cutting the model into kernels.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fusion {
    /// Name, e.g. `agent-xpu`.
    pub name: String,
    /// The kernels of a layer, and the head.
    pub kernels: Vec<KernelPlan>,
}

/// One op group.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelPlan {
    /// The op group.
    pub group: Group,
    /// The anchors where it begins.
    pub inputs: Vec<GraphAnchor>,
    /// The anchors where it ends.
    pub outputs: Vec<GraphAnchor>,
}

/// A point in the graph that every family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum GraphAnchor {
    /// Residual stream entering the layer, or the head.
    Input,
    /// Queries as the attention reads them.
    Query,
    /// Keys as the attention reads them.
    Key,
    /// Values as the attention reads them.
    Value,
    /// Output of the attention.
    Attended,
    /// Residual stream leaving the layer, or the logits.
    Output,
}

impl Fusion {
    /// Parses a fusion plan.
    pub fn parse(source: Source<'_>) -> Result<Self, SpecError> {
        let fusion: Self = source.parse()?;
        let mut problems = Problems::new(source);
        for group in Group::ALL {
            let count = fusion.kernels.iter().filter(|k| k.group == group).count();
            if count != 1 {
                let message = format!("expected one kernel `{group:?}`, found {count}");
                problems.push("kernels", message);
            }
        }
        problems.finish(fusion)
    }
}
