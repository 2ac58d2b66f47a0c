//! Vectors of texts: asks an engine for several at a time, and returns them in the order of the texts.

use std::collections::VecDeque;

use heg_engine::{Ending, Engine, EngineError, Generation, Request, Update};
use heg_sched::Finish;

/// Texts on their way to their vectors, in order.
pub struct Texts<'a> {
    engine: &'a Engine,
    asked: VecDeque<Generation>,
}

/// The reason why a text has no vector.
#[derive(Debug)]
pub enum NoVector {
    /// It cannot run.
    Refused(EngineError),
    /// Its request ended otherwise.
    Ended(Box<Ending>),
}

impl<'a> Texts<'a> {
    /// Without any text.
    pub fn new(engine: &'a Engine) -> Self {
        Self {
            engine,
            asked: VecDeque::new(),
        }
    }

    /// Asks for the vector of a text, by its tokens.
    ///
    /// # Errors
    ///
    /// Those of [`Engine::check`] and [`Engine::check_kind`]; nothing was asked then.
    pub fn ask(&mut self, request: Request) -> Result<(), EngineError> {
        self.engine.check(&request.prompt)?;
        self.engine.check_kind(request.kind)?;
        self.asked.push_back(self.engine.generate(request));
        Ok(())
    }

    /// Number of texts whose vectors were not taken yet.
    pub fn len(&self) -> usize {
        self.asked.len()
    }

    /// Whether all vectors were taken.
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }
}

impl Iterator for Texts<'_> {
    type Item = Result<Vec<f32>, NoVector>;

    /// Waits for the vector of the first text whose vector was not taken yet.
    fn next(&mut self) -> Option<Self::Item> {
        let generation = self.asked.pop_front()?;
        Some(vector_of(generation))
    }
}

fn vector_of(generation: Generation) -> Result<Vec<f32>, NoVector> {
    let mut found = None;
    for update in generation {
        match update {
            Update::Accepted { .. } | Update::Prompt(_) | Update::Token { .. } => {}
            Update::Vector(vector) => found = Some(vector),
            Update::Finished(ending) => {
                let vector = found.filter(|_| ending.finish == Finish::Complete);
                return vector.ok_or_else(|| NoVector::Ended(Box::new(ending)));
            }
        }
    }
    Err(NoVector::Refused(EngineError::EngineGone))
}

/// Most texts that a caller should have on their way at once. Chosen: enough for a batch of short ones while the one
/// before it runs, and their rows take a few megabytes.
pub const TEXTS_MAX: usize = 64;
