//! `cargo xtask bench-speculation`: answers to questions of real data sets without drafts, with chains and trees, and
//! by OpenVINO GenAI with and without prompt look-up. All sides take turns at every question.

mod ablation;
mod data;
mod genai;
mod recital;
mod report;

use crate::bench_peers;
use crate::precision::Precision;
use crate::subject::{SMOLLM2, Subject};
use anyhow::{Context, Result};
use data::Question;
use genai::GenAi;
use heg_runtime::Loaded;
use heg_runtime::engine::{EndTokens, Engine, Request, ScopeId, Speculation};
use heg_runtime::exec::ExecutorOptions;
use heg_runtime::history::{PastAnswers, TokenSet};
use heg_sched::{Class, Finish};
use heg_spec::shipped;
use heg_text::Restriction;
use recital::Recital;
use report::{DataSet, Report};
use std::num::NonZeroUsize;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::time::Instant;
use xtask::fail::Fail;
use xtask::workspace::note;

/// Arguments of `cargo xtask bench-speculation`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// A model by name, or a Hugging Face folder
    #[arg(long, value_name = "MODEL", default_value = SMOLLM2)]
    model: String,
    /// A compiled bundle, in place of a model; without GenAI
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "recite"])]
    bundle: Option<PathBuf>,
    /// The folder of the data sets, *.jsonl
    #[arg(long, value_name = "DIR")]
    workloads: PathBuf,
    /// Data sets, in this order
    #[arg(long, value_delimiter = ',', default_values = DATA_SETS)]
    data: Vec<String>,
    /// Questions of each data set
    #[arg(long, value_name = "N", default_value_t = QUESTIONS)]
    questions: NonZeroUsize,
    /// Longest prompt that is taken, in tokens
    #[arg(long, value_name = "N", default_value_t = 1800)]
    prompt_tokens: usize,
    /// Longest answer
    #[arg(long, value_name = "N", default_value_t = 160)]
    answer_tokens: u32,
    /// Have HEG say the data sets' own answers in place of the model's: for models of random weights
    #[arg(long)]
    recite: bool,
    /// Questions before those, whose own answers are in the histories from the start
    #[arg(long, value_name = "N", default_value_t = 0, requires = "recite")]
    past: usize,
    /// Ask with each mechanism of drafts on and off instead, and leave GenAI out
    #[arg(long)]
    ablate: bool,
    /// Leave GenAI out
    #[arg(long)]
    alone: bool,
    /// Print one JSON object for each data set
    #[arg(long)]
    json: bool,
}

/// A way to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Side {
    Plain,
    Chain,
    Tree,
    GenAi,
    GenAiLookup,
}

/// The cost of answers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Spent {
    seconds: f64,
    /// The part of `seconds` after the first token; unknown for GenAI.
    decode_seconds: f64,
    tokens: u32,
    /// Number of decode iterations.
    steps: u32,
    drafted: u32,
    accepted: u32,
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.decode_seconds += other.decode_seconds;
        self.tokens += other.tokens;
        self.steps += other.steps;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (bundle, subject) = match &args.bundle {
        Some(bundle) => (bundle.clone(), None),
        None => {
            let subject = Subject::find(Some(&args.model))?;
            (subject.bundle(Precision::EIGHT_BITS)?, Some(subject))
        }
    };
    // A model of random weights has no tokenizer; its tokens are from another one then.
    let text = match args.recite {
        true => Loaded::open(&Subject::find(Some(SMOLLM2))?.bundle(Precision::EIGHT_BITS)?)?,
        false => Loaded::open(&bundle)?,
    };
    let (tokenizer, template) = (text.tokenizer()?, text.chat_template()?);
    let mut genai = match &subject {
        Some(subject) if !(args.alone || args.recite || args.ablate) => {
            let exported = bench_peers::genai::prepare(subject, None, Precision::EIGHT_BITS)?;
            Some(GenAi::start(&exported.model, &subject.peers)?)
        }
        _ => None,
    };
    let mut report = Report::default();
    for name in &args.data {
        let sizes = (args.past + args.questions.get(), args.prompt_tokens);
        let written = (&tokenizer, &template);
        let mut past = data::questions(&args.workloads, name, written, sizes)?;
        let questions = past.split_off(args.past.min(past.len()));
        let past = answers_of(&past, TokenSet::of(text.bundle()));
        note(format!("{name}: {} questions", questions.len()));
        if args.ablate {
            let ablation = ablation::ablate(args, &bundle, name, &questions)?;
            match args.json {
                true => print!("{}", ablation.json_lines()?),
                false => print!("{}", ablation.table()),
            }
            continue;
        }
        let mut data_set = asked(args, &bundle, (&past, &questions), genai.as_mut())?;
        data_set.name.clone_from(name);
        report.data_sets.push(data_set);
    }
    match args.json {
        _ if args.ablate => {}
        true => print!("{}", report.json_lines()?),
        false => print!("{}", report.table(&text.bundle().manifest().model.name)),
    }
    Ok(())
}

/// The questions' reference answers, as if they had been given.
fn answers_of(questions: &[Question], token_set: TokenSet) -> PastAnswers {
    let mut answers = PastAnswers::new(token_set);
    for question in questions {
        answers.add(&question.prompt, &question.reference);
    }
    answers
}

/// Asks all questions, each on all sides in turn. Histories begin with the past answers, and continue with those of the
/// data set.
fn asked(
    args: &Args,
    bundle: &Path,
    (past, questions): (&PastAnswers, &[Question]),
    mut genai: Option<&mut GenAi>,
) -> Result<DataSet> {
    let engines = [
        (Side::Plain, Speculation::Off),
        (Side::Chain, Speculation::Chain),
        (Side::Tree, Speculation::Tree),
    ];
    let engines = engines.map(|(side, speculation)| Ok((side, engine(bundle, speculation)?)));
    let engines: Vec<(Side, Engine)> = engines.into_iter().collect::<Result<_>>()?;
    for (_, engine) in &engines {
        engine.recall(ScopeId::default(), past);
    }
    let mut data_set = DataSet::default();
    for (number, question) in questions.iter().enumerate() {
        let mut answers: Vec<Vec<u32>> = Vec::new();
        // The sides take turns at being first, in case the machine changes meanwhile.
        for at in 0..engines.len() {
            let (side, engine) = &engines[(number + at) % engines.len()];
            let (answer, spent) = answered(engine, request(question, args))?;
            data_set.add(*side, spent);
            answers.push(answer);
        }
        if answers.iter().any(|answer| *answer != answers[0]) {
            let message = format!("question {number} is answered otherwise with drafts");
            return Err(Fail::check(message).into());
        }
        if let Some(genai) = genai.as_deref_mut() {
            let tokens = answers[0].len() as u32;
            for (side, lookup) in [(Side::GenAi, false), (Side::GenAiLookup, true)] {
                data_set.add(side, genai.answer(&question.prompt, tokens, lookup)?);
            }
        }
    }
    data_set.questions = questions.len();
    Ok(data_set)
}

fn engine(bundle: &Path, speculation: Speculation) -> Result<Engine> {
    let loader = Loaded::open(bundle)?.loader(&shipped::soc("host-cpu")?)?;
    let engine = Engine::start_single(loader, ExecutorOptions::default(), speculation)?;
    engine.wait_ready()?;
    Ok(engine)
}

/// The request for a question.
fn request(question: &Question, args: &Args) -> Request {
    let recital = args.recite.then(|| {
        let said = question.reference.len().min(args.answer_tokens as usize);
        Box::new(Recital::new(&question.reference[..said])) as Box<dyn Restriction>
    });
    Request {
        tokens_max: args.answer_tokens,
        end_tokens: match args.recite {
            true => EndTokens::Ignored,
            false => EndTokens::End,
        },
        restriction: recital,
        ..Request::new(Class::Reactive, question.prompt.clone())
    }
}

/// An answer, and its cost from the prompt to the last token.
fn answered(engine: &Engine, request: Request) -> Result<(Vec<u32>, Spent)> {
    let begin = Instant::now();
    let (tokens, ending) = engine
        .generate(request)
        .wait()
        .context("the engine is gone")?;
    let seconds = begin.elapsed().as_secs_f64();
    if let (Some(error), true) = (ending.error, ending.finish != Finish::Complete) {
        return Err(anyhow::Error::new(error).context("a question was not answered"));
    }
    let drafts = ending.drafts.unwrap_or_default();
    let spent = Spent {
        seconds,
        decode_seconds: ending.decode.as_secs_f64(),
        tokens: tokens.len() as u32,
        steps: match ending.drafts {
            Some(drafts) => drafts.steps,
            None => ending.generated.saturating_sub(1),
        },
        drafted: drafts.drafted_tokens,
        accepted: drafts.accepted_tokens,
    };
    Ok((tokens, spent))
}

const DATA_SETS: [&str; 8] = [
    "bfcl",
    "sgd",
    "mtrag_un",
    "digitalgov_news",
    "wikinews",
    "qmsum",
    "irc_groupchat",
    "user_oriented",
];

const QUESTIONS: NonZeroUsize = match NonZeroUsize::new(12) {
    Some(questions) => questions,
    None => NonZeroUsize::MIN,
};

const AFTER_HELP: &str = "\
Takes the first questions of each data set that have a reference answer and fit. Prompts are written by the
model's chat template. Every side answers each question in turn, greedily; times are from the prompt to the last
token. HEG's sides must give the same tokens, or the command fails. GenAI gives as many tokens as HEG did,
with prompt look-up of 5 tokens after matches of at most 3, and without.

--recite: HEG goes through the model for every token, and says the reference whatever the model prefers; tokens
are those of smollm2-135m-instruct, and GenAI is left out. --past N skips N questions, and has their references in
the histories, as a server has that ran for a while.

--ablate: a chain without each mechanism of drafts, with calibration and reuse, and of 16 tokens whatever they cost. Each
question is asked for one token first, so that its prompt can be read again before the answer.

Examples:
  cargo xtask bench-speculation --workloads DIR
  cargo xtask bench-speculation --workloads DIR --data bfcl,mtrag_un --questions 40 --json
  cargo xtask bench-speculation --workloads DIR --data bfcl --ablate
  cargo xtask bench-speculation --workloads DIR --model llama-3.2-1b --recite --past 100";
