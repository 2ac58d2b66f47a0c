//! Forms that OpenVINO runs: imports blobs, compiles IR, and binds weights.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use heg_artifacts::SectionId;
use heg_artifacts::manifest::{Binding, ShapeClass, Weight};
use heg_openvino::{CompiledModel, TensorType};
use heg_spec::{Group, bug};

use super::OpenVino;
use super::compiled::{is_cpu, plugin_properties};
use super::form::{Compiled, PluginForm};
use super::ir;
use super::sections::Sections;
use super::tree::TreeRows;
use crate::error::{ExecError, openvino};
use crate::ladder::{Rung, RungSource, holds_weights};
use crate::mem::tensor_element;
use crate::parts::Parts;
use crate::soc::properties_of;

impl OpenVino {
    /// A request of a compiled form, with the weights of a place bound, and tokens that come one after the other.
    pub(super) fn request(
        &self,
        parts: &Parts<'_>,
        compiled: &Compiled,
        sections: &Sections,
    ) -> Result<PluginForm, ExecError> {
        let request = compiled
            .model
            .request()
            .map_err(openvino(format!("request for `{}`", parts.kernel.name)))?;
        let mut form = PluginForm {
            request,
            band: Arc::clone(&compiled.band),
            watch: self.watch(&parts.device.openvino),
            tree: self.tree(parts)?,
            is_attention: parts.kernel.group == Group::Mha,
        };
        if let Some(tree) = &form.tree {
            form.request
                .bind_input(parts.kernel.inputs.len(), tree.tensor()?)
                .map_err(openvino(format!(
                    "bind the tree of `{}`",
                    parts.kernel.name
                )))?;
        }
        if parts.variant.binding == Binding::Input {
            self.bind_weights(parts, &mut form, sections)?;
        }
        Ok(form)
    }

    /// The input for trees, if a form has one.
    fn tree(&self, parts: &Parts<'_>) -> Result<Option<TreeRows>, ExecError> {
        let rows = parts.shape.chunk().filter(|_| parts.variant.takes_trees);
        let element = tensor_element(parts.elements.activations);
        rows.map(|rows| TreeRows::new(rows as usize, element, &self.lending().home()))
            .transpose()
    }

    /// Compiles a form without weights for the first place that needs it; the other places share it.
    pub(super) fn compiled_once(
        &self,
        parts: &Parts<'_>,
        rung: Rung,
    ) -> Result<Compiled, ExecError> {
        // What a panicking thread left is a map of whole entries.
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (parts.used.kernel.0, rung);
        match shared.get(&key) {
            Some(Ok(compiled)) => return Ok(compiled.clone()),
            Some(Err(message)) => {
                return Err(ExecError::Refused {
                    kernel: parts.kernel.name.clone(),
                    message: message.clone(),
                });
            }
            None => {}
        }
        let outcome = self.compiled(parts, rung, &self.sections);
        match &outcome {
            Ok(compiled) => {
                shared.insert(key, Ok(compiled.clone()));
            }
            Err(error) => {
                if let Some(message) = error.refusal() {
                    shared.insert(key, Err(message));
                }
            }
        }
        outcome
    }

    /// Imports or compiles a form, with a priority of its own.
    pub(super) fn compiled(
        &self,
        parts: &Parts<'_>,
        rung: Rung,
        sections: &Sections,
    ) -> Result<Compiled, ExecError> {
        Ok(Compiled {
            model: self.model(parts, rung, sections)?,
            band: Arc::default(),
        })
    }

    /// Imports a blob, takes a compiled IR from the cache, or compiles the IR.
    pub(super) fn model(
        &self,
        parts: &Parts<'_>,
        rung: Rung,
        sections: &Sections,
    ) -> Result<CompiledModel, ExecError> {
        let name = &parts.kernel.name;
        let device = &parts.device.openvino;
        self.watch(device).check()?;
        if let RungSource::Blob(at) = rung.source {
            let blob = parts.variant.blobs.get(at);
            let blob = blob.ok_or_else(|| bug!("a rung names a blob that its variant lacks"))?;
            let bytes = sections.bytes(blob.section)?;
            // Import takes no properties; what is compiled is given its own, and heeds none of these.
            for (property, value) in properties_of(parts.device, parts.kernel.group, parts.variant)
            {
                self.core()?
                    .set_property(device, property, value)
                    .map_err(openvino(format!("set `{property}` of `{device}`")))?;
            }
            return self
                .core()?
                .import(&bytes, device)
                .map_err(openvino(format!("import a blob of `{name}` on `{device}`")));
        }
        // What is cached is no part of a copy that is there to make everything anew, and names of forms that hold weights
        // would not say whose.
        let keeps = !sections.is_copy() && !holds_weights(parts.kernel, parts.variant);
        let cache = self.compiled.as_ref().filter(|_| keeps);
        let keep = cache.and_then(|cache| {
            let literals = self.bundle.manifest().literals;
            cache
                .key(
                    rung.role,
                    parts.device,
                    (parts.variant, parts.shape),
                    literals,
                )
                .map(|key| (cache, key))
        });
        if let Some((cache, key)) = &keep
            && let Some(compiled) = cache.recall(key, self.core()?, device)
        {
            return Ok(compiled);
        }
        let compiled = self.compile(parts, sections)?;
        if let Some((cache, key)) = &keep {
            cache.remember(key, &compiled);
        }
        Ok(compiled)
    }

    /// Compiles a variant whose constants are the sections of the place. Hashes are checked before OpenVINO sees a byte.
    pub(super) fn compile(
        &self,
        parts: &Parts<'_>,
        sections: &Sections,
    ) -> Result<CompiledModel, ExecError> {
        let name = &parts.kernel.name;
        let constants = if holds_weights(parts.kernel, parts.variant) {
            parts.weights.as_slice()
        } else {
            &[]
        };
        let extents = constants
            .iter()
            .map(|id| sections.extent(*id))
            .collect::<Result<Vec<_>, ExecError>>()?;
        let literals = sections.extent(self.bundle.manifest().literals)?;
        let text = self
            .bundle
            .section_copy(parts.variant.ir)
            .map_err(ExecError::Section)?;
        let mut xml = ir::resolve(&text, name, &extents, literals)?;
        if let (Some(from), Some(to)) = (parts.variant.shape.bucket(), parts.shape.bucket())
            && from != to
        {
            xml = ir::narrow(&xml, name, from, to)?;
        }
        if let (ShapeClass::Dynamic, ShapeClass::Static { tokens }) =
            (parts.variant.shape, parts.shape)
        {
            xml = ir::fix_rows(&xml, tokens).ok_or_else(|| ExecError::Refused {
                kernel: name.clone(),
                message: format!("its IR has no rows to fix to {tokens}"),
            })?;
        }
        let model = self
            .core()?
            .read_model(xml.as_bytes(), Some(&sections.whole()?))
            .map_err(openvino(format!("read the IR of kernel `{name}`")))?;
        let device = parts.device;
        let kept = match &self.cache {
            Some(cache) => plugin_properties(cache, &device.openvino),
            None => Vec::new(),
        };
        let of_device = properties_of(device, parts.kernel.group, parts.variant);
        let of_device = of_device.chain(kept.iter().map(|(name, value)| (name, value)));
        let bound = is_cpu(&device.openvino).then_some(SHAPES_KEPT);
        let properties: BTreeMap<&str, &str> = bound
            .into_iter()
            .chain(of_device.map(|(name, value)| (name.as_str(), value.as_str())))
            .collect();
        let properties: Vec<(&str, &str)> = properties.into_iter().collect();
        self.core()?
            .compile(&model, &device.openvino, &properties)
            .map_err(openvino(format!(
                "compile kernel `{name}` for `{}`",
                device.openvino
            )))
    }

    /// Binds the weights of a place behind the activation ports: values, scales and centres, weight after weight.
    pub(super) fn bind_weights(
        &self,
        parts: &Parts<'_>,
        form: &mut PluginForm,
        sections: &Sections,
    ) -> Result<(), ExecError> {
        let weights = &self.bundle.manifest().weights;
        let used = parts.used.weights.iter();
        let tensors = used
            .filter_map(|id| weights.get(id.0 as usize))
            .flat_map(weight_tensors);
        let first = parts.kernel.inputs.len() + usize::from(form.tree.is_some());
        for (port, (id, element, shape)) in (first..).zip(tensors) {
            let tensor = sections.tensor(id, element, &shape)?;
            form.request
                .bind_input(port, tensor)
                .map_err(openvino(format!("bind {}", self.bundle.label(id))))?;
        }
        Ok(())
    }
}

/// The sections of a weight, with the types and shapes that IRs take them in: columns of groups as [groups, columns of a
/// group].
fn weight_tensors(weight: &Weight) -> Vec<(SectionId, TensorType, Vec<usize>)> {
    let shape: Vec<usize> = weight.shape.iter().map(|dim| *dim as usize).collect();
    let rows = shape[0];
    let element = tensor_element(weight.element);
    match weight.group_columns {
        None => {
            let of_rows = weight.scales.into_iter().chain(weight.centres);
            let of_rows = of_rows.map(|id| (id, TensorType::F32, vec![1, rows]));
            let values = (weight.values, element, shape);
            std::iter::once(values).chain(of_rows).collect()
        }
        Some(group) => {
            let group = group.count() as usize;
            let groups = shape[1] / group;
            let of_groups = |shape| move |id| (id, TensorType::F16, shape);
            let scales = weight.scales.map(of_groups(vec![rows, groups, 1]));
            let centres = weight.centres.map(of_groups(vec![rows, groups]));
            let values = (weight.values, element, vec![rows, groups, group]);
            std::iter::once(values)
                .chain(scales)
                .chain(centres)
                .collect()
        }
    }
}

/// Number of input shapes for which the CPU plugin keeps code, for each compiled kernel and kind of node. Chosen: a
/// decode batch of each size and some lengths of prompts. With the plugin's default of 5000 a server of short prompts
/// grew from 80 to 700 MB.
const SHAPES_KEPT: (&str, &str) = ("CPU_RUNTIME_CACHE_CAPACITY", "64");
