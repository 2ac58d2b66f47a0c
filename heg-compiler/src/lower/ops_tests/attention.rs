//! Attention: head groupings, position in the cache, window, soft cap, and rows of the cache past the end.

use heg_artifacts::manifest::{Port, Role, Rows};
use heg_spec::WeightForm;

use super::bench::{Call, OneOp, TOKENS, noise, tokens};
use crate::graph::{Attention, Op};

const PLAIN: Attention = Attention {
    heads: 4,
    kv_heads: 4,
    head_dim: 8,
    // Large enough for attention weights that differ much.
    scale: 1.5,
    window: None,
    softcap: None,
};

/// Sizes of a cache. `before`: tokens in the cache already. `spare`: rows of the cache that no token may see.
struct Cache {
    before: usize,
    spare: usize,
}

fn check(test: &str, a: &Attention, caches: &[Cache]) {
    let (queries, keys) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
    let cached = |role| Port {
        role,
        rows: Rows::Context,
        width: keys,
    };
    let position = Port {
        role: Role::Position,
        rows: Rows::One,
        width: 1,
    };
    let case = OneOp {
        op: Op::Attention(*a),
        inputs: vec![
            tokens(Role::Query, queries),
            cached(Role::Key),
            cached(Role::Value),
            position,
        ],
        operands: 3,
        width: queries,
        weights: Vec::new(),
    };
    let mut calls = Vec::new();
    for cache in caches {
        for tokens in TOKENS {
            let rows = cache.before + tokens + cache.spare;
            calls.push(Call {
                tokens,
                inputs: vec![
                    noise(tokens as u64, tokens * queries as usize),
                    noise(11, rows * keys as usize),
                    noise(12, rows * keys as usize),
                    vec![cache.before as f32],
                ],
            });
        }
    }
    case.check(test, WeightForm::F32, &calls, |call, _| {
        let before = call.inputs[3][0] as usize;
        let attend = |(token, q): (usize, &[f32])| -> Vec<f64> {
            let heads = q.chunks(a.head_dim as usize).enumerate();
            heads
                .flat_map(|(head, q)| attend_head(a, call, before + token, head, q))
                .collect()
        };
        let rows = call.inputs[0].chunks(queries as usize).enumerate();
        rows.flat_map(attend).collect()
    });
}

/// One query of one head at row `at` of the cache.
fn attend_head(a: &Attention, call: &Call, at: usize, head: usize, q: &[f32]) -> Vec<f64> {
    let d = a.head_dim as usize;
    let kv_head = head / (a.heads / a.kv_heads) as usize;
    let part = |input: usize, row: usize| {
        let start = row * a.kv_heads as usize * d + kv_head * d;
        &call.inputs[input][start..start + d]
    };
    let first = a
        .window
        .map_or(0, |window| (at + 1).saturating_sub(window as usize));
    let score = |row: usize| -> f64 {
        let each = q.iter().zip(part(1, row));
        let dot: f64 = each.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        let score = dot * f64::from(a.scale);
        a.softcap.map_or(score, |cap| {
            let cap = f64::from(cap);
            cap * (score / cap).tanh()
        })
    };
    let weights: Vec<f64> = (first..=at).map(|row| score(row).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut attended = vec![0.0; d];
    for (row, weight) in (first..=at).zip(weights) {
        for (sum, v) in attended.iter_mut().zip(part(2, row)) {
            *sum += weight / total * f64::from(*v);
        }
    }
    attended
}

const FRESH: Cache = Cache {
    before: 0,
    spare: 0,
};
const FILLED: Cache = Cache {
    before: 19,
    spare: 0,
};
/// A padded chunk: rows past the last token hold data of an earlier request.
const SPARE: Cache = Cache {
    before: 7,
    spare: 6,
};

#[test]
fn attention_with_a_key_head_per_query_head() {
    check("attention, MHA", &PLAIN, &[FRESH, FILLED, SPARE]);
}

#[test]
fn attention_with_grouped_queries() {
    let grouped = Attention {
        heads: 6,
        kv_heads: 2,
        ..PLAIN
    };
    check("attention, GQA", &grouped, &[FRESH, FILLED, SPARE]);
}

#[test]
fn attention_with_one_key_head() {
    let single = Attention {
        kv_heads: 1,
        ..PLAIN
    };
    check("attention, MQA", &single, &[FRESH, FILLED, SPARE]);
}

#[test]
fn attention_in_a_window() {
    for window in [1, 4, 32] {
        let windowed = Attention {
            kv_heads: 2,
            window: Some(window),
            ..PLAIN
        };
        let test = format!("attention, window {window}");
        check(&test, &windowed, &[FRESH, FILLED, SPARE]);
    }
}

#[test]
fn attention_with_a_soft_cap() {
    let capped = Attention {
        kv_heads: 2,
        softcap: Some(2.0),
        ..PLAIN
    };
    check("attention, soft cap", &capped, &[FRESH, FILLED]);
    let both = Attention {
        window: Some(9),
        ..capped
    };
    check("attention, soft cap and window", &both, &[FRESH, SPARE]);
}
