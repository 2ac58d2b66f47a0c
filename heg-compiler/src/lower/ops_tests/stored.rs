//! Weights as stored in a bundle, and their decoded values. Written independently of the encoder, whose agreement with
//! the lowering is the subject of the tests.

use half::{bf16, f16};
use heg_artifacts::manifest::ElementType;
use heg_spec::WeightForm;

use crate::graph::Param;
use crate::lower::{group_columns, is_centred, stored_element};
use heg_quant::MappedWeight;

/// A weight as stored in a bundle.
pub(super) struct Stored {
    pub(super) sections: Vec<Section>,
}

pub(super) struct Section {
    pub(super) element: ElementType,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Vec<u8>,
}

impl Stored {
    pub(super) fn new(param: &Param, values: &[f32], form: WeightForm) -> Self {
        let element = stored_element(param.kind, form);
        let shape: Vec<usize> = param.shape.iter().map(|dim| *dim as usize).collect();
        assert_eq!(shape.iter().product::<usize>(), values.len());
        if let Some(group) = group_columns(param.kind, form) {
            return Self::grouped(values, element, [shape[0], group.count() as usize]);
        }
        if element != ElementType::I8 {
            let bytes = encode(values, element);
            return Self {
                sections: vec![Section {
                    element,
                    shape,
                    bytes,
                }],
            };
        }
        let centred = is_centred(param.kind, form);
        let mut quantised = Vec::new();
        let (mut scales, mut centres) = (Vec::new(), Vec::new());
        for row in values.chunks(shape[1]) {
            let least = row.iter().copied().fold(f32::INFINITY, f32::min);
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let centre = if centred {
                (largest + least) / 2.0
            } else {
                0.0
            };
            let scale = (largest - centre).max(centre - least) / 127.0;
            let integers = row.iter().map(|x| ((x - centre) / scale).round());
            quantised.extend(integers.map(|q| q as i8 as u8));
            scales.push(scale);
            centres.push(centre);
        }
        let [scales, centres] = [scales, centres].map(|numbers| Section {
            element: ElementType::F32,
            // One row: the form that an input-bound kernel takes, with the same bytes as a column.
            shape: vec![1, shape[0]],
            bytes: encode(&numbers, ElementType::F32),
        });
        let values = Section {
            element,
            shape,
            bytes: quantised,
        };
        Self {
            sections: [values, scales]
                .into_iter()
                .chain(centred.then_some(centres))
                .collect(),
        }
    }

    /// 4-bit integers in groups of columns.
    fn grouped(values: &[f32], element: ElementType, [rows, columns]: [usize; 2]) -> Self {
        let (mut integers, mut numbers) = (Vec::new(), [Vec::new(), Vec::new()]);
        for group in values.chunks(columns) {
            let least = group.iter().copied().fold(f32::INFINITY, f32::min);
            let largest = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let (scale, centre) = match element {
                ElementType::U4 => ((largest - least) / 15.0, least),
                _ => (largest.max(-least) / 7.0, 0.0),
            };
            let [scale, centre] = [scale, centre].map(|x| f16::from_f32(x).to_f32());
            for pair in group.chunks(2) {
                let half = |x: f32| {
                    let q = ((x - centre) / scale).round();
                    match element {
                        ElementType::U4 => q.clamp(0.0, 15.0) as u8,
                        _ => q.clamp(-8.0, 7.0) as i8 as u8 & 0x0f,
                    }
                };
                integers.push(half(pair[0]) | half(pair[1]) << 4);
            }
            numbers[0].push(scale);
            numbers[1].push(centre);
        }
        let groups = numbers[0].len() / rows;
        let section = |element, shape, bytes| Section {
            element,
            shape,
            bytes,
        };
        let [scales, centres] = numbers.map(|numbers| encode(&numbers, ElementType::F16));
        let values = section(element, vec![rows, groups, columns], integers);
        let scales = section(ElementType::F16, vec![rows, groups, 1], scales);
        let centres = section(ElementType::F16, vec![rows, groups], centres);
        let centres = (element == ElementType::U4).then_some(centres);
        Self {
            sections: [values, scales].into_iter().chain(centres).collect(),
        }
    }

    /// The values of 4-bit integers.
    fn grouped_values(&self) -> Vec<f32> {
        let [integers, numbers @ ..] = self.sections.as_slice() else {
            return Vec::new();
        };
        let mut numbers = numbers.iter().map(|of| decode(&of.bytes, of.element));
        let scales = numbers.next().unwrap();
        let centres = numbers.next().unwrap_or_else(|| vec![0.0; scales.len()]);
        let columns = integers.shape[2];
        let halves = integers
            .bytes
            .iter()
            .flat_map(|both| [both & 0x0f, both >> 4]);
        let each = halves.enumerate().map(|(at, half)| {
            let q = match integers.element {
                ElementType::U4 => f64::from(half),
                _ => f64::from((half << 4) as i8 >> 4),
            };
            (q * scales[at / columns] + centres[at / columns]) as f32
        });
        each.collect()
    }

    /// The weight in the form that the evaluator takes.
    pub(super) fn weight(&self) -> MappedWeight {
        let [values, rest @ ..] = self.sections.as_slice() else {
            panic!("a weight has values");
        };
        let mut of_rows = rest.iter().map(|of_rows| of_rows.bytes.as_slice());
        let affine = of_rows.next().map(|scales| (scales, of_rows.next()));
        MappedWeight::of_bytes(values.element, &values.bytes, affine).unwrap()
    }

    /// The values of the stored bytes.
    pub(super) fn values(&self) -> Vec<f32> {
        let [values, rest @ ..] = self.sections.as_slice() else {
            return Vec::new();
        };
        if values.element.is_grouped() {
            return self.grouped_values();
        }
        let mut of_rows = rest
            .iter()
            .map(|of_rows| decode(&of_rows.bytes, ElementType::F32));
        let Some(scales) = of_rows.next() else {
            let plain = decode(&values.bytes, values.element);
            return plain.iter().map(|x| *x as f32).collect();
        };
        let centres = of_rows.next().unwrap_or_else(|| vec![0.0; scales.len()]);
        let columns = values.shape[1];
        let each = values.bytes.iter().enumerate();
        each.map(|(at, byte)| {
            let row = at / columns;
            (f64::from(*byte as i8) * scales[row] + centres[row]) as f32
        })
        .collect()
    }
}

pub(super) fn encode(values: &[f32], element: ElementType) -> Vec<u8> {
    let each = values.iter();
    match element {
        ElementType::F32 => each.flat_map(|x| x.to_le_bytes()).collect(),
        ElementType::F16 => each.flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        ElementType::Bf16 => each
            .flat_map(|x| bf16::from_f32(*x).to_le_bytes())
            .collect(),
        ElementType::I64 => each.flat_map(|x| (*x as i64).to_le_bytes()).collect(),
        ElementType::I4 | ElementType::U4 | ElementType::I8 => panic!("made with scales"),
    }
}

pub(super) fn decode(bytes: &[u8], element: ElementType) -> Vec<f64> {
    let number = |bytes: &[u8]| match element {
        ElementType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        ElementType::F16 => f64::from(f16::from_le_bytes(bytes.try_into().unwrap())),
        ElementType::Bf16 => f64::from(bf16::from_le_bytes(bytes.try_into().unwrap())),
        ElementType::I64 => i64::from_le_bytes(bytes.try_into().unwrap()) as f64,
        ElementType::I8 => f64::from(bytes[0] as i8),
        ElementType::I4 | ElementType::U4 => panic!("two to a byte"),
    };
    bytes.chunks(element.bytes() as usize).map(number).collect()
}
