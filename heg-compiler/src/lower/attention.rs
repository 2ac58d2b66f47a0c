//! Attention over the KV cache, in the form that is fast on each kind of device.
//!
//! Both forms have the same ports and give the same rows. Rows of the cache past the last visible token keep their old
//! content; they are masked, so any finite values will do.

use super::ops::soft_cap;
use super::xml::{Dim, Element, Ir, LiteralShape, Wire};
use crate::graph::Attention;

/// Causal attention of c new tokens over n rows of the KV cache.
///
/// `position` is the row of the first new token: token i sees rows up to `position + i`.
pub(super) fn attention(
    ir: &mut Ir<'_>,
    operands: &[Wire],
    position: &Wire,
    a: &Attention,
) -> Wire {
    let [query, key, value] = operands else {
        return position.clone();
    };
    let [key, value] = [key, value].map(|rows| ir.convert(rows, query.element));
    let (key, value) = (&key, &value);
    match (query.shape[0], key.shape[0]) {
        (Dim::Fixed(tokens), Dim::Fixed(context)) => {
            let size = Size { tokens, context };
            by_heads(ir, [query, key, value], position, size, a)
        }
        _ => by_groups(ir, [query, key, value], position, a),
    }
}

/// Attention with the group folded into the rows, so that K and V are never repeated (DESIGN §4.6): q as [1, K, c·G, d]
/// times k as [1, K, n, d], for any c and n. With that rank and that transposition, `[0, 2, 1, 3]` of the cache's rows,
/// the CPU plugin fuses V's into the products and has a fast copy for K's. Compared with the group as a dimension, with
/// 32/8 heads of 64 on two cores: one token over 32 rows takes 64 µs instead of 95, a decode step of a 1B model over
/// 1500 rows 58 ms instead of 61; 256 tokens take 1.04 to 1.1 times as long, since the mask is repeated.
fn by_groups(
    ir: &mut Ir<'_>,
    [query, key, value]: [&Wire; 3],
    position: &Wire,
    a: &Attention,
) -> Wire {
    let (kv_heads, head_dim) = (Dim::Fixed(a.kv_heads), Dim::Fixed(a.head_dim));
    let group = Dim::Fixed(a.heads / a.kv_heads);
    let q = ir.reshape(query, &[Dim::Dynamic, kv_heads, group, head_dim]);
    let q = ir.transpose(&q, &[1, 0, 2, 3]);
    let q = ir.times(&q, a.scale);
    let q = ir.fold(&q, &[Dim::Fixed(1), kv_heads, Dim::Dynamic, head_dim]);
    let [k, v] = [key, value].map(|rows| {
        let rows = ir.fold(rows, &[Dim::Fixed(1), Dim::Dynamic, kv_heads, head_dim]);
        ir.transpose(&rows, &[0, 2, 1, 3])
    });
    let mask = mask_of_any_size(ir, query, key, position, a);
    let attended = attend(ir, [&q, &k, &v], &mask, a.softcap);
    let attended = ir.fold(&attended, &[kv_heads, Dim::Dynamic, group, head_dim]);
    let attended = ir.transpose(&attended, &[1, 0, 2, 3]);
    ir.reshape(&attended, &[Dim::Dynamic, Dim::Fixed(a.heads * a.head_dim)])
}

/// Fixed sizes of a static attention.
#[derive(Debug, Clone, Copy)]
struct Size {
    /// New tokens c.
    tokens: u32,
    /// Rows of the cache n.
    context: u32,
}

/// Attention with one pair of products per query head, on columns of the rows as stored. The NPU compiler pipelines the
/// heads, and nothing is transposed or repeated: by its estimate a third faster than repeating K and V at 256 tokens
/// over 512 rows, and equally fast at 2048 (24/8 heads of 128, platform 3720).
fn by_heads(
    ir: &mut Ir<'_>,
    [query, key, value]: [&Wire; 3],
    position: &Wire,
    size: Size,
    a: &Attention,
) -> Wire {
    let query = ir.times(query, a.scale);
    let parts = |heads: u32| vec![a.head_dim; heads as usize];
    let queries = ir.split(&query, &parts(a.heads));
    let keys = ir.split(key, &parts(a.kv_heads));
    let values = ir.split(value, &parts(a.kv_heads));
    let mask = mask_of_size(ir, size, position, a.window, &query);
    let group = (a.heads / a.kv_heads) as usize;
    let shared = keys.iter().zip(&values).flat_map(|kv| vec![kv; group]);
    let attended: Vec<Wire> = queries
        .iter()
        .zip(shared)
        .map(|(q, (k, v))| attend(ir, [q, k, v], &mask, a.softcap))
        .collect();
    let attended: Vec<&Wire> = attended.iter().collect();
    ir.concat(&attended, a.heads * a.head_dim)
}

/// `softmax(cap(q · kᵀ) + mask) · v` over the last two dimensions.
fn attend(ir: &mut Ir<'_>, [q, k, v]: [&Wire; 3], mask: &Wire, cap: Option<f32>) -> Wire {
    let mut scores = ir.matmul(q, k, true);
    if let Some(cap) = cap {
        scores = soft_cap(ir, &scores, cap);
    }
    let scores = ir.add(&scores, mask);
    let weights = ir.unary("SoftMax", "opset8", "axis=\"-1\"", &scores);
    ir.matmul(&weights, v, false)
}

/// The mask for dynamic numbers of tokens and rows, each token's once per query head of a group: shape [c·G, n].
fn mask_of_any_size(
    ir: &mut Ir<'_>,
    query: &Wire,
    key: &Wire,
    position: &Wire,
    a: &Attention,
) -> Wire {
    let tokens = ir.row_count(query);
    let context = ir.row_count(key);
    let rows = ir.range(&tokens, query.shape[0]);
    let rows = ir.add(&rows, position);
    let rows = ir.unsqueeze(&rows, 1);
    let group = vec![0; (a.heads / a.kv_heads) as usize];
    let repeated = ir.integers(&group, LiteralShape::List);
    let rows = ir.add(&rows, &repeated);
    let rows = ir.fold(&rows, &[Dim::Dynamic, Dim::Fixed(1)]);
    let columns = ir.range(&context, key.shape[0]);
    let columns = ir.unsqueeze(&columns, 0);
    let width = a
        .window
        .map(|window| ir.integers(&[i64::from(window)], LiteralShape::Scalar));
    causal_mask(ir, &rows, &columns, width.as_ref(), query)
}

/// The mask for fixed sizes, shape [c, n].
///
/// Compared in i32, which stays exact: the NPU compiler rounds compared i64 and f32 to f16, which has no odd
/// numbers past 2048.
fn mask_of_size(
    ir: &mut Ir<'_>,
    size: Size,
    position: &Wire,
    window: Option<u32>,
    like: &Wire,
) -> Wire {
    let position = ir.convert(position, Element::I32);
    let rows = ir.counting(size.tokens);
    let rows = ir.add(&rows, &position);
    let rows = ir.unsqueeze(&rows, 1);
    let columns = ir.counting(size.context);
    let columns = ir.unsqueeze(&columns, 0);
    let width = window.map(|window| ir.integer(window));
    causal_mask(ir, &rows, &columns, width.as_ref(), like)
}

/// 0 where the token at row r of the cache may see row j, the most negative finite f16 elsewhere.
///
/// `rows` is [c, 1] or [c·G, 1], `columns` [1, n]; `width` is the sliding window, the token's own row included.
fn causal_mask(
    ir: &mut Ir<'_>,
    rows: &Wire,
    columns: &Wire,
    width: Option<&Wire>,
    like: &Wire,
) -> Wire {
    let mut visible = ir.compare("LessEqual", columns, rows);
    if let Some(width) = width {
        let first = ir.subtract(rows, width);
        let near = ir.compare("Greater", columns, &first);
        visible = ir.both(&visible, &near);
    }
    let (zero, hidden) = (ir.float_like(0.0, like), ir.float_like(-65504.0, like));
    ir.select(&visible, &zero, &hidden)
}
