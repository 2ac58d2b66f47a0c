//! Changes to checked modules: values of specialisation constants, and declarations of how floats are computed.

use std::collections::HashMap;

use super::{SpirvError, instructions, op, word};

/// Decoration that numbers a specialisation constant.
const SPEC_ID: u32 = 1;

/// A module's demands on floats of 32 bits, as far as a driver offers it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Declarations {
    /// Rounding to nearest, ties to even.
    pub nearest: bool,
    /// Numbers too small to be normal are kept.
    pub denormals: bool,
    /// Signed zeros, infinities and NaN are kept.
    pub special: bool,
}

impl Declarations {
    /// Capability and execution mode of each that is declared.
    fn modes(self) -> impl Iterator<Item = (u32, u32)> {
        let all = [
            (self.denormals, (4464, 4459)),
            (self.special, (4466, 4461)),
            (self.nearest, (4467, 4462)),
        ];
        all.into_iter().filter_map(|(is, mode)| is.then_some(mode))
    }
}

/// Numbers of a module's specialisation constants, in its order.
///
/// # Errors
///
/// [`SpirvError::Magic`], [`SpirvError::Frame`].
pub fn constants(words: &[u32]) -> Result<Vec<u32>, SpirvError> {
    let mut numbers = Vec::new();
    for instruction in instructions(words)? {
        let instruction = instruction?;
        if instruction.operation == op::DECORATE && instruction.operand(1) == SPEC_ID {
            numbers.push(instruction.operand(2));
        }
    }
    Ok(numbers)
}

/// Overwrites the defaults of specialisation constants, by their numbers. Numbers that the module lacks are passed over.
///
/// # Errors
///
/// [`SpirvError::Magic`], [`SpirvError::Frame`].
pub fn specialise(words: &mut [u32], constants: &[(u32, u32)]) -> Result<(), SpirvError> {
    let mut numbers = HashMap::new();
    let mut changes = Vec::new();
    for instruction in instructions(words)? {
        let instruction = instruction?;
        match instruction.operation {
            op::DECORATE if instruction.operand(1) == SPEC_ID => {
                numbers.insert(instruction.operand(0), instruction.operand(2));
            }
            // A constant without a value would have that of the next instruction overwritten.
            op::SPEC_CONSTANT if instruction.operands.len() > 2 => {
                let number = numbers.get(&instruction.operand(1));
                let value = number.and_then(|number| {
                    let mut constants = constants.iter();
                    constants.find(|(of, _)| of == number)
                });
                if let Some((_, value)) = value {
                    changes.push((instruction.at + 3, *value));
                }
            }
            _ => {}
        }
    }
    for (at, value) in changes {
        if let Some(word) = words.get_mut(at) {
            *word = value;
        }
    }
    Ok(())
}

/// The module with declarations (SPV_KHR_float_controls).
///
/// # Errors
///
/// [`SpirvError::Magic`], [`SpirvError::Frame`].
pub fn declare(words: &[u32], declared: Declarations) -> Result<Vec<u32>, SpirvError> {
    let mut out = words
        .get(..super::HEADER_WORDS)
        .unwrap_or_default()
        .to_vec();
    if declared.modes().next().is_none() {
        return Ok(words.to_vec());
    }
    let name = b"SPV_KHR_float_controls\0\0".chunks_exact(4);
    let name = name.map(|b| {
        b.iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u32::from(*byte))
    });
    let name: Vec<u32> = name.collect();
    let (mut has_capabilities, mut entry_point, mut has_modes) = (false, None, false);
    for instruction in instructions(words)? {
        let instruction = instruction?;
        if instruction.operation != op::CAPABILITY && !has_capabilities {
            for (capability, _) in declared.modes() {
                out.extend([word(2, op::CAPABILITY), capability]);
            }
            out.push(word(1 + name.len(), op::EXTENSION));
            out.extend(&name);
            has_capabilities = true;
        }
        match (instruction.operation, entry_point) {
            (op::ENTRY_POINT, _) => entry_point = Some(instruction.operand(1)),
            (_, Some(entry_point)) if !has_modes => {
                for (_, mode) in declared.modes() {
                    out.extend([word(4, op::EXECUTION_MODE), entry_point, mode, 32]);
                }
                has_modes = true;
            }
            _ => {}
        }
        let end = instruction.at + 1 + instruction.operands.len();
        out.extend(words.get(instruction.at..end).unwrap_or_default());
    }
    Ok(out)
}
