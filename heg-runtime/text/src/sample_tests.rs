//! Tests of sampling: against a literal reading of `transformers`, with every token sorted, and of the sequence of a
//! seed, which must never change.

use super::*;

/// Returns the tokens that may be drawn, by a literal reading of `transformers`, with every token sorted.
fn allowed(logits: &[f32], params: &SamplingParams) -> Vec<u32> {
    let scaled: Vec<f64> = logits
        .iter()
        .map(|&logit| f64::from(logit) / f64::from(params.temperature))
        .collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| scaled[b].total_cmp(&scaled[a]).then(a.cmp(&b)));
    if let Some(k) = params.top_k {
        let last = scaled[order[(k as usize).min(order.len()) - 1]];
        order.retain(|&token| scaled[token] >= last);
    }
    let weight = |token: usize| (scaled[token] - scaled[order[0]]).exp();
    let total: f64 = order.iter().map(|&token| weight(token)).sum();
    let (mut above, mut kept) = (0.0, Vec::new());
    for &token in &order {
        let before = above;
        above += weight(token);
        if before < f64::from(params.top_p) * total && weight(token) >= f64::from(params.min_p) {
            kept.push(token as u32);
        }
    }
    kept.sort_unstable();
    kept
}

fn drawn(sampler: &mut Sampler, logits: &mut [f32]) -> u32 {
    let (token, answer) = sampler.sample(logits).unwrap();
    assert_eq!(answer, GrammarState::Open);
    token
}

fn random_logits(random: &mut Xoshiro256, count: usize) -> Vec<f32> {
    (0..count)
        .map(|_| (random.next_unit() * 8.0 - 4.0) as f32)
        .collect()
}

fn random_params(random: &mut Xoshiro256) -> SamplingParams {
    SamplingParams {
        temperature: 0.4 + random.next_unit() as f32 * 2.0,
        top_k: (random.below(2) == 0).then(|| 1 + random.below(400) as u32),
        top_p: if random.below(2) == 0 {
            1.0
        } else {
            0.05 + random.next_unit() as f32 * 0.9
        },
        min_p: if random.below(2) == 0 {
            0.0
        } else {
            random.next_unit() as f32 * 0.5
        },
        seed: random.next(),
        ..SamplingParams::default()
    }
}

#[test]
fn only_allowed_tokens_are_drawn_and_all_of_them() {
    let mut random = Xoshiro256::from_seed(5);
    for round in 0..400 {
        let count = 1 + random.below(600) as usize;
        let logits = random_logits(&mut random, count);
        let params = random_params(&mut random);
        let expect = allowed(&logits, &params);
        let mut sampler = Sampler::new(params, &[]).unwrap();
        for _ in 0..5 {
            let token = drawn(&mut sampler, &mut logits.clone());
            assert!(
                expect.contains(&token),
                "round {round}, token {token}, {params:?}"
            );
        }
        let kept: Vec<u32> = sampler
            .candidates
            .iter()
            .map(|candidate| candidate.token)
            .collect();
        assert_eq!(kept, expect, "round {round}, {params:?}");
    }
}

#[test]
fn draws_follow_the_distribution() {
    let params = SamplingParams {
        temperature: 1.0,
        seed: 3,
        ..SamplingParams::default()
    };
    let mut sampler = Sampler::new(params, &[]).unwrap();
    let logits = [0.1f32, 0.2, 0.3, 0.4].map(f32::ln);
    let mut counts = [0u32; 4];
    for _ in 0..40_000 {
        counts[drawn(&mut sampler, &mut logits.clone()) as usize] += 1;
    }
    for (index, count) in counts.into_iter().enumerate() {
        let expect = 4000.0 * (index + 1) as f64;
        assert!((f64::from(count) - expect).abs() < 300.0, "{counts:?}");
    }
}

#[test]
fn a_seed_gives_its_sequence() {
    let params = SamplingParams {
        temperature: 0.8,
        top_p: 0.9,
        seed: 42,
        ..SamplingParams::default()
    };
    let logits = random_logits(&mut Xoshiro256::from_seed(1), 1000);
    let run = |params| {
        let mut sampler = Sampler::new(params, &[]).unwrap();
        (0..8)
            .map(|_| drawn(&mut sampler, &mut logits.clone()))
            .collect::<Vec<u32>>()
    };
    assert_eq!(run(params), run(params));
    assert_ne!(run(params), run(SamplingParams { seed: 43, ..params }));
    assert_eq!(run(params), SEQUENCE_OF_SEED_42);
}

/// Pinned: a change here changes every seeded answer of every user.
const SEQUENCE_OF_SEED_42: [u32; 8] = [835, 313, 995, 678, 815, 548, 137, 560];

#[test]
fn temperature_zero_is_greedy() {
    let mut sampler = Sampler::new(SamplingParams::default(), &[]).unwrap();
    assert_eq!(drawn(&mut sampler, &mut [1.0, 3.0, 3.0, f32::NAN]), 1);
    assert_eq!(drawn(&mut sampler, &mut []), 0);
}

#[test]
fn seen_tokens_become_less_likely() {
    let params = SamplingParams {
        repetition_penalty: 2.0,
        ..SamplingParams::default()
    };
    let mut sampler = Sampler::new(params, &[0, 0, 99]).unwrap();
    let logits = [4.0, 3.0, 2.5, -1.0];
    let answer: Vec<u32> = (0..3)
        .map(|_| drawn(&mut sampler, &mut logits.clone()))
        .collect();
    assert_eq!(answer, [1, 2, 0]);
    let mut negative = [-4.0, -5.0];
    assert_eq!(
        drawn(&mut Sampler::new(params, &[0]).unwrap(), &mut negative),
        1
    );
    assert_eq!(negative, [-8.0, -5.0]);
}

/// OpenAI's formula, read literally: `mu[j] + bias[j] - c[j] * frequency - (c[j] > 0) * presence`.
#[test]
fn biases_and_penalties_follow_the_formula() {
    let mut random = Xoshiro256::from_seed(11);
    let penalty = |random: &mut Xoshiro256| (random.next_unit() * 4.0 - 2.0) as f32;
    for round in 0..200 {
        let params = SamplingParams {
            temperature: [0.0, 0.9][round % 2],
            presence_penalty: penalty(&mut random),
            frequency_penalty: penalty(&mut random),
            seed: random.next(),
            ..SamplingParams::default()
        };
        let logits = random_logits(&mut random, 40);
        let biases: Vec<(u32, f32)> = (0..random.below(5))
            .map(|place| (place as u32 * 7, penalty(&mut random) * 50.0))
            .collect();
        // The prompt does not count.
        let sampler = Sampler::new(params, &[1, 2, 3]).unwrap();
        let mut sampler = sampler.biased(biases.clone()).unwrap();
        let plain = SamplingParams {
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            ..params
        };
        let mut naive = Sampler::new(plain, &[]).unwrap();
        let mut answer: Vec<u32> = Vec::new();
        for _ in 0..30 {
            let mut shifted = logits.clone();
            for (token, logit) in (0..).zip(&mut shifted) {
                let bias = biases.iter().find(|(other, _)| *other == token);
                *logit += bias.map_or(0.0, |(_, bias)| *bias);
                let count = answer.iter().filter(|said| **said == token).count() as f32;
                if count > 0.0 {
                    *logit -= params.presence_penalty + params.frequency_penalty * count;
                }
            }
            let token = drawn(&mut sampler, &mut logits.clone());
            assert_eq!(token, drawn(&mut naive, &mut shifted), "round {round}");
            answer.push(token);
        }
    }
}

#[test]
fn a_token_is_banned_by_its_bias_and_forced_by_another() {
    let sampler = |temperature, biases: &[(u32, f32)]| {
        let params = SamplingParams {
            temperature,
            ..SamplingParams::default()
        };
        Sampler::new(params, &[]).unwrap().biased(biases.to_vec())
    };
    let logits = [2.0, 9.0, 1.0];
    for temperature in [0.0, 1.0] {
        let mut banned = sampler(temperature, &[(1, -100.0), (2, -100.0)]).unwrap();
        assert_eq!(drawn(&mut banned, &mut logits.clone()), 0);
        let mut forced = sampler(temperature, &[(2, 100.0), (7, 100.0)]).unwrap();
        assert_eq!(drawn(&mut forced, &mut logits.clone()), 2);
    }
    let error = sampler(1.0, &[(0, 1.0), (1, -100.5)]).err().unwrap();
    assert_eq!(
        error.to_string(),
        "sampling parameter `logit_bias`: expected -100 to 100, found -100.5"
    );
}

#[test]
fn odd_logits_give_a_token() {
    let params = SamplingParams {
        temperature: 1e-42,
        top_k: Some(2),
        top_p: 0.5,
        min_p: 0.1,
        ..Default::default()
    };
    let mut sampler = Sampler::new(params, &[]).unwrap();
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    assert_eq!(drawn(&mut sampler, &mut [nan, nan]), 0);
    assert_eq!(drawn(&mut sampler, &mut [-inf, -inf]), 0);
    assert_eq!(drawn(&mut sampler, &mut [nan, -inf, 2.0]), 2);
    assert_eq!(drawn(&mut sampler, &mut [1.0, inf, 2.0]), 1);
    assert_eq!(drawn(&mut sampler, &mut [f32::MAX, f32::MIN]), 0);
    assert_eq!(drawn(&mut sampler, &mut []), 0);
}

#[test]
fn parameters_out_of_range_are_named() {
    let check = |params: SamplingParams, expect: &str| {
        assert_eq!(params.check().unwrap_err().to_string(), expect);
    };
    let good = SamplingParams::default();
    assert_eq!(good.check(), Ok(()));
    let start = "sampling parameter";
    check(
        SamplingParams {
            temperature: -1.0,
            ..good
        },
        &format!("{start} `temperature`: expected 0 or more, found -1"),
    );
    check(
        SamplingParams {
            temperature: f32::NAN,
            ..good
        },
        &format!("{start} `temperature`: expected 0 or more, found NaN"),
    );
    check(
        SamplingParams {
            top_k: Some(0),
            ..good
        },
        &format!("{start} `top_k`: expected 1 or more, found 0"),
    );
    check(
        SamplingParams { top_p: 0.0, ..good },
        &format!("{start} `top_p`: expected more than 0, at most 1, found 0"),
    );
    check(
        SamplingParams { min_p: 1.5, ..good },
        &format!("{start} `min_p`: expected 0 to 1, found 1.5"),
    );
    check(
        SamplingParams {
            repetition_penalty: 0.0,
            ..good
        },
        &format!("{start} `repetition_penalty`: expected more than 0, found 0"),
    );
    check(
        SamplingParams {
            presence_penalty: -2.5,
            ..good
        },
        &format!("{start} `presence_penalty`: expected -2 to 2, found -2.5"),
    );
    check(
        SamplingParams {
            frequency_penalty: f32::NAN,
            ..good
        },
        &format!("{start} `frequency_penalty`: expected -2 to 2, found NaN"),
    );
}

/// A restriction that allows one token after the other, and then nothing.
struct Recited(std::vec::IntoIter<u32>, u32);

impl Restriction for Recited {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<()> {
        let next = self.0.next().ok_or_else(|| TextError::Restriction {
            message: "nothing is left".into(),
        })?;
        self.1 = next;
        for (token, logit) in logits.iter_mut().enumerate() {
            if token != next as usize {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn chosen(&mut self, token: u32) -> Result<GrammarState> {
        assert_eq!(token, self.1);
        Ok(if self.0.len() == 0 {
            GrammarState::Complete
        } else {
            GrammarState::Open
        })
    }

    fn undo(&mut self) -> Result<()> {
        unreachable!("nothing is given up here")
    }
}

#[test]
fn a_restriction_comes_before_every_other_step() {
    for temperature in [0.0, 0.7] {
        let params = SamplingParams {
            temperature,
            top_k: Some(2),
            top_p: 0.5,
            min_p: 0.5,
            repetition_penalty: 1.5,
            ..SamplingParams::default()
        };
        let restriction = Box::new(Recited(vec![3, 0, 3].into_iter(), 0));
        let sampler = Sampler::new(params, &[3]).unwrap();
        let mut sampler = sampler.restricted(Some(restriction));
        let mut next = || sampler.sample(&mut [9.0, 8.0, 7.0, -6.0]);
        assert_eq!(next(), Ok((3, GrammarState::Open)));
        assert_eq!(next(), Ok((0, GrammarState::Open)));
        assert_eq!(next(), Ok((3, GrammarState::Complete)));
        assert_eq!(
            next().unwrap_err().to_string(),
            "the answer cannot be held to its form: nothing is left"
        );
    }
}

#[test]
fn a_choice_that_is_given_up_changes_nothing() {
    let params = SamplingParams {
        temperature: 1.0,
        repetition_penalty: 2.0,
        seed: 5,
        ..SamplingParams::default()
    };
    let logits = || [1.0, 1.1, 0.9, 1.05, 0.8, 1.0];
    let answer = |given_up: usize| {
        let mut sampler = Sampler::new(params, &[]).unwrap();
        let next = |_| {
            for _ in 0..given_up {
                sampler.choose(&mut logits()).unwrap();
            }
            let choice = sampler.choose(&mut logits()).unwrap();
            let token = choice.token();
            assert_eq!(sampler.commit(choice), Ok(GrammarState::Open));
            token
        };
        (0..50).map(next).collect::<Vec<_>>()
    };
    assert_eq!(answer(0), answer(1));
    assert_eq!(answer(0), answer(3));
}

/// A restriction that counts tokens up and down, and completes at three.
struct Counted(u32);

impl Restriction for Counted {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<()> {
        for (token, logit) in logits.iter_mut().enumerate() {
            if token != self.0 as usize {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn chosen(&mut self, token: u32) -> Result<GrammarState> {
        assert_eq!(token, self.0);
        self.0 += 1;
        Ok(match self.0 {
            3 => GrammarState::Complete,
            _ => GrammarState::Open,
        })
    }

    fn undo(&mut self) -> Result<()> {
        self.0 -= 1;
        Ok(())
    }
}

/// A lane that was given up may choose late: before or after the valid choice is committed.
#[test]
fn a_restriction_follows_what_is_committed() {
    let mut sampler = Sampler::new(SamplingParams::default(), &[])
        .unwrap()
        .restricted(Some(Box::new(Counted(0))));
    let logits = || [0.0; 4];
    let first = sampler.choose(&mut logits()).unwrap();
    let _late = sampler.choose(&mut logits()).unwrap();
    assert_eq!(sampler.commit(first), Ok(GrammarState::Open));
    let _later = sampler.choose(&mut logits()).unwrap();
    let second = sampler.choose(&mut logits()).unwrap();
    assert_eq!(
        (second.token(), sampler.commit(second)),
        (1, Ok(GrammarState::Open))
    );
    let _early = sampler.choose(&mut logits()).unwrap();
    let third = sampler.choose(&mut logits()).unwrap();
    assert_eq!(
        (third.token(), sampler.commit(third)),
        (2, Ok(GrammarState::Complete))
    );
}

proptest::proptest! {
    /// The choices along a draft, right or wrong, are those that would have been made without one.
    #[test]
    fn choices_along_a_draft_are_those_of_an_answer_without_one(
        seed in proptest::prelude::any::<u64>(),
        greedy in proptest::prelude::any::<bool>(),
        is_restricted in proptest::prelude::any::<bool>(),
        given_up in 0..3_usize,
        drafted in 1..6_usize,
    ) {
        let params = SamplingParams {
            temperature: if greedy { 0.0 } else { 0.9 },
            repetition_penalty: 1.3,
            presence_penalty: 0.2,
            frequency_penalty: 0.4,
            seed,
            ..SamplingParams::default()
        };
        let sampler = || {
            let restriction: Box<dyn Restriction> = Box::new(Every(0));
            let sampler = Sampler::new(params, &[1, 2]).unwrap();
            sampler.restricted(is_restricted.then_some(restriction))
        };
        let row = |at: usize| random_logits(&mut Xoshiro256::from_seed(seed ^ at as u64), 6);
        let plain: Vec<u32> = {
            let mut sampler = sampler();
            (0..30).map(|at| sampler.sample(&mut row(at)).unwrap().0).collect()
        };
        let mut sampler = sampler();
        let mut answer: Vec<u32> = Vec::new();
        while answer.len() < plain.len() {
            let begin = answer.len();
            for run in 0..=given_up {
                let mut choices = vec![sampler.choose(&mut row(begin)).unwrap()];
                while choices.len() < drafted && begin + choices.len() < plain.len() {
                    choices.push(sampler.choose_next(&mut row(begin + choices.len())).unwrap());
                }
                if run == given_up {
                    for choice in choices {
                        answer.push(choice.token());
                        let _ = sampler.commit(choice).unwrap();
                    }
                }
            }
        }
        proptest::prop_assert_eq!(answer, plain);
    }
}

/// A restriction that allows every token but the one whose turn it is, and can go back.
struct Every(u32);

impl Restriction for Every {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<()> {
        logits[self.0 as usize % 6] = f32::NEG_INFINITY;
        Ok(())
    }

    fn chosen(&mut self, token: u32) -> Result<GrammarState> {
        assert_ne!(token, self.0 % 6);
        self.0 += 1;
        Ok(GrammarState::Open)
    }

    fn undo(&mut self) -> Result<()> {
        self.0 -= 1;
        Ok(())
    }
}
