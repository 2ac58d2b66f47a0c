//! Attention over the KV cache, in the form that is fast on each kind of device.
//!
//! Both forms have the same ports and give the same rows. Rows of the cache past the last visible token keep their old
//! content; they are masked, so any finite values will do.

use heg_spec::Sight;

use super::ops::soft_cap;
use super::xml::{Dim, Element, Ir, LiteralShape, Wire};
use crate::graph::Attention;

/// The new tokens among the rows of the cache.
#[derive(Clone, Copy)]
pub(super) struct TokenOrder<'w> {
    /// The row of the first new token.
    pub(super) position: &'w Wire,
    /// Shape [c, c]: 1 where the token of a row sees that of the column, else 0. `None` if they come one after the other.
    pub(super) tree: Option<&'w Wire>,
}

/// Attention of c new tokens over n rows of the KV cache.
///
/// Token i sees rows up to `position + i`, or those before `position` and what the tree says, or all rows of the c tokens.
/// Only fixed sizes have trees, and only dynamic ones texts that are seen as a whole.
pub(super) fn attention(
    ir: &mut Ir<'_>,
    operands: &[Wire],
    order: TokenOrder<'_>,
    a: &Attention,
) -> Wire {
    let [query, key, value] = operands else {
        return order.position.clone();
    };
    let [key, value] = [key, value].map(|rows| ir.convert(rows, query.element));
    let (key, value) = (&key, &value);
    match (query.shape[0], key.shape[0]) {
        (Dim::Fixed(tokens), Dim::Fixed(context)) => {
            let size = Size { tokens, context };
            by_heads(ir, [query, key, value], order, size, a)
        }
        _ => by_groups(ir, [query, key, value], order.position, a),
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
    order: TokenOrder<'_>,
    size: Size,
    a: &Attention,
) -> Wire {
    let query = ir.times(query, a.scale);
    let parts = |heads: u32| vec![a.head_dim; heads as usize];
    let queries = ir.split(&query, &parts(a.heads));
    let keys = ir.split(key, &parts(a.kv_heads));
    let values = ir.split(value, &parts(a.kv_heads));
    let position = ir.convert(order.position, Element::I32);
    let mask = match order.tree {
        Some(tree) => mask_of_tree(ir, size, [&position, tree], a.window),
        None => mask_of_size(ir, size, &position, a.window, &query),
    };
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
    if a.sight == Sight::Whole {
        return mask_of_whole(ir, [&tokens, &context, position], query, key.shape[0]);
    }
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

/// The mask of tokens that see all rows of their text, shape [1, n]: it hides rows behind the text.
fn mask_of_whole(
    ir: &mut Ir<'_>,
    [tokens, context, position]: [&Wire; 3],
    like: &Wire,
    rows: Dim,
) -> Wire {
    let end = ir.add(tokens, position);
    let columns = ir.range(context, rows);
    let columns = ir.unsqueeze(&columns, 0);
    let visible = ir.compare("Less", &columns, &end);
    let (zero, hidden) = (ir.float_like(0.0, like), ir.float_like(HIDDEN, like));
    ir.select(&visible, &zero, &hidden)
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
    let rows = ir.counting(size.tokens);
    let rows = ir.add(&rows, position);
    let rows = ir.unsqueeze(&rows, 1);
    let columns = ir.counting(size.context);
    let columns = ir.unsqueeze(&columns, 0);
    let width = window.map(|window| ir.integer(window));
    causal_mask(ir, &rows, &columns, width.as_ref(), like)
}

/// The mask for fixed sizes of tokens that may be a tree, shape [c, n]. They lie in the cache in the order of the call,
/// from `position` on, but a token's place in the text is its depth: what a window is counted by.
///
/// What a token does not see of the call is hidden by a product of [c, c] and [c, n], in which each column has one term.
/// Operators on [c, n] other than products cost the NPU more than a head, so there are few of them: by its compiler's
/// estimate 32 tokens over 512 rows take 0.53 ms in place of 0.48, over 2048 rows 1.34 in place of 1.39 (24/8 heads of 128,
/// platform 3720). With booleans joined by `LogicalOr` it was 1.28 ms over 512 rows.
fn mask_of_tree(
    ir: &mut Ir<'_>,
    size: Size,
    [position, tree]: [&Wire; 2],
    window: Option<u32>,
) -> Wire {
    let columns = ir.counting(size.context);
    let columns = ir.unsqueeze(&columns, 0);
    let tokens = ir.counting(size.tokens);
    let tokens = ir.add(&tokens, position);
    let tokens = ir.unsqueeze(&tokens, 1);
    let (one, zero) = (ir.float_like(1.0, tree), ir.float_like(0.0, tree));
    let hidden = ir.float_like(HIDDEN, tree);
    let depths = window.map(|window| Depths::new(ir, tree, window));
    let seen = match &depths {
        Some(depths) => {
            let is_near = ir.compare("Greater", &depths.of_others, &depths.first);
            ir.select(&is_near, tree, &zero)
        }
        None => tree.clone(),
    };
    let unseen = ir.subtract(&seen, &one);
    let unseen = ir.times(&unseen, -HIDDEN);
    let is_at = ir.compare("Equal", &columns, &tokens);
    let is_at = ir.select(&is_at, &one, &zero);
    let mask = ir.matmul(&unseen, &is_at, false);
    let end = ir.integer(size.tokens);
    let end = ir.add(position, &end);
    let is_known = ir.compare("Less", &columns, &end);
    let behind = ir.select(&is_known, &zero, &hidden);
    let mask = ir.add(&mask, &behind);
    let Some(depths) = depths else {
        return mask;
    };
    // A token that is near by its depth is nearer by its row.
    let first = ir.add(&depths.first, position);
    let is_near = ir.compare("Greater", &columns, &first);
    let far = ir.select(&is_near, &zero, &hidden);
    ir.least(&mask, &far)
}

/// The depths of a tree's tokens.
struct Depths {
    /// Shape [1, c].
    of_others: Wire,
    /// The depth before the first that each token sees, shape [c, 1].
    first: Wire,
}

impl Depths {
    fn new(ir: &mut Ir<'_>, tree: &Wire, window: u32) -> Self {
        let depth = ir.sum(tree);
        let depth = ir.convert(&depth, Element::I32);
        let one = ir.integer(1);
        let depth = ir.subtract(&depth, &one);
        let width = ir.integer(window);
        Self {
            of_others: ir.transpose(&depth, &[1, 0]),
            first: ir.subtract(&depth, &width),
        }
    }
}

/// The most negative finite f16.
const HIDDEN: f32 = -65504.0;

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
    let (zero, hidden) = (ir.float_like(0.0, like), ir.float_like(HIDDEN, like));
    ir.select(&visible, &zero, &hidden)
}
