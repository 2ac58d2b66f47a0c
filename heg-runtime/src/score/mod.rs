//! Scoring: the likelihood of given tokens under a model, and the distance of the model's distributions from another
//! model's.
//!
//! Tokens are *teacher-forced*: the model is given the next token of the passage, whatever it would have chosen.
//! Prefill and decode compute rows by different kernels and shapes, so the two are measured separately. Logits of a
//! whole passage are never held: two models run in lockstep, a few rows at a time.

mod passage;
mod tally;
mod teacher;

pub use passage::Passage;
pub use tally::{Scores, Tally};
pub use teacher::{RowKind, Teacher};

use crate::error::RuntimeError;
use heg_exec::Executor;

/// Scores `model` on passages. `watch` is called with the number of scored tokens now and then.
///
/// # Errors
///
/// Errors of running the model, such as a passage that its context does not hold.
pub fn score(
    model: &mut Executor,
    passages: &[Passage],
    rows: RowKind,
    watch: &mut dyn FnMut(u64),
) -> Result<Scores, RuntimeError> {
    let mut tally = Tally::default();
    for passage in passages {
        let mut teacher = Teacher::new(model, passage, rows)?;
        while let Some(ready) = teacher.ready()? {
            let targets = teacher.targets(ready);
            let logits = teacher.logits(ready)?;
            for (row, target) in rows_of(logits, ready).zip(targets) {
                tally.add(row, *target);
            }
            watch(tally.tokens());
        }
    }
    Ok(tally.scores())
}

/// Scores as [`score`] does, and compares every distribution with that of the model `against`.
///
/// # Errors
///
/// As [`score`]; [`RuntimeError::Vocabularies`] if the models' vocabularies differ in size.
pub fn score_against(
    model: &mut Executor,
    against: &mut Executor,
    passages: &[Passage],
    rows: RowKind,
    watch: &mut dyn FnMut(u64),
) -> Result<Scores, RuntimeError> {
    let vocab = [&*model, &*against].map(|executor| executor.manifest().model.vocab);
    if vocab[0] != vocab[1] {
        return Err(RuntimeError::Vocabularies {
            model: vocab[0],
            against: vocab[1],
        });
    }
    let mut tally = Tally::default();
    for passage in passages {
        let mut teacher = Teacher::new(model, passage, rows)?;
        let mut reference = Teacher::new(against, passage, rows)?;
        while let (Some(ours), Some(theirs)) = (teacher.ready()?, reference.ready()?) {
            let ready = ours.min(theirs);
            let targets = teacher.targets(ready);
            let (logits, expected) = (teacher.logits(ready)?, reference.logits(ready)?);
            let pairs = rows_of(logits, ready).zip(rows_of(expected, ready));
            for ((row, expected), target) in pairs.zip(targets) {
                tally.add_against(row, expected, *target);
            }
            watch(tally.tokens());
        }
    }
    Ok(tally.scores())
}

/// Returns the rows of a matrix of `count` rows.
pub fn rows_of(matrix: &[f32], count: usize) -> impl Iterator<Item = &[f32]> {
    matrix.chunks_exact((matrix.len() / count.max(1)).max(1))
}
