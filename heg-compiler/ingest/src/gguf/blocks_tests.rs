//! The decoders against `gguf.quants.dequantize` of the `gguf` Python package, bit for bit.
//!
//! `testdata/blocks.bin` has, for each format, ggml's number, a count of blocks, random blocks with finite scales (of
//! usual, large and subnormal size), and the decoded numbers as little-endian f32.

use proptest::prelude::*;

use super::blocks::BlockFormat;
use super::element_type::RowFormat;

const VECTORS: &[u8] = include_bytes!("testdata/blocks.bin");

#[test]
fn every_format_decodes_as_ggml_defines() {
    let mut rest = VECTORS;
    let mut formats = 0;
    while let Some(([number, count], after)) = rest.split_first_chunk() {
        let Some(RowFormat::Blocks(format)) = RowFormat::of_number(u32::from(*number)) else {
            panic!("{number} is no format of blocks");
        };
        let (blocks, after) = after.split_at(usize::from(*count) * format.block_bytes());
        let bytes = usize::from(*count) * format.block_elements() * 4;
        let (expected, after) = after.split_at(bytes);
        let mut found = vec![0; bytes];
        format.decode(blocks, &mut found);
        for (place, (found, expected)) in found.chunks(4).zip(expected.chunks(4)).enumerate() {
            assert_eq!(found, expected, "{format}, number {place}");
        }
        rest = after;
        formats += 1;
    }
    assert_eq!(formats, FORMATS.len());
}

const FORMATS: [BlockFormat; 10] = [
    BlockFormat::Q4_0,
    BlockFormat::Q4_1,
    BlockFormat::Q5_0,
    BlockFormat::Q5_1,
    BlockFormat::Q8_0,
    BlockFormat::Q2K,
    BlockFormat::Q3K,
    BlockFormat::Q4K,
    BlockFormat::Q5K,
    BlockFormat::Q6K,
];

proptest! {
    #[test]
    fn any_bytes_are_decoded(bytes in proptest::collection::vec(any::<u8>(), 0..800)) {
        for format in FORMATS {
            let blocks = bytes.len() / format.block_bytes();
            let mut out = vec![0; blocks * format.block_elements() * 4];
            format.decode(&bytes, &mut out);
        }
    }

    /// A block's numbers depend on the block alone, so that rows can be cut anywhere between blocks.
    #[test]
    fn blocks_are_decoded_alike_one_by_one_and_together(
        bytes in proptest::collection::vec(any::<u8>(), 3 * 210),
    ) {
        for format in FORMATS {
            let (block, numbers) = (format.block_bytes(), format.block_elements() * 4);
            let mut together = vec![0; 3 * numbers];
            format.decode(&bytes[..3 * block], &mut together);
            for (at, together) in together.chunks(numbers).enumerate() {
                let mut alone = vec![0; numbers];
                format.decode(&bytes[at * block..][..block], &mut alone);
                prop_assert_eq!(&alone, together);
            }
        }
    }
}
