//! Builds OpenVINO IR (XML, opset 13, IR version 11) layer by layer.
//!
//! A [`Wire`] is one output of one layer, with its element type and shape; builders in `ops` turn wires into wires.
//! Nothing here depends on models. Constants are references: into the kernel's weights as `offset="@k"`, or into the
//! bundle's pool of literals as `offset="@c+N"`; the runtime writes the true offsets (see
//! `heg_artifacts::manifest::Variant::ir`). The schema is OpenVINO's "IR syntax" page.

use std::fmt::Write as _;

use heg_artifacts::manifest::ElementType;
use quick_xml::escape::escape;

use super::literals::Literals;

/// Size of one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dim {
    /// Known.
    Fixed(u32),
    /// Known at run time.
    Dynamic,
}

impl From<u32> for Dim {
    fn from(value: u32) -> Self {
        Self::Fixed(value)
    }
}

/// One output of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wire {
    layer: usize,
    port: usize,
    pub(crate) element: Element,
    pub(crate) shape: Vec<Dim>,
}

/// Element types of wires: those of a bundle, and those of intermediate results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    Typed(ElementType),
    I32,
    Boolean,
}

impl From<ElementType> for Element {
    fn from(element: ElementType) -> Self {
        Self::Typed(element)
    }
}

impl Element {
    /// Name in `element_type` and `destination_type`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Typed(ElementType::I4) => "i4",
            Self::Typed(ElementType::U4) => "u4",
            Self::Typed(ElementType::I8) => "i8",
            Self::Typed(ElementType::F16) => "f16",
            Self::Typed(ElementType::Bf16) => "bf16",
            Self::Typed(ElementType::F32) => "f32",
            Self::Typed(ElementType::I64) => "i64",
            Self::I32 => "i32",
            Self::Boolean => "boolean",
        }
    }

    /// Name in a port's `precision`.
    pub(super) fn precision(self) -> &'static str {
        match self {
            Self::Typed(ElementType::I4) => "I4",
            Self::Typed(ElementType::U4) => "U4",
            Self::Typed(ElementType::I8) => "I8",
            Self::Typed(ElementType::F16) => "FP16",
            Self::Typed(ElementType::Bf16) => "BF16",
            Self::Typed(ElementType::F32) => "FP32",
            Self::Typed(ElementType::I64) => "I64",
            Self::I32 => "I32",
            Self::Boolean => "BOOL",
        }
    }
}

/// An IR under construction.
pub(crate) struct Ir<'l> {
    literals: &'l mut Literals,
    layers: String,
    edges: String,
    count: usize,
}

impl<'l> Ir<'l> {
    /// An empty IR whose small constants go to `literals`.
    pub(crate) fn new(literals: &'l mut Literals) -> Self {
        Self {
            literals,
            layers: String::new(),
            edges: String::new(),
            count: 0,
        }
    }

    /// The finished document.
    pub(crate) fn finish(self, name: &str) -> String {
        format!(
            "<?xml version=\"1.0\"?>\n<net name=\"{}\" version=\"11\">\n<layers>\n{}</layers>\n<edges>\n{}</edges>\n<rt_info/>\n</net>\n",
            escape(name),
            self.layers,
            self.edges
        )
    }

    /// A model input.
    pub(crate) fn parameter(&mut self, name: &str, element: ElementType, shape: Vec<Dim>) -> Wire {
        let data = format!(
            "shape=\"{}\" element_type=\"{}\"",
            join(&shape, ",", "?"),
            Element::from(element).name()
        );
        let wire = self.layer_named(
            name,
            "Parameter",
            "opset1",
            &data,
            "",
            &[],
            &[(element.into(), shape)],
        );
        wire[0].clone()
    }

    /// A model output.
    pub(crate) fn result(&mut self, name: &str, input: &Wire) {
        self.layer_named(name, "Result", "opset1", "", "", &[input], &[]);
    }

    /// A constant at section `index` of the kernel's weights.
    pub(crate) fn weight(
        &mut self,
        name: &str,
        index: usize,
        element: ElementType,
        shape: &[u32],
    ) -> Wire {
        let elements = shape.iter().map(|d| u64::from(*d)).product();
        let bytes = element.bytes_of(elements).unwrap_or(u64::MAX);
        self.constant(name, &format!("@{index}"), bytes, element, shape)
    }

    /// A small i64 constant; `shape` is a scalar or a list.
    pub(crate) fn integers(&mut self, values: &[i64], shape: LiteralShape) -> Wire {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.literal(&bytes, ElementType::I64, values.len(), shape)
    }

    /// `0, 1, …, count − 1` as an i32 constant.
    pub(crate) fn counting(&mut self, count: u32) -> Wire {
        let bytes: Vec<u8> = (0..count).flat_map(u32::to_le_bytes).collect();
        self.literal(&bytes, Element::I32, count as usize, LiteralShape::List)
    }

    /// An i32 scalar.
    pub(crate) fn integer(&mut self, value: u32) -> Wire {
        self.literal(&value.to_le_bytes(), Element::I32, 1, LiteralShape::Scalar)
    }

    /// An f32 scalar.
    pub(crate) fn float(&mut self, value: f32) -> Wire {
        self.literal(
            &value.to_le_bytes(),
            ElementType::F32,
            1,
            LiteralShape::Scalar,
        )
    }

    /// A scalar in the element type of `like` (f16 or f32).
    pub(crate) fn float_like(&mut self, value: f32, like: &Wire) -> Wire {
        match like.element {
            Element::Typed(ElementType::F16) => {
                let bytes = half::f16::from_f32(value).to_le_bytes();
                self.literal(&bytes, ElementType::F16, 1, LiteralShape::Scalar)
            }
            _ => self.float(value),
        }
    }

    fn literal(
        &mut self,
        bytes: &[u8],
        element: impl Into<Element>,
        count: usize,
        shape: LiteralShape,
    ) -> Wire {
        let offset = self.literals.place(bytes);
        let shape: Vec<u32> = match shape {
            LiteralShape::Scalar => Vec::new(),
            LiteralShape::List => vec![count as u32],
        };
        self.constant(
            "",
            &format!("@c+{offset}"),
            bytes.len() as u64,
            element,
            &shape,
        )
    }

    fn constant(
        &mut self,
        name: &str,
        offset: &str,
        bytes: u64,
        element: impl Into<Element>,
        shape: &[u32],
    ) -> Wire {
        let element = element.into();
        let dims: Vec<Dim> = shape.iter().copied().map(Dim::Fixed).collect();
        let data = format!(
            "element_type=\"{}\" shape=\"{}\" offset=\"{offset}\" size=\"{bytes}\"",
            element.name(),
            join(&dims, ", ", "?")
        );
        let wire = self.layer_named(name, "Const", "opset1", &data, "", &[], &[(element, dims)]);
        wire[0].clone()
    }

    /// A layer with one output.
    pub(crate) fn op(
        &mut self,
        kind: &str,
        opset: &str,
        data: &str,
        inputs: &[&Wire],
        element: impl Into<Element>,
        shape: Vec<Dim>,
    ) -> Wire {
        let wires = self.layer_named(
            "",
            kind,
            opset,
            data,
            "",
            inputs,
            &[(element.into(), shape)],
        );
        wires[0].clone()
    }

    /// A layer with several outputs.
    pub(crate) fn op_many(
        &mut self,
        kind: &str,
        opset: &str,
        inputs: &[&Wire],
        outputs: &[(Element, Vec<Dim>)],
    ) -> Vec<Wire> {
        self.layer_named("", kind, opset, "", "", inputs, outputs)
    }

    /// A conversion that plugins may skip by keeping the weights compressed.
    pub(crate) fn decompress(&mut self, input: &Wire, element: ElementType) -> Wire {
        let data = format!("destination_type=\"{}\"", Element::from(element).name());
        let info = "<rt_info><attribute name=\"decompression\" version=\"0\"/></rt_info>";
        let shape = input.shape.clone();
        let wires = self.layer_named(
            "",
            "Convert",
            "opset1",
            &data,
            info,
            &[input],
            &[(element.into(), shape)],
        );
        wires[0].clone()
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the fields of an IR layer, each named at the one place that writes them"
    )]
    fn layer_named(
        &mut self,
        name: &str,
        kind: &str,
        opset: &str,
        data: &str,
        info: &str,
        inputs: &[&Wire],
        outputs: &[(Element, Vec<Dim>)],
    ) -> Vec<Wire> {
        let id = self.count;
        self.count += 1;
        let shown = if name.is_empty() {
            format!("{kind}_{id}")
        } else {
            escape(name).into_owned()
        };
        let xml = &mut self.layers;
        // Writing to a String cannot fail.
        let _ = writeln!(
            xml,
            "<layer id=\"{id}\" name=\"{shown}\" type=\"{kind}\" version=\"{opset}\">"
        );
        if !data.is_empty() {
            let _ = writeln!(xml, "<data {data}/>");
        }
        if !info.is_empty() {
            let _ = writeln!(xml, "{info}");
        }
        if !inputs.is_empty() {
            xml.push_str("<input>\n");
            for (port, input) in inputs.iter().enumerate() {
                write_port(xml, port, "", input.element, &input.shape);
                let _ = writeln!(
                    self.edges,
                    "<edge from-layer=\"{}\" from-port=\"{}\" to-layer=\"{id}\" to-port=\"{port}\"/>",
                    input.layer, input.port
                );
            }
            xml.push_str("</input>\n");
        }
        if !outputs.is_empty() {
            xml.push_str("<output>\n");
            for (index, (element, shape)) in outputs.iter().enumerate() {
                let names = if name.is_empty() { "" } else { shown.as_str() };
                write_port(xml, inputs.len() + index, names, *element, shape);
            }
            xml.push_str("</output>\n");
        }
        xml.push_str("</layer>\n");
        let wire = |(index, (element, shape)): (usize, &(Element, Vec<Dim>))| Wire {
            layer: id,
            port: inputs.len() + index,
            element: *element,
            shape: shape.clone(),
        };
        outputs.iter().enumerate().map(wire).collect()
    }
}

/// Shape of a small constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LiteralShape {
    Scalar,
    List,
}

fn write_port(xml: &mut String, port: usize, names: &str, element: Element, shape: &[Dim]) {
    let names = if names.is_empty() {
        String::new()
    } else {
        format!(" names=\"{names}\"")
    };
    let _ = write!(
        xml,
        "<port id=\"{port}\" precision=\"{}\"{names}>",
        element.precision()
    );
    for dim in shape {
        match dim {
            Dim::Fixed(size) => {
                let _ = write!(xml, "<dim>{size}</dim>");
            }
            Dim::Dynamic => xml.push_str("<dim>-1</dim>"),
        }
    }
    xml.push_str("</port>\n");
}

fn join(shape: &[Dim], separator: &str, dynamic: &str) -> String {
    let dims: Vec<String> = shape
        .iter()
        .map(|dim| match dim {
            Dim::Fixed(size) => size.to_string(),
            Dim::Dynamic => dynamic.to_owned(),
        })
        .collect();
    dims.join(separator)
}
