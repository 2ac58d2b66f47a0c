//! Figures of the paper (HeteroLLM, section 5), for comparison with ours. `papers/heterollm.ron` describes each.

use super::super::cited::{self, Cited};
use anyhow::Result;
use serde::Deserialize;

/// A figure for each of several engines or models, by name.
type Named<T> = Vec<(String, T)>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figures {
    pub(super) tensor_256: Cited<[f64; 2]>,
    pub(super) tensor_over_layer_256: Cited<f64>,
    pub(super) layer_gains_256: Cited<Named<f64>>,
    pub(super) layer_over_second_256: Cited<f64>,
    pub(super) tensor_over_layer: Cited<[f64; 2]>,
    pub(super) tensor_1024: Cited<f64>,
    pub(super) tensor_gains_1024: Cited<Named<f64>>,
    pub(super) internlm_256: Cited<[f64; 2]>,
    pub(super) tensor_over_second_3b: Cited<f64>,
    pub(super) odd_525: Cited<[f64; 3]>,
    pub(super) past_a_size: Cited<f64>,
    pub(super) below_pipe: Cited<[f64; 2]>,
    pub(super) preparation_us: Cited<[(f64, f64); 2]>,
    pub(super) decode: Cited<Vec<(String, f64, f64)>>,
    pub(super) decode_gains: Cited<Vec<(String, String, f64)>>,
    pub(super) drawn: Cited<[f64; 2]>,
    pub(super) fast_prefill: Cited<Named<[f64; 2]>>,
    pub(super) fast_decode: Cited<Named<f64>>,
    pub(super) game_loss: Cited<[f64; 2]>,
    pub(super) game_over_layer: Cited<f64>,
    pub(super) layer_watts: Cited<f64>,
    pub(super) tensor_power: Cited<f64>,
    pub(super) tensor_energy: Cited<f64>,
    pub(super) energy_gain: Cited<f64>,
    pub(super) inconsistent: Vec<String>,
}

/// The paper's figures.
pub(super) fn figures() -> Result<Figures> {
    cited::read("HeteroLLM", include_str!("../../../papers/heterollm.ron"))
}
