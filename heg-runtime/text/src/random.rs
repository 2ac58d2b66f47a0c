//! The random numbers of sampling.
//!
//! xoshiro256++ 1.0 seeded by SplitMix64, both by Blackman and Vigna (prng.di.unimi.it, public domain).
//! Kept here in place of a crate, because a seed must give the same answer with every later version of
//! this program. Not for secrets.

use heg_spec::Seeded;

/// A generator of pseudo-random numbers.
#[derive(Debug, Clone)]
pub(super) struct Xoshiro256 {
    state: [u64; 4],
}

impl Xoshiro256 {
    /// Fills the state from a seed with SplitMix64, as its authors advise.
    pub(super) fn from_seed(seed: u64) -> Self {
        let mut seeded = Seeded::new(seed);
        let state = [(); 4].map(|()| seeded.bits());
        Self { state }
    }

    /// Advances the generator and returns the next 64 bits.
    pub(super) fn next(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.state;
        let bits = s0.wrapping_add(*s3).rotate_left(23).wrapping_add(*s0);
        let shifted = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= shifted;
        *s3 = s3.rotate_left(45);
        bits
    }

    /// Returns a number in [0, 1), with the 53 bits that a double can hold.
    pub(super) fn next_unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number below `end`, for tests: slightly uneven.
    #[cfg(test)]
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the authors' C code.
    #[test]
    fn equals_the_reference() {
        let mut random = Xoshiro256 {
            state: [1, 2, 3, 4],
        };
        let bits = [(); 4].map(|()| random.next());
        assert_eq!(
            bits,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386
            ]
        );
    }

    #[test]
    fn units_stay_below_one() {
        let mut random = Xoshiro256::from_seed(0);
        let units: Vec<f64> = (0..1000).map(|_| random.next_unit()).collect();
        assert!(units.iter().all(|unit| (0.0..1.0).contains(unit)));
        assert!((units.iter().sum::<f64>() / 1000.0 - 0.5).abs() < 0.05);
    }
}
