//! Checks of fusion and of the HEG: every operator has a kernel, every kernel holds its operands, every place fits its
//! kernel, and both ends of a flow have the same width.

use std::collections::BTreeSet;

use heg_artifacts::manifest::{Port, Role};
use petgraph::Direction;
use petgraph::visit::EdgeRef;

use super::{Heg, KernelBody, Operand, Use};
use crate::fuse::FusedOps;
use crate::graph::{Op, OpGraph, OpId, Param, arity, check_shapes};
use crate::verify::{BrokenInvariant, Checks};

/// Checks the kernels that a graph was cut into: each operator is in one, or in several that recompute it; the
/// attention is in exactly one.
pub(crate) fn verify_fused(graph: &OpGraph, fused: &[FusedOps]) -> Result<(), BrokenInvariant> {
    for id in graph.ops() {
        let node = graph.op(id);
        let checks = Checks::new("fuse", format!("operator `{}`", node.name));
        let holders = fused.iter().filter(|kernel| kernel.ops.contains(&id));
        let holders: Vec<&str> = holders.map(|kernel| kernel.group.name()).collect();
        match &node.op {
            Op::Input => checks.holds(holders.is_empty(), "no kernel", &holders)?,
            Op::Attention(_) => checks.holds(holders.len() == 1, "one kernel", &holders)?,
            _ => checks.holds(!holders.is_empty(), "a kernel", &holders)?,
        }
    }
    for kernel in fused {
        let checks = Checks::new("fuse", format!("kernel `{}`", kernel.group.name()));
        let known: BTreeSet<OpId> = kernel.inputs.iter().chain(&kernel.ops).copied().collect();
        let read = kernel.ops.iter().flat_map(|id| graph.operands(*id));
        let foreign = read.chain(kernel.outputs.iter().copied());
        let foreign = foreign.filter(|id| !known.contains(id));
        let foreign: Vec<&str> = foreign.map(|id| graph.op(id).name.as_str()).collect();
        checks.holds(foreign.is_empty(), "nothing read from outside", foreign)?;
    }
    Ok(())
}

/// Checks the HEG of a model.
pub(crate) fn verify(heg: &Heg) -> Result<(), BrokenInvariant> {
    for kernel in &heg.kernels {
        verify_kernel(kernel)?;
    }
    let layers = heg.layers.iter().enumerate();
    let uses = layers.flat_map(|(layer, uses)| uses.iter().map(move |used| (Some(layer), used)));
    for (layer, used) in uses.chain([(None, &heg.head)]) {
        verify_use(heg, layer, used)?;
    }
    verify_flows(heg)
}

fn verify_kernel(kernel: &KernelBody) -> Result<(), BrokenInvariant> {
    let checks = Checks::new(PASS, format!("kernel `{}`", kernel.name));
    let roles: BTreeSet<Role> = kernel.inputs.iter().map(|port| port.role).collect();
    let roles = roles.len();
    checks.equal("inputs of different roles:", kernel.inputs.len(), roles)?;
    for (index, op) in kernel.ops.iter().enumerate() {
        let place = format!("operator `{}` of kernel `{}`", op.name, kernel.name);
        let checks = Checks::new(PASS, place);
        checks.equal("number of operands", arity(&op.op), op.operands.len())?;
        for operand in &op.operands {
            let defined = is_defined(kernel, *operand, index);
            checks.holds(defined, "operands defined earlier", operand)?;
        }
        let operands = op.operands.iter();
        let widths: Vec<u32> = operands.map(|operand| kernel.width(*operand)).collect();
        check_shapes(&checks, &op.op, &widths, kernel.op_width(op))?;
    }
    checks.equal(
        "a result for each output:",
        kernel.outputs.len(),
        kernel.results.len(),
    )?;
    for (port, result) in kernel.outputs.iter().zip(&kernel.results) {
        let defined = is_defined(kernel, *result, kernel.ops.len());
        checks.holds(defined, "results that are defined", result)?;
        let what = format!("{:?} of width", port.role);
        checks.equal(&what, port.width, kernel.width(*result))?;
    }
    Ok(())
}

/// Whether an operand is defined before operator `index`.
fn is_defined(kernel: &KernelBody, operand: Operand, index: usize) -> bool {
    match operand {
        Operand::Input(input) => input < kernel.inputs.len(),
        Operand::Op(op) => op < index,
    }
}

/// Checks that a use has each weight of its kernel once, and a rotary table exactly if the kernel reads one.
fn verify_use(heg: &Heg, layer: Option<usize>, used: &Use) -> Result<(), BrokenInvariant> {
    let kernel = heg.kernels.get(used.kernel);
    let checks = Checks::new(
        PASS,
        place(layer, kernel.map_or("?", |kernel| &kernel.name)),
    );
    let Some(kernel) = kernel else {
        return checks.holds(false, "a kernel that exists", used.kernel);
    };
    let shape = |param: &Param| (param.slot.clone(), param.kind, param.shape.clone());
    let expected: Vec<_> = kernel.params().map(shape).collect();
    let found: Vec<_> = used.weights.iter().map(shape).collect();
    checks.equal("weights", expected, found)?;
    let sources = used.weights.iter().map(|weight| &weight.source);
    let mut seen = BTreeSet::new();
    let twice: Vec<_> = sources.filter(|source| !seen.insert(*source)).collect();
    checks.holds(twice.is_empty(), "each weight bound once", twice)?;
    let rotates = kernel.inputs.iter().any(|port| port.role == Role::Cos);
    checks.equal("a rotary table:", rotates, used.rope.is_some())
}

/// Checks that every activation input comes from one place, with the same width; the first layer's hidden state comes
/// from the embedding.
fn verify_flows(heg: &Heg) -> Result<(), BrokenInvariant> {
    for node in heg.places.node_indices() {
        let place = heg.places[node];
        let Some(kernel) = heg.kernels.get(place.kernel) else {
            continue;
        };
        let layer = place.layer.map(|layer| layer as usize);
        let checks = Checks::new(PASS, self::place(layer, &kernel.name));
        for port in kernel.inputs.iter().filter(|port| flows(port)) {
            let edges = heg.places.edges_directed(node, Direction::Incoming);
            let givers: Vec<_> = edges.filter(|e| e.weight().role == port.role).collect();
            let from_embedding = place.layer == Some(0) && port.role == Role::Hidden;
            let what = format!("number of places that give {:?}:", port.role);
            checks.equal(&what, usize::from(!from_embedding), givers.len())?;
            for giver in givers {
                let from = heg.places[giver.source()].kernel;
                let outputs = heg.kernels.get(from).map(|giver| &giver.outputs);
                let given = outputs
                    .into_iter()
                    .flatten()
                    .find(|output| output.role == port.role)
                    .map(|output| output.width);
                let what = format!("{:?} of width", port.role);
                checks.equal(&what, Some(port.width), given)?;
                checks.equal(&what, port.width, giver.weight().width)?;
            }
        }
    }
    Ok(())
}

fn place(layer: Option<usize>, kernel: &str) -> String {
    match layer {
        Some(layer) => format!("kernel `{kernel}` in layer {layer}"),
        None => format!("kernel `{kernel}`"),
    }
}

/// Whether a port's input comes from another kernel; the runtime provides the others.
fn flows(port: &Port) -> bool {
    !matches!(port.role, Role::Cos | Role::Sin | Role::Position)
}

const PASS: &str = "heg";

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::fixture::{Described, FAMILIES, fusion};
    use crate::fuse::fuse_layer;

    fn said(found: Result<(), BrokenInvariant>) -> String {
        let said = found.unwrap_err().to_string();
        let fault = " (a fault of the compiler, not of the model)";
        said.strip_suffix(fault).unwrap().to_owned()
    }

    fn refusal(break_it: impl FnOnce(&mut Heg)) -> String {
        let mut heg = Described::family("llama").heg();
        break_it(&mut heg);
        said(verify(&heg))
    }

    fn fused_refusal(break_it: impl FnOnce(&mut Vec<FusedOps>)) -> String {
        let graph = Described::family("llama").layer(0);
        let mut fused = fuse_layer(&graph, &fusion()).unwrap();
        verify_fused(&graph, &fused).unwrap();
        break_it(&mut fused);
        said(verify_fused(&graph, &fused))
    }

    #[test]
    fn all_families_hold() {
        for family in FAMILIES {
            verify(&Described::family(family).heg()).unwrap();
        }
    }

    #[test]
    fn an_operator_without_a_kernel_or_an_attention_with_two_is_found() {
        assert_snapshot!(fused_refusal(|fused| fused[2].ops.truncate(1)), @"after pass `fuse`: operator `attended_x`: expected a kernel, found []");
        assert_snapshot!(fused_refusal(|fused| {
            let mha = fused[1].ops.clone();
            fused[2].ops.extend(mha);
        }), @r#"after pass `fuse`: operator `attended`: expected one kernel, found ["mha", "ffn"]"#);
        assert_snapshot!(fused_refusal(|fused| fused[1].inputs.clear()), @r#"after pass `fuse`: kernel `mha`: expected nothing read from outside, found ["q_rotated", "k_rotated", "v"]"#);
    }

    #[test]
    fn a_kernel_that_does_not_hold_what_it_reads_is_found() {
        assert_snapshot!(refusal(|heg| heg.kernels[0].ops[1].operands[0] = Operand::Op(5)), @"after pass `heg`: operator `q` of kernel `qkv`: expected operands defined earlier, found Op(5)");
        assert_snapshot!(refusal(|heg| heg.kernels[1].inputs[1].width = 3), @"after pass `heg`: operator `attended` of kernel `mha`: expected operands of [64, 32, 32], found [64, 3, 32]");
        assert_snapshot!(refusal(|heg| heg.kernels[0].results.truncate(1)), @"after pass `heg`: kernel `qkv`: expected a result for each output: 3, found 1");
        assert_snapshot!(refusal(|heg| heg.kernels[2].outputs[0].width = 9), @"after pass `heg`: kernel `ffn`: expected Hidden of width 9, found 64");
    }

    #[test]
    fn a_weight_that_is_absent_or_bound_twice_is_found() {
        assert_snapshot!(refusal(|heg| drop(heg.layers[1][0].weights.remove(0))), @r#"after pass `heg`: kernel `qkv` in layer 1: expected weights [("normed.weight", Vector, [64]), ("q.weight", Matrix, [64, 64]), ("k.weight", Matrix, [32, 64]), ("v.weight", Matrix, [32, 64])], found [("q.weight", Matrix, [64, 64]), ("k.weight", Matrix, [32, 64]), ("v.weight", Matrix, [32, 64])]"#);
        assert_snapshot!(refusal(|heg| {
            let weights = &mut heg.layers[0][2].weights;
            weights[3].source = weights[2].source.clone();
        }), @r#"after pass `heg`: kernel `ffn` in layer 0: expected each weight bound once, found [WeightSource { name: "model.layers.0.mlp.gate_proj.weight", first_row: None }]"#);
        assert_snapshot!(refusal(|heg| heg.layers[0][0].rope = None), @"after pass `heg`: kernel `qkv` in layer 0: expected a rotary table: true, found false");
    }

    #[test]
    fn a_flow_that_is_cut_is_found() {
        assert_snapshot!(refusal(|heg| {
            let edge = heg.places.edge_indices().next_back().unwrap();
            heg.places.remove_edge(edge);
        }), @"after pass `heg`: kernel `head`: expected number of places that give Hidden: 1, found 0");
    }
}
