//! A profile of real kernels: every variant that the devices have is measured, alone and beside the other device,
//! saved, found again, and used by the estimates. `cargo xtask profile --check` judges the quality of the numbers, on a
//! machine that is measured on purpose.

use std::time::Duration;

use heg_files::OwnFolder;
use heg_profiler::AnchorSource;
use heg_profiler::annotation::{KernelCall, estimate};
use heg_profiler::measure::{self, MeasurementPlan, Profile, Report, Subject, Watch};
use heg_runtime::profile::file::{ProfileFile, load_profile};
use heg_runtime::profile::{BundleSubject, Extent, identities};
use heg_runtime::{ExecError, Loaded};
use heg_spec::DeviceClass;
use heg_tests::{Workbench, fixture, openvino_or_skip};

const EXTENT: Extent = Extent {
    chunk_tokens: 16,
    batch: 4,
    context_tokens: 64,
};

/// A watch that fails at every measurement.
struct Idle;

impl Watch<ExecError> for Idle {
    fn measured(&mut self, _profile: &Profile) -> Result<(), ExecError> {
        Err(ExecError::LoaderGone)
    }
}

#[test]
fn every_variant_is_measured_and_kept() {
    if !openvino_or_skip("profile") {
        return;
    }
    let workbench = Workbench::new().unwrap();
    let (bundle, _) = workbench
        .compile(&fixture("golden/llama"), "llama", |spec| {
            spec.chunk_tokens = vec![4, 8];
        })
        .unwrap();
    let loaded = Loaded::open(&bundle).unwrap();
    let soc = heg_spec::shipped::soc("host-roles-openvino").unwrap();
    let manifest = loaded.bundle().manifest();
    let loader = loaded.loader(&soc).unwrap();
    let devices = identities(&loader);
    let mut subject = BundleSubject::new(loader, EXTENT);
    let plan = MeasurementPlan {
        budget: Duration::from_millis(100),
        visits_max: 2,
        ..MeasurementPlan::default()
    };
    let empty = Profile::new(loaded.bundle().manifest_id(), &soc.name, devices.clone());
    let profile = measure::profile(&mut subject, empty, &plan, &mut ()).unwrap();

    let of_role = |role| {
        let kernels = manifest.kernels.iter();
        let variants = kernels.flat_map(|kernel| &kernel.variants);
        variants.filter(|variant| variant.device == role).count()
    };
    for role in [DeviceClass::Npu, DeviceClass::Igpu] {
        let device = profile.device(role).unwrap();
        assert_eq!(device.variants.len(), of_role(role));
    }
    assert_eq!(profile.contention.len(), 8);
    let report = Report::new(subject.cases(), &profile);
    assert_eq!(report.kernels.len(), subject.cases().len());

    let folder = tempfile::tempdir().unwrap();
    let cache = OwnFolder::create(folder.path()).unwrap();
    let kept = ProfileFile::kept(&cache, loaded.bundle(), &devices);
    kept.write(&profile).unwrap();
    let found = load_profile(&cache, loaded.bundle(), &devices).unwrap();
    assert_eq!(found.as_ref(), Some(&profile));
    measure::profile(&mut subject, found.unwrap(), &plan, &mut Idle).unwrap();

    let annotations = profile.annotations(manifest);
    annotations.to_text().unwrap();
    let call = KernelCall {
        tokens: 3,
        context: 40,
        batch: 1,
    };
    for device in &annotations.socs[0].devices {
        for kernel in &manifest.kernels {
            for variant in kernel
                .variants
                .iter()
                .filter(|one| one.device == device.class)
            {
                let estimate = estimate(device, kernel, variant, call, 0).unwrap();
                assert_eq!(estimate.source, AnchorSource::Measured, "{}", kernel.name);
            }
        }
    }
}
