//! Drafts that are wrong in every way: a request gets the same tokens and log probabilities as without drafts.
//!
//! Every family is tested, in f32 and in W8A16, greedily and with seeds. `HEG_FULL=1` uses 32 seeds instead of two.

use std::path::Path;

use heg_runtime::Loaded;
use heg_runtime::engine::{
    EndTokens, Engine, EngineOptions, FaultPlan, Request, Speculation, Update,
};
use heg_runtime::exec::ExecutorOptions;
use heg_sched::{Class, Finish, RequestId};
use heg_spec::{WeightForm, shipped};
use heg_tests::{FAMILIES, Workbench, fixture, openvino_or_skip};
use heg_text::SamplingParams;

const ANSWER_TOKENS: u32 = 20;
const PROMPT_TOKENS: [usize; 2] = [9, 70];

/// The kind of draft for a known answer.
#[derive(Debug, Clone, Copy)]
enum Drafted {
    Right,
    /// Right except for the token at this position.
    WrongAt(usize),
    Random,
    /// The tokens that end answers.
    Ends,
    /// A right token, followed by tokens outside every vocabulary.
    Unknown,
    /// The right tokens as one branch of a tree with two other branches at each of its tokens.
    Hidden,
    /// As many branches as there are rows, none of them right.
    Bushy,
}

const DRAFTED: [Drafted; 11] = [
    Drafted::Right,
    Drafted::WrongAt(0),
    Drafted::WrongAt(1),
    Drafted::WrongAt(2),
    Drafted::WrongAt(7),
    Drafted::WrongAt(15),
    Drafted::Random,
    Drafted::Ends,
    Drafted::Unknown,
    Drafted::Hidden,
    Drafted::Bushy,
];

/// Vocabulary size of the smallest family: the end of the token ids.
const TOKENS: u32 = 64;

impl Drafted {
    /// Returns the draft for an answer that continues with `rest`.
    fn tokens(self, rest: &[u32], ends: &[u32]) -> Vec<(u32, Option<u16>)> {
        let chain = |tokens: Vec<u32>| -> Vec<(u32, Option<u16>)> {
            let before = [None].into_iter().chain((0..).map(Some));
            tokens.into_iter().zip(before).collect()
        };
        let other = |token: u32| (token + 1) % TOKENS;
        match self {
            Self::Right => chain(rest.to_vec()),
            Self::WrongAt(at) => {
                let mut tokens = rest.to_vec();
                if let Some(token) = tokens.get_mut(at) {
                    *token = other(*token);
                }
                chain(tokens)
            }
            Self::Random => {
                let seed = rest.first().copied().unwrap_or(3);
                chain(
                    (1..16)
                        .map(|at| (seed * at * at + 11 * at) % TOKENS)
                        .collect(),
                )
            }
            Self::Ends => chain(ends.iter().copied().cycle().take(6).collect()),
            Self::Unknown => {
                let right = rest.first().copied();
                chain(right.into_iter().chain([u32::MAX, 1 << 20]).collect())
            }
            Self::Hidden => {
                let mut tree = Vec::new();
                let mut before = None;
                for token in rest.iter().take(10) {
                    tree.push((other(*token), before));
                    tree.push((*token, before));
                    let right = (tree.len() - 1) as u16;
                    tree.push((other(*token), Some(right - 1)));
                    before = Some(right);
                }
                tree
            }
            Self::Bushy => {
                let right = rest.first().copied().unwrap_or(0);
                let wrong = (0..TOKENS).filter(|token| *token != right);
                wrong.map(|token| (token, None)).take(31).collect()
            }
        }
    }
}

/// A token with its log probability, as bits if they do not depend on the rows beside it.
type Token = (u32, Option<u64>);

fn answer(engine: &Engine, machine: Machine, request: Request) -> (Vec<Token>, u32) {
    let mut tokens = Vec::new();
    for update in engine.generate(request) {
        match update {
            Update::Accepted { .. } | Update::Prompt(_) | Update::Vector(_) => {}
            Update::Token { id, log_probs } => {
                let probability = log_probs.unwrap().token.log_probability;
                tokens.push((id, machine.is_exact.then(|| probability.to_bits())));
            }
            Update::Finished(ending) => {
                assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
                let drafts = ending.drafts.unwrap_or_default();
                return (tokens, drafts.accepted_tokens);
            }
        }
    }
    unreachable!("an answer ends");
}

/// The machine on which a family runs.
#[derive(Debug, Clone, Copy)]
struct Machine {
    soc: &'static str,
    policy: &'static str,
    is_exact: bool,
}

const INT8: Machine = Machine {
    soc: "host-cpu",
    policy: "agent-xpu-one-device",
    is_exact: true,
};

const FLOAT: Machine = Machine {
    soc: "host-cpu-f32",
    ..INT8
};

const TWO_LANES: Machine = Machine {
    soc: "host-roles",
    policy: "agent-xpu",
    is_exact: true,
};

/// The kernels of a GPU and an NPU, which verify chains.
const OPENVINO: Machine = Machine {
    soc: "host-roles-openvino",
    policy: "agent-xpu",
    is_exact: false,
};

fn engine(bundle: &Path, machine: Machine, speculation: Speculation, plan: &FaultPlan) -> Engine {
    let loader = Loaded::open(bundle).unwrap();
    let loader = loader.loader(&shipped::soc(machine.soc).unwrap()).unwrap();
    let options = EngineOptions {
        exec: ExecutorOptions {
            chunk_tokens: 32,
            ..ExecutorOptions::default()
        },
        speculation,
        ..EngineOptions::default()
    };
    let mut policy = shipped::policy(machine.policy).unwrap();
    // All drafted tokens are verified, whatever rows cost on a busy machine.
    policy.drafts.fixed_tokens = Some(31);
    let engine = Engine::start_with_faults(loader, policy, options, plan.clone()).unwrap();
    engine.wait_ready().unwrap();
    engine
}

/// Returns the samplings: greedy, and several seeds; no seeds if bits depend on the rows beside them.
fn samplings(machine: Machine) -> impl Iterator<Item = SamplingParams> {
    let seeds = match (machine.is_exact, std::env::var_os("HEG_FULL")) {
        (false, _) => 0,
        (true, Some(_)) => 32,
        (true, None) => 2,
    };
    let sampled = (0..seeds).map(|seed| SamplingParams {
        temperature: 0.8,
        seed,
        ..SamplingParams::default()
    });
    [SamplingParams::default()].into_iter().chain(sampled)
}

fn check(family: &str, weights: WeightForm, machine: Machine) {
    let workbench = Workbench::new().unwrap();
    let folder = fixture(&format!("golden/{family}"));
    let compiled = workbench.compile(&folder, family, |spec| spec.weights = weights);
    let (bundle, _) = compiled.unwrap();
    let loaded = Loaded::open(&bundle).unwrap();
    let ends = loaded.bundle().manifest().text.eos_ids.clone();
    let plan = FaultPlan::default();
    let plain = engine(&bundle, machine, Speculation::Off, &plan);
    let drafting = engine(&bundle, machine, Speculation::Tree, &plan);
    let (mut right, mut hidden) = (0, 0);
    for length in PROMPT_TOKENS {
        let prompt: Vec<u32> = (0..length as u32)
            .map(|i| (5 + i * i + 7 * i) % TOKENS)
            .collect();
        for sampling in samplings(machine) {
            let request = || Request {
                tokens_max: ANSWER_TOKENS,
                end_tokens: EndTokens::Ignored,
                log_probs: Some(1),
                sampling,
                ..Request::new(Class::Reactive, prompt.clone())
            };
            let (expected, _) = answer(&plain, machine, request());
            let tokens: Vec<u32> = expected.iter().map(|(token, _)| *token).collect();
            for drafted in DRAFTED {
                let (tokens, ends) = (tokens.clone(), ends.clone());
                plan.draft(move |_: RequestId, so_far: &[u32]| {
                    let rest = tokens.get(so_far.len() - length..).unwrap_or_default();
                    drafted.tokens(rest, &ends)
                });
                let (found, accepted) = answer(&drafting, machine, request());
                let what = format!("{family}, {machine:?}, {length}, {sampling:?}, {drafted:?}");
                assert_eq!(found, expected, "{what}");
                match drafted {
                    Drafted::Right => right += accepted,
                    Drafted::Hidden => hidden += accepted,
                    Drafted::Bushy => assert_eq!(accepted, 0, "{what}"),
                    _ => {}
                }
            }
        }
    }
    if machine.is_exact {
        // All of an answer but its first token, which the prompt gives, and its last, which follows the draft.
        let answers = (PROMPT_TOKENS.len() * samplings(machine).count()) as u32;
        assert_eq!(
            right,
            answers * (ANSWER_TOKENS - 2),
            "{family}, {machine:?}"
        );
    }
    assert!(right > 0, "{family}, {machine:?}");
    assert_eq!(hidden > 0, machine.is_exact, "{family}, {machine:?}");
}

#[test]
fn wrong_drafts_change_no_answer_of_any_family_in_int8() {
    for family in FAMILIES {
        check(family, WeightForm::W8A16, INT8);
    }
}

#[test]
fn wrong_drafts_change_no_answer_of_any_family_in_f32() {
    for family in FAMILIES {
        check(family, WeightForm::F32, FLOAT);
    }
}

#[test]
fn wrong_drafts_change_no_answer_on_two_lanes() {
    check("llama", WeightForm::W8A16, TWO_LANES);
}

#[test]
fn wrong_drafts_change_no_answer_on_the_kernels_of_other_devices() {
    if openvino_or_skip("wrong_drafts_change_no_answer_on_the_kernels_of_other_devices") {
        check("llama", WeightForm::F32, OPENVINO);
    }
}
