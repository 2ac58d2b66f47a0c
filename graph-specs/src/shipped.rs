//! The spec files that ship with HEG, embedded so that a binary needs no folder beside it.

use crate::architecture::Architecture;
use crate::error::{SpecError, nearest};
use crate::fusion::Fusion;
use crate::policy::Policy;
use crate::soc::Soc;
use crate::source::Source;

macro_rules! shipped {
    ($folder:literal: $($name:literal),+) => {
        &[$(($name, include_str!(concat!("../", $folder, "/", $name, ".ron")))),+]
    };
}

/// Shipped architecture files: name and text.
pub const ARCHITECTURES: &[(&str, &str)] = shipped!("architectures":
    "bert", "bert_reranker", "gemma2", "gemma3", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3");

/// Shipped fusion plans: name and text.
pub const FUSIONS: &[(&str, &str)] = shipped!("fusions": "agent-xpu");

/// Shipped SoC files: name and text.
pub const SOCS: &[(&str, &str)] = shipped!("socs":
    "core-ultra-5-125h", "core-ultra-7-258v", "core-ultra-x7-358h", "host-cpu", "host-cpu-f32",
    "host-cpu-gpu", "host-cpu-openvino", "host-gpu", "host-pair", "host-pair-gpu", "host-pair-npu",
    "host-roles", "host-roles-openvino", "snapdragon-8-gen3");

/// Shipped policy files: name and text.
pub const POLICIES: &[(&str, &str)] = shipped!("policies":
    "agent-xpu", "agent-xpu-one-device", "agent-xpu-pair", "agent-xpu-quiet", "agent-xpu-v1", "cpu-continuous-batching",
    "cpu-priority-batching", "heterollm-layer", "heterollm-tensor", "igpu-continuous-batching", "sd-npu");

/// The architecture called `name`.
pub fn architecture(name: &str) -> Result<Architecture, SpecError> {
    let text = find("architecture", ARCHITECTURES, name)?;
    let file = format!("graph-specs/architectures/{name}.ron");
    Architecture::parse(Source { file: &file, text })
}

/// The architecture whose `model_types` has `model_type`: the one for a class of `classes` if there is one, or else
/// that for all classes.
pub fn architecture_of(model_type: &str, classes: &[&str]) -> Result<Architecture, SpecError> {
    let (mut known, mut general) = (Vec::new(), None);
    for (name, _) in ARCHITECTURES {
        let architecture = architecture(name)?;
        if architecture.model_types.iter().any(|t| t == model_type) {
            let is_named = |class: &String| classes.contains(&class.as_str());
            if architecture.classes.iter().any(is_named) {
                return Ok(architecture);
            }
            if architecture.classes.is_empty() {
                general = general.or(Some(architecture));
            }
        } else if architecture.classes.is_empty() {
            known.extend(architecture.model_types);
        }
    }
    general.ok_or_else(|| unknown("model type", model_type, known))
}

/// The fusion plan called `name`.
pub fn fusion(name: &str) -> Result<Fusion, SpecError> {
    let text = find("fusion plan", FUSIONS, name)?;
    let file = format!("graph-specs/fusions/{name}.ron");
    Fusion::parse(Source { file: &file, text })
}

/// The SoC called `name`.
pub fn soc(name: &str) -> Result<Soc, SpecError> {
    let text = find("SoC", SOCS, name)?;
    let file = format!("graph-specs/socs/{name}.ron");
    Soc::parse(Source { file: &file, text })
}

/// The policy called `name`.
pub fn policy(name: &str) -> Result<Policy, SpecError> {
    let text = find("policy", POLICIES, name)?;
    let file = format!("graph-specs/policies/{name}.ron");
    Policy::parse(Source { file: &file, text })
}

fn find(
    kind: &'static str,
    files: &[(&str, &'static str)],
    name: &str,
) -> Result<&'static str, SpecError> {
    let found = files.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| {
        unknown(
            kind,
            name,
            files.iter().map(|(n, _)| (*n).to_owned()).collect(),
        )
    })
}

fn unknown(kind: &'static str, found: &str, known: Vec<String>) -> SpecError {
    let nearest = nearest(found, known.iter().map(String::as_str)).map(str::to_owned);
    SpecError::Unknown {
        kind,
        found: found.to_owned(),
        known,
        nearest,
    }
}
