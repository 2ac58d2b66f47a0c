//! A parsed IR: its layers with their ports, for verification and for `--emit ir`.

use std::collections::BTreeMap;
use std::fmt;

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

/// The layers and edges of an IR, as in its text.
#[derive(Debug, Default)]
pub(crate) struct IrDocument {
    pub(crate) layers: Vec<IrLayer>,
    pub(crate) edges: Vec<IrEdge>,
}

/// One `<layer>`.
#[derive(Debug, Default)]
pub(crate) struct IrLayer {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) kind: String,
    /// Attributes of its `<data>`, in order.
    pub(crate) data: Vec<(String, String)>,
    pub(crate) inputs: Vec<IrPort>,
    pub(crate) outputs: Vec<IrPort>,
}

/// One `<port>`.
#[derive(Debug, Default)]
pub(crate) struct IrPort {
    pub(crate) id: String,
    pub(crate) precision: String,
    /// Dimensions, −1 where dynamic.
    pub(crate) shape: Vec<i64>,
}

/// One `<edge>`: layer and port, from and to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IrEdge {
    pub(crate) from: (String, String),
    pub(crate) to: (String, String),
}

impl IrLayer {
    /// An attribute of `<data>`.
    pub(crate) fn datum(&self, name: &str) -> Option<&str> {
        let mut data = self.data.iter();
        data.find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

impl IrPort {
    /// Element type and dimensions, e.g. `FP32[?,64]`.
    pub(crate) fn shown(&self) -> String {
        let dims = self.shape.iter().map(|dim| match dim {
            -1 => "?".to_owned(),
            size => size.to_string(),
        });
        format!("{}[{}]", self.precision, dims.collect::<Vec<_>>().join(","))
    }
}

impl IrDocument {
    /// The origins of the edges to each port, by layer and port.
    pub(crate) fn sources(&self) -> BTreeMap<(&str, &str), Vec<(&str, &str)>> {
        let mut sources: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for IrEdge { from, to } in &self.edges {
            let givers = sources.entry((to.0.as_str(), to.1.as_str())).or_default();
            givers.push((from.0.as_str(), from.1.as_str()));
        }
        sources
    }

    /// Parses an IR written by this crate.
    pub(crate) fn read(ir: &str) -> Result<Self, quick_xml::Error> {
        let mut document = Self::default();
        let mut reader = Reader::from_str(ir);
        let mut in_outputs = false;
        loop {
            let event = reader.read_event()?;
            match &event {
                Event::Start(tag) | Event::Empty(tag) => match tag.name().as_ref() {
                    "input" | "output" => in_outputs = tag.name().as_ref() == "output",
                    _ => document.open(tag, in_outputs)?,
                },
                Event::Text(text) => {
                    if let Ok(dim) = text.as_ref().trim().parse() {
                        let port = document.layers.last_mut();
                        let port = port.and_then(|layer| layer.ports(in_outputs).last_mut());
                        port.into_iter().for_each(|port| port.shape.push(dim));
                    }
                }
                Event::Eof => return Ok(document),
                _ => {}
            }
        }
    }

    fn open(&mut self, tag: &BytesStart<'_>, in_outputs: bool) -> Result<(), quick_xml::Error> {
        let mut all = Vec::new();
        for attribute in tag.attributes() {
            let attribute = attribute?;
            let value = attribute.normalized_value(XmlVersion::Implicit1_0)?;
            all.push((attribute.key.as_ref().to_owned(), value.into_owned()));
        }
        let by_name: BTreeMap<&str, &str> = all
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let take = |name: &str| by_name.get(name).copied().unwrap_or_default().to_owned();
        match (tag.name().as_ref(), self.layers.last_mut()) {
            ("layer", _) => self.layers.push(IrLayer {
                id: take("id"),
                name: take("name"),
                kind: take("type"),
                ..IrLayer::default()
            }),
            ("data", Some(layer)) => layer.data = all,
            ("port", Some(layer)) => layer.ports(in_outputs).push(IrPort {
                id: take("id"),
                precision: take("precision"),
                shape: Vec::new(),
            }),
            ("edge", _) => self.edges.push(IrEdge {
                from: (take("from-layer"), take("from-port")),
                to: (take("to-layer"), take("to-port")),
            }),
            _ => {}
        }
        Ok(())
    }
}

impl IrLayer {
    fn ports(&mut self, in_outputs: bool) -> &mut Vec<IrPort> {
        match in_outputs {
            true => &mut self.outputs,
            false => &mut self.inputs,
        }
    }
}

impl fmt::Display for IrDocument {
    /// Writes stable text with a line for each layer: outputs, kind, operands as `layer:port`, attributes, name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources = self.sources();
        for layer in &self.layers {
            let outputs: Vec<String> = layer.outputs.iter().map(IrPort::shown).collect();
            let operands = layer.inputs.iter().map(|port| {
                let from = sources.get(&(layer.id.as_str(), port.id.as_str()));
                let from = from.and_then(|from| from.first());
                from.map_or_else(|| "?".to_owned(), |(layer, port)| format!("{layer}:{port}"))
            });
            let operands: Vec<String> = operands.collect();
            write!(f, "{:>4} ", layer.id)?;
            if !outputs.is_empty() {
                write!(f, "{} = ", outputs.join(", "))?;
            }
            write!(f, "{}({})", layer.kind, operands.join(", "))?;
            for (name, value) in &layer.data {
                write!(f, " {name}={value}")?;
            }
            if !layer.name.ends_with(&format!("_{}", layer.id)) {
                write!(f, " \"{}\"", layer.name)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
