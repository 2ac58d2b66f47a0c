//! The trained models: 20 golden prompts token for token in f32, and the cost of W8A16 in task accuracy.
//!
//! `tiny-agent` is a fixture; `agent-30m` is too large for the repository and comes from `$HEG_MODELS` or from
//! `../shared/models` beside the workspace. By default a seeded part of the evaluation prompts is answered;
//! `HEG_FULL=1` takes all 200.
//!
//! The tests take turns: each keeps all cores busy, and two at a time are slower than one after the other.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use heg_runtime::Loaded;
use heg_runtime::engine::{Engine, Request};
use heg_sched::Finish;
use heg_spec::WeightForm;
use heg_tests::questions::{Question, agent_30m, questions};
use heg_tests::{Seeded, Workbench, fixture, openvino_or_skip, single_engine};
use heg_text::{ChatTemplate, Conversation, Message, Special, Tokenizer};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    messages: Vec<Message>,
    tools: Option<Vec<Value>>,
    rendered: String,
    input_ids: Vec<u32>,
    output_ids: Vec<u32>,
    output_text: String,
}

/// A model with its text side.
struct Agent {
    engine: Engine,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    eos_ids: Vec<u32>,
}

impl Agent {
    fn new(workbench: &Workbench, model: &Path, soc: &str, weights: WeightForm) -> Self {
        let name = format!("{weights:?}");
        let compiled = workbench.compile(model, &name, |spec| spec.weights = weights);
        let (bundle, _) = compiled.unwrap();
        let loaded = Loaded::open(&bundle).unwrap();
        Self {
            engine: single_engine(&bundle, soc, 256).unwrap(),
            tokenizer: loaded.tokenizer().unwrap(),
            template: loaded.chat_template().unwrap(),
            eos_ids: loaded.bundle().manifest().text.eos_ids.clone(),
        }
    }

    fn prompt(&self, messages: &[Message], tools: &Option<Vec<Value>>) -> String {
        let conversation = Conversation {
            messages: messages.to_vec(),
            tools: tools.clone().unwrap_or_default(),
            add_generation_prompt: true,
            ..Conversation::default()
        };
        self.template.render(&conversation).unwrap()
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, Special::AsWritten).unwrap()
    }

    /// Answers greedily, up to and including the stop token, as the reference does.
    fn answer(&self, prompt: &[u32], tokens_max: usize) -> Vec<u32> {
        let request = Request {
            tokens_max: tokens_max as u32,
            ..Request::reactive(prompt.to_vec())
        };
        let (tokens, ending) = self.engine.generate(request).wait().unwrap();
        assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
        tokens
    }

    /// Returns the text of an answer, without the stop token.
    fn text(&self, answer: &[u32]) -> String {
        let end = answer
            .iter()
            .position(|token| self.eos_ids.contains(token))
            .unwrap_or(answer.len());
        self.tokenizer.decode(&answer[..end]).unwrap()
    }
}

/// Checks the rendered text, the token ids, and the answers of all golden prompts.
fn check_golden(model: &Path, soc: &str) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let workbench = Workbench::new().unwrap();
    let agent = Agent::new(&workbench, model, soc, WeightForm::F32);
    let text = std::fs::read_to_string(model.join("golden.json")).unwrap();
    let golden: Golden = serde_json::from_str(&text).unwrap();
    assert_eq!(golden.cases.len(), 20);
    for (index, case) in golden.cases.iter().enumerate() {
        let name = format!("{}, prompt {index}, {soc}", model.display());
        let rendered = agent.prompt(&case.messages, &case.tools);
        assert_eq!(rendered, case.rendered, "{name}");
        assert_eq!(agent.encode(&rendered), case.input_ids, "{name}");
        let answer = agent.answer(&case.input_ids, GOLDEN_TOKENS_MAX);
        assert_eq!(answer, case.output_ids, "{name}");
        assert_eq!(agent.text(&answer), case.output_text, "{name}");
    }
    println!("{}, {soc}: 20 of 20 prompts", model.display());
}

/// Checks the number of questions that are answered exactly, in both forms of the weights.
fn check_accuracy(model: &Path, part: usize) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let workbench = Workbench::new().unwrap();
    let questions = some_questions(model, part);
    let answered = |weights| -> Vec<bool> {
        let agent = Agent::new(&workbench, model, "host-cpu-f32", weights);
        let correct = |question: &Question| {
            let prompt = agent.prompt(&question.messages, &question.tools);
            assert_eq!(prompt, question.prompt, "question {}", question.id);
            let answer = agent.answer(&agent.encode(&prompt), ANSWER_TOKENS_MAX);
            agent.text(&answer) == question.answer
        };
        questions.iter().map(correct).collect()
    };
    let (full, quantised) = (answered(WeightForm::F32), answered(WeightForm::W8A16));
    let count = |answers: &[bool]| answers.iter().filter(|correct| **correct).count();
    let agreed = |question: &(&Question, &bool)| question.0.correct_float32 == *question.1;
    let agreed = questions.iter().zip(&full).filter(agreed).count();
    let (all, full, quantised) = (questions.len(), count(&full), count(&quantised));
    let model = model.display();
    println!(
        "{model}: f32 {full} of {all}, W8A16 {quantised} of {all}; f32 agrees with the reference on {agreed}"
    );
    assert_eq!(agreed, all, "{model}: f32 against the reference's f32");
    // A percentage point of a part is less than one question, so one is allowed there.
    let allowed = (all / 100).max(1);
    assert!(
        quantised + allowed >= full,
        "{model}: W8A16 has {quantised} of {all}, f32 {full}: expected at most {allowed} fewer"
    );
}

/// Returns all questions, or a seeded part of them.
fn some_questions(model: &Path, part: usize) -> Vec<Question> {
    let mut questions = questions(model).unwrap();
    if std::env::var_os("HEG_FULL").is_none() {
        Seeded::new(2).shuffle(&mut questions);
        questions.truncate(part);
    }
    questions
}

#[test]
fn tiny_agent_answers_as_the_reference() {
    if openvino_or_skip("tiny_agent_answers_as_the_reference") {
        check_golden(&fixture("tiny-agent"), "host-cpu-f32");
    }
}

#[test]
fn tiny_agent_answers_as_the_reference_with_weights_as_inputs() {
    if openvino_or_skip("tiny_agent_answers_as_the_reference_with_weights_as_inputs") {
        check_golden(&fixture("tiny-agent"), "host-roles-openvino");
    }
}

#[test]
fn tiny_agent_keeps_its_accuracy_in_w8a16() {
    if openvino_or_skip("tiny_agent_keeps_its_accuracy_in_w8a16") {
        check_accuracy(&fixture("tiny-agent"), 60);
    }
}

#[test]
fn agent_30m_answers_as_the_reference() {
    let test = "agent_30m_answers_as_the_reference";
    if let Some(model) = agent_30m(test)
        && openvino_or_skip(test)
    {
        check_golden(&model, "host-cpu-f32");
    }
}

#[test]
fn agent_30m_keeps_its_accuracy_in_w8a16() {
    let test = "agent_30m_keeps_its_accuracy_in_w8a16";
    if let Some(model) = agent_30m(test)
        && openvino_or_skip(test)
    {
        check_accuracy(&model, 20);
    }
}

/// Maximum number of tokens of the golden answers, which were cut there.
const GOLDEN_TOKENS_MAX: usize = 48;

/// Maximum number of tokens of the reference's answers to the evaluation prompts, which were cut there.
const ANSWER_TOKENS_MAX: usize = 160;

/// The lock of the test that runs.
static TURN: Mutex<()> = Mutex::new(());
