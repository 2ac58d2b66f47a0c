//! Numbers that follow from a seed.

use heg_artifacts::manifest::ElementType;
use heg_spec::Seeded;

/// A source of them.
pub(crate) struct Noise(Seeded);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Seeded::new(seed))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// From `first` to `last`.
    pub(crate) fn between(&mut self, first: u32, last: u32) -> u32 {
        first + (self.bits() % u64::from(last - first + 1)) as u32
    }

    pub(crate) fn is(&mut self) -> bool {
        self.bits().is_multiple_of(2)
    }

    /// From −1 to 1.
    pub(crate) fn number(&mut self) -> f32 {
        (2.0 * self.0.unit() - 1.0) as f32
    }

    /// Elements of about the size of a model's, little-endian. Of half bytes, two in each.
    pub(crate) fn elements(&mut self, count: usize, element: ElementType, size: f32) -> Vec<u8> {
        let mut all = Vec::new();
        if element.is_grouped() {
            return (0..count.div_ceil(2)).map(|_| self.bits() as u8).collect();
        }
        for _ in 0..count {
            let x = self.number() * size;
            match element {
                ElementType::I8 => all.push(((self.bits() % 255) as i16 - 127) as i8 as u8),
                ElementType::F16 => all.extend(half::f16::from_f32(x).to_le_bytes()),
                ElementType::Bf16 => all.extend(half::bf16::from_f32(x).to_le_bytes()),
                _ => all.extend(x.to_le_bytes()),
            }
        }
        all
    }
}
