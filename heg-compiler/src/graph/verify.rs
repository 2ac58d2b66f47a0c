//! Checks of an operator graph: every input is defined once and earlier, and shapes agree along edges.

use heg_spec::fusion::GraphAnchor;
use petgraph::Direction;
use petgraph::visit::EdgeRef;

use super::{Op, OpGraph, OpId};
use crate::verify::{BrokenInvariant, Checks};

/// Checks the graph of a layer or of the head.
pub(crate) fn verify(graph: &OpGraph) -> Result<(), BrokenInvariant> {
    for id in graph.ops() {
        let node = graph.op(id);
        let checks = Checks::new(PASS, format!("operator `{}`", node.name));
        let edges = graph.ops.edges_directed(id.0, Direction::Incoming);
        let mut operands: Vec<usize> = edges.clone().map(|edge| *edge.weight()).collect();
        operands.sort_unstable();
        let expected = (0..arity(&node.op)).collect();
        checks.equal("each operand once:", expected, operands)?;
        for edge in edges {
            let source = &graph.op(OpId(edge.source())).name;
            let is_earlier = edge.source() < id.0;
            checks.holds(is_earlier, "operands defined by earlier operators", source)?;
        }
        let operands = graph.operands(id).into_iter();
        let widths: Vec<u32> = operands.map(|operand| graph.op(operand).width).collect();
        check_shapes(&checks, &node.op, &widths, node.width)?;
    }
    check_anchors(graph)
}

/// Number of operands.
pub(crate) fn arity(op: &Op) -> usize {
    match op {
        Op::Input => 0,
        Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Linear { .. }
        | Op::Rope { .. }
        | Op::Activated(_)
        | Op::Scale { .. }
        | Op::SoftCap { .. } => 1,
        Op::Gated(_) | Op::Add { .. } => 2,
        Op::Attention(_) => 3,
    }
}

/// Checks an operator's width and the shapes of its weights against the `widths` of its operands, whose number is its
/// [`arity`].
pub(crate) fn check_shapes(
    checks: &Checks,
    op: &Op,
    widths: &[u32],
    width: u32,
) -> Result<(), BrokenInvariant> {
    let first = widths.first().copied().unwrap_or(width);
    let shapes: Vec<&[u32]> = op.params().iter().map(|p| p.shape.as_slice()).collect();
    let weights = |expected: &[&[u32]]| checks.equal("weights of", expected, shapes.as_slice());
    let keeps_width = || checks.equal("the operand's width", first, width);
    match op {
        Op::Input => Ok(()),
        Op::RmsNorm { groups, .. } => {
            let divides = *groups > 0 && first.is_multiple_of(*groups);
            checks.holds(divides, "groups that divide the row", (groups, first))?;
            weights(&[&[first / groups]])?;
            keeps_width()
        }
        Op::LayerNorm { bias, .. } => {
            weights(&[&[first][..], &[first]][..1 + usize::from(bias.is_some())])?;
            keeps_width()
        }
        Op::Linear { bias, .. } => {
            weights(&[&[width, first][..], &[width]][..1 + usize::from(bias.is_some())])
        }
        Op::Rope { heads, rotated, .. } => {
            let fits = *heads > 0
                && first.is_multiple_of(*heads)
                && rotated.is_multiple_of(2)
                && *rotated <= first / heads;
            checks.holds(
                fits,
                "heads that hold the rotated dimensions",
                (heads, rotated, first),
            )?;
            keeps_width()
        }
        Op::Attention(a) => {
            let (query, cached) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
            let divides = a.kv_heads > 0 && a.heads.is_multiple_of(a.kv_heads);
            checks.holds(divides, "kv_heads that divide heads", (a.heads, a.kv_heads))?;
            let fits = a.sight.is_causal() || a.window.is_none();
            checks.holds(fits, "sight of the whole text without a window", a.window)?;
            checks.equal("operands of", &[query, cached, cached][..], widths)?;
            checks.equal("width", query, width)
        }
        Op::Gated(_) | Op::Add { .. } => {
            checks.equal("operands of", &[first, first][..], widths)?;
            keeps_width()
        }
        Op::Activated(_) | Op::Scale { .. } | Op::SoftCap { .. } => keeps_width(),
    }
}

/// Checks that the anchors around the attention are its operands and itself, and that the graph begins and ends at an
/// anchor.
fn check_anchors(graph: &OpGraph) -> Result<(), BrokenInvariant> {
    let checks = Checks::new(PASS, "anchors");
    let name = |id: OpId| graph.op(id).name.as_str();
    let anchored = |anchor| graph.anchor(anchor).map(name);
    let inputs = graph.ops().filter(|id| graph.op(*id).op == Op::Input);
    let inputs: Vec<&str> = inputs.map(name).collect();
    let input: Vec<&str> = anchored(GraphAnchor::Input).into_iter().collect();
    checks.equal("`Input` at the one input", inputs, input)?;
    let output = anchored(GraphAnchor::Output);
    checks.holds(output.is_some(), "an `Output`", output)?;
    let attention = |id: &OpId| matches!(graph.op(*id).op, Op::Attention(_));
    let expected = graph.ops().find(attention).map(|attention| {
        let operands = graph.operands(attention).into_iter();
        operands.chain([attention]).map(name).collect::<Vec<_>>()
    });
    let around = [
        GraphAnchor::Query,
        GraphAnchor::Key,
        GraphAnchor::Value,
        GraphAnchor::Attended,
    ];
    let found: Vec<&str> = around.into_iter().filter_map(anchored).collect();
    checks.equal(
        "the attention's anchors at",
        expected.unwrap_or_default(),
        found,
    )
}

const PASS: &str = "graph";

#[cfg(test)]
mod tests {
    use petgraph::graph::NodeIndex;

    use super::*;
    use crate::fixture::{Described, FAMILIES};

    fn refusal(break_it: impl FnOnce(&mut OpGraph)) -> String {
        let mut graph = Described::family("llama").layer(0);
        verify(&graph).unwrap();
        break_it(&mut graph);
        let said = verify(&graph).unwrap_err().to_string();
        let fault = " (a fault of the compiler, not of the model)";
        said.strip_suffix(fault).unwrap().to_owned()
    }

    fn find(graph: &OpGraph, name: &str) -> NodeIndex {
        let mut ids = graph.ops();
        ids.find(|id| graph.op(*id).name == name).unwrap().0
    }

    #[test]
    fn graphs_of_all_families_hold() {
        for family in FAMILIES {
            let model = Described::family(family);
            for layer in 0..model.dims.layers {
                verify(&model.layer(layer)).unwrap();
            }
            verify(&model.head()).unwrap();
        }
    }

    #[test]
    fn a_width_that_does_not_meet_is_found() {
        let said = refusal(|graph| {
            let gate = find(graph, "gate");
            graph.ops[gate].width += 1;
        });
        insta::assert_snapshot!(said, @"after pass `graph`: operator `gate`: expected weights of [[129, 64]], found [[128, 64]]");
        let said = refusal(|graph| {
            let normed = find(graph, "q_rotated");
            graph.ops[normed].width = 7;
        });
        insta::assert_snapshot!(said, @"after pass `graph`: operator `q_rotated`: expected the operand's width 64, found 7");
    }

    #[test]
    fn an_operand_that_is_missing_twice_there_or_later_is_found() {
        let said = refusal(|graph| {
            let attention = find(graph, "attended");
            let edges = graph.ops.edges_directed(attention, Direction::Incoming);
            let edge = edges.last().unwrap().id();
            graph.ops.remove_edge(edge);
        });
        insta::assert_snapshot!(said, @"after pass `graph`: operator `attended`: expected each operand once: [0, 1, 2], found [1, 2]");
        let said = refusal(|graph| {
            let (query, attention) = (find(graph, "q"), find(graph, "attended"));
            graph.ops.add_edge(query, attention, 0);
        });
        insta::assert_snapshot!(said, @"after pass `graph`: operator `attended`: expected each operand once: [0, 1, 2], found [0, 0, 1, 2]");
        let said = refusal(|graph| {
            let attention = find(graph, "attended");
            let edges = graph
                .ops
                .edges_directed(find(graph, "q"), Direction::Incoming);
            let edge = edges.last().unwrap().id();
            graph.ops.remove_edge(edge);
            graph.ops.add_edge(attention, find(graph, "q"), 0);
        });
        insta::assert_snapshot!(said, @r#"after pass `graph`: operator `q`: expected operands defined by earlier operators, found "attended""#);
    }

    #[test]
    fn an_anchor_at_another_operator_is_found() {
        let said = refusal(|graph| {
            let query = find(graph, "q");
            graph.anchors.insert(GraphAnchor::Attended, query);
        });
        insta::assert_snapshot!(said, @r#"after pass `graph`: anchors: expected the attention's anchors at ["q_rotated", "k_rotated", "v", "attended"], found ["q_rotated", "k_rotated", "v", "q"]"#);
    }
}
