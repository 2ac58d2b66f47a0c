//! Tests of prompts in the worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use heg_confine::{
    Confined, Leash, PromptMaker, TextToEncode, TextWorker, Wait, WorkerAssets, probe,
};
use heg_text::{ChatTemplate, Conversation, Message, Special};

use crate::world::{assets, processes, tokenizer, wait_until, worker};

fn chat(text: &str) -> Conversation {
    Conversation {
        messages: vec![Message::new("user", text)],
        add_generation_prompt: true,
        ..Conversation::default()
    }
}

fn tokens(prompts: &PromptMaker, text: TextToEncode) -> Result<Vec<u32>, Confined> {
    prompts.tokens(&text, 100_000, Wait::default())
}

fn template(source: &'static str) -> impl FnOnce(&mut WorkerAssets) {
    move |assets| assets.template = Some(source.to_owned())
}

/// A template that nests a list two hundred thousand deep: dropping the list takes a huge stack.
const DEEP: &str = "{% set ns = namespace(x=[]) %}{% if messages[0].content == 'deep' %}\
    {% for i in range(400) %}{% for j in range(500) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}{% endif %}fine";

/// A template that doubles a text forty times.
const LARGE: &str = "{% set ns = namespace(x='a') %}{% if messages[0].content == 'large' %}\
    {% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{% endif %}fine";

#[test]
fn prompts_are_what_this_process_would_make() {
    let prompts = PromptMaker::new(worker(|_| ()));
    let (tokenizer, assets) = (tokenizer(), assets());
    let template = ChatTemplate::new(&assets.template.unwrap(), assets.special_tokens).unwrap();
    for text in ["hi", "", "é\n<|eot_id|>", &"a long one ".repeat(2000)] {
        let prompt = template.prompt(&chat(text), &tokenizer, usize::MAX);
        assert_eq!(
            tokens(&prompts, TextToEncode::Chat(chat(text), usize::MAX)),
            Ok(prompt.unwrap())
        );
        assert_eq!(
            tokens(&prompts, TextToEncode::Bare(text.to_owned())),
            Ok(tokenizer.encode(text, Special::Add).unwrap())
        );
        assert_eq!(
            tokens(&prompts, TextToEncode::AsWritten(text.to_owned())),
            Ok(tokenizer.encode(text, Special::AsWritten).unwrap())
        );
    }
    let pair = TextToEncode::Pair("hi".to_owned(), "you".to_owned());
    let (expected, second_at) = tokenizer.encode_pair("hi", "you").unwrap();
    let found = tokens(&prompts, pair).unwrap();
    assert_eq!(found[0] as usize, second_at);
    assert_eq!(found[1..], expected);
    let refused = tokens(&prompts, TextToEncode::Chat(chat("hi"), 3)).unwrap_err();
    assert!(
        refused.to_string().contains("more than 3 bytes"),
        "{refused}"
    );
    let cut = prompts.tokens(
        &TextToEncode::Bare("a b c d e f".to_owned()),
        3,
        Wait::default(),
    );
    assert_eq!(cut.unwrap().len(), 4);
}

/// More texts than are one piece of work, and one that is a piece of its own.
#[test]
fn texts_are_encoded_together() {
    let prompts = PromptMaker::new(worker(|_| ()));
    let tokenizer = tokenizer();
    let mut texts: Vec<String> = (0..600).map(|number| format!("text {number}")).collect();
    texts[300] = "a long one ".repeat(20_000);
    let bare = |texts: &[String]| -> Vec<TextToEncode> {
        texts.iter().cloned().map(TextToEncode::Bare).collect()
    };
    let encoded = prompts.tokens_of_all(&bare(&texts), 1_000_000, Wait::default());
    let expected = texts
        .iter()
        .map(|text| tokenizer.encode(text, Special::Add));
    let expected: Vec<Vec<u32>> = expected.map(Result::unwrap).collect();
    assert_eq!(encoded.unwrap(), expected);
    let none = prompts.tokens_of_all(&[], 9, Wait::default());
    assert_eq!(none.unwrap(), Vec::<Vec<u32>>::new());
    let cut = prompts.tokens_of_all(&bare(&texts[..2]), 1, Wait::default());
    assert!(cut.unwrap().iter().all(|tokens| tokens.len() == 2));

    let mut refused = bare(&texts[..290]);
    refused[280] = TextToEncode::Chat(chat("hi"), 3);
    let (place, error) = prompts
        .tokens_of_all(&refused, 1_000_000, Wait::default())
        .unwrap_err();
    assert_eq!(place, 280);
    assert!(error.to_string().contains("more than 3 bytes"), "{error}");
}

/// Checks that a prompt that exceeds a limit is refused, and that others are still made.
fn costs_itself_only(worker: TextWorker, text: &str, why: &str) {
    let prompts = PromptMaker::new(worker);
    for _ in 0..2 {
        let refused = tokens(&prompts, TextToEncode::Chat(chat(text), 10_000)).unwrap_err();
        let Confined::Refused(error) = refused else {
            panic!("{refused}")
        };
        assert!(error.to_string().contains(why), "{error}");
        assert!(tokens(&prompts, TextToEncode::Chat(chat("hi"), 10_000)).is_ok());
    }
}

#[test]
fn a_template_that_nests_without_end_is_refused() {
    costs_itself_only(worker(template(DEEP)), "deep", "nests too deeply");
}

#[test]
fn a_template_that_takes_memory_without_end_is_refused() {
    costs_itself_only(worker(template(LARGE)), "large", "too much memory");
}

/// `a` becomes 10^10 bytes.
#[test]
fn a_tokenizer_that_takes_memory_without_end_is_refused() {
    let worker = worker(|assets| {
        let bytes = assets.tokenizer.take().unwrap();
        let mut file: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let replace = serde_json::json!({"type": "Replace", "pattern": {"String": "Z"}, "content": "Z".repeat(100)});
        file["normalizer"] =
            serde_json::json!({"type": "Sequence", "normalizers": vec![replace; 5]});
        assets.tokenizer = Some(file.to_string().into_bytes());
    });
    costs_itself_only(worker, "Z", "too much memory");
}

#[test]
fn a_bundle_that_makes_no_prompt_is_found_out() {
    assert_eq!(probe(&worker(|_| ()), true), Ok(()));
    let never = "{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    let error = probe(&worker(template(never)), true).unwrap_err();
    assert!(error.to_string().contains("too much memory"), "{error}");
    let error = probe(
        &worker(|assets| assets.tokenizer = Some(b"{}".to_vec())),
        true,
    );
    assert!(matches!(error, Err(Confined::Refused(_))), "{error:?}");
    // The template decides which conversations it accepts.
    let picky = "{{ raise_exception('expected a system message') }}";
    assert_eq!(probe(&worker(template(picky)), true), Ok(()));
}

/// Work ends when its sender is gone or at its deadline; the next gets another process.
#[test]
fn work_that_nobody_waits_for_ends() {
    // The engine's steps are bounded, so this takes many of them: longer than the deadline, shorter than the test.
    let slow = "{% for i in range(1000) %}{% for j in range(100) %}{% for k in range(100) %}{% set x = 'a' * 9 %}{% endfor %}{% endfor %}{% endfor %}";
    let worker = worker(template(slow));
    let prompts = PromptMaker::new(worker.clone());
    assert!(tokens(&prompts, TextToEncode::Bare("hi".to_owned())).is_ok());
    let ask = |wait| prompts.tokens(&TextToEncode::Chat(chat("hi"), 100), 100, wait);
    let wait = Wait {
        deadline: Some(Instant::now() + Duration::from_millis(30)),
        leash: None,
    };
    assert_eq!(ask(wait), Err(Confined::Deadline));
    wait_until("the late process ends", || processes(&worker).is_empty());
    assert!(tokens(&prompts, TextToEncode::Bare("hi".to_owned())).is_ok());
    let leash = Leash::default();
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            ask(Wait {
                deadline: None,
                leash: Some(&leash),
            })
        });
        std::thread::sleep(Duration::from_millis(30));
        leash.end();
        assert_eq!(work.join().unwrap(), Err(Confined::Gone));
    });
    let took = wait_until("the left process ends", || processes(&worker).is_empty());
    println!("a process that was left ended after {took:?}");
}

/// If idle processes are killed, the next prompt gets others.
#[test]
fn lost_processes_are_replaced() {
    let worker = worker(|_| ());
    let prompts = PromptMaker::new(worker.clone());
    let ask = || tokens(&prompts, TextToEncode::Bare("hi".to_owned()));
    let expected = ask().unwrap();
    let kill = |pid: u32| {
        let status = std::process::Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status();
        assert!(status.unwrap().success());
    };
    let child = processes(&worker)[0];
    kill(child);
    wait_until("the process ends", || processes(&worker).is_empty());
    assert_eq!(ask(), Ok(expected.clone()));
    let (first, child) = (worker.process_id().unwrap(), processes(&worker)[0]);
    kill(first);
    wait_until("its processes end with the worker", || {
        !crate::world::is_alive(child)
    });
    assert_eq!(ask(), Ok(expected));
    assert_ne!(worker.process_id(), Some(first));
}

#[test]
fn processes_end_with_their_worker() {
    let worker = worker(|_| ());
    let prompts = Arc::new(PromptMaker::new(worker.clone()));
    assert!(tokens(&prompts, TextToEncode::Bare("hi".to_owned())).is_ok());
    let first = worker.process_id().unwrap();
    let children = processes(&worker);
    drop((prompts, worker));
    wait_until("all end", || {
        children
            .iter()
            .chain([&first])
            .all(|pid| !crate::world::is_alive(*pid))
    });
}
