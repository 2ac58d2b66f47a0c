//! Plans against the optimal one, and against the paper's picture.

use proptest::prelude::*;

use super::*;

/// Blocks as a model has them: alike, except for the last one, which includes the head.
fn blocks() -> impl Strategy<Value = Vec<SwitchedBlock>> {
    (
        2..=8_usize,
        20.0..60.0_f64,
        1.0..1.3_f64,
        0.3..2.5_f64,
        0.8..1.5_f64,
    )
        .prop_map(|(count, long_us, slower, load, last)| {
            let block = |at: usize| {
                let size = if at + 1 == count { last } else { 1.0 };
                SwitchedBlock {
                    long_us: long_us * size,
                    short_us: long_us * slower * size,
                    load_us: long_us * load * size,
                }
            };
            (0..count).map(block).collect()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_plan_loads_every_block_once_and_the_greedy_one_is_near_the_best(
        blocks in blocks(),
        chunks in 1..=3_usize,
    ) {
        let best_us = best_ready_us(&blocks, chunks);
        let mut ready = Vec::new();
        for switching in [Switching::Progressive, Switching::Async, Switching::Sync] {
            let loads = plan(switching, &blocks, chunks);
            let mut loaded: Vec<usize> = loads.iter().map(|load| load.block).collect();
            loaded.sort_unstable();
            prop_assert_eq!(loaded, (0..blocks.len()).collect::<Vec<_>>());
            let times = times(&blocks, chunks, &loads);
            prop_assert!(times.ready_us() >= best_us - 1e-6, "{switching:?} {times:?} {best_us}");
            ready.push(times.ready_us());
        }
        prop_assert!(ready[0] <= best_us * 1.1, "{ready:?} {best_us}");
    }
}

/// The paper's figure 8: six blocks, two chunks, a load hidden by two blocks.
#[test]
fn two_blocks_hide_a_load_as_in_the_paper() {
    let block = SwitchedBlock {
        long_us: 10.0,
        short_us: 10.0,
        load_us: 18.0,
    };
    let loads = plan(Switching::Progressive, &[block; 6], 2);
    let first: Vec<(usize, usize)> = loads.iter().map(|it| (it.block, it.step)).take(3).collect();
    assert_eq!(first, [(5, 0), (4, 2), (3, 4)]);
    let progressive = times(&[block; 6], 2, &loads);
    assert_eq!(progressive.prefill_us, 120.0);
    assert!(progressive.ready_us() <= 120.0 + 1e-9, "{progressive:?}");
    let sync = times(&[block; 6], 2, &plan(Switching::Sync, &[block; 6], 2));
    assert_eq!(sync.ready_us(), 120.0 + 6.0 * 18.0);
}
