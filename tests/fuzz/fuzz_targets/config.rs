//! Reads arbitrary bytes as a model's `config.json`, and plans the model that it describes.
//!
//! A plan is a promise: heads and widths that multiply without overflow, a context, a kernel for every place.

use std::path::{Path, PathBuf};

use heg_compiler::{CompileError, Plan, Target, Verify};
use heg_ingest::ConfigJson;
use heg_spec::ModelSpec;

pub(crate) fn run(input: &[u8]) {
    let Ok(config) = ConfigJson::parse(Path::new("config.json"), input) else {
        return;
    };
    // A model with a huge number of layers takes longer in proportion, and shows nothing else.
    if !matches!(config.count("num_hidden_layers"), Ok(Some(0..=LAYERS_MAX))) {
        return;
    }
    let spec = ModelSpec::of_folder("fuzz".to_owned(), PathBuf::from("."));
    let target = Target::new(spec, PathBuf::from("."));
    let plan = match Plan::new(&target, &config, Verify::Always) {
        Ok(plan) => plan,
        Err(CompileError::BrokenInvariant(broken)) => panic!("{broken}"),
        Err(_) => return,
    };
    let dims = &plan.dims;
    assert!(u64::from(dims.layers) <= LAYERS_MAX);
    assert_eq!(plan.heg.layers.len() as u64, u64::from(dims.layers));
    assert!(dims.heads > 0 && dims.heads.is_multiple_of(dims.kv_heads));
    assert!(dims.heads.checked_mul(dims.head_dim).is_some());
    assert!(plan.context_tokens > 0);
    assert!(
        plan.mha_context_tokens
            .iter()
            .all(|rows| *rows <= plan.context_tokens)
    );
}

const LAYERS_MAX: u64 = 8;
