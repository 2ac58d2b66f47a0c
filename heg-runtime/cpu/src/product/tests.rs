//! Every form against the portable one, bit for bit, and the portable one against f64.

use super::{
    Affine, Bits, Grouped, IntegerProduct, Line, Panel, Residual, Rounded, Scaling, WeightKind,
    integer_product, round_row, unpack,
};
use crate::Isa;
use half::f16;
use heg_spec::Seeded;
use proptest::prelude::*;
use std::ops::Range;

/// A product with its inputs; weights are unaligned, with no byte behind them.
struct Case {
    form: Rounded,
    outputs: usize,
    weights: Vec<i8>,
    numbers: Numbers,
    x: Vec<f32>,
    bias: Option<Vec<f32>>,
    /// One element wider than the outputs.
    residual: Option<(Vec<f32>, f32)>,
}

/// Scales and centres of weights.
enum Numbers {
    /// Per row.
    Rows(Vec<f32>, Option<Vec<f32>>),
    /// Per group: columns of a group, scales, centres.
    Groups(usize, Vec<u16>, Option<Vec<u16>>),
}

/// The form of an operand of this width, rounded up to whole groups for nibbles.
fn form(width: usize, bits: Bits, weight_kind: WeightKind) -> Rounded {
    let width = match weight_kind {
        WeightKind::Bytes => width,
        WeightKind::Nibbles => width.next_multiple_of(32),
    };
    Rounded {
        width,
        bits,
        weight_kind,
    }
}

/// Returns numbers from −1 to 1.
fn floats(seeded: &mut Seeded, count: usize) -> Vec<f32> {
    let number = |_| (2.0 * seeded.unit() - 1.0) as f32;
    (0..count).map(number).collect()
}

impl Case {
    fn new(seed: u64, form: Rounded, outputs: usize, rows: usize, terms: bool) -> Self {
        let mut seeded = Seeded::new(seed);
        let mut x = floats(&mut seeded, rows * form.width);
        // Outliers, and a group of zeros.
        x.iter_mut().step_by(37).for_each(|x| *x *= 50.0);
        x.iter_mut().take(40).for_each(|x| *x = 0.0);
        let centred = !seed.is_multiple_of(4);
        let bytes = match form.weight_kind {
            WeightKind::Bytes => form.width,
            WeightKind::Nibbles => form.width / 2,
        };
        let weights = floats(&mut seeded, outputs * bytes).into_iter();
        Self {
            form,
            outputs,
            weights: weights.map(|w| (w * 128.9) as i8).collect(),
            numbers: match form.weight_kind {
                WeightKind::Bytes => Numbers::Rows(
                    floats(&mut seeded, outputs),
                    centred.then(|| floats(&mut seeded, outputs)),
                ),
                WeightKind::Nibbles => {
                    let mut sizes = [128, 64, 32].into_iter().skip(seed as usize % 3);
                    let columns = sizes.find(|size| form.width.is_multiple_of(*size)).unwrap();
                    let mut halves = || -> Vec<u16> {
                        let numbers =
                            floats(&mut seeded, outputs * form.width / columns).into_iter();
                        numbers.map(|x| f16::from_f32(x).to_bits()).collect()
                    };
                    Numbers::Groups(columns, halves(), centred.then(halves))
                }
            },
            x,
            bias: terms.then(|| floats(&mut seeded, outputs)),
            residual: terms.then(|| (floats(&mut seeded, rows * (outputs + 1)), 0.37)),
        }
    }

    fn scaling(&self) -> Scaling {
        match &self.numbers {
            Numbers::Rows(scales, centres) => Scaling::Rows(Affine {
                scales: scales.as_ptr(),
                centres: centres.as_ref().map(|centres| centres.as_ptr()),
            }),
            Numbers::Groups(columns, scales, centres) => Scaling::Groups(Grouped {
                scales: scales.as_ptr(),
                centres: centres.as_ref().map(|centres| centres.as_ptr()),
                columns: *columns,
            }),
        }
    }

    /// A dequantised row of weights.
    fn stored(&self, output: usize) -> Vec<f64> {
        let width = self.form.width;
        match (self.scaling(), &self.numbers) {
            (Scaling::Groups(groups), _) => {
                let (mut row, weights) = (vec![0.0; width], self.weights.as_ptr().cast());
                // SAFETY: everything has the row.
                unsafe { unpack(&groups, weights, width, output, row.as_mut_ptr()) };
                row.into_iter().map(f64::from).collect()
            }
            (_, Numbers::Rows(scales, centres)) => {
                let scale = f64::from(scales[output]);
                let centre = centres.as_ref().map_or(0.0, |centres| centres[output]);
                let weights = self.weights[output * width..][..width].iter();
                weights
                    .map(|w| f64::from(*w) * scale + f64::from(centre))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// The operand for `rows`.
    fn operand(&self, isa: Isa, rows: Range<usize>) -> Vec<Line> {
        let mut operand = vec![Line([0x55; 64]); self.form.bytes(rows.len()).div_ceil(64)];
        for row in rows.clone() {
            let x = self.x[row * self.form.width..].as_ptr();
            let (count, row) = (rows.len(), row - rows.start);
            // SAFETY: the row has the form's width and the operand its bytes.
            unsafe { round_row(isa, self.form, count, row, x, operand.as_mut_ptr().cast()) };
        }
        operand
    }

    /// The results for `rows`, with outputs divided at multiples of `step`.
    fn run(&self, isa: Isa, rows: Range<usize>, step: usize) -> Vec<f32> {
        let operand = self.operand(isa, rows.clone());
        // Results overwrite the residual, if there is one.
        let mut out = vec![f32::NAN; rows.len() * (self.outputs + 1)];
        if let Some((residual, _)) = &self.residual {
            out.copy_from_slice(
                &residual[rows.start * (self.outputs + 1)..rows.end * (self.outputs + 1)],
            );
        }
        let to = out.as_mut_ptr();
        let product = IntegerProduct {
            weights: self.weights.as_ptr(),
            scaling: self.scaling(),
            form: self.form,
            operand: operand.as_ptr().cast(),
            operand_rows: rows.len(),
            first_row: 0,
            rows: rows.len(),
            bias: self.bias.as_ref().map(|bias| bias.as_ptr()),
            residual: self.residual.as_ref().map(|(_, factor)| Residual {
                from: to,
                stride: self.outputs + 1,
                factor: *factor,
            }),
            out: to,
            out_stride: self.outputs + 1,
        };
        let mut panel = Panel::new();
        for start in (0..self.outputs).step_by(step) {
            let outputs = start..self.outputs.min(start + step);
            // SAFETY: everything has the outputs and rows.
            unsafe { integer_product(isa, &product, outputs, &mut panel) };
        }
        out
    }

    /// Reference results for activations `x`, in f64.
    fn exact(&self, x: &[f64]) -> Vec<f64> {
        let (width, stride) = (self.form.width, self.outputs + 1);
        let mut out = Vec::new();
        for (row, x) in x.chunks(width).enumerate() {
            for output in 0..self.outputs {
                let weights = self.stored(output);
                let mut y: f64 = weights.iter().zip(x).map(|(w, x)| w * x).sum();
                if let Some(bias) = &self.bias {
                    y += f64::from(bias[output]);
                }
                if let Some((residual, factor)) = &self.residual {
                    y = f64::from(residual[row * stride + output]) + f64::from(*factor) * y;
                }
                out.push(y);
            }
        }
        out
    }

    /// Activations, exact and rounded.
    fn activations(&self) -> [Vec<f64>; 2] {
        let steps = match self.form.bits {
            Bits::Eight => 127.0,
            Bits::Sixteen => 32512.0,
        };
        let rows = self.x.chunks(self.form.width);
        let groups = rows.flat_map(|row| row.chunks(32));
        let rounded = groups.flat_map(|group| {
            let largest = group.iter().fold(0.0, |a: f32, x| a.max(x.abs()));
            let rounded = move |x: &f32| match largest {
                0.0 => 0.0,
                _ => {
                    f64::from((x * (steps / largest)).round_ties_even())
                        * f64::from(largest / steps)
                }
            };
            group.iter().map(rounded)
        });
        [
            self.x.iter().map(|x| f64::from(*x)).collect(),
            rounded.collect(),
        ]
    }
}

/// Root of the mean squared error, relative to the mean square.
fn error(found: &[f32], exact: &[f64]) -> f64 {
    let squares = |difference: &dyn Fn(f32, f64) -> f64| -> f64 {
        found
            .iter()
            .zip(exact)
            .map(|(found, exact)| difference(*found, *exact).powi(2))
            .sum()
    };
    (squares(&|found, exact| f64::from(found) - exact) / squares(&|_, exact| exact)).sqrt()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn forms() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

const FORMS: [(Bits, WeightKind); 4] = [
    (Bits::Eight, WeightKind::Bytes),
    (Bits::Sixteen, WeightKind::Bytes),
    (Bits::Eight, WeightKind::Nibbles),
    (Bits::Sixteen, WeightKind::Nibbles),
];

fn any_form() -> impl Strategy<Value = (Bits, WeightKind)> {
    prop::sample::select(FORMS.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_form_has_the_bits_of_the_portable_one(
        seed: u64,
        (bits_of, weight_kind) in any_form(),
        width in prop_oneof![1..200_usize, 2000..2300_usize, (1..40_usize).prop_map(|blocks| blocks * 64)],
        outputs in 1..100_usize,
        rows in prop_oneof![1..20_usize, 33..70_usize],
        terms: bool,
    ) {
        let case = Case::new(seed, form(width, bits_of, weight_kind), outputs, rows, terms);
        let expected = bits(&case.run(Isa::Portable, 0..rows, outputs));
        for isa in forms() {
            let found = case.run(isa, 0..rows, 64);
            prop_assert!(bits(&found) == expected, "{isa}");
        }
    }

    #[test]
    fn rows_do_not_depend_on_their_company(
        seed: u64,
        (bits_of, weight_kind) in any_form(),
        width in 1..300_usize,
        outputs in 1..80_usize,
        rows in 2..30_usize,
        first in 0..30_usize,
        count in 1..30_usize,
    ) {
        let case = Case::new(seed, form(width, bits_of, weight_kind), outputs, rows, true);
        let first = first % rows;
        let some = first..rows.min(first + count);
        for isa in forms() {
            let all = case.run(isa, 0..rows, outputs);
            let found = case.run(isa, some.clone(), outputs);
            let expected = &all[some.start * (outputs + 1)..some.end * (outputs + 1)];
            prop_assert!(bits(&found) == bits(expected), "{isa}");
        }
    }

    #[test]
    fn every_form_rounds_alike(
        (bits, weight_kind) in any_form(),
        x in prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::SUBNORMAL | prop::num::f32::ZERO, 1..150),
    ) {
        let form = Rounded { width: x.len(), bits, weight_kind };
        let numbers = Numbers::Rows(vec![], None);
        let case = Case { form, outputs: 0, weights: vec![], numbers, x, bias: None, residual: None };
        let bytes = |isa| {
            let lines = case.operand(isa, 0..1);
            let bytes = lines.into_iter().flat_map(|line| line.0);
            bytes.take(form.bytes(1)).collect::<Vec<_>>()
        };
        for isa in forms() {
            prop_assert_eq!(bytes(isa), bytes(Isa::Portable));
        }
    }
}

/// More columns and rows than one slice or pass of the kernels holds.
#[test]
fn long_rows_and_many_rows_have_the_same_bits() {
    for (width, outputs, rows) in [
        (8192 + 4160, 17, 1),
        (4200, 35, 13),
        (4160, 35, 7),
        (4160, 20, 25),
        (128, 1100, 12),
        (70, 33, 300),
        (2100, 9, 259),
    ] {
        for (bits_of, weight_kind) in FORMS {
            let case = Case::new(7, form(width, bits_of, weight_kind), outputs, rows, true);
            let expected = bits(&case.run(Isa::Portable, 0..rows, outputs));
            for isa in forms() {
                assert!(
                    bits(&case.run(isa, 0..rows, outputs)) == expected,
                    "{isa} {width}"
                );
            }
        }
    }
}

#[test]
fn results_are_near_the_exact_ones() {
    for (bits_of, weight_kind) in FORMS {
        let bound = match bits_of {
            Bits::Eight => 2.0e-2,
            Bits::Sixteen => 8.0e-5,
        };
        for (seed, width) in [(11, 7), (12, 576), (13, 1000)] {
            let case = Case::new(seed, form(width, bits_of, weight_kind), 50, 4, true);
            let found = case.run(Isa::Portable, 0..4, 50);
            let rows = found.chunks(51).flat_map(|row| row[..50].iter().copied());
            let found: Vec<f32> = rows.collect();
            let [exact, rounded] = case.activations().map(|x| error(&found, &case.exact(&x)));
            assert!(exact < bound, "{exact}");
            assert!(rounded < 5.0e-7, "{rounded}");
        }
    }
}

#[test]
fn what_is_not_finite_makes_a_row_nan() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (bits_of, weight_kind) in FORMS {
            let form = form(70, bits_of, weight_kind);
            let mut case = Case::new(3, form, 20, 3, false);
            case.x[form.width + 5] = value;
            for isa in forms() {
                let found = case.run(isa, 0..3, 20);
                assert!(found[21..41].iter().all(|y| y.is_nan()), "{isa}");
                assert!(found[..20].iter().all(|y| y.is_finite()), "{isa}");
            }
        }
    }
}

#[test]
fn operands_fit_in_scratch_memory() {
    for (bits, weight_kind) in FORMS {
        for width in [1, 31, 64, 65, 576, 8192] {
            let form = Rounded {
                width,
                bits,
                weight_kind,
            };
            let scratch = heg_artifacts::program::scratch_width(width as u32) as usize;
            assert!(form.bytes(3) <= 3 * 4 * scratch);
        }
    }
}
