//! A partner with memory of its own, which reads operands in f32 and gives results for the program to finish: it is as near
//! to the CPU as its own sums, whatever form operands have. The rest is the CPU's, bit for bit.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use heg_artifacts::manifest::{ElementType, Kernel as Declared, Parameter};
use heg_artifacts::program::{Program, Step};
use heg_cpu::{
    Activations, CpuDevice, CpuDeviceOptions, Isa, Partition, Partner, PartnerArea, PartnerFailure,
    PartnerForms, PartnerKernel, PartnerMemory, PartnerProduct, PartnerSide, Placement,
    WeightBytes, WorkItem,
};
use heg_spec::policy::Synchronisation;
use heg_spec::{Cut, CutProduct, Side};

use crate::layer::{Layer, Sequences, Sizes};

const SIZES: Sizes = Sizes {
    hidden: 256,
    heads: 6,
    kv_heads: 3,
    head_dim: 64,
    ffn: 704,
};

/// Cuts every product by rows.
struct ByRows;

impl Partition for ByRows {
    fn cut(&self, work: WorkItem) -> Cut {
        match work.product {
            Some(CutProduct::Attention) | None => Cut::Whole(Side::Second),
            Some(_) => Cut::Rows {
                first: work.rows as u32 / 3,
            },
        }
    }
}

/// Gives a partner nothing until it is told to, and counts the cuts that it is asked for.
struct Quiet {
    gives: Arc<AtomicBool>,
    cuts: Arc<AtomicU64>,
}

impl Partition for Quiet {
    fn cut(&self, work: WorkItem) -> Cut {
        self.cuts.fetch_add(1, Ordering::Relaxed);
        match self.gives.load(Ordering::Relaxed) {
            true => ByRows.cut(work),
            false => Cut::Whole(Side::Second),
        }
    }

    fn rules(&self) -> u32 {
        u32::from(self.gives.load(Ordering::Relaxed))
    }
}

/// How far a partner goes with what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// It computes it.
    All,
    /// It takes no area.
    Nothing,
    /// It fails after it has read the operands.
    Failure,
}

struct Mock {
    extent: Extent,
    parts: Arc<AtomicU64>,
}

#[derive(Debug)]
struct MockKernel {
    extent: Extent,
    parts: Arc<AtomicU64>,
    program: Program,
    parameters: Vec<Parameter>,
}

impl Partner for Mock {
    fn memory(&self, _: usize) -> Option<PartnerMemory> {
        None
    }

    fn kernel(
        &self,
        program: &Program,
        declared: &Declared,
        _: ElementType,
    ) -> Option<Arc<dyn PartnerKernel>> {
        Some(Arc::new(MockKernel {
            extent: self.extent,
            parts: Arc::clone(&self.parts),
            program: program.clone(),
            parameters: declared.parameters.clone(),
        }))
    }

    fn forms(&self) -> PartnerForms {
        PartnerForms::Compiled
    }

    fn is_lost(&self) -> bool {
        false
    }

    fn parts(&self) -> u64 {
        self.parts.load(Ordering::Relaxed)
    }
}

impl PartnerKernel for MockKernel {
    fn takes(&self, _: &PartnerProduct<'_>) -> bool {
        true
    }

    fn takes_areas(&self, _: &PartnerProduct<'_>, _: &[PartnerArea]) -> bool {
        self.extent != Extent::Nothing
    }

    fn compute(
        &self,
        product: &PartnerProduct<'_>,
        areas: &[PartnerArea],
    ) -> Result<Option<Duration>, PartnerFailure> {
        let Some(Step::Product { parts, .. }) = self.program.steps.get(product.step) else {
            return Err(PartnerFailure::Ended);
        };
        let columns = product.columns().unwrap();
        for (number, area) in areas.iter().enumerate() {
            let weight = parts[area.part].weight.0 as usize;
            let (parameter, bytes) = (&self.parameters[weight], &product.call.weights[weight]);
            let mut x = vec![0.0; area.tokens.len() * columns];
            product.read_operand(area.tokens.clone(), &mut x).unwrap();
            if self.extent == Extent::Failure {
                return Err(PartnerFailure::Ended);
            }
            for (token, x) in area.tokens.clone().zip(x.chunks_exact(columns)) {
                let y = area.outputs.clone().map(|output| {
                    let each = x.iter().enumerate();
                    let sum: f64 = each
                        .map(|(column, x)| {
                            f64::from(*x) * element_of(parameter, bytes, output, column)
                        })
                        .sum();
                    sum as f32
                });
                let y: Vec<f32> = y.collect();
                product.write(number, token, &y).unwrap();
            }
        }
        self.parts.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }
}

/// An element of a weight.
fn element_of(parameter: &Parameter, bytes: &WeightBytes<'_>, row: usize, column: usize) -> f64 {
    let columns = parameter.shape[1] as usize;
    let at = row * columns + column;
    let f32_at = |bytes: &[u8], at: usize| {
        f64::from(f32::from_le_bytes(
            bytes[4 * at..4 * at + 4].try_into().unwrap(),
        ))
    };
    let f16_at = |bytes: &[u8], at: usize| {
        half::f16::from_le_bytes(bytes[2 * at..2 * at + 2].try_into().unwrap()).to_f64()
    };
    let Some(affine) = bytes.affine else {
        return f32_at(bytes.values, at);
    };
    let Some(group) = parameter.group_columns else {
        let centre = affine.centres.map_or(0.0, |centres| f32_at(centres, row));
        return f32_at(affine.scales, row) * f64::from(bytes.values[at] as i8) + centre;
    };
    let group = row * (columns / group.count() as usize) + column / group.count() as usize;
    let nibble = bytes.values[at / 2] >> (4 * (at % 2)) & 15;
    let q = match parameter.element {
        ElementType::I4 => f64::from(nibble) - 16.0 * f64::from(nibble >> 3),
        _ => f64::from(nibble),
    };
    let centre = affine.centres.map_or(0.0, |centres| f16_at(centres, group));
    f16_at(affine.scales, group) * q + centre
}

fn run(device: &mut CpuDevice, layer: &Layer) -> Sequences {
    let mut sequences = Sequences::new(layer, &[21, 6], 3);
    sequences.run(device, layer, &[16, 5, 1], true);
    sequences
}

fn alone(layer: &Layer) -> Sequences {
    let device = CpuDevice::new(CpuDeviceOptions {
        isa: Isa::best(),
        threads: NonZeroUsize::MIN,
    });
    run(&mut device.unwrap(), layer)
}

/// A pair of a thread and a partner that goes so far, the layer for it and for a CPU alone, and the partner's parts.
fn pair(
    extent: Extent,
    form: (ElementType, Activations),
    partition: Box<dyn Partition>,
) -> (CpuDevice, [Layer; 2], Arc<AtomicU64>) {
    let parts = Arc::new(AtomicU64::new(0));
    let partner: Arc<dyn Partner> = Arc::new(Mock {
        extent,
        parts: Arc::clone(&parts),
    });
    let (weights, activations) = form;
    let made = |partner| Layer::beside(SIZES, weights, activations, ElementType::F32, 5, partner);
    let layers = [Some(&*partner), None].map(made);
    let sides = [NonZeroUsize::MIN; 2].map(Placement::anywhere);
    let beside = Some(PartnerSide {
        side: Side::First,
        partner: Arc::clone(&partner),
    });
    let made = CpuDevice::pair(
        Isa::best(),
        &sides,
        Synchronisation::Fast,
        partition,
        beside,
    );
    (made.unwrap(), layers, parts)
}

/// The layer's results on a pair that cuts each product, and the number of parts that its partner computed.
fn beside(
    extent: Extent,
    weights: ElementType,
    activations: Activations,
) -> (Sequences, Layer, u64) {
    let (mut pair, [layer, alone], parts) = pair(extent, (weights, activations), Box::new(ByRows));
    let found = run(&mut pair, &layer);
    (found, alone, parts.load(Ordering::Relaxed))
}

#[test]
fn what_a_partner_computes_from_any_form_of_operands_is_near() {
    for (weights, activations, most) in [
        (ElementType::F32, Activations::I8, 1e-5),
        (ElementType::I8, Activations::F32, 1e-5),
        // Where a sum is rounded to 8 bits afterwards it may be rounded to the next.
        (ElementType::I8, Activations::I8, 0.02),
        (ElementType::I8, Activations::I16, 1e-3),
        (ElementType::I4, Activations::I8, 0.02),
        (ElementType::U4, Activations::I16, 1e-3),
    ] {
        let (found, layer, parts) = beside(Extent::All, weights, activations);
        let moved = found.distance(&alone(&layer));
        println!("{weights:?}, {activations:?}: {moved}");
        assert!(moved < most, "{weights:?}, {activations:?}: {moved}");
        assert!(parts > 0);
    }
}

#[test]
fn what_a_partner_does_not_compute_has_the_bits_of_the_cpu() {
    for extent in [Extent::Nothing, Extent::Failure] {
        let (found, layer, parts) = beside(extent, ElementType::I8, Activations::I8);
        assert!(found == alone(&layer), "{extent:?}");
        assert_eq!(parts, 0);
    }
}

#[test]
fn orders_that_give_a_partner_nothing_are_seldom_divided_until_the_rules_change() {
    let (gives, cuts) = (Arc::default(), Arc::default());
    let partition = Quiet {
        gives: Arc::clone(&gives),
        cuts: Arc::clone(&cuts),
    };
    let form = (ElementType::I8, Activations::I8);
    let (mut pair, [layer, no_partners], parts) = pair(Extent::All, form, Box::new(partition));
    let expected = alone(&no_partners);
    let mut of_runs = |runs: usize| {
        let before = cuts.load(Ordering::Relaxed);
        for _ in 0..runs {
            assert!(run(&mut pair, &layer) == expected);
        }
        cuts.load(Ordering::Relaxed) - before
    };
    let first = of_runs(1);
    assert!(first > 0);
    of_runs(150);
    let later = of_runs(64);
    assert!(later <= 2 * first, "{later} cuts, and {first} at first");
    assert_eq!(parts.load(Ordering::Relaxed), 0);
    gives.store(true, Ordering::Relaxed);
    assert!(run(&mut pair, &layer).distance(&expected) < 0.02);
    assert!(parts.load(Ordering::Relaxed) > 0);
}
