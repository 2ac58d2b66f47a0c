//! Checks of an IR against the kernel that it was lowered from.
//!
//! The check parses the IR's text, independently of the writer's state. Parameters and results are the kernel's ports,
//! weights are the sections of a use in order, every input has one edge, and both ends of an edge have one type and
//! shape.

use std::collections::BTreeMap;

use heg_artifacts::manifest::{Binding, ElementType, Elements, Port};

use super::document::{IrDocument, IrLayer, IrPort};
use super::weights::{WeightSection, sections as sections_of};
use super::xml::{Dim, Element};
use super::{Lowering, TREE, role_name, shape, tree_shape};
use crate::heg::KernelBody;
use crate::verify::{BrokenInvariant, Checks};

/// Checks `ir`, whose small constants are in a pool that now has `pool_bytes`.
pub(crate) fn verify(
    ir: &str,
    kernel: &KernelBody,
    lowering: Lowering,
    pool_bytes: usize,
) -> Result<(), BrokenInvariant> {
    let shown = format!("`{}` {}", kernel.name, lowering.shape);
    let checks = Checks::new(PASS, format!("kernel {shown}"));
    let document = match IrDocument::read(ir) {
        Ok(document) => document,
        Err(error) => return checks.holds(false, "XML that can be read", error.to_string()),
    };
    let sections = sections(kernel, lowering);
    check_ports(&checks, &document, kernel, lowering, &sections)?;
    check_constants(&checks, &document, lowering, &sections, pool_bytes)?;
    check_edges(&shown, &document)
}

/// Values, scales and centres of all weights, in the order in which the runtime numbers them.
fn sections(kernel: &KernelBody, lowering: Lowering) -> Vec<WeightSection> {
    let sections = kernel.params().flat_map(|param| {
        let (values, rest) = sections_of(param, lowering);
        std::iter::once(values).chain(rest)
    });
    sections.collect()
}

/// Checks that parameters are the activation ports, followed by the sections if these are inputs, and that results are
/// the outputs.
fn check_ports(
    checks: &Checks,
    document: &IrDocument,
    kernel: &KernelBody,
    lowering: Lowering,
    sections: &[WeightSection],
) -> Result<(), BrokenInvariant> {
    let elements = Elements::new(lowering.activations, lowering.kv_cache);
    let port = |port: &Port| {
        let shape = shape(port.rows, port.width, lowering);
        let shown = described(elements.at(port.role), &shape);
        (role_name(port.role).to_owned(), shown)
    };
    let section = |section: &WeightSection| {
        let shape: Vec<Dim> = section.shape.iter().copied().map(Dim::Fixed).collect();
        (section.name.clone(), described(section.element, &shape))
    };
    let as_inputs = match lowering.binding {
        Binding::Constant => &[],
        Binding::Input => sections,
    };
    let expected: Vec<_> = kernel.inputs.iter().map(port).collect();
    let tree = tree_shape(lowering).map(|shape| {
        let shown = described(elements.activations, &shape);
        (TREE.to_owned(), shown)
    });
    let expected: Vec<_> = expected
        .into_iter()
        .chain(tree)
        .chain(as_inputs.iter().map(section))
        .collect();
    let layers = |kind: &'static str| document.layers.iter().filter(move |l| l.kind == kind);
    let described = |layer: &IrLayer, ports: &[IrPort]| {
        let port = ports.first().map(IrPort::shown);
        (layer.name.clone(), port.unwrap_or_default())
    };
    let found: Vec<_> = layers("Parameter")
        .map(|layer| described(layer, &layer.outputs))
        .collect();
    checks.equal("parameters", expected, found)?;
    let expected: Vec<_> = kernel.outputs.iter().map(port).collect();
    let found: Vec<_> = layers("Result")
        .map(|layer| described(layer, &layer.inputs))
        .collect();
    checks.equal("results", expected, found)
}

fn described(element: ElementType, shape: &[Dim]) -> String {
    let dims = shape.iter().map(|dim| match dim {
        Dim::Fixed(size) => i64::from(*size),
        Dim::Dynamic => -1,
    });
    let port = IrPort {
        id: String::new(),
        precision: Element::from(element).precision().to_owned(),
        shape: dims.collect(),
    };
    port.shown()
}

/// Checks that constant weights are bound once each, in order, with all their bytes, and that small constants are
/// within the pool.
fn check_constants(
    checks: &Checks,
    document: &IrDocument,
    lowering: Lowering,
    sections: &[WeightSection],
    pool_bytes: usize,
) -> Result<(), BrokenInvariant> {
    let mut bound = Vec::new();
    for layer in document.layers.iter().filter(|layer| layer.kind == "Const") {
        let offset = layer.datum("offset").unwrap_or_default();
        let bytes: Option<usize> = layer.datum("size").and_then(|size| size.parse().ok());
        match offset.strip_prefix("@c+") {
            Some(place) => {
                let place: Option<usize> = place.parse().ok();
                let end = place.zip(bytes).and_then(|(at, n)| at.checked_add(n));
                let within = end.is_some_and(|end| end <= pool_bytes);
                let expected = format!("constants within {pool_bytes} bytes of literals");
                checks.holds(within, &expected, &layer.data)?;
            }
            None => bound.push((offset.to_owned(), bytes)),
        }
    }
    let constants = match lowering.binding {
        Binding::Constant => sections,
        Binding::Input => &[],
    };
    let expected = constants.iter().enumerate().map(|(index, section)| {
        let elements = section.shape.iter().map(|dim| u64::from(*dim)).product();
        let bytes = section.element.bytes_of(elements);
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        (format!("@{index}"), bytes)
    });
    checks.equal("each weight bound once:", expected.collect(), bound)
}

/// Checks that every input port has one edge, from an earlier layer's output of the same type and shape.
fn check_edges(shown: &str, document: &IrDocument) -> Result<(), BrokenInvariant> {
    let sources = document.sources();
    let mut outputs: BTreeMap<(&str, &str), String> = BTreeMap::new();
    for layer in &document.layers {
        let place = format!("layer {} ({}) of kernel {shown}", layer.id, layer.kind);
        let checks = Checks::new(PASS, place);
        for port in &layer.inputs {
            let from = sources.get(&(layer.id.as_str(), port.id.as_str()));
            let from = from.map(Vec::as_slice).unwrap_or_default();
            let what = format!("number of edges to port {}:", port.id);
            checks.equal(&what, 1, from.len())?;
            for source in from {
                let what = format!("port {} from an earlier layer, of", port.id);
                checks.equal(&what, Some(&port.shown()), outputs.get(source))?;
            }
        }
        for port in &layer.outputs {
            let known = outputs.insert((&layer.id, &port.id), port.shown());
            checks.holds(known.is_none(), "outputs defined once", &port.id)?;
        }
    }
    let inputs: usize = document.layers.iter().map(|layer| layer.inputs.len()).sum();
    let checks = Checks::new(PASS, format!("kernel {shown}"));
    checks.equal("an edge for each input:", inputs, document.edges.len())
}

const PASS: &str = "lower";

#[cfg(test)]
mod tests {
    use heg_artifacts::manifest::ShapeClass;
    use heg_spec::{Group, GroupColumns, WeightForm};
    use insta::assert_snapshot;

    use super::*;
    use crate::fixture::{Described, FAMILIES};
    use crate::lower::{Literals, WeightsFirst, lower};
    use crate::variants::variants;

    #[test]
    fn every_variant_of_all_families_and_forms_holds() {
        for family in FAMILIES {
            let mut plan = Described::family(family).plan();
            let group = GroupColumns::SMALLEST;
            let four_bits = |symmetric| WeightForm::W4A16 { group, symmetric };
            for form in [
                WeightForm::F32,
                WeightForm::F16,
                WeightForm::W8A16,
                four_bits(false),
                four_bits(true),
            ] {
                plan.weights = form;
                let mut literals = Literals::default();
                for kernel in &plan.heg.kernels {
                    for variant in variants(&plan, kernel.group) {
                        let ir = lower(kernel, variant.lowering, &mut literals);
                        let pool = literals.bytes();
                        verify(&ir, kernel, variant.lowering, pool).unwrap();
                    }
                }
            }
        }
    }

    /// The check's message about the llama fixture's kernel with this binding, after `old` in its IR was replaced by
    /// `new`.
    fn refusal(group: Group, binding: Binding, old: &str, new: &str) -> String {
        let heg = Described::family("llama").heg();
        let kernel = heg.kernels.iter().find(|kernel| kernel.group == group);
        let kernel = kernel.unwrap();
        let lowering = Lowering {
            shape: match binding {
                Binding::Constant => ShapeClass::Dynamic,
                Binding::Input => ShapeClass::Static { tokens: 32 },
            },
            binding,
            activations: ElementType::F32,
            kv_cache: None,
            takes_trees: false,
            weights: WeightForm::W8A16,
            weights_first: WeightsFirst::NONE,
        };
        let mut literals = Literals::default();
        let ir = lower(kernel, lowering, &mut literals);
        verify(&ir, kernel, lowering, literals.bytes()).unwrap();
        assert!(ir.contains(old), "{old} is not in the IR");
        let broken = ir.replacen(old, new, 1);
        let said = verify(&broken, kernel, lowering, literals.bytes());
        let said = said.unwrap_err().to_string();
        let fault = " (a fault of the compiler, not of the model)";
        said.strip_suffix(fault).unwrap().to_owned()
    }

    #[test]
    fn a_parameter_that_is_not_the_kernels_is_found() {
        let (input, constant) = (Binding::Input, Binding::Constant);
        let (old, new) = ("name=\"logits\"", "name=\"other\"");
        assert_snapshot!(refusal(Group::Head, constant, old, new), @r#"after pass `lower`: kernel `head` dynamic: expected results [("logits", "FP32[?,256]")], found [("other", "FP32[?,256]")]"#);
        let (old, new) = ("names=\"hidden\"><dim>32", "names=\"hidden\"><dim>31");
        assert_snapshot!(refusal(Group::Head, input, old, new), @r#"after pass `lower`: kernel `head` 32: expected parameters [("hidden", "FP32[32,64]"), ("normed.weight", "FP32[64]"), ("logits.weight", "I8[256,64]"), ("logits.weight.scale", "FP32[1,256]"), ("logits.weight.centre", "FP32[1,256]")], found [("hidden", "FP32[31,64]"), ("normed.weight", "FP32[64]"), ("logits.weight", "I8[256,64]"), ("logits.weight.scale", "FP32[1,256]"), ("logits.weight.centre", "FP32[1,256]")]"#);
    }

    #[test]
    fn a_weight_bound_twice_or_cut_is_found() {
        let constant = Binding::Constant;
        let (old, new) = ("offset=\"@2\"", "offset=\"@1\"");
        assert_snapshot!(refusal(Group::Head, constant, old, new), @r#"after pass `lower`: kernel `head` dynamic: expected each weight bound once: [("@0", Some(256)), ("@1", Some(16384)), ("@2", Some(1024)), ("@3", Some(1024))], found [("@0", Some(256)), ("@1", Some(16384)), ("@1", Some(1024)), ("@3", Some(1024))]"#);
        let (old, new) = ("offset=\"@c+8\"", "offset=\"@c+800\"");
        assert_snapshot!(refusal(Group::Head, constant, old, new), @r#"after pass `lower`: kernel `head` dynamic: expected constants within 28 bytes of literals, found [("element_type", "i64"), ("shape", "1"), ("offset", "@c+800"), ("size", "8")]"#);
    }

    #[test]
    fn an_edge_that_is_missing_or_joins_other_shapes_is_found() {
        let constant = Binding::Constant;
        let edge = "<edge from-layer=\"0\" from-port=\"0\" to-layer=\"3\" to-port=\"0\"/>";
        assert_snapshot!(refusal(Group::Head, constant, edge, ""), @"after pass `lower`: layer 3 (Power) of kernel `head` dynamic: expected number of edges to port 0: 1, found 0");
        let other = edge.replace("from-layer=\"0\"", "from-layer=\"1\"");
        assert_snapshot!(refusal(Group::Head, constant, edge, &other), @r#"after pass `lower`: layer 3 (Power) of kernel `head` dynamic: expected port 0 from an earlier layer, of Some("FP32[?,64]"), found Some("FP32[64]")"#);
        assert_snapshot!(refusal(Group::Head, constant, "</layers>", "</layer>"), @r#"after pass `lower`: kernel `head` dynamic: expected XML that can be read, found "ill-formed document: expected `</layers>`, but `</layer>` was found""#);
    }
}
