//! The solver against every cut there is, and on tables whose best cut is known.

use heg_spec::CutProduct;
use proptest::prelude::*;

use super::*;

fn shape(rows: u32, unit_rows: u32) -> CutShape {
    CutShape {
        product: CutProduct::Out,
        rows,
        depth: 64,
        matrices: 1,
        unit_rows,
        row_bytes: 64.0,
    }
}

fn rules(static_tokens: &[u32], hand_over_us: f64) -> CutRules<'_> {
    CutRules {
        static_tokens,
        row_step: 256,
        home: Side::Second,
        hand_over_us,
    }
}

/// Latencies by a function of side, rows, tokens and company.
struct By<F>(F);

impl<F: Fn(Side, u32, u32, Company) -> Option<f64>> PairLatencies for By<F> {
    fn piece_us(&self, side: Side, piece: CutPiece<'_>, company: Company) -> Option<f64> {
        (self.0)(side, piece.rows, piece.tokens, company)
    }
}

/// Microseconds per thousand products of a row and a token.
fn even(first: f64, second: f64) -> By<impl Fn(Side, u32, u32, Company) -> Option<f64>> {
    By(move |side, rows, tokens, _| {
        let work = f64::from(rows) * f64::from(tokens) / 1e3;
        Some(work * if side == Side::First { first } else { second })
    })
}

#[test]
fn equal_devices_take_halves() {
    let best = solve(&even(1.0, 1.0), &shape(2048, 1), 32, rules(&[32], 1.0)).unwrap();
    assert_eq!(best.cut, Cut::Rows { first: 1024 });
    assert!((best.latency_us - 33.768).abs() < 1e-9);
    let slower = solve(&even(1.0, 3.0), &shape(2048, 1), 32, rules(&[32], 1.0)).unwrap();
    assert_eq!(slower.cut, Cut::Rows { first: 1536 });
}

#[test]
fn a_prompt_past_a_size_is_cut_by_tokens() {
    // 300 = 256 on the first and 44 on the second, which is 5.8 times as slow.
    let best = solve(
        &even(1.0, 256.0 / 44.0),
        &shape(256, 1),
        300,
        rules(&[256, 512], 1.0),
    );
    assert_eq!(best.unwrap().cut, Cut::Tokens { sizes: vec![256] });
    // 600 = 512 + 32 on the first and 56 on the second.
    let best = solve(
        &even(1.0, 544.0 / 56.0),
        &shape(256, 1),
        600,
        rules(&[32, 256, 512], 1.0),
    );
    let sizes = vec![512, 32];
    assert_eq!(best.unwrap().cut, Cut::Tokens { sizes });
}

#[test]
fn what_costs_more_than_it_gains_is_not_cut() {
    let best = solve(&even(1.0, 1.0), &shape(2048, 1), 32, rules(&[32], 40.0)).unwrap();
    assert_eq!(best.cut, Cut::Whole(Side::Second));
    let padded = solve(&even(1.0, 1e4), &shape(2048, 1), 31, rules(&[32], 40.0)).unwrap();
    assert_eq!(padded.cut, Cut::Whole(Side::First));
    let home = CutRules {
        home: Side::First,
        ..rules(&[32], 1e9)
    };
    let best = solve(&even(2.0, 1.0), &shape(2048, 1), 32, home).unwrap();
    assert_eq!(best.cut, Cut::Whole(Side::First));
}

#[test]
fn a_device_without_static_sizes_takes_no_part() {
    let none = solve(&even(1.0, 9.0), &shape(2048, 1), 32, rules(&[], 0.0)).unwrap();
    assert_eq!(none.cut, Cut::Whole(Side::Second));
}

#[test]
fn rows_that_do_not_divide_and_heads_stay_whole() {
    // 576 rows in steps of 256: the rest is the second side's.
    let best = solve(&even(1.0, 1.0), &shape(576, 1), 32, rules(&[32], 0.0)).unwrap();
    assert_eq!(best.cut, Cut::Rows { first: 256 });
    // Groups of heads of 320 rows.
    let grouped = shape(960, 320);
    assert_eq!(grouped.row_step(256), 320);
    assert_eq!(shape(960, 96).row_step(256), 288);
    let best = solve(&even(1.0, 2.0), &grouped, 32, rules(&[32], 0.0)).unwrap();
    assert_eq!(best.cut, Cut::Rows { first: 640 });
    // A product of a single step stays whole.
    let best = solve(&even(1.0, 2.0), &shape(256, 1), 32, rules(&[32], 0.0)).unwrap();
    assert_eq!(best.cut, Cut::Whole(Side::First));
}

#[test]
fn what_is_missing_or_absurd_is_refused() {
    let refused = |latency: Option<f64>, tokens, hand_over_us| {
        let latencies = By(move |_, _, _, _| latency);
        let found = solve(
            &latencies,
            &shape(512, 1),
            tokens,
            rules(&[32], hand_over_us),
        );
        found.unwrap_err().to_string()
    };
    insta::assert_snapshot!(
        [
            refused(None, 32, 0.0),
            refused(Some(f64::NAN), 32, 0.0),
            refused(Some(0.0), 32, 0.0),
            refused(Some(1.0), 0, 0.0),
            refused(Some(1.0), 32, -1.0),
        ]
        .join("\n")
    );
}

/// Every cut there is with its latency, straight from the definition.
fn all_cuts(
    latencies: &impl PairLatencies,
    shape: &CutShape,
    tokens: u32,
    rules: CutRules<'_>,
) -> Vec<(Cut, f64)> {
    let us = |side, rows, tokens, company| {
        let piece = CutPiece {
            shape,
            rows,
            tokens,
        };
        latencies.piece_us(side, piece, company)
    };
    let mut cuts = Vec::new();
    let mut push = |cut: Cut, pieces_us: Option<f64>| {
        let away = f64::from(u8::from(cut != Cut::Whole(rules.home))) * rules.hand_over_us;
        cuts.extend(pieces_us.map(|us| (cut, us + away)));
    };
    let larger = |one: Option<f64>, other: Option<f64>| Some(one?.max(other?));
    let (rows, beside) = (shape.rows, Company::Beside);
    let padded = rules.static_tokens.iter().find(|size| **size >= tokens);
    let whole = us(Side::Second, rows, tokens, Company::Alone);
    push(Cut::Whole(Side::Second), whole);
    if let Some(&padded) = padded {
        let whole = us(Side::First, rows, padded, Company::Alone);
        push(Cut::Whole(Side::First), whole);
    }
    let smaller = rules.static_tokens.iter().filter(|size| **size < tokens);
    for &padded in padded.into_iter().chain(smaller) {
        let step = shape.row_step(rules.row_step);
        for first in (1..rows).filter(|first| first % step == 0) {
            let mut others = us(Side::Second, rows - first, tokens, beside);
            if padded < tokens {
                let margin = us(Side::Second, first, tokens - padded, beside);
                others = others.zip(margin).map(|(rows, margin)| rows + margin);
            }
            let cut = match padded == tokens {
                true => Cut::Rows { first },
                false => Cut::Hybrid {
                    first,
                    padded_tokens: padded,
                },
            };
            push(cut, larger(us(Side::First, first, padded, beside), others));
        }
    }
    for sizes in multisets(rules.static_tokens, tokens) {
        let sum = |company| {
            let each = sizes
                .iter()
                .map(|size| us(Side::First, rows, *size, company));
            each.sum::<Option<f64>>()
        };
        let total: u32 = sizes.iter().sum();
        if total < tokens {
            let others = us(Side::Second, rows, tokens - total, beside);
            let cut = Cut::Tokens {
                sizes: sizes.clone(),
            };
            push(cut, larger(sum(beside), others));
            for last in rules
                .static_tokens
                .iter()
                .filter(|last| total + **last >= tokens)
            {
                let padded = us(Side::First, rows, *last, Company::Alone);
                let both = sum(Company::Alone).zip(padded).map(|(a, b)| a + b);
                let sizes = [sizes.as_slice(), &[*last]].concat();
                push(Cut::Tokens { sizes }, both);
            }
        }
    }
    cuts
}

/// Multisets of sizes that make less than `tokens`, each not empty.
fn multisets(sizes: &[u32], tokens: u32) -> Vec<Vec<u32>> {
    let Some((first, rest)) = sizes.split_first() else {
        return Vec::new();
    };
    let mut found = multisets(rest, tokens);
    if *first < tokens {
        let mut with = vec![Vec::new()];
        with.extend(multisets(sizes, tokens - first));
        found.extend(with.into_iter().map(|mut sizes| {
            sizes.push(*first);
            sizes
        }));
    }
    found
}

/// A number in 0..1 from a seed and the place of a table.
fn noise(seed: u64, place: impl std::hash::Hash) -> f64 {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, place));
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}

/// Random tables: noise around proportions, with holes, so that no rule of thumb holds.
fn random(
    seed: u64,
    roughness: f64,
    holes: f64,
) -> By<impl Fn(Side, u32, u32, Company) -> Option<f64>> {
    By(move |side, rows, tokens, company| {
        let place = (side, rows, tokens, company);
        let speed = 0.2 + noise(seed, (side, "speed"));
        let work = f64::from(rows) * f64::from(tokens) * speed / 1e3;
        let known = noise(seed.wrapping_add(1), place) >= holes;
        known.then(|| 0.1 + work * (1.0 + roughness * noise(seed, place)))
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 10_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_solver_is_as_good_as_every_cut(
        seed in any::<u64>(),
        (roughness, holes) in (prop_oneof![Just(0.0), 0.0..4.0], prop_oneof![Just(0.0), 0.0..0.5]),
        (rows, unit_rows) in (1_u32..2000, prop_oneof![Just(1_u32), 1_u32..500]),
        tokens in 1_u32..200,
        sizes in proptest::collection::btree_set((1_u32..9).prop_map(|steps| 32 * steps), 0..4),
        hand_over_us in prop_oneof![Just(0.0), 0.0..200.0],
        home in prop_oneof![Just(Side::First), Just(Side::Second)],
    ) {
        let sizes: Vec<u32> = sizes.into_iter().collect();
        let (latencies, shape) = (random(seed, roughness, holes), shape(rows, unit_rows));
        let rules = CutRules { home, ..rules(&sizes, hand_over_us) };
        let cuts = all_cuts(&latencies, &shape, tokens, rules);
        let least = cuts.iter().map(|(_, us)| *us).min_by(f64::total_cmp);
        match solve(&latencies, &shape, tokens, rules) {
            Ok(found) => {
                let least = least.unwrap();
                prop_assert!((found.latency_us - least).abs() <= 1e-9 * least, "{found:?}, best {least}");
                let (_, priced) = cuts.iter().find(|(cut, _)| same(cut, &found.cut)).unwrap();
                prop_assert!((priced - found.latency_us).abs() <= 1e-9 * priced);
                prop_assert_eq!(found.cut.check(rows, tokens, shape.row_step(256)), Ok(()));
            }
            Err(error) => prop_assert!(
                least.is_none() && matches!(error, PartitionError::Unknown { .. }),
                "{error}"
            ),
        }
    }
}

/// Whether two cuts are one: those by tokens whatever the order of sizes.
fn same(one: &Cut, other: &Cut) -> bool {
    match (one, other) {
        (Cut::Tokens { sizes: a }, Cut::Tokens { sizes: b }) => {
            let sorted = |sizes: &[u32]| {
                let mut sizes = sizes.to_vec();
                sizes.sort_unstable();
                sizes
            };
            sorted(a) == sorted(b)
        }
        _ => one == other,
    }
}
