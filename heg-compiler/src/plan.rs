//! From architecture and config to the HEG: everything about a model except its weights' bytes.

mod dump;
mod verify;

use std::collections::BTreeSet;
use std::fmt;

use heg_artifacts::manifest::TextVectors;
use heg_spec::architecture::{EmbeddingSpec, HeadRows, Op};
use heg_spec::model::CONTEXT_TOKENS_DEFAULT;
use heg_spec::{
    Architecture, KvForm, ModelSpec, Pooling, Sight, VectorLength, WeightForm, WeightName,
};

use crate::encode::{quant_form, weight_name};
use crate::error::CompileError;
use crate::fuse::{FusedOps, fuse_head, fuse_layer};
use crate::graph::{
    self, Dims, OpGraph, Param, ParamKind, SpecScope, WeightSource, build_head, build_layer,
};
use crate::heg::{self, Heg};
use crate::lower::group_columns;
use crate::options::Verify;
use crate::target::{SpecHash, Target};
use heg_ingest::{BlockFormat, Checkpoint, ConfigJson, PooledVectors, score_form};

/// The plan of a model.
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
    /// The tables of the embedding.
    pub(crate) embedding: EmbeddingParams,
    /// Storage form of matrices.
    pub weights: WeightForm,
    /// Form of keys and values that CPU programs keep beside integer weights.
    pub kv: KvForm,
    /// Candidate chunks, in tokens.
    pub chunk_tokens: Vec<u32>,
    /// Numbers of KV cache rows that static attention is compiled for, ascending, none beyond the context.
    pub mha_context_tokens: Vec<u32>,
    /// The HEG.
    pub heg: Heg,
    /// The spec files it was made from.
    pub(crate) specs: Vec<SpecHash>,
}

/// The tables that embeddings are made of.
#[derive(Debug, Clone)]
pub(crate) struct EmbeddingParams {
    /// A row for each token.
    pub(crate) tokens: Param,
    /// A row for each position, if there are any.
    pub(crate) positions: Option<Param>,
    /// A row for each kind of texts, if there are any.
    pub(crate) token_types: Option<Param>,
}

impl EmbeddingParams {
    fn bind(
        spec: &EmbeddingSpec,
        scope: &SpecScope<'_>,
        dims: &Dims,
    ) -> Result<Self, CompileError> {
        let param = |slot: &str, weight: &WeightName, kind, rows: u32| {
            Ok::<_, CompileError>(Param {
                slot: slot.to_owned(),
                source: WeightSource {
                    name: scope.weight_name(weight)?,
                    first_row: None,
                },
                kind,
                shape: vec![rows, dims.hidden],
            })
        };
        let positions = spec.positions.as_ref();
        let positions =
            positions.map(|weight| param("positions", weight, ParamKind::Vector, dims.context));
        let token_types = spec.token_types.as_ref().map(|types| {
            let count = scope.count(&types.count)?;
            param("token_types", &types.weight, ParamKind::Vector, count)
        });
        Ok(Self {
            tokens: param("embedding", &spec.weight, ParamKind::Table, dims.vocab)?,
            positions: positions.transpose()?,
            token_types: token_types.transpose()?,
        })
    }

    /// All tables, that of tokens first.
    fn all(&self) -> impl Iterator<Item = &Param> {
        let added = [&self.positions, &self.token_types];
        std::iter::once(&self.tokens).chain(added.into_iter().flatten())
    }
}

/// The operator graphs of a model, each with the kernels that it was cut into.
#[derive(Debug, Clone)]
pub(crate) struct Graphs {
    architecture: Architecture,
    dims: Dims,
    layers: Vec<(OpGraph, Vec<FusedOps>)>,
    head: (OpGraph, Vec<FusedOps>),
    specs: Vec<SpecHash>,
}

impl Graphs {
    /// Builds and fuses the graphs of all layers and of the head.
    pub(crate) fn build(
        target: &Target,
        config: &ConfigJson,
        verify: Verify,
    ) -> Result<Self, CompileError> {
        let (architecture, architecture_hash) = target.architecture(config)?;
        let fusion = target.fusion()?;
        let dims = Dims::bind(&architecture, config)?;
        let checked = |graph: OpGraph, fused: Vec<FusedOps>| {
            if verify.is_on() {
                graph::verify(&graph)?;
                heg::verify_fused(&graph, &fused)?;
            }
            Ok::<_, CompileError>((graph, fused))
        };
        let layers = (0..dims.layers).map(|layer| {
            let graph = build_layer(&architecture, config, &dims, layer)?;
            let fused = fuse_layer(&graph, &fusion)?;
            checked(graph, fused)
        });
        let layers = layers.collect::<Result<_, _>>()?;
        let head = build_head(&architecture, config, &dims)?;
        let fused = fuse_head(&head, &fusion)?;
        let head = checked(head, fused)?;
        Ok(Self {
            architecture,
            dims,
            layers,
            head,
            specs: vec![architecture_hash, target.fusion_hash()],
        })
    }
}

impl fmt::Display for Graphs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (layer, (graph, _)) in self.layers.iter().enumerate() {
            writeln!(f, "layer {layer}\n{graph}")?;
        }
        write!(f, "head\n{}", self.head.0)
    }
}

impl Plan {
    /// Plans `target` with its config.
    ///
    /// # Errors
    ///
    /// [`CompileError`] for a spec or a config that does not describe a model.
    pub fn new(target: &Target, config: &ConfigJson, verify: Verify) -> Result<Self, CompileError> {
        let graphs = Graphs::build(target, config, verify)?;
        Self::of_graphs(target, config, graphs, verify)
    }

    /// Plans a model whose graphs have been built.
    pub(crate) fn of_graphs(
        target: &Target,
        config: &ConfigJson,
        graphs: Graphs,
        verify: Verify,
    ) -> Result<Self, CompileError> {
        let gives = graphs.architecture.gives;
        let heg = Heg::build(&graphs.layers, (&graphs.head.0, &graphs.head.1, gives))?;
        if verify.is_on() {
            heg::verify(&heg)?;
        }
        let Graphs {
            architecture,
            dims,
            specs,
            ..
        } = graphs;
        let scope = SpecScope::new(&architecture, config, None);
        let scale = architecture.embedding.scale.as_ref();
        let embedding_scale = scale.map_or(Ok(1.0), |scale| scope.number(scale))?;
        let embedding = EmbeddingParams::bind(&architecture.embedding, &scope, &dims)?;
        let context_tokens = context_tokens(&target.spec, &dims)?;
        let chunk_tokens = match sight(&architecture) {
            Sight::Causal => target.spec.chunk_tokens.clone(),
            // A text whose tokens see all of it is not cut.
            Sight::Whole => Vec::new(),
        };
        let plan = Self {
            context_tokens,
            mha_context_tokens: buckets(&target.spec.mha_context_tokens, context_tokens),
            weights: target.spec.weights,
            kv: target.spec.kv,
            chunk_tokens,
            architecture,
            dims,
            embedding_scale,
            embedding,
            heg,
            specs,
        };
        plan.check_groups()?;
        plan.check_kv()?;
        if verify.is_on() {
            verify::verify(&plan)?;
        }
        Ok(plan)
    }

    /// Checks that groups of columns divide the rows of all matrices that have groups.
    fn check_groups(&self) -> Result<(), CompileError> {
        let matrices = self.weights().into_iter();
        let matrices: Vec<(String, usize)> = matrices
            .filter(|param| group_columns(param.kind, self.weights).is_some())
            .map(|param| (weight_name(&param), param.shape[1] as usize))
            .collect();
        let form = quant_form(ParamKind::Matrix, self.weights);
        let all = matrices
            .iter()
            .fold(0, |all, (_, columns)| gcd(all, *columns));
        for (name, columns) in &matrices {
            form.check_columns(name, *columns, all)?;
        }
        Ok(())
    }

    /// Checks that keys and values of 8 bits stand beside integer weights: those of floats are exact.
    fn check_kv(&self) -> Result<(), CompileError> {
        match self.kv {
            KvForm::I8 if !self.weights.is_integer() => Err(CompileError::Kv {
                weights: self.weights,
            }),
            KvForm::I8 | KvForm::Bf16 => Ok(()),
        }
    }

    /// Adopts the form of a file's 4-bit groups: there are no centres if all matrices are Q4_0.
    ///
    /// # Errors
    ///
    /// [`CompileError::Quant`] if the requested groups are not the file's.
    pub(crate) fn take_form_of(&mut self, checkpoint: &Checkpoint) -> Result<(), CompileError> {
        let WeightForm::W4A16 { symmetric, .. } = &mut self.weights else {
            return Ok(());
        };
        let params = self
            .heg
            .layers
            .iter()
            .flatten()
            .flat_map(|place| &place.weights);
        let matrices = params.filter(|param| param.kind == ParamKind::Matrix);
        let matrices = matrices.map(|param| checkpoint.tensor(&param.source.name));
        let matrices: Vec<_> = matrices.collect::<Result<_, _>>()?;
        let mut formats = matrices.iter().map(|tensor| tensor.block_format());
        *symmetric |= formats.all(|format| format == Some(BlockFormat::Q4_0));
        let form = quant_form(ParamKind::Matrix, self.weights);
        for matrix in &matrices {
            form.check_blocks(matrix)?;
        }
        Ok(())
    }

    /// The tokens that a token sees.
    pub(crate) fn sight(&self) -> Sight {
        sight(&self.architecture)
    }

    /// The vectors or scores that the model gives for texts, if it does; `pooled` is what its folder says.
    ///
    /// # Errors
    ///
    /// [`CompileError::NoPooling`] if it gives vectors, and its folder does not say how they are pooled;
    /// [`CompileError::Ingest`] if it gives scores, and its config asks for a form that is unknown.
    pub(crate) fn vectors(
        &self,
        pooled: Option<PooledVectors>,
        config: &ConfigJson,
    ) -> Result<Option<TextVectors>, CompileError> {
        let sight = self.sight();
        match (self.architecture.gives, pooled) {
            (HeadRows::Logits, _) => Ok(None),
            (HeadRows::Scores, _) => Ok(Some(TextVectors {
                pooling: Pooling::First,
                length: VectorLength::Pooled,
                sight,
                scores: Some(score_form(config)?),
            })),
            (HeadRows::Vectors, None) => Err(CompileError::NoPooling {
                architecture: self.architecture.name.clone(),
            }),
            (HeadRows::Vectors, Some(PooledVectors { pooling, length })) => Ok(Some(TextVectors {
                pooling,
                length,
                sight,
                scores: None,
            })),
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
        for param in self.embedding.all().cloned().chain(used) {
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

/// The tokens that a token of an architecture sees.
fn sight(architecture: &Architecture) -> Sight {
    let mut ops = architecture.layer.iter().map(|operator| &operator.1);
    let found = ops.find_map(|op| match op {
        Op::Attention { sight, .. } => Some(*sight),
        _ => None,
    });
    found.unwrap_or_default()
}

/// The greatest common divisor; for 0 and a number, the number.
fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}

fn context_tokens(spec: &ModelSpec, dims: &Dims) -> Result<u32, CompileError> {
    let default = dims.context.min(CONTEXT_TOKENS_DEFAULT);
    let asked = spec.context_tokens.unwrap_or(default);
    match (CONTEXT_TOKENS_MIN..=dims.context).contains(&asked) {
        true => Ok(asked),
        false => Err(CompileError::Context {
            asked,
            limit: dims.context,
        }),
    }
}

/// The shortest context that gives an answer: one token of a prompt, and one of its answer.
const CONTEXT_TOKENS_MIN: u32 = 2;

/// The requested buckets; those beyond the context become one of the whole context.
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
