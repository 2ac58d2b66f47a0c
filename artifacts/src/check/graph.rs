//! Checks of the execution graphs: they say of kernels, places, variants, order and bytes exactly what the kernels'
//! ports and the table of layers say.
//!
//! A graph may list its nodes and edges in any order. It may not leave any out, since a runtime takes its order from
//! here and would run a kernel before its input is there.

use std::collections::{BTreeMap, BTreeSet};

use super::check_equal;
use crate::error::Error;
use crate::manifest::{
    Crossing, EdgeReach, ElementType, GraphEdge, GraphNode, Kernel, KernelId, Manifest, Role,
    StageGraph, StageGraphs,
};

/// A flow between kernels: writer, reader, tensor and reach.
type Flow = (KernelId, KernelId, Role, EdgeReach);

/// Flows and uses, with the numbers of their places.
struct Places {
    kernels: BTreeMap<KernelId, u32>,
    flows: BTreeMap<Flow, u32>,
}

pub(super) fn check_graphs(graphs: &StageGraphs, manifest: &Manifest) -> Result<(), Error> {
    let StageGraphs { prefill, decode } = graphs;
    let places = Places::of(manifest);
    check_graph("heg.prefill", prefill, manifest, &places)?;
    check_graph("heg.decode", decode, manifest, &places)
}

impl Places {
    /// Follows the data through the layers and into the head, by the roles of ports.
    fn of(manifest: &Manifest) -> Self {
        let mut found = Self {
            kernels: BTreeMap::new(),
            flows: BTreeMap::new(),
        };
        // The latest writer of each role. Before the first layer, the hidden state comes from the embedding.
        let mut writers: BTreeMap<Role, (KernelId, usize)> = BTreeMap::new();
        let layers = manifest.layers.iter().enumerate();
        let uses = layers.flat_map(|(at, layer)| {
            [&layer.qkv, &layer.mha, &layer.ffn].map(|used| (at, used.kernel))
        });
        let head = (manifest.layers.len(), manifest.head.kernel);
        for (layer, id) in uses.chain([head]) {
            count(&mut found.kernels, id);
            let Some(kernel) = kernel_of(manifest, id) else {
                continue;
            };
            for port in &kernel.inputs {
                if let Some((writer, written)) = writers.get(&port.role) {
                    let reach = match *written == layer {
                        true => EdgeReach::Layer,
                        false => EdgeReach::Next,
                    };
                    count(&mut found.flows, (*writer, id, port.role, reach));
                }
            }
            let outputs = kernel.outputs.iter();
            writers.extend(outputs.map(|port| (port.role, (id, layer))));
        }
        found
    }
}

fn count<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    let places = counts.entry(key).or_insert(0);
    *places = places.saturating_add(1);
}

fn check_graph(
    field: &str,
    graph: &StageGraph,
    manifest: &Manifest,
    places: &Places,
) -> Result<(), Error> {
    let StageGraph { nodes, edges } = graph;
    let mut known = BTreeSet::new();
    for (index, node) in nodes.iter().enumerate() {
        let field = format!("{field}.nodes[{index}]");
        check_node(&field, node, manifest, places)?;
        if !known.insert(node.kernel) {
            let found = format!("`{}` once more", node.kernel.0);
            let field = format!("{field}.kernel");
            return Err(Error::invalid(field, found, "every kernel once"));
        }
    }
    let mut used = places.kernels.keys();
    if let Some(missing) = used.find(|id| !known.contains(id)) {
        let found = format!("without kernel `{}`", name(manifest, *missing));
        let expected = "a node for each kernel that a place uses";
        return Err(Error::invalid(format!("{field}.nodes"), found, expected));
    }
    let mut flows = BTreeSet::new();
    for (index, edge) in edges.iter().enumerate() {
        let field = format!("{field}.edges[{index}]");
        let flow = check_edge(&field, edge, graph, manifest)?;
        if !flows.insert(flow) {
            let found = format!("{} once more", described(manifest, flow));
            return Err(Error::invalid(field, found, "every edge once"));
        }
    }
    if graph.layer_order(&manifest.kernels).is_none() {
        let found = "a circle within a layer";
        let expected = "an order in which a kernel runs after those that it reads from";
        return Err(Error::invalid(format!("{field}.edges"), found, expected));
    }
    check_flows(field, graph, manifest, places)
}

fn check_node(
    field: &str,
    node: &GraphNode,
    manifest: &Manifest,
    places: &Places,
) -> Result<(), Error> {
    let GraphNode {
        kernel: id,
        places: found,
        variants,
    } = node;
    let Some(kernel) = kernel_of(manifest, *id) else {
        let expected = format!(
            "less than the number of kernels: `{}`",
            manifest.kernels.len()
        );
        let field = format!("{field}.kernel");
        return Err(Error::invalid(field, format!("`{}`", id.0), expected));
    };
    let expected = places.kernels.get(id).copied().unwrap_or(0);
    let why = format!("the places that use kernel `{}`", kernel.name);
    check_equal(|| format!("{field}.places"), *found, expected, &why)?;
    if variants.is_empty() {
        let expected = "variants of at least one class";
        return Err(Error::invalid(
            format!("{field}.variants"),
            "empty",
            expected,
        ));
    }
    for (class, own) in variants {
        let field = || format!("{field}.variants[{class:?}]");
        if own.is_empty() || !own.is_sorted_by(|left, right| left < right) {
            let expected = "at least one, strictly ascending";
            return Err(Error::invalid(field(), format!("{own:?}"), expected));
        }
        for index in own {
            let found = kernel.variants.get(*index as usize);
            if found.map(|variant| variant.device) != Some(*class) {
                let found = format!("`{index}`");
                let expected = format!("variants of kernel `{}` for {class:?}", kernel.name);
                return Err(Error::invalid(field(), found, expected));
            }
        }
    }
    Ok(())
}

/// Checks an edge by itself; returns its flow.
fn check_edge(
    field: &str,
    edge: &GraphEdge,
    graph: &StageGraph,
    manifest: &Manifest,
) -> Result<Flow, Error> {
    let GraphEdge {
        from,
        to,
        role,
        rows,
        reach,
        places: _,
        row_bytes,
        crossing,
    } = edge;
    let end = |what: &str, index: u32| {
        let node = graph.nodes.get(index as usize);
        let kernel = node.and_then(|node| kernel_of(manifest, node.kernel));
        node.zip(kernel).ok_or_else(|| {
            let expected = format!("less than the number of nodes: `{}`", graph.nodes.len());
            Error::invalid(format!("{field}.{what}"), format!("`{index}`"), expected)
        })
    };
    let (writer, from) = end("from", *from)?;
    let (reader, to) = end("to", *to)?;
    let gives = from.outputs.iter().any(|port| port.role == *role);
    let port = to.inputs.iter().find(|port| port.role == *role);
    let (true, Some(port)) = (gives, port) else {
        let found = format!("{role:?} from `{}` to `{}`", from.name, to.name);
        let expected = "an output of the one and an input of the other";
        return Err(Error::invalid(format!("{field}.role"), found, expected));
    };
    let of = |what: &str| format!("{field}.{what}");
    let why = format!("as kernel `{}` reads {role:?}", to.name);
    let shown = |value: &dyn std::fmt::Debug| format!("{value:?}");
    check_equal(|| of("rows"), shown(rows), shown(&port.rows), &why)?;
    let expected = Crossing::between(from.group, to.group);
    let why = "by the groups of the two kernels";
    check_equal(|| of("crossing"), shown(crossing), shown(&expected), why)?;
    let ends = [(writer, from), (reader, to)];
    let expected = row_bytes_of(ends, *role, (port.width, manifest.model.head_dim));
    if *row_bytes != expected {
        let expected = format!(
            "{expected:?}: `{}` elements of a variant's type",
            port.width
        );
        return Err(Error::invalid(of("row_bytes"), shown(row_bytes), expected));
    }
    Ok((writer.kernel, reader.kernel, *role, *reach))
}

/// Bytes of a row, by the element types that variants of the two nodes have at the port.
fn row_bytes_of(
    ends: [(&GraphNode, &Kernel); 2],
    role: Role,
    (width, head_dim): (u32, u32),
) -> BTreeMap<ElementType, u64> {
    let variants = ends.into_iter().flat_map(|(node, kernel)| {
        let own = node.variants.values().flatten();
        own.filter_map(|index| kernel.variants.get(*index as usize))
    });
    let rows = variants.map(|variant| {
        let bytes = variant.elements().row_bytes(role, width, head_dim);
        (variant.port_element(role), bytes.unwrap_or(u64::MAX))
    });
    rows.collect()
}

/// Checks that the edges are those of the layers, no fewer and no more, each at as many places.
fn check_flows(
    field: &str,
    graph: &StageGraph,
    manifest: &Manifest,
    places: &Places,
) -> Result<(), Error> {
    let kernel = |node: u32| graph.nodes.get(node as usize).map(|node| node.kernel);
    let flow =
        |edge: &GraphEdge| Some((kernel(edge.from)?, kernel(edge.to)?, edge.role, edge.reach));
    let mut found = BTreeSet::new();
    for (index, edge) in graph.edges.iter().enumerate() {
        let Some(flow) = flow(edge) else { continue };
        let Some(expected) = places.flows.get(&flow) else {
            let expected = "an edge that a place of the layers has";
            let found = described(manifest, flow);
            return Err(Error::invalid(
                format!("{field}.edges[{index}]"),
                found,
                expected,
            ));
        };
        let why = format!("the places of {}", described(manifest, flow));
        let field = || format!("{field}.edges[{index}].places");
        check_equal(field, edge.places, *expected, &why)?;
        found.insert(flow);
    }
    match places.flows.keys().find(|flow| !found.contains(*flow)) {
        None => Ok(()),
        Some(missing) => Err(Error::invalid(
            format!("{field}.edges"),
            format!("without {}", described(manifest, *missing)),
            "every input that a kernel writes",
        )),
    }
}

fn described(manifest: &Manifest, (from, to, role, reach): Flow) -> String {
    let (from, to) = (name(manifest, from), name(manifest, to));
    let reach = match reach {
        EdgeReach::Layer => "in its layer",
        EdgeReach::Next => "in the next layer or the head",
    };
    format!("{role:?} from `{from}` to `{to}` {reach}")
}

fn kernel_of(manifest: &Manifest, id: KernelId) -> Option<&Kernel> {
    manifest.kernels.get(id.0 as usize)
}

fn name(manifest: &Manifest, id: KernelId) -> &str {
    kernel_of(manifest, id).map_or("", |kernel| &kernel.name)
}
