//! The example for embedders answers both of its requests.

use heg_runtime::engine::{EngineOptions, Request};
use heg_runtime::{Loaded, read_policy, read_soc};
use heg_sched::Finish;
use heg_tests::{Workbench, fixture};
use heg_text::{Conversation, Message, Special};

#[path = "../../heg-runtime/examples/embed.rs"]
#[allow(dead_code, reason = "its `main` is not called here")]
mod example;

const QUESTION: &str = "Will it rain in Oslo tomorrow?";

#[test]
fn the_example_says_what_the_model_says_alone() {
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "agent", |_| {});
    let (bundle, _) = compiled.unwrap();
    let mut said = String::new();
    example::answer(&bundle, QUESTION, |piece| said.push_str(piece)).unwrap();

    let loaded = Loaded::open(&bundle).unwrap();
    let conversation = Conversation {
        messages: vec![Message::new("user", QUESTION)],
        add_generation_prompt: true,
        ..Conversation::default()
    };
    let tokenizer = loaded.tokenizer().unwrap();
    let prompt = loaded.chat_template().unwrap().render(&conversation);
    let prompt = tokenizer.encode(&prompt.unwrap(), Special::AsWritten);
    let soc = read_soc("host-cpu").unwrap();
    let policy = read_policy("cpu-continuous-batching").unwrap();
    let engine = loaded.engine(&soc, policy, EngineOptions::default());
    let request = Request {
        tokens_max: 64,
        ..Request::reactive(prompt.unwrap())
    };
    let (tokens, ending) = engine.unwrap().generate(request).wait().unwrap();
    assert_eq!(ending.finish, Finish::Complete);
    assert_eq!(said, tokenizer.decode(&tokens).unwrap());
    assert!(!said.is_empty());
}
