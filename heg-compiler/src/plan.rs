//! From architecture and config to the HEG: everything about a model but its bytes.

use std::collections::BTreeSet;

use heg_spec::model::CONTEXT_TOKENS_DEFAULT;
use heg_spec::{Architecture, ModelSpec, WeightForm};

use crate::error::CompileError;
use crate::fuse::{fuse_head, fuse_layer};
use crate::graph::{Dims, Param, ParamKind, SpecScope, WeightSource, build_head, build_layer};
use crate::heg::Heg;
use crate::ingest::ConfigJson;
use crate::target::{SpecHash, Target};

/// A model, planned.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its architecture.
    pub architecture: Architecture,
    /// Its dimensions.
    pub dims: Dims,
    /// Longest context, in tokens.
    pub context_tokens: u32,
    /// Factor on embeddings.
    pub embedding_scale: f32,
    /// How matrices are stored.
    pub weights: WeightForm,
    /// Candidate chunks, in tokens.
    pub chunk_tokens: Vec<u32>,
    /// Rows of the KV cache that static attention is made for, ascending, none beyond the context.
    pub mha_context_tokens: Vec<u32>,
    /// The graph.
    pub heg: Heg,
    /// The spec files it was made from.
    pub(crate) specs: Vec<SpecHash>,
}

impl Plan {
    /// Plans `target` with its config.
    pub fn new(target: &Target, config: &ConfigJson) -> Result<Self, CompileError> {
        let (architecture, architecture_hash) = target.architecture(config)?;
        let fusion = target.fusion()?;
        let dims = Dims::bind(&architecture, config)?;
        let layers = (0..dims.layers)
            .map(|layer| {
                let graph = build_layer(&architecture, config, &dims, layer)?;
                let fused = fuse_layer(&graph, &fusion)?;
                Ok((graph, fused))
            })
            .collect::<Result<Vec<_>, CompileError>>()?;
        let head = build_head(&architecture, config, &dims)?;
        let fused_head = fuse_head(&head, &fusion)?;
        let heg = Heg::build(&layers, (&head, &fused_head))?;
        let scope = SpecScope::new(&architecture, config, None);
        let scale = architecture.embedding.scale.as_ref();
        let embedding_scale = scale.map_or(Ok(1.0), |scale| scope.number(scale))?;
        let context_tokens = context_tokens(&target.spec, &dims)?;
        Ok(Self {
            context_tokens,
            mha_context_tokens: buckets(&target.spec.mha_context_tokens, context_tokens),
            weights: target.spec.weights,
            chunk_tokens: target.spec.chunk_tokens.clone(),
            architecture,
            dims,
            embedding_scale,
            heg,
            specs: vec![architecture_hash, target.fusion_hash()],
        })
    }

    /// The embedding table as a weight.
    pub(crate) fn embedding(&self) -> Param {
        Param {
            slot: "embedding".to_owned(),
            source: WeightSource {
                name: self.architecture.embedding.weight.clone(),
                first_row: None,
            },
            kind: ParamKind::Matrix,
            shape: vec![self.dims.vocab, self.dims.hidden],
        }
    }

    /// Every distinct weight in order of first use, the embedding first.
    pub(crate) fn weights(&self) -> Vec<Param> {
        let mut seen = BTreeSet::new();
        let mut weights = Vec::new();
        let layers = self.heg.layers.iter().flatten();
        let used = layers
            .chain([&self.heg.head])
            .flat_map(|place| place.weights.iter().cloned());
        for param in std::iter::once(self.embedding()).chain(used) {
            if seen.insert(param.source.clone()) {
                weights.push(param);
            }
        }
        weights
    }

    /// Names of the rotary tables in use.
    pub(crate) fn rope_tables(&self) -> Vec<String> {
        let layers = self.heg.layers.iter().flatten();
        let mut names: Vec<String> = layers.filter_map(|place| place.rope.clone()).collect();
        names.sort();
        names.dedup();
        names
    }
}

fn context_tokens(spec: &ModelSpec, dims: &Dims) -> Result<u32, CompileError> {
    match spec.context_tokens {
        None => Ok(dims.context.min(CONTEXT_TOKENS_DEFAULT)),
        Some(asked) if (1..=dims.context).contains(&asked) => Ok(asked),
        Some(asked) => Err(CompileError::Context {
            asked,
            limit: dims.context,
        }),
    }
}

/// The asked-for buckets; those beyond the context become one of the whole context.
fn buckets(asked: &[u32], context_tokens: u32) -> Vec<u32> {
    let mut buckets: Vec<u32> = asked
        .iter()
        .map(|rows| (*rows).min(context_tokens))
        .collect();
    buckets.dedup();
    buckets
}

#[cfg(test)]
mod tests {
    use super::buckets;

    #[test]
    fn buckets_end_with_the_context() {
        let asked = [512, 1024, 2048, 4096];
        assert_eq!(buckets(&asked, 32_768), asked);
        assert_eq!(buckets(&asked, 4096), asked);
        assert_eq!(buckets(&asked, 1500), [512, 1024, 1500]);
        assert_eq!(buckets(&asked, 256), [256]);
        assert_eq!(buckets(&[], 256), [0; 0]);
    }
}
