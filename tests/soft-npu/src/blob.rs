//! Ports of a blob, from the section of its ELF that the driver reads them from.
//!
//! The section is a sequence of tables, each behind `{start, end, entries, bytes of an entry}`: identification,
//! resources, inputs and outputs as the network has them, inputs and outputs as the device does, profiling (twice),
//! then the nodes of OpenVINO's model for inputs and for results. Entries are `elf::TensorRef` and `elf::OVNode` of
//! npu_plugin_elf, which the driver reads in `level_zero_driver/source/ext/elf_parser.cpp`. Blobs are foreign bytes:
//! nothing panics.

use crate::error::SoftNpuError;

/// A blob as the driver describes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BlobFacts {
    /// Name of the network.
    pub(crate) name: String,
    /// Platform that it was compiled for, as the compiler spells it.
    pub(crate) platform: String,
    /// Inputs, then outputs.
    pub(crate) ports: Vec<BlobPort>,
}

/// An input or output of a blob.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BlobPort {
    pub(crate) name: String,
    pub(crate) friendly_name: String,
    pub(crate) input_name: String,
    pub(crate) tensor_names: Vec<String>,
    pub(crate) is_input: bool,
    /// `ze_graph_argument_precision_t`.
    pub(crate) precision: u32,
    /// Size of an element.
    pub(crate) element_bits: u64,
    /// `ze_graph_metadata_type`, which has the numbers of `elf::OVNodeType`.
    pub(crate) node_type: u32,
    /// Shape on the device.
    pub(crate) dims: Vec<u32>,
    /// Shape in OpenVINO's model.
    pub(crate) node_shape: Vec<u64>,
}

impl BlobPort {
    /// Size of its tensor; `usize::MAX` if that cannot be counted.
    pub(crate) fn bytes(&self) -> usize {
        let dims = self.dims.iter().map(|dim| u64::from(*dim));
        let bits = dims.fold(self.element_bits, u64::saturating_mul);
        usize::try_from(bits.div_ceil(8)).unwrap_or(usize::MAX)
    }
}

impl BlobFacts {
    /// Reads a blob.
    ///
    /// # Errors
    ///
    /// [`SoftNpuError::Blob`], with the first part that is wrong.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, SoftNpuError> {
        let section = metadata(bytes)?;
        let tables = tables(section)?;
        let table = |index: usize| {
            let found = || wrong("tables", "ten", tables.len());
            tables.get(index).ok_or_else(found)
        };
        let identification = table(IDENTIFICATION)?.entry("identification", 0)?;
        let mut ports = Vec::new();
        for (is_input, tensors, nodes) in [
            (true, table(INPUTS)?, table(INPUT_NODES)?),
            (false, table(OUTPUTS)?, table(OUTPUT_NODES)?),
        ] {
            for index in 0..tensors.entries {
                let tensor = tensors.entry("tensors", index)?;
                let node = nodes.entry("nodes", index)?;
                ports.push(port(is_input, tensor, node)?);
            }
        }
        Ok(Self {
            platform: text(identification, 0),
            name: text(identification, NAME_BYTES),
            ports,
        })
    }
}

fn port(is_input: bool, tensor: &[u8], node: &[u8]) -> Result<BlobPort, SoftNpuError> {
    let rank = number32(tensor, TENSOR_RANK).min(DIMS_MAX) as usize;
    let node_rank = number32(node, NODE_RANK).min(DIMS_MAX) as usize;
    let names = number32(node, NODE_NAMES).min(TENSOR_NAMES_MAX) as usize;
    let (precision, element_bits) = precision(number32(tensor, TENSOR_TYPE))?;
    Ok(BlobPort {
        name: text(tensor, TENSOR_NAME),
        friendly_name: text(node, NODE_FRIENDLY_NAME),
        input_name: text(node, NODE_INPUT_NAME),
        tensor_names: (0..names)
            .map(|index| text(node, NAME_BYTES * index))
            .collect(),
        is_input,
        precision,
        element_bits,
        node_type: number32(node, NODE_TYPE),
        dims: (0..rank)
            .map(|dim| number32(tensor, TENSOR_DIMS + 4 * dim))
            .collect(),
        node_shape: (0..node_rank)
            .map(|dim| number64(node, NODE_SHAPE + 8 * dim))
            .collect(),
    })
}

/// From `elf::DType` to `ze_graph_argument_precision_t`, and the size of an element in bits (driver, `elf_parser.cpp`,
/// `getTensorPrecision`).
fn precision(kind: u32) -> Result<(u32, u64), SoftNpuError> {
    Ok(match kind {
        1 => (0x0F, 64),
        2 => (0x01, 32),
        3 => (0x02, 16),
        5 => (0x10, 64),
        6 => (0x0A, 32),
        7 => (0x03, 16),
        8 => (0x04, 8),
        9 => (0x11, 64),
        10 => (0x05, 32),
        11 => (0x06, 16),
        12 => (0x07, 8),
        13 => (0x0C, 4),
        20 => (0x0B, 4),
        other => return Err(wrong("element type", "1 to 13, or 20", other)),
    })
}

/// A table of the section.
struct Table<'b> {
    bytes: &'b [u8],
    entries: usize,
    entry_bytes: usize,
}

impl<'b> Table<'b> {
    fn entry(&self, part: &'static str, index: usize) -> Result<&'b [u8], SoftNpuError> {
        let start = index.saturating_mul(self.entry_bytes);
        let entry = self
            .bytes
            .get(start..start.saturating_add(self.entry_bytes));
        entry.ok_or_else(|| wrong(part, &format!("entry {index}"), self.entries))
    }
}

fn tables(section: &[u8]) -> Result<Vec<Table<'_>>, SoftNpuError> {
    let mut all = Vec::new();
    let mut at = 0_usize;
    while at.saturating_add(HEADER_BYTES) <= section.len() {
        let field = |index: usize| {
            let value = number64(section, at + 8 * index);
            usize::try_from(value).unwrap_or(usize::MAX)
        };
        let (start, end, entries, entry_bytes) = (field(0), field(1), field(2), field(3));
        let bytes = match entries {
            0 => &[][..],
            _ => {
                let length = entries.saturating_mul(entry_bytes);
                let bytes = section.get(start..start.saturating_add(length));
                bytes.ok_or_else(|| wrong("table", "within its section", length))?
            }
        };
        all.push(Table {
            bytes,
            entries,
            entry_bytes,
        });
        if end <= at || all.len() == TABLES_MAX {
            break;
        }
        at = end;
    }
    Ok(all)
}

/// The section with the ports. The compiler writes version 0 where ELF asks for 1, which readers of ELF refuse.
fn metadata(bytes: &[u8]) -> Result<&[u8], SoftNpuError> {
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        let start = bytes.get(..6).unwrap_or(bytes);
        return Err(wrong(
            "header",
            "that of a 64-bit ELF file",
            start.escape_ascii(),
        ));
    }
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    let table = bytes.get(at(number64(bytes, 40))..).unwrap_or_default();
    let count = usize::from(number16(bytes, 60));
    let mut headers = table.chunks_exact(SECTION_HEADER_BYTES).take(count);
    let header = headers.find(|header| number32(header, 4) == METADATA);
    let header = header.ok_or_else(|| wrong("sections", "one with ports", count))?;
    let (start, length) = (at(number64(header, 24)), at(number64(header, 32)));
    let section = bytes.get(start..start.saturating_add(length));
    section.ok_or_else(|| wrong("section with ports", "within the file", start))
}

fn wrong(part: &'static str, expected: &str, found: impl ToString) -> SoftNpuError {
    SoftNpuError::Blob {
        part,
        expected: expected.to_owned(),
        found: found.to_string(),
    }
}

fn number16(bytes: &[u8], at: usize) -> u16 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |field| u16::from_le_bytes(*field))
}

/// A little-endian number; zero where the entry is too short, as the driver's structures are where a blob is older.
fn number32(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |field| u32::from_le_bytes(*field))
}

fn number64(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |field| u64::from_le_bytes(*field))
}

fn text(bytes: &[u8], at: usize) -> String {
    let field = bytes.get(at..at + NAME_BYTES).unwrap_or_default();
    let end = field.iter().position(|byte| *byte == 0);
    let text = field.get(..end.unwrap_or(field.len())).unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

// Type of the section, and numbers of its tables (npu_plugin_elf).
const METADATA: u32 = 0x8aaa_aaaa;
const IDENTIFICATION: usize = 0;
const INPUTS: usize = 4;
const OUTPUTS: usize = 5;
const INPUT_NODES: usize = 8;
const OUTPUT_NODES: usize = 9;

const HEADER_BYTES: usize = 32;
const SECTION_HEADER_BYTES: usize = 64;
/// Chosen: more than there are.
const TABLES_MAX: usize = 64;
const NAME_BYTES: usize = 256;
/// `ZE_MAX_GRAPH_TENSOR_REF_DIMS`.
const DIMS_MAX: u32 = 8;
/// `ZE_MAX_GRAPH_TENSOR_NAMES_SIZE`.
const TENSOR_NAMES_MAX: u32 = 32;

// Offsets within `elf::TensorRef`.
const TENSOR_DIMS: usize = 0x48;
const TENSOR_NAME: usize = 0x68;
const TENSOR_TYPE: usize = 0x170;
const TENSOR_RANK: usize = 0x174;

// Offsets within `elf::OVNode`, behind the names of its tensors.
const NODE_SHAPE: usize = 8192;
const NODE_FRIENDLY_NAME: usize = 8256;
const NODE_INPUT_NAME: usize = 8512;
const NODE_TYPE: usize = 8768;
const NODE_RANK: usize = 8772;
const NODE_NAMES: usize = 8776;

#[cfg(test)]
mod tests {
    use super::*;

    /// Of OpenVINO's compiler: f16 [16, 64] times [64, 64], both of them inputs.
    const BLOBS: [&[u8]; 2] = [
        include_bytes!("../../../profiler/testdata/matmul-3720.blob"),
        include_bytes!("../../../profiler/testdata/matmul-4000.blob"),
    ];

    #[test]
    fn a_blob_says_what_its_ports_are() {
        for (blob, platform) in BLOBS.iter().zip(["3720", "4000"]) {
            let facts = BlobFacts::read(blob).unwrap();
            assert!(facts.platform.contains(platform), "{facts:?}");
            let ports = facts.ports.iter();
            let found: Vec<_> = ports
                .map(|port| {
                    (
                        port.is_input,
                        port.dims.clone(),
                        port.precision,
                        port.bytes(),
                    )
                })
                .collect();
            let expected = [
                (true, vec![16, 64], 0x02, 2048),
                (true, vec![64, 64], 0x02, 8192),
                (false, vec![16, 64], 0x02, 2048),
            ];
            assert_eq!(found, expected);
            assert!(facts.ports.iter().all(|port| port.node_shape.len() == 2));
        }
    }

    #[test]
    fn bytes_that_are_cut_or_changed_are_read_or_refused() {
        for blob in BLOBS {
            for length in (0..blob.len()).step_by(97) {
                let _ = BlobFacts::read(&blob[..length]);
            }
            for at in (0..blob.len()).step_by(7) {
                let mut changed = blob.to_vec();
                changed[at] = !changed[at];
                let _ = BlobFacts::read(&changed);
            }
        }
    }

    #[test]
    fn what_is_no_blob_is_refused_with_what_it_begins_with() {
        let error = BlobFacts::read(b"not a blob").unwrap_err().to_string();
        let text = "header of the blob: expected that of a 64-bit ELF file, found not a ";
        assert_eq!(error, text);
    }
}
