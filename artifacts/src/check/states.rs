//! Checks of baked states: names, tokens and the lengths of pages. The heads of pages are checked by those who use them.

use super::check_nonzero;
use super::sections::Lengths;
use crate::error::Error;
use crate::manifest::{
    BEGINNING_BYTES_MAX, BakedState, ElementType, Manifest, STATE_HEAD_BYTES, STATE_NAME_MAX,
    STATES_MAX, StateForm,
};
use crate::references::Reference;

pub(super) fn check_states(manifest: &Manifest, lengths: &Lengths) -> Result<(), Error> {
    let states = &manifest.states;
    if states.len() > STATES_MAX {
        let found = format!("`{}` states", states.len());
        let expected = format!("at most `{STATES_MAX}`");
        return Err(Error::invalid("states", found, expected));
    }
    let mut before: Option<&str> = None;
    for (index, state) in states.iter().enumerate() {
        check_name(index, &state.name, before)?;
        before = Some(&state.name);
        check_beginning(index, state, lengths)?;
        check_tokens(index, state, manifest)?;
        check_form(index, state.form)?;
        for (number, page) in state.pages.iter().enumerate() {
            let expected = page_bytes(state, number, manifest);
            lengths.check_bytes(Reference::StatePage(index, number), *page, expected)?;
        }
    }
    Ok(())
}

/// Checks a name, which is also one of a part and so of a file. States are in the order of their names, each once.
fn check_name(index: usize, name: &str, before: Option<&str>) -> Result<(), Error> {
    let field = || format!("states[{index}].name");
    if !BakedState::is_name(name) {
        let found = format!("`{}`", name.escape_debug());
        let expected = format!("`1` to `{STATE_NAME_MAX}` of `a` to `z`, `0` to `9`, `-`, `_`");
        return Err(Error::invalid(field(), found, expected));
    }
    if before.is_some_and(|before| before >= name) {
        return Err(Error::invalid(
            field(),
            format!("`{name}`"),
            "ascending names",
        ));
    }
    Ok(())
}

fn check_beginning(index: usize, state: &BakedState, lengths: &Lengths) -> Result<(), Error> {
    let reference = Reference::StateBeginning(index);
    let found = lengths.of(reference, state.beginning)?;
    if found <= BEGINNING_BYTES_MAX {
        return Ok(());
    }
    let expected = format!("at most `{BEGINNING_BYTES_MAX}`");
    Err(Error::invalid(
        reference.to_string(),
        format!("`{found}` bytes"),
        expected,
    ))
}

/// Checks that tokens fill all pages but the last, of which they have some; that they leave room in the context, and are in
/// the vocabulary.
fn check_tokens(index: usize, state: &BakedState, manifest: &Manifest) -> Result<(), Error> {
    let field = |name: &str| format!("states[{index}].{name}");
    check_nonzero(|| field("page_tokens"), state.page_tokens.into())?;
    check_nonzero(|| field("pages.len()"), state.pages.len() as u64)?;
    let found = state.tokens.len() as u64;
    let room = |pages: usize| (pages as u64).saturating_mul(state.page_tokens.into());
    let (least, most) = (
        room(state.pages.len().saturating_sub(1)).saturating_add(1),
        room(state.pages.len()),
    );
    if !(least..=most).contains(&found) {
        let expected = format!("`{least}` to `{most}`, as many as its pages have");
        let found = format!("`{found}` tokens");
        return Err(Error::invalid(field("tokens"), found, expected));
    }
    let context = manifest.model.context_tokens;
    if found >= u64::from(context) {
        let expected = format!("fewer than `model.context_tokens`: `{context}`");
        let found = format!("`{found}` tokens");
        return Err(Error::invalid(field("tokens"), found, expected));
    }
    let vocab = manifest.model.vocab;
    let mut tokens = state.tokens.iter().enumerate();
    match tokens.find(|(_, token)| **token >= vocab) {
        None => Ok(()),
        Some((at, token)) => Err(Error::invalid(
            format!("states[{index}].tokens[{at}]"),
            format!("`{token}`"),
            format!("less than `model.vocab`: `{vocab}`"),
        )),
    }
}

fn check_form(index: usize, form: StateForm) -> Result<(), Error> {
    let StateForm {
        arithmetic: _,
        activations: _,
        kv_cache,
    } = form;
    match kv_cache {
        ElementType::I8 | ElementType::F16 | ElementType::Bf16 | ElementType::F32 => Ok(()),
        ElementType::I4 | ElementType::U4 | ElementType::I64 => Err(Error::invalid(
            format!("states[{index}].form.kv_cache"),
            format!("`{kv_cache:?}`"),
            "`I8`, `F16`, `Bf16` or `F32`",
        )),
    }
}

/// Bytes of the page of this number: its head, and keys and values of each layer for its tokens; `None` if they do not fit
/// in 64 bits.
fn page_bytes(state: &BakedState, number: usize, manifest: &Manifest) -> Option<u64> {
    let page_tokens = u64::from(state.page_tokens);
    let before = (number as u64).checked_mul(page_tokens)?;
    let tokens = (state.tokens.len() as u64)
        .checked_sub(before)?
        .min(page_tokens);
    let model = &manifest.model;
    let width = model.kv_heads.checked_mul(model.head_dim)?;
    let row = state.form.kv_cache.cache_row_bytes(width, model.head_dim)?;
    let half = row.checked_mul(tokens)?;
    let halves = (manifest.layers.len() as u64).checked_mul(2)?;
    half.checked_mul(halves)?.checked_add(STATE_HEAD_BYTES)
}
