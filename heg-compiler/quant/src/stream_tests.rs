//! Whole tensors through `encode`: the same bytes for any number of threads and size of blocks, and refusals.
//!
//! The unit tests of `stream.rs`, in a file of their own because of their length. Blocks are small here, so that small
//! tensors have many; one comparison uses the real size.

use std::path::Path;

use proptest::prelude::*;

use heg_ingest::{Checkpoint, SourceDtype, SourceTensor};

use heg_spec::GroupColumns;

use super::stream::*;
use super::w8a16::quantise_rows_as;
use super::*;

/// Values, scales and centres, and the result.
type Output = (Vec<u8>, Vec<AffineRow>, Encoded);

/// Small, so that a small tensor has many blocks.
const TEST_BLOCK_BYTES: usize = 4096;

fn run(src: &SourceTensor<'_>, form: Form) -> Result<Output, QuantError> {
    let (mut values, mut affine) = (Vec::new(), Vec::new());
    let (out, rows) = (&mut values, Some(&mut affine));
    let encoded = encode_in_blocks(src, form, out, rows, TEST_BLOCK_BYTES)?;
    assert_eq!(encoded.values_bytes, values.len() as u64);
    assert_eq!(encoded.source_hash, blake3::hash(src.bytes()));
    assert_eq!(encoded.source_hash, source_hash(src));
    Ok((values, affine, encoded))
}

fn with_threads<T: Send>(count: usize, work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build();
    pool.unwrap().install(work)
}

/// Finite bf16 numbers of many magnitudes, all below 2 and so within f16.
fn weights(count: usize) -> Vec<u8> {
    let number = |n: usize| (n as u32).wrapping_mul(0x9e37_79b9) >> 16;
    let finite = |bits: u32| (bits & 0xbfff) as u16;
    (0..count)
        .flat_map(|n| finite(number(n)).to_le_bytes())
        .collect()
}

/// The 4-bit forms whose groups divide rows.
fn fours(columns: usize) -> impl Iterator<Item = Form> {
    let groups = GroupColumns::ALL.into_iter();
    let dividing = groups.filter(move |group| columns.is_multiple_of(group.count() as usize));
    dividing.flat_map(|group| [Form::I4(group), Form::U4(group)])
}

fn direct(src: &SourceTensor<'_>, form: Form) -> (Vec<u8>, Vec<AffineRow>) {
    let mut values = vec![0; src.element_count()];
    let mut affine = vec![AffineRow::ZERO; src.row_count()];
    quantise_rows_as(src, form, &mut values, &mut affine).unwrap();
    (values, affine)
}

#[test]
fn bytes_do_not_depend_on_threads_or_blocks() {
    // Several windows, an incomplete last block, rows that do not divide a block; then wide rows.
    let bytes = weights(150_000);
    for (rows, columns) in [
        (1500, 100),
        (6, 25_000),
        (50, 3000),
        (1, 150_000),
        (1171, 128),
    ] {
        let bytes = &bytes[..rows * columns * 2];
        let shape = vec![rows, columns];
        let src = SourceTensor::from_bytes("w", SourceDtype::Bf16, shape, bytes).unwrap();
        for form in [Form::F32, Form::F16, Form::I8, Form::CentredI8]
            .into_iter()
            .chain(fours(columns))
        {
            let one = with_threads(1, || run(&src, form)).unwrap();
            let two = with_threads(2, || run(&src, form)).unwrap();
            let many = with_threads(5, || run(&src, form)).unwrap();
            assert!(one == two && two == many, "{form:?}");
            let mut affine = Vec::new();
            let mut values = Vec::new();
            encode(&src, form, &mut values, Some(&mut affine)).unwrap();
            assert!((values, affine) == (one.0, one.1), "{form:?}");
        }
        for form in [Form::I8, Form::CentredI8] {
            let (values, affine, _) = run(&src, form).unwrap();
            assert!((values, affine) == direct(&src, form));
        }
    }
}

#[test]
fn every_tensor_of_the_fixture_is_encoded() {
    let root = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/tiny-agent"
    );
    let checkpoint = Checkpoint::open(Path::new(root)).unwrap();
    for name in checkpoint.names() {
        let src = checkpoint.tensor(name).unwrap();
        for form in [Form::F32, Form::F16] {
            let (values, affine, _) = run(&src, form).unwrap();
            assert_eq!(values.len(), form.bytes_of(src.element_count()));
            assert!(affine.is_empty());
        }
        match src.shape().len() {
            2 => assert_eq!(run(&src, Form::I8).unwrap().1.len(), src.row_count()),
            _ => assert!(matches!(run(&src, Form::I8), Err(QuantError::Rank { .. }))),
        }
    }
}

#[test]
fn a_view_encodes_as_its_rows_do() {
    let bytes = weights(40 * 33);
    let src = SourceTensor::from_bytes("w", SourceDtype::Bf16, vec![40, 33], &bytes).unwrap();
    let (values, affine, _) = run(&src, Form::I8).unwrap();
    let (part, part_affine, _) = run(&src.rows(7..19).unwrap(), Form::I8).unwrap();
    assert_eq!(part, values[7 * 33..19 * 33]);
    assert_eq!(part_affine, affine[7..19]);
}

#[test]
fn what_cannot_be_encoded_is_refused() {
    let name = "w";
    let tensor = |shape: &[usize], bytes| {
        SourceTensor::from_bytes(name, SourceDtype::Bf16, shape.to_vec(), bytes).unwrap()
    };
    let message = |src: &SourceTensor<'_>, form| run(src, form).unwrap_err().to_string();
    assert_eq!(
        message(&tensor(&[1 << 60, 0], &[]), Form::F32),
        "tensor `w` of shape [1152921504606846976, 0] is empty"
    );
    assert_eq!(
        message(&tensor(&[2], &[0; 4]), Form::I8),
        "tensor `w` of shape [2] has no rows to scale, expected two dimensions or more"
    );
    let error = encode(&tensor(&[2, 1], &[0; 4]), Form::I8, &mut Vec::new(), None);
    assert_eq!(
        error.unwrap_err().to_string(),
        "scales and centres for tensor `w`: found room for 0, expected 2"
    );
    let mut full = &mut [0_u8; 7][..];
    let error = encode(&tensor(&[2], &[0; 4]), Form::F32, &mut full, None).unwrap_err();
    assert_eq!(error.to_string(), "encoded tensor `w` cannot be written");
}

#[test]
fn the_first_bad_row_is_named_whatever_the_form_and_the_block() {
    let nan = half::bf16::NAN.to_le_bytes();
    for (rows, columns) in [(600, 100), (12, 5000)] {
        let mut bytes = weights(rows * columns);
        for row in [rows - 5, rows - 2] {
            let place = (row * columns + 50) * 2;
            bytes[place..place + 2].copy_from_slice(&nan);
        }
        let shape = vec![rows, columns];
        let src = SourceTensor::from_bytes("w", SourceDtype::Bf16, shape, &bytes).unwrap();
        for form in [Form::F32, Form::I8] {
            let error = run(&src, form).unwrap_err().to_string();
            let expect = format!("tensor `w` holds NaN or infinity in row {}", rows - 5);
            assert_eq!(error, expect);
        }
        assert!(run(&src.rows(0..rows - 5).unwrap(), Form::I8).is_ok());
    }
}

proptest! {
    #[test]
    fn small_tensors_of_any_shape_and_bytes_never_panic(
        rows in 0_usize..6,
        columns in 0_usize..40,
        dtype in 0_usize..3,
        bytes in proptest::collection::vec(any::<u8>(), 6 * 40 * 4),
    ) {
        let dtype = [SourceDtype::F32, SourceDtype::F16, SourceDtype::Bf16][dtype];
        let bytes = &bytes[..rows * columns * dtype.element_bytes()];
        let src = SourceTensor::from_bytes("w", dtype, vec![rows, columns], bytes).unwrap();
        let forms = [Form::F32, Form::F16, Form::I8, Form::CentredI8].into_iter();
        for form in forms.chain(fours(0)) {
            if let Ok((values, _, _)) = run(&src, form) {
                prop_assert_eq!(values.len(), form.bytes_of(rows * columns));
            }
        }
    }
}
