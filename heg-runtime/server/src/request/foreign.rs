//! Fields of other runtimes, which their clients send to this one too.
//!
//! A field that changes no answer here is ignored, and named in the response (`heg-ignored-fields`). One that would change
//! it becomes a field of ours, or a variable of the chat template; or it is refused, unless its value asks for what
//! happens anyway.

use serde_json::{Map, Value};

use crate::error::{ApiError, Result};
use crate::fields::{Fields, describe};

/// Fields that change nothing in an answer.
pub(super) const WITHOUT_EFFECT: [&str; 30] = [
    // OpenAI.
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "store",
    "user",
    "verbosity",
    // llama.cpp: prefixes are always reused, contexts never shifted, and there are no slots.
    "cache_prompt",
    "id_slot",
    "n_cache_reuse",
    "n_discard",
    "n_keep",
    "return_progress",
    "timings_per_token",
    // llama.cpp: bounds and scales of samplers that are off, as checked below.
    "dry_allowed_length",
    "dry_base",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_exponent",
    "min_keep",
    "mirostat_eta",
    "mirostat_tau",
    "xtc_threshold",
    // Ollama: the model is always loaded, and a prompt that does not fit is refused, never cut.
    "keep_alive",
    "num_batch",
    "num_ctx",
    "num_gpu",
    "num_thread",
    // vLLM and OpenRouter: special tokens are in no text, and there is one provider.
    "provider",
    "spaces_between_special_tokens",
];

/// Names of other runtimes for fields of ours.
const SYNONYMS: [(&str, &str); 5] = [
    ("max_new_tokens", "max_tokens"),
    ("n_predict", "max_tokens"),
    ("num_predict", "max_tokens"),
    ("repeat_penalty", "repetition_penalty"),
    ("typ_p", "typical_p"),
];

/// A field with a value that asks for what happens anyway; others are refused.
struct Neutral {
    field: &'static str,
    is_neutral: fn(&Value) -> bool,
    /// The limit of this server, behind "this server".
    limit: &'static str,
}

const NEUTRAL: [Neutral; 16] = [
    neutral(
        "add_generation_prompt",
        is_true,
        "answers with a new message",
    ),
    neutral("bad_words", is_nothing, "bans tokens by `logit_bias`"),
    neutral(
        "continue_final_message",
        is_false,
        "answers with a new message",
    ),
    neutral("dry_multiplier", is_zero, NO_SAMPLER),
    neutral("dynatemp_range", is_zero, NO_SAMPLER),
    neutral(
        "include_stop_str_in_output",
        is_false,
        "cuts stop texts off",
    ),
    neutral("length_penalty", is_one, NO_BEAMS),
    neutral(
        "min_tokens",
        is_zero,
        "has no least number of tokens (`ignore_eos`)",
    ),
    neutral("mirostat", is_zero, NO_SAMPLER),
    neutral(
        "skip_special_tokens",
        is_true,
        "has no special tokens in texts",
    ),
    neutral("stop_token_ids", is_nothing, "stops at texts (`stop`)"),
    neutral("tfs_z", is_one, NO_SAMPLER),
    neutral("top_n_sigma", is_zero_or_less, NO_SAMPLER),
    neutral("typical_p", is_one, NO_SAMPLER),
    neutral("use_beam_search", is_false, NO_BEAMS),
    neutral("xtc_probability", is_zero, NO_SAMPLER),
];

const NO_SAMPLER: &str = "samples by temperature, top_k, top_p and min_p";
const NO_BEAMS: &str = "samples one continuation of each answer";

const fn neutral(
    field: &'static str,
    is_neutral: fn(&Value) -> bool,
    limit: &'static str,
) -> Neutral {
    Neutral {
        field,
        is_neutral,
        limit,
    }
}

/// Makes fields of ours of those of other runtimes, and returns the names of those that have no effect here.
///
/// # Errors
///
/// [`ApiError::Unsupported`] for a value that would change the answer in a way that is not there.
pub(super) fn translate(fields: &mut Fields) -> Result<Vec<&'static str>> {
    for (name, value) in fields.map("options")?.unwrap_or_default() {
        // Ollama's settings, which its own route has one level deeper.
        fields.add(&name, value);
    }
    for (theirs, ours) in SYNONYMS {
        match fields.take(theirs) {
            // No bound, in the notations of Ollama and llama.cpp.
            Some(value) if ours == "max_tokens" && matches!(value.as_i64(), Some(-2 | -1)) => {}
            Some(value) => fields.add(ours, value),
            None => {}
        }
    }
    for Neutral {
        field,
        is_neutral,
        limit,
    } in NEUTRAL
    {
        fields.only(field, is_neutral, limit)?;
    }
    Ok(without_effect(fields))
}

/// Takes the fields that change nothing, and returns their names.
pub(super) fn without_effect(fields: &mut Fields) -> Vec<&'static str> {
    let ignored = WITHOUT_EFFECT.into_iter();
    ignored.filter(|name| fields.take(name).is_some()).collect()
}

/// Takes fields that other interfaces have for what chat templates call variables. Returns their names with those of the
/// variables, for a template may read none of them.
///
/// # Errors
///
/// [`ApiError::Field`] for a value of another type.
pub(super) fn template_switches(
    fields: &mut Fields,
    variables: &mut Map<String, Value>,
) -> Result<Vec<Switch>> {
    let mut switches = Vec::new();
    let mut switch = |field, variable: &'static str, value: Value| {
        variables.entry(variable).or_insert(value);
        switches.push(Switch { field, variable });
    };
    for field in ["enable_thinking", "think"] {
        if let Some(is_on) = fields.flag(field)? {
            switch(field, "enable_thinking", is_on.into());
        }
    }
    if let Some(mut thinking) = fields.object("thinking")? {
        let kind = thinking.text("type")?;
        // Tokens that the model may think for: no template bounds them.
        thinking.take("budget_tokens");
        thinking.take("display");
        thinking.end()?;
        let is_on = kind.as_deref() != Some("disabled");
        switch("thinking", "enable_thinking", is_on.into());
    }
    if let Some(effort) = fields.text("reasoning_effort")? {
        switch("reasoning_effort", "reasoning_effort", effort.into());
    }
    if let Some(mut reasoning) = fields.object("reasoning")? {
        let effort = reasoning.text("effort")?;
        reasoning.take("summary");
        reasoning.end()?;
        if let Some(effort) = effort {
            switch("reasoning", "reasoning_effort", effort.into());
        }
    }
    Ok(switches)
}

/// A field that sets a variable of the chat template, or a field of messages that few templates read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// Name of the field.
    pub field: &'static str,
    /// Name of the variable, or of the field of messages.
    pub variable: &'static str,
}

/// Takes llama.cpp's number of tokens that penalties count; ours count all tokens of prompt or answer.
///
/// # Errors
///
/// [`ApiError::Unsupported`] for a number of tokens, if there are penalties.
pub(super) fn penalty_window(fields: &mut Fields, has_penalties: bool) -> Result<()> {
    match fields.integer("repeat_last_n")? {
        Some(tokens) if has_penalties && tokens != -1 => Err(ApiError::Unsupported {
            field: "repeat_last_n".to_owned(),
            found: describe(&tokens.into()),
            limit: "counts all tokens for penalties (-1)",
        }),
        _ => Ok(()),
    }
}

fn is_true(value: &Value) -> bool {
    value == &Value::Bool(true)
}

pub(super) fn is_false(value: &Value) -> bool {
    value == &Value::Bool(false)
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_zero_or_less(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number <= 0.0)
}

pub(super) fn is_nothing(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}
