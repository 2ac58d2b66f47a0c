//! The execution graph of a bundle as a table: the variants that run each kernel in either stage, and what passes between
//! kernels.

use heg_artifacts::manifest::{Crossing, EdgeReach, GraphEdge, GraphNode, Kernel, Manifest};

/// Describes the graph; kernels and edges in the order in which the bundle lists those of prompts.
pub(super) fn describe(manifest: &Manifest) -> String {
    let (prefill, decode) = (&manifest.heg.prefill, &manifest.heg.decode);
    let kernel = |node: &GraphNode| manifest.kernels.get(node.kernel.0 as usize);
    let mut text = String::from("graph       places  prompts run on; decode iterations run on\n");
    for node in &prefill.nodes {
        let Some(own) = kernel(node) else { continue };
        let mut others = decode.nodes.iter();
        let other = others.find(|other| other.kernel == node.kernel);
        let decoding = match other {
            Some(other) if other.variants == node.variants => "the same".to_owned(),
            other => other.map_or(String::new(), |other| variants(other, own)),
        };
        let prompts = variants(node, own);
        let line = format!(
            "{:<10} {:>7}  {prompts}; {decoding}\n",
            own.name, node.places
        );
        text.push_str(&line);
    }
    text.push_str("\nedge                       places  row             accelerators\n");
    for edge in &prefill.edges {
        let end = |node: u32| prefill.nodes.get(node as usize).and_then(kernel);
        if let (Some(from), Some(to)) = (end(edge.from), end(edge.to)) {
            text.push_str(&edge_line(edge, from, to));
        }
    }
    text.push('\n');
    text
}

/// Names the variants of a node by class and shape.
fn variants(node: &GraphNode, kernel: &Kernel) -> String {
    let classes = node.variants.iter().map(|(class, own)| {
        let shape = |index: &u32| kernel.variants.get(*index as usize).map(|it| it.shape);
        let shapes: Vec<String> = own
            .iter()
            .filter_map(shape)
            .map(|shape| shape.to_string())
            .collect();
        format!("{class:?} {}", shapes.join(" "))
    });
    classes.collect::<Vec<_>>().join(", ")
}

fn edge_line(edge: &GraphEdge, from: &Kernel, to: &Kernel) -> String {
    let reach = match edge.reach {
        EdgeReach::Layer => "",
        EdgeReach::Next => " of the next",
    };
    let tensor = format!("{:?}", edge.role).to_lowercase();
    let way = format!("{tensor}: {} -> {}{reach}", from.name, to.name);
    let rows = edge.row_bytes.iter();
    let rows: Vec<String> = rows
        .map(|(element, bytes)| format!("{bytes} B as {element:?}"))
        .collect();
    let crossing = match edge.crossing {
        Crossing::Intra => "intra",
        Crossing::Inter => "inter",
    };
    let places = edge.places;
    format!("{way:<34} {places:>3}  {}  {crossing}\n", rows.join(", "))
}
