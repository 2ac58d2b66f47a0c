//! The NPU as the partner in a pair: it computes parts of products by pieces that were compiled ahead of time, while CPU
//! threads compute the rest (HeteroLLM §4.1). Weights are read where they lie. Operands go to the NPU in its own numbers,
//! and results come back in f32; the program adds what it adds to a product.
//!
//! A piece has its number of outputs and tokens. An area whose outputs no piece has is the CPU's, with the whole product.

mod bench;
mod cover;
mod rows;
mod spot_check;
mod weight_rows;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use heg_artifacts::Bundle;
use heg_artifacts::manifest::{ElementType, Kernel, RowsForm};
use heg_artifacts::program::{Program, Step};
use heg_cpu::{
    Partner, PartnerArea, PartnerFailure, PartnerForms, PartnerKernel, PartnerMemory,
    PartnerProduct,
};
use heg_openvino::Core;
use heg_spec::bug;

use super::sections::Sections;
use super::watch::DeviceWatch;
use crate::error::{ExecError, Loss, chain};
use crate::ladder::DeviceFacts;
use crate::mem::MemoryHome;
use bench::{Bench, PieceJob};
use cover::{PieceIndex, PieceRun};

/// The NPU of a pair.
pub(super) struct NpuPartner(Arc<Shared>);

/// The device with what all kernels use of it.
struct Shared {
    index: PieceIndex,
    /// Places of the bundle's weights, by the address of their values.
    weights: HashMap<usize, usize>,
    watch: Arc<DeviceWatch>,
    bench: Mutex<Bench>,
    parts: AtomicU64,
}

/// A kernel whose products it computes parts of.
struct NpuPartnerKernel {
    shared: Arc<Shared>,
    /// By step, and by part of its product: the number of the weight and its form.
    products: BTreeMap<usize, Vec<(usize, RowsForm)>>,
}

/// The memory and the device of a partner.
pub(super) struct PartnerPlace<'a> {
    pub(super) core: &'a Core,
    pub(super) facts: &'a DeviceFacts,
    pub(super) sections: Sections,
    pub(super) home: MemoryHome,
}

impl NpuPartner {
    /// Imports the pieces of a bundle that fit a device; `None` if none does, or it takes none of them.
    pub(super) fn new(
        bundle: &Arc<Bundle>,
        place: PartnerPlace<'_>,
    ) -> Result<Option<Self>, ExecError> {
        let PartnerPlace {
            core,
            facts,
            sections,
            home,
        } = place;
        let manifest = bundle.manifest();
        let mut index = PieceIndex::default();
        let mut models = BTreeMap::new();
        for (number, piece) in manifest.pieces.iter().enumerate() {
            let blob = piece.blobs.iter().find(|blob| facts.accepts(blob).is_ok());
            let Some(blob) = blob else {
                continue;
            };
            let bytes = sections.bytes(blob.section)?;
            // A piece that the driver does not read is the CPU's to compute.
            if let Ok(model) = core.import(&bytes, &facts.name) {
                index.add(number, piece);
                models.insert(number, model);
            }
        }
        if index.is_empty() {
            return Ok(None);
        }
        let start = bundle.mapping().as_ptr().addr();
        let place_of = |(number, weight): (usize, &heg_artifacts::manifest::Weight)| {
            let range = bundle.section_range(weight.values).ok()?;
            Some((start + range.start as usize, number))
        };
        let weights = manifest.weights.iter().enumerate().filter_map(place_of);
        let watch = Arc::new(DeviceWatch::new(&facts.name));
        Ok(Some(Self(Arc::new(Shared {
            index,
            weights: weights.collect(),
            watch: Arc::clone(&watch),
            bench: Mutex::new(Bench {
                bundle: Arc::clone(bundle),
                sections,
                home,
                watch,
                models,
                requests: BTreeMap::new(),
                slots: BTreeMap::new(),
            }),
            parts: AtomicU64::new(0),
        }))))
    }
}

impl Shared {
    fn is_lost(&self) -> bool {
        self.watch.why_lost().is_some()
    }
}

impl Partner for NpuPartner {
    /// It has memory of its own, to which rows are brought in its own numbers.
    fn memory(&self, _: usize) -> Option<PartnerMemory> {
        None
    }

    fn kernel(
        &self,
        program: &Program,
        declared: &Kernel,
        _: ElementType,
    ) -> Option<Arc<dyn PartnerKernel>> {
        let Self(shared) = self;
        let products = program.steps.iter().enumerate().filter_map(|(step, of)| {
            let Step::Product { parts, .. } = of else {
                return None;
            };
            let each = parts.iter().map(|part| {
                let number = part.weight.0 as usize;
                let form = RowsForm::of(declared.parameters.get(number)?)?;
                Some((number, form))
            });
            Some((step, each.collect::<Option<Vec<_>>>()?))
        });
        let products: BTreeMap<_, _> = products.collect();
        let has_any = !products.is_empty();
        has_any.then(|| -> Arc<dyn PartnerKernel> {
            Arc::new(NpuPartnerKernel {
                shared: Arc::clone(shared),
                products,
            })
        })
    }

    fn forms(&self) -> PartnerForms {
        PartnerForms::Compiled
    }

    fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    fn why_lost(&self) -> Option<String> {
        self.0.watch.why_lost().map(str::to_owned)
    }

    fn parts(&self) -> u64 {
        self.0.parts.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for NpuPartnerKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NpuPartnerKernel").finish_non_exhaustive()
    }
}

/// An area with the weight that it is of, and the runs that compute it.
struct AreaRuns {
    weight: usize,
    first_row: usize,
    runs: Vec<PieceRun>,
}

impl NpuPartnerKernel {
    /// The runs of each area; `None` if an area has none.
    fn plan(&self, product: &PartnerProduct<'_>, areas: &[PartnerArea]) -> Option<Vec<AreaRuns>> {
        let parts = self.products.get(&product.step)?;
        let plan = areas.iter().map(|area| {
            let (number, form) = parts.get(area.part)?;
            let values = product.call.weights.get(*number)?.values;
            let weight = self.shared.weights.get(&values.as_ptr().addr())?;
            let rows = area.outputs.len();
            let runs = self.shared.index.cover(*form, rows, area.tokens.clone())?;
            Some(AreaRuns {
                weight: *weight,
                first_row: area.outputs.start,
                runs,
            })
        });
        plan.collect()
    }

    /// Computes areas, and says how long the device was busy. Results are written once all of them are there.
    fn run(
        &self,
        product: &PartnerProduct<'_>,
        areas: &[PartnerArea],
    ) -> Result<Duration, ExecError> {
        let plan = self.plan(product, areas);
        let plan = plan.ok_or_else(|| bug!("a partner was given an area that it does not take"))?;
        let columns = product.columns()?;
        // What a panicking thread left are whole requests.
        let bench = &self.shared.bench;
        let mut bench = bench.lock().unwrap_or_else(PoisonError::into_inner);
        let waves = plan.iter().map(|area| area.runs.len()).max().unwrap_or(0);
        let mut busy = Duration::ZERO;
        let mut found = Vec::new();
        for wave in 0..waves {
            let runs = plan.iter().enumerate();
            let runs = runs.filter_map(|(number, area)| Some((number, area, area.runs.get(wave)?)));
            let runs: Vec<_> = runs.collect();
            // Areas of one product mostly have the same tokens.
            let mut operands: Vec<(&PieceRun, Vec<f32>)> = Vec::new();
            for (_, _, run) in &runs {
                if operands.iter().all(|(it, _)| it.tokens != run.tokens) {
                    let mut x = vec![0.0; run.tokens.len() * columns];
                    product.read_operand(run.tokens.clone(), &mut x)?;
                    operands.push((*run, x));
                }
            }
            let operand = |run: &PieceRun| {
                let x = operands.iter().find(|(it, _)| it.tokens == run.tokens);
                x.map_or(&[][..], |(_, x)| x.as_slice())
            };
            let jobs = runs.iter().map(|(_, area, run)| PieceJob {
                piece: run.piece,
                weight: area.weight,
                first_row: area.first_row,
                x: operand(run),
            });
            let results = bench.run(&jobs.collect::<Vec<_>>())?;
            busy += results.busy;
            let runs = runs.into_iter().zip(results.y);
            found.extend(runs.map(|((number, _, run), y)| (number, run.tokens.clone(), y)));
        }
        for (number, tokens, y) in found {
            let rows = areas.get(number).map_or(0, |area| area.outputs.len());
            for (token, y) in tokens.zip(y.chunks_exact(rows.max(1))) {
                product.write(number, token, y)?;
            }
        }
        Ok(busy)
    }
}

impl PartnerKernel for NpuPartnerKernel {
    fn takes(&self, product: &PartnerProduct<'_>) -> bool {
        !self.shared.is_lost() && self.products.contains_key(&product.step)
    }

    fn takes_areas(&self, product: &PartnerProduct<'_>, areas: &[PartnerArea]) -> bool {
        self.plan(product, areas).is_some()
    }

    /// A run that does not end writes to memory of the partner's own, so a failure always leaves the call's alone.
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
                Ok(Some(busy))
            }
            Err(error) => {
                self.shared.watch.lose(Loss::Failed, chain(&error));
                Err(PartnerFailure::Ended)
            }
        }
    }
}
