//! The GPU as the partner in a pair: it computes areas of products while CPU threads compute the rest, over the same weights,
//! activations and scratch rows (HeteroLLM §4.1). Nothing is copied where weights are imported; an area is one submission.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use heg_artifacts::Bundle;
use heg_artifacts::manifest::{ElementType, Kernel};
use heg_artifacts::program::Program;
use heg_cpu::{
    Partner, PartnerArea, PartnerFailure, PartnerKernel, PartnerMemory, PartnerProduct,
    ProgramRows, WeightBytes,
};
use heg_gpu::{
    CallState, GpuArea, GpuError, GpuOrder, GpuProduct, GpuProgram, GpuRegion, GpuRows, GpuWeight,
    StateLimits,
};

use super::role::{GpuRole, PATIENCE, read_by_programs, taken};
use crate::mem::partner_memory;

/// The GPU of a role, as a partner.
pub(super) struct GpuPartner(Arc<Shared>);

/// The device with what all kernels use of it.
struct Shared {
    role: Arc<GpuRole>,
    bundle: Arc<Bundle>,
    /// Whether it computes areas of products at all.
    shares_products: bool,
    /// Regions of sections, by the address at which the host has them.
    sections: OnceLock<HashMap<usize, GpuRegion>>,
    /// Operands that it rounds itself.
    operands: Mutex<Option<GpuRegion>>,
    state: CallState,
    is_lost: AtomicBool,
    parts: AtomicU64,
}

/// A kernel whose products it computes.
struct GpuPartnerKernel {
    shared: Arc<Shared>,
    program: GpuProgram,
    /// Commands of areas of few rows, which come again with every token.
    recorded: Mutex<HashMap<AreaKey, GpuOrder>>,
}

/// The areas that commands are for, by all addresses that they use. Commands keep their memory, so that no other has its
/// addresses.
#[derive(Debug, PartialEq, Eq, Hash)]
struct AreaKey {
    step: usize,
    rows: usize,
    addresses: Vec<usize>,
    areas: Vec<PartnerArea>,
}

/// The rows of a call, up to which commands are kept. Chosen: those of a decode step. Commands keep the activations of
/// prompts, which go with the prompt.
const KEPT_ROWS: usize = 16;

/// Commands that are kept of a kernel. Chosen: those of all layers of a large model, for some numbers of rows.
const KEPT: usize = 512;

/// The memory that areas of a call are computed over.
struct Places {
    weights: Vec<GpuWeight>,
    inputs: Vec<Option<GpuRows>>,
    outputs: Vec<Option<GpuRows>>,
    scratch: GpuRegion,
}

impl GpuPartner {
    /// A partner that shares products, or only runs passes alone, since its memory is its own.
    pub(super) fn new(
        role: &Arc<GpuRole>,
        bundle: &Arc<Bundle>,
        shares_products: bool,
    ) -> Result<Self, GpuError> {
        let limits = StateLimits {
            rows: 1,
            layers: 1,
            cache_row_bytes: 16,
            positions: 1,
            tokens: 1,
        };
        Ok(Self(Arc::new(Shared {
            state: CallState::new(&role.device, limits)?,
            role: Arc::clone(role),
            bundle: Arc::clone(bundle),
            shares_products,
            sections: OnceLock::new(),
            operands: Mutex::default(),
            is_lost: AtomicBool::new(false),
            parts: AtomicU64::new(0),
        })))
    }
}

impl Shared {
    /// Weights by the addresses at which the host has them.
    fn sections(&self) -> Option<&HashMap<usize, GpuRegion>> {
        if let Some(known) = self.sections.get() {
            return Some(known);
        }
        let sections = self.role.sections(&self.bundle).ok()?;
        let start = self.bundle.mapping().as_ptr().addr();
        let ids = read_by_programs(self.bundle.manifest()).into_iter();
        let regions = ids.map(|id| {
            let range = self.bundle.section_range(id).ok()?;
            Some((start + range.start as usize, sections.section(id).ok()?))
        });
        let regions: Option<HashMap<_, _>> = regions.collect();
        Some(self.sections.get_or_init(|| regions.unwrap_or_default()))
    }

    fn weight(&self, weight: &WeightBytes<'_>) -> Option<GpuWeight> {
        let sections = self.sections()?;
        let region = |bytes: &[u8]| sections.get(&bytes.as_ptr().addr()).cloned();
        Some(GpuWeight {
            values: region(weight.values)?,
            scales: match weight.affine {
                Some(affine) => Some(region(affine.scales)?),
                None => None,
            },
            centres: match weight.affine.and_then(|affine| affine.centres) {
                Some(centres) => Some(region(centres)?),
                None => None,
            },
        })
    }

    /// Rows that lie at one distance from each other, in memory that both work on.
    fn rows(&self, runs: &[ProgramRows<'_>]) -> Option<GpuRows> {
        let [first, rest @ ..] = runs else {
            return None;
        };
        let stride = first.stride_bytes();
        let mut next = first.start().addr() + first.count() * stride;
        for run in rest {
            if run.start().addr() != next || run.stride_bytes() != stride {
                return None;
            }
            next += run.count() * stride;
        }
        let bytes = next - first.start().addr();
        Some(GpuRows {
            region: self.role.device.region_at(first.start(), bytes)?,
            stride: u32::try_from(stride / size_of::<f32>()).ok()?,
        })
    }

    /// Memory for operands.
    fn operands(&self, bytes: u64) -> Result<GpuRegion, GpuError> {
        let mut operands = taken(&self.operands);
        match &*operands {
            Some(there) if there.bytes() >= bytes => Ok(there.clone()),
            _ => {
                let made = self.role.device.memory(bytes)?;
                Ok(operands.insert(made).clone())
            }
        }
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed) || self.role.device.is_lost()
    }
}

impl Partner for GpuPartner {
    fn memory(&self, bytes: usize) -> Option<PartnerMemory> {
        let Self(shared) = self;
        if shared.is_lost() || !shared.shares_products {
            return None;
        }
        let made = shared.role.device.shared_memory(bytes as u64).ok()??;
        // As the CPU's own would be.
        made.region().write(0, &vec![0; made.len()]).ok()?;
        partner_memory(made)
    }

    fn kernel(
        &self,
        program: &Program,
        declared: &Kernel,
        kv: ElementType,
    ) -> Option<Arc<dyn PartnerKernel>> {
        let Self(shared) = self;
        if !shared.shares_products {
            return None;
        }
        let activations = shared.role.activations;
        let program = GpuProgram::new(program.clone(), declared, kv, activations).ok()?;
        Some(Arc::new(GpuPartnerKernel {
            shared: Arc::clone(shared),
            program,
            recorded: Mutex::default(),
        }))
    }

    fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    fn parts(&self) -> u64 {
        self.0.parts.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for GpuPartnerKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuPartnerKernel").finish_non_exhaustive()
    }
}

impl GpuPartnerKernel {
    /// The memory of a product, as the device has it; `None` if it does not reach all of it.
    fn places(&self, product: &PartnerProduct<'_>) -> Option<Places> {
        let call = product.call;
        let ports = |ports: &[&[ProgramRows<'_>]], is_input| {
            let ports = ports.iter().enumerate();
            let rows = ports.map(|(port, runs)| {
                let needed = self.program.needs_port(product.step, is_input, port);
                match needed {
                    true => Some(Some(self.shared.rows(runs)?)),
                    false => Some(None),
                }
            });
            rows.collect::<Option<Vec<_>>>()
        };
        let weights = call.weights.iter().map(|weight| self.shared.weight(weight));
        let elements = self.program.scratch_elements() as usize;
        let bytes = (call.rows * elements * size_of::<f32>()).max(1);
        Some(Places {
            weights: weights.collect::<Option<_>>()?,
            inputs: ports(call.inputs, true)?,
            outputs: ports(call.outputs, false)?,
            scratch: self.shared.role.device.region_at(product.scratch, bytes)?,
        })
    }

    fn record(
        &self,
        product: &PartnerProduct<'_>,
        areas: &[PartnerArea],
    ) -> Result<GpuOrder, GpuError> {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let missing = GpuError::Call {
            what: "memory that both halves of a pair reach",
            index: product.step,
            expected: 1,
            found: 0,
        };
        let places = self.places(product).ok_or(missing)?;
        let areas = areas.iter().map(|area| GpuArea {
            part: area.part,
            outputs: number(area.outputs.start)..number(area.outputs.end),
            rows: number(area.tokens.start)..number(area.tokens.end),
        });
        let rows = number(product.call.rows);
        let operands = self.shared.operands(self.program.operand_bytes(rows))?;
        let product = GpuProduct {
            step: product.step,
            rows,
            weights: &places.weights,
            inputs: &places.inputs,
            outputs: &places.outputs,
            scratch: &places.scratch,
            operands: &operands,
            state: &self.shared.state,
            areas: &areas.collect::<Vec<_>>(),
        };
        GpuOrder::record_product(&self.shared.role.device, &self.program, &product)
    }

    /// Computes areas, and says how long the device was busy, if it tells.
    fn run(
        &self,
        product: &PartnerProduct<'_>,
        areas: &[PartnerArea],
    ) -> Result<Option<Duration>, GpuError> {
        let run = |order: &GpuOrder| order.run(PATIENCE).map(|()| order.busy());
        let call = product.call;
        if call.rows > KEPT_ROWS {
            return run(&self.record(product, areas)?);
        }
        let rows = call
            .inputs
            .iter()
            .chain(call.outputs)
            .flat_map(|runs| runs.iter());
        let rows = rows.map(|run| run.start().addr());
        let weights = call
            .weights
            .iter()
            .map(|weight| weight.values.as_ptr().addr());
        let key = AreaKey {
            step: product.step,
            rows: call.rows,
            addresses: rows
                .chain(weights)
                .chain([product.scratch.addr()])
                .collect(),
            areas: areas.to_vec(),
        };
        let mut recorded = taken(&self.recorded);
        if let Some(known) = recorded.get(&key) {
            return run(known);
        }
        if recorded.len() >= KEPT {
            recorded.clear();
        }
        let made = self.record(product, areas)?;
        run(recorded.entry(key).or_insert(made))
    }
}

impl PartnerKernel for GpuPartnerKernel {
    fn takes(&self, product: &PartnerProduct<'_>) -> bool {
        !self.shared.is_lost()
            && self.program.has_areas(product.step)
            && self.places(product).is_some()
    }

    fn compute(
        &self,
        product: &PartnerProduct<'_>,
        areas: &[PartnerArea],
    ) -> Result<Option<Duration>, PartnerFailure> {
        if self.shared.is_lost() {
            return Err(PartnerFailure::Ended);
        }
        match self.run(product, areas) {
            Ok(busy) => {
                self.shared.parts.fetch_add(1, Ordering::Relaxed);
                Ok(busy)
            }
            Err(error) => {
                self.shared.is_lost.store(true, Ordering::Relaxed);
                Err(match error {
                    late @ GpuError::Late { .. } => PartnerFailure::MayWrite(Box::new(late)),
                    _ => PartnerFailure::Ended,
                })
            }
        }
    }
}
