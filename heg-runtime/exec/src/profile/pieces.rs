//! The products of a bundle on two devices that share them, for measurements: each kernel runs on both, cut as it is told.

use std::sync::{Arc, Mutex, PoisonError};

use heg_artifacts::manifest::Kernel;
use heg_cpu::PartTimes;
use heg_profiler::measure::{PairKernel, PairSubject, PieceTimes};
use heg_profiler::partition::{CutShape, products};
use heg_profiler::predict::CallShape;
use heg_spec::policy::{PairLevel, Pairing, Synchronisation};
use heg_spec::{Cut, CutProduct, DeviceClass, Group, Side, bug};

use super::subject::{Bench, Extent, places, tokens_max};
use crate::backend::{PAIRED_ROLES, PairLanes, PairedRoles, Partition, TILE_ROWS, WorkItem};
use crate::error::ExecError;
use crate::ladder::{Rung, RungSource};
use crate::loader::Loader;

/// Two devices of a machine that share the products of a bundle.
pub struct BundlePair {
    loader: Loader,
    pair: Arc<PairedRoles>,
    kernels: Vec<PairKernel>,
    /// Index of each kernel in the manifest.
    indices: Vec<u32>,
    ready: Option<(usize, Bench)>,
    dictate: Arc<Mutex<Dictate>>,
}

/// The cuts of a run, and what was told of it.
#[derive(Default)]
struct Dictate {
    cuts: Vec<(CutProduct, Cut)>,
    told: Vec<PartTimes>,
}

impl BundlePair {
    /// Of a loader's devices; `None` if no two of them share products, one of them has pieces for the bundle's own cuts alone,
    /// or the bundle's products cannot be cut.
    ///
    /// # Errors
    ///
    /// Errors of [`Loader::paired`].
    pub fn new(loader: Loader, extent: Extent) -> Result<Option<Self>, ExecError> {
        let pairing = Pairing {
            level: PairLevel::Tensor,
            synchronisation: Synchronisation::Fast,
        };
        let loader = match loader.paired(pairing, PairLanes::One) {
            Ok(loader) => loader,
            Err(ExecError::Pair { .. }) => return Ok(None),
            Err(other) => return Err(other),
        };
        let manifest = loader.bundle().manifest();
        let (Ok(shapes), Some(pair)) =
            (products(&manifest.model, &manifest.kernels), loader.pair())
        else {
            return Ok(None);
        };
        if pair.cuts_as_compiled() {
            return Ok(None);
        }
        let (mut kernels, mut indices) = (Vec::new(), Vec::new());
        for group in [Group::Qkv, Group::Ffn, Group::Head] {
            let mut all = (0..).zip(&manifest.kernels);
            let found = all.find(|(_, kernel)| kernel.group == group);
            let products = of_group(&shapes, group);
            let Some((index, kernel)) = found.filter(|_| !products.is_empty()) else {
                continue;
            };
            kernels.push(PairKernel {
                name: kernel.name.clone(),
                products,
                tokens_max: tokens_max(group, extent),
            });
            indices.push(index);
        }
        Ok(Some(Self {
            pair: Arc::clone(pair),
            dictate: Arc::default(),
            ready: None,
            loader,
            kernels,
            indices,
        }))
    }

    /// Output rows at whose multiples the devices cut products.
    pub const ROW_STEP: u32 = TILE_ROWS;

    fn prepare(&self, kernel: usize) -> Result<Bench, ExecError> {
        let manifest = self.loader.bundle().manifest();
        let index = self.indices.get(kernel).copied();
        let found = index.and_then(|index| Some((index, manifest.kernels.get(index as usize)?)));
        let (index, of) = found.ok_or_else(|| bug!("a kernel is measured that was not listed"))?;
        let variant = program_of(of).ok_or_else(|| ExecError::Refused {
            kernel: of.name.clone(),
            message: "there is no program for it".to_owned(),
        })?;
        let rung = Rung {
            role: PAIRED_ROLES[0],
            variant,
            source: RungSource::Program,
        };
        let mut places = places(manifest, index, of);
        places.truncate(PLACES_MAX);
        Bench::prepare(&self.loader, &places, rung, 1)
    }

    fn bench(&mut self, kernel: usize) -> Result<&mut Bench, ExecError> {
        if self
            .ready
            .as_ref()
            .is_none_or(|(ready, _)| *ready != kernel)
        {
            self.ready = None;
            self.ready = Some((kernel, self.prepare(kernel)?));
            let dictated = Dictated(Arc::clone(&self.dictate));
            if !self.pair.share_by(Box::new(dictated)) {
                return Err(bug!("a pair that is one lane takes no partition").into());
            }
        }
        match &mut self.ready {
            Some((_, bench)) => Ok(bench),
            None => Err(bug!("a kernel was prepared and is not there").into()),
        }
    }
}

impl PairSubject for BundlePair {
    type Error = ExecError;

    fn kernels(&self) -> &[PairKernel] {
        &self.kernels
    }

    fn run(
        &mut self,
        kernel: usize,
        tokens: u32,
        cuts: &[Cut],
    ) -> Result<Vec<Option<PieceTimes>>, ExecError> {
        let listed = self.kernels.get(kernel);
        let listed = listed.ok_or_else(|| bug!("a kernel is measured that was not listed"))?;
        let products: Vec<CutProduct> = listed.products.iter().map(|it| it.product).collect();
        let dictate = Arc::clone(&self.dictate);
        let bench = self.bench(kernel)?;
        let call = CallShape { tokens, context: 0 };
        bench.warm_up(call)?;
        {
            let mut dictate = dictate.lock().unwrap_or_else(PoisonError::into_inner);
            dictate.cuts = products.iter().copied().zip(cuts.iter().cloned()).collect();
            dictate.told.clear();
        }
        bench.run(call)?;
        let dictate = dictate.lock().unwrap_or_else(PoisonError::into_inner);
        let of_product = |product: &CutProduct| {
            let told = dictate.told.iter().find(|it| it.product == *product)?;
            let [first, second] = told.of_side;
            Some(PieceTimes { first, second })
        };
        Ok(products.iter().map(of_product).collect())
    }
}

/// Places that take turns. Chosen: with their weights they exceed most caches, and each runs once before a size is timed.
const PLACES_MAX: usize = 8;

/// Products as they are dictated.
struct Dictated(Arc<Mutex<Dictate>>);

impl Partition for Dictated {
    fn cut(&self, work: WorkItem) -> Cut {
        let dictate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cuts = dictate.cuts.iter();
        let found = cuts.find(|(product, _)| Some(*product) == work.product);
        found.map_or(Cut::Whole(Side::Second), |(_, cut)| cut.clone())
    }

    fn is_told(&self) -> bool {
        true
    }

    fn ran(&self, times: PartTimes) {
        let mut dictate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        dictate.told.push(times);
    }
}

/// The products that kernels of a group have.
fn of_group(shapes: &[CutShape], group: Group) -> Vec<CutShape> {
    let is_there = |shape: &&CutShape| match shape.product {
        CutProduct::Qkv => group == Group::Qkv,
        CutProduct::Out | CutProduct::GateUp | CutProduct::Down => group == Group::Ffn,
        CutProduct::Head => group == Group::Head,
        CutProduct::Attention => false,
    };
    let found = shapes.iter().filter(is_there);
    // Programs cut queries, keys and values within heads too.
    let of_programs = |shape: &CutShape| CutShape {
        unit_rows: 1,
        ..*shape
    };
    found.map(of_programs).collect()
}

/// The variant of a kernel that is a program.
fn program_of(kernel: &Kernel) -> Option<usize> {
    let mut variants = kernel.variants.iter();
    variants.position(|it| it.device == DeviceClass::Cpu && it.program.is_some())
}
