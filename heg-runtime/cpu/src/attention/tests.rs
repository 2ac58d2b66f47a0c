//! Attention against a reference in f64, and all forms against each other.

use super::integers::STEPS;
use super::item::most_query_rows;
use super::{
    AttentionCall, AttentionItem, AttentionItems, AttentionScratch, BLOCK, KvElement, Shape,
    TREE_TOKENS_MAX, Tree, attend,
};
use crate::{CacheForm, Isa};
use half::bf16;
use heg_artifacts::program::Attention;
use heg_spec::Sight;
use proptest::prelude::*;

/// Elements between rows that do not belong to the call.
const GAP: usize = 3;

/// Attention of a sequence's last tokens.
#[derive(Debug, Clone)]
struct Case {
    attributes: Attention,
    position: usize,
    rows: usize,
    element: KvElement,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let head_dims = prop::sample::select(vec![8, 12, 16, 24, 32, 64, 72, 80, 96, 128]);
    let heads = (
        1..4u32,
        prop::sample::select(vec![1, 2, 3, 4, 5, 8]),
        head_dims,
    );
    let windows = prop_oneof![
        3 => prop::option::of(prop_oneof![Just(1u32), 2..20u32, 20..200u32])
            .prop_map(|window| (window, Sight::Causal)),
        1 => Just((None, Sight::Whole)),
    ];
    let softcaps = prop::option::of(prop_oneof![Just(0.5f32), Just(30.0)]);
    let tokens = (0..200usize, 1..90usize);
    let elements = prop::sample::select(&[KvElement::F32, KvElement::Bf16, KvElement::I8]);
    (heads, windows, softcaps, tokens, elements, any::<u64>()).prop_map(
        |(
            (kv_heads, group, head_dim),
            (window, sight),
            softcap,
            (position, rows),
            element,
            seed,
        )| Case {
            attributes: Attention {
                heads: kv_heads * group,
                kv_heads,
                head_dim,
                scale: 1.0 / (head_dim as f32).sqrt(),
                window,
                softcap,
                sight,
            },
            position,
            rows,
            element,
            seed,
        },
    )
}

/// f32 rows of a case, before keys and values are rounded to their element type.
struct Rows {
    query: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Case {
    fn query_width(&self) -> usize {
        (self.attributes.heads * self.attributes.head_dim) as usize
    }

    fn kv_width(&self) -> usize {
        (self.attributes.kv_heads * self.attributes.head_dim) as usize
    }

    fn end(&self) -> usize {
        self.position + self.rows
    }

    fn rows(&self) -> Rows {
        let mut state = self.seed | 1;
        let mut random = |len: usize, scale: f32| -> Vec<f32> {
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                bf16::from_f32(((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale).to_f32()
            };
            (0..len).map(|_| next()).collect()
        };
        Rows {
            query: random(self.rows * self.query_width(), 4.0),
            keys: random(self.end() * self.kv_width(), 2.0),
            values: random(self.end() * self.kv_width(), 1.0),
        }
    }

    /// The position behind the last that a token sees.
    fn end_seen(&self, position: usize) -> usize {
        match self.attributes.sight {
            Sight::Causal => position + 1,
            Sight::Whole => self.end(),
        }
    }

    fn form(&self) -> CacheForm {
        match self.element {
            KvElement::F32 => CacheForm::F32,
            KvElement::Bf16 => CacheForm::Bf16,
            KvElement::I8 => CacheForm::I8 {
                head_dim: self.attributes.head_dim as usize,
            },
        }
    }

    /// Bytes from one row of the cache to the next.
    fn stride_bytes(&self) -> usize {
        let gap = match self.element {
            KvElement::F32 => 4 * GAP,
            KvElement::Bf16 => 2 * GAP,
            KvElement::I8 => GAP,
        };
        self.form().row_bytes(self.kv_width()) + gap
    }

    /// The first position that a token sees.
    fn first_seen(&self, position: usize) -> usize {
        let window = self
            .attributes
            .window
            .map_or(usize::MAX, |window| window as usize);
        (position + 1).saturating_sub(window)
    }

    /// Output rows, computed `chunk` tokens at a time. Rows that a chunk does not see are NaN.
    fn output(&self, isa: Isa, rows: &Rows, chunk: usize, cut: Cut) -> Vec<f32> {
        self.output_of(isa, rows, chunk, cut, None)
    }

    fn output_of(
        &self,
        isa: Isa,
        rows: &Rows,
        chunk: usize,
        cut: Cut,
        tree: Option<Tree<'_>>,
    ) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.rows * self.query_width()];
        let mut scratch = AttentionScratch::new([&self.attributes]).unwrap();
        for first in (0..self.rows).step_by(chunk) {
            let end = self.rows.min(first + chunk);
            let visible = self.first_seen(self.position + first)..self.position + end;
            let keys = self.cache(&rows.keys, visible.clone());
            let values = self.cache(&rows.values, visible);
            let call = AttentionCall {
                attributes: self.attributes,
                query: rows.query[first * self.query_width()..].as_ptr(),
                query_stride: self.query_width(),
                out: out[first * self.query_width()..].as_mut_ptr(),
                out_stride: self.query_width(),
                rows: end - first,
                position: self.position + first,
                tree,
                keys: keys.as_ptr().cast(),
                values: values.as_ptr().cast(),
                kv_stride_bytes: self.stride_bytes(),
                element: self.element,
            };
            for AttentionItem { kv_heads, rows } in cut.items(&call) {
                // SAFETY: the instruction set is available, and rows are those of the case.
                unsafe { attend(isa, &call, kv_heads, rows, &mut scratch) };
            }
        }
        out
    }

    /// Rows of all positions as in a cache, in whole words: gaps and positions outside of `visible` are NaN.
    fn cache(&self, rows: &[f32], visible: std::ops::Range<usize>) -> Vec<u32> {
        let mut bytes = Vec::new();
        for (position, row) in rows.chunks(self.kv_width()).enumerate() {
            if visible.contains(&position) {
                bytes.extend(self.form().rows_of(row));
            }
            bytes.resize((position + 1) * self.stride_bytes(), 0xff);
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0xff);
        let (words, _) = bytes.as_chunks();
        words.iter().map(|word| u32::from_ne_bytes(*word)).collect()
    }

    /// A query as it is multiplied with keys.
    fn as_scored(&self, query: &[f32]) -> Vec<f64> {
        if self.element != KvElement::I8 {
            return query.iter().copied().map(f64::from).collect();
        }
        let largest = query.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        let rounded = query
            .iter()
            .map(|x| (x * (STEPS / largest)).round_ties_even());
        let unit = f64::from(largest) / f64::from(STEPS);
        rounded.map(|x| f64::from(x) * unit).collect()
    }

    /// Output rows by the definition.
    fn reference(&self, rows: &Rows) -> Vec<f64> {
        let Attention {
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.attributes;
        let (head_dim, group) = (head_dim as usize, (heads / kv_heads) as usize);
        let cached = |rows: &[f32]| self.form().elements_of(&self.form().rows_of(rows));
        let (keys, values) = (cached(&rows.keys), cached(&rows.values));
        let mut out = Vec::new();
        for token in 0..self.rows {
            let position = self.position + token;
            let visible = self.first_seen(position)..self.end_seen(position);
            for head in 0..heads as usize {
                let query = &rows.query[token * self.query_width() + head * head_dim..][..head_dim];
                let query = self.as_scored(query);
                let of = |rows: &'_ [f32], position: usize| -> Vec<f64> {
                    let at = position * self.kv_width() + head / group * head_dim;
                    rows[at..at + head_dim]
                        .iter()
                        .map(|x| f64::from(*x))
                        .collect()
                };
                let scores = visible.clone().map(|position| {
                    let products = of(&keys, position).into_iter().zip(&query);
                    let dot: f64 = products.map(|(key, query)| key * query).sum();
                    let score = dot * f64::from(self.attributes.scale);
                    let cap = self.attributes.softcap.map(f64::from);
                    cap.map_or(score, |cap| cap * (score / cap).tanh())
                });
                let scores: Vec<f64> = scores.collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> =
                    scores.iter().map(|score| (score - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut sums = vec![0.0; head_dim];
                for (position, weight) in visible.clone().zip(weights) {
                    for (sum, value) in sums.iter_mut().zip(of(&values, position)) {
                        *sum += weight * value / total;
                    }
                }
                out.extend(sums);
            }
        }
        out
    }
}

/// A division of calls into work items.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// The production division for this number of threads.
    Threads(usize),
    /// Items of one head and this number of tokens.
    Tokens(usize),
}

impl Cut {
    fn items(self, call: &AttentionCall<'_>) -> Vec<AttentionItem> {
        match self {
            Self::Threads(threads) => {
                let whole = AttentionItem {
                    kv_heads: 0..call.attributes.kv_heads as usize,
                    rows: 0..call.rows,
                };
                let items = AttentionItems::of(call, whole, threads);
                (0..items.len()).map(|index| items.get(index)).collect()
            }
            Self::Tokens(tokens) => (0..call.attributes.kv_heads as usize)
                .flat_map(|head| {
                    (0..call.rows)
                        .step_by(tokens)
                        .map(move |first| AttentionItem {
                            kv_heads: head..head + 1,
                            rows: first..call.rows.min(first + tokens),
                        })
                })
                .collect(),
        }
    }
}

/// Trees: for each token but the first, the earlier token that it follows, often the previous one.
fn trees() -> impl Strategy<Value = Vec<u16>> {
    let token = prop::option::weighted(0.4, any::<prop::sample::Index>());
    prop::collection::vec(token, 0..TREE_TOKENS_MAX).prop_map(|tokens| {
        let numbered = tokens.iter().enumerate();
        let follows = numbered.map(|(at, before)| before.map_or(at, |before| before.index(at + 1)));
        follows.map(|before| before as u16).collect()
    })
}

/// The path from the root of a tree to a token, inclusive.
fn branch(follows: &[u16], token: usize) -> Vec<usize> {
    let mut branch = match token.checked_sub(1) {
        Some(at) => self::branch(follows, usize::from(follows[at])),
        None => Vec::new(),
    };
    branch.push(token);
    branch
}

fn bits(rows: &[f32]) -> Vec<u32> {
    rows.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn portable_form_is_exact_but_for_rounding(case in cases()) {
        let rows = case.rows();
        let out = case.output(Isa::Portable, &rows, case.rows, Cut::Threads(2));
        // Values are below 1. Beside integers, a weight is half a step off at most, and a block's steps are a part of its
        // largest weight.
        let bound = match case.element {
            KvElement::I8 => BLOCK as f64 / 2.0 / f64::from(STEPS),
            _ => 4e-6,
        };
        for (at, (out, exact)) in out.iter().zip(case.reference(&rows)).enumerate() {
            prop_assert!((f64::from(*out) - exact).abs() < bound, "at {at}: {out} for {exact}");
        }
    }

    #[test]
    fn bits_depend_on_nothing_but_the_row(case in cases(), tokens in 1..20usize) {
        let rows = case.rows();
        let whole = bits(&case.output(Isa::Portable, &rows, case.rows, Cut::Threads(1)));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let chunks: &[usize] = match case.attributes.sight {
                Sight::Causal => &[1, 3, 17, case.rows],
                Sight::Whole => &[case.rows],
            };
            for chunk in chunks.iter().copied() {
                for cut in [Cut::Threads(1), Cut::Threads(3), Cut::Tokens(tokens)] {
                    let out = bits(&case.output(isa, &rows, chunk, cut));
                    prop_assert!(out == whole, "{isa}, chunks of {chunk}, {cut:?}");
                }
            }
        }
    }

    #[test]
    fn bits_in_a_tree_are_those_of_the_tokens_way_alone(
        case in cases(),
        follows in trees(),
        tokens in 1..20usize,
        last in any::<prop::sample::Index>(),
    ) {
        let attributes = Attention { sight: Sight::Causal, ..case.attributes };
        let case = Case { rows: follows.len() + 1, attributes, ..case };
        let rows = case.rows();
        let branch = branch(&follows, last.index(case.rows));
        let on_branch = |of: &[f32], width: usize, first: usize| -> Vec<f32> {
            let rows = branch.iter().flat_map(|token| &of[(first + token) * width..][..width]);
            of[..first * width].iter().chain(rows).copied().collect()
        };
        let alone = Rows {
            query: on_branch(&rows.query, case.query_width(), 0),
            keys: on_branch(&rows.keys, case.kv_width(), case.position),
            values: on_branch(&rows.values, case.kv_width(), case.position),
        };
        let of_branch = Case { rows: branch.len(), ..case.clone() };
        let expected = of_branch.output(Isa::Portable, &alone, branch.len(), Cut::Threads(1));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for cut in [Cut::Threads(1), Cut::Threads(3), Cut::Tokens(tokens)] {
                let tree = Some(Tree::new(&follows));
                let out = case.output_of(isa, &rows, case.rows, cut, tree);
                prop_assert!(
                    bits(&on_branch(&out, case.query_width(), 0)) == bits(&expected),
                    "{isa}, {cut:?}, {branch:?} of {follows:?}"
                );
            }
        }
    }

    #[test]
    fn work_items_cover_a_call_once_and_fit_in_scratch_memory(
        case in cases(),
        rows in 1..5000usize,
        threads in 1..40usize,
    ) {
        let call = AttentionCall {
            attributes: case.attributes,
            query: std::ptr::null(),
            query_stride: 0,
            out: std::ptr::null_mut(),
            out_stride: 0,
            rows,
            position: case.position,
            tree: None,
            keys: std::ptr::null(),
            values: std::ptr::null(),
            kv_stride_bytes: 0,
            element: case.element,
        };
        let shape = Shape::of(&case.attributes);
        let mut covered = vec![0; rows * case.attributes.kv_heads as usize];
        for AttentionItem { kv_heads, rows: tokens } in Cut::Threads(threads).items(&call) {
            let query_rows = kv_heads.len() * tokens.len() * shape.group;
            prop_assert!(query_rows <= most_query_rows(&case.attributes));
            for head in kv_heads {
                covered[head * rows..][tokens.clone()].iter_mut().for_each(|count| *count += 1);
            }
        }
        prop_assert!(covered.into_iter().all(|count| count == 1));
    }
}
