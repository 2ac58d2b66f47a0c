//! Answers restricted to a form: every one parses and is an instance of its schema, whatever the model prefers.
//!
//! With random logits in the model's place on random schemas, and with tiny-agent on all 200 evaluation prompts, where
//! the form must not make answers worse either.

use std::sync::Arc;

use heg_runtime::Loaded;
use heg_runtime::engine::{Engine, FinishReason, Request};
use heg_sched::Finish;
use heg_spec::WeightForm;
use heg_tests::questions::{Question, questions};
use heg_tests::{Seeded, Workbench, fixture, instance, single_engine};
use heg_text::{
    Calls, ChatTemplate, Conversation, Grammar, GrammarState, Grammars, Said, Sampler,
    SamplingParams, Special, TextStream, Tokenizer, Tool, ToolCall, ToolCallParser, ToolChoice,
    ToolSyntax,
};
use serde_json::{Map, Value, json};

/// Returns a random schema of at most `levels` levels that has an instance.
fn schema(random: &mut Seeded, levels: usize) -> Value {
    let kinds = if levels == 0 { 6 } else { 9 };
    match random.below(kinds) {
        0 => json!({"type": "null"}),
        1 => json!({"type": "boolean"}),
        2 => json!({"enum": ["a", 1, null, "\"\\é", [1.5, {}]]}),
        3 => {
            let minimum = random.within(0..2000) as i64 - 1000;
            let maximum = minimum + random.below(100) as i64;
            json!({"type": "integer", "minimum": minimum, "maximum": maximum})
        }
        4 => json!({"type": "number", "minimum": -5, "maximum": 7.25}),
        5 => {
            json!({"type": "string", "minLength": random.below(3), "maxLength": 3 + random.below(12)})
        }
        6 => json!({"anyOf": [schema(random, levels - 1), schema(random, levels - 1)]}),
        7 => {
            json!({"type": "array", "items": schema(random, levels - 1), "minItems": random.below(3), "maxItems": 3})
        }
        _ => object(random, levels),
    }
}

fn object(random: &mut Seeded, levels: usize) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for name in ["name", "é", "a \"b\"", "n"]
        .into_iter()
        .take(random.below(5))
    {
        properties.insert(name.to_owned(), schema(random, levels - 1));
        if random.below(2) == 0 {
            required.push(name);
        }
    }
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// Returns a random answer of a form: all allowed tokens are about equally likely.
fn babble(tokenizer: &Arc<Tokenizer>, grammar: Grammar, random: &mut Seeded) -> String {
    let params = SamplingParams {
        temperature: 1.0,
        seed: random.bits(),
        ..SamplingParams::default()
    };
    let sampler = Sampler::new(params, &[]).unwrap();
    let mut sampler = sampler.restricted(Some(Box::new(grammar)));
    let mut stream = TextStream::new(Arc::clone(tokenizer));
    let mut text = String::new();
    for _ in 0..BABBLE_TOKENS_MAX {
        // Wider than the vocabulary, as padded heads are.
        let mut logits: Vec<f32> = (0..2100).map(|_| random.unit() as f32 * 4.0).collect();
        let (token, answer) = sampler.sample(&mut logits).unwrap();
        text.extend(stream.push(token).unwrap());
        if token == EOS || answer == GrammarState::Complete {
            text.extend(stream.finish().unwrap());
            return text;
        }
    }
    panic!("no end after {BABBLE_TOKENS_MAX} tokens: {text}");
}

fn tiny_agent() -> Arc<Tokenizer> {
    let json = std::fs::read(fixture("tiny-agent/tokenizer.json")).unwrap();
    Arc::new(Tokenizer::from_json(&json).unwrap())
}

#[test]
fn random_logits_give_instances_of_random_schemas() {
    let tokenizer = tiny_agent();
    let grammars = Grammars::new(&tokenizer, &[EOS]).unwrap();
    let mut random = Seeded::new(3);
    for _ in 0..SCHEMAS {
        let schema = schema(&mut random, 3);
        let grammar = grammars
            .json_schema(&schema)
            .unwrap_or_else(|error| panic!("{schema}: {error}"));
        let text = babble(&tokenizer, grammar, &mut random);
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{schema}: {text}: {error}"));
        instance::check(&schema, &schema, &value)
            .unwrap_or_else(|error| panic!("{schema}: {text}: {error}"));
    }
}

#[test]
fn random_logits_give_right_calls_in_every_syntax() {
    let tokenizer = tiny_agent();
    let grammars = Grammars::new(&tokenizer, &[EOS]).unwrap();
    let mut random = Seeded::new(4);
    for round in 0..SCHEMAS {
        let mut tool = |name: &str| Tool {
            name: name.to_owned(),
            parameters: Some(object(&mut random, 2)),
        };
        let tools = [tool("f"), tool("g \"é\"")];
        let syntax = [ToolSyntax::Tagged, ToolSyntax::Listed("[TOOL_CALLS]")][round % 2];
        let grammar = grammars.tool_calls(syntax, &tools, &ToolChoice::Required, Calls::One);
        let text = babble(&tokenizer, grammar.unwrap().unwrap(), &mut random);
        let said = said(syntax, &text);
        let [Said::Call(call)] = said.as_slice() else {
            panic!("{text}: {said:?}");
        };
        check_call(call, &tools);
    }
}

fn said(syntax: ToolSyntax, text: &str) -> Vec<Said> {
    let mut parser = ToolCallParser::new(syntax);
    [parser.push(text), parser.finish()].concat()
}

/// Checks a call of one of the tools, with arguments that follow its schema.
fn check_call(call: &ToolCall, tools: &[Tool]) {
    let tool = tools.iter().find(|tool| tool.name == call.name);
    let schema = tool.unwrap().parameters.as_ref().unwrap();
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
    instance::check(schema, schema, &arguments).unwrap();
}

/// The model tiny-agent with its text side.
struct Agent {
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    grammars: Grammars,
    syntax: ToolSyntax,
}

impl Agent {
    fn new(workbench: &Workbench) -> Self {
        let compiled = workbench.compile(&fixture("tiny-agent"), "agent", |spec| {
            spec.weights = WeightForm::W8A16
        });
        let (bundle, _) = compiled.unwrap();
        let loaded = Loaded::open(&bundle).unwrap();
        let tokenizer = Arc::new(loaded.tokenizer().unwrap());
        let template = loaded.chat_template().unwrap();
        let eos_ids = loaded.bundle().manifest().text.eos_ids.clone();
        Self {
            engine: single_engine(&bundle, "host-cpu-f32", 256).unwrap(),
            grammars: Grammars::new(&tokenizer, &eos_ids).unwrap(),
            syntax: ToolSyntax::of(&template, &tokenizer).unwrap(),
            tokenizer,
            template,
        }
    }

    /// Returns the greedy answer, and its finish reason.
    fn answer(&self, question: &Question, grammar: Option<Grammar>) -> (String, FinishReason) {
        let conversation = Conversation {
            messages: question.messages.clone(),
            tools: question.tools.clone().unwrap_or_default(),
            add_generation_prompt: true,
            ..Conversation::default()
        };
        let prompt = self.template.render(&conversation).unwrap();
        let prompt = self.tokenizer.encode(&prompt, Special::AsWritten).unwrap();
        let request = Request {
            tokens_max: TOKENS_MAX,
            restriction: grammar.map(|grammar| Box::new(grammar) as _),
            ..Request::reactive(prompt)
        };
        let (tokens, ending) = self.engine.generate(request).wait().unwrap();
        assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
        (self.tokenizer.decode(&tokens).unwrap(), ending.reason)
    }

    fn tool_calls(&self, tools: &[Tool], choice: &ToolChoice) -> Grammar {
        let grammar = self
            .grammars
            .tool_calls(self.syntax, tools, choice, Calls::Many);
        grammar.unwrap().unwrap()
    }
}

fn tools(question: &Question) -> Vec<Tool> {
    let tools = question.tools.iter().flatten();
    tools.map(|tool| Tool::from_json(tool).unwrap()).collect()
}

/// Without a form, with tools as the model likes, and with a required call.
#[test]
fn every_call_of_tiny_agent_is_right_and_no_answer_gets_worse() {
    let workbench = Workbench::new().unwrap();
    let agent = Agent::new(&workbench);
    let questions = questions(&fixture("tiny-agent")).unwrap();
    let (mut free_right, mut auto_right, mut calls) = (0, 0, 0);
    let offering: Vec<&Question> = questions
        .iter()
        .filter(|question| question.tools.is_some())
        .collect();
    for question in &offering {
        let tools = tools(question);
        let (free, _) = agent.answer(question, None);
        let auto = agent.tool_calls(&tools, &ToolChoice::Auto);
        let (auto, ended) = agent.answer(question, Some(auto));
        assert_eq!(ended, FinishReason::Stop, "{auto}");
        free_right += usize::from(free == question.answer);
        auto_right += usize::from(auto == question.answer);
        let required = agent.tool_calls(&tools, &ToolChoice::Required);
        let (required, ended) = agent.answer(question, Some(required));
        assert_eq!(ended, FinishReason::Stop, "{required}");
        assert!(
            matches!(said(agent.syntax, &required).as_slice(), [Said::Call(_)]),
            "{required}"
        );
        for answer in [&auto, &required] {
            for part in said(agent.syntax, answer) {
                match part {
                    Said::Call(call) => {
                        check_call(&call, &tools);
                        calls += 1;
                    }
                    Said::Text(text) | Said::Thought(text) => {
                        assert!(!text.starts_with('{'), "{text}")
                    }
                }
            }
        }
    }
    let all = offering.len();
    println!(
        "{all} prompts with tools: {free_right} right answers free, {auto_right} with grammar; {calls} calls, all right"
    );
    assert!(auto_right >= free_right && free_right * 10 >= all * 9);
}

/// Every prompt is answered in a schema: around the text of its free answer, or of a call of no tool.
#[test]
fn every_answer_of_tiny_agent_in_a_schema_is_an_instance() {
    let workbench = Workbench::new().unwrap();
    let agent = Agent::new(&workbench);
    let schemas = [
        json!({"type": "object", "properties": {"action": {"enum": ["none", "tell"]}, "words": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["action", "words"], "additionalProperties": false}),
        json!({"type": "array", "items": {"$ref": "#/$defs/step"}, "minItems": 1, "maxItems": 3,
            "$defs": {"step": {"type": "object", "properties": {"do": {"type": "string", "maxLength": 12}, "sure": {"type": "boolean"}},
                "required": ["do"], "additionalProperties": false}}}),
    ];
    for (index, question) in questions(&fixture("tiny-agent"))
        .unwrap()
        .iter()
        .enumerate()
    {
        let schema = &schemas[index % schemas.len()];
        let grammar = agent.grammars.json_schema(schema).unwrap();
        let (text, ended) = agent.answer(question, Some(grammar));
        assert_eq!(ended, FinishReason::Stop, "{text}");
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        instance::check(schema, schema, &value).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

/// Number of random schemas of a test.
const SCHEMAS: usize = 300;

/// Maximum number of tokens, to end endless answers. No schema here has an instance of that length.
const BABBLE_TOKENS_MAX: usize = 20_000;

/// Maximum number of tokens of an answer.
const TOKENS_MAX: u32 = 300;

/// The end-of-sequence token of tiny-agent's vocabulary.
const EOS: u32 = 2041;
