//! Provenance: versions, and the hashes of the files that went into a bundle.

use std::collections::BTreeMap;

use heg_artifacts::SectionId;
use heg_artifacts::manifest::Provenance;

use crate::plan::Plan;
use heg_ingest::{ConfigJson, TextAssets};

/// The provenance of a bundle; every hash is of the bytes that were compiled.
pub(crate) fn provenance(
    (config_name, config): (&'static str, &ConfigJson),
    text: &TextAssets,
    plan: &Plan,
    npu_compiler: Option<String>,
) -> Provenance {
    let config = (config_name, config.source_hash());
    let files = text.source_hashes.iter().map(|(name, hash)| (*name, *hash));
    let inputs: BTreeMap<String, SectionId> = files
        .chain([config])
        .map(|(name, hash)| (name.to_owned(), SectionId::from(hash)))
        .chain(plan.specs.iter().cloned())
        .collect();
    Provenance {
        compiler: concat!("heg-compiler ", env!("CARGO_PKG_VERSION")).to_owned(),
        openvino: OPENVINO_IR.to_owned(),
        npu_compiler,
        inputs,
    }
}

/// The OpenVINO release whose IR is written.
const OPENVINO_IR: &str = "2026.4.1";
