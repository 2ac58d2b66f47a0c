//! Packed tensors stream like their unpacked numbers: in any form, in any blocks, from any row on.

use std::ops::Range;

use heg_artifacts::Mapping;
use proptest::prelude::*;

use heg_ingest::{BlockFormat, Packing, RowFormat, RowOrder, Shift, SourceDtype, SourceTensor};

use super::{Form, encode_in_blocks, source_hash};

/// Rows per head: the first stored row is row 0, the second row 4, the third row 1.
const HEAD_ROWS: usize = 8;

fn packing(format: RowFormat, order: RowOrder, shift: Shift) -> Packing {
    Packing {
        format,
        order,
        shift,
    }
}

/// All numbers of a packed tensor in the model's order, straight from the definition.
fn numbers(packing: Packing, rows: usize, columns: usize, bytes: &[u8]) -> Vec<f32> {
    let mut stored = vec![0; rows * columns * 4];
    packing.format.decode(bytes, &mut stored);
    let stored: Vec<f32> = stored
        .chunks(4)
        .map(|raw| f32::from_le_bytes(raw.try_into().unwrap()))
        .collect();
    let mut numbers = Vec::new();
    for row in 0..rows {
        let from = match packing.order {
            RowOrder::AsStored => row,
            RowOrder::Neighbours { .. } => {
                // From (head, half, place), the stored order is (head, place, half).
                let (head, half, place) = (row / HEAD_ROWS, row % HEAD_ROWS / 4, row % 4);
                head * HEAD_ROWS + place * 2 + half
            }
        };
        numbers.extend(&stored[from * columns..][..columns]);
    }
    if packing.shift == Shift::One {
        numbers.iter_mut().for_each(|number| *number -= 1.0);
    }
    numbers
}

/// Gives blocks moderate scales: f16 bits below 0x4000 are numbers below 2.
fn tame(format: RowFormat, bytes: &mut [u8]) {
    for block in bytes.chunks_mut(format.block_bytes()) {
        let scales: &[usize] = match format {
            RowFormat::Blocks(BlockFormat::Q4_1 | BlockFormat::Q4K) => &[1, 3],
            RowFormat::Blocks(BlockFormat::Q6K) => &[209],
            RowFormat::Blocks(_) => &[1],
            RowFormat::Plain(SourceDtype::F32) => &[3],
            RowFormat::Plain(_) => &[1],
        };
        for at in scales {
            block[*at] &= 0x3f;
        }
    }
}

const FORMATS: [RowFormat; 6] = [
    RowFormat::Plain(SourceDtype::F32),
    RowFormat::Plain(SourceDtype::F16),
    RowFormat::Blocks(BlockFormat::Q8_0),
    RowFormat::Blocks(BlockFormat::Q4_1),
    RowFormat::Blocks(BlockFormat::Q4K),
    RowFormat::Blocks(BlockFormat::Q6K),
];

fn check(packed: &SourceTensor<'_>, plain: &[f32], form: Form, block_bytes: usize) {
    let bytes: Vec<u8> = plain.iter().flat_map(|x| x.to_le_bytes()).collect();
    let shape = packed.shape().to_vec();
    let plain = SourceTensor::from_bytes("w", SourceDtype::F32, shape, &bytes).unwrap();
    let run = |src: &SourceTensor<'_>, block_bytes| {
        let (mut values, mut affine) = (Vec::new(), Vec::new());
        let encoded = encode_in_blocks(src, form, &mut values, Some(&mut affine), block_bytes);
        (encoded.unwrap(), values, affine)
    };
    let (encoded, values, affine) = run(packed, block_bytes);
    let (_, expected, expected_affine) = run(&plain, 4 << 20);
    assert_eq!(values, expected);
    assert_eq!(affine, expected_affine);
    assert_eq!(encoded.source_hash, source_hash(packed));
    assert_eq!(packed.element_count(), plain.element_count());
}

fn rows_of(numbers: &[f32], columns: usize, rows: Range<usize>) -> &[f32] {
    &numbers[rows.start * columns..rows.end * columns]
}

proptest! {
    #[test]
    fn packed_rows_encode_as_their_numbers_do(
        seed in proptest::collection::vec(any::<u8>(), 4096),
        format in 0..FORMATS.len(),
        neighbours: bool,
        shifted: bool,
        heads in 1_usize..6,
        cut in 0_usize..8,
        block_rows in 1_usize..9,
    ) {
        let format = FORMATS[format];
        let order = match neighbours {
            true => RowOrder::Neighbours { head_rows: HEAD_ROWS },
            false => RowOrder::AsStored,
        };
        let shift = if shifted { Shift::One } else { Shift::None };
        let packing = packing(format, order, shift);
        let (rows, columns) = (heads * HEAD_ROWS, 256);
        let length = rows * columns / format.block_elements() * format.block_bytes();
        let mut bytes: Vec<u8> = seed.iter().copied().cycle().take(length).collect();
        tame(format, &mut bytes);
        let numbers = numbers(packing, rows, columns, &bytes);
        // After other bytes, as in a file.
        let file = [&[7; 24][..], &bytes].concat();
        let mapping = Mapping::of_bytes(&file).unwrap();
        let place = (&mapping, 24..24 + length);
        let whole = SourceTensor::packed("w", packing, vec![rows, columns], place);
        let view = whole.rows(cut..rows).unwrap();
        for form in [Form::F32, Form::F16, Form::I8, Form::CentredI8] {
            check(&whole, &numbers, form, block_rows * columns * 4);
            check(&view, rows_of(&numbers, columns, cut..rows), form, block_rows * columns * 4);
        }
    }
}

#[test]
fn what_is_not_finite_is_named_by_its_row() {
    let format = RowFormat::Blocks(BlockFormat::Q8_0);
    let packing = packing(format, RowOrder::Neighbours { head_rows: 8 }, Shift::None);
    let mut bytes = vec![0; 8 * 34];
    // Stored row 3 is row 5 of the model.
    bytes[3 * 34..3 * 34 + 2].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
    bytes[3 * 34 + 2] = 1;
    let mapping = Mapping::of_bytes(&bytes).unwrap();
    let whole = SourceTensor::packed("w", packing, vec![8, 32], (&mapping, 0..bytes.len()));
    for src in [whole.clone(), whole.rows(2..8).unwrap()] {
        for form in [Form::F32, Form::I8] {
            let mut affine = Vec::new();
            let encoded = encode_in_blocks(&src, form, &mut Vec::new(), Some(&mut affine), 256);
            let error = encoded.unwrap_err().to_string();
            assert_eq!(error, "tensor `w` holds NaN or infinity in row 5");
        }
    }
    let error = whole.rows(4..9).unwrap_err().to_string();
    assert_eq!(error, "rows 4..9 of tensor `w` do not exist: it has 8");
}

#[test]
fn taking_one_off_a_sum_with_one_and_adding_it_again_gives_the_sum() {
    for bits in (0..u32::MAX).step_by(4_099) {
        let weight = f32::from_bits(bits);
        if weight.is_finite() {
            let stored = weight + 1.0;
            assert_eq!((stored - 1.0) + 1.0, stored, "{weight}");
        }
    }
}
