//! The products of a model that may be cut, by the shapes of its kernels' weights.

use heg_artifacts::manifest::{Kernel, Model, Parameter};
use heg_spec::{CutProduct, Group};

use super::{CutShape, PartitionError};

/// The products of a model, in execution order. Every layer has the same, so that a layer's are enough.
///
/// Error: [`PartitionError::Parameters`] where a kernel has not the matrices of a gated layer.
pub fn products(model: &Model, kernels: &[Kernel]) -> Result<Vec<CutShape>, PartitionError> {
    let qkv = matrices(kernels, Group::Qkv, 3)?;
    let ffn = matrices(kernels, Group::Ffn, 4)?;
    let head = matrices(kernels, Group::Head, 1)?;
    // A group of heads is the queries of a key-value head, its key and its value.
    let group_heads = (model.heads / model.kv_heads.max(1)).saturating_add(2);
    let heads_rows = group_heads.saturating_mul(model.head_dim);
    let mut found = vec![
        stacked(CutProduct::Qkv, &qkv, heads_rows),
        stacked(CutProduct::Out, ffn.get(..1).unwrap_or_default(), 1),
        paired(CutProduct::GateUp, ffn.get(1..3).unwrap_or_default()),
        stacked(CutProduct::Down, ffn.get(3..).unwrap_or_default(), 1),
        stacked(CutProduct::Head, &head, 1),
    ];
    found.retain(|shape| shape.rows > 0 && shape.depth > 0);
    Ok(found)
}

/// The matrices among the parameters of the first kernel of a group.
fn matrices(
    kernels: &[Kernel],
    group: Group,
    expected: usize,
) -> Result<Vec<&Parameter>, PartitionError> {
    let kernel = kernels.iter().find(|kernel| kernel.group == group);
    let parameters = kernel.map_or(&[][..], |kernel| &kernel.parameters);
    let matrices: Vec<&Parameter> = parameters.iter().filter(|it| it.shape.len() == 2).collect();
    match matrices.len() == expected {
        true => Ok(matrices),
        false => Err(PartitionError::Parameters {
            group,
            found: matrices.len(),
            expected,
        }),
    }
}

/// Matrices whose rows follow each other.
fn stacked(product: CutProduct, matrices: &[&Parameter], unit_rows: u32) -> CutShape {
    let rows = matrices.iter().map(|it| side(it, 0));
    let rows = rows.fold(0, u32::saturating_add);
    shape(product, matrices, rows, (1, unit_rows))
}

/// Two matrices whose halves both take the same rows.
fn paired(product: CutProduct, matrices: &[&Parameter]) -> CutShape {
    let rows = matrices.iter().map(|it| side(it, 0)).min().unwrap_or(0);
    shape(product, matrices, rows, (2, 1))
}

fn shape(
    product: CutProduct,
    parameters: &[&Parameter],
    rows: u32,
    (matrices, unit_rows): (u32, u32),
) -> CutShape {
    let bytes: f64 = parameters.iter().map(|it| it.bytes() as f64).sum();
    CutShape {
        product,
        rows,
        depth: parameters.first().map_or(0, |it| side(it, 1)),
        matrices,
        unit_rows,
        row_bytes: bytes / f64::from(rows.max(1)),
    }
}

/// A dimension of a matrix.
fn side(parameter: &Parameter, dimension: usize) -> u32 {
    parameter.shape.get(dimension).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use crate::annotation::llama_3b;

    use super::*;

    #[test]
    fn the_products_of_a_layer_come_from_its_parameters() {
        let mut manifest = llama_3b::manifest();
        let found = products(&manifest.model, &manifest.kernels).unwrap();
        let shapes: Vec<(&str, u32, u32, u32)> = found
            .iter()
            .map(|it| (it.product.name(), it.rows, it.depth, it.row_step(256)))
            .collect();
        // Three queries of a key-value head, its key and its value, of 128 rows each.
        assert_eq!(
            shapes,
            [
                ("qkv", 5120, 3072, 640),
                ("out", 3072, 3072, 256),
                ("gate-up", 8192, 3072, 256),
                ("down", 3072, 8192, 256),
                ("head", 128_256, 3072, 256),
            ]
        );
        let bytes: f64 = found
            .iter()
            .map(|it| it.row_bytes * f64::from(it.rows))
            .sum();
        let parameters = manifest
            .kernels
            .iter()
            .flat_map(|kernel| &kernel.parameters);
        let matrices = parameters.filter(|it| it.shape.len() == 2);
        assert!((bytes - matrices.map(|it| it.bytes() as f64).sum::<f64>()).abs() < 1.0);
        for kernel in &mut manifest.kernels {
            kernel.parameters.truncate(2);
        }
        let refused = products(&manifest.model, &manifest.kernels)
            .unwrap_err()
            .to_string();
        assert!(refused.contains("expected 3 matrices"), "{refused}");
    }
}
