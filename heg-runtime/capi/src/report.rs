//! Reports of an engine and of an answer, as JSON. Fields may be added; those that are there keep their meaning.

use heg_runtime::engine::{Ending, Health, Phases};
use heg_runtime::summary;
use heg_runtime::text::ToolCall;
use serde_json::{Value, json};

use crate::failure::InterfaceError;
use crate::opened::OpenedBundle;

/// An answer that is over.
pub(crate) struct Ended<'a> {
    pub(crate) ending: &'a Ending,
    pub(crate) finish_reason: &'static str,
    pub(crate) thought: Option<&'a str>,
    pub(crate) text: &'a str,
    pub(crate) token_ids: &'a [u32],
    pub(crate) tool_calls: Option<Vec<ToolCall>>,
    pub(crate) prompt_tokens: usize,
}

/// The JSON of `heg_describe`.
pub(crate) fn model(opened: &OpenedBundle) -> Value {
    let model = &opened.engine.manifest().model;
    json!({
        "name": model.name,
        "architecture": model.architecture,
        "weights": model.weights.to_string(),
        "parameters": model.parameters,
        "vocabulary": model.vocab,
        "context_tokens": model.context_tokens,
        "kv_tokens": opened.engine.kv_tokens(),
        "bundle": opened.loaded.bundle().manifest_id().to_string(),
        "fingerprint": opened.engine.fingerprint(),
        "chat": opened.template().is_ok(),
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// The JSON of `heg_status`.
pub(crate) fn status(opened: &OpenedBundle) -> Result<Value, InterfaceError> {
    let status = opened.engine.status()?;
    let (health, why) = match opened.engine.health() {
        Health::Loading => ("loading", None),
        Health::Ready => ("ready", None),
        Health::Degraded(lost) => {
            let why: Vec<String> = lost.into_iter().map(|lane| lane.why).collect();
            ("degraded", Some(why.join("; ")))
        }
        Health::Failed(why) => ("failed", Some(why)),
    };
    let phases = |phases: Phases| {
        json!({
            "queued": phases.queued,
            "prefilling": phases.prefilling,
            "decoding": phases.decoding,
        })
    };
    let kept = status.kept.map(|kept| {
        json!({
            "found": kept.found,
            "absent": kept.absent,
            "read_tokens": kept.read_tokens,
            "written_pages": kept.written_pages,
            "trouble": kept.trouble,
        })
    });
    let baked = status.baked.map(|baked| {
        let tokens: u64 = baked.read_tokens.iter().map(|(_, tokens)| tokens).sum();
        json!({"found": baked.found, "read_tokens": tokens, "trouble": baked.trouble})
    });
    Ok(json!({
        "health": health,
        "why": why,
        "reactive": phases(status.reactive),
        "proactive": phases(status.proactive),
        "kv_bytes": status.kv_bytes,
        "kv_budget_bytes": status.kv_budget_bytes,
        "flows_kept": status.flows_kept,
        "prompt_tokens": status.prompt_tokens,
        "reused_tokens": status.reused_tokens,
        "generated_tokens": status.generated_tokens,
        "drafted_tokens": status.drafted_tokens,
        "accepted_tokens": status.accepted_tokens,
        "finished": status.finished,
        "kept": kept,
        "baked": baked,
        "not_kept": opened.engine.not_kept(),
        "descents": summary(&opened.engine.descents()),
    }))
}

/// The JSON of `heg_ending`.
pub(crate) fn ending(ended: &Ended<'_>) -> Value {
    let ending = ended.ending;
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let mut told = json!({
        "finish_reason": ended.finish_reason,
        "text": ended.text,
        "token_ids": ended.token_ids,
        "prompt_tokens": ended.prompt_tokens,
        "reused_tokens": ending.reused_tokens,
        "kept_tokens": ending.kept_tokens,
        "baked_tokens": ending.baked_tokens,
        "queued_ms": ms(ending.queued),
        "ttft_ms": ms(ending.ttft),
        "decode_ms": ms(ending.decode),
    });
    if let Some(thought) = ended.thought {
        told["reasoning_content"] = thought.into();
    }
    if let Some(calls) = &ended.tool_calls {
        told["tool_calls"] = json!(calls);
    }
    if let Some(drafts) = ending.drafts {
        told["drafted_tokens"] = drafts.drafted_tokens.into();
        told["accepted_tokens"] = drafts.accepted_tokens.into();
    }
    told
}
