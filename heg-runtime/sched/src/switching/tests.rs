//! Plans against the paper's picture. The laboratory compares them with the optimal ones.

use super::*;

/// The paper's figure 8: six blocks, two chunks, a load hidden by two blocks.
#[test]
fn two_blocks_hide_a_load_as_in_the_paper() {
    let block = SwitchedBlock {
        long_us: 10.0,
        short_us: 10.0,
        load_us: 18.0,
    };
    let loads = plan(&[block; 6], 2);
    let first: Vec<(usize, usize)> = loads.iter().map(|it| (it.block, it.step)).take(3).collect();
    assert_eq!(first, [(5, 0), (4, 2), (3, 4)]);
    let progressive = times(&[block; 6], 2, &loads);
    assert_eq!(progressive.prefill_us, 120.0);
    assert!(progressive.ready_us() <= 120.0 + 1e-9, "{progressive:?}");
}
