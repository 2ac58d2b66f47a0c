//! The ladder rung by rung, and under any refusals.

use heg_artifacts::SectionId;
use heg_artifacts::manifest::{
    Binding, Blob, Compatibility, ElementType, Kernel, ShapeClass, Variant, Work,
};
use heg_spec::{DeviceClass, Group, NpuPlatform};
use proptest::prelude::*;

use super::*;

const CONTEXT: usize = 1000;

fn variant(device: DeviceClass, shape: ShapeClass, activations: ElementType) -> Variant {
    let binding = match device {
        DeviceClass::Npu => Binding::Input,
        DeviceClass::Cpu | DeviceClass::Igpu => Binding::Constant,
    };
    Variant {
        device,
        shape,
        binding,
        activations,
        kv_cache: None,
        takes_trees: false,
        ir: SectionId::of(b"ir"),
        program: None,
        tolerance: 0.05,
        blobs: Vec::new(),
    }
}

fn chunk(tokens: u32) -> ShapeClass {
    ShapeClass::Static { tokens }
}

fn kernel(group: Group, variants: Vec<Variant>) -> Kernel {
    Kernel {
        name: group.name().to_owned(),
        group,
        ops: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        parameters: Vec::new(),
        work: Work::default(),
        variants,
    }
}

/// The variants that a compiler for f16 accelerators writes: CPU and iGPU dynamic, NPU static at these chunks.
fn ffn(chunks: &[u32]) -> Kernel {
    let mut variants = vec![
        variant(DeviceClass::Cpu, ShapeClass::Dynamic, ElementType::F32),
        variant(DeviceClass::Igpu, ShapeClass::Dynamic, ElementType::F16),
    ];
    let fixed = |tokens: &u32| variant(DeviceClass::Npu, chunk(*tokens), ElementType::F16);
    variants.extend(chunks.iter().map(fixed));
    kernel(Group::Ffn, variants)
}

fn blob(platform: u32) -> Blob {
    Blob {
        platform: NpuPlatform::new(platform),
        compatibility: Compatibility {
            compiler: "8.4".to_owned(),
            elf: "1.2.0".to_owned(),
            tiles: Some(2),
            stepping: None,
            text: format!("compiler=8.4;npu={platform};t=2;elf=1.2.0"),
        },
        section: SectionId::of(b"blob"),
    }
}

fn device(role: DeviceClass) -> DeviceFacts {
    let name = match role {
        DeviceClass::Cpu => "CPU",
        DeviceClass::Igpu => "GPU",
        DeviceClass::Npu => "NPU",
    };
    let npu = NpuFacts {
        platform: Some(NpuPlatform::NPU3720),
        tiles: Some(2),
        stepping: Some("0".to_owned()),
        compiler: Some("8.4".to_owned()),
        elf: None,
    };
    DeviceFacts {
        role,
        name: name.to_owned(),
        full_name: name.to_owned(),
        driver: None,
        npu: (role == DeviceClass::Npu).then_some(npu),
        programs: None,
        gpu: None,
        missing: None,
    }
}

fn ladder(activations: ElementType, roles: &[DeviceClass]) -> Ladder {
    Ladder {
        devices: roles.iter().map(|role| device(*role)).collect(),
        elements: Elements::new(activations, None),
        sight: Sight::Causal,
    }
}

const ALL: [DeviceClass; 3] = [DeviceClass::Npu, DeviceClass::Igpu, DeviceClass::Cpu];

fn need(tokens: usize) -> Need {
    Need {
        tokens,
        context: CONTEXT,
    }
}

fn text(plan: &Plan) -> String {
    let rungs = plan.rungs.iter().map(|rung| format!("{rung:?}\n"));
    let lines = summary(&plan.descents).into_iter().map(|line| line + "\n");
    rungs.chain(lines).collect()
}

fn with_blobs(mut kernel: Kernel, blobs: &[Blob]) -> Kernel {
    for variant in &mut kernel.variants {
        if variant.device == DeviceClass::Npu {
            variant.blobs = blobs.to_vec();
        }
    }
    kernel
}

#[test]
fn a_blob_that_fits_comes_first_and_is_no_descent() {
    let kernel = with_blobs(ffn(&[32, 64]), &[blob(4000), blob(3720)]);
    let plan = ladder(ElementType::F16, &ALL).plan(&kernel, need(64), &Refused::new());
    assert!(plan.complete && plan.descents.is_empty(), "{plan:?}");
    assert!(
        plan.rungs
            .iter()
            .all(|rung| rung.source == RungSource::Blob(1)),
        "{plan:?}"
    );
}

#[test]
fn every_way_down_has_its_reason() {
    let kernel = with_blobs(ffn(&[32, 64]), &[blob(4000), blob(5010)]);
    let mut ladder = ladder(ElementType::F16, &ALL);
    let mut refused = Refused::new();
    let mut story = String::new();
    loop {
        let plan = ladder.plan(&kernel, need(64), &refused);
        story.push_str(&format!("{}\n", text(&plan)));
        let Some(first) = plan.rungs.first() else {
            assert!(!plan.complete);
            break;
        };
        refused.insert(*first, Reason::Refused(format!("no {:?}", first.role)));
    }
    ladder.devices[0].missing = Some("No available devices".to_owned());
    story.push_str(&text(&ladder.plan(&kernel, need(64), &Refused::new())));
    insta::assert_snapshot!(story);
}

#[test]
fn blobs_are_held_against_the_device() {
    let mut facts = device(DeviceClass::Npu);
    let mut blob = blob(3720);
    assert_eq!(facts.accepts(&blob), Ok(()));
    let mut refused = Vec::new();
    let mut check = |facts: &DeviceFacts, blob: &Blob| {
        refused.push(facts.accepts(blob).unwrap_err().to_string());
    };
    blob.platform = NpuPlatform::NPU4000;
    check(&facts, &blob);
    blob.platform = NpuPlatform::NPU3720;
    blob.compatibility.tiles = Some(4);
    check(&facts, &blob);
    blob.compatibility.tiles = Some(1);
    blob.compatibility.stepping = Some("2".to_owned());
    check(&facts, &blob);
    blob.compatibility.stepping = Some("0".to_owned());
    facts.npu.as_mut().unwrap().elf = "1.1.4".parse().ok();
    check(&facts, &blob);
    facts.npu.as_mut().unwrap().elf = "1.3.0".parse().ok();
    assert_eq!(facts.accepts(&blob), Ok(()));
    facts.npu.as_mut().unwrap().platform = None;
    check(&facts, &blob);
    facts.npu = None;
    facts.name = "CPU".to_owned();
    check(&facts, &blob);
    insta::assert_snapshot!(refused.join("\n"));
}

#[test]
fn what_an_npu_does_not_say_is_not_held_against_a_blob() {
    let mut facts = device(DeviceClass::Npu);
    facts.npu = Some(NpuFacts {
        platform: Some(NpuPlatform::NPU3720),
        ..NpuFacts::default()
    });
    assert_eq!(facts.accepts(&blob(3720)), Ok(()));
}

/// An import needs versions of ELF and mapped inference, not the compiler's.
#[test]
fn the_drivers_compiler_is_not_held_against_a_blob() {
    let mut facts = device(DeviceClass::Npu);
    let mut blob = blob(3720);
    blob.compatibility.compiler = "8.4".to_owned();
    for compiler in [None, Some("7.5"), Some("8.4"), Some("9.0")] {
        facts.npu.as_mut().unwrap().compiler = compiler.map(str::to_owned);
        assert_eq!(facts.accepts(&blob), Ok(()), "{compiler:?}");
    }
}

#[test]
fn below_f16_accelerators_the_cpu_runs_the_igpus_form() {
    let kernel = ffn(&[32]);
    let without = [DeviceClass::Npu, DeviceClass::Cpu];
    let npu = Rung {
        role: DeviceClass::Npu,
        variant: 2,
        source: RungSource::Ir,
    };
    let refused = Refused::from([(npu, Reason::NoVariant)]);
    let plan = ladder(ElementType::F16, &without).plan(&kernel, need(8), &refused);
    let [rung] = plan.rungs.as_slice() else {
        panic!("{plan:?}");
    };
    assert_eq!(rung.role, DeviceClass::Cpu);
    assert_eq!(kernel.variants[rung.variant].device, DeviceClass::Igpu);
    let plan = ladder(ElementType::F32, &[DeviceClass::Cpu]).plan(&kernel, need(8), &refused);
    assert_eq!(
        kernel.variants[plan.rungs[0].variant].device,
        DeviceClass::Cpu
    );
}

#[test]
fn a_role_that_runs_programs_takes_the_cpus_variants() {
    let mut kernel = ffn(&[32]);
    kernel.variants[0].program = Some(SectionId::of(b"program"));
    let with_programs = |role| DeviceFacts {
        name: "CPU".to_owned(),
        programs: Some("portable, I8".to_owned()),
        npu: None,
        ..device(role)
    };
    let ladder = Ladder {
        devices: vec![
            with_programs(DeviceClass::Npu),
            with_programs(DeviceClass::Igpu),
        ],
        elements: Elements::new(ElementType::F32, None),
        sight: Sight::Causal,
    };
    let mut refused = Refused::new();
    for (role, source) in [
        (DeviceClass::Npu, RungSource::Program),
        (DeviceClass::Npu, RungSource::Ir),
        (DeviceClass::Igpu, RungSource::Program),
    ] {
        let plan = ladder.plan(&kernel, need(5000), &refused);
        let rung = Rung {
            role,
            variant: 0,
            source,
        };
        assert_eq!(plan.rungs, [rung]);
        assert!(plan.complete);
        refused.insert(rung, Reason::Refused("no".to_owned()));
    }
    assert_eq!(
        ladder.shapes(&kernel, DeviceClass::Npu),
        [ShapeClass::Dynamic]
    );
}

/// Tokens that see their whole text would see padding too, so neither plugins nor IRs run them.
#[test]
fn a_text_that_is_seen_as_a_whole_runs_in_programs_alone() {
    let mut kernel = ffn(&[]);
    kernel.variants[0].program = Some(SectionId::of(b"program"));
    let mut devices = [DeviceClass::Igpu, DeviceClass::Cpu].map(device);
    devices[0].gpu = Some(Err("none".to_owned()));
    devices[1].programs = Some("portable, I8".to_owned());
    devices.iter_mut().for_each(DeviceFacts::keep_to_programs);
    let ladder = Ladder {
        devices: devices.into(),
        elements: Elements::new(ElementType::F32, None),
        sight: Sight::Whole,
    };
    let sources: Vec<RungSource> = ladder.all(&kernel).iter().map(|it| it.source).collect();
    assert_eq!(sources, [RungSource::Program]);
    let plan = ladder.plan(&kernel, need(8), &Refused::new());
    assert!(plan.complete);
    insta::assert_snapshot!(summary(&plan.descents).join("\n"));
}

#[test]
fn a_gpu_runs_programs_before_the_cpu_that_plays_the_role() {
    let mut kernel = ffn(&[]);
    kernel.variants[0].program = Some(SectionId::of(b"program"));
    let with_gpu = |gpu| Ladder {
        devices: vec![DeviceFacts {
            name: "CPU".to_owned(),
            programs: Some("portable, I8".to_owned()),
            gpu: Some(gpu),
            ..device(DeviceClass::Igpu)
        }],
        elements: Elements::new(ElementType::F32, None),
        sight: Sight::Causal,
    };
    let facts = GpuFacts {
        name: "a GPU".to_owned(),
        identity: "a GPU, its driver".to_owned(),
        is_software: false,
    };
    let ladder = with_gpu(Ok(facts));
    let mut refused = Refused::new();
    let plan = ladder.plan(&kernel, need(8), &refused);
    let [first] = plan.rungs.as_slice() else {
        panic!("{plan:?}");
    };
    assert_eq!(first.source, RungSource::Gpu);
    assert_eq!(ladder.all(&kernel).len(), 3);
    refused.insert(*first, Reason::Refused("no".to_owned()));
    let without = with_gpu(Err("no Vulkan".to_owned()));
    assert_eq!(without.all(&kernel).len(), 2);
    let stories = [
        ladder.plan(&kernel, need(8), &refused),
        without.plan(&kernel, need(8), &Refused::new()),
    ];
    let stories = stories.map(|plan| text(&plan));
    insta::assert_snapshot!(stories.join("\n"), @r"
    Rung { role: Igpu, variant: 0, source: Program }
    ffn dynamic: GPU program -> CPU as igpu program: refused: no

    Rung { role: Igpu, variant: 0, source: Program }
    ffn dynamic: GPU program -> CPU as igpu program: the device cannot be used: no Vulkan
    ");
}

#[test]
fn a_gpu_runs_programs_before_the_device_that_openvino_has() {
    let mut kernel = ffn(&[32]);
    kernel.variants[0].program = Some(SectionId::of(b"program"));
    let with_gpu = |gpu, missing| Ladder {
        devices: vec![
            DeviceFacts {
                missing,
                gpu: Some(gpu),
                ..device(DeviceClass::Igpu)
            },
            device(DeviceClass::Cpu),
        ],
        // Those of an NPU: programs of the GPU go with them, the CPU's IRs do not.
        elements: Elements::new(ElementType::F16, None),
        sight: Sight::Causal,
    };
    let facts = GpuFacts {
        name: "a GPU".to_owned(),
        identity: "a GPU, its driver".to_owned(),
        is_software: false,
    };
    let ladder = with_gpu(Ok(facts), None);
    let none = Err("no Vulkan".to_owned());
    let plan = ladder.plan(&kernel, need(8), &Refused::new());
    assert!(plan.complete && plan.descents.is_empty(), "{plan:?}");
    let refused = Refused::from([(plan.rungs[0], Reason::Refused("no".to_owned()))]);
    let elements = ladder.elements_of(plan.rungs[0], &kernel.variants[0]);
    assert_eq!(elements, Elements::new(ElementType::F16, None));
    assert_eq!(ladder.all(&kernel).len(), 3);
    let missing = Some("OpenVINO finds no such device".to_owned());
    let stories = [
        plan,
        ladder.plan(&kernel, need(8), &refused),
        with_gpu(none.clone(), None).plan(&kernel, need(8), &Refused::new()),
        with_gpu(none, missing).plan(&kernel, need(8), &Refused::new()),
    ];
    let stories = stories.map(|plan| text(&plan));
    insta::assert_snapshot!(stories.join("\n"), @"
    Rung { role: Igpu, variant: 0, source: Gpu }

    Rung { role: Igpu, variant: 1, source: Ir }
    ffn dynamic: GPU program -> GPU IR: refused: no

    Rung { role: Igpu, variant: 1, source: Ir }
    ffn dynamic: GPU program -> GPU IR: the device cannot be used: no Vulkan

    Rung { role: Cpu, variant: 1, source: Ir }
    ffn: GPU -> CPU IR dynamic: the device cannot be used: OpenVINO finds no such device
    ffn dynamic: GPU program -> CPU IR: the device cannot be used: no Vulkan
    ");
}

#[test]
fn attention_in_buckets_is_followed_by_a_device_for_longer_contexts() {
    let bucket = |tokens, context| {
        let shape = ShapeClass::Bucket { tokens, context };
        variant(DeviceClass::Npu, shape, ElementType::F16)
    };
    let mut variants = ffn(&[]).variants;
    for tokens in [32, 256] {
        variants.extend([512, 1024, 2048].map(|context| bucket(tokens, context)));
    }
    let kernel = kernel(Group::Mha, variants);
    let devices = [DeviceClass::Npu, DeviceClass::Cpu];
    let rungs = |context| {
        let need = Need {
            tokens: 100,
            context,
        };
        ladder(ElementType::F16, &devices).plan(&kernel, need, &Refused::new())
    };
    let shapes = |plan: &Plan| -> Vec<ShapeClass> {
        let shapes = plan
            .rungs
            .iter()
            .map(|rung| kernel.variants[rung.variant].shape);
        shapes.collect()
    };
    let enough = rungs(1000);
    assert!(enough.descents.is_empty(), "{enough:?}");
    assert_eq!(
        shapes(&enough).len(),
        4,
        "no bucket beyond 1024: {enough:?}"
    );
    let short = rungs(4000);
    assert_eq!(shapes(&short).last(), Some(&ShapeClass::Dynamic));
    assert_eq!(shapes(&short).len(), 7);
    insta::assert_snapshot!(summary(&short.descents).join("\n"));
}

fn any_device() -> impl Strategy<Value = DeviceFacts> {
    let role = prop::sample::select(ALL.to_vec());
    (role, any::<bool>(), prop::option::of(0..3_u32)).prop_map(|(role, missing, platform)| {
        let mut device = device(role);
        device.missing = missing.then(|| "gone".to_owned());
        if let Some(npu) = &mut device.npu {
            npu.platform = platform.map(|index| NpuPlatform::new(3720 + index));
        }
        device
    })
}

fn any_kernel() -> impl Strategy<Value = Kernel> {
    let group = prop::sample::select(vec![Group::Ffn, Group::Mha]);
    let shape = prop_oneof![
        Just(ShapeClass::Dynamic),
        (1..100_u32).prop_map(|tokens| ShapeClass::Static { tokens }),
        (1..100_u32, 1..2000_u32)
            .prop_map(|(tokens, context)| ShapeClass::Bucket { tokens, context }),
    ];
    let activations = prop::sample::select(vec![ElementType::F16, ElementType::F32]);
    let blobs = prop::collection::vec((0..3_u32).prop_map(|index| blob(3720 + index)), 0..3);
    let variant = (
        prop::sample::select(ALL.to_vec()),
        shape,
        activations,
        prop::sample::select(vec![None, Some(ElementType::Bf16)]),
        blobs,
    )
        .prop_map(|(device, shape, activations, kv_cache, blobs)| Variant {
            kv_cache,
            blobs,
            ..variant(device, shape, activations)
        });
    (group, prop::collection::vec(variant, 0..8))
        .prop_map(|(group, variants)| kernel(group, variants))
}

proptest! {
    /// Refusing one rung after the other ends, and the plan keeps its promises all the way.
    #[test]
    fn the_ladder_goes_down_and_ends(
        kernel in any_kernel(),
        devices in prop::collection::vec(any_device(), 0..4),
        activations in prop::sample::select(vec![ElementType::F16, ElementType::F32]),
        narrow in any::<bool>(),
        tokens in 1..120_usize,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let kv = if narrow { ElementType::Bf16 } else { activations };
        let elements = Elements { activations, kv };
        let ladder = Ladder { devices, elements, sight: Sight::Causal };
        let mut refused = Refused::new();
        for pick in picks {
            let plan = ladder.plan(&kernel, need(tokens), &refused);
            for rung in &plan.rungs {
                let variant = &kernel.variants[rung.variant];
                prop_assert!(!refused.contains_key(rung));
                prop_assert_eq!(variant.elements(), elements);
                let device = ladder.device(rung.role).unwrap();
                prop_assert!(device.missing.is_none());
                if let RungSource::Blob(at) = rung.source {
                    prop_assert!(device.accepts(&variant.blobs[at]).is_ok());
                }
                prop_assert!(ladder.all(&kernel).contains(rung));
            }
            let admits = |rung: &Rung| kernel.variants[rung.variant].shape.admits(tokens, CONTEXT);
            prop_assert_eq!(plan.complete, plan.rungs.iter().any(admits));
            // Every refused rung above one that is used has been reported.
            for rung in refused.keys().filter(|rung| plan.rungs.iter().any(|used| used.role == rung.role)) {
                let step = DescentStep::of(ladder.device(rung.role).unwrap(), &kernel, *rung);
                let said = plan.descents.iter().any(|descent| descent.from == step);
                let needless = plan.rungs.iter().any(|used| {
                    used.variant == rung.variant && used.source < rung.source
                });
                // One cause stands for a blob and its IR.
                let with_blob = rung.source == RungSource::Ir && plan.descents.iter().any(|descent| {
                    let from = &descent.from;
                    let is_same = (&from.device, from.role, &from.shape) == (&step.device, step.role, &step.shape);
                    let of_blob = from.source.as_ref().is_some_and(|source| source.starts_with("blob"));
                    is_same && of_blob && matches!(descent.reason, Reason::Refused(_))
                });
                prop_assert!(said || needless || with_blob, "{:?} in {:?}", rung, plan);
            }
            if plan.rungs.is_empty() {
                break;
            }
            let rung = plan.rungs[pick.index(plan.rungs.len())];
            refused.insert(rung, Reason::Refused("tried".to_owned()));
        }
    }
}
