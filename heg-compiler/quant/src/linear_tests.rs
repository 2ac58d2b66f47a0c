//! Products with stored weights: the order of sums, and exact numbers.

use heg_artifacts::manifest::ElementType;

use super::{MappedWeight, ValueRows, linear};

/// Numbers whose sum depends on the order: large ones of either sign among small ones.
fn uneven(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count)
        .map(|at| next() * if at % 7 == 0 { 1e6 } else { 1.0 })
        .collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The specified order: element i goes into sum i mod 16, then sum l adds sum l + 8, l + 4, l + 2, l + 1.
fn dot(row: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 16];
    for (at, (w, x)) in row.iter().zip(x).enumerate() {
        sums[at % 16] += w * x;
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
    }
    sums[0]
}

#[test]
fn sums_have_one_order_for_any_width_and_number_of_tokens() {
    for width in [1, 15, 16, 17, 48, 100] {
        for tokens in [1, 2, 3, 5] {
            let x = ValueRows {
                width,
                values: uneven(tokens * width, 3),
            };
            // More than a window of blocks if rows are long.
            let rows = 61;
            let matrix = uneven(rows * width, 5);
            let weight = MappedWeight::of_bytes(ElementType::F32, &bytes(&matrix), None).unwrap();
            let found = linear(&x, &weight, None).unwrap();
            let expected: Vec<f32> = x
                .rows()
                .flat_map(|x| matrix.chunks(width).map(|row| dot(row, x)))
                .collect();
            assert_eq!(found.width, rows);
            assert_eq!(found.values, expected, "{tokens} tokens of {width}");
        }
    }
}

#[test]
fn all_weights_of_eight_and_sixteen_bits_are_exact() {
    let one = ValueRows {
        width: 1,
        values: vec![1.0],
    };
    let int8: Vec<u8> = (0..=255).collect();
    let (scales, centres) = (bytes(&[0.5; 256]), bytes(&[0.25; 256]));
    let weight =
        MappedWeight::of_bytes(ElementType::I8, &int8, Some((&scales, Some(&centres)))).unwrap();
    let found = linear(&one, &weight, None).unwrap().values;
    let expected: Vec<f32> = int8
        .iter()
        .map(|x| f32::from(x.cast_signed()) / 2.0 + 0.25)
        .collect();
    assert_eq!(found, expected);
    let finite = (0..=u16::MAX)
        .map(half::f16::from_bits)
        .filter(|x| x.is_finite());
    let halves: Vec<half::f16> = finite.collect();
    let stored: Vec<u8> = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
    let weight = MappedWeight::of_bytes(ElementType::F16, &stored, None).unwrap();
    let found = linear(&one, &weight, None).unwrap().values;
    let expected: Vec<f32> = halves.iter().map(|x| x.to_f32()).collect();
    assert_eq!(found, expected);
}

/// Several windows, the last one and its last block shorter than others.
#[test]
fn sums_do_not_depend_on_threads_and_windows() {
    let (rows, width) = (3001, 1000);
    let x = ValueRows {
        width,
        values: uneven(2 * width, 7),
    };
    let matrix = uneven(rows * width, 9);
    let weight = MappedWeight::of_bytes(ElementType::F32, &bytes(&matrix), None).unwrap();
    let expected: Vec<f32> = x
        .rows()
        .flat_map(|x| matrix.chunks(width).map(|row| dot(row, x)))
        .collect();
    for threads in [1, 2, 7] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let found = pool.build().unwrap().install(|| linear(&x, &weight, None));
        assert_eq!(found.unwrap().values, expected, "{threads} threads");
    }
}
