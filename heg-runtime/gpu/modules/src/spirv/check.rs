//! The check: a module computes nothing that a driver may compute otherwise, and asks for nothing that is not listed.

use std::collections::HashSet;

use super::{Instruction, SpirvError, instructions, op, text};

/// The properties of a sound module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// Float operations, each with NoContraction.
    pub float_operations: usize,
    /// Capabilities that it asks for, ascending.
    pub capabilities: Vec<u32>,
}

/// Shader, PhysicalStorageBufferAddresses, DotProductInput4x8BitPacked, DotProduct; DenormPreserve,
/// SignedZeroInfNanPreserve and RoundingModeRTE, which a host declares where the driver offers them.
const CAPABILITIES: [u32; 7] = [1, 5347, 6018, 6019, 4464, 4466, 4467];

const EXTENSIONS: [&str; 3] = [
    "SPV_KHR_physical_storage_buffer",
    "SPV_KHR_integer_dot_product",
    "SPV_KHR_float_controls",
];

const INSTRUCTION_SET: &str = "GLSL.std.450";

/// FAbs, Sqrt, FMin, UMin, SMin, FMax, UMax, SMax, Fma: exact, or what the probe decides about. Built-in exponentials and
/// the like have bits of the driver's own.
const INSTRUCTIONS: [u32; 9] = [4, 31, 37, 38, 39, 40, 41, 42, 50];

/// FAdd, FSub, FMul, FDiv.
const ARITHMETIC: [u16; 4] = [129, 131, 133, 136];

/// QuantizeToF16, FRem, FMod, and products of vectors and matrices: none has one order of operations.
const REFUSED: [u16; 10] = [116, 140, 141, 142, 143, 144, 145, 146, 147, 148];

const NO_CONTRACTION: u32 = 42;
const GL_COMPUTE: u32 = 5;

/// Checks a module as a bundle may carry it.
///
/// # Errors
///
/// [`SpirvError`], of the first thing that is wrong.
pub fn check(words: &[u32]) -> Result<Census, SpirvError> {
    let all: Vec<Instruction<'_>> = instructions(words)?.collect::<Result<_, _>>()?;
    let fixed: HashSet<u32> = all
        .iter()
        .filter(|found| found.operation == op::DECORATE && found.operand(1) == NO_CONTRACTION)
        .map(|found| found.operand(0))
        .collect();
    let mut census = Census::default();
    let mut entry_points = 0;
    for instruction in &all {
        check_listed(instruction)?;
        match instruction.operation {
            op::CAPABILITY => census.capabilities.push(instruction.operand(0)),
            op::ENTRY_POINT if instruction.operand(0) == GL_COMPUTE => entry_points += 1,
            operation if ARITHMETIC.contains(&operation) => {
                let result = instruction.operand(1);
                if !fixed.contains(&result) {
                    return Err(SpirvError::Contractible { operation, result });
                }
                census.float_operations += 1;
            }
            _ => {}
        }
    }
    if entry_points != 1 {
        return Err(SpirvError::EntryPoints {
            found: entry_points,
        });
    }
    census.capabilities.sort_unstable();
    Ok(census)
}

/// Fails where an instruction names what is not on its list.
fn check_listed(instruction: &Instruction<'_>) -> Result<(), SpirvError> {
    let require = |listed: bool, what: &'static str, found: String| match listed {
        true => Ok(()),
        false => Err(SpirvError::NotListed { what, found }),
    };
    let first = instruction.operand(0);
    match instruction.operation {
        op::CAPABILITY => require(
            CAPABILITIES.contains(&first),
            "capability",
            first.to_string(),
        ),
        op::EXTENSION => {
            let name = text(instruction.operands);
            require(EXTENSIONS.contains(&name.as_str()), "extension", name)
        }
        op::EXT_INST_IMPORT => {
            let name = text(instruction.operands.get(1..).unwrap_or_default());
            require(name == INSTRUCTION_SET, "instruction set", name)
        }
        op::EXT_INST => {
            let number = instruction.operand(3);
            let listed = INSTRUCTIONS.contains(&number);
            require(listed, "extended instruction", number.to_string())
        }
        op::ENTRY_POINT => require(first == GL_COMPUTE, "execution model", first.to_string()),
        op::TYPE_INT | op::TYPE_FLOAT => {
            let bits = instruction.operand(1);
            require(bits == 32, "a number's width in bits", bits.to_string())
        }
        operation if REFUSED.contains(&operation) => {
            require(false, "operation", operation.to_string())
        }
        _ => Ok(()),
    }
}
