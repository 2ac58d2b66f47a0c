//! A machine of your own: two threads on cores of your choice, and activations in 16 bits.
//!
//! `cargo run --example own_soc -- model.heg`
//!
//! The same text in a file does for the commands: `heg run model.heg --soc mine.ron`. All fields are in
//! `graph-specs/src/soc.rs`.

use std::error::Error;

use heg_runtime::engine::{EngineOptions, Request};
use heg_runtime::text::Special;
use heg_runtime::{Loaded, read_policy};
use heg_spec::{Soc, Source};

const MINE: &str = r#"(
    name: "mine",
    devices: [
        (
            class: Cpu,
            programs: (activations: I16, threads: Some(2), cores: All),
            openvino: "CPU",
        ),
    ],
)"#;

fn main() -> Result<(), Box<dyn Error>> {
    let bundle = std::env::args().nth(1);
    let bundle = bundle.ok_or("expected the path of a bundle")?;
    let soc = Soc::parse(Source {
        file: "mine.ron",
        text: MINE,
    })?;
    let loaded = Loaded::open(bundle.as_ref())?;
    let policy = read_policy("agent-xpu-one-device")?;
    let engine = loaded.engine(&soc, policy, EngineOptions::default())?;
    let tokenizer = loaded.tokenizer()?;
    let prompt = tokenizer.encode("The capital of Norway is", Special::Add)?;
    let request = Request {
        tokens_max: 16,
        ..Request::reactive(prompt)
    };
    let (answer, ending) = engine.generate(request).wait()?;
    println!("{}", tokenizer.decode(&answer)?);
    eprintln!("{:?}, first token after {:?}", ending.finish, ending.ttft);
    Ok(())
}
