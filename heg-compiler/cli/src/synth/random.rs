//! Normal random bfloat16 numbers as a pure function of (seed, tensor, position), so that any
//! thread can write any part. Each 16-bit quarter of a random number looks up one of 65 536
//! equally likely quantiles of the normal distribution.

use super::layout::Fill;
use anyhow::{Context, Result};
use half::bf16;
use heg_spec::Seeded;
use sha2::{Digest, Sha256};

/// Numbers per 64 random bits; parts start at multiples of it.
pub(super) const LANES: u64 = 4;

/// The key of a tensor's stream of numbers.
pub(super) fn stream_key(seed: u64, name: &str) -> u64 {
    let mut hasher = Sha256::new();
    hasher.update(seed.to_le_bytes());
    hasher.update(name.as_bytes());
    let mut key = [0; 8];
    for (to, from) in key.iter_mut().zip(hasher.finalize()) {
        *to = from;
    }
    u64::from_le_bytes(key)
}

/// The quantiles, as bfloat16 bits.
pub(super) struct Normal {
    quantiles: Box<[u16; 1 << 16]>,
}

impl Normal {
    pub(super) fn new(deviation: f64) -> Result<Self> {
        let quantile = |i: u32| {
            let p = (f64::from(i) + 0.5) / 65536.0;
            bf16::from_f64(deviation * inverse_normal(p)).to_bits()
        };
        let all: Vec<u16> = (0..1 << 16).map(quantile).collect();
        let quantiles = all.into_boxed_slice().try_into().ok();
        Ok(Self {
            quantiles: quantiles.context("the table has 65536 entries")?,
        })
    }

    /// Writes little-endian bfloat16 numbers from position `first` (a multiple of [`LANES`]).
    pub(super) fn fill(&self, fill: Fill, key: u64, first: u64, out: &mut [u8]) {
        let one = bf16::ONE.to_le_bytes();
        match fill {
            Fill::Zeros => out.fill(0),
            Fill::Ones => out
                .chunks_exact_mut(2)
                .for_each(|to| to.copy_from_slice(&one)),
            Fill::Normal => self.fill_normal(key, first / LANES, out),
        }
    }

    fn fill_normal(&self, key: u64, first_block: u64, out: &mut [u8]) {
        let mut random = Seeded::skipping(key, first_block);
        let mut blocks = out.chunks_exact_mut(8);
        for to in &mut blocks {
            to.copy_from_slice(&self.block(random.bits()));
        }
        let last = self.block(random.bits());
        for (to, from) in blocks.into_remainder().iter_mut().zip(last) {
            *to = from;
        }
    }

    fn block(&self, bits: u64) -> [u8; 8] {
        let lane = |shift: u32| u64::from(self.quantiles[usize::from((bits >> shift) as u16)]);
        (lane(0) | lane(16) << 16 | lane(32) << 32 | lane(48) << 48).to_le_bytes()
    }
}

/// Quantile of the standard normal distribution for 0 < p < 1: Acklam's rational approximation, relative error below
/// 1.2e-9. Uses `libm` rather than the system's library, for the same bytes everywhere.
fn inverse_normal(p: f64) -> f64 {
    let tail = |p: f64| {
        let q = libm::sqrt(-2.0 * libm::log(p));
        polynomial(&TAIL_UP, q) / (q * polynomial(&TAIL_DOWN, q) + 1.0)
    };
    if p < TAIL {
        return tail(p);
    }
    if p > 1.0 - TAIL {
        return -tail(1.0 - p);
    }
    let q = p - 0.5;
    let r = q * q;
    polynomial(&CENTRE_UP, r) * q / (r * polynomial(&CENTRE_DOWN, r) + 1.0)
}

fn polynomial(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().fold(0.0, |sum, c| sum * x + c)
}

/// The argument at which the approximation changes form.
const TAIL: f64 = 0.02425;
const CENTRE_UP: [f64; 6] = [
    -3.969_683_028_665_376e1,
    2.209_460_984_245_205e2,
    -2.759_285_104_469_687e2,
    1.383_577_518_672_69e2,
    -3.066_479_806_614_716e1,
    2.506_628_277_459_239,
];
const CENTRE_DOWN: [f64; 5] = [
    -5.447_609_879_822_406e1,
    1.615_858_368_580_409e2,
    -1.556_989_798_598_866e2,
    6.680_131_188_771_972e1,
    -1.328_068_155_288_572e1,
];
const TAIL_UP: [f64; 6] = [
    -7.784_894_002_430_293e-3,
    -3.223_964_580_411_365e-1,
    -2.400_758_277_161_838,
    -2.549_732_539_343_734,
    4.374_664_141_464_968,
    2.938_163_982_698_783,
];
const TAIL_DOWN: [f64; 4] = [
    7.784_695_709_041_462e-3,
    3.224_671_290_700_398e-1,
    2.445_134_137_142_996,
    3.754_408_661_907_416,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (p, z) in [
            (0.5, 0.0),
            (0.975, 1.959_963_985),
            (0.001, -3.090_232_306),
            (0.841_344_746, 1.0),
        ] {
            assert!((inverse_normal(p) - z).abs() < 1e-8, "{p}");
        }
    }

    #[test]
    fn any_split_gives_the_same_numbers() {
        let normal = Normal::new(0.02).unwrap();
        let key = stream_key(3, "w");
        let mut whole = vec![0; 2 * 37];
        normal.fill(Fill::Normal, key, 0, &mut whole);
        let mut parts = vec![0; 2 * 37];
        normal.fill(Fill::Normal, key, 0, &mut parts[..2 * 12]);
        normal.fill(Fill::Normal, key, 12, &mut parts[2 * 12..2 * 32]);
        normal.fill(Fill::Normal, key, 32, &mut parts[2 * 32..]);
        assert_eq!(whole, parts);
        assert_ne!(whole[..64], vec![0; 64]);
        assert_ne!(stream_key(3, "w"), stream_key(4, "w"));
    }
}
