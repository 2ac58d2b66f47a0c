//! A run of the engine on this machine's lanes, recorded as it happens.

use anyhow::{Context, Result};
use heg_runtime::Loaded;
use heg_runtime::engine::{EndTokens, Engine, EngineOptions, Request, Speculation};
use heg_sched::{Action, Event, Micros, Observer};
use heg_spec::{Policy, Seeded, Soc};
use heg_workload::{Arrival, RunTrace, Trace, TraceFile, TraceRecorder, TraceRequest};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use xtask::fail::Fail;

/// A trace in memory, which an engine's steps are added to.
#[derive(Default, Clone)]
struct Recording(Arc<Mutex<(TraceRecorder, RunTrace)>>);

impl Observer for Recording {
    fn stepped(&mut self, now: Micros, event: &Event, actions: &[Action]) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (recorder, trace) = &mut *held;
        recorder.stepped(now, event, actions, |event| trace.add(event));
    }
}

/// Serves a trace on a machine, without drafts, and returns what happened. `keep`: a file for it.
pub(super) fn record(
    bundle: &Path,
    soc: &Soc,
    policy: Policy,
    trace: &Trace,
    keep: Option<&Path>,
) -> Result<RunTrace> {
    let loader = Loaded::open(bundle)?.loader(soc)?;
    for line in loader.what_runs() {
        println!("runs {line}");
    }
    let recording = Recording::default();
    let mut observers: Vec<Box<dyn Observer>> = vec![Box::new(recording.clone())];
    if let Some(path) = keep {
        let file = File::create(path).and_then(TraceFile::live);
        let cannot = || Fail::environment(format!("cannot write `{}`", path.display()));
        observers.push(Box::new(file.with_context(cannot)?));
    }
    let options = EngineOptions {
        speculation: Speculation::Off,
        observers,
        ..EngineOptions::default()
    };
    let engine = Engine::start(loader, policy, options)?;
    engine.wait_ready()?;
    let vocabulary = engine.manifest().model.vocab as usize;
    // First runs of kernels read weights from disk.
    serve(&engine, &warm_up(), vocabulary)?;
    let began = recording.clone();
    {
        let mut held = began.0.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Default::default();
    }
    serve(&engine, trace, vocabulary)?;
    drop(engine);
    let mut held = recording.0.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut held.1))
}

fn warm_up() -> Trace {
    let request = |tokens| {
        TraceRequest::lone(
            heg_sched::Class::Reactive,
            Arrival::At(Micros(0)),
            tokens,
            4,
        )
    };
    Trace {
        requests: [40, 100, 100].map(request).to_vec(),
    }
}

/// Sends each request at its time, and waits for all answers.
fn serve(engine: &Engine, trace: &Trace, vocabulary: usize) -> Result<()> {
    let began = Instant::now();
    let outcomes = thread::scope(|scope| {
        let mut waiting = Vec::new();
        for (number, request) in trace.requests.iter().enumerate() {
            let Arrival::At(at) = request.arrival else {
                continue;
            };
            thread::sleep(Duration::from_micros(at.0).saturating_sub(began.elapsed()));
            let mut random = Seeded::new(number as u64);
            let prompt = (0..request.prompt_tokens).map(|_| random.below(vocabulary) as u32);
            let request = Request {
                tokens_max: request.output_tokens,
                end_tokens: EndTokens::Ignored,
                ..Request::new(request.class, prompt.collect())
            };
            let generation = engine.generate(request);
            waiting.push(scope.spawn(move || generation.wait()));
        }
        let joined = waiting.into_iter().map(|it| it.join());
        joined.collect::<Vec<_>>()
    });
    for outcome in outcomes {
        let answered =
            outcome.map_err(|_| Fail::check("a thread that waited for an answer ended"))?;
        answered.context("a request failed")?;
    }
    Ok(())
}
