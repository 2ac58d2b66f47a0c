//! Pairs of 16-bit integers, a pair in each lane, and 32-bit sums of their products. Sums are exact, so they have any order.

/// Sixteen pairs of 16-bit integers, and sixteen sums of their products.
///
/// # Safety
///
/// As for [`Lanes`](super::Lanes): methods need the instructions of the implementation. Pointers need no alignment, and no
/// more elements are read than are named.
pub(crate) trait Pairs: Copy {
    /// Sixteen pairs.
    type Pairs: Copy;
    /// Sixteen 32-bit sums.
    type Sums: Copy;

    /// The pair at `from` in every lane.
    unsafe fn splat_pair(from: *const i16) -> Self::Pairs;
    /// Loads sixteen pairs.
    unsafe fn load_pairs(from: *const i16) -> Self::Pairs;
    /// Splits the bits of each lane into four 8-bit integers, and widens them to pairs: the first and the third, and the
    /// second and the fourth.
    unsafe fn widen_quads(self) -> [Self; 2];
    /// Widens `count` elements of two rows, at most 32, to the bits of as many lanes: lane i has `first[i]` and `second[i]`,
    /// and of the second sixteen, element i + 16 of both. The other lanes are zero.
    unsafe fn pair_rows(first: *const i8, second: *const i8, count: usize) -> [Self; 2];
    /// Sums of nothing.
    unsafe fn no_sums() -> Self::Sums;
    /// `sums[i] + a[i].0 · b[i].0 + a[i].1 · b[i].1`, which fits in 32 bits.
    unsafe fn add_products(sums: Self::Sums, a: Self::Pairs, b: Self::Pairs) -> Self::Sums;
    /// The sums as f32, each rounded to nearest, ties to even.
    unsafe fn from_sums(sums: Self::Sums) -> Self;
}

#[cfg(test)]
mod tests {

    use crate::Isa;
    use crate::lanes::{Kernel, LANES, Lanes, run};
    use proptest::prelude::*;

    /// Factors, and two rows that end with their last element.
    #[derive(Clone, Copy)]
    struct Multiply<'a> {
        factors: &'a [i16],
        rows: [&'a [i8]; 2],
    }

    impl Kernel for Multiply<'_> {
        /// Sums of factors with pairs of both rows, then with pairs within quads of the first.
        type Output = [[f32; LANES]; 4];

        #[inline(always)]
        unsafe fn run<L: Lanes>(self) -> Self::Output {
            let mut pairs = [0.0; LANES];
            let mut sums = [[0.0; LANES]; 4];
            let [first, second] = self.rows;
            // SAFETY: rows have as many elements as are named, two factors at least, and all else sixteen lanes.
            unsafe {
                let [lower, upper] = L::pair_rows(first.as_ptr(), second.as_ptr(), first.len());
                let quads = L::load_bytes(first.as_ptr().cast(), first.len());
                let [even, odd] = quads.widen_quads();
                for (lanes, sums) in [lower, upper, even, odd].into_iter().zip(&mut sums) {
                    lanes.store(pairs.as_mut_ptr());
                    let loaded = L::load_pairs(pairs.as_ptr().cast());
                    let mut sum = L::no_sums();
                    for pair in self.factors.chunks_exact(2) {
                        sum = L::add_products(sum, L::splat_pair(pair.as_ptr()), loaded);
                    }
                    L::from_sums(sum).store(sums.as_mut_ptr());
                }
            }
            sums
        }
    }

    proptest! {
        #[test]
        fn sums_of_products_are_exact(
            len in 1..=2 * LANES,
            factors in prop::collection::vec(-i16::MAX..=i16::MAX, 2..64),
            row in prop::collection::vec(any::<i8>(), 2 * LANES),
            other in prop::collection::vec(any::<i8>(), 2 * LANES),
        ) {
            let (row, other) = (row[..len].to_vec(), other[..len].to_vec());
            let sum_with = |a: i8, b: i8| -> f32 {
                let pairs = factors.chunks_exact(2);
                let products = pairs.map(|pair| {
                    i64::from(pair[0]) * i64::from(a) + i64::from(pair[1]) * i64::from(b)
                });
                products.sum::<i64>() as i32 as f32
            };
            let mut expected = [[0.0; LANES]; 4];
            for (lane, (a, b)) in row.iter().zip(&other).enumerate() {
                expected[lane / LANES][lane % LANES] = sum_with(*a, *b);
            }
            for (lane, quad) in row.chunks(4).enumerate() {
                let at = |index: usize| quad.get(index).copied().unwrap_or(0);
                expected[2][lane] = sum_with(at(0), at(2));
                expected[3][lane] = sum_with(at(1), at(3));
            }
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                let multiply = Multiply { factors: &factors, rows: [&row, &other] };
                // SAFETY: the machine has the instructions.
                let found = unsafe { run(isa, multiply) };
                prop_assert_eq!(found, expected, "{}", isa);
            }
        }
    }
}
