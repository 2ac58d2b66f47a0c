//! The loops of sampling that touch every logit, and log-softmax: from logits to log probabilities.
//!
//! A vocabulary of 128 thousand tokens is half a megabyte of logits for each token, so these loops work in
//! blocks: the maximum of a block is plain code that compiles to vector instructions, and most blocks
//! need no second look. NaN is never a maximum, because every comparison with it is false.

use std::cmp::Ordering;

/// A token and its log probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogProb {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability: 0 or less, minus infinity for an impossible token.
    pub log_probability: f64,
}

/// The log probabilities of the token at one position, and of the most likely tokens there.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogProbs {
    /// The token at the position.
    pub token: LogProb,
    /// The most likely tokens, as many as were asked for: best first, and the lower id first among equals.
    pub top: Vec<LogProb>,
}

/// Returns log-softmax at one token: the natural logarithm of the probability that a model's logits give it.
///
/// Minus infinity if the token is outside the vocabulary, or its logit is NaN; for all tokens if there is no largest
/// finite logit. To ask for more tokens of the same logits, see [`log_probabilities`].
pub fn log_probability(logits: &[f32], token: u32) -> f64 {
    LogSoftmax::of(logits).at(token)
}

/// Returns log-softmax at one token and at the `top_count` most likely ones.
pub fn log_probabilities(logits: &[f32], token: u32, top_count: usize) -> TokenLogProbs {
    let softmax = LogSoftmax::of(logits);
    let log_prob = |token| LogProb {
        token,
        log_probability: softmax.at(token),
    };
    TokenLogProbs {
        token: log_prob(token),
        top: best_tokens(logits, top_count)
            .into_iter()
            .map(log_prob)
            .collect(),
    }
}

/// Returns the ids of the `count` largest logits: largest first, and the lower id first among equals. NaN is never
/// one of them.
fn best_tokens(logits: &[f32], count: usize) -> Vec<u32> {
    if count == 0 {
        return Vec::new();
    }
    let floor = kth_largest(logits, count);
    let numbered = (0..).zip(logits.iter().copied());
    let mut best: Vec<(u32, f32)> = numbered.filter(|&(_, logit)| logit >= floor).collect();
    best.sort_by(|(_, a), (_, b)| b.partial_cmp(a).unwrap_or(Ordering::Equal));
    best.truncate(count);
    best.into_iter().map(|(token, _)| token).collect()
}

/// The log probabilities of all tokens in a row of logits.
#[derive(Debug, Clone, Copy)]
pub struct LogSoftmax<'a> {
    logits: &'a [f32],
    /// Logarithm of the sum of the exponentials of all logits. Minus infinity if no token has a probability.
    log_sum: f64,
}

impl<'a> LogSoftmax<'a> {
    /// Reads all logits once.
    pub fn of(logits: &'a [f32]) -> Self {
        let top = block_max(logits);
        let mut sum = 0.0;
        if top.is_finite() {
            for block in logits.chunks(BLOCK) {
                // The omitted terms are less than 2^-23 of the sum, and NaN is not above anything.
                let exponents = block.iter().map(|logit| logit - top);
                let counted = exponents.filter(|&exponent| exponent >= EXPONENT_MIN);
                sum += counted.map(|x| f64::from(fast_exp(x))).sum::<f64>();
            }
        }
        let log_sum = f64::from(top) + f64::ln(sum);
        Self {
            logits,
            log_sum: if top.is_finite() {
                log_sum
            } else {
                f64::NEG_INFINITY
            },
        }
    }

    /// Returns the natural logarithm of the probability of a token, as [`log_probability`] gives it.
    pub fn at(&self, token: u32) -> f64 {
        match self.logits.get(token as usize) {
            Some(&logit) if !logit.is_nan() && self.log_sum.is_finite() => {
                // The difference is above 0 only by rounding.
                (f64::from(logit) - self.log_sum).min(0.0)
            }
            _ => f64::NEG_INFINITY,
        }
    }
}

/// A token that may be drawn, and its weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// exp(scaled logit - scaled maximum): the best token weighs 1.
    pub(super) weight: f32,
    pub(super) token: u32,
}

/// Returns the most likely token; the lowest id among equals. 0 if all logits are NaN, or there are none.
pub fn most_likely(logits: &[f32]) -> u32 {
    argmax(logits)
}

/// Returns the lowest id of the largest value. 0 if all values are NaN, or there are none.
pub(super) fn argmax(values: &[f32]) -> u32 {
    let mut best = f32::NEG_INFINITY;
    let mut best_block = 0;
    for (index, block) in values.chunks(BLOCK).enumerate() {
        let top = block_max(block);
        if top > best {
            best = top;
            best_block = index;
        }
    }
    let block = values.get(best_block * BLOCK..).unwrap_or_default();
    // If nothing is larger than minus infinity, the first block may hold only NaN.
    let block = if best == f32::NEG_INFINITY {
        values
    } else {
        block
    };
    let offset = block.iter().position(|&value| value == best);
    offset.map_or(0, |offset| (values.len() - block.len() + offset) as u32)
}

/// Returns the `k`-th largest value; minus infinity if there are fewer, or `k` is 0.
pub(super) fn kth_largest(values: &[f32], k: usize) -> f32 {
    if k == 0 || k > values.len() {
        return f32::NEG_INFINITY;
    }
    let limit = k.saturating_add(k.max(BLOCK));
    let mut best = Vec::with_capacity(limit.min(values.len()) + BLOCK);
    let mut floor = f32::NEG_INFINITY;
    for block in values.chunks(BLOCK) {
        if block_max(block) > floor {
            best.extend(block.iter().filter(|&&value| value > floor));
            if best.len() >= limit {
                floor = shrink_to(&mut best, k);
            }
        }
    }
    if best.len() < k {
        f32::NEG_INFINITY
    } else {
        shrink_to(&mut best, k)
    }
}

/// Appends the tokens whose logits are at least `floor` to `candidates`, with their weights, ascending by token.
///
/// `top` is the largest logit, `inverse` one over the temperature. Weights below exp(`EXPONENT_MIN`) are left out:
/// over a large vocabulary, they sum to less than the rounding error of one weight.
pub(super) fn weigh(
    logits: &[f32],
    top: f32,
    inverse: f32,
    floor: f32,
    candidates: &mut Vec<Candidate>,
) {
    candidates.clear();
    let mut exponents = [0.0; BLOCK];
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let block_top = block_max(block);
        if block_top < floor || (block_top - top) * inverse < EXPONENT_MIN {
            continue;
        }
        for (exponent, &logit) in exponents.iter_mut().zip(block) {
            *exponent = (logit - top) * inverse;
        }
        for (offset, (&exponent, &logit)) in exponents.iter().zip(block).enumerate() {
            if logit >= floor && exponent >= EXPONENT_MIN {
                let token = (index * BLOCK + offset) as u32;
                candidates.push(Candidate {
                    weight: exponent,
                    token,
                });
            }
        }
    }
    for candidate in candidates {
        candidate.weight = fast_exp(candidate.weight);
    }
}

/// Returns the largest value; minus infinity if there is none.
fn block_max(block: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (groups, rest) = block.as_chunks::<LANES>();
    for group in groups {
        for (lane, &value) in lanes.iter_mut().zip(group) {
            *lane = larger(value, *lane);
        }
    }
    lanes
        .iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, |top, &value| larger(value, top))
}

/// Returns the larger of two values. `x86` has this as one instruction, but not `f32::max`, because of NaN.
fn larger(value: f32, top: f32) -> f32 {
    if value > top { value } else { top }
}

/// Keeps the `k` largest values, in any order, and returns the smallest of them. `k` is 1 to the length.
fn shrink_to(best: &mut Vec<f32>, k: usize) -> f32 {
    best.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    best.truncate(k);
    best.last().copied().unwrap_or(f32::NEG_INFINITY)
}

/// exp(x) for x from `EXPONENT_MIN` to 0, within two units in the last place.
///
/// Range reduction and polynomial of Cephes `expf` (S. Moshier). Only additions and multiplications, so
/// the bits are the same on every machine.
fn fast_exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
    const ROUNDER: f32 = 12_582_912.0;
    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let power = shifted - ROUNDER;
    let r = x - power * 0.693_359_4 - power * -2.121_944_4e-4;
    let mut y = 1.987_569_1e-4;
    for factor in [
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        y = y * r + factor;
    }
    let scale = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()) << 23;
    f32::from_bits((y * r * r + r + 1.0).to_bits().wrapping_add(scale))
}

/// Number of values whose maximum is found first. Chosen, not measured: one kilobyte.
const BLOCK: usize = 256;

/// Number of independent maxima, so that one comparison need not wait for the one before it: four vectors of four
/// values.
const LANES: usize = 16;

/// Smallest exponent of a weight. exp(-30) is 1e-13: a million such tokens weigh less than 2^-23 of the best one.
const EXPONENT_MIN: f32 = -30.0;

#[cfg(test)]
mod tests {
    use super::super::random::Xoshiro256;
    use super::*;

    fn naive_argmax(values: &[f32]) -> u32 {
        let mut best: Option<usize> = None;
        for (index, &value) in values.iter().enumerate() {
            if !value.is_nan() && best.is_none_or(|best| value > values[best]) {
                best = Some(index);
            }
        }
        best.unwrap_or(0) as u32
    }

    /// Values with few differences, so that ties are common, with some odd values among them.
    fn random_values(random: &mut Xoshiro256, odd: u64) -> Vec<f32> {
        let value = |random: &mut Xoshiro256| match random.below(odd) {
            0 => f32::NAN,
            1 => f32::NEG_INFINITY,
            2 => f32::INFINITY,
            3 => -0.0,
            _ => random.below(300) as f32 - 150.0,
        };
        (0..random.below(1500)).map(|_| value(random)).collect()
    }

    #[test]
    fn argmax_equals_the_naive_one() {
        let mut random = Xoshiro256::from_seed(7);
        for odd in (0..2000).map(|round| [2, 4, 400, 4000][round % 4]) {
            let values = random_values(&mut random, odd);
            assert_eq!(argmax(&values), naive_argmax(&values), "{values:?}");
        }
        let mut late = vec![f32::NAN; 1000];
        late[700] = f32::NEG_INFINITY;
        assert_eq!(argmax(&late), 700);
    }

    #[test]
    fn kth_largest_equals_sorting() {
        let mut random = Xoshiro256::from_seed(8);
        for _ in 0..1000 {
            let values = random_values(&mut random, 50);
            let k = 1 + random.below(700) as usize;
            let mut sorted: Vec<f32> = values
                .iter()
                .copied()
                .filter(|value| !value.is_nan())
                .collect();
            sorted.sort_unstable_by(|a, b| b.total_cmp(a));
            let expect = sorted.get(k - 1).copied().unwrap_or(f32::NEG_INFINITY);
            assert_eq!(kth_largest(&values, k), expect, "k {k} of {values:?}");
        }
    }

    #[test]
    fn log_probabilities_are_those_of_the_formula() {
        let mut random = Xoshiro256::from_seed(9);
        for round in 0..300 {
            let logit = |random: &mut Xoshiro256| (random.next_unit() * 60.0 - 30.0) as f32;
            let logits: Vec<f32> = (0..1 + random.below(3000))
                .map(|_| logit(&mut random))
                .collect();
            let exact = |value: f32| f64::from(value).exp();
            let log_sum = logits.iter().copied().map(exact).sum::<f64>().ln();
            let token = random.below(logits.len() as u64) as u32;
            let found = log_probabilities(&logits, token, round % 21);
            let expect = f64::from(logits[token as usize]) - log_sum;
            let error = (found.token.log_probability - expect).abs();
            assert!(error < 1e-6, "expected {expect}, found {found:?}");
            assert_eq!(
                found.token.log_probability,
                log_probability(&logits, token),
                "one function is the other"
            );

            let mut sorted: Vec<u32> = (0..logits.len() as u32).collect();
            sorted.sort_by(|&a, &b| {
                logits[b as usize]
                    .total_cmp(&logits[a as usize])
                    .then(a.cmp(&b))
            });
            sorted.truncate(round % 21);
            let top: Vec<u32> = found.top.iter().map(|best| best.token).collect();
            assert_eq!(top, sorted);
            let all = log_probabilities(&logits, token, logits.len());
            let sum: f64 = all.top.iter().map(|one| one.log_probability.exp()).sum();
            assert!((sum - 1.0).abs() < 1e-6, "they sum to {sum}");
        }
    }

    #[test]
    fn log_probabilities_of_odd_logits_are_never_nan() {
        let mut random = Xoshiro256::from_seed(10);
        for odd in (0..500).map(|round| [2, 4, 400][round % 3]) {
            let values = random_values(&mut random, odd);
            let found = log_probabilities(&values, random.below(1600) as u32, 5);
            for log_prob in found.top.iter().chain([&found.token]) {
                assert!(
                    log_prob.log_probability <= 0.0,
                    "{log_prob:?} of {values:?}"
                );
            }
        }
        let masked = [f32::NEG_INFINITY, 3.0, f32::NEG_INFINITY];
        assert_eq!(log_probability(&masked, 1), 0.0);
        assert_eq!(log_probability(&masked, 0), f64::NEG_INFINITY);
        assert_eq!(log_probability(&masked, 3), f64::NEG_INFINITY);
    }

    #[test]
    fn the_exponential_is_close() {
        for step in 0..=30_000 {
            let x = -0.001 * step as f32;
            let (found, expect) = (fast_exp(x), f64::from(x).exp());
            let error = (f64::from(found) - expect).abs() / expect;
            assert!(error < 2.5e-7, "exp({x}): expected {expect}, found {found}");
        }
        assert_eq!(fast_exp(0.0), 1.0);
    }
}
