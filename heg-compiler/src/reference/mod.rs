//! Known answers: the outputs of every place of the model for seeded inputs, computed here in f32 from the stored
//! weights, so that a device that computes wrongly is detected.
//!
//! Plain Rust and not a plugin, because a bundle has the same bytes wherever it was made: sums run in an order that
//! neither threads nor vectors change, and nothing comes from the system's maths library. `evaluate` walks a kernel,
//! `heg_quant` streams its matrices, `attention` and `elementwise` do the rest; comparing a device's outputs is left to
//! `heg_artifacts`. An answer is remembered by its inputs, like an encoded weight.

mod attention;
mod elementwise;
mod evaluate;
#[cfg(test)]
mod program_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use heg_artifacts::manifest::{KnownAnswers, Port, Role, RopeTable};
use heg_artifacts::{RecipeKey, Section, SectionId, Store};
use rayon::prelude::*;

pub(crate) use evaluate::evaluate;

use crate::encode::weight_name;
use crate::error::CompileError;
use crate::graph::{Param, WeightSource};
use crate::heg::{KernelBody, Use};
use crate::phase::{Phase, Progress};
use crate::plan::Plan;
use heg_quant::{MappedWeight, StoredWeight, ValueRows};

/// The question and the answers of all places.
pub(crate) struct Answers {
    pub(crate) question: KnownAnswers,
    /// Per layer: `qkv`, `mha`, `ffn`.
    pub(crate) layers: Vec<[Section; 3]>,
    pub(crate) head: Section,
}

/// The question for a model: few rows, since every weight is read for them, over a context that is longer than the
/// call, so that position and mask matter. All numbers are chosen.
pub(crate) fn question(context_tokens: u32) -> KnownAnswers {
    KnownAnswers {
        seed: 1,
        rows: context_tokens.min(2),
        context: context_tokens.min(48),
    }
}

/// A model whose weights and rotary tables are in the store.
pub(crate) struct StoredModel<'a> {
    plan: &'a Plan,
    store: &'a Store,
    weights: BTreeMap<&'a WeightSource, (&'a Param, &'a StoredWeight)>,
    rope: &'a BTreeMap<String, RopeTable>,
    question: KnownAnswers,
}

impl<'a> StoredModel<'a> {
    /// Makes a model from `stored`, in the order of `params`.
    pub(crate) fn new(
        plan: &'a Plan,
        store: &'a Store,
        params: &'a [Param],
        stored: &'a [StoredWeight],
        rope: &'a BTreeMap<String, RopeTable>,
    ) -> Self {
        let weights = params
            .iter()
            .zip(stored)
            .map(|(param, stored)| (&param.source, (param, stored)))
            .collect();
        Self {
            plan,
            store,
            weights,
            rope,
            question: question(plan.context_tokens),
        }
    }

    /// Computes the answers of every place, equal ones only once, and takes those of an earlier compile from the store.
    pub(crate) fn answers(&self, progress: &dyn Progress) -> Result<Answers, CompileError> {
        let heg = &self.plan.heg;
        let places = heg.layers.iter().flatten().chain([&heg.head]);
        let distinct: BTreeMap<RecipeKey, &Use> =
            places.map(|place| (self.key(place), place)).collect();
        let total = distinct.values().map(|place| self.weight_bytes(place));
        progress.begin(Phase::Answer, total.sum());
        let answered = distinct
            .par_iter()
            .map(|(key, place)| {
                let section = self.answer(key, place)?;
                progress.advance(self.weight_bytes(place));
                Ok((*key, section))
            })
            .collect::<Result<BTreeMap<_, _>, CompileError>>()?;
        let of = |place: &Use| answered[&self.key(place)];
        Ok(Answers {
            question: self.question,
            layers: heg
                .layers
                .iter()
                .map(|[qkv, mha, ffn]| [of(qkv), of(mha), of(ffn)])
                .collect(),
            head: of(&heg.head),
        })
    }

    fn body(&self, place: &Use) -> &'a KernelBody {
        &self.plan.heg.kernels[place.kernel]
    }

    fn stored(&self, place: &Use) -> impl Iterator<Item = (&'a Param, &'a StoredWeight)> {
        place
            .weights
            .iter()
            .map(|param| self.weights[&param.source])
    }

    fn table(&self, place: &Use) -> Option<&'a RopeTable> {
        place.rope.as_ref().and_then(|name| self.rope.get(name))
    }

    fn weight_bytes(&self, place: &Use) -> u64 {
        let sections = self.stored(place);
        sections.map(|(_, stored)| stored.values.bytes).sum()
    }

    /// The key of everything that an answer depends on.
    fn key(&self, place: &Use) -> RecipeKey {
        let body = self.body(place);
        let computed = format!(
            "{:?} {:?} {:?} {:?}",
            body.inputs, body.ops, body.outputs, body.results
        );
        let weights = self.stored(place).map(|(_, stored)| {
            let of_rows = stored.affine.map(|affine| {
                let centres = affine.centres.map(|centres| centres.id);
                (affine.scales.id, centres)
            });
            format!("{:?} {} {of_rows:?}", stored.element, stored.values.id)
        });
        let table = self.table(place).map(|table| (table.cos, table.sin));
        let inputs = [
            format!("{:?}", self.question),
            computed,
            format!("{table:?}"),
        ];
        RecipeKey::of(EVALUATOR, inputs.into_iter().chain(weights))
    }

    fn answer(&self, key: &RecipeKey, place: &Use) -> Result<Section, CompileError> {
        if let Some(known) = self.store.recall(key)?
            && let [section] = known.as_slice()
        {
            return Ok(*section);
        }
        let body = self.body(place);
        let inputs = body
            .inputs
            .iter()
            .map(|port| self.input(port, place))
            .collect::<Result<Vec<_>, _>>()?;
        let weights = self
            .stored(place)
            .map(|(param, stored)| MappedWeight::open(self.store, weight_name(param), stored))
            .collect::<Result<Vec<_>, _>>()?;
        let outputs = evaluate(body, &inputs, &weights)?;
        let values = outputs.iter().flat_map(|output| &output.values);
        let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        let section = self.store.put_bytes(&bytes)?;
        self.store.record(key, &[section])?;
        Ok(section)
    }

    fn input(&self, port: &Port, place: &Use) -> Result<ValueRows, CompileError> {
        let cos_sin = self.table(place).map(|table| [table.cos, table.sin]);
        let values = match (port.role, cos_sin) {
            (Role::Position, _) => vec![self.question.position() as f32],
            (Role::Cos, Some([cos, _])) => self.table_rows(cos, port)?,
            (Role::Sin, Some([_, sin])) => self.table_rows(sin, port)?,
            _ => self.question.values(port),
        };
        Ok(ValueRows {
            width: port.width as usize,
            values,
        })
    }

    /// Rows of a rotary table at the question's positions.
    fn table_rows(&self, table: SectionId, port: &Port) -> Result<Vec<f32>, CompileError> {
        let table = self.store.map(table)?;
        let (numbers, _) = table.as_chunks();
        let width = port.width as usize;
        let first = self.question.position() as usize * width;
        let count = self.question.rows_of(port.rows) as usize * width;
        let rows = numbers.iter().skip(first).take(count);
        Ok(rows.map(|number| f32::from_le_bytes(*number)).collect())
    }
}

/// Identifies the evaluator's code, including the inputs' noise: must change whenever answers do.
const EVALUATOR: &str = "answer 1";
