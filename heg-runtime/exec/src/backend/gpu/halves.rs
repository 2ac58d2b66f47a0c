//! Rows of activations that the host has in f16, where an NPU shares them. Programs compute in f32, so such rows change
//! their type as they are copied: exactly to the device, to the nearest on the way back. What the launches of an order
//! pass to each other on the device stays in f32.

use std::borrow::Cow;

use half::f16;
use half::slice::HalfFloatSliceExt;
use heg_openvino::TensorType;

use crate::mem::RowBuffer;

/// The way in which rows are copied between host and device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copying {
    /// Byte by byte.
    AsTheyAre,
    /// From f16 to f32, and back.
    Halves,
}

impl Copying {
    /// For activations of the host.
    pub(super) fn of(rows: &RowBuffer) -> Self {
        match rows.element() {
            TensorType::F16 => Self::Halves,
            _ => Self::AsTheyAre,
        }
    }

    /// Bytes on the device of rows that have `bytes` on the host.
    pub(super) fn device_bytes(self, bytes: usize) -> usize {
        match self {
            Self::AsTheyAre => bytes,
            Self::Halves => 2 * bytes,
        }
    }

    /// Rows of the host as the device has them.
    pub(super) fn for_device(self, bytes: Vec<u8>) -> Vec<u8> {
        if self == Self::AsTheyAre {
            return bytes;
        }
        let (halves, _) = bytes.as_chunks();
        let halves = halves.iter().map(|half| f16::from_le_bytes(*half));
        let wide = halves.collect::<Vec<_>>().to_f32_vec();
        wide.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    /// Rows of the device as the host has them.
    pub(super) fn for_host(self, bytes: &[u8]) -> Cow<'_, [u8]> {
        if self == Self::AsTheyAre {
            return Cow::Borrowed(bytes);
        }
        let (words, _) = bytes.as_chunks();
        let words = words.iter().map(|word| f32::from_le_bytes(*word));
        let wide: Vec<f32> = words.collect();
        let mut halves = vec![f16::ZERO; wide.len()];
        halves.convert_from_f32_slice(&wide);
        Cow::Owned(halves.iter().flat_map(|half| half.to_le_bytes()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_come_back_as_they_went_and_other_rows_stay() {
        let halves: Vec<u8> = (0..=u16::MAX)
            .filter(|bits| !f16::from_bits(*bits).is_nan())
            .flat_map(u16::to_le_bytes)
            .collect();
        let wide = Copying::Halves.for_device(halves.clone());
        assert_eq!(wide.len(), Copying::Halves.device_bytes(halves.len()));
        assert_eq!(*Copying::Halves.for_host(&wide), *halves);
        let between = 1.000_7_f32;
        let nearest = f16::from_f32(between).to_le_bytes();
        assert_eq!(*Copying::Halves.for_host(&between.to_le_bytes()), nearest);
        assert_eq!(Copying::AsTheyAre.for_device(halves.clone()), halves);
        assert_eq!(*Copying::AsTheyAre.for_host(&halves), *halves);
    }
}
