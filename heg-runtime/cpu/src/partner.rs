//! The partner of a pair: a device beside the CPU, such as a GPU, that computes parts of products over memory that both work
//! on (HeteroLLM §4.1). A thread of its side gives it work and waits for it. Steps on single rows and attention are the
//! CPU's, and so is what the partner cannot do.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use heg_artifacts::manifest::{ElementType, Kernel as Declared};
use heg_artifacts::program::{BufferId, Part, Program, StepPhase};
use heg_spec::{Cut, CutProduct, Side};

use crate::call::CpuCall;
use crate::device::Address;
use crate::division::{Area, Division, WorkItem};
use crate::error::CpuError;
use crate::execution::{Execution, Ran};
use crate::pool::Taken;

/// A device that computes parts of products: with the bits of the CPU if it takes areas of any size, else as near to them as
/// its own numbers are.
pub trait Partner: Send + Sync {
    /// Memory that it works on, too; `None` if it has none left.
    fn memory(&self, bytes: usize) -> Option<PartnerMemory>;

    /// Makes the products of a kernel ready; `None` if it can compute none of them.
    fn kernel(
        &self,
        program: &Program,
        declared: &Declared,
        kv: ElementType,
    ) -> Option<Arc<dyn PartnerKernel>>;

    /// The areas that it can compute.
    fn forms(&self) -> PartnerForms {
        PartnerForms::AnySize
    }

    /// Whether it was lost: it takes nothing any more.
    fn is_lost(&self) -> bool;

    /// The reason why it was lost, in words, if it is known.
    fn why_lost(&self) -> Option<String> {
        None
    }

    /// Number of calls of [`PartnerKernel::compute`] that were done.
    fn parts(&self) -> u64;
}

/// The products of a kernel on a partner.
pub trait PartnerKernel: fmt::Debug + Send + Sync {
    /// Whether the partner reaches all that it needs to compute areas of a product.
    fn takes(&self, product: &PartnerProduct<'_>) -> bool;

    /// Whether it computes just these areas of a product that it [takes](Self::takes).
    fn takes_areas(&self, _: &PartnerProduct<'_>, _: &[PartnerArea]) -> bool {
        true
    }

    /// Computes areas of a product, and returns when the results are there, with the time that the partner was busy; `None`
    /// if it does not know.
    ///
    /// # Errors
    ///
    /// [`PartnerFailure`] if the results are not there: the CPU computes them.
    fn compute(
        &self,
        product: &PartnerProduct<'_>,
        areas: &[PartnerArea],
    ) -> Result<Option<Duration>, PartnerFailure>;
}

/// A product of a call.
#[derive(Clone, Copy)]
pub struct PartnerProduct<'a> {
    /// Index of the product among the program's steps.
    pub step: usize,
    /// The call.
    pub call: &'a CpuCall<'a>,
    /// Scratch rows of the call, laid out as the program says.
    pub scratch: *const u8,
    pub(crate) execution: &'a Execution<'a>,
    /// The areas that the partner was given to compute.
    pub(crate) areas: &'a [PartnerArea],
}

/// The sizes of areas that a partner computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartnerForms {
    /// Any: cuts may follow the speeds of the run, and each side may be tried alone.
    AnySize,
    /// Only sizes that were compiled ahead of time: a cut into other areas leaves the product to the CPU.
    Compiled,
}

/// Outputs of one of a product's matrices, for some tokens of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PartnerArea {
    /// Number of the matrix in the product.
    pub part: usize,
    /// Outputs, from a multiple of [`DEVICE_STEP`](heg_spec::DEVICE_STEP) on.
    pub outputs: Range<usize>,
    /// Tokens.
    pub tokens: Range<usize>,
}

/// The reason why a partner has not computed what it was given.
#[derive(Debug)]
pub enum PartnerFailure {
    /// It is lost, or refused the work, and writes nothing any more.
    Ended,
    /// It may still write results into memory of the call at any time, so that nobody may use that.
    MayWrite(Box<dyn Error + Send + Sync>),
}

/// The end of a partner's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByPartner {
    /// The results are there; the time that it was busy, if it is known.
    Done(Option<Duration>),
    /// There are none.
    Ended,
}

/// Memory that the CPU and a partner both work on.
pub struct PartnerMemory {
    first: NonNull<u8>,
    bytes: usize,
    /// Keeps the memory.
    _owner: Box<dyn Any + Send>,
}

// SAFETY: the address is that of memory which `new` was promised to be this value's alone.
#[allow(unsafe_code, reason = "an address with its owner")]
unsafe impl Send for PartnerMemory {}

impl PartnerMemory {
    /// Memory that `owner` keeps.
    ///
    /// # Safety
    ///
    /// The bytes from `first` on may be read and written for as long as `owner` lives, and nobody else does but the partner
    /// within [`PartnerKernel::compute`].
    #[allow(unsafe_code, reason = "an address with its owner")]
    pub unsafe fn new(first: NonNull<u8>, bytes: usize, owner: Box<dyn Any + Send>) -> Self {
        Self {
            first,
            bytes,
            _owner: owner,
        }
    }

    pub(crate) const fn first(&self) -> NonNull<u8> {
        self.first
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A partner, and the side of a pair that it is.
#[derive(Clone)]
pub struct PartnerSide {
    /// The side.
    pub side: Side,
    /// The device.
    pub partner: Arc<dyn Partner>,
}

impl Execution<'_> {
    /// The side that has to do all of a phase since it is none of the partner's products; `None` if both can.
    pub(crate) fn sole_side(&self, phase: usize) -> Option<Side> {
        let partner = self.partner?;
        let product = self.kernel.cut_products.get(phase).copied().flatten();
        let is_product = product.is_some_and(|product| product != CutProduct::Attention);
        (!is_product || self.kernel.partner.is_none()).then(|| partner.other())
    }

    /// The division of a phase, or all of it on the CPU's side if the partner does not compute what that gives it.
    pub(crate) fn as_partner_takes(
        &self,
        phase: usize,
        work: WorkItem,
        division: Division,
    ) -> Division {
        let partner = self.partner.zip(self.kernel.partner.as_ref());
        let (Some((side, kernel)), Some(StepPhase::Product(step))) =
            (partner, self.kernel.phases.get(phase))
        else {
            return division;
        };
        if division.is_nothing(side, work.tokens) {
            // Nothing is looked up for it.
            return division;
        }
        let areas = self.partner_areas(self.parts(phase), division, side);
        let product = self.partner_product(*step, &areas);
        match areas.is_empty() || (kernel.takes(&product) && kernel.takes_areas(&product, &areas)) {
            true => division,
            false => Division::of(&Cut::Whole(side.other()), work),
        }
    }

    /// Has a partner compute all of its areas of a product, by a thread of its side. Any other thread, and this one if the
    /// partner fails, computes them itself.
    pub(crate) fn partners_piece(
        &self,
        taken: Taken,
        step: usize,
        x: BufferId,
        parts: &[Part],
        division: Division,
    ) -> Result<Ran, CpuError> {
        let own = taken.own;
        let by_partner = match own == taken.side {
            true => self.product_by_partner(step, parts, division),
            false => Ok(ByPartner::Ended),
        };
        let by_partner = by_partner.map_err(CpuError::Partner)?;
        let mut units = 0;
        for share in self.shares(parts, division, taken.side) {
            let Area { outputs, tokens } = share.area;
            units += outputs.len() * tokens.len() * self.columns(share.part);
            if by_partner == ByPartner::Ended && share.pieces > 0 {
                self.multiply(taken.thread, x, share.part, outputs, tokens)?;
            }
        }
        let busy = match by_partner {
            ByPartner::Done(busy) => busy,
            ByPartner::Ended => None,
        };
        Ok(Ran { units, busy })
    }

    /// Has the partner compute its areas of a product, and says how long it was busy; [`Ended`](ByPartner::Ended) if it has
    /// failed, and nothing is written any more.
    fn product_by_partner(
        &self,
        step: usize,
        parts: &[Part],
        division: Division,
    ) -> Result<ByPartner, Box<dyn Error + Send + Sync>> {
        let Some((side, kernel)) = self.partner.zip(self.kernel.partner.as_ref()) else {
            return Ok(ByPartner::Ended);
        };
        let areas = self.partner_areas(parts, division, side);
        match kernel.compute(&self.partner_product(step, &areas), &areas) {
            Ok(busy) => Ok(ByPartner::Done(busy)),
            Err(PartnerFailure::Ended) => Ok(ByPartner::Ended),
            Err(PartnerFailure::MayWrite(error)) => Err(error),
        }
    }

    /// The areas of a product that its division gives the partner.
    fn partner_areas(&self, parts: &[Part], division: Division, side: Side) -> Vec<PartnerArea> {
        let shares = self.shares(parts, division, side);
        let shares = shares.zip((0..parts.len()).cycle());
        let areas = shares.filter(|(share, _)| share.pieces > 0);
        let areas = areas.map(|(share, part)| PartnerArea {
            part,
            outputs: share.area.outputs,
            tokens: share.area.tokens,
        });
        areas.collect()
    }

    fn partner_product<'a>(&'a self, step: usize, areas: &'a [PartnerArea]) -> PartnerProduct<'a> {
        let Address(scratch) = self.scratch;
        PartnerProduct {
            step,
            call: self.call,
            scratch: scratch.cast_const(),
            execution: self,
            areas,
        }
    }
}
