//! The check finds each thing that it is for, and committed modules pass it.

use super::*;
use crate::module::Module;

#[test]
fn every_float_operation_of_every_module_has_no_contraction() {
    let mut operations = 0;
    for module in Module::ALL {
        let census = check(&module.words()).unwrap_or_else(|error| panic!("{module:?}: {error}"));
        println!("{module:?}: {} float operations", census.float_operations);
        operations += census.float_operations;
        let dots = census.capabilities.contains(&6019);
        assert_eq!(dots, module.has_dots(), "{module:?}");
    }
    assert!(operations > 500, "{operations} float operations");
}

#[test]
fn changed_modules_are_refused() {
    let words = Module::RmsNorm.words();
    let all: Vec<_> = instructions(&words)
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    let position = |operation: u16| {
        let found = all.iter().find(|found| found.operation == operation);
        found.map_or(0, |found| found.at)
    };
    let changed = |at: usize, to: u32| {
        let mut words = words.clone();
        words[at] = to;
        check(&words)
    };
    assert!(check(&words).is_ok());
    assert_eq!(changed(0, 7), Err(SpirvError::Magic { found: 7 }));
    let at = position(op::TYPE_FLOAT);
    assert!(matches!(
        changed(at, 22),
        Err(SpirvError::Frame { length: 0, .. })
    ));
    assert!(matches!(
        changed(at + 2, 16),
        Err(SpirvError::NotListed { .. })
    ));
    // Float64
    let at = position(op::CAPABILITY);
    assert!(matches!(
        changed(at + 1, 10),
        Err(SpirvError::NotListed { .. })
    ));
    // Exp
    let at = position(op::EXT_INST);
    assert!(matches!(
        changed(at + 4, 27),
        Err(SpirvError::NotListed { .. })
    ));
    let mut marks = all.iter();
    let mark = marks.find(|found| found.operation == op::DECORATE && found.operand(1) == 42);
    let at = mark.map_or(0, |found| found.at);
    // RelaxedPrecision in its place
    assert!(matches!(
        changed(at + 2, 0),
        Err(SpirvError::Contractible { .. })
    ));
    assert!(matches!(
        check(&words[..HEADER_WORDS + 1]),
        Err(SpirvError::Frame { .. })
    ));
}

#[test]
fn a_constant_without_a_value_leaves_the_next_instruction_alone() {
    let mut words = vec![MAGIC, 0, 0, 0, 0];
    // OpDecorate %2 SpecId 3, OpSpecConstant %1 %2 without a value, OpCapability Shader
    words.extend([4 << 16 | 71, 2, 1, 3, 3 << 16 | 50, 1, 2, 2 << 16 | 17, 1]);
    let before = words.clone();
    specialise(&mut words, &[(3, 64)]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(words, before);
    assert_eq!(constants(&words), Ok(vec![3]));
}

#[test]
fn modules_of_a_bundle_stay_below_their_limit() {
    let carried = Module::ALL.iter();
    let carried = carried.filter(|it| !matches!(it, Module::Probe | Module::ProbeDots));
    let bytes: usize = carried.map(|module| module.packed().bytes.len()).sum();
    let most = heg_artifacts::manifest::GPU_BYTES_MAX;
    assert!(bytes as u64 <= most, "{bytes} bytes of at most {most}");
}

#[test]
fn modules_are_built_in_as_they_are_committed() {
    for module in Module::ALL {
        let path = format!("../spirv/{}.spv", module.name());
        let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let (words, rest) = file.as_chunks::<4>();
        let words: Vec<u32> = words.iter().map(|it| u32::from_le_bytes(*it)).collect();
        assert!(rest.is_empty(), "{path}: {} bytes too many", rest.len());
        assert!(module.words() == words, "{path}");
        assert!(module.packed().bytes == pack(&words), "{path}");
    }
}

#[test]
fn constants_are_overwritten_and_declarations_pass_the_check() {
    for module in Module::ALL {
        let mut words = module.words();
        let default = words.clone();
        specialise(&mut words, &[(0, 1), (99, 5)]).unwrap_or_else(|error| panic!("{error}"));
        let changed = words.iter().zip(&default).filter(|(a, b)| a != b).count();
        assert!(changed <= 1, "{module:?}: {changed} words");
        let declared = Declarations {
            nearest: true,
            denormals: true,
            special: true,
        };
        let words = declare(&words, declared).unwrap_or_else(|error| panic!("{error}"));
        assert!(check(&words).is_ok_and(|census| census.capabilities.contains(&4467)));
    }
}
