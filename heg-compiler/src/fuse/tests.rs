//! Invariants of every cut of a graph, for all families; and plans that fit no graph.

use std::collections::BTreeSet;

use heg_spec::Group;
use heg_spec::architecture::HeadRows;
use heg_spec::fusion::{Fusion, GraphAnchor, KernelPlan};

use super::{FusedOps, fuse_head, fuse_layer};
use crate::fixture::{Described, FAMILIES, fusion};
use crate::graph::{Op, OpGraph, OpId};
use crate::heg::Heg;

fn check_cut(graph: &OpGraph, fused: &[FusedOps], name: &str) {
    let mut held: BTreeSet<OpId> = BTreeSet::new();
    for kernel in fused {
        let ops: BTreeSet<OpId> = kernel.ops.iter().copied().collect();
        assert_eq!(ops.len(), kernel.ops.len(), "{name}");
        assert!(kernel.ops.is_sorted(), "{name}: execution order");
        assert!(
            kernel.inputs.iter().all(|input| !ops.contains(input)),
            "{name}"
        );
        assert!(
            kernel.outputs.iter().all(|output| ops.contains(output)),
            "{name}"
        );
        for id in &kernel.ops {
            assert_ne!(graph.op(*id).op, Op::Input, "{name}");
            for operand in graph.operands(*id) {
                let known = ops.contains(&operand) || kernel.inputs.contains(&operand);
                assert!(known, "{name}: {:?}: {}", kernel.group, graph.op(*id).name);
                assert!(operand < *id, "{name}: operands come first");
            }
            // Every result is read.
            let read = kernel
                .ops
                .iter()
                .any(|other| graph.operands(*other).contains(id));
            assert!(read || kernel.outputs.contains(id), "{name}");
        }
        held.extend(ops);
    }
    let all = graph.ops().filter(|id| graph.op(*id).op != Op::Input);
    assert!(
        all.eq(held.iter().copied()),
        "{name}: every operator is in some kernel"
    );
    // BERT's projections and its sums read one norm; in the other families no operator is needed twice.
    let count: usize = fused.iter().map(|kernel| kernel.ops.len()).sum();
    let is_layer = fused.len() > 1;
    let twice = usize::from(name.starts_with("bert") && is_layer);
    assert_eq!(count, held.len() + twice, "{name}");
}

#[test]
fn cuts_hold_every_operator_and_end_at_their_inputs() {
    for family in FAMILIES {
        let model = Described::family(family);
        for layer in 0..model.dims.layers {
            let graph = model.layer(layer);
            let fused = fuse_layer(&graph, &fusion()).unwrap();
            let groups: Vec<Group> = fused.iter().map(|kernel| kernel.group).collect();
            assert_eq!(groups, [Group::Qkv, Group::Mha, Group::Ffn]);
            check_cut(&graph, &fused, family);
        }
        let head = model.head();
        check_cut(&head, &fuse_head(&head, &fusion()).unwrap(), family);
    }
}

/// The shipped plan with one group's kernel replaced.
fn plan(group: Group, inputs: &[GraphAnchor], outputs: &[GraphAnchor]) -> Fusion {
    let mut plan = fusion();
    plan.kernels.retain(|kernel| kernel.group != group);
    plan.kernels.push(KernelPlan {
        group,
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
    });
    plan
}

fn check_refused(plan: &Fusion, expected: &str) {
    let graph = Described::family("llama").layer(0);
    let found = fuse_layer(&graph, plan).unwrap_err().to_string();
    assert_eq!(found, expected);
}

#[test]
fn plans_that_leave_operators_out_are_refused() {
    use GraphAnchor::{Input, Key, Query};
    check_refused(
        &plan(Group::Qkv, &[Input], &[Query, Key]),
        "fusion: `v`: no kernel of the fusion plan needs it",
    );
    let mut without = fusion();
    without.kernels.retain(|kernel| kernel.group != Group::Ffn);
    check_refused(
        &without,
        "fusion: `projected`: no kernel of the fusion plan needs it",
    );
}

#[test]
fn kernels_that_reach_past_their_inputs_are_refused() {
    use GraphAnchor::{Attended, Key, Output, Query};
    check_refused(
        &plan(Group::Mha, &[Query, Key], &[Attended]),
        "fusion: `Mha`: its operators reach past the inputs that the plan gives it",
    );
    check_refused(
        &plan(Group::Ffn, &[Attended], &[Output]),
        "fusion: `Ffn`: its operators reach past the inputs that the plan gives it",
    );
}

#[test]
fn anchors_that_the_graph_lacks_are_refused() {
    let head = Described::family("llama").head();
    let found = fuse_head(
        &head,
        &plan(
            Group::Head,
            &[GraphAnchor::Attended],
            &[GraphAnchor::Output],
        ),
    );
    assert_eq!(
        found.unwrap_err().to_string(),
        "fusion: `Attended`: the graph has no such anchor"
    );
}

/// An operator that two kernels need is computed in both.
#[test]
fn shared_operators_are_held_twice() {
    use GraphAnchor::{Attended, Input, Output};
    let graph = Described::family("llama").layer(0);
    // A feed-forward kernel that recomputes the attention.
    let fused = fuse_layer(&graph, &plan(Group::Ffn, &[Input], &[Output])).unwrap();
    let attended = graph.anchor(Attended).unwrap();
    let holding = fused.iter().filter(|kernel| kernel.ops.contains(&attended));
    let groups: Vec<Group> = holding.map(|kernel| kernel.group).collect();
    assert_eq!(groups, [Group::Mha, Group::Ffn]);
}

#[test]
fn a_heg_needs_each_group() {
    let model = Described::family("llama");
    let (layer, head) = (model.layer(0), model.head());
    let mut fused = fuse_layer(&layer, &fusion()).unwrap();
    let fused_head = fuse_head(&head, &fusion()).unwrap();
    fused.retain(|kernel| kernel.group != Group::Mha);
    let error = Heg::build(&[(layer, fused)], (&head, &fused_head, HeadRows::Logits)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "fusion: `Mha`: the fusion plan gives no such kernel"
    );
}
