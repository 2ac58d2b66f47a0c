//! The known speed of a machine before anything runs on it.

use heg_artifacts::manifest::Manifest;
use heg_costs::{AnnotatedCosts, first_kernels};
use heg_profiler::annotation::{Annotations, SweepLimits, sweep};
use heg_profiler::measure::Profile;
use heg_sched::ModelShape;

use crate::error::EngineError;
use heg_artifacts::Bundle;
use heg_exec::profile::{file::load_profile, identities};
use heg_exec::{ExecError, ExecutorOptions, Loader};

/// Returns the costs of the loader's kernels on its devices: the measurements of `heg profile`, if the loader has a
/// cache folder that keeps them, and the bundle's annotations for the rest. Numbers that cannot be read are ignored:
/// they would only improve the first predictions, and `heg profile` reports what is wrong with a file.
pub(super) fn known_costs(loader: &Loader, model: ModelShape) -> Option<AnnotatedCosts> {
    let (manifest, soc) = (loader.bundle().manifest(), &loader.soc().name);
    let (written, profile) = written_and_measured(loader);
    costs_of(manifest, soc, model, written, profile.as_ref())
}

/// Returns the default options of executors on the loader's devices, with the chunk that a sweep chooses for them, if one
/// does.
pub fn executor_options(loader: &Loader) -> ExecutorOptions {
    let default = ExecutorOptions::default();
    ExecutorOptions {
        chunk_tokens: swept_chunk(loader).unwrap_or(default.chunk_tokens),
        ..default
    }
}

/// Returns the tokens of a prefill chunk that a sweep over the compiled ones chooses for the loader's devices: by what
/// `heg profile` measured there, else by the bundle's annotations, which have the compiler's choice. `None` if neither
/// knows enough, or if no chunk's kernels are short enough to be preempted in time.
fn swept_chunk(loader: &Loader) -> Option<usize> {
    let (manifest, soc) = (loader.bundle().manifest(), &loader.soc().name);
    let (written, profile) = written_and_measured(loader);
    let chunk = chunk_of(manifest, soc, written, profile.as_ref())?;
    usize::try_from(chunk).ok()
}

/// Returns the bundle's annotations and the profile of the loader's devices; `None` for one that cannot be read.
fn written_and_measured(loader: &Loader) -> (Option<Annotations>, Option<Profile>) {
    let bundle = loader.bundle();
    let profile = || load_profile(loader.cache()?, bundle, &identities(loader)).ok()?;
    (annotations(bundle).ok().flatten(), profile())
}

/// Returns the chunk that a sweep chooses on the machine `soc`, under the limits of the bundle's sweep, if it has one.
fn chunk_of(
    manifest: &Manifest,
    soc: &str,
    written: Option<Annotations>,
    profile: Option<&Profile>,
) -> Option<u32> {
    let of_soc = written.as_ref().and_then(|written| written.soc(soc));
    let stated = of_soc.and_then(|known| known.sweep.clone());
    let limits = stated
        .as_ref()
        .map_or(SweepLimits::default(), |it| *it.limits());
    let measured = profile.and_then(|_| {
        let known = overlaid(manifest, written.clone(), profile)?;
        sweep(manifest, known.soc(soc)?, limits)
    });
    measured.or(stated)?.chosen()
}

/// Lays the measurements of a profile over a bundle's annotations.
fn overlaid(
    manifest: &Manifest,
    written: Option<Annotations>,
    profile: Option<&Profile>,
) -> Option<Annotations> {
    let measured = profile.map(|profile| profile.annotations(manifest));
    match (written, measured) {
        (Some(mut all), Some(measured)) => {
            all.overlay(measured);
            Some(all)
        }
        (one, other) => one.or(other),
    }
}

/// Returns the speeds of kernels that a bundle states, if it states any.
///
/// # Errors
///
/// [`EngineError::Annotations`] if they cannot be read.
pub fn annotations(bundle: &Bundle) -> Result<Option<Annotations>, EngineError> {
    let Some(id) = bundle.manifest().annotations else {
        return Ok(None);
    };
    let text = bundle.section_copy(id).map_err(ExecError::Section)?;
    Ok(Some(Annotations::parse(&String::from_utf8_lossy(&text))?))
}

/// Returns the costs on the machine `soc`: those of a profile come before those in the bundle.
fn costs_of(
    manifest: &Manifest,
    soc: &str,
    model: ModelShape,
    written: Option<Annotations>,
    profile: Option<&Profile>,
) -> Option<AnnotatedCosts> {
    let all = overlaid(manifest, written, profile)?;
    let kernels: Vec<_> = first_kernels(manifest).cloned().collect();
    Some(AnnotatedCosts::new(
        &manifest.model,
        model.layers,
        &kernels,
        all.soc(soc)?,
        model.chunk_tokens,
    ))
}

#[cfg(test)]
mod tests {
    use heg_artifacts::Bundle;
    use heg_artifacts::manifest::{Kernel, Term};
    use heg_profiler::AnchorSource;
    use heg_profiler::annotation::{
        ChunkCost, ChunkSweep, Contention, KernelCost, RawContention, Regime, SocAnnotation,
    };
    use heg_profiler::measure::{DeviceIdentity, VariantProfile};
    use heg_profiler::predict::LatencyTable;
    use heg_sched::{Call, Costs, Lane, LaneLoad, LayerKernel, LayerOrder};
    use heg_spec::{DeviceClass, Group};

    use super::*;

    const TINY: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../artifacts/testdata/v1/tiny.heg"
    );

    /// A manifest whose kernels all move 1000 B.
    fn with_equal_bytes(manifest: &Manifest) -> Manifest {
        let mut manifest = manifest.clone();
        for kernel in &mut manifest.kernels {
            kernel.work.bytes = vec![Term {
                factor: 1000,
                tokens: 0,
                context: 0,
            }];
        }
        manifest
    }

    fn model(manifest: &Manifest) -> ModelShape {
        ModelShape {
            layers: manifest.layers.len() as u32,
            order: LayerOrder::default(),
            chunk_tokens: 64,
            context_tokens: 128,
            kv_bytes_per_token: 1,
        }
    }

    /// The latencies that were measured of a kernel on a device: rows, context, µs.
    fn measured(kernel: &Kernel, entries: Vec<(u32, u32, f64)>) -> VariantProfile {
        let mut variants = kernel.variants.iter();
        let variant = variants.find(|it| it.device == DeviceClass::Cpu).unwrap();
        VariantProfile {
            kernel: kernel.name.clone(),
            shape: variant.shape,
            binding: variant.binding,
            context_step: 1,
            table: LatencyTable::try_from(entries).unwrap(),
        }
    }

    #[test]
    fn a_profile_says_what_kernels_take_by_their_rows() {
        let bundle = Bundle::open(TINY).unwrap();
        let manifest = &with_equal_bytes(bundle.manifest());
        let device = DeviceIdentity {
            class: DeviceClass::Cpu,
            openvino: "CPU".to_owned(),
            name: "a processor".to_owned(),
            driver: "programs".to_owned(),
            properties: Default::default(),
        };
        let mut profile = Profile::new(bundle.manifest_id(), "host-cpu", vec![device]);
        let ffn = first_kernels(manifest).find(|kernel| kernel.group == Group::Ffn);
        let ffn = ffn.unwrap();
        let entries = vec![(1, 0, 100.0), (4, 0, 104.0), (64, 0, 900.0)];
        profile.devices[0].variants.push(measured(ffn, entries));
        let model = model(manifest);
        let costs = costs_of(manifest, "host-cpu", model, None, Some(&profile)).unwrap();
        let ffn_us = |tokens| {
            let call = Call::Prefill {
                kernel: LayerKernel::Ffn,
                tokens,
                context: tokens,
            };
            costs.cost(Lane::Cpu, call).map(|cost| cost.latency_us)
        };
        assert_eq!([1, 4, 64].map(ffn_us), [100.0, 104.0, 900.0].map(Some));
        // Nothing is known of attention there, nor of another machine.
        let layer = Call::Layer {
            rows: 1,
            context: 1,
            fused: false,
        };
        assert_eq!(costs.cost(Lane::Cpu, layer), None);
        assert!(costs_of(manifest, "other", model, None, Some(&profile)).is_none());
        assert!(costs_of(manifest, "host-cpu", model, None, None).is_none());
    }

    #[test]
    fn a_profile_says_what_kernels_take_beside_another_lane() {
        let bundle = Bundle::open(TINY).unwrap();
        let manifest = bundle.manifest();
        let mut profile = Profile::new(bundle.manifest_id(), "host-roles", Vec::new());
        let model = model(manifest);
        let load = |lane| LaneLoad {
            lane,
            bandwidth: 0.0,
        };
        let slowdown = |profile: &Profile| {
            let costs = costs_of(manifest, "host-roles", model, None, Some(profile)).unwrap();
            costs.slowdown(load(Lane::Npu), load(Lane::Igpu))
        };
        assert_eq!(slowdown(&profile), 1.0);
        let cell = RawContention {
            device: DeviceClass::Npu,
            regime: Regime::ComputeBound,
            neighbour: DeviceClass::Igpu,
            neighbour_regime: Regime::ComputeBound,
            slowdown: 1.4,
            source: AnchorSource::Measured,
        };
        profile.contention.push(Contention::new(cell).unwrap());
        assert_eq!(slowdown(&profile), 1.4);
    }

    /// An NPU moves 1000 B in 100 µs and an iGPU in 40 µs. Neither has a data sheet, and each has a single size, to which
    /// no roofline fits.
    #[test]
    fn a_profile_says_what_kernels_draw_of_the_bandwidth() {
        let bundle = Bundle::open(TINY).unwrap();
        let manifest = &with_equal_bytes(bundle.manifest());
        let ffn = first_kernels(manifest).find(|kernel| kernel.group == Group::Ffn);
        let ffn = ffn.unwrap();
        let device = |class| DeviceIdentity {
            class,
            openvino: format!("{class:?}"),
            name: "a device".to_owned(),
            driver: "programs".to_owned(),
            properties: Default::default(),
        };
        let devices = [DeviceClass::Npu, DeviceClass::Igpu].map(device).to_vec();
        let mut profile = Profile::new(bundle.manifest_id(), "host-roles", devices);
        for (device, time_us) in profile.devices.iter_mut().zip([100.0, 40.0]) {
            let entries = vec![(64, 0, time_us)];
            device.variants.push(measured(ffn, entries));
        }
        let model = model(manifest);
        let costs = costs_of(manifest, "host-roles", model, None, Some(&profile)).unwrap();
        let call = Call::Prefill {
            kernel: LayerKernel::Ffn,
            tokens: 64,
            context: 64,
        };
        let drawn = [Lane::Npu, Lane::Igpu].map(|lane| costs.cost(lane, call).unwrap().bandwidth);
        assert!((drawn[0] - 0.4).abs() < 1e-9, "{drawn:?}");
        assert!((drawn[1] - 1.0).abs() < 1e-9, "{drawn:?}");
    }

    #[test]
    fn the_chunk_of_a_bundles_own_sweep_stands_where_nothing_is_measured() {
        let bundle = Bundle::open(TINY).unwrap();
        let manifest = bundle.manifest();
        let candidate = |tokens, token_us| ChunkCost {
            tokens,
            token_us,
            longest_us: 10.0,
            kernels: Vec::<KernelCost>::new(),
        };
        let written = |candidates| {
            let sweep = ChunkSweep::new(SweepLimits::default(), candidates).unwrap();
            Some(Annotations::new(vec![SocAnnotation {
                name: "a-machine".to_owned(),
                devices: Vec::new(),
                contention: Vec::new(),
                sweep: Some(sweep),
            }]))
        };
        let flat = || written(vec![candidate(128, 5.0), candidate(512, 5.0)]);
        let steep = || written(vec![candidate(128, 5.0), candidate(512, 2.0)]);
        let chunk = |written, profile| chunk_of(manifest, "a-machine", written, profile);
        assert_eq!(chunk(flat(), None), Some(128));
        assert_eq!(chunk(steep(), None), Some(512));
        assert_eq!(chunk(None, None), None);
        assert_eq!(chunk_of(manifest, "another", steep(), None), None);
        // A profile that knows too little leaves the choice as it was.
        let empty = Profile::new(bundle.manifest_id(), "a-machine", Vec::new());
        assert_eq!(chunk(steep(), Some(&empty)), Some(512));
    }
}
