//! Compiles products as separate kernels with the NPU's compiler, to find the faster order of their operands (`orders`)
//! and a machine's cuts by its estimates (`cuts`), with blobs for the NPU's pieces of them (`pieces`).
//!
//! Blobs are kept in the store like those of bundles, so that a killed run is resumed and a second one compiles
//! nothing.

mod cuts;
mod orders;
mod pieces;

use std::cell::Cell;

use heg_artifacts::Store;
use heg_artifacts::manifest::{Binding, Port, Role, Rows, ShapeClass};
use heg_profiler::vendor::NpuBlob;
use heg_spec::{DeviceClass, Group, NpuPlatform};

pub(crate) use cuts::{cut_blobs, cuts, npu_of};
pub(crate) use orders::{Site, orders, weights_first};

use crate::error::CompileError;
use crate::graph::{Activation, Op, Param};
use crate::heg::{BodyOp, KernelBody, Operand};
use crate::lower::{Literals, Lowering, WeightsFirst, lower_verified};
use crate::npu::{NpuError, NpuJob, NpuToolchain, Pool, Precompiled, precompile};
use crate::options::Verify;
use crate::phase::{Phase, Progress};
use crate::plan::Plan;
use crate::variants::activations;

/// A kernel for a fixed number of tokens on one platform.
pub(crate) struct Inquiry {
    pub(crate) name: String,
    pub(crate) body: KernelBody,
    pub(crate) tokens: u32,
    pub(crate) weights_first: WeightsFirst,
    pub(crate) platform: NpuPlatform,
}

/// The compiler's result for a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reply {
    pub(crate) made: Precompiled,
    /// Estimate at the highest clock in µs, if there is one.
    pub(crate) latency_us: Option<f64>,
}

/// Compiles kernels with the NPU's compiler and reads its estimates.
pub(crate) struct Inquirer<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) store: &'a Store,
    pub(crate) pool: &'a Pool,
    verify: Verify,
    pub(crate) progress: &'a dyn Progress,
}

impl<'a> Inquirer<'a> {
    /// Makes one that asks about kernels of a plan, and keeps blobs in a store.
    pub(crate) fn new(
        plan: &'a Plan,
        (store, pool): (&'a Store, &'a Pool),
        verify: Verify,
        progress: &'a dyn Progress,
    ) -> Self {
        Self {
            plan,
            store,
            pool,
            verify,
            progress,
        }
    }

    /// Returns a reply to each inquiry, in their order. A kernel that the compiler refuses has its error in its place.
    pub(crate) fn ask(
        &self,
        inquiries: &[Inquiry],
    ) -> Result<Vec<Result<Reply, NpuError>>, CompileError> {
        let toolchain = NpuToolchain::find().map_err(NpuError::from)?;
        let jobs = inquiries.iter().map(|inquiry| self.job(inquiry));
        let jobs = jobs.collect::<Result<Vec<_>, CompileError>>()?;
        self.progress.begin(Phase::Precompile, jobs.len() as u64);
        let seen = Cell::new(0);
        let outcomes = precompile(&toolchain, &jobs, self.store, self.pool, &|done, _| {
            let news = done.saturating_sub(seen.replace(done));
            self.progress.advance(news as u64);
        })?;
        let replies = inquiries.iter().zip(outcomes);
        replies
            .map(|(inquiry, outcome)| match outcome {
                Ok(made) => self.reply(&inquiry.name, made).map(Ok),
                Err(error) => Ok(Err(error)),
            })
            .collect()
    }

    fn job(&self, inquiry: &Inquiry) -> Result<NpuJob, CompileError> {
        let weights = self.plan.weights;
        let lowering = Lowering {
            shape: ShapeClass::Static {
                tokens: inquiry.tokens,
            },
            binding: Binding::Input,
            activations: activations(DeviceClass::Npu, weights),
            kv_cache: None,
            takes_trees: false,
            weights,
            weights_first: inquiry.weights_first,
        };
        let mut literals = Literals::default();
        let ir = lower_verified(&inquiry.body, lowering, &mut literals, self.verify)?;
        let pool = literals.into_bytes();
        let mut job = NpuJob::from_ir(inquiry.name.clone(), &ir, &pool, inquiry.platform)?;
        let tokens = inquiry.tokens.into();
        job.cost = inquiry.body.work(0, 0).flops(tokens, tokens) as u64;
        Ok(job)
    }

    /// Reads the estimate and the metadata of a blob.
    pub(crate) fn reply(&self, name: &str, made: Precompiled) -> Result<Reply, CompileError> {
        let bytes = self.store.map(made.blob.id)?;
        let metrics = NpuBlob::read(&bytes).and_then(|blob| blob.perf_metrics());
        let metrics = metrics.map_err(|source| CompileError::Blob {
            name: name.to_owned(),
            source,
        })?;
        let latency_us = metrics.map(|metrics| {
            let [.., (_, highest_us)] = metrics.latencies_us();
            highest_us
        });
        Ok(Reply { made, latency_us })
    }
}

/// A linear operator's weights, without their names so that equal shapes are equal kernels.
#[derive(Debug, Clone, PartialEq)]
struct Linear {
    weight: Param,
    bias: Option<Param>,
}

impl Linear {
    fn of(op: &Op) -> Option<Self> {
        let Op::Linear { weight, bias } = op else {
            return None;
        };
        let (mut weight, mut bias) = (weight.clone(), bias.clone());
        weight.slot = "weight".to_owned();
        if let Some(bias) = &mut bias {
            bias.slot = "bias".to_owned();
        }
        Some(Self { weight, bias })
    }

    fn rows(&self) -> u32 {
        self.weight.shape.first().copied().unwrap_or(0)
    }

    fn columns(&self) -> u32 {
        self.weight.shape.get(1).copied().unwrap_or(0)
    }

    /// The operator with its first `rows` rows only.
    fn first(&self, rows: u32) -> Self {
        let mut part = self.clone();
        for param in std::iter::once(&mut part.weight).chain(&mut part.bias) {
            if let Some(all) = param.shape.first_mut() {
                *all = rows.min(*all);
            }
        }
        part
    }

    fn op(&self, number: usize) -> Op {
        let numbered = |param: &Param| Param {
            slot: format!("{}.{number}", param.slot),
            ..param.clone()
        };
        Op::Linear {
            weight: numbered(&self.weight),
            bias: self.bias.as_ref().map(numbered),
        }
    }
}

/// A kernel of linear operators over the same rows; with a gate, the activation of the first is multiplied by the
/// second.
fn kernel(linears: &[Linear], gate: Option<Activation>) -> KernelBody {
    let tokens = |role, width| Port {
        role,
        rows: Rows::Tokens,
        width,
    };
    let columns = linears.first().map_or(0, Linear::columns);
    let mut ops: Vec<BodyOp> = linears
        .iter()
        .enumerate()
        .map(|(number, linear)| BodyOp {
            name: format!("y.{number}"),
            op: linear.op(number),
            operands: vec![Operand::Input(0)],
        })
        .collect();
    let mut results: Vec<Operand> = (0..ops.len()).map(Operand::Op).collect();
    if let Some(activation) = gate {
        ops.push(BodyOp {
            name: "gated".to_owned(),
            op: Op::Gated(activation),
            operands: std::mem::take(&mut results),
        });
        results.push(Operand::Op(linears.len()));
    }
    // The names of the ports only need to differ.
    let roles = [Role::Query, Role::Key, Role::Value];
    let outputs = results.iter().zip(linears).zip(roles);
    KernelBody {
        name: "product".to_owned(),
        group: Group::Ffn,
        inputs: vec![tokens(Role::Hidden, columns)],
        outputs: outputs
            .map(|((_, linear), role)| tokens(role, linear.rows()))
            .collect(),
        ops,
        results,
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
