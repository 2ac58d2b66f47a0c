//! Marks in the rows that a run is to write: elements that are no numbers, which the run overwrites.
//!
//! Where a mark is left the device wrote nothing there; what it wrote is no number either if it computes in nonsense, or
//! if its element type has no room for the numbers of the model. Zeros alone are what a device gives that computed
//! nothing: a layer of a model that is pruned to zeros would give them too, and goes to the CPU. That costs a few elements
//! of a row of each run. Wrong numbers it does not show: those are for known answers (`recheck`). Nor does it show a run that
//! wrote nothing where rows are not lent to the device: the plugin then copies rows of its own, with numbers of the run before.

use heg_openvino::TensorType;

use crate::error::ExecError;
use crate::mem::RowBuffer;

/// Rows that a run is to write.
#[derive(Clone, Copy)]
pub(super) struct MarkedRows<'a> {
    rows: &'a RowBuffer,
    first: usize,
    count: usize,
}

/// The elements of marked rows after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marks {
    /// Numbers, not all of them zero.
    Numbers,
    /// Zeros.
    Zeros,
    /// Something that is no number, or the mark.
    NoNumbers,
}

impl<'a> MarkedRows<'a> {
    /// Rows [first, first + count) of a buffer.
    pub(super) fn new(rows: &'a RowBuffer, first: usize, count: usize) -> Self {
        Self { rows, first, count }
    }

    /// Marks the first and the last of the rows.
    pub(super) fn mark(self) -> Result<(), ExecError> {
        // All ones are no number in any float.
        let mark = [0xFF; 4];
        let mark = mark.get(..self.rows.element().bytes()).unwrap_or(&mark);
        let mut places = self.places();
        places.try_for_each(|(row, column)| self.rows.write_element(row, column, mark))
    }

    /// Looks at what the run left there.
    pub(super) fn look(self) -> Result<Marks, ExecError> {
        let mut marks = Marks::Zeros;
        for (row, column) in self.places() {
            let mut bytes = [0; 4];
            let element = self.rows.element().bytes();
            if let Some(bytes) = bytes.get_mut(..element) {
                self.rows.read_element(row, column, bytes)?;
            }
            match kind(self.rows.element(), bytes) {
                Marks::NoNumbers => return Ok(Marks::NoNumbers),
                Marks::Numbers => marks = Marks::Numbers,
                Marks::Zeros => {}
            }
        }
        Ok(marks)
    }

    fn places(self) -> impl Iterator<Item = (usize, usize)> {
        let last = self.first + self.count.saturating_sub(1);
        let second = (last != self.first).then_some(last);
        let rows = [Some(self.first), second].into_iter().flatten();
        let width = self.rows.width();
        let columns = (0..width).step_by(width.div_ceil(PLACES).max(1));
        rows.flat_map(move |row| columns.clone().map(move |column| (row, column)))
    }
}

/// Most places of a row. Chosen: they take a microsecond, and kernels a hundred.
const PLACES: usize = 8;

/// The kind of one element, which is a float.
fn kind(element: TensorType, bytes: [u8; 4]) -> Marks {
    let [first, second, third, fourth] = bytes;
    let (bits, exponent) = match element {
        TensorType::F16 => (u32::from(u16::from_le_bytes([first, second])), 0x7C00),
        TensorType::Bf16 => (u32::from(u16::from_le_bytes([first, second])), 0x7F80),
        _ => (
            u32::from_le_bytes([first, second, third, fourth]),
            0x7F80_0000,
        ),
    };
    let sign = match element {
        TensorType::F16 | TensorType::Bf16 => 1 << 15,
        _ => 1 << 31,
    };
    if bits & exponent == exponent {
        Marks::NoNumbers
    } else if bits & !sign == 0 {
        Marks::Zeros
    } else {
        Marks::Numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::MemoryHome;

    fn rows(element: TensorType) -> RowBuffer {
        RowBuffer::new(4, 20, element, &MemoryHome::default()).unwrap()
    }

    #[test]
    fn marks_that_are_left_are_no_numbers() {
        for element in [TensorType::F16, TensorType::Bf16, TensorType::F32] {
            let rows = rows(element);
            let marked = MarkedRows::new(&rows, 1, 3);
            assert_eq!(marked.look().unwrap(), Marks::Zeros);
            marked.mark().unwrap();
            assert_eq!(marked.look().unwrap(), Marks::NoNumbers);
            // Rows before and behind keep what they have.
            assert_eq!(MarkedRows::new(&rows, 0, 1).look().unwrap(), Marks::Zeros);
            let one = vec![0x3C; rows.row_bytes()];
            rows.write_row(1, &one).unwrap();
            assert_eq!(marked.look().unwrap(), Marks::NoNumbers);
            rows.write_row(3, &one).unwrap();
            assert_eq!(marked.look().unwrap(), Marks::Numbers);
        }
    }

    #[test]
    fn infinities_are_no_numbers_and_both_zeros_are_zeros() {
        let of = |element, number: u32| kind(element, number.to_le_bytes());
        assert_eq!(of(TensorType::F16, 0xFC00), Marks::NoNumbers);
        assert_eq!(of(TensorType::F16, 0x8000), Marks::Zeros);
        assert_eq!(of(TensorType::F16, 0x7BFF), Marks::Numbers);
        assert_eq!(of(TensorType::F32, 0xFF80_0000), Marks::NoNumbers);
        assert_eq!(of(TensorType::F32, 0x8000_0000), Marks::Zeros);
        assert_eq!(of(TensorType::F32, 1), Marks::Numbers);
    }
}
