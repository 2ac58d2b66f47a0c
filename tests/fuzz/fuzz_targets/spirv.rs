//! Reads arbitrary bytes as a module of SPIR-V, packed and as words: checks it, overwrites its constants, folds the branches
//! that they decide, and adds declarations.
//!
//! The first eight bytes are a number and a value of a constant. What passes the check is a module that a driver may
//! see, so each change of it must pass the check again, with nothing but what was asked for.

use heg_spirv::spirv::{Declarations, check, constants, declare, fold, pack, specialise, unpack};

pub(crate) fn run(input: &[u8]) {
    if let Ok(words) = unpack(input) {
        assert!(words.len() <= input.len());
        assert_eq!(pack(&words), input);
    }
    let words: Vec<u32> = input
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    assert_eq!(unpack(&pack(&words)).as_ref(), Ok(&words));
    let [number, value, module @ ..] = words.as_slice() else {
        return;
    };
    let numbers = constants(module);
    let mut specialised = module.to_vec();
    let overwritten = specialise(&mut specialised, &[(*number, *value)]);
    assert_eq!(numbers.is_ok(), overwritten.is_ok());
    assert_eq!(specialised.len(), module.len());
    let changed = module.iter().zip(&specialised).filter(|(a, b)| a != b);
    assert!(changed.clone().all(|(_, b)| b == value));
    if !numbers.is_ok_and(|numbers| numbers.contains(number)) {
        assert_eq!(changed.count(), 0);
    }
    let mut folded = specialised.clone();
    assert_eq!(fold(&mut folded).is_ok(), overwritten.is_ok());
    let all = Declarations {
        nearest: true,
        denormals: true,
        special: true,
    };
    let declared = declare(module, all);
    let Ok(census) = check(module) else {
        return;
    };
    // A constant's value is no instruction.
    assert_eq!(check(&specialised), Ok(census.clone()));
    assert_eq!(check(&folded), Ok(census.clone()));
    let declared = declared.expect("a sound module takes declarations");
    assert!(declared.len() <= module.len() + 3 * 2 + 7 + 3 * 4);
    let with = check(&declared).expect("declarations are among what modules may have");
    assert_eq!(with.float_operations, census.float_operations);
}
