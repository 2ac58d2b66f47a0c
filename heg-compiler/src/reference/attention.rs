//! Attention, query by query, in f64.

use std::ops::Range;

use heg_spec::Sight;

use crate::graph::Attention;
use heg_quant::ValueRows;

/// The KV cache: rows of keys and values, and the row of the first query.
pub(super) struct Cache<'t> {
    pub(super) keys: &'t ValueRows,
    pub(super) values: &'t ValueRows,
    pub(super) position: usize,
}

/// Attention. Token i sees the rows up to `position + i`, and of these only the last `window`; or those of all tokens.
pub(super) fn attention(queries: &ValueRows, cache: &Cache<'_>, a: &Attention) -> ValueRows {
    let head_dim = a.head_dim as usize;
    let group = (a.heads / a.kv_heads) as usize;
    let last = cache.position + queries.rows().len().saturating_sub(1);
    let mut attended = Vec::with_capacity(queries.values.len());
    for (token, row) in queries.rows().enumerate() {
        for (head, query) in row.chunks(head_dim.max(1)).enumerate() {
            let first = head / group * head_dim;
            let at = match a.sight {
                Sight::Causal => cache.position + token,
                Sight::Whole => last,
            };
            attend(query, cache, a, at, first, &mut attended);
        }
    }
    ValueRows {
        width: queries.width,
        values: attended,
    }
}

/// Attention of one query of one head up to row `at` of the cache, where the head's part of a row starts at `first`.
fn attend(
    query: &[f32],
    cache: &Cache<'_>,
    a: &Attention,
    at: usize,
    first: usize,
    attended: &mut Vec<f32>,
) {
    let window = a.window.map_or(usize::MAX, |window| window as usize);
    let rows = (at + 1).saturating_sub(window)..at + 1;
    let columns = first..first + query.len();
    let score = |key: &[f32]| {
        let each = query.iter().zip(key);
        let dot: f64 = each.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        let score = dot * f64::from(a.scale);
        a.softcap.map_or(score, |cap| {
            let cap = f64::from(cap);
            cap * libm::tanh(score / cap)
        })
    };
    let keys = part(cache.keys, rows.clone(), columns.clone());
    let scores: Vec<f64> = keys.map(score).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| libm::exp(s - largest)).collect();
    let total: f64 = weights.iter().sum();
    let mut sums = vec![0.0; query.len()];
    for (value, weight) in part(cache.values, rows, columns).zip(&weights) {
        for (sum, v) in sums.iter_mut().zip(value) {
            *sum += weight / total * f64::from(*v);
        }
    }
    attended.extend(sums.into_iter().map(|sum| sum as f32));
}

/// A range of columns of a range of rows.
fn part(x: &ValueRows, rows: Range<usize>, columns: Range<usize>) -> impl Iterator<Item = &[f32]> {
    let rows = x.rows().skip(rows.start).take(rows.len());
    rows.filter_map(move |row| row.get(columns.clone()))
}
