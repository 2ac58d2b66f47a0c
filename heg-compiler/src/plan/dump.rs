//! Prints a plan as stable text, for people and snapshots.

use std::collections::BTreeMap;
use std::fmt;

use heg_spec::WeightForm;

use super::Plan;
use crate::encode::weight_name;
use crate::graph::Param;
use crate::heg::Use;
use crate::lower::{group_columns, is_centred, stored_element};
use crate::variants::variants;

impl fmt::Display for Plan {
    /// Writes dimensions, the variants of each kernel, the weights as they will be stored, and the uses of each layer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims = &self.dims;
        writeln!(
            f,
            "{}: {} layers, hidden {}, {}/{} heads of {}, vocab {}, context {}, weights {:?}",
            self.architecture.name,
            dims.layers,
            dims.hidden,
            dims.heads,
            dims.kv_heads,
            dims.head_dim,
            dims.vocab,
            self.context_tokens,
            self.weights
        )?;
        for kernel in &self.heg.kernels {
            writeln!(f, "kernel {}", kernel.name)?;
            for variant in variants(self, kernel.group) {
                let lowering = variant.lowering;
                write!(
                    f,
                    "  {:<4} {:<8} {:?} weights, activations {:?}",
                    variant.device.name(),
                    lowering.shape.to_string(),
                    lowering.binding,
                    lowering.activations
                )?;
                if let Some(kv_cache) = variant.kv_cache {
                    write!(f, ", KV cache {kv_cache:?}")?;
                }
                writeln!(f, ", tolerance {}", variant.tolerance)?;
            }
        }
        let weights = self.weights();
        for (index, weight) in weights.iter().enumerate() {
            let element = stored_element(weight.kind, self.weights);
            let (name, shape) = (weight_name(weight), &weight.shape);
            let integers = integers(weight, self.weights);
            writeln!(f, "weight {index} {name} {shape:?} {element:?}{integers}")?;
        }
        let ids: BTreeMap<_, _> = weights
            .iter()
            .zip(0..)
            .map(|(w, id)| (&w.source, id))
            .collect();
        let mut place = |at: String, used: &Use| {
            let kernel = self.heg.kernels.get(used.kernel);
            let kernel = kernel.map_or("?", |kernel| &kernel.name);
            let weights: Vec<Option<&i32>> =
                used.weights.iter().map(|w| ids.get(&w.source)).collect();
            let weights: Vec<&i32> = weights.into_iter().flatten().collect();
            write!(f, "{at} {kernel}{weights:?}")?;
            match &used.rope {
                Some(table) => writeln!(f, " rope {table}"),
                None => writeln!(f),
            }
        };
        for (layer, uses) in self.heg.layers.iter().enumerate() {
            for used in uses {
                place(format!("layer {layer}:"), used)?;
            }
        }
        place("head:".to_owned(), &self.heg.head)
    }
}

/// The storage of a weight's integers, to follow their type.
fn integers(param: &Param, form: WeightForm) -> String {
    let groups = group_columns(param.kind, form);
    let groups = groups.map_or(String::new(), |group| format!(" in groups of {group}"));
    match is_centred(param.kind, form) {
        true => groups + ", centred",
        false => groups,
    }
}
