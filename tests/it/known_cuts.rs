//! The cuts of a pair that were known before it ran: pieces of products that were measured on its devices, and the partition
//! that the compiler solved for the machine and the bundle carries. Either is executed, says so in numbers, and changes no
//! bit of an answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use heg_artifacts::Bundle;
use heg_compiler::{CompileOptions, Silent, Target, compile};
use heg_files::OwnFolder;
use heg_profiler::measure::{Profile, measure_pieces};
use heg_profiler::partition::{Company, Partitions};
use heg_runtime::Loaded;
use heg_runtime::engine::{Engine, EngineOptions};
use heg_runtime::exec::{Executor, ExecutorOptions, Loader, PairLanes, PairedRoles};
use heg_runtime::profile::file::ProfileFile;
use heg_runtime::profile::{BundlePair, Extent, identities};
use heg_sched::{Class, Switching};
use heg_spec::policy::{PairLevel, Pairing, Synchronisation};
use heg_spec::{CutProduct, Side, Soc, Source, shipped};
use heg_tests::roles::{drop_unused, loader, rewrite};
use heg_tests::{Workbench, executor, fixture};

use crate::gpu_lanes::gpu_or_skip;
use crate::pair::{answer, logits_in_chunks, prompt};

const OPTIONS: ExecutorOptions = ExecutorOptions {
    chunk_tokens: 96,
    batch: 2,
    loader_threads: 1,
    switching: Switching::Resident,
};

/// `host-pair`, with data sheets: the first side multiplies `times` as fast as the second, and has static sizes up to 64
/// tokens.
fn machine(times: f64) -> Soc {
    let device = |class: &str, flops_per_sec: f64| {
        format!(
            "(class: {class}, programs: (activations: I8, threads: Some(1)), openvino: \"CPU\", \
             peaks: (flops_per_sec: {flops_per_sec}, source: \"a test\")),"
        )
    };
    let text = format!(
        "(name: \"two-threads\", dram: (bytes_per_sec: 1e10, source: \"a test\"), devices: [{}{}], pair: (first: 0, \
         second: 1, bytes_per_sec: 1e10, row_step: 16, static_tokens: [32, 64], \
         fast: (prefill_us: 0, decode_us: 0, copy_us: 0), plain: (prefill_us: 0, decode_us: 0, copy_us: 0), \
         source: \"a test\"))",
        device("Npu", 1e10 * times),
        device("Igpu", 1e10)
    );
    let source = Source {
        file: "two-threads.ron",
        text: &text,
    };
    Soc::parse(source).unwrap()
}

/// Compiles `tiny-agent` with partitions for machines.
fn compiled(workbench: &Workbench, socs: Vec<Soc>) -> PathBuf {
    let target = Target::read(&fixture("tiny-agent")).unwrap();
    let places = workbench.places("shared");
    let options = CompileOptions {
        partitions: socs,
        ..CompileOptions::default()
    };
    compile(&target, &places, &options, &Silent).unwrap();
    places.bundle
}

fn pair(bundle: &Path, soc: &Soc) -> (Executor, Arc<PairedRoles>) {
    paired(loader(bundle, soc))
}

fn paired(loader: Loader) -> (Executor, Arc<PairedRoles>) {
    let pairing = Pairing {
        level: PairLevel::Tensor,
        synchronisation: Synchronisation::Fast,
    };
    let loader = loader.paired(pairing, PairLanes::One).unwrap();
    let roles = Arc::clone(loader.pair().unwrap());
    (Executor::new(loader, OPTIONS).unwrap(), roles)
}

/// Bits of the logits of a prompt of `tokens` tokens, and of a few tokens behind it.
fn logits(executor: &mut Executor, tokens: u32) -> Vec<u32> {
    logits_in_chunks(executor, &prompt(tokens), OPTIONS.chunk_tokens)
}

#[test]
fn the_partition_of_the_bundle_is_executed() {
    let workbench = Workbench::new().unwrap();
    let soc = machine(3.0);
    let bundle = compiled(&workbench, vec![soc.clone()]);
    let mut alone = executor(&bundle, "host-cpu", OPTIONS.chunk_tokens).unwrap();
    let (mut both, roles) = pair(&bundle, &soc);
    // Every call has a class, and is too early to be tried on one side alone.
    assert!(logits(&mut both, 64) == logits(&mut alone, 64));
    let counts = roles.cuts();
    assert!(counts.written > 0, "{counts:?}");
    assert_eq!(counts.online, 0, "{counts:?}");
    // A chunk of 70 tokens has more than the largest class.
    assert!(logits(&mut both, 70) == logits(&mut alone, 70));
    let longer = roles.cuts();
    assert!(
        longer.online > 0 && longer.written > counts.written,
        "{longer:?}"
    );
    assert_eq!(roles.lost_side(), None);
    // The bundle says nothing of another machine.
    let (mut other, roles) = pair(&bundle, &shipped::soc("host-pair").unwrap());
    assert!(logits(&mut other, 64) == logits(&mut alone, 64));
    assert_eq!(roles.cuts().written, 0);
    assert_eq!(roles.cuts().online, counts.written);
}

#[test]
fn whatever_a_partition_says_answers_are_those_of_one_device() {
    let workbench = Workbench::new().unwrap();
    // Cuts by rows and by tokens, and products that stay whole on either side.
    for times in [0.01, 0.7, 5.0, 200.0] {
        let soc = machine(times);
        let bundle = compiled(&workbench, vec![soc.clone()]);
        let mut alone = executor(&bundle, "host-cpu", OPTIONS.chunk_tokens).unwrap();
        let (mut both, roles) = pair(&bundle, &soc);
        for tokens in [1, 17, 33, 64, 150] {
            assert!(
                logits(&mut both, tokens) == logits(&mut alone, tokens),
                "{times}, {tokens}"
            );
        }
        assert!(roles.cuts().written > 0, "{times}");
        assert_eq!(roles.lost_side(), None);
    }
}

/// As one lane, and as two of which one takes the other's device.
#[test]
fn an_engine_tells_what_said_how_products_were_cut() {
    let workbench = Workbench::new().unwrap();
    let soc = machine(3.0);
    let bundle = compiled(&workbench, vec![soc.clone()]);
    let alone = crate::pair::engine(&bundle, "host-roles", "agent-xpu");
    let prompt = prompt(60);
    let expected = answer(&alone, Class::Reactive, &prompt);
    for policy in ["heterollm-tensor", "agent-xpu-pair", "heterollm-layer"] {
        let policy = shipped::policy(policy).unwrap();
        let name = policy.name.clone();
        let engine =
            Engine::start(loader(&bundle, &soc), policy, EngineOptions::default()).unwrap();
        assert_eq!(
            answer(&engine, Class::Reactive, &prompt),
            expected,
            "{name}"
        );
        let cuts = engine.status().unwrap().pair.unwrap().cuts;
        // Whole operators are nobody's to cut.
        assert_eq!(
            cuts.written > 0,
            name != "heterollm-layer",
            "{name}: {cuts:?}"
        );
    }
}

#[test]
fn a_partition_of_another_model_is_refused() {
    let workbench = Workbench::new().unwrap();
    let soc = machine(3.0);
    let bundle = compiled(&workbench, vec![soc.clone()]);
    let refused = |name: &str, change: fn(&mut Partitions) -> String| {
        let open = Bundle::open(&bundle).unwrap();
        let text = open
            .section_copy(open.manifest().partitions.unwrap())
            .unwrap();
        let mut document = Partitions::parse(std::str::from_utf8(&text).unwrap()).unwrap();
        let text = change(&mut document);
        let changed = rewrite(&workbench, &bundle, name, |manifest, store| {
            let section = store.put_bytes(text.as_bytes()).unwrap();
            manifest.partitions = Some(section.id);
            manifest.sections.push(section);
            drop_unused(manifest);
        });
        let policy = shipped::policy("heterollm-tensor").unwrap();
        let started = Engine::start(loader(&changed, &soc), policy, EngineOptions::default());
        let error = started.map(|_| ()).unwrap_err();
        heg_tests::chain(&error, workbench.folder())
    };
    let other = refused("other", |document| {
        document.socs[0].products[0].rows += 16;
        document.to_text().unwrap()
    });
    assert!(other.contains("expected the model's"), "{other}");
    let broken = refused("broken", |document| {
        document
            .to_text()
            .unwrap()
            .replacen("revision:1", "revision:0", 1)
    });
    assert!(broken.contains("revision 0 is unknown"), "{broken}");
}

/// Measures the pieces of a bundle's products on a machine, as `heg profile` does, and keeps them in a folder.
fn measured(bundle: &Path, soc: &Soc, folder: &Path) -> Profile {
    let loaded = Loaded::open(bundle).unwrap();
    let extent = Extent {
        chunk_tokens: 64,
        batch: 4,
        ..Extent::default()
    };
    let loader = loaded.loader(soc).unwrap();
    let devices = identities(&loader);
    let mut pair = BundlePair::new(loader, extent).unwrap().unwrap();
    let pieces = measure_pieces(&mut pair, BundlePair::ROW_STEP, Duration::ZERO).unwrap();
    let manifest_id = loaded.bundle().manifest_id();
    let mut profile = Profile::new(manifest_id, &soc.name, devices.clone());
    profile.pieces = pieces.tables();
    let cache = OwnFolder::create(folder).unwrap();
    ProfileFile::kept(&cache, loaded.bundle(), &devices)
        .write(&profile)
        .unwrap();
    profile
}

#[test]
fn pieces_that_were_run_say_how_products_are_cut() {
    let workbench = Workbench::new().unwrap();
    let soc = machine(3.0);
    let bundle = compiled(&workbench, vec![soc.clone()]);
    let folder = tempfile::tempdir().unwrap();
    let profile = measured(&bundle, &soc, folder.path());
    // Each of five products whole on either side, and shared, by both.
    let whole_and_parts = |side, company| {
        let tables = profile.pieces.iter();
        let mut products: Vec<_> = tables
            .filter(|it| (it.side, it.company) == (side, company))
            .map(|it| it.product)
            .collect();
        products.sort();
        products
    };
    let products = [
        CutProduct::Qkv,
        CutProduct::Out,
        CutProduct::GateUp,
        CutProduct::Down,
        CutProduct::Head,
    ];
    for side in [Side::First, Side::Second] {
        for company in [Company::Alone, Company::Beside] {
            assert_eq!(
                whole_and_parts(side, company),
                products,
                "{side}, {company:?}"
            );
        }
    }
    let mut alone = executor(&bundle, "host-cpu", OPTIONS.chunk_tokens).unwrap();
    let cached = |soc: &Soc| {
        let cache = OwnFolder::create(folder.path()).unwrap();
        paired(loader(&bundle, soc).with_cache(cache))
    };
    let (mut both, roles) = cached(&soc);
    // Too early for products to be tried on one side alone.
    assert!(logits(&mut both, 64) == logits(&mut alone, 64));
    let counts = roles.cuts();
    assert!(counts.measured > 0, "{counts:?}");
    assert_eq!((counts.written, counts.online), (0, 0));
    for tokens in [1, 17, 96] {
        assert!(
            logits(&mut both, tokens) == logits(&mut alone, tokens),
            "{tokens}"
        );
    }
    assert_eq!(roles.cuts().written, 0);
    assert_eq!(roles.lost_side(), None);
    // A machine of the same devices and another name was not measured.
    let (mut other, roles) = cached(&shipped::soc("host-pair").unwrap());
    assert!(logits(&mut other, 17) == logits(&mut alone, 17));
    assert_eq!(roles.cuts().measured, 0);
}

#[test]
fn pieces_of_a_gpu_are_measured_beside_those_of_the_cpu() {
    if !gpu_or_skip("pieces_of_a_gpu_are_measured_beside_those_of_the_cpu") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let bundle = compiled(&workbench, Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let soc = shipped::soc("host-pair-gpu").unwrap();
    let profile = measured(&bundle, &soc, folder.path());
    let beside = |side| {
        let tables = profile.pieces.iter();
        tables.filter(move |it| (it.side, it.company) == (side, Company::Beside))
    };
    // Of the head too, whose rows a GPU may not reach.
    assert_eq!(beside(Side::First).count(), beside(Side::Second).count());
    assert!(beside(Side::First).count() >= 4);
    let mut alone = executor(&bundle, "host-cpu", OPTIONS.chunk_tokens).unwrap();
    let cache = OwnFolder::create(folder.path()).unwrap();
    let (mut both, roles) = paired(loader(&bundle, &soc).with_cache(cache));
    assert!(logits(&mut both, 64) == logits(&mut alone, 64));
    assert!(roles.cuts().measured > 0, "{:?}", roles.cuts());
    assert_eq!(roles.lost_side(), None);
}
