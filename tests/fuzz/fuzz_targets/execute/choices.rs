//! Choices from the bytes of a fuzzer's input, and pseudo-random numbers.

use half::{bf16, f16};
use heg_artifacts::manifest::ElementType;

/// The bytes of the input, one after the other; after its end, and for the content of tensors, a generator.
pub(crate) struct Choices<'a> {
    bytes: std::slice::Iter<'a, u8>,
    state: u64,
}

impl<'a> Choices<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        let mix = |state: u64, byte: &u8| (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Self {
            bytes: input.iter(),
            state: input.iter().fold(0xcbf2_9ce4_8422_2325, mix) | 1,
        }
    }

    /// Returns the next number of Marsaglia's xorshift64.
    fn bits(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        let chosen = match self.bytes.next() {
            Some(low) => {
                let high = if count > 256 { self.bytes.next() } else { None };
                usize::from(*low) | usize::from(*high.unwrap_or(&0)) << 8
            }
            None => (self.bits() >> 11) as usize,
        };
        chosen % count.max(1)
    }

    pub(crate) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Returns the bytes of `count` numbers between -0.3 and 0.3, or of any integers.
    pub(crate) fn numbers(&mut self, count: usize, element: ElementType) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count * 4);
        for _ in 0..count {
            let bits = self.bits();
            let number = ((bits >> 40) as f32 / (1_u64 << 23) as f32 - 1.0) * 0.3;
            match element {
                ElementType::F16 => bytes.extend(f16::from_f32(number).to_le_bytes()),
                ElementType::Bf16 => bytes.extend(bf16::from_f32(number).to_le_bytes()),
                ElementType::I8 => bytes.push(bits as u8),
                _ => bytes.extend(number.to_le_bytes()),
            }
        }
        bytes
    }
}
