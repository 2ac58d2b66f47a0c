//! The bits of CPU programs on a GPU, whatever the company: passes that move between CPU and GPU at every kernel, trees,
//! chunks and batches of any size. The device is the one that `HEG_VK_DRIVER` names, or the first that is there.

use std::path::Path;

use heg_runtime::Loaded;
use heg_runtime::exec::mem::{ActivationRows, KvCache, MemoryHome};
use heg_runtime::exec::{Batch, Executor, ExecutorOptions, Sequence, TokenRun, summary};
use heg_sched::{Launch, Logits, Span, WorkStage, launches};
use heg_spec::{Group, shipped};
use heg_tests::{Seeded, Workbench, fixture};
use heg_text::{log_probabilities, most_likely};

use crate::gpu_lanes::gpu_or_skip;

/// Executors of the same model on a CPU and on a GPU, over the same rows.
pub(crate) struct Both {
    cpu: Executor,
    pub(crate) gpu: Executor,
    rows: ActivationRows,
    _workbench: Workbench,
}

/// The processor that runs a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    Cpu,
    Gpu,
}

fn executor(bundle: &Path, soc: &str, chunk_tokens: usize, batch: usize) -> Executor {
    let options = ExecutorOptions {
        chunk_tokens,
        batch,
        ..ExecutorOptions::default()
    };
    let loaded = Loaded::open(bundle).unwrap();
    let mut executor = loaded
        .executor(&shipped::soc(soc).unwrap(), options)
        .unwrap();
    executor.wait_ready().unwrap();
    assert_eq!(summary(executor.descents().get()), [""; 0], "{soc}");
    executor
}

impl Both {
    pub(crate) fn new(folder: &str) -> Self {
        let workbench = Workbench::new().unwrap();
        let compiled = workbench.compile(&fixture(folder), "model", |_| ());
        let bundle = compiled.unwrap().0;
        let cpu = executor(&bundle, "host-cpu", 32, 16);
        let rows = ActivationRows::new(
            32 + cpu.padding_rows(),
            cpu.widths(),
            &MemoryHome::default(),
        )
        .unwrap();
        Self {
            gpu: executor(&bundle, "host-gpu", 32, 16),
            cpu,
            rows,
            _workbench: workbench,
        }
    }

    /// A cache in memory of the host.
    pub(crate) fn cache(&self) -> KvCache {
        assert_eq!(self.cpu.kv_shape(), self.gpu.kv_shape());
        KvCache::reserve(self.cpu.kv_shape()).unwrap()
    }

    /// The launches of a pass over the model, in the order of its bundle.
    pub(crate) fn launches(&self, logits: Logits) -> impl Iterator<Item = Launch> + use<> {
        let order = self.cpu.orders().at(WorkStage::Prefill);
        launches(order, 0..self.cpu.layers(), logits)
    }

    /// Runs launches, each where it is asked for; those that follow each other on one processor as one order.
    fn run(&mut self, placed: &[(Launch, On)], batch: &Batch<'_>) {
        for together in placed.chunk_by(|one, next| one.1 == next.1) {
            let launches: Vec<Launch> = together.iter().map(|(launch, _)| *launch).collect();
            let executor = match together[0].1 {
                On::Cpu => &mut self.cpu,
                On::Gpu => &mut self.gpu,
            };
            let ran = executor.launch_all(&launches, batch, &|_| true).unwrap();
            assert_eq!(ran, launches.len());
        }
    }

    /// Runs tokens of a sequence through the model, and returns the logits of the last.
    pub(crate) fn pass(
        &mut self,
        cache: &mut KvCache,
        tokens: &[u32],
        on: &dyn Fn(usize) -> On,
    ) -> Vec<f32> {
        let spans = [Span {
            row: 0,
            tokens: tokens.len(),
            position: cache.tokens(),
        }];
        let run = TokenRun::new(tokens, 0);
        self.cpu.embed(run, &self.rows, 0).unwrap();
        let all = self.launches(Logits::LastRows).enumerate();
        let placed: Vec<_> = all.map(|(index, launch)| (launch, on(index))).collect();
        let rows = std::mem::replace(&mut self.rows, empty(&self.cpu));
        let batch = Batch {
            rows: &rows,
            caches: &[&*cache],
            spans: &spans,
            trees: &[],
        };
        self.run(&placed, &batch);
        self.rows = rows;
        cache.advance(tokens.len());
        self.logits(placed[placed.len() - 1].1, 1)
    }

    fn logits(&mut self, on: On, rows: usize) -> Vec<f32> {
        let executor = match on {
            On::Cpu => &mut self.cpu,
            On::Gpu => &mut self.gpu,
        };
        executor.logits(rows).unwrap().to_vec()
    }

    /// Logits of a prompt in two chunks, and of tokens that follow it as the model wants, as bits, and these tokens with
    /// their log probabilities.
    fn answer(&mut self, on: &dyn Fn(usize) -> On) -> (Vec<u32>, Vec<(u32, u64)>) {
        let cache = self.cache();
        self.answer_over(cache, on)
    }

    /// The same over a cache that is empty.
    pub(crate) fn answer_over(
        &mut self,
        mut cache: KvCache,
        on: &dyn Fn(usize) -> On,
    ) -> (Vec<u32>, Vec<(u32, u64)>) {
        let prompt: Vec<u32> = (0..21).map(|at| 5 + at * at % 200).collect();
        let (mut bits, mut said) = (Vec::new(), Vec::new());
        let mut next = prompt[..12].to_vec();
        for step in 0..5 {
            let logits = self.pass(&mut cache, &next, on);
            bits.extend(logits.iter().map(|logit| logit.to_bits()));
            let token = most_likely(&logits);
            let probability = log_probabilities(&logits, token, 0).token.log_probability;
            said.push((token, probability.to_bits()));
            next = match step {
                0 => prompt[12..].to_vec(),
                _ => vec![token],
            };
        }
        (bits, said)
    }
}

/// Rows that nobody uses.
fn empty(executor: &Executor) -> ActivationRows {
    ActivationRows::new(1, executor.widths(), &MemoryHome::default()).unwrap()
}

#[test]
fn a_request_moves_at_every_kernel() {
    if !gpu_or_skip("a_request_moves_at_every_kernel") {
        return;
    }
    let mut both = Both::new("tiny-agent");
    let expected = both.answer(&|_| On::Cpu);
    let kernels = both.launches(Logits::LastRows).count();
    for cut in 0..=kernels {
        for [before, behind] in [[On::Cpu, On::Gpu], [On::Gpu, On::Cpu]] {
            let on = |index: usize| if index < cut { before } else { behind };
            assert!(
                both.answer(&on) == expected,
                "{before:?} up to {cut} of {kernels}"
            );
        }
    }
    for every in [1, 2, 3] {
        let on = |index: usize| match (index / every).is_multiple_of(2) {
            true => On::Gpu,
            false => On::Cpu,
        };
        assert!(both.answer(&on) == expected, "every {every} kernels");
    }
}

/// A tree of tokens: for each but the first, the earlier one that it follows.
fn tree(seeded: &mut Seeded, tokens: usize) -> Vec<u16> {
    (1..tokens)
        .map(|token| seeded.below(token) as u16)
        .collect()
}

/// Runs trees of two sequences behind a prompt of each, and returns the logits of all tokens, as bits.
fn of_trees(both: &mut Both, on: On, trees: &[Vec<u16>; 2], tokens: &[Vec<u32>; 2]) -> Vec<u32> {
    let mut caches = [both.cache(), both.cache()];
    for (cache, length) in caches.iter_mut().zip([19, 5]) {
        let prompt: Vec<u32> = (0..length).map(|at| 7 + at * 3).collect();
        both.pass(cache, &prompt, &|_| On::Cpu);
    }
    let mut row = 0;
    let spans: Vec<Span> = caches
        .iter()
        .zip(tokens)
        .map(|(cache, tokens)| {
            let span = Span {
                row,
                tokens: tokens.len(),
                position: cache.tokens(),
            };
            row += tokens.len();
            span
        })
        .collect();
    let all: Vec<u32> = tokens.concat();
    both.cpu
        .embed(TokenRun::new(&all, 0), &both.rows, 0)
        .unwrap();
    let rows = std::mem::replace(&mut both.rows, empty(&both.cpu));
    let caches = caches.each_ref();
    let trees = trees.each_ref().map(|tree| Some(tree.as_slice()));
    let batch = Batch {
        rows: &rows,
        caches: &caches,
        spans: &spans,
        trees: &trees,
    };
    let layers = both.launches(Logits::None);
    both.run(
        &layers.map(|launch| (launch, on)).collect::<Vec<_>>(),
        &batch,
    );
    let single = |row| Span {
        row,
        tokens: 1,
        position: 0,
    };
    let mut bits = Vec::new();
    for first in (0..row).step_by(16) {
        let spans: Vec<Span> = (first..row.min(first + 16)).map(single).collect();
        let batch = Batch {
            rows: &rows,
            caches: &[],
            spans: &spans,
            trees: &[],
        };
        let head = Launch {
            layer: None,
            group: Group::Head,
        };
        both.run(&[(head, on)], &batch);
        let logits = both.logits(on, spans.len());
        bits.extend(logits.into_iter().map(f32::to_bits));
    }
    both.rows = rows;
    bits
}

#[test]
fn trees_have_the_bits_of_the_cpu() {
    if !gpu_or_skip("trees_have_the_bits_of_the_cpu") {
        return;
    }
    let mut both = Both::new("tiny-agent");
    let mut seeded = Seeded::new(3);
    for index in 0..12 {
        let counts = [1 + seeded.below(16), 1 + seeded.below(16)];
        let trees = counts.map(|count| tree(&mut seeded, count));
        let tokens = counts.map(|count| (0..count).map(|_| seeded.below(2000) as u32).collect());
        let expected = of_trees(&mut both, On::Cpu, &trees, &tokens);
        assert!(
            of_trees(&mut both, On::Gpu, &trees, &tokens) == expected,
            "trees {index}: {trees:?}"
        );
    }
}

/// Logits of sequences that are read in chunks and decoded side by side, as bits.
fn in_company(bundle: &Path, soc: &str, chunk_tokens: usize, batch: usize) -> Vec<u32> {
    let mut executor = executor(bundle, soc, chunk_tokens, batch);
    let mut bits = Vec::new();
    let mut sequences: Vec<Sequence> = Vec::new();
    for index in 0..batch {
        let length = 1 + (index * 29 + 40) % 70;
        let prompt: Vec<u32> = (0..length)
            .map(|at| (3 + at * 37 + index) as u32 % 2000)
            .collect();
        let mut sequence = executor.sequence().unwrap();
        for chunk in prompt.chunks(chunk_tokens) {
            let logits = executor.prefill(&mut sequence, chunk, Logits::LastRows);
            bits.extend(logits.unwrap().iter().map(|logit| logit.to_bits()));
        }
        sequences.push(sequence);
    }
    for step in 0..2 {
        let mut batch: Vec<&mut Sequence> = sequences.iter_mut().collect();
        let tokens: Vec<u32> = (0..batch.len()).map(|at| 11 + at as u32 + step).collect();
        let logits = executor.decode(&mut batch, &tokens);
        bits.extend(logits.unwrap().iter().map(|logit| logit.to_bits()));
    }
    bits
}

#[test]
fn batches_and_chunks_of_any_size_have_the_bits_of_the_cpu() {
    if !gpu_or_skip("batches_and_chunks_of_any_size_have_the_bits_of_the_cpu") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "model", |_| ());
    let bundle = compiled.unwrap().0;
    let sizes: Vec<(usize, usize)> = match std::env::var_os("HEG_FULL") {
        Some(_) => {
            let chunks = [256, 1, 7, 64, 31, 33, 16, 2].into_iter().cycle();
            (1..=16).zip(chunks).collect()
        }
        None => vec![(1, 1), (5, 33), (16, 256)],
    };
    for (batch, chunk_tokens) in sizes {
        let expected = in_company(&bundle, "host-cpu", chunk_tokens, batch);
        let found = in_company(&bundle, "host-gpu", chunk_tokens, batch);
        assert!(
            found == expected,
            "batch of {batch}, chunks of {chunk_tokens}"
        );
    }
}
