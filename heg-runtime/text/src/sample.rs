//! From logits to a token.
//!
//! OpenAI's additions to the logits come first: biases, and the penalties on tokens that the answer has already. A
//! restriction, if there is one, comes next. The other steps and their order are those of `transformers`: repetition
//! penalty, temperature, top-k, top-p, min-p, then one draw. Two things differ on purpose: equal weights at the edge of
//! top-p are kept in id order, and the exponential is our own (`fast_exp`), so that a seed gives the same tokens on
//! every machine and with every release of the compiler. The generator is in `random`, the loops over whole logits are
//! in `logits`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::logits::{Candidate, argmax, kth_largest, weigh};
use super::random::Xoshiro256;
use super::{GrammarState, Restriction, Result, TextError};

mod ahead;

/// The parameters of sampling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// Divisor of the logits. 0 always chooses the best token; then only the penalties and biases count.
    pub temperature: f32,
    /// Number of best tokens to keep, with those equal to the last of them. At least 1; `None` keeps all.
    pub top_k: Option<u32>,
    /// Total probability of the best tokens to keep, as few as reach it. In (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Least probability of the tokens to keep, as a share of the best token's. In [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Penalty on tokens of the prompt and the answer: positive logits are divided by it, negative ones multiplied.
    /// Above 0; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Amount that is subtracted from the logit of every token that the answer has already, once or often. The prompt
    /// does not count. In -2 to 2; 0 changes nothing.
    pub presence_penalty: f32,
    /// Amount that is subtracted from the logit of a token once for each time that the answer has it already. The
    /// prompt does not count. In -2 to 2; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Seed of the random sequence.
    pub seed: u64,
}

impl Default for SamplingParams {
    /// Greedy, without penalties.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Checks the ranges.
    ///
    /// # Errors
    /// `Sampling`, for the first parameter out of range.
    pub fn check(&self) -> Result<()> {
        let finite = |value: f32| value.is_finite();
        let Self {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed: _,
        } = *self;
        require(
            finite(temperature) && temperature >= 0.0,
            "temperature",
            "0 or more",
            temperature,
        )?;
        require(top_k != Some(0), "top_k", "1 or more", 0.0)?;
        require(
            top_p > 0.0 && top_p <= 1.0,
            "top_p",
            "more than 0, at most 1",
            top_p,
        )?;
        require((0.0..=1.0).contains(&min_p), "min_p", "0 to 1", min_p)?;
        let penalty = repetition_penalty;
        require(
            finite(penalty) && penalty > 0.0,
            "repetition_penalty",
            "more than 0",
            penalty,
        )?;
        for (name, penalty) in [
            ("presence_penalty", presence_penalty),
            ("frequency_penalty", frequency_penalty),
        ] {
            require((-2.0..=2.0).contains(&penalty), name, "-2 to 2", penalty)?;
        }
        Ok(())
    }

    /// Returns whether tokens of the answer are counted.
    fn counts(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

fn require(holds: bool, name: &'static str, expected: &'static str, found: f32) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(TextError::Sampling {
        name,
        expected,
        found: f64::from(found),
    })
}

/// A chosen token, and the state of the random sequence after it.
#[derive(Debug, Clone)]
pub struct Choice {
    token: u32,
    random: Xoshiro256,
    /// The state of the grammar after the token.
    said: GrammarState,
    number: u64,
}

impl Choice {
    /// Returns the token.
    pub fn token(&self) -> u32 {
        self.token
    }

    /// Returns the state of the grammar after the token.
    pub fn said(&self) -> GrammarState {
        self.said
    }
}

/// Chooses the tokens of one answer.
///
/// # Invariants
/// - `seen` holds the prompt and the answer so far, if the repetition penalty is on.
/// - `counts` holds how often the answer so far has each token, if a penalty on that is on.
/// - `candidates` ascends by token between the steps, so that a draw never depends on how a step sorts.
pub struct Sampler {
    params: SamplingParams,
    restriction: Option<Box<dyn Restriction>>,
    random: Xoshiro256,
    biases: Vec<(u32, f32)>,
    seen: BTreeSet<u32>,
    counts: BTreeMap<u32, u32>,
    candidates: Vec<Candidate>,
    scratch: Vec<Candidate>,
    /// Number of choices so far.
    choices: u64,
    /// Choices that the restriction has taken and that are not committed yet, each made after those before it.
    proposed: VecDeque<Proposed>,
}

/// A choice that is not part of the answer yet.
struct Proposed {
    number: u64,
    token: u32,
    /// The state of the random sequence after the choice.
    random: Xoshiro256,
    /// Whether `seen` and `counts` include the choice, for the next choice.
    is_counted: bool,
    /// Whether `seen` had the token before.
    was_seen: bool,
}

impl Sampler {
    /// Creates a sampler at the beginning of an answer. The repetition penalty counts `prompt_ids` as seen.
    ///
    /// # Errors
    /// As [`SamplingParams::check`].
    pub fn new(params: SamplingParams, prompt_ids: &[u32]) -> Result<Self> {
        params.check()?;
        let counted = if params.repetition_penalty == 1.0 {
            &[]
        } else {
            prompt_ids
        };
        let seen = counted.iter().copied().collect();
        let random = Xoshiro256::from_seed(params.seed);
        Ok(Self {
            params,
            restriction: None,
            random,
            biases: Vec::new(),
            seen,
            counts: BTreeMap::new(),
            candidates: Vec::new(),
            scratch: Vec::new(),
            choices: 0,
            proposed: VecDeque::new(),
        })
    }

    /// Restricts the answer to a form.
    #[must_use]
    pub fn restricted(self, restriction: Option<Box<dyn Restriction>>) -> Self {
        Self {
            restriction,
            ..self
        }
    }

    /// Adds each bias to the logit of its token, before anything else. Tokens outside the vocabulary are ignored.
    ///
    /// # Errors
    /// `Sampling`, if a bias is not from -100 to 100.
    pub fn biased(self, biases: Vec<(u32, f32)>) -> Result<Self> {
        for &(_, bias) in &biases {
            let holds = (-100.0..=100.0).contains(&bias);
            require(holds, "logit_bias", "-100 to 100", bias)?;
        }
        Ok(Self { biases, ..self })
    }

    /// Chooses the next token and commits it; returns it with the state of the grammar after it. Changes `logits`.
    ///
    /// # Errors
    /// `Restriction`, of the answer's restriction only.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<(u32, GrammarState)> {
        let choice = self.choose(logits)?;
        let token = choice.token();
        Ok((token, self.commit(choice)?))
    }

    /// Chooses the next token, which is not part of the answer before [`commit`](Self::commit): until then the same
    /// logits give the same choice again. Changes `logits`.
    ///
    /// NaN is never chosen; returns 0 if all logits are NaN, or there are none.
    ///
    /// # Errors
    /// `Restriction`, of the answer's restriction only.
    pub fn choose(&mut self, logits: &mut [f32]) -> Result<Choice> {
        self.give_up()?;
        self.choose_next(logits)
    }

    /// Chooses the token after the latest choice, as if that were committed, from the logits of a drafted token (sd.npu
    /// §4.1). Choices are committed in their order. Changes `logits`.
    ///
    /// # Errors
    /// `Restriction`, of the answer's restriction only.
    pub fn choose_next(&mut self, logits: &mut [f32]) -> Result<Choice> {
        if let Some(Proposed {
            token, is_counted, ..
        }) = self.proposed.back_mut()
            && !std::mem::replace(is_counted, true)
        {
            let token = *token;
            let was_seen = self.count(token);
            if let Some(proposed) = self.proposed.back_mut() {
                proposed.was_seen = was_seen;
            }
        }
        self.shift(logits);
        if let Some(restriction) = &mut self.restriction {
            restriction.restrict(logits)?;
        }
        if self.params.repetition_penalty != 1.0 {
            penalise(logits, &self.seen, self.params.repetition_penalty);
        }
        let best = argmax(logits);
        let before = self.proposed.back();
        let mut random = before.map_or(&self.random, |it| &it.random).clone();
        let token = if self.params.temperature == 0.0 {
            best
        } else {
            self.draw(logits, best, random.next_unit())
        };
        let said = match &mut self.restriction {
            Some(restriction) => restriction.chosen(token)?,
            None => GrammarState::Open,
        };
        self.choices += 1;
        self.proposed.push_back(Proposed {
            number: self.choices,
            token,
            random: random.clone(),
            is_counted: false,
            was_seen: false,
        });
        Ok(Choice {
            token,
            random,
            said,
            number: self.choices,
        })
    }

    /// Takes a chosen token into the answer; returns the state of the grammar after it. Does not wait, unless another
    /// choice was made since.
    ///
    /// # Errors
    /// `Restriction`, of the answer's restriction only.
    pub fn commit(&mut self, choice: Choice) -> Result<GrammarState> {
        let Choice {
            token,
            random,
            said,
            number,
        } = choice;
        self.random = random;
        let first = self.proposed.front().map(|it| (it.number, it.is_counted));
        match first {
            Some((first, is_counted)) if first == number => {
                self.proposed.pop_front();
                if !is_counted {
                    self.count(token);
                }
                Ok(said)
            }
            _ => {
                self.give_up()?;
                self.count(token);
                match &mut self.restriction {
                    Some(restriction) => restriction.chosen(token),
                    None => Ok(said),
                }
            }
        }
    }

    /// Forgets the uncommitted choices.
    fn give_up(&mut self) -> Result<()> {
        while let Some(given_up) = self.proposed.pop_back() {
            if given_up.is_counted {
                self.discount(&given_up);
            }
            if let Some(restriction) = &mut self.restriction {
                restriction.undo()?;
            }
        }
        Ok(())
    }

    /// Counts a token for later penalties; returns whether it was seen before.
    fn count(&mut self, token: u32) -> bool {
        let is_new = self.params.repetition_penalty != 1.0 && self.seen.insert(token);
        if self.params.counts() {
            *self.counts.entry(token).or_default() += 1;
        }
        !is_new
    }

    /// Takes a counted token back.
    fn discount(&mut self, given_up: &Proposed) {
        if !given_up.was_seen {
            self.seen.remove(&given_up.token);
        }
        if let Some(count) = self.counts.get_mut(&given_up.token) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&given_up.token);
            }
        }
    }

    /// Adds biases, and subtracts the penalties on tokens that the answer has already.
    fn shift(&self, logits: &mut [f32]) {
        for &(token, bias) in &self.biases {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        let SamplingParams {
            presence_penalty,
            frequency_penalty,
            ..
        } = self.params;
        for (&token, &count) in &self.counts {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit -= presence_penalty + frequency_penalty * count as f32;
            }
        }
    }

    /// Draws a token, with one random number whatever the logits are, so that a sequence stays in step with its seed.
    fn draw(&mut self, logits: &[f32], best: u32, uniform: f64) -> u32 {
        let Some(top) = logits
            .get(best as usize)
            .copied()
            .filter(|top| top.is_finite())
        else {
            return best;
        };
        let floor = match self.params.top_k {
            Some(k) if (k as usize) < logits.len() => kth_largest(logits, k as usize),
            _ => f32::NEG_INFINITY,
        };
        let inverse = 1.0 / self.params.temperature.max(f32::MIN_POSITIVE);
        weigh(logits, top, inverse, floor, &mut self.candidates);
        if self.params.top_p < 1.0 {
            self.keep_top_p();
        }
        // The best token weighs 1, so a share of its probability is a weight.
        let min_weight = self.params.min_p;
        if min_weight > 0.0 {
            self.candidates
                .retain(|candidate| candidate.weight >= min_weight);
        }
        pick(&self.candidates, uniform).unwrap_or(best)
    }

    /// Keeps the fewest candidates, from the best down, whose weights sum to the share `top_p` of all.
    ///
    /// Weights are summed by rough rank first, so that only the rank where the share is reached is sorted.
    fn keep_top_p(&mut self) {
        let mut sums = [0.0; RANKS];
        for candidate in &self.candidates {
            sums[rank(candidate.weight)] += f64::from(candidate.weight);
        }
        let wanted = sums.iter().sum::<f64>() * f64::from(self.params.top_p);
        let mut reached = 0.0;
        let border = sums.iter().position(|sum| {
            reached += sum;
            reached >= wanted
        });
        // Only rounding leads past the last rank; then all are kept.
        let Some(border) = border else { return };
        reached -= sums[border];
        let at_border = |candidate: &&Candidate| rank(candidate.weight) == border;
        self.scratch.clear();
        self.scratch
            .extend(self.candidates.iter().filter(at_border));
        self.scratch.sort_unstable_by(best_first);
        let last = self.scratch.iter().find(|candidate| {
            reached += f64::from(candidate.weight);
            reached >= wanted
        });
        if let Some(&last) = last.or(self.scratch.last()) {
            self.candidates
                .retain(|candidate| best_first(candidate, &last).is_le());
        }
    }
}

/// Orders heavier candidates first, and the lower id first among equals.
fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.weight
        .total_cmp(&a.weight)
        .then_with(|| a.token.cmp(&b.token))
}

/// Returns a coarse rank of a weight, 0 for the best: the bits of positive floats have the order of their values.
fn rank(weight: f32) -> usize {
    let below_one = 1.0f32.to_bits().saturating_sub(weight.to_bits());
    ((below_one >> RANK_BITS_CUT) as usize).min(RANKS - 1)
}

/// Divides the positive logits of these tokens by the penalty and multiplies the others.
fn penalise(logits: &mut [f32], seen: &BTreeSet<u32>, penalty: f32) {
    for &token in seen {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = if *logit < 0.0 {
                *logit * penalty
            } else {
                *logit / penalty
            };
        }
    }
}

/// Returns the candidate in whose share of the total weight `uniform` falls, which is in [0, 1).
fn pick(candidates: &[Candidate], uniform: f64) -> Option<u32> {
    let total: f64 = candidates
        .iter()
        .map(|candidate| f64::from(candidate.weight))
        .sum();
    let mut left = uniform * total;
    for candidate in candidates {
        left -= f64::from(candidate.weight);
        if left < 0.0 {
            return Some(candidate.token);
        }
    }
    // Only rounding leads here.
    candidates.last().map(|candidate| candidate.token)
}

/// Number of bits of a weight that its rank drops: sixteen ranks for each power of two. Chosen, not measured.
const RANK_BITS_CUT: u32 = 19;

/// Number of ranks: sixteen for each of the 44 powers of two from 1 down to exp(-30), the least weight of a candidate.
const RANKS: usize = 16 * 44;

#[cfg(test)]
#[path = "sample_tests.rs"]
mod tests;
