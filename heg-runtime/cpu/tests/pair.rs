//! Two sides share a layer in every way there is, and get the bits that one device gets alone.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

#[allow(unsafe_code, reason = "rows that kernels work on")]
mod layer;

use heg_artifacts::manifest::ElementType;
use heg_cpu::{
    Activations, CpuDevice, CpuDeviceOptions, Isa, PairSide, Partition, Placement, Uncut,
};
use heg_spec::policy::Synchronisation;
use heg_spec::{Cut, CutProduct, Side};
use layer::{Layer, Sequences, Sizes};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Sizes of no kernel's tile, and those of a model.
const SIZES: [Sizes; 2] = [
    Sizes {
        hidden: 72,
        heads: 6,
        kv_heads: 2,
        head_dim: 12,
        ffn: 200,
    },
    Sizes {
        hidden: 256,
        heads: 6,
        kv_heads: 3,
        head_dim: 64,
        ffn: 704,
    },
];

const TOKENS: [usize; 2] = [35, 10];

/// One product is cut, the rest is the other side's.
struct OnlyOne {
    product: Option<CutProduct>,
    cut: Cut,
    rest: Side,
}

impl Partition for OnlyOne {
    fn cut(&self, work: Uncut) -> Cut {
        match work.product == self.product {
            true => self.cut.clone(),
            false => Cut::Whole(self.rest),
        }
    }
}

/// Everything is cut, each product in a way of its own that the number of calls so far tells.
struct Mixed(AtomicU32);

impl Partition for Mixed {
    fn cut(&self, work: Uncut) -> Cut {
        let call = self.0.fetch_add(1, Ordering::Relaxed);
        match call % 5 {
            0 => Cut::Rows {
                first: work.rows as u32 / 2,
            },
            1 => Cut::Tokens {
                sizes: vec![work.tokens as u32 / 3],
            },
            2 => Cut::Whole(Side::First),
            3 => Cut::Hybrid {
                first: work.rows as u32 / 3,
                padded_tokens: 16,
            },
            _ => Cut::Whole(Side::Second),
        }
    }
}

/// Rows that divide and that do not, off heads and tiles, more than there are; tokens likewise.
fn cuts() -> Vec<Cut> {
    let tokens = |sizes: &[u32]| Cut::Tokens {
        sizes: sizes.to_vec(),
    };
    let hybrid = |first, padded_tokens| Cut::Hybrid {
        first,
        padded_tokens,
    };
    vec![
        Cut::Whole(Side::First),
        Cut::Whole(Side::Second),
        Cut::Rows { first: 1 },
        Cut::Rows { first: 37 },
        Cut::Rows { first: 128 },
        Cut::Rows { first: 100_000 },
        tokens(&[1]),
        tokens(&[16, 4]),
        tokens(&[64]),
        hybrid(64, 64),
        // An L: the second side has the other rows, and a margin of these.
        hybrid(37, 8),
        hybrid(1, 1),
        hybrid(100_000, 16),
    ]
}

fn pair(isa: Isa, how: Synchronisation, partition: Box<dyn Partition>) -> CpuDevice {
    let side = |threads| PairSide {
        placement: Placement::anywhere(NonZeroUsize::new(threads).unwrap()),
        throttle: NonZeroU32::MIN,
    };
    CpuDevice::pair(isa, &[side(1), side(1)], how, partition).unwrap()
}

/// Prompts in chunks one by one, and tokens of sequences side by side.
fn run(device: &mut CpuDevice, layer: &Layer, seed: u64) -> [Sequences; 2] {
    [(&[25, 10][..], false), (&[1][..], true)].map(|(cut, together)| {
        let mut sequences = Sequences::new(layer, &TOKENS, seed);
        sequences.run(device, layer, cut, together);
        sequences
    })
}

fn check(weights: ElementType, activations: Activations, kv: ElementType) {
    for (seed, sizes) in (1..).zip(SIZES) {
        check_layer(&Layer::random(sizes, weights, activations, kv, seed), seed);
    }
}

fn check_layer(layer: &Layer, seed: u64) {
    let isa = Isa::best();
    let mut alone = CpuDevice::new(CpuDeviceOptions {
        isa,
        threads: NonZeroUsize::MIN,
    })
    .unwrap();
    let expected = run(&mut alone, layer, seed);
    let products = CutProduct::ALL.into_iter().map(Some).chain([None]);
    for product in products {
        for cut in cuts() {
            let rest = [Side::First, Side::Second][usize::from(cut.is_shared())];
            let partition = Box::new(OnlyOne {
                product,
                cut: cut.clone(),
                rest,
            });
            let mut device = pair(isa, Synchronisation::Fast, partition);
            let found = run(&mut device, layer, seed);
            assert!(found == expected, "layer {seed}, {product:?}, {cut}");
        }
    }
    for how in [Synchronisation::Fast, Synchronisation::Plain] {
        let mut device = pair(isa, how, Box::new(Mixed(0.into())));
        assert!(run(&mut device, layer, seed) == expected, "{how:?}");
        assert!(device.watch().unwrap().hand_overs().count() > 0);
    }
}

#[test]
fn integers_and_8_bit_activations() {
    check(ElementType::I8, Activations::I8, ElementType::Bf16);
}

#[test]
fn integers_and_16_bit_activations() {
    check(ElementType::I8, Activations::I16, ElementType::F32);
}

#[test]
fn half_bytes_with_and_without_a_centre() {
    // Widths of the other are no multiples of a group.
    let sizes = SIZES[1];
    for (seed, weights, activations) in [
        (1, ElementType::I4, Activations::I8),
        (2, ElementType::U4, Activations::I16),
    ] {
        let layer = Layer::random(sizes, weights, activations, ElementType::Bf16, seed);
        check_layer(&layer, seed);
    }
}

#[test]
fn floats() {
    check(ElementType::F32, Activations::I8, ElementType::F32);
}

#[test]
fn what_a_lost_side_leaves_is_done_by_the_other() {
    let (sizes, kv) = (SIZES[1], ElementType::F32);
    let layer = Layer::random(sizes, ElementType::I8, Activations::I8, kv, 5);
    let pass = |device: &mut CpuDevice| {
        let mut sequences = Sequences::new(&layer, &TOKENS, 5);
        sequences.run(device, &layer, &[10], true);
        sequences
    };
    let isa = Isa::best();
    let mut device = pair(isa, Synchronisation::Fast, Box::new(Mixed(0.into())));
    let expected = pass(&mut device);
    let watch = device.watch().unwrap();
    assert_eq!(watch.lost_side(), None);
    layer.panics.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        assert!(pass(&mut device) == expected);
        // The first side is asked, and its thread is the caller's.
        assert_eq!(watch.lost_side(), Some(Side::First));
    }
}

/// Shares everything, but what it is told to give to one side, and counts that: calls, those of few rows that are told so,
/// and those of many.
#[derive(Default)]
struct AsTold([Arc<AtomicU32>; 3]);

impl Partition for AsTold {
    fn cut(&self, work: Uncut) -> Cut {
        let [calls, few, many] = &self.0;
        calls.fetch_add(1, Ordering::Relaxed);
        let Some(side) = work.alone else {
            return Cut::Rows {
                first: work.rows as u32 / 2,
            };
        };
        let told = [many, few][usize::from(work.tokens == 1)];
        told.fetch_add(1, Ordering::Relaxed);
        Cut::Whole(side)
    }
}

#[test]
fn a_side_is_tried_alone_with_tokens_and_not_with_prompts() {
    let layer = Layer::random(
        SIZES[0],
        ElementType::I8,
        Activations::I8,
        ElementType::F32,
        9,
    );
    let partition = AsTold::default();
    let [calls, few, many] = partition.0.each_ref().map(Arc::clone);
    let mut both = pair(Isa::best(), Synchronisation::Fast, Box::new(partition));
    let mut alone = CpuDevice::new(CpuDeviceOptions {
        isa: Isa::best(),
        threads: NonZeroUsize::MIN,
    })
    .unwrap();
    let mut pass = |tokens: usize, chunk: usize| {
        let [found, expected] = [&mut both, &mut alone].map(|device| {
            let mut sequences = Sequences::new(&layer, &[tokens], 9);
            sequences.run(device, &layer, &[chunk], false);
            sequences
        });
        assert!(found == expected);
    };
    // Speeds are learnt first.
    pass(8, 1);
    assert_eq!(few.load(Ordering::Relaxed), 0);
    let before = calls.load(Ordering::Relaxed);
    pass(20, 1);
    let (asked, told) = (
        calls.load(Ordering::Relaxed) - before,
        few.load(Ordering::Relaxed),
    );
    assert!(told > 0 && told < asked, "{told} of {asked}");
    pass(80, 10);
    assert_eq!(many.load(Ordering::Relaxed), 0);
}

#[test]
fn a_throttled_side_computes_the_same() {
    let (sizes, kv) = (SIZES[0], ElementType::F32);
    let layer = Layer::random(sizes, ElementType::I8, Activations::I8, kv, 3);
    let mut alone = CpuDevice::new(CpuDeviceOptions {
        isa: Isa::best(),
        threads: NonZeroUsize::MIN,
    })
    .unwrap();
    let expected = run(&mut alone, &layer, 3);
    let side = |throttle| PairSide {
        placement: Placement::anywhere(NonZeroUsize::MIN),
        throttle: NonZeroU32::new(throttle).unwrap(),
    };
    let partition = Box::new(Mixed(0.into()));
    let sides = [side(1), side(4)];
    let how = Synchronisation::Fast;
    let mut device = CpuDevice::pair(Isa::best(), &sides, how, partition).unwrap();
    assert!(run(&mut device, &layer, 3) == expected);
}
