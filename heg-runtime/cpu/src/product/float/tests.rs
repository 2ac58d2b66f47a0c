//! Every form, tile and split gives the bits of one canonical sum, which is near the exact one.

use super::*;
use crate::lanes::portable::fused;
use half::{bf16, f16};
use proptest::prelude::*;

/// A product with its memory.
#[derive(Debug, Clone)]
struct Case {
    element: Element,
    outputs: usize,
    width: usize,
    rows: usize,
    /// Weights, preceded by `shift` bytes.
    weights: Vec<u8>,
    shift: usize,
    x: Vec<f32>,
    x_stride: usize,
    scales: Option<Vec<f32>>,
    /// `None` without scales.
    centres: Option<Vec<f32>>,
    bias: Option<Vec<f32>>,
    residual: Option<(Vec<f32>, f32)>,
}

fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed | 1;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

fn stored(element: Element, x: f32) -> Vec<u8> {
    match element {
        Element::I8 => vec![(x * 127.0) as i8 as u8],
        Element::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
        Element::Bf16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        Element::F32 => x.to_le_bytes().to_vec(),
    }
}

fn case() -> impl Strategy<Value = Case> {
    let element = prop_oneof![
        Just(Element::I8),
        Just(Element::F16),
        Just(Element::Bf16),
        Just(Element::F32)
    ];
    let shape = (1usize..40, 1usize..200, 1usize..20, 0usize..4);
    let parts = any::<(bool, bool, bool, bool)>();
    (element, shape, parts, any::<u32>()).prop_map(|(element, shape, parts, seed)| {
        let (outputs, width, rows, shift) = shape;
        let mut weights = vec![0; shift];
        for x in values(outputs * width, seed) {
            weights.extend(stored(element, x));
        }
        let x_stride = width + shift;
        let per_output = |wanted: bool, seed| wanted.then(|| values(outputs, seed));
        Case {
            element,
            outputs,
            width,
            rows,
            weights,
            shift,
            x: values(rows * x_stride, seed ^ 2),
            x_stride,
            scales: per_output(parts.0, seed ^ 4),
            centres: per_output(parts.0 && parts.3, seed ^ 32),
            bias: per_output(parts.1, seed ^ 8),
            residual: parts.2.then(|| (values(rows * outputs, seed ^ 16), 0.7)),
        }
    })
}

/// Adds lanes by halves.
fn added(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

impl Case {
    /// The weight of an output at a column.
    fn weight(&self, output: usize, column: usize) -> f32 {
        let bytes = self.element.bytes();
        let at = self.shift + (output * self.width + column) * bytes;
        let stored = &self.weights[at..at + bytes];
        match self.element {
            Element::I8 => f32::from(stored[0] as i8),
            Element::F16 => f16::from_le_bytes([stored[0], stored[1]]).to_f32(),
            Element::Bf16 => bf16::from_le_bytes([stored[0], stored[1]]).to_f32(),
            Element::F32 => f32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]),
        }
    }

    /// The result for a sum of products, in a row with sum of activations `total`.
    fn finished(&self, sum: f32, total: f32, row: usize, output: usize) -> f32 {
        let mut y = sum * self.scales.as_ref().map_or(1.0, |scales| scales[output]);
        if let Some(centres) = &self.centres {
            y = fused(centres[output], total, y);
        }
        if let Some(bias) = &self.bias {
            y += bias[output];
        }
        match &self.residual {
            Some((to, factor)) => fused(*factor, y, to[row * self.outputs + output]),
            None => y,
        }
    }

    /// Reference results: in the canonical order, and with sums in f64.
    fn expected(&self) -> (Vec<f32>, Vec<f32>) {
        let (mut canonical, mut exact) = (Vec::new(), Vec::new());
        for row in 0..self.rows {
            for output in 0..self.outputs {
                let (mut lanes, mut sum) = ([0f32; LANES], 0f64);
                let (mut total_lanes, mut total) = ([0f32; LANES], 0f64);
                for column in 0..self.width {
                    let (x, w) = (
                        self.x[row * self.x_stride + column],
                        self.weight(output, column),
                    );
                    lanes[column % LANES] = fused(w, x, lanes[column % LANES]);
                    sum += f64::from(x) * f64::from(w);
                    total_lanes[column % LANES] += x;
                    total += f64::from(x);
                }
                let (lanes, total_lanes) = (added(lanes), added(total_lanes));
                canonical.push(self.finished(lanes, total_lanes, row, output));
                exact.push(self.finished(sum as f32, total as f32, row, output));
            }
        }
        (canonical, exact)
    }

    /// Results of some rows, with a call per range of outputs.
    fn results(&self, isa: Isa, rows: Range<usize>, split: usize) -> Vec<f32> {
        let mut out = match &self.residual {
            Some((to, _)) => to[rows.start * self.outputs..rows.end * self.outputs].to_vec(),
            None => vec![0.0; rows.len() * self.outputs],
        };
        // In place, like a residual stream.
        let to = out.as_mut_ptr();
        let product = FloatProduct {
            weights: self.weights[self.shift..].as_ptr(),
            element: self.element,
            affine: self.scales.as_ref().map(|scales| Affine {
                scales: scales.as_ptr(),
                centres: self.centres.as_ref().map(|centres| centres.as_ptr()),
            }),
            width: self.width,
            x: self.x[rows.start * self.x_stride..].as_ptr(),
            x_stride: self.x_stride,
            rows: rows.len(),
            bias: self.bias.as_ref().map(|bias| bias.as_ptr()),
            residual: self.residual.as_ref().map(|(_, factor)| Residual {
                from: to,
                stride: self.outputs,
                factor: *factor,
            }),
            out: to,
            out_stride: self.outputs,
        };
        for first in (0..self.outputs).step_by(split) {
            let outputs = first..self.outputs.min(first + split);
            // SAFETY: the machine has the instructions, and all memory is there.
            unsafe { float_product(isa, &product, outputs) };
        }
        out
    }
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #[test]
    fn every_form_tile_and_split_gives_the_canonical_bits(
        case in case(), split in 1usize..40, first in 0usize..20,
    ) {
        let (canonical, exact) = case.expected();
        for (canonical, exact) in canonical.iter().zip(&exact) {
            let size = if case.element == Element::I8 { 127.0 } else { 1.0 };
            prop_assert!((canonical - exact).abs() <= 2e-5 * size, "{canonical}, not {exact}");
        }
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let all = case.results(isa, 0..case.rows, case.outputs);
            prop_assert_eq!(bits(&all), bits(&canonical), "{}", isa);
            let rows = first % case.rows..case.rows;
            let some = case.results(isa, rows.clone(), split);
            let expected = &canonical[rows.start * case.outputs..];
            prop_assert_eq!(bits(&some), bits(expected), "{}", isa);
        }
    }
}
