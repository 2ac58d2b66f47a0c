//! Attention: head groupings, position in the cache, window, soft cap, and rows of the cache past the end.

use heg_artifacts::manifest::{Port, Role, Rows};
use heg_spec::{Sight, WeightForm};

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
    sight: Sight::Causal,
};

/// Sizes of a cache. `before`: tokens in the cache already. `spare`: rows of the cache that no token may see.
struct Cache {
    before: usize,
    spare: usize,
}

/// The operator alone, with its ports.
fn case(a: &Attention) -> OneOp {
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
    OneOp {
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
    }
}

/// A call of so many tokens over a cache.
fn call(a: &Attention, cache: &Cache, tokens: usize) -> Call {
    let (queries, keys) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
    let rows = cache.before + tokens + cache.spare;
    Call {
        tokens,
        inputs: vec![
            noise(tokens as u64, tokens * queries as usize),
            noise(11, rows * keys as usize),
            noise(12, rows * keys as usize),
            vec![cache.before as f32],
        ],
    }
}

/// Attention of all tokens of a call, of which `seen` names the rows of the cache that each sees, in the text's order.
fn attend(a: &Attention, call: &Call, seen: impl Fn(usize) -> Vec<usize>) -> Vec<f64> {
    let width = (a.heads * a.head_dim) as usize;
    let rows = call.inputs[0].chunks(width).enumerate();
    let attended = rows.flat_map(|(token, q)| {
        let mut seen = seen(token);
        let window = a.window.map_or(seen.len(), |window| window as usize);
        let seen = seen.split_off(seen.len().saturating_sub(window));
        let heads = q.chunks(a.head_dim as usize).enumerate();
        let attended = heads.flat_map(|(head, q)| attend_head(a, call, &seen, head, q));
        attended.collect::<Vec<f64>>()
    });
    attended.collect()
}

fn check(test: &str, a: &Attention, caches: &[Cache]) {
    let sizes = caches
        .iter()
        .flat_map(|cache| TOKENS.map(|tokens| (cache, tokens)));
    let calls: Vec<Call> = sizes
        .map(|(cache, tokens)| call(a, cache, tokens))
        .collect();
    case(a).check(test, WeightForm::F32, &calls, |call, _| {
        let before = call.inputs[3][0] as usize;
        attend(a, call, |token| (0..=before + token).collect())
    });
}

/// Checks trees: chains, bushes, and whatever a generator makes.
fn check_trees(test: &str, a: &Attention, caches: &[Cache]) {
    let mut calls = Vec::new();
    let mut seeds = 1..;
    for (cache, tokens) in caches
        .iter()
        .flat_map(|cache| [1, 5, 32].map(|tokens| (cache, tokens)))
    {
        let random = |seed: u64| -> Vec<usize> {
            let picks = noise(seed, tokens - 1).into_iter().zip(1..);
            // Often the one before it, as in drafts.
            let pick = picks.map(|(pick, token): (f32, usize)| match pick {
                ..0.0 => token - 1,
                _ => (pick * token as f32) as usize,
            });
            pick.collect()
        };
        let chain = (0..tokens - 1).collect();
        let star = vec![0; tokens - 1];
        let trees = seeds.by_ref().take(3).map(random).chain([chain, star]);
        for follows in trees {
            let mut call = call(a, cache, tokens);
            let row = |token| {
                let way = way(&follows, token);
                (0..tokens).map(move |other| f32::from(u8::from(way.contains(&other))))
            };
            call.inputs.push((0..tokens).flat_map(row).collect());
            calls.push(call);
        }
    }
    case(a).check_trees(test, &calls, |call, _| {
        let before = call.inputs[3][0] as usize;
        let tree: Vec<&[f32]> = call.inputs[4].chunks(call.tokens).collect();
        attend(a, call, |token| {
            let own = (0..call.tokens).filter(|other| tree[token][*other] > 0.0);
            (0..before).chain(own.map(|other| before + other)).collect()
        })
    });
}

/// The tokens that lead to one, itself included; `follows` has for each but the first the earlier one before it.
fn way(follows: &[usize], token: usize) -> Vec<usize> {
    let before = |token: &usize| token.checked_sub(1).map(|at| follows[at]);
    std::iter::successors(Some(token), before).collect()
}

/// One query of one head over some rows of the cache.
fn attend_head(a: &Attention, call: &Call, seen: &[usize], head: usize, q: &[f32]) -> Vec<f64> {
    let d = a.head_dim as usize;
    let kv_head = head / (a.heads / a.kv_heads) as usize;
    let part = |input: usize, row: usize| {
        let start = row * a.kv_heads as usize * d + kv_head * d;
        &call.inputs[input][start..start + d]
    };
    let score = |row: usize| -> f64 {
        let each = q.iter().zip(part(1, row));
        let dot: f64 = each.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        let score = dot * f64::from(a.scale);
        a.softcap.map_or(score, |cap| {
            let cap = f64::from(cap);
            cap * (score / cap).tanh()
        })
    };
    let weights: Vec<f64> = seen.iter().map(|row| score(*row).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut attended = vec![0.0; d];
    for (row, weight) in seen.iter().zip(weights) {
        for (sum, v) in attended.iter_mut().zip(part(2, *row)) {
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

/// In a window too short for its branches, a token sees only the last of its ancestors.
#[test]
fn static_attention_over_trees() {
    for (window, softcap) in [(None, None), (Some(3), None), (Some(24), Some(2.0))] {
        let grouped = Attention {
            kv_heads: 2,
            window,
            softcap,
            ..PLAIN
        };
        let test = format!("attention over trees, window {window:?}");
        check_trees(&test, &grouped, &[FRESH, FILLED, SPARE]);
    }
}
