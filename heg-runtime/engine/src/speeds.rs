//! The known speed of a machine before anything runs on it.

use heg_artifacts::manifest::Manifest;
use heg_costs::{AnnotatedCosts, first_kernels};
use heg_profiler::annotation::Annotations;
use heg_profiler::measure::Profile;
use heg_sched::ModelShape;

use crate::error::EngineError;
use heg_artifacts::Bundle;
use heg_exec::profile::{file::load_profile, identities};
use heg_exec::{ExecError, Loader};

/// Returns the costs of the loader's kernels on its devices: the measurements of `heg profile`, if the loader has a
/// cache folder that keeps them, and the bundle's annotations for the rest. Numbers that cannot be read are ignored:
/// they would only improve the first predictions, and `heg profile` reports what is wrong with a file.
pub(super) fn known_costs(loader: &Loader, model: ModelShape) -> Option<AnnotatedCosts> {
    let bundle = loader.bundle();
    let profile = || load_profile(loader.cache()?, bundle, &identities(loader)).ok()?;
    let written = annotations(bundle).ok().flatten();
    costs_of(
        bundle.manifest(),
        &loader.soc().name,
        model,
        written,
        profile().as_ref(),
    )
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
    let measured = profile.map(|profile| profile.annotations(manifest));
    let all = match (written, measured) {
        (Some(mut all), Some(measured)) => {
            all.overlay(measured);
            all
        }
        (one, other) => one.or(other)?,
    };
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
    use heg_artifacts::manifest::Term;
    use heg_profiler::AnchorSource;
    use heg_profiler::annotation::{Contention, RawContention, Regime};
    use heg_profiler::measure::{DeviceIdentity, VariantProfile};
    use heg_profiler::predict::LatencyTable;
    use heg_sched::{Call, Costs, Lane, LaneLoad, LayerKernel};
    use heg_spec::{DeviceClass, Group};

    use super::*;

    const TINY: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../artifacts/testdata/v1/tiny.heg"
    );

    #[test]
    fn a_profile_says_what_kernels_take_by_their_rows() {
        let bundle = Bundle::open(TINY).unwrap();
        let mut manifest = bundle.manifest().clone();
        for kernel in &mut manifest.kernels {
            kernel.work.bytes = vec![Term {
                factor: 1000,
                tokens: 0,
                context: 0,
            }];
        }
        let manifest = &manifest;
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
        let mut variants = ffn.variants.iter();
        let variant = variants.find(|it| it.device == DeviceClass::Cpu).unwrap();
        let entries = vec![(1, 0, 100.0), (4, 0, 104.0), (64, 0, 900.0)];
        profile.devices[0].variants.push(VariantProfile {
            kernel: ffn.name.clone(),
            shape: variant.shape,
            binding: variant.binding,
            context_step: 1,
            table: LatencyTable::try_from(entries).unwrap(),
        });
        let model = ModelShape {
            layers: manifest.layers.len() as u32,
            chunk_tokens: 64,
            context_tokens: 128,
            kv_bytes_per_token: 1,
        };
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
        let model = ModelShape {
            layers: manifest.layers.len() as u32,
            chunk_tokens: 64,
            context_tokens: 128,
            kv_bytes_per_token: 1,
        };
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
}
