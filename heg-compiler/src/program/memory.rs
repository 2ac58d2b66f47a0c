//! Allocates places in scratch memory.

use std::ops::Range;

use heg_artifacts::program::{BufferPlace, Program, scratch_width};

/// Gives each buffer in scratch memory the first place that no buffer in use has, in the order in which buffers are
/// written. A buffer that a phase reads or writes is in use throughout that phase.
pub(super) fn place(program: &mut Program) {
    let phases = program.phase_of_steps();
    let mut last_reads = vec![0; program.buffers.len()];
    for (phase, step) in phases.iter().zip(&program.steps) {
        for id in step.reads() {
            last_reads[id.0 as usize] = *phase;
        }
    }
    // Buffers in use, by their places, with the last phase that reads them.
    let mut in_use: Vec<(Range<u32>, usize)> = Vec::new();
    for (phase, step) in phases.iter().zip(&program.steps) {
        in_use.retain(|(_, last_read)| last_read >= phase);
        for id in step.writes() {
            let buffer = &mut program.buffers[id.0 as usize];
            if let BufferPlace::Scratch { first } = &mut buffer.place {
                let elements = scratch_width(buffer.width);
                *first = first_gap(&in_use, elements);
                let taken = *first..first.saturating_add(elements);
                let last_read = *phase.max(&last_reads[id.0 as usize]);
                in_use.push((taken, last_read));
                in_use.sort_by_key(|(taken, _)| taken.start);
            }
        }
    }
}

/// The lowest place with `elements` elements that no buffer in use has.
fn first_gap(in_use: &[(Range<u32>, usize)], elements: u32) -> u32 {
    let mut first = 0_u32;
    for (taken, _) in in_use {
        if first.saturating_add(elements) <= taken.start {
            break;
        }
        first = first.max(taken.end);
    }
    first
}
