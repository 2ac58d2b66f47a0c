//! Branches that constants decide. Shaders have every form of a step behind conditions on specialisation constants, and
//! drivers put all functions into one before they look at a condition: some then compile code that never runs for most of a
//! second.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::{Instruction, SpirvError, instructions, op, word};

/// Makes each branch that the values of constants decide a jump to the taken side, in place. Returns how many there were.
///
/// A branch stays if its sides meet in a block that chooses values by where it was reached from (`OpPhi`).
///
/// # Errors
///
/// [`SpirvError::Magic`], [`SpirvError::Frame`].
pub fn fold(words: &mut [u32]) -> Result<usize, SpirvError> {
    let jumps = Branches::of(words)?.jumps();
    for (at, target) in &jumps {
        let Some(branch) = words.get_mut(at.clone()) else {
            continue;
        };
        branch.fill(word(1, op::NOP));
        if let [.., jump, to] = branch {
            (*jump, *to) = (word(2, op::BRANCH), *target);
        }
    }
    Ok(jumps.len())
}

/// The branches of a module that constants decide.
#[derive(Default)]
struct Branches {
    decided: Vec<Decided>,
    /// Blocks that choose values by where they were reached from.
    choosing: HashSet<u32>,
}

struct Decided {
    /// Words of the branch and of the declaration of its merge block before it.
    at: Range<usize>,
    /// The block in which both sides meet.
    merge: u32,
    /// The block that it always goes to.
    target: u32,
}

impl Branches {
    fn of(words: &[u32]) -> Result<Self, SpirvError> {
        let mut found = Self::default();
        let mut values = HashMap::new();
        let (mut merge, mut block) = (None, 0);
        for instruction in instructions(words)? {
            let instruction = instruction?;
            if let Some((id, value)) = constant(&instruction, &values) {
                values.insert(id, value);
            }
            match instruction.operation {
                op::LABEL => block = instruction.operand(0),
                op::PHI => {
                    found.choosing.insert(block);
                }
                op::BRANCH_CONDITIONAL => {
                    let value = values.get(&instruction.operand(0));
                    found.decided.extend(
                        merge
                            .zip(value)
                            .and_then(|(merge, value)| Decided::new(merge, &instruction, *value)),
                    );
                }
                _ => {}
            }
            merge = (instruction.operation == op::SELECTION_MERGE)
                .then(|| (instruction.at, instruction.operand(0)));
        }
        Ok(found)
    }

    /// Words to overwrite, and the block to go to.
    fn jumps(self) -> Vec<(Range<usize>, u32)> {
        let decided = self.decided.into_iter();
        let folded = decided.filter(|branch| !self.choosing.contains(&branch.merge));
        folded.map(|branch| (branch.at, branch.target)).collect()
    }
}

impl Decided {
    /// `None` for a branch without both sides.
    fn new((at, merge): (usize, u32), branch: &Instruction<'_>, condition: u32) -> Option<Self> {
        let [_, taken, other, ..] = branch.operands else {
            return None;
        };
        Some(Self {
            at: at..branch.at + 1 + branch.operands.len(),
            merge,
            target: if condition != 0 { *taken } else { *other },
        })
    }
}

/// The number that an instruction declares, and its value, if that is a word or a truth value: the numbers of `values` are
/// known already.
fn constant(instruction: &Instruction<'_>, values: &HashMap<u32, u32>) -> Option<(u32, u32)> {
    let known = |index: usize| values.get(instruction.operands.get(index)?).copied();
    let value = match (instruction.operation, instruction.operands) {
        (op::CONSTANT_TRUE | op::SPEC_CONSTANT_TRUE, _) => 1,
        (op::CONSTANT_FALSE | op::SPEC_CONSTANT_FALSE, _) => 0,
        (op::CONSTANT | op::SPEC_CONSTANT, [_, _, value]) => *value,
        (op::SPEC_CONSTANT_OP, [_, _, operation, _]) => one(*operation, known(3)?)?,
        (op::SPEC_CONSTANT_OP, [_, _, operation, _, _]) => two(*operation, known(3)?, known(4)?)?,
        (op::SPEC_CONSTANT_OP, [_, _, SELECT, _, _, _]) => {
            if known(3)? != 0 {
                known(4)?
            } else {
                known(5)?
            }
        }
        _ => return None,
    };
    Some((instruction.operand(1), value))
}

const SELECT: u32 = 169;

/// The value of an operation on one number; `None` for an operation that shaders have no use for.
fn one(operation: u32, a: u32) -> Option<u32> {
    match operation {
        168 => Some(u32::from(a == 0)), // LogicalNot
        _ => None,
    }
}

/// The value of an operation on two numbers, likewise.
fn two(operation: u32, a: u32, b: u32) -> Option<u32> {
    let value = match operation {
        128 => a.wrapping_add(b),               // IAdd
        130 => a.wrapping_sub(b),               // ISub
        132 => a.wrapping_mul(b),               // IMul
        134 => a.checked_div(b)?,               // UDiv
        137 => a.checked_rem(b)?,               // UMod
        164 => u32::from((a != 0) == (b != 0)), // LogicalEqual
        165 => u32::from((a != 0) != (b != 0)), // LogicalNotEqual
        166 => u32::from(a != 0 || b != 0),     // LogicalOr
        167 => u32::from(a != 0 && b != 0),     // LogicalAnd
        170 => u32::from(a == b),               // IEqual
        171 => u32::from(a != b),               // INotEqual
        172 => u32::from(a > b),                // UGreaterThan
        174 => u32::from(a >= b),               // UGreaterThanEqual
        176 => u32::from(a < b),                // ULessThan
        178 => u32::from(a <= b),               // ULessThanEqual
        _ => return None,
    };
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::Module;

    #[test]
    fn shaders_keep_only_what_their_constants_choose() {
        let mut report = String::new();
        for module in Module::ALL {
            let mut words = module.words();
            let before = words.len();
            let folded = fold(&mut words).unwrap_or_else(|error| panic!("{module:?}: {error}"));
            assert_eq!(words.len(), before);
            assert_eq!(fold(&mut words), Ok(0), "{module:?}: all at once");
            report.push_str(&format!("{}: {folded}\n", module.name()));
        }
        insta::assert_snapshot!(report);
    }

    /// A module with a condition, `7 == constant`, and both sides of a branch by it.
    fn branching(constant: u32, phi: bool) -> Vec<u32> {
        let header = [0x0723_0203, 0x0001_0300, 0, 20, 0];
        let of = |operation: u16, operands: &[u32]| {
            let mut instruction = vec![word(1 + operands.len(), operation)];
            instruction.extend(operands);
            instruction
        };
        let mut words = header.to_vec();
        words.extend(of(op::CONSTANT, &[1, 2, 7]));
        words.extend(of(op::SPEC_CONSTANT, &[1, 3, constant]));
        words.extend(of(op::SPEC_CONSTANT_OP, &[4, 5, 170, 2, 3]));
        words.extend(of(op::SELECTION_MERGE, &[8, 0]));
        words.extend(of(op::BRANCH_CONDITIONAL, &[5, 6, 7]));
        words.extend(of(op::LABEL, &[8]));
        if phi {
            words.extend(of(op::PHI, &[1, 9, 2, 6, 3, 7]));
        }
        words
    }

    #[test]
    fn a_branch_goes_where_its_condition_says() {
        for (constant, target) in [(7, 6), (8, 7)] {
            let mut words = branching(constant, false);
            let last = words.len() - 2;
            assert_eq!(fold(&mut words), Ok(1));
            assert_eq!(words[last - 2..last], [word(2, op::BRANCH), target]);
            assert_eq!(words[last - 7..last - 2], [word(1, op::NOP); 5]);
        }
    }

    #[test]
    fn a_branch_stays_where_its_sides_bring_values() {
        let mut words = branching(7, true);
        assert_eq!(fold(&mut words), Ok(0));
        assert_eq!(words, branching(7, true));
    }

    #[test]
    fn a_condition_that_is_not_known_stays() {
        let mut words = branching(7, false);
        let divided = words
            .iter_mut()
            .find(|operation| **operation == 170)
            .unwrap();
        *divided = 81;
        assert_eq!(fold(&mut words), Ok(0));
    }
}
