//! Attention alone, of one token of each of some sequences, over caches that are full.

#![allow(
    dead_code,
    reason = "used by one of the programs that have this module"
)]

use super::{Layer, bytes, number, programs, rows, run};
use heg_artifacts::manifest::ElementType;
use heg_cpu::{Activations, Context, CpuCall, CpuDevice, CpuKernel};
use heg_spec::Seeded;

/// Caches that take turns, each of the same number of sequences.
pub(crate) struct Cached {
    kernel: CpuKernel,
    /// Keys and values, by turn and sequence.
    caches: Vec<Vec<[Vec<u8>; 2]>>,
    /// Rows of a cache.
    rows: usize,
    query: Vec<u8>,
    attended: Vec<u8>,
}

impl Cached {
    pub(crate) fn new(layer: &Layer, turns: usize, sequences: usize, rows: usize) -> Self {
        let mut seeded = Seeded::new(7);
        // Rows of a few tokens, again and again: values do not matter, and random ones take long.
        let few = (0..64 * layer.sizes.key()).map(|_| number(&mut seeded));
        let few = layer.kv.rows_of(&few.collect::<Vec<f32>>());
        let half = || {
            few.iter()
                .copied()
                .cycle()
                .take(few.len() / 64 * rows)
                .collect()
        };
        let sequence = |_| [half(), half()];
        let turn = |_| (0..sequences).map(sequence).collect();
        let query = bytes(
            &mut seeded,
            sequences * layer.sizes.query(),
            ElementType::F32,
        );
        let (declared, program) = programs::mha(layer.sizes, None, None);
        Self {
            kernel: CpuKernel::new(program, &declared, layer.kv, Activations::I8).unwrap(),
            caches: (0..turns).map(turn).collect(),
            rows,
            attended: vec![0; query.len()],
            query,
        }
    }

    /// Attends to all caches, turn by turn.
    pub(crate) fn attend(&mut self, device: &mut CpuDevice, layer: &Layer) {
        let key_bytes = layer.kv.row_bytes(layer.sizes.key());
        let query_row = layer.sizes.query() * 4;
        for caches in &mut self.caches {
            let tokens = caches.len();
            let contexts = caches.iter_mut().map(|[keys, values]| Context {
                tokens: 1,
                position: self.rows - 1,
                follows: None,
                keys: rows(keys, key_bytes, 0, self.rows),
                values: rows(values, key_bytes, 0, self.rows),
            });
            let contexts: Vec<Context<'_>> = contexts.collect();
            let query = [rows(&mut self.query, query_row, 0, tokens)];
            let attended = [rows(&mut self.attended, query_row, 0, tokens)];
            let call = CpuCall {
                rows: tokens,
                weights: &[],
                inputs: &[&query, &[], &[], &[]],
                outputs: &[&attended],
                contexts: &contexts,
            };
            run(device, &[(&self.kernel, call)], false, &layer.panics);
        }
    }
}
