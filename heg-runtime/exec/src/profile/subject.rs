//! The kernels of a bundle, for measurements.
//!
//! Kernels are prepared for their case and dropped before the next, so that a profile needs less memory than a request.
//! Each is prepared at several places of the model, which take turns: a pass over the model reads weights and KV cache
//! from memory rather than from a processor cache, and so must the measurement.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heg_artifacts::manifest::{Kernel, Manifest, Role, Variant};
use heg_profiler::measure::{Case, DeviceIdentity, Subject};
use heg_profiler::predict::CallShape;
use heg_spec::soc::Device;
use heg_spec::{Group, bug};

use super::neighbour::Neighbour;
use crate::error::ExecError;
use crate::ladder::{DeviceFacts, Rung, RungSource};
use crate::padding::CONTEXT_STEP;
use crate::soc::device_of;
use crate::{Loader, LoneKernel, Place};

/// The largest calls to measure.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Largest number of tokens of a call.
    pub chunk_tokens: u32,
    /// Largest number of rows of the head.
    pub batch: u32,
    /// Longest context, at most the model's.
    pub context_tokens: u32,
}

impl Default for Extent {
    /// The chunk and batch of an executor; 4096 tokens are the contexts of the papers' evaluation.
    fn default() -> Self {
        Self {
            chunk_tokens: 256,
            batch: 32,
            context_tokens: 4096,
        }
    }
}

/// The kernels of a bundle on the devices of a SoC.
pub struct BundleSubject {
    loader: Arc<Loader>,
    cases: Vec<Case>,
    /// The kernel of each case, in the order of the cases.
    made: Vec<Made>,
    /// The case that is ready.
    ready: Option<(usize, Bench)>,
    neighbour: Option<Neighbour>,
}

/// The kernel of a case.
#[derive(Debug, Clone)]
struct Made {
    rung: Rung,
    places: Vec<Place>,
}

/// The kernel of a case, ready at its places, which take turns.
pub(super) struct Bench {
    context_step: u32,
    lone: Vec<LoneKernel>,
    /// The call that each place is sized for.
    sizes: Vec<Option<CallShape>>,
    next: usize,
    noise: Noise,
}

impl BundleSubject {
    /// Makes the cases of all variants that the devices of the loader's SoC have a role for.
    pub fn new(loader: Loader, extent: Extent) -> Self {
        let bundle = Arc::clone(loader.bundle());
        let manifest = bundle.manifest();
        let (mut cases, mut made) = (Vec::new(), Vec::new());
        for device in usable(&loader) {
            let role = device.role;
            for (index, kernel) in (0..).zip(&manifest.kernels) {
                let places = places(manifest, index, kernel);
                let variants = kernel.variants.iter().enumerate();
                let class = device.variants();
                for (variant, of_kernel) in variants.filter(|(_, one)| one.device == class) {
                    if places.is_empty() {
                        continue;
                    }
                    let source = source(device, of_kernel);
                    cases.push(Case {
                        kernel: kernel.name.clone(),
                        device: role,
                        shape: of_kernel.shape,
                        binding: of_kernel.binding,
                        work: kernel.work.clone(),
                        tokens_max: tokens_max(kernel.group, extent),
                        context_max: context_max(kernel.group, manifest, extent),
                        context_step: context_step(kernel.group),
                        places: places.len() as u32,
                    });
                    made.push(Made {
                        rung: Rung {
                            role,
                            variant,
                            source,
                        },
                        places: places.clone(),
                    });
                }
            }
        }
        Self {
            loader: Arc::new(loader),
            cases,
            made,
            ready: None,
            neighbour: None,
        }
    }

    fn bench(&mut self, case: usize) -> Result<&mut Bench, ExecError> {
        if self.ready.as_ref().is_none_or(|(ready, _)| *ready != case) {
            // The old one is dropped first: both at once may not fit into memory.
            self.ready = None;
            self.ready = Some((case, self.prepare(case)?));
        }
        match &mut self.ready {
            Some((_, bench)) => Ok(bench),
            None => Err(bug!("a case was prepared and is not there").into()),
        }
    }

    fn prepare(&self, case: usize) -> Result<Bench, ExecError> {
        let (Some(made), Some(case)) = (self.made.get(case), self.cases.get(case)) else {
            return Err(bug!("a case is measured that was not listed").into());
        };
        Bench::prepare(&self.loader, &made.places, made.rung, case.context_step)
    }
}

impl Subject for BundleSubject {
    type Error = ExecError;

    fn cases(&self) -> &[Case] {
        &self.cases
    }

    fn run(&mut self, case: usize, call: CallShape) -> Result<Duration, ExecError> {
        self.bench(case)?.run(call)
    }

    fn load(&mut self, beside: Option<(usize, CallShape)>) -> Result<(), ExecError> {
        if let Some(neighbour) = self.neighbour.take() {
            neighbour.stop()?;
        }
        if let Some((case, call)) = beside {
            self.neighbour = Some(Neighbour::start(self.prepare(case)?, call)?);
        }
        Ok(())
    }
}

impl Bench {
    /// Makes a kernel ready at places.
    pub(super) fn prepare(
        loader: &Loader,
        places: &[Place],
        rung: Rung,
        context_step: u32,
    ) -> Result<Self, ExecError> {
        let lone = places
            .iter()
            .map(|place| LoneKernel::prepare(loader, *place, rung))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            context_step,
            sizes: vec![None; lone.len()],
            lone,
            next: 0,
            noise: Noise::default(),
        })
    }

    /// Runs each place once that has another size.
    pub(super) fn warm_up(&mut self, call: CallShape) -> Result<(), ExecError> {
        let others = self.sizes.iter().filter(|size| **size != Some(call));
        for _ in 0..others.count() {
            self.run(call)?;
        }
        Ok(())
    }

    /// Runs the next place once.
    pub(super) fn run(&mut self, call: CallShape) -> Result<Duration, ExecError> {
        let index = self.next % self.lone.len().max(1);
        self.next = index + 1;
        let step = self.context_step;
        let (Some(lone), Some(size)) = (self.lone.get_mut(index), self.sizes.get_mut(index)) else {
            return Err(bug!("a case has no place to run at").into());
        };
        if *size != Some(call) {
            prepare_call(lone, call, step, &mut self.noise)?;
            *size = Some(call);
        }
        let begin = Instant::now();
        lone.infer()?;
        Ok(begin.elapsed())
    }
}

/// Sizes a kernel for a call and fills its inputs: pages that were never written would all be one page of memory.
fn prepare_call(
    lone: &mut LoneKernel,
    call: CallShape,
    context_step: u32,
    noise: &mut Noise,
) -> Result<(), ExecError> {
    let tokens = call.tokens as usize;
    let context = call.context.max(call.tokens).next_multiple_of(context_step) as usize;
    lone.size(tokens, context)?;
    lone.set_position((call.context as usize).saturating_sub(tokens))?;
    let inputs: Vec<_> = lone.inputs().cloned().collect();
    for port in inputs {
        let rows = match port.role {
            Role::Key | Role::Value => context,
            Role::Hidden | Role::Query | Role::Attended => tokens,
            Role::Position | Role::Cos | Role::Sin | Role::Logits | Role::Vector => continue,
        };
        lone.set(port.role, noise.first(rows * port.width as usize))?;
    }
    Ok(())
}

/// Numbers in [−1, 1). Their values do not matter for speed, as long as none is denormal.
#[derive(Default)]
struct Noise(Vec<f32>);

impl Noise {
    fn first(&mut self, count: usize) -> &[f32] {
        let bits = |index: usize| (index as u32).wrapping_mul(0x9e37_79b1) >> 21;
        let known = self.0.len();
        let more = (known..count).map(|index| bits(index) as f32 / 1024.0 - 1.0);
        self.0.extend(more);
        self.0.get(..count).unwrap_or_default()
    }
}

/// Returns places of a kernel: enough for its weights, or the KV cache that it reads, to exceed any processor cache.
pub(super) fn places(manifest: &Manifest, kernel: u32, of: &Kernel) -> Vec<Place> {
    let all: Vec<Place> = match of.group {
        Group::Head if manifest.head.kernel.0 == kernel => vec![Place {
            layer: None,
            group: Group::Head,
        }],
        Group::Head => Vec::new(),
        group => (0..)
            .zip(&manifest.layers)
            .filter(|(_, layer)| {
                let used = match group {
                    Group::Qkv => &layer.qkv,
                    Group::Mha => &layer.mha,
                    _ => &layer.ffn,
                };
                used.kernel.0 == kernel
            })
            .map(|(layer, _)| Place {
                layer: Some(layer),
                group,
            })
            .collect(),
    };
    let weight_bytes: u64 = of
        .parameters
        .iter()
        .map(|weight| {
            let elements: u64 = weight.shape.iter().map(|dim| u64::from(*dim)).product();
            weight.element.bytes_of(elements).unwrap_or(u64::MAX)
        })
        .sum();
    let enough = match of.group {
        Group::Mha => ATTENTION_PLACES,
        _ => CACHE_BYTES.div_ceil(weight_bytes.max(1)),
    };
    let enough = usize::try_from(enough).unwrap_or(usize::MAX);
    all.into_iter().take(enough.max(1)).collect()
}

pub(super) fn tokens_max(group: Group, extent: Extent) -> u32 {
    match group {
        Group::Head => extent.batch,
        Group::Qkv | Group::Mha | Group::Ffn => extent.chunk_tokens,
    }
}

fn context_max(group: Group, manifest: &Manifest, extent: Extent) -> u32 {
    match group {
        Group::Mha => extent.context_tokens.min(manifest.model.context_tokens),
        Group::Qkv | Group::Ffn | Group::Head => 0,
    }
}

fn context_step(group: Group) -> u32 {
    match group {
        Group::Mha => CONTEXT_STEP as u32,
        Group::Qkv | Group::Ffn | Group::Head => 1,
    }
}

/// Returns the source of a variant that a device runs: the first that the ladder tries.
fn source(device: &DeviceFacts, variant: &Variant) -> RungSource {
    if device.gives_gpu(variant) {
        return RungSource::Gpu;
    }
    if device.programs.is_some() && variant.program.is_some() {
        return match device.gpu {
            Some(Ok(_)) => RungSource::Gpu,
            Some(Err(_)) | None => RungSource::Program,
        };
    }
    let mut blobs = variant.blobs.iter();
    let blob = blobs.position(|blob| device.accepts(blob).is_ok());
    blob.map_or(RungSource::Ir, RungSource::Blob)
}

/// Returns the devices that can be used.
fn usable(loader: &Loader) -> impl Iterator<Item = &DeviceFacts> {
    let devices = loader.devices().iter();
    devices.filter(|device| device.missing.is_none())
}

/// Returns the identities of the devices that can be used: names, drivers, properties.
pub fn identities(loader: &Loader) -> Vec<DeviceIdentity> {
    let openvino = loader.plugin_version().unwrap_or("not used");
    let identity = |device: &DeviceFacts| DeviceIdentity {
        class: device.role,
        openvino: device.name.clone(),
        name: device.full_name.trim().to_owned(),
        // Devices without a driver change only with OpenVINO.
        driver: match (&device.programs, &device.driver) {
            (Some(programs), _) => {
                format!("programs {VERSION}, {programs}{}", on_gpu(device))
            }
            (None, _) if device.has_gpu_first() => {
                format!("programs {VERSION}{}, OpenVINO {openvino}", on_gpu(device))
            }
            (None, Some(driver)) => format!("OpenVINO {openvino}, driver {driver}"),
            (None, None) => format!("OpenVINO {openvino}"),
        },
        properties: device_of(loader.soc(), device.role)
            .map(all_properties)
            .unwrap_or_default(),
    };
    usable(loader).map(identity).collect()
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The GPU that runs programs in a role, if one does.
fn on_gpu(device: &DeviceFacts) -> String {
    let gpu = device.gpu.as_ref().and_then(|gpu| gpu.as_ref().ok());
    gpu.map_or(String::new(), |gpu| format!(" on GPU {}", gpu.identity))
}

/// Returns the properties that kernels are compiled with, and those of attention where they differ.
fn all_properties(device: &Device) -> BTreeMap<String, String> {
    let of_mha = device.mha_properties.iter().map(|(name, value)| {
        let value = value.as_deref().unwrap_or("the plugin's own");
        (format!("mha: {name}"), value.to_owned())
    });
    device
        .properties
        .clone()
        .into_iter()
        .chain(of_mha)
        .collect()
}

/// More bytes than the last-level cache of any client processor has. Chosen.
const CACHE_BYTES: u64 = 96 << 20;

/// Number of KV caches that take turns. Chosen: at 4096 tokens they exceed a cache, and each costs a compilation.
const ATTENTION_PLACES: u64 = 4;
