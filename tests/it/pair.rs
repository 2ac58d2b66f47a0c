//! Two lanes that share every kernel: whatever is cut, and how, answers are those of one device, bit for bit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use heg_runtime::engine::{EndTokens, Engine, EngineOptions, Request, Update};
use heg_runtime::exec::{Executor, ExecutorOptions, PairLanes, PairedRoles, Partition, WorkItem};
use heg_sched::Switching;
use heg_sched::{Class, Finish, Logits, chunks};
use heg_spec::policy::{PairLevel, Pairing, Synchronisation};
use heg_spec::{Cut, CutProduct, GroupColumns, Side, Soc, WeightForm, shipped};
use heg_tests::golden;
use heg_tests::roles::loader;
use heg_tests::{FAMILIES, Workbench, executor, fixture, greedy};

/// One product is cut, the rest is the first side's.
pub(crate) struct OnlyOne(pub(crate) Option<CutProduct>, pub(crate) Cut);

impl Partition for OnlyOne {
    fn cut(&self, work: WorkItem) -> Cut {
        match work.product == self.0 {
            true => self.1.clone(),
            false => Cut::Whole(Side::First),
        }
    }
}

/// On tiles and off them, within heads, and with nothing left for a side.
pub(crate) fn cuts() -> Vec<Cut> {
    let tokens = |sizes: &[u32]| Cut::Tokens {
        sizes: sizes.to_vec(),
    };
    vec![
        Cut::Whole(Side::Second),
        Cut::Rows { first: 1 },
        Cut::Rows { first: 23 },
        Cut::Rows { first: 64 },
        tokens(&[8]),
        tokens(&[16, 4]),
        Cut::Hybrid {
            first: 32,
            padded_tokens: 32,
        },
        // The second side has a margin of these rows, beside the others.
        Cut::Hybrid {
            first: 23,
            padded_tokens: 9,
        },
    ]
}

pub(crate) const OPTIONS: ExecutorOptions = ExecutorOptions {
    chunk_tokens: 32,
    batch: 2,
    loader_threads: 1,
    switching: Switching::Resident,
};

/// An executor of a pair, and the pair.
fn pair(bundle: &Path, level: PairLevel) -> (Executor, Arc<PairedRoles>) {
    pair_of(&shipped::soc("host-pair").unwrap(), bundle, level)
}

/// An executor of the pair of a machine, and the pair.
pub(crate) fn pair_of(soc: &Soc, bundle: &Path, level: PairLevel) -> (Executor, Arc<PairedRoles>) {
    let pairing = Pairing {
        level,
        synchronisation: Synchronisation::Fast,
    };
    let loader = loader(bundle, soc).paired(pairing, PairLanes::One).unwrap();
    let roles = Arc::clone(loader.pair().unwrap());
    (Executor::new(loader, OPTIONS).unwrap(), roles)
}

/// Bits of all logits of a prompt in chunks, and of a few tokens behind it.
pub(crate) fn logits(executor: &mut Executor, prompt: &[u32]) -> Vec<u32> {
    logits_in_chunks(executor, prompt, OPTIONS.chunk_tokens)
}

/// The same in chunks of another size.
pub(crate) fn logits_in_chunks(
    executor: &mut Executor,
    prompt: &[u32],
    chunk_tokens: usize,
) -> Vec<u32> {
    let mut sequence = executor.sequence().unwrap();
    let mut bits = Vec::new();
    for range in chunks(prompt.len(), chunk_tokens) {
        let row = executor.prefill(&mut sequence, &prompt[range], Logits::LastRows);
        bits.extend(row.unwrap().iter().map(|logit| logit.to_bits()));
    }
    for token in [3, 5] {
        let row = executor.decode(&mut [&mut sequence], &[token]).unwrap();
        bits.extend(row.iter().map(|logit| logit.to_bits()));
    }
    bits
}

fn check_family(family: &str, form: WeightForm) {
    let workbench = Workbench::new().unwrap();
    let folder = fixture(&format!("golden/{family}"));
    let change = |spec: &mut heg_spec::ModelSpec| spec.weights = form;
    let (bundle, _) = workbench.compile(&folder, family, change).unwrap();
    let cases = golden::family(family).unwrap();
    let longest = cases
        .iter()
        .max_by_key(|case| case.input_ids.len())
        .unwrap();
    let mut alone = executor(&bundle, "host-cpu", OPTIONS.chunk_tokens).unwrap();
    let expected = logits(&mut alone, &longest.input_ids);
    for level in [PairLevel::Tensor, PairLevel::Layer] {
        let (mut both, _) = pair(&bundle, level);
        assert!(
            logits(&mut both, &longest.input_ids) == expected,
            "{family}, {level:?}"
        );
        for case in cases.iter().filter(|_| form == WeightForm::F32) {
            let mut sequence = both.sequence().unwrap();
            let tokens = case.greedy_ids.len();
            let found = greedy(&mut both, &mut sequence, &case.input_ids, tokens).unwrap();
            assert_eq!(found, case.greedy_ids, "{family}, {level:?}");
        }
    }
    let (mut both, roles) = pair(&bundle, PairLevel::Tensor);
    for product in CutProduct::ALL.into_iter().map(Some).chain([None]) {
        for cut in cuts() {
            assert!(roles.share_by(Box::new(OnlyOne(product, cut.clone()))));
            let found = logits(&mut both, &longest.input_ids);
            assert!(found == expected, "{family}, {form:?}, {product:?}: {cut}");
        }
    }
    assert_eq!(roles.lost_side(), None);
}

#[test]
fn every_cut_of_every_product_of_every_family_in_f32() {
    for family in FAMILIES {
        check_family(family, WeightForm::F32);
    }
}

#[test]
fn every_cut_of_every_product_of_every_family_in_8_bits() {
    for family in FAMILIES {
        check_family(family, WeightForm::W8A16);
    }
}

#[test]
fn every_cut_of_every_product_of_every_family_in_4_bits() {
    for (family, symmetric) in FAMILIES.into_iter().zip([false, true].into_iter().cycle()) {
        check_family(family, four_bits(symmetric));
    }
}

pub(crate) const fn four_bits(symmetric: bool) -> WeightForm {
    WeightForm::W4A16 {
        group: GroupColumns::SMALLEST,
        symmetric,
    }
}

fn tiny_agent(workbench: &Workbench) -> PathBuf {
    tiny_agent_in(workbench, WeightForm::W8A16)
}

pub(crate) fn tiny_agent_in(workbench: &Workbench, form: WeightForm) -> PathBuf {
    let change = |spec: &mut heg_spec::ModelSpec| spec.weights = form;
    let compiled = workbench.compile(&fixture("tiny-agent"), "tiny", change);
    compiled.unwrap().0
}

pub(crate) fn engine(bundle: &Path, soc: &str, policy: &str) -> Engine {
    let loader = loader(bundle, &shipped::soc(soc).unwrap());
    let policy = shipped::policy(policy).unwrap();
    Engine::start(loader, policy, EngineOptions::default()).unwrap()
}

pub(crate) fn prompt(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| 3 + (at * 37 + tokens) % 200).collect()
}

pub(crate) const ANSWER_TOKENS: usize = 5;

/// Lengths on sizes of shapes, beside them, and far from them.
const AWKWARD: [u32; 9] = [1, 31, 32, 33, 135, 300, 525, 600, 1000];

pub(crate) fn request(class: Class, prompt: &[u32]) -> Request {
    Request {
        tokens_max: ANSWER_TOKENS as u32,
        end_tokens: EndTokens::Ignored,
        ..Request::new(class, prompt.to_vec())
    }
}

pub(crate) fn answer(engine: &Engine, class: Class, prompt: &[u32]) -> Vec<u32> {
    let generation = engine.generate(request(class, prompt));
    generation.wait().unwrap().0
}

#[test]
fn prompts_of_awkward_lengths_get_the_same_answers() {
    let workbench = Workbench::new().unwrap();
    let bundle = tiny_agent(&workbench);
    let mut alone = executor(&bundle, "host-cpu", 256).unwrap();
    let engines = ["heterollm-tensor", "heterollm-layer"];
    let engines = engines.map(|policy| (policy, engine(&bundle, "host-pair", policy)));
    for tokens in AWKWARD {
        let prompt = prompt(tokens);
        let mut sequence = alone.sequence().unwrap();
        let expected = greedy(&mut alone, &mut sequence, &prompt, ANSWER_TOKENS).unwrap();
        for (policy, engine) in &engines {
            // Background work runs on one side alone.
            for class in [Class::Reactive, Class::Proactive] {
                let found = answer(engine, class, &prompt);
                assert_eq!(found, expected, "{policy}, {class:?}, {tokens} tokens");
            }
        }
    }
    for (policy, engine) in &engines {
        let status = engine.status().unwrap();
        let pair = status.pair.unwrap();
        assert!(pair.hand_overs > 0, "{policy}");
        assert_eq!((pair.lost, status.lanes.len()), (None, 1), "{policy}");
    }
}

/// Plays a first side with static shapes: it has the products, by tokens, in sizes that hold more than there are.
struct Padded;

impl Partition for Padded {
    fn cut(&self, work: WorkItem) -> Cut {
        match work.product {
            Some(CutProduct::Attention) | None => Cut::Whole(Side::Second),
            Some(_) => Cut::Tokens {
                sizes: vec![32; work.tokens.div_ceil(32)],
            },
        }
    }
}

#[test]
fn prompts_on_static_sizes_get_the_same_answers() {
    let workbench = Workbench::new().unwrap();
    let bundle = tiny_agent(&workbench);
    let mut alone = executor(&bundle, "host-cpu", OPTIONS.chunk_tokens).unwrap();
    let (mut both, roles) = pair(&bundle, PairLevel::Tensor);
    assert!(roles.share_by(Box::new(Padded)));
    for tokens in AWKWARD {
        let prompt = prompt(tokens);
        let [expected, found] = [&mut alone, &mut both].map(|executor| {
            let mut sequence = executor.sequence().unwrap();
            greedy(executor, &mut sequence, &prompt, ANSWER_TOKENS).unwrap()
        });
        assert_eq!(found, expected, "{tokens} tokens");
    }
}

#[test]
fn answers_of_4_bits_are_the_same_on_two_devices() {
    for symmetric in [false, true] {
        let workbench = Workbench::new().unwrap();
        let bundle = tiny_agent_in(&workbench, four_bits(symmetric));
        let mut alone = executor(&bundle, "host-cpu", 256).unwrap();
        let both = engine(&bundle, "host-pair", "heterollm-tensor");
        for tokens in [1, 33, 300] {
            let prompt = prompt(tokens);
            let mut sequence = alone.sequence().unwrap();
            let expected = greedy(&mut alone, &mut sequence, &prompt, ANSWER_TOKENS).unwrap();
            assert_eq!(answer(&both, Class::Reactive, &prompt), expected);
        }
    }
}

/// Two lanes; one takes the other's device while that is idle.
#[test]
fn reactive_work_takes_an_idle_device_and_background_work_does_not() {
    let workbench = Workbench::new().unwrap();
    let bundle = tiny_agent(&workbench);
    let mut alone = executor(&bundle, "host-cpu", 256).unwrap();
    let prompts = [17, 90, 33, 140, 64, 5].map(prompt);
    let expected = prompts.each_ref().map(|prompt| {
        let mut sequence = alone.sequence().unwrap();
        greedy(&mut alone, &mut sequence, prompt, ANSWER_TOKENS).unwrap()
    });
    let engine = engine(&bundle, "host-pair", "agent-xpu-pair");
    let orders = || engine.status().unwrap().pair.unwrap().orders;
    assert_eq!(answer(&engine, Class::Proactive, &prompts[1]), expected[1]);
    assert_eq!(orders(), 0);
    assert_eq!(answer(&engine, Class::Reactive, &prompts[1]), expected[1]);
    assert!(orders() > 0);
    assert_eq!(engine.status().unwrap().lanes.len(), 2);
    for round in 0..5 {
        let answers: Vec<_> = (0..12)
            .map(|number| {
                let class = match (number + round) % 3 {
                    0 => Class::Reactive,
                    _ => Class::Proactive,
                };
                engine.generate(request(class, &prompts[number % prompts.len()]))
            })
            .collect();
        for (number, generation) in answers.into_iter().enumerate() {
            let (tokens, ending) = generation.wait().unwrap();
            assert_eq!(ending.finish, Finish::Complete);
            assert_eq!(tokens, expected[number % prompts.len()]);
        }
    }
}

#[test]
fn a_request_that_is_cancelled_leaves_the_pair_as_it_was() {
    let workbench = Workbench::new().unwrap();
    let bundle = tiny_agent(&workbench);
    let engine = engine(&bundle, "host-pair", "heterollm-tensor");
    let before = answer(&engine, Class::Reactive, &prompt(40));
    for round in 0..20 {
        let request = Request {
            tokens_max: 500,
            end_tokens: EndTokens::Ignored,
            ..Request::reactive(prompt(300))
        };
        let mut generation = engine.generate(request);
        let mut heard = 0;
        let finish = loop {
            match generation.next().unwrap() {
                Update::Finished(ending) => break ending.finish,
                _ if heard == round => engine.cancel(generation.id()),
                _ => {}
            }
            heard += 1;
        };
        assert_eq!(finish, Finish::Cancelled);
    }
    assert_eq!(answer(&engine, Class::Reactive, &prompt(40)), before);
}

#[test]
fn a_machine_without_two_roles_of_programs_is_no_pair() {
    let workbench = Workbench::new().unwrap();
    let bundle = tiny_agent(&workbench);
    let loader = loader(&bundle, &shipped::soc("host-cpu").unwrap());
    let policy = shipped::policy("heterollm-tensor").unwrap();
    let refused = Engine::start(loader, policy, EngineOptions::default());
    let error = refused.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("machine `host-cpu`"), "{error}");
}
