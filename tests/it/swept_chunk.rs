//! The chunk of prefill that a sweep chooses is the one that runs: by what `heg profile` measured on the devices.

use std::path::Path;
use std::sync::{Arc, Mutex};

use heg_artifacts::manifest::Manifest;
use heg_files::OwnFolder;
use heg_profiler::measure::{Profile, VariantProfile};
use heg_profiler::predict::LatencyTable;
use heg_runtime::Loaded;
use heg_runtime::engine::{EndTokens, Engine, EngineOptions, Request, executor_options};
use heg_runtime::exec::{ExecutorOptions, Loader};
use heg_runtime::profile::file::ProfileFile;
use heg_runtime::profile::identities;
use heg_sched::{Action, Event, Micros, Observer, Work};
use heg_spec::{DeviceClass, Group, WeightForm, shipped};
use heg_tests::{Workbench, fixture};

/// The compiled chunks, and the tokens of a prompt that has several of either.
const CHUNKS: [u32; 2] = [8, 32];
const PROMPT_TOKENS: u32 = 70;

/// Returns a loader of a bundle on the devices of a shipped SoC that keeps its profiles in a folder.
fn loader(bundle: &Path, soc: &str, folder: &Path) -> Loader {
    let loaded = Loaded::open(bundle).unwrap();
    let loader = loaded.loader(&shipped::soc(soc).unwrap()).unwrap();
    loader.with_cache(OwnFolder::create(folder).unwrap())
}

/// Keeps a profile in which each kernel of every device takes a time for each chunk.
fn keep_profile(bundle: &Path, loader: &Loader, folder: &Path, times_us: [f64; 2]) {
    let loaded = Loaded::open(bundle).unwrap();
    let devices = identities(loader);
    let manifest_id = loaded.bundle().manifest_id();
    let mut profile = Profile::new(manifest_id, &loader.soc().name, devices.clone());
    for device in &mut profile.devices {
        device.variants = measured(loaded.bundle().manifest(), times_us);
    }
    let cache = OwnFolder::create(folder).unwrap();
    let file = ProfileFile::kept(&cache, loaded.bundle(), &devices);
    file.write(&profile).unwrap();
}

fn measured(manifest: &Manifest, times_us: [f64; 2]) -> Vec<VariantProfile> {
    let variants = manifest.kernels.iter().filter_map(|kernel| {
        let mut variants = kernel.variants.iter();
        let variant = variants.find(|it| it.device == DeviceClass::Cpu)?;
        let context = match kernel.group {
            Group::Mha => 2048,
            _ => 0,
        };
        let mut entries = vec![(1, context, 50.0)];
        if kernel.group != Group::Head {
            let sizes = CHUNKS.into_iter().zip(times_us);
            entries.extend(sizes.map(|(tokens, time_us)| (tokens, context, time_us)));
        }
        Some(VariantProfile {
            kernel: kernel.name.clone(),
            shape: variant.shape,
            binding: variant.binding,
            context_step: 1,
            table: LatencyTable::try_from(entries).unwrap(),
        })
    });
    variants.collect()
}

/// Keeps the tokens of every segment of a prompt that was launched.
#[derive(Clone, Default)]
struct Segments(Arc<Mutex<Vec<u32>>>);

impl Observer for Segments {
    fn stepped(&mut self, _: Micros, _: &Event, actions: &[Action]) {
        for action in actions {
            if let Action::Launch {
                work: Work::Prefill { segment, .. },
                ..
            } = action
            {
                self.0.lock().unwrap().push(segment.tokens);
            }
        }
    }
}

/// Returns the longest segment of a prompt that runs under options.
fn longest_segment(loader: Loader, exec: ExecutorOptions) -> u32 {
    let segments = Segments::default();
    let options = EngineOptions {
        exec,
        observers: vec![Box::new(segments.clone())],
        ..EngineOptions::default()
    };
    let policy = shipped::policy(loader.lanes().policy()).unwrap();
    let engine = Engine::start(loader, policy, options).unwrap();
    engine.wait_ready().unwrap();
    let answer = engine.generate(Request {
        tokens_max: 2,
        end_tokens: EndTokens::Ignored,
        ..Request::reactive((1..=PROMPT_TOKENS).collect())
    });
    let (tokens, _) = answer.wait().unwrap();
    assert_eq!(tokens.len(), 2);
    let segments = segments.0.lock().unwrap();
    segments.iter().copied().max().unwrap()
}

#[test]
fn the_chunk_that_the_sweep_chose_is_the_one_that_runs() {
    let workbench = Workbench::new().unwrap();
    let compiled = workbench.compile(&fixture("tiny-agent"), "chunks", |spec| {
        spec.weights = WeightForm::F32;
        spec.chunk_tokens = CHUNKS.to_vec();
    });
    let (bundle, _) = compiled.unwrap();
    for soc in ["host-cpu", "host-roles"] {
        // The longer chunk does more in the same time; then its kernels take too long to be preempted in time.
        for (times_us, chosen) in [([100.0, 110.0], 32), ([100.0, 150_000.0], 8)] {
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path();
            let new = || loader(&bundle, soc, folder);
            assert_eq!(executor_options(&new()).chunk_tokens, 256, "nothing known");
            keep_profile(&bundle, &new(), folder, times_us);
            let options = executor_options(&new());
            assert_eq!(longest_segment(new(), options), chosen, "{soc}");
            // What the user asks for comes first.
            let asked = ExecutorOptions {
                chunk_tokens: 8,
                ..options
            };
            assert_eq!(longest_segment(new(), asked), 8, "{soc}");
        }
    }
}
