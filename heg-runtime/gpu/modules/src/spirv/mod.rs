//! SPIR-V as words: its frame, the check that a module keeps the bits of the CPU programs, and the overwriting of
//! specialisation constants. Plain Rust without Vulkan, so that whoever writes or verifies a bundle can use it.
//!
//! A parser of our own: the frame of the format is one line (a length and an operation in the first word of each
//! instruction), while the crate for it brings types for all of the specification's 800 operations, none of which are
//! needed to read four of them.

mod check;
mod fold;
mod packed;
mod specialise;
#[cfg(test)]
mod tests;

pub use check::{Census, check};
pub use fold::fold;
pub use packed::{pack, unpack};
pub(crate) use packed::{packed_file, packed_length};
pub use specialise::{Declarations, constants, declare, specialise};

/// First word of every module.
const MAGIC: u32 = 0x0723_0203;

/// Words before the first instruction: magic, version, generator, bound, schema.
const HEADER_WORDS: usize = 5;

/// Operations that are looked for, by their numbers in the specification.
mod op {
    pub(super) const NOP: u16 = 0;
    pub(super) const EXTENSION: u16 = 10;
    pub(super) const EXT_INST_IMPORT: u16 = 11;
    pub(super) const EXT_INST: u16 = 12;
    pub(super) const ENTRY_POINT: u16 = 15;
    pub(super) const EXECUTION_MODE: u16 = 16;
    pub(super) const CAPABILITY: u16 = 17;
    pub(super) const TYPE_INT: u16 = 21;
    pub(super) const TYPE_FLOAT: u16 = 22;
    pub(super) const CONSTANT_TRUE: u16 = 41;
    pub(super) const CONSTANT_FALSE: u16 = 42;
    pub(super) const CONSTANT: u16 = 43;
    pub(super) const SPEC_CONSTANT_TRUE: u16 = 48;
    pub(super) const SPEC_CONSTANT_FALSE: u16 = 49;
    pub(super) const SPEC_CONSTANT: u16 = 50;
    pub(super) const SPEC_CONSTANT_OP: u16 = 52;
    pub(super) const DECORATE: u16 = 71;
    pub(super) const PHI: u16 = 245;
    pub(super) const SELECTION_MERGE: u16 = 247;
    pub(super) const LABEL: u16 = 248;
    pub(super) const BRANCH: u16 = 249;
    pub(super) const BRANCH_CONDITIONAL: u16 = 250;
}

/// The faults of a module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpirvError {
    /// It does not start as SPIR-V does.
    #[error("it starts with {found:#010x}, SPIR-V with {MAGIC:#010x}")]
    Magic {
        /// Its first word.
        found: u32,
    },
    /// A section has other bytes than those that words are packed to.
    #[error("byte {at} of its section ends no packed word")]
    Packed {
        /// Position of the byte.
        at: usize,
    },
    /// An instruction has no words, or more than are left.
    #[error("an instruction of {length} words at word {at} of {words}")]
    Frame {
        /// Word at which the instruction starts.
        at: usize,
        /// Words that it claims.
        length: usize,
        /// Words of the module.
        words: usize,
    },
    /// It asks for something that is not on the list.
    #[error("{what} {found} is not among those that modules may have")]
    NotListed {
        /// Kind of thing.
        what: &'static str,
        /// Its number or name.
        found: String,
    },
    /// A float operation without NoContraction, whose bits a driver may change.
    #[error("operation {operation} with result %{result} may be contracted")]
    Contractible {
        /// Number of the operation.
        operation: u16,
        /// Identifier of its result.
        result: u32,
    },
    /// It has not one entry point for computing.
    #[error("{found} entry points for computing instead of one")]
    EntryPoints {
        /// Number of its entry points.
        found: usize,
    },
}

/// An instruction of a module.
#[derive(Debug, Clone, Copy)]
struct Instruction<'a> {
    operation: u16,
    /// Word of the module that it starts with.
    at: usize,
    operands: &'a [u32],
}

impl Instruction<'_> {
    /// An operand; 0, which names nothing, where there is none.
    fn operand(&self, index: usize) -> u32 {
        self.operands.get(index).copied().unwrap_or(0)
    }
}

/// The instructions of a module, in order; an error ends them.
fn instructions(
    words: &[u32],
) -> Result<impl Iterator<Item = Result<Instruction<'_>, SpirvError>>, SpirvError> {
    let magic = words.first().copied().unwrap_or(0);
    if magic != MAGIC || words.len() < HEADER_WORDS {
        return Err(SpirvError::Magic { found: magic });
    }
    let mut at = HEADER_WORDS;
    Ok(std::iter::from_fn(move || {
        let first = *words.get(at)?;
        let length = (first >> 16) as usize;
        let operands = words.get(at + 1..at.saturating_add(length));
        let found = match operands {
            Some(operands) if length > 0 => Ok(Instruction {
                operation: first as u16,
                at,
                operands,
            }),
            _ => Err(SpirvError::Frame {
                at,
                length,
                words: words.len(),
            }),
        };
        at = match found {
            Ok(_) => at + length,
            Err(_) => words.len(),
        };
        Some(found)
    }))
}

/// First word of an instruction.
const fn word(length: usize, operation: u16) -> u32 {
    (length as u32) << 16 | operation as u32
}

/// A string of the format: bytes up to the first zero.
fn text(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
