//! Reads arbitrary text as a CPU program for a kernel that the input describes before it.
//!
//! An accepted program is run on memory that only records which buffer was written last: no step may read memory that
//! another buffer has taken meanwhile.

use std::collections::BTreeMap;

use heg_artifacts::manifest::Kernel;
use heg_artifacts::program::{Buffer, BufferPlace, Program, SCRATCH_STEP, scratch_width};

pub(crate) fn run(input: &[u8]) {
    let Some(end) = input.windows(BREAK.len()).position(|text| text == BREAK) else {
        return;
    };
    let (kernel, program) = (&input[..end], &input[end + BREAK.len()..]);
    let Ok(kernel) = ron::de::from_bytes::<Kernel>(kernel) else {
        return;
    };
    let Ok(program) = Program::read(program, &kernel) else {
        return;
    };
    let bytes = program.to_bytes().expect("what was read can be written");
    let again = Program::read(&bytes, &kernel).expect("what was written is read");
    assert_eq!(again, program);
    assert!(!program.text(&kernel).to_string().is_empty());
    execute(&program);
}

fn execute(program: &Program) {
    // Pieces of scratch memory and output ports, with the buffer that was written there last. Only the ends of a
    // buffer's memory: an untrusted buffer can be gigabytes long.
    let mut held = BTreeMap::new();
    let places = |buffer: &Buffer| match buffer.place {
        BufferPlace::Input(_) => Vec::new(),
        BufferPlace::Output(port) => vec![u64::from(port)],
        BufferPlace::Scratch { first } => {
            let end = first + scratch_width(buffer.width);
            assert!(end <= program.scratch_elements());
            let ends = [first, end - SCRATCH_STEP];
            ends.map(|piece| OUTPUTS_MAX + u64::from(piece)).to_vec()
        }
    };
    for step in &program.steps {
        for id in step.writes() {
            let buffer = &program.buffers[id.0 as usize];
            assert!(!matches!(buffer.place, BufferPlace::Input(_)));
            held.extend(places(buffer).into_iter().map(|place| (place, id)));
        }
        for id in step.reads().into_iter().chain(step.writes()) {
            let buffer = &program.buffers[id.0 as usize];
            assert!(
                places(buffer)
                    .iter()
                    .all(|place| held.get(place) == Some(&id))
            );
        }
    }
}

/// Separator between the kernel and its program.
const BREAK: &[u8] = b"\n---\n";

/// Offset that keeps the numbers of ports and of scratch memory apart.
const OUTPUTS_MAX: u64 = 1 << 32;
