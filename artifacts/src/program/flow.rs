//! Checks the flow of data between steps: everything is written once and before it is read, and scratch memory keeps a
//! row until all threads are past the last step that reads it.

use std::ops::RangeInclusive;

use super::check::Checker;
use super::{BufferId, BufferPlace, Program, Step};
use crate::error::Error;

/// Checks the flow of data; ids must be in range already.
pub(super) fn check_flow(checker: &Checker<'_>) -> Result<(), Error> {
    let lives = lives(checker)?;
    let buffers = checker.program.buffers.iter().zip(&lives).enumerate();
    let scratch = buffers.filter_map(|(index, (buffer, life))| {
        Some((index, buffer, buffer.scratch()?, life.as_ref()?))
    });
    let scratch: Vec<_> = scratch.collect();
    for (count, (index, buffer, range, life)) in scratch.iter().enumerate() {
        for (_, earlier, taken, meanwhile) in scratch.iter().take(count) {
            let same_place = range.start < taken.end && taken.start < range.end;
            let same_time = life.start() <= meanwhile.end() && meanwhile.start() <= life.end();
            if same_place && same_time {
                let found = format!("`{}`, over buffer `{}`", buffer.name, earlier.name);
                let expected = "memory that no buffer in use has";
                let field = format!("buffers[{index}].place");
                return Err(checker.invalid(field, found, expected));
            }
        }
    }
    Ok(())
}

/// The phases during which a buffer has to keep its rows: from the phase that writes it to the last that reads it.
type Life = Option<RangeInclusive<usize>>;

/// The life of each buffer; inputs have none.
fn lives(checker: &Checker<'_>) -> Result<Vec<Life>, Error> {
    let program = checker.program;
    let mut lives: Vec<Life> = vec![None; program.buffers.len()];
    let mut attentions = 0;
    let steps = program
        .steps
        .iter()
        .enumerate()
        .zip(program.phase_of_steps());
    for ((index, step), phase) in steps {
        let invalid = |id: BufferId, does: &str, expected| {
            let found = format!("a step that {does} buffer `{}`", id.0);
            checker.invalid(format!("steps[{index}]"), found, expected)
        };
        for id in step.reads() {
            match slot(program, &mut lives, id) {
                Some((BufferPlace::Input(_), _)) => {}
                Some((BufferPlace::Scratch { .. }, Some(life))) => *life = *life.start()..=phase,
                Some((BufferPlace::Output(_), _)) => {
                    return Err(invalid(id, "reads", "one that reads no output"));
                }
                Some((BufferPlace::Scratch { .. }, None)) | None => {
                    return Err(invalid(id, "reads", "one that reads what was written"));
                }
            }
        }
        for id in step.writes() {
            match slot(program, &mut lives, id) {
                Some((BufferPlace::Scratch { .. } | BufferPlace::Output(_), life @ None)) => {
                    *life = Some(phase..=phase);
                }
                _ => return Err(invalid(id, "writes", "one that writes each buffer once")),
            }
        }
        attentions += usize::from(matches!(step, Step::Attention { .. }));
        if attentions > 1 {
            let field = format!("steps[{index}]");
            return Err(checker.invalid(field, "a second attention", "one attention"));
        }
    }
    for (index, (buffer, life)) in program.buffers.iter().zip(&lives).enumerate() {
        if life.is_none() && !matches!(buffer.place, BufferPlace::Input(_)) {
            let found = format!("`{}`, which no step writes", buffer.name);
            let field = format!("buffers[{index}]");
            return Err(checker.invalid(field, found, "a buffer that is written"));
        }
    }
    Ok(lives)
}

/// Place and life of a buffer.
fn slot<'a>(
    program: &Program,
    lives: &'a mut [Life],
    id: BufferId,
) -> Option<(BufferPlace, &'a mut Life)> {
    let index = usize::try_from(id.0).ok()?;
    Some((program.buffers.get(index)?.place, lives.get_mut(index)?))
}
