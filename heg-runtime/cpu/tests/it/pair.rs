//! Two sides share a layer in every way there is, with the bits of a single device.

use crate::layer::{Layer, Sequences, Sizes};
use heg_artifacts::manifest::ElementType;
use heg_cpu::{
    Activations, CpuDevice, CpuDeviceOptions, Isa, PartTimes, Partition, Placement, WorkItem,
};
use heg_spec::policy::Synchronisation;
use heg_spec::{Cut, CutProduct, Side};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Sizes that fit no kernel's tile, and those of a model.
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

/// Cuts one product, and gives the rest to one side.
struct OnlyOne {
    product: Option<CutProduct>,
    cut: Cut,
    rest: Side,
}

impl Partition for OnlyOne {
    fn cut(&self, work: WorkItem) -> Cut {
        if work.product == self.product {
            self.cut.clone()
        } else {
            Cut::Whole(self.rest)
        }
    }
}

/// Cuts everything, differently from call to call.
struct Mixed(AtomicU32);

impl Partition for Mixed {
    fn cut(&self, work: WorkItem) -> Cut {
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

/// Cuts by rows, on and off the bounds of heads and tiles, and beyond the end; by tokens likewise.
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
        // An L: the second side has the other rows, and the margin of these.
        hybrid(37, 8),
        hybrid(1, 1),
        hybrid(100_000, 16),
    ]
}

fn pair(isa: Isa, how: Synchronisation, partition: Box<dyn Partition>) -> CpuDevice {
    let sides = [NonZeroUsize::MIN; 2].map(Placement::anywhere);
    CpuDevice::pair(isa, &sides, how, partition, None).unwrap()
}

/// Prompts in chunks one by one, and then decoding side by side.
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
        // Where a side's core is busy with something else, the other does its pieces.
        let hands_over = (0..50).any(|_| {
            assert!(run(&mut device, layer, seed) == expected, "{how:?}");
            device.watch().unwrap().hand_overs().count() > 0
        });
        assert!(hands_over, "{how:?}");
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
    // The other sizes are no multiples of a group.
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
    // The first side asks whether to go on, or the second one where the first is late.
    let lost = [(); 3].map(|()| {
        assert!(pass(&mut device) == expected);
        watch.lost_side()
    });
    assert!(lost == [Some(Side::First); 3] || lost == [Some(Side::Second); 3]);
}

/// Shares everything except work that the tuner gives to one side. Counts calls, those of few rows given to one side,
/// and those of many.
#[derive(Default)]
struct FollowsTuner([Arc<AtomicU32>; 3]);

impl Partition for FollowsTuner {
    fn cut(&self, work: WorkItem) -> Cut {
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
    let partition = FollowsTuner::default();
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
    // Speed ratios are measured first.
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

/// Shares queries, keys and values, gives all else to the second side, and keeps what it is told.
struct IsTold(Arc<Mutex<Vec<PartTimes>>>);

impl Partition for IsTold {
    fn cut(&self, work: WorkItem) -> Cut {
        match work.product {
            Some(CutProduct::Qkv) => Cut::Rows {
                first: work.rows as u32 / 2,
            },
            _ => Cut::Whole(Side::Second),
        }
    }

    fn is_told(&self) -> bool {
        true
    }

    fn ran(&self, times: PartTimes) {
        self.0.lock().unwrap().push(times);
    }
}

#[test]
fn a_partition_that_asks_is_told_what_each_side_took_for_its_part() {
    let layer = Layer::random(
        SIZES[1],
        ElementType::I8,
        Activations::I8,
        ElementType::F32,
        9,
    );
    let told = Arc::default();
    let partition = IsTold(Arc::clone(&told));
    let mut both = pair(Isa::best(), Synchronisation::Fast, Box::new(partition));
    for _ in 0..20 {
        let mut sequences = Sequences::new(&layer, &[32], 9);
        sequences.run(&mut both, &layer, &[32], false);
    }
    let told = told.lock().unwrap();
    let sides = |product| -> Vec<[bool; 2]> {
        let of_product = told.iter().filter(|times| times.product == product);
        let each = of_product.map(|times| times.of_side.map(|took| took.is_some()));
        each.collect()
    };
    // A side may be so late that nothing is told.
    let [shared, whole] = [CutProduct::Qkv, CutProduct::Down].map(sides);
    assert!(!shared.is_empty() && shared.iter().all(|it| *it == [true; 2]));
    assert!(!whole.is_empty() && whole.iter().all(|it| *it == [false, true]));
    assert!(
        told.iter()
            .all(|it| it.of_side != [Some(Duration::ZERO); 2])
    );
}
