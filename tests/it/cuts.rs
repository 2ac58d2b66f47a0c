//! Cuts that differ from product to product: at eighths of its rows, in sizes of tokens, and as the solver chooses for a
//! machine. On the lanes of a pair they give the bits of one device, in every family and weight form, for prompts and for
//! batches. (`pair` has each cut of each product alone.)

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use heg_artifacts::Bundle;
use heg_profiler::partition::{PairModel, SocPartition, partition, products};
use heg_runtime::exec::{Executor, ExecutorOptions, PairLanes, PairedRoles, Partition, WorkItem};
use heg_sched::{Logits, Switching, chunks};
use heg_spec::pair::HandOver;
use heg_spec::policy::{PairLevel, Pairing, Synchronisation};
use heg_spec::{Cut, CutProduct, ModelSpec, Side, WeightForm, shipped};
use heg_tests::roles::loader;
use heg_tests::{FAMILIES, Workbench, executor, fixture, four_bits};

const OPTIONS: ExecutorOptions = ExecutorOptions {
    chunk_tokens: 64,
    batch: 2,
    loader_threads: 1,
    switching: Switching::Resident,
};

/// More than a chunk, and no multiple of a static size.
const PROMPT_TOKENS: u32 = 75;

const FORMS: [WeightForm; 4] = [
    WeightForm::F32,
    WeightForm::W8A16,
    four_bits(false),
    four_bits(true),
];

/// A family's model, compiled.
struct Compiled {
    name: String,
    bundle: std::path::PathBuf,
    _workbench: Workbench,
}

fn compiled() -> impl Iterator<Item = Compiled> {
    let all = FAMILIES.into_iter();
    all.flat_map(|family| FORMS.map(|form| (family, form)))
        .map(|(family, form)| {
            let workbench = Workbench::new().unwrap();
            let change = |spec: &mut ModelSpec| spec.weights = form;
            let folder = fixture(&format!("golden/{family}"));
            let (bundle, _) = workbench.compile(&folder, family, change).unwrap();
            Compiled {
                name: format!("{family}, {form}"),
                bundle,
                _workbench: workbench,
            }
        })
}

fn pair(bundle: &Path) -> (Executor, Arc<PairedRoles>) {
    let pairing = Pairing {
        level: PairLevel::Tensor,
        synchronisation: Synchronisation::Fast,
    };
    let soc = shipped::soc("host-pair").unwrap();
    let loader = loader(bundle, &soc);
    let loader = loader.paired(pairing, PairLanes::One).unwrap();
    let roles = Arc::clone(loader.pair().unwrap());
    (Executor::new(loader, OPTIONS).unwrap(), roles)
}

/// Bits of all logits of a prompt in chunks, of another of half its length, and of tokens behind both in one batch.
fn logits(executor: &mut Executor) -> Vec<u32> {
    let prompt: Vec<u32> = (0..PROMPT_TOKENS).map(|at| 3 + at * 37 % 200).collect();
    let mut bits = Vec::new();
    let mut sequences = [prompt.len(), prompt.len() / 2].map(|tokens| {
        let mut sequence = executor.sequence().unwrap();
        for range in chunks(tokens, OPTIONS.chunk_tokens) {
            let rows = executor.prefill(&mut sequence, &prompt[range], Logits::LastRows);
            bits.extend(rows.unwrap().iter().map(|logit| logit.to_bits()));
        }
        sequence
    });
    for tokens in [[3, 90], [5, 7]] {
        let [one, other] = &mut sequences;
        let rows = executor.decode(&mut [one, other], &tokens).unwrap();
        bits.extend(rows.iter().map(|logit| logit.to_bits()));
    }
    bits
}

/// Every product at the same share of its rows, but for its neighbours, which are cut by tokens, or both ways.
struct Mixed(u32);

impl Partition for Mixed {
    fn cut(&self, work: WorkItem) -> Cut {
        let rows = work.rows as u32;
        let first = (rows * self.0 / 8).clamp(1, rows.saturating_sub(1).max(1));
        let number = CutProduct::ALL
            .iter()
            .position(|it| Some(*it) == work.product);
        match number.map(|number| (number as u32 + self.0) % 6) {
            None => Cut::Tokens {
                sizes: vec![self.0],
            },
            Some(0) => Cut::Tokens {
                sizes: vec![32, 16, 8],
            },
            Some(1) => Cut::Hybrid {
                first,
                padded_tokens: 32,
            },
            Some(_) => Cut::Rows { first },
        }
    }
}

#[test]
fn cuts_at_every_eighth_of_all_products_at_once() {
    for model in compiled() {
        let mut alone = executor(&model.bundle, "host-cpu", OPTIONS.chunk_tokens).unwrap();
        let expected = logits(&mut alone);
        let (mut both, roles) = pair(&model.bundle);
        for eighths in 0..=8 {
            assert!(roles.share_by(Box::new(Mixed(eighths))));
            assert!(logits(&mut both) == expected, "{}: {eighths}/8", model.name);
        }
        assert_eq!(roles.lost_side(), None);
    }
}

/// The cuts of a solver, by its table, and which of its strategies were asked for.
struct Solved {
    table: SocPartition,
    seen: Arc<Mutex<BTreeSet<&'static str>>>,
}

impl Partition for Solved {
    fn cut(&self, work: WorkItem) -> Cut {
        let product = work.product.and_then(|product| self.table.product(product));
        let tokens = work.tokens as u32;
        let class = product.and_then(|product| product.prefill(tokens).or(product.decode(tokens)));
        let cut = class.map_or(Cut::Whole(Side::Second), |class| class.cut.clone());
        self.seen.lock().unwrap().insert(cut.strategy());
        cut
    }
}

/// What the solver chooses for a machine whose second device is so many times as fast as it is, and whose devices need no
/// time to hand over.
fn solved(bundle: &Path, faster: f64) -> SocPartition {
    let bundle = Bundle::open(bundle).unwrap();
    let manifest = bundle.manifest();
    let shapes = products(&manifest.model, &manifest.kernels).unwrap();
    let soc = shipped::soc("core-ultra-5-125h").unwrap();
    let mut model = PairModel::of(&soc).unwrap();
    model.second.flops_per_sec *= faster;
    let free = HandOver {
        prefill_us: 0.0,
        decode_us: 0.0,
        copy_us: 0.0,
    };
    let mut pair = soc.pair.unwrap();
    (pair.row_step, pair.static_tokens, pair.fast) = (8, vec![8, 16, 32], free);
    partition("x", &pair, &model, &shapes, 64).unwrap()
}

#[test]
fn cuts_that_a_solver_chooses() {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    for model in compiled() {
        let mut alone = executor(&model.bundle, "host-cpu", OPTIONS.chunk_tokens).unwrap();
        let expected = logits(&mut alone);
        let (mut both, roles) = pair(&model.bundle);
        for faster in [0.01, 0.3, 1.0, 3.0] {
            let (table, seen) = (solved(&model.bundle, faster), Arc::clone(&seen));
            assert!(roles.share_by(Box::new(Solved { table, seen })));
            assert!(logits(&mut both) == expected, "{}: {faster}", model.name);
        }
        assert_eq!(roles.lost_side(), None);
    }
    let seen = seen.lock().unwrap();
    for strategy in ["row", "hybrid", "multi-sequence"] {
        assert!(seen.contains(strategy), "{seen:?}");
    }
}
