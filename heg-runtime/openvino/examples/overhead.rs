//! Measures the overhead of a call before any work is done: binding, running and waiting, on a
//! model of one addition.
//!
//! Run with `cargo run --release -p heg-openvino --example overhead -- PROPERTY=VALUE …`. Each
//! figure is the best mean of several rounds, in microseconds, on one thread of the CPU plugin.

#[path = "../tests/it/tiny_models/mod.rs"]
mod tiny_models;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use heg_openvino::OpenvinoError;
use tiny_models::{add, buffer, bytes, core, rows};

const DEFAULTS: [(&str, &str); 2] = [("INFERENCE_NUM_THREADS", "1"), ("NUM_STREAMS", "1")];
const ROUNDS: usize = 10;
const CALLS: u32 = 2000;

fn main() -> Result<(), OpenvinoError> {
    let Some(core) = core() else { return Ok(()) };
    let model = core.read_model(add().as_bytes(), Some(&bytes(&buffer(&[1.0; 4]))))?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let pairs = arguments
        .iter()
        .filter_map(|argument| argument.split_once('='));
    let properties: Vec<(&str, &str)> = DEFAULTS.into_iter().chain(pairs).collect();
    let compiled = core.compile(&model, "CPU", &properties)?;
    let mut request = compiled.request()?;
    let (x, y) = (buffer(&[1.0; 64]), buffer(&[0.0; 64]));
    let shared = Arc::new(rows(&x, 0, 1));
    request.bind_input(0, Arc::clone(&shared))?;
    request.bind_output(0, rows(&y, 0, 1))?;

    report("make a view", || {
        black_box(rows(&x, 1, 1));
        Ok(())
    })?;
    report("bind a shared input", || {
        request.bind_input(0, Arc::clone(&shared))
    })?;
    report("make and bind an input", || {
        request.bind_input(0, rows(&x, 1, 1))
    })?;
    report("make and bind an output", || {
        request.bind_output(0, rows(&y, 1, 1))
    })?;
    report("infer", || request.infer())?;
    let mut row = 0;
    report("make and bind both, elsewhere each time, and infer", || {
        row = (row + 1) % 16;
        request.bind_input(0, rows(&x, row, 1))?;
        request.bind_output(0, rows(&y, row, 1))?;
        request.infer()
    })?;
    report("start and wait", || {
        request.start()?;
        request.wait(None).map(|_| ())
    })?;
    let values = buffer(&vec![0.0; 128_256]);
    let mut copy = vec![0.0; 128_256];
    report("copy 128 256 floats out of a buffer", || {
        values.read_f32(0, &mut copy)
    })
}

fn report(
    what: &str,
    mut call: impl FnMut() -> Result<(), OpenvinoError>,
) -> Result<(), OpenvinoError> {
    let mut best_us = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        best_us = best_us.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS));
    }
    println!("{best_us:8.2}  {what}");
    Ok(())
}
