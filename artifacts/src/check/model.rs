//! Checks of the model's dimensions, its text assets and its embedding.
//!
//! Dimensions are nonzero, heads come in whole groups, and the widths of ports that follow from them fit
//! their type. Token ids are within the vocabulary, and the embedding has the shape that the runtime
//! gathers from.

use super::{check_equal, check_name, check_nonzero};
use crate::error::Error;
use crate::manifest::{ElementType, Embedding, Model, Role, Text, TextVectors, Weight, WeightId};

/// Widths of activation rows, in elements.
pub(super) struct Widths {
    hidden: u32,
    query: u32,
    key: u32,
    vocab: u32,
    vector: u32,
}

impl Widths {
    /// The width that a port of this role must have; `None` if the rotary table decides.
    pub(super) fn of(&self, role: Role) -> Option<u32> {
        match role {
            Role::Hidden => Some(self.hidden),
            Role::Vector => Some(self.vector),
            Role::Query | Role::Attended => Some(self.query),
            Role::Key | Role::Value => Some(self.key),
            Role::Position => Some(1),
            Role::Logits => Some(self.vocab),
            Role::Cos | Role::Sin => None,
        }
    }
}

pub(super) fn check_model(model: &Model, vectors: Option<&TextVectors>) -> Result<Widths, Error> {
    let Model {
        name,
        architecture,
        weights: _,
        hidden,
        heads,
        kv_heads,
        head_dim,
        vocab,
        context_tokens,
        chunk_tokens,
        parameters,
    } = model;
    check_name(|| "model.name".to_owned(), name)?;
    check_name(|| "model.architecture".to_owned(), architecture)?;
    let dimensions = [
        ("hidden", *hidden),
        ("heads", *heads),
        ("kv_heads", *kv_heads),
        ("head_dim", *head_dim),
        ("vocab", *vocab),
        ("context_tokens", *context_tokens),
    ];
    for (field, found) in dimensions {
        check_nonzero(|| format!("model.{field}"), found.into())?;
    }
    check_nonzero(|| "model.parameters".to_owned(), *parameters)?;
    if !heads.is_multiple_of(*kv_heads) {
        let expected = format!("a multiple of `model.kv_heads`: `{kv_heads}`");
        return Err(Error::invalid(
            "model.heads",
            format!("`{heads}`"),
            expected,
        ));
    }
    check_chunks(chunk_tokens)?;
    let too_wide = || {
        let found = format!("`{head_dim}` with `{heads}` heads");
        Error::invalid(
            "model.head_dim",
            found,
            format!("a product of at most `{}`", u32::MAX),
        )
    };
    let query = heads.checked_mul(*head_dim).ok_or_else(too_wide)?;
    let key = kv_heads.checked_mul(*head_dim).ok_or_else(too_wide)?;
    Ok(Widths {
        hidden: *hidden,
        query,
        key,
        vocab: *vocab,
        vector: vectors.map_or(*hidden, |vectors| vectors.width(*hidden)),
    })
}

fn check_chunks(chunk_tokens: &[u32]) -> Result<(), Error> {
    if chunk_tokens.first() == Some(&0) || !chunk_tokens.is_sorted_by(|left, right| left < right) {
        let expected = "nonzero and strictly ascending";
        return Err(Error::invalid(
            "model.chunk_tokens",
            format!("{chunk_tokens:?}"),
            expected,
        ));
    }
    Ok(())
}

pub(super) fn check_text(text: &Text, model: &Model) -> Result<(), Error> {
    let Text {
        tokenizer: _,
        chat_template: _,
        special_tokens: _,
        eos_ids,
    } = text;
    for (index, id) in eos_ids.iter().enumerate() {
        if *id >= model.vocab {
            let expected = format!("less than `model.vocab`: `{}`", model.vocab);
            return Err(Error::invalid(
                format!("text.eos_ids[{index}]"),
                format!("`{id}`"),
                expected,
            ));
        }
    }
    Ok(())
}

pub(super) fn check_embedding(
    embedding: &Embedding,
    weights: &[Weight],
    (model, vectors): (&Model, Option<&TextVectors>),
) -> Result<(), Error> {
    let Embedding {
        table,
        scale,
        positions,
        token_types,
    } = embedding;
    if !scale.is_finite() {
        return Err(Error::invalid(
            "embedding.scale",
            format!("`{scale}`"),
            "a finite number",
        ));
    }
    let (index, weight) = weight_of("table", *table, weights)?;
    if weight.element == ElementType::I64 || weight.element.is_grouped() {
        return Err(Error::invalid(
            format!("weights[{index}].element"),
            format!("`{:?}`", weight.element),
            "numbers that a row of the embedding's table can have: `I8`, `F16`, `Bf16` or `F32`",
        ));
    }
    let (found, expected) = (
        format!("{:?}", weight.shape),
        format!("{:?}", [model.vocab, model.hidden]),
    );
    check_equal(
        || format!("weights[{index}].shape"),
        found,
        expected,
        "as the embedding's table",
    )?;
    let hidden = model.hidden;
    positions.map_or(Ok(()), |added| {
        let rows = (model.context_tokens, hidden);
        check_added("positions", added, weights, rows)
    })?;
    // A model that scores pairs has two types of tokens.
    let types = vectors.and_then(|vectors| vectors.scores).map_or(1, |_| 2);
    token_types.map_or(Ok(()), |added| {
        check_added("token_types", added, weights, (types, hidden))
    })
}

/// Checks a table whose rows are added to those of tokens: f32, as wide as they are, and at least as many rows as asked for.
fn check_added(
    field: &str,
    id: WeightId,
    weights: &[Weight],
    (rows_min, hidden): (u32, u32),
) -> Result<(), Error> {
    let (index, weight) = weight_of(field, id, weights)?;
    let [rows, width] = weight.shape.as_slice() else {
        let found = format!("{:?}", weight.shape);
        return Err(Error::invalid(
            format!("weights[{index}].shape"),
            found,
            "two dimensions: rows that are added to embeddings",
        ));
    };
    if weight.element == ElementType::F32 && *rows >= rows_min && *width == hidden {
        return Ok(());
    }
    let found = format!("{:?} of {:?}", weight.shape, weight.element);
    let expected =
        format!("at least {rows_min} rows of {hidden} in F32, which are added to embeddings");
    Err(Error::invalid(format!("weights[{index}]"), found, expected))
}

/// A weight of the embedding, with its index.
fn weight_of<'a>(
    field: &str,
    id: WeightId,
    weights: &'a [Weight],
) -> Result<(usize, &'a Weight), Error> {
    let index = usize::try_from(id.0).unwrap_or(usize::MAX);
    weights
        .get(index)
        .map(|weight| (index, weight))
        .ok_or_else(|| {
            let expected = format!("less than the number of weights: `{}`", weights.len());
            let field = format!("embedding.{field}");
            Error::invalid(field, format!("`{}`", id.0), expected)
        })
}
