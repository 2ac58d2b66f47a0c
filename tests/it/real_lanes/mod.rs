//! Agent.xpu's mechanisms on real lanes: CPU programs play an NPU and an iGPU (`host-roles`), each on a thread of its own,
//! and the engine runs requests of both classes over them. Each mechanism has a run in which the policy has it off.
//!
//! Bandwidth and power come from the annotations of the papers' machine under the name of these devices, or bandwidth from
//! a profile of them; the engine corrects times as it measures launches.

mod acting;
mod answers;
mod bandwidth;
mod prompts;

use std::path::PathBuf;

use std::thread;
use std::time::{Duration, Instant};

use heg_artifacts::Bundle;
use heg_files::OwnFolder;
use heg_profiler::annotation::{Annotations, SocAnnotation};
use heg_profiler::measure::{self, MeasurementPlan, Profile};
use heg_runtime::Loaded;
use heg_runtime::engine::{
    EndTokens, Engine, EngineOptions, Generation, Request, ScopeId, Speculation, Update,
};
use heg_runtime::exec::{ExecutorOptions, Loader};
use heg_runtime::profile::file::ProfileFile;
use heg_runtime::profile::{BundleSubject, Extent, identities};
use heg_sched::{ActivationCounts, Class, Finish, Lane, Mechanism, Micros, RequestId};
use heg_spec::{Policy, shipped};
use heg_tests::Workbench;
use heg_tests::roles::{compile, drop_unused, rewrite};
use heg_workload::{RunTrace, TracedCall, TracedLaunch, TracedRequest};

use crate::watched::Watch;

/// The SoC on which CPU programs play both devices.
const SOC: &str = "host-roles";

/// Tokens of a chunk of the bundle's kernels.
const CHUNK: usize = 32;

/// Chosen: what takes a second takes no more than this on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(120);

/// The tiny agent, and what is known of these lanes.
struct World {
    workbench: Workbench,
    bundle: PathBuf,
    /// The folder of profiles, if there is one.
    cache: Option<OwnFolder>,
    soc: &'static str,
    speculation: Speculation,
}

impl World {
    /// A world in which nothing is known.
    fn plain() -> Self {
        let workbench = Workbench::new().unwrap();
        let bundle = compile(&workbench, |_| ());
        Self {
            workbench,
            bundle,
            cache: None,
            soc: SOC,
            speculation: Speculation::Off,
        }
    }

    /// A world in which the bundle's annotations have the papers' machine under the names of these lanes and of a pair.
    fn annotated() -> Self {
        let plain = Self::plain();
        let bundle = rewrite(
            &plain.workbench,
            &plain.bundle,
            "annotated",
            |manifest, store| {
                let bundle = Bundle::open(&plain.bundle).unwrap();
                let text = bundle.section_copy(manifest.annotations.unwrap()).unwrap();
                let text = String::from_utf8(text).unwrap();
                let mut all = Annotations::parse(&text).unwrap();
                let papers = all.soc("core-ultra-5-125h").unwrap().clone();
                for name in [SOC, "host-pair"] {
                    all.socs.retain(|soc| soc.name != name);
                    all.socs.push(SocAnnotation {
                        name: name.to_owned(),
                        ..papers.clone()
                    });
                }
                let section = store.put_bytes(all.to_text().unwrap().as_bytes()).unwrap();
                manifest.annotations = Some(section.id);
                manifest.sections.push(section);
                drop_unused(manifest);
            },
        );
        Self { bundle, ..plain }
    }

    /// A world in which these lanes were measured, and nothing else is known.
    fn measured() -> Self {
        let mut world = Self::plain();
        let cache = OwnFolder::create(&world.workbench.path("profiles")).unwrap();
        let loader = world.loader();
        let devices = identities(&loader);
        let loaded = Loaded::open(&world.bundle).unwrap();
        let mut subject = BundleSubject::new(
            loader,
            Extent {
                chunk_tokens: CHUNK as u32,
                batch: 4,
                context_tokens: 256,
            },
        );
        let plan = MeasurementPlan {
            budget: Duration::from_millis(100),
            visits_max: 2,
            ..MeasurementPlan::default()
        };
        let empty = Profile::new(loaded.bundle().manifest_id(), SOC, devices.clone());
        let profile = measure::profile(&mut subject, empty, &plan, &mut ()).unwrap();
        let file = ProfileFile::kept(&cache, loaded.bundle(), &devices);
        file.write(&profile).unwrap();
        world.cache = Some(cache);
        world
    }

    fn loader(&self) -> Loader {
        let loaded = Loaded::open(&self.bundle).unwrap();
        let loader = loaded.loader(&shipped::soc(self.soc).unwrap()).unwrap();
        match &self.cache {
            Some(cache) => loader.with_cache(cache.clone()),
            None => loader,
        }
    }

    /// Serves what a function asks for.
    fn play(&self, policy: Policy, ask: impl FnOnce(&Stage)) -> Played {
        let watch = Watch::default();
        let options = EngineOptions {
            exec: ExecutorOptions {
                chunk_tokens: CHUNK,
                ..ExecutorOptions::default()
            },
            observers: vec![Box::new(watch.clone())],
            speculation: self.speculation,
            ..EngineOptions::default()
        };
        let engine = Engine::start(self.loader(), policy, options).unwrap();
        engine.wait_ready().unwrap();
        let stage = Stage { engine, watch };
        ask(&stage);
        let counts = stage.engine.status().unwrap().mechanisms;
        drop(stage.engine);
        let trace = stage.watch.ask(RunTrace::clone);
        Played { trace, counts }
    }
}

/// An engine at work.
struct Stage {
    engine: Engine,
    watch: Watch,
}

impl Stage {
    fn ask(&self, class: Class, prompt_tokens: usize, answer_tokens: u32) -> Generation {
        self.ask_for(ScopeId::default(), class, prompt_tokens, answer_tokens)
    }

    fn ask_for(
        &self,
        scope: ScopeId,
        class: Class,
        prompt_tokens: usize,
        answer_tokens: u32,
    ) -> Generation {
        // No prompt begins as another, so that none finds a cache.
        let number = prompt_tokens * 31 + answer_tokens as usize;
        let token = |at: usize| (5 + (at * at + 7 * at + 13 * number) % 200) as u32;
        self.engine.generate(Request {
            scope,
            tokens_max: answer_tokens,
            end_tokens: EndTokens::Ignored,
            flow: Some(self.engine.new_flow()),
            ..Request::new(class, (0..prompt_tokens).map(token).collect())
        })
    }

    /// Waits until something holds for the trace so far.
    #[track_caller]
    fn wait_until(&self, holds: impl Fn(&RunTrace) -> bool) {
        let begin = Instant::now();
        while !self.watch.ask(&holds) {
            assert!(begin.elapsed() < LIMIT, "it takes too long");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until `count` requests have their first token.
    #[track_caller]
    fn wait_for_first_tokens(&self, count: usize) {
        self.wait_until(|trace| {
            let answered = trace.requests().filter(|it| it.first_token.is_some());
            answered.count() >= count
        });
    }

    /// Waits until `count` kernels of prompts of a class have run.
    #[track_caller]
    fn wait_for_kernels(&self, class: Class, count: usize) {
        self.wait_until(|trace| {
            let of_class = |it: &&TracedLaunch| it.class == class && is_of_prompt(it);
            trace.launches().iter().filter(of_class).count() >= count
        });
    }
}

/// Waits for the end of an answer.
fn end(mut generation: Generation) {
    loop {
        if let Update::Finished(ending) = generation.next_within(LIMIT).unwrap() {
            assert_eq!(ending.finish, Finish::Complete, "{:?}", ending.error);
            return;
        }
    }
}

/// What a run left.
struct Played {
    trace: RunTrace,
    counts: ActivationCounts,
}

impl Played {
    fn acted(&self, mechanism: Mechanism) -> u64 {
        self.counts.of(mechanism)
    }

    /// The requests of a class, by arrival.
    fn requests(&self, class: Class) -> Vec<TracedRequest> {
        let of_class = self.trace.requests().filter(|it| it.class == class);
        of_class.copied().collect()
    }

    fn first_token(&self, class: Class, place: usize) -> Micros {
        self.requests(class)[place].first_token.unwrap()
    }

    fn on(&self, lane: Lane) -> impl Iterator<Item = &TracedLaunch> {
        self.trace
            .launches()
            .iter()
            .filter(move |it| it.lane == lane)
    }

    /// The members of each decode run that begins an iteration, in order.
    fn batches(&self) -> Vec<(Micros, &[RequestId])> {
        let begins =
            |it: &&TracedLaunch| matches!(it.call, TracedCall::Decode { first_layer: 0, .. });
        let launches = self.trace.launches().iter().filter(begins);
        launches
            .map(|it| (it.start, it.requests.as_slice()))
            .collect()
    }

    /// The part of the run in which a lane worked, in percent.
    fn busy_percent(&self, lane: Lane) -> u64 {
        let busy: u64 = self.on(lane).map(|it| it.end.since(it.start).0).sum();
        let ends = self.trace.launches().iter().map(|it| it.end.0);
        let starts = self.trace.launches().iter().map(|it| it.start.0);
        100 * busy / (ends.max().unwrap() - starts.min().unwrap()).max(1)
    }

    /// Number of the NPU's launches that began while the iGPU worked, or the other way round.
    fn side_by_side(&self) -> usize {
        let begins_within = |own: &TracedLaunch, other: &TracedLaunch| {
            other.start < own.start && own.start < other.end
        };
        let pairs = |one, other| {
            let own = self.on(one);
            own.filter(|own| self.on(other).any(|it| begins_within(own, it)))
                .count()
        };
        pairs(Lane::Npu, Lane::Igpu) + pairs(Lane::Igpu, Lane::Npu)
    }
}

fn is_of_prompt(launch: &TracedLaunch) -> bool {
    matches!(launch.call, TracedCall::Prefill { .. })
}

/// Returns a shipped policy, changed.
fn policy(name: &str, change: impl FnOnce(&mut Policy)) -> Policy {
    let mut policy = shipped::policy(name).unwrap();
    change(&mut policy);
    policy
}
