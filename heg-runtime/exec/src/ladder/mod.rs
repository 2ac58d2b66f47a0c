//! The ladder: the rungs that a kernel runs on, given the devices and the rungs refused so far. Pure.
//!
//! For token-wise kernels the devices are NPU, iGPU, CPU, for attention iGPU, NPU, CPU, as far as the SoC has them
//! (HeteroLLM §4). A device that the CPU plays with programs has the CPU's variants, whatever its role: as programs, on
//! a GPU first if the role has one, and below them as IRs. On another device, each variant of its role is the bundle's
//! blob that fits, else another that fits, else it is compiled from its IR. If the variants of a device do not admit
//! every call, the next device follows. Every rung that is passed over is reported with its reason; a device that the
//! SoC does not list has no rungs.
//!
//! A GPU may also run the CPU's variants in a role whose own device OpenVINO has: programs come first there, and the
//! device's own variants where the GPU is missing or refuses a kernel.
//!
//! Kernels pass tensors to each other, so all of them share one element type: that of the first device of the
//! token-wise kernels. Beside accelerators with f16 ports the CPU therefore runs the iGPU's form rather than its own. A
//! GPU's programs convert rows as they are copied, so they go with any.

mod descent;
mod device;
#[cfg(test)]
mod tests;
mod variants;
mod whole;

use std::collections::BTreeMap;

use heg_artifacts::manifest::{
    Binding, ElementType, Elements, Kernel, Manifest, ShapeClass, Variant,
};
use heg_spec::{DeviceClass, Group, Sight};
use serde::{Deserialize, Serialize};

use descent::pass_gpu;
pub use descent::{Descent, DescentStep, Reason, summary};
pub use device::{DeviceFacts, GpuFacts, Misfit, NpuFacts};
use variants::{needed, of_class, programs_of_gpu, size, with_programs};

/// A way to run a kernel: one of its variants on the device that plays a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rung {
    /// The role in the SoC. The variant may be of another class, if a device runs one that was meant for another.
    pub role: DeviceClass,
    /// Index into [`Kernel::variants`].
    pub variant: usize,
    /// The part of the variant that the device is given.
    pub source: RungSource,
}

/// The part of a variant that a device is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RungSource {
    /// The CPU program, which our own kernels run.
    Program,
    /// The CPU program, which a GPU runs.
    Gpu,
    /// One of [`Variant::blobs`], compiled ahead of time.
    Blob(usize),
    /// The IR, which the device compiles.
    Ir,
}

/// The largest call that a kernel will see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) tokens: usize,
    pub(crate) context: usize,
}

/// The largest calls that a model will see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Calls {
    /// Tokens of a chunk, or of a decode batch.
    pub(crate) tokens: usize,
    /// Sequences of a batch: the rows that reach the head.
    pub(crate) rows: usize,
    /// Visible tokens of a sequence.
    pub(crate) context: usize,
}

impl Calls {
    /// The largest call of a kernel.
    pub(crate) fn of(self, group: Group) -> Need {
        let tokens = match group {
            Group::Qkv | Group::Mha | Group::Ffn => self.tokens,
            Group::Head => self.rows,
        };
        Need {
            tokens,
            context: self.context,
        }
    }
}

/// Rungs that were tried and cannot be used, with the reasons.
pub(crate) type Refused = BTreeMap<Rung, Reason>;

/// The rungs of a kernel: the first that admits a call runs it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Plan {
    pub(crate) rungs: Vec<Rung>,
    pub(crate) descents: Vec<Descent>,
    /// Whether every call has a rung.
    pub(crate) complete: bool,
    passed: Vec<(DescentStep, Reason)>,
}

/// Devices and activations that all kernels of a model share.
#[derive(Debug, Clone)]
pub(crate) struct Ladder {
    devices: Vec<DeviceFacts>,
    /// The tokens that a token sees: a text that is seen as a whole runs in CPU programs alone.
    sight: Sight,
    elements: Elements,
}

impl Ladder {
    /// Makes the ladder of a model on the devices of a SoC; of several with one role, the best comes first.
    pub(crate) fn new(manifest: &Manifest, mut devices: Vec<DeviceFacts>) -> Self {
        let sight = manifest.vectors.map(|vectors| vectors.sight);
        let sight = sight.unwrap_or_default();
        if !sight.is_causal() {
            devices.iter_mut().for_each(DeviceFacts::keep_to_programs);
        }
        // Variants of the role's device, if it can be used and has all token-wise kernels.
        let leading = |role: &DeviceClass| {
            let mut usable = devices.iter().filter(|device| device.missing.is_none());
            let class = usable.find(|device| device.role == *role)?.first_variants();
            let mut kernels = manifest
                .kernels
                .iter()
                .filter(|kernel| kernel.group != Group::Mha);
            let has_all = kernels.all(|kernel| of_class(kernel, class).next().is_some());
            has_all.then_some(class)
        };
        let elements = preference(Group::Ffn)
            .iter()
            .find_map(leading)
            .and_then(|class| {
                let (_, variant) = manifest
                    .kernels
                    .iter()
                    .find_map(|kernel| of_class(kernel, class).next())?;
                Some(variant.elements())
            });
        Self {
            devices,
            sight,
            elements: elements.unwrap_or(Elements::new(ElementType::F32, None)),
        }
    }

    /// Returns the part of the ladder on devices that play one of `roles`.
    pub(crate) fn only(&self, roles: &[DeviceClass]) -> Self {
        let mut part = self.clone();
        part.devices.retain(|device| roles.contains(&device.role));
        part
    }

    /// Returns the ladder without the devices that are lost, for the reason that `why_lost` gives.
    pub(crate) fn without(mut self, why_lost: impl Fn(&DeviceFacts) -> Option<String>) -> Self {
        for device in &mut self.devices {
            if device.missing.is_none() {
                device.missing = why_lost(device);
            }
        }
        self
    }

    /// Element types at the ports of a form: those of its variant, but for programs on a GPU, which convert.
    pub(crate) fn elements_of(&self, rung: Rung, variant: &Variant) -> Elements {
        match rung.source {
            RungSource::Gpu => self.elements,
            RungSource::Program | RungSource::Blob(_) | RungSource::Ir => variant.elements(),
        }
    }

    /// Element types that all kernels of the model share.
    pub(crate) fn elements(&self) -> Elements {
        self.elements
    }

    /// The devices, in the order of the SoC.
    pub(crate) fn devices(&self) -> &[DeviceFacts] {
        &self.devices
    }

    /// The device that plays a role.
    pub(crate) fn device(&self, role: DeviceClass) -> Option<&DeviceFacts> {
        self.devices.iter().find(|device| device.role == role)
    }

    /// Returns the largest calls that these devices can be given: as many tokens as the first usable device
    /// of every token-wise kernel takes, and no more than there is attention for.
    pub(crate) fn largest_calls(&self, manifest: &Manifest) -> Calls {
        let mut most = Calls {
            tokens: usize::MAX,
            rows: usize::MAX,
            context: manifest.model.context_tokens as usize,
        };
        for kernel in &manifest.kernels {
            let sizes = |device| {
                let sizes = self
                    .variants(kernel, device)
                    .map(|(_, variant)| size(variant.shape));
                sizes.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))
            };
            let mut sizes = self.roles(kernel).filter_map(sizes);
            let largest = match kernel.group {
                Group::Mha => sizes.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1))),
                _ => sizes.next(),
            };
            let (tokens, context) = largest.unwrap_or((usize::MAX, usize::MAX));
            match kernel.group {
                Group::Head => most.rows = most.rows.min(tokens),
                _ => most.tokens = most.tokens.min(tokens),
            }
            most.context = most.context.min(context);
        }
        most
    }

    /// Returns the largest static forms, on any device, that these calls may need: the sizes that rows are padded to.
    pub(crate) fn padding(&self, manifest: &Manifest, calls: Calls) -> Calls {
        let mut most = Calls {
            tokens: 0,
            rows: 0,
            context: 0,
        };
        for kernel in &manifest.kernels {
            for device in self.roles(kernel) {
                let variants: Vec<_> = self.variants(kernel, device).collect();
                for (_, variant) in needed(&variants, calls.of(kernel.group)) {
                    let known = |size: Option<u32>| size.map_or(0, |size| size as usize);
                    let tokens = match kernel.group {
                        Group::Head => &mut most.rows,
                        _ => &mut most.tokens,
                    };
                    *tokens = (*tokens).max(known(variant.shape.chunk()));
                    most.context = most.context.max(known(variant.shape.bucket()));
                }
            }
        }
        most
    }

    /// Returns every rung that these devices could run, best first, whether needed or not.
    pub(crate) fn all(&self, kernel: &Kernel) -> Vec<Rung> {
        let devices = self.roles(kernel);
        let rungs = devices.flat_map(|device| {
            let variants = self.variants(kernel, device);
            variants.flat_map(|(index, variant)| self.sources(device, index, variant).0)
        });
        rungs.collect()
    }

    /// Returns the rungs of a kernel for calls up to `need`, without those that were refused.
    pub(crate) fn plan(&self, kernel: &Kernel, need: Need, refused: &Refused) -> Plan {
        let mut plan = Plan::default();
        let roles = preference(kernel.group).iter();
        for device in roles.filter_map(|role| self.device(*role)) {
            self.add_device(device, kernel, need, refused, &mut plan);
            if plan.complete {
                break;
            }
        }
        plan.land(kernel, None);
        plan
    }

    /// Adds the rungs of a device, until they admit every call, and the reasons of those that it passes over.
    fn add_device(
        &self,
        device: &DeviceFacts,
        kernel: &Kernel,
        need: Need,
        refused: &Refused,
        plan: &mut Plan,
    ) {
        let first = plan.rungs.len();
        let step = DescentStep::device(device);
        if device.programs.is_none() {
            let mut programs = with_programs(kernel);
            if let Some((index, variant)) = programs.next() {
                pass_gpu(device, kernel, (index, variant), plan);
            }
        }
        if let Some(message) = &device.missing {
            plan.pass(step, Reason::Missing(message.clone()));
            return;
        }
        let of_gpu: Vec<_> = programs_of_gpu(kernel, device).collect();
        let own: Vec<_> = self.own_variants(kernel, device).collect();
        if of_gpu.is_empty() && own.is_empty() {
            plan.pass(step, Reason::NoVariant);
            return;
        }
        for mut variants in [of_gpu, own] {
            variants.sort_by_key(|(_, variant)| size(variant.shape));
            for (index, variant) in needed(&variants, need) {
                self.choose(device, kernel, (index, variant), refused, plan);
            }
            let admits = |rung: &Rung| {
                let variant = kernel.variants.get(rung.variant);
                variant.is_some_and(|variant| variant.shape.admits(need.tokens, need.context))
            };
            plan.complete = plan.rungs[first..].iter().any(admits);
            if plan.complete {
                return;
            }
        }
        if plan.rungs.len() > first {
            let Need { tokens, context } = need;
            plan.pass(step, Reason::TooSmall { tokens, context });
        }
    }

    /// Adds the best source of a variant that was not refused to the plan; better ones are passed over.
    fn choose(
        &self,
        device: &DeviceFacts,
        kernel: &Kernel,
        (index, variant): (usize, &Variant),
        refused: &Refused,
        plan: &mut Plan,
    ) {
        let (rungs, misfits) = self.sources(device, index, variant);
        if device.programs.is_some() {
            pass_gpu(device, kernel, (index, variant), plan);
        }
        let is_blob = |rung: &Rung| matches!(rung.source, RungSource::Blob(_));
        if !rungs.iter().any(is_blob) {
            // If no blob fits, one reason is enough: that of the nearest.
            if let Some((misfit, at)) = misfits.into_iter().max() {
                let rung = Rung {
                    role: device.role,
                    variant: index,
                    source: RungSource::Blob(at),
                };
                plan.pass(
                    DescentStep::of(device, kernel, rung),
                    Reason::Misfit(misfit),
                );
            }
        }
        for rung in rungs {
            let step = DescentStep::of(device, kernel, rung);
            match refused.get(&rung) {
                Some(Reason::Refused(why)) if rung.source == RungSource::Ir => {
                    plan.pass_ir(step, why);
                }
                Some(reason) => plan.pass(step, reason.clone()),
                None => {
                    plan.land(kernel, Some(&step));
                    plan.rungs.push(rung);
                    return;
                }
            }
        }
    }

    /// Returns the sources of a variant that a device accepts, best first, and the reasons why it rejects the others.
    fn sources(
        &self,
        device: &DeviceFacts,
        index: usize,
        variant: &Variant,
    ) -> (Vec<Rung>, Vec<(Misfit, usize)>) {
        let rung = |source| Rung {
            role: device.role,
            variant: index,
            source,
        };
        let mut misfits = Vec::new();
        let mut rungs = Vec::new();
        if device.gives_gpu(variant) {
            return (vec![rung(RungSource::Gpu)], misfits);
        }
        if device.programs.is_some() && variant.program.is_some() {
            if let Some(Ok(_)) = device.gpu {
                rungs.push(rung(RungSource::Gpu));
            }
            rungs.push(rung(RungSource::Program));
        }
        for (at, blob) in variant.blobs.iter().enumerate() {
            match device.accepts(blob) {
                Ok(()) => rungs.push(rung(RungSource::Blob(at))),
                Err(misfit) => misfits.push((misfit, at)),
            }
        }
        if self.sight.is_causal() {
            rungs.push(rung(RungSource::Ir));
        }
        (rungs, misfits)
    }

    fn roles(&self, kernel: &Kernel) -> impl Iterator<Item = &DeviceFacts> {
        let roles = preference(kernel.group).iter();
        roles
            .filter_map(|role| self.device(*role))
            .filter(|device| device.missing.is_none())
    }

    /// Shapes of a kernel's variants that the device of a role can run.
    pub(crate) fn shapes(&self, kernel: &Kernel, role: DeviceClass) -> Vec<ShapeClass> {
        let variants = self
            .device(role)
            .map(|device| self.variants(kernel, device));
        let variants = variants.into_iter().flatten();
        variants.map(|(_, variant)| variant.shape).collect()
    }

    /// Returns the variants that a device can run: those that a GPU runs for it, and its own.
    fn variants<'m>(
        &self,
        kernel: &'m Kernel,
        device: &DeviceFacts,
    ) -> impl Iterator<Item = (usize, &'m Variant)> {
        programs_of_gpu(kernel, device).chain(self.own_variants(kernel, device))
    }

    /// Returns a device's own variants, or the iGPU's if the CPU's have other activations.
    fn own_variants<'m>(
        &self,
        kernel: &'m Kernel,
        device: &DeviceFacts,
    ) -> impl Iterator<Item = (usize, &'m Variant)> {
        let shared = self.elements;
        let agrees = move |variant: &Variant| variant.elements() == shared;
        let own = device.variants();
        let has_own = of_class(kernel, own).any(|(_, variant)| agrees(variant));
        let class = match own {
            DeviceClass::Cpu if !has_own => DeviceClass::Igpu,
            own => own,
        };
        of_class(kernel, class).filter(move |(_, variant)| agrees(variant))
    }
}

impl Plan {
    /// Notes a step that was passed over.
    fn pass(&mut self, from: DescentStep, reason: Reason) {
        self.passed.push((from, reason));
    }

    /// Notes that a device refused the IR of a variant. One that refused its blob too has one cause for both: that of the
    /// blob, since a driver without its compiler takes no IR whatever the blob's trouble is.
    fn pass_ir(&mut self, from: DescentStep, why: &str) {
        let of_blob = self.passed.last_mut().filter(|(blob, _)| {
            let is_same =
                (&blob.device, blob.role, &blob.shape) == (&from.device, from.role, &from.shape);
            is_same
                && blob
                    .source
                    .as_ref()
                    .is_some_and(|source| source.starts_with("blob"))
        });
        match of_blob {
            Some((_, Reason::Refused(first))) if first.as_str() == why => {}
            Some((_, Reason::Refused(first))) => {
                first.push_str(&format!("; and its IR is refused too: {why}"));
            }
            _ => self.pass(from, Reason::Refused(why.to_owned())),
        }
    }

    /// Records the step that follows those passed over since the last one.
    fn land(&mut self, kernel: &Kernel, to: Option<&DescentStep>) {
        for (from, reason) in self.passed.drain(..) {
            self.descents.push(Descent {
                kernel: kernel.name.clone(),
                from,
                to: to.cloned(),
                reason,
            });
        }
    }
}

/// Device classes for a group, best first.
pub(crate) fn preference(group: Group) -> &'static [DeviceClass] {
    match group {
        Group::Qkv | Group::Ffn | Group::Head => {
            &[DeviceClass::Npu, DeviceClass::Igpu, DeviceClass::Cpu]
        }
        Group::Mha => &[DeviceClass::Igpu, DeviceClass::Npu, DeviceClass::Cpu],
    }
}

/// Whether a compiled form holds the weights of one place.
pub(crate) fn holds_weights(kernel: &Kernel, variant: &Variant) -> bool {
    variant.binding == Binding::Constant && !kernel.parameters.is_empty()
}
