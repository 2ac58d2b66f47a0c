//! The programs of several families, pinned.

use heg_artifacts::program::Program;
use heg_spec::WeightForm;
use insta::assert_snapshot;

use super::lower_program;
use crate::assemble::kernel_of;
use crate::fixture::{Described, FAMILIES};

fn programs(family: &str) -> String {
    let heg = Described::family(family).heg();
    let texts = heg.kernels.iter().map(|body| {
        let kernel = kernel_of(body, WeightForm::W8A16);
        let program = lower_program(body, &kernel).unwrap();
        program.text(&kernel).to_string()
    });
    texts.collect::<Vec<_>>().join("\n")
}

macro_rules! pinned {
    ($($family:ident),+) => {
        $(#[test]
        fn $family() {
            let name = stringify!($family);
            assert_snapshot!(name, programs(name));
        })+
    };
}

// Norms of heads, and of the added value; rows of fused weights; norms of whole projections; factors; biases.
pinned!(gemma3, phi3, olmo2, granite, qwen2, llama);

/// With weights in any form, all families lower to programs that read back unchanged.
#[test]
fn programs_of_all_families_are_read_again() {
    for family in FAMILIES {
        for body in Described::family(family).heg().kernels {
            for form in [WeightForm::W8A16, WeightForm::F16, WeightForm::F32] {
                let kernel = kernel_of(&body, form);
                let program = lower_program(&body, &kernel).unwrap();
                let bytes = program.to_bytes().unwrap();
                assert_eq!(Program::read(&bytes, &kernel).unwrap(), program);
                assert!(bytes.len() < 4096, "{family}: {} bytes", bytes.len());
            }
        }
    }
}
