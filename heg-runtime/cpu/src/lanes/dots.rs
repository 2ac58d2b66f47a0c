//! Dot products of 16-bit with 8-bit integers. Their sums are exact, so they have any order.

/// Most columns that are multiplied at once; rows of queries are padded with zeros to a multiple of this.
pub(crate) const DOT_COLUMNS: usize = 32;

/// Keys that are multiplied at once.
pub(crate) const DOT_KEYS: usize = 4;

/// Rows of queries, and where their dot products go.
#[derive(Clone, Copy)]
pub(crate) struct Queries {
    /// The first row, padded with zeros to a multiple of [`DOT_COLUMNS`].
    pub(crate) first: *const i16,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    /// Columns to multiply, 1 to [`DOT_COLUMNS`]; the row has zeros behind them, or other columns.
    pub(crate) len: usize,
    /// The first row's dot products, [`DOT_KEYS`] of them.
    pub(crate) dots: *mut i32,
    /// Dot products from one row to the next.
    pub(crate) dots_stride: usize,
}

impl Queries {
    /// Columns of a row from `column` on.
    #[inline(always)]
    pub(super) fn columns(&self, row: usize, column: usize) -> *const i16 {
        self.first.wrapping_add(row * self.stride + column)
    }

    /// The dot products of a row.
    #[inline(always)]
    pub(super) fn of_row(&self, row: usize) -> *mut i32 {
        self.dots.wrapping_add(row * self.dots_stride)
    }
}

/// Dot products of integers.
pub(crate) trait Dots {
    /// Writes the dot products of `ROWS` rows of queries, 1 to 4, with a group of columns of four keys.
    ///
    /// # Safety
    ///
    /// As for [`Lanes`](super::Lanes): the machine has the instructions. The queries have the rows, and keys
    /// [`len`](Queries::len) elements; nothing behind them is read. Sums of magnitudes fit in 32 bits.
    unsafe fn dots<const ROWS: usize>(queries: Queries, keys: [*const i8; DOT_KEYS]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::lanes::{Kernel, Lanes, run};
    use proptest::prelude::*;

    /// Rows behind each other, and keys that end with their last element.
    #[derive(Clone, Copy)]
    struct Multiply<'a> {
        rows: usize,
        len: usize,
        queries: &'a [i16],
        keys: [&'a [i8]; DOT_KEYS],
    }

    impl Kernel for Multiply<'_> {
        type Output = Vec<i32>;

        #[inline(always)]
        unsafe fn run<L: Lanes>(self) -> Vec<i32> {
            let mut dots = vec![i32::MIN; self.rows * DOT_KEYS];
            let queries = Queries {
                first: self.queries.as_ptr(),
                stride: DOT_COLUMNS,
                len: self.len,
                dots: dots.as_mut_ptr(),
                dots_stride: DOT_KEYS,
            };
            let [a, b, c, d] = self.keys;
            let keys = [a.as_ptr(), b.as_ptr(), c.as_ptr(), d.as_ptr()];
            // SAFETY: the queries have the rows, the keys the length, and the dot products a place each.
            unsafe {
                match self.rows {
                    1 => L::dots::<1>(queries, keys),
                    2 => L::dots::<2>(queries, keys),
                    3 => L::dots::<3>(queries, keys),
                    _ => L::dots::<4>(queries, keys),
                }
            }
            dots
        }
    }

    proptest! {
        #[test]
        fn dot_products_are_exact(
            rows in 1..=4usize,
            len in 1..=DOT_COLUMNS,
            queries in prop::collection::vec(-i16::MAX..=i16::MAX, 4 * DOT_COLUMNS),
            keys in prop::collection::vec(any::<i8>(), DOT_KEYS * DOT_COLUMNS),
        ) {
            // Columns behind the length are the next group's.
            let keys: Vec<Vec<i8>> = keys.chunks(DOT_COLUMNS).map(|key| key[..len].to_vec()).collect();
            let multiply = Multiply {
                rows,
                len,
                queries: &queries,
                keys: [&keys[0], &keys[1], &keys[2], &keys[3]],
            };
            let of_row = |row: usize| {
                let query = &queries[row * DOT_COLUMNS..][..len];
                keys.iter().map(move |key| {
                    let products = query.iter().zip(key).map(|(q, k)| i64::from(*q) * i64::from(*k));
                    products.sum::<i64>() as i32
                })
            };
            let expected: Vec<i32> = (0..rows).flat_map(of_row).collect();
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                // SAFETY: the machine has the instructions.
                let found = unsafe { run(isa, multiply) };
                prop_assert_eq!(&found, &expected, "{}", isa);
            }
        }
    }
}
