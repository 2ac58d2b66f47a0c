//! Places: where a model uses a kernel, and with which weights.

use heg_artifacts::SectionId;
use heg_artifacts::manifest::{Kernel, KernelUse, Manifest, Weight};
use heg_spec::Group;

use crate::error::ExecError;
use crate::stage_orders::StageOrders;
use heg_sched::{Launch, LayerKernel, WorkStage};

/// A place where a kernel is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The layer; `None` for the head.
    pub layer: Option<u32>,
    /// The op group.
    pub group: Group,
}

impl From<Launch> for Place {
    fn from(launch: Launch) -> Self {
        Self {
            layer: launch.layer,
            group: launch.group,
        }
    }
}

/// Returns the places in the order in which they are prepared: the order of execution, except that the head comes after
/// the first layer. The head takes longest to prepare, and at the end it would keep one thread busy while the others are
/// done. Layers with the same attention kernel share one place for it.
pub(super) fn all_places(manifest: &Manifest) -> Result<Vec<Place>, ExecError> {
    let order = StageOrders::of(manifest)?.at(WorkStage::Prefill);
    let mut places = Vec::new();
    let mut attention = Vec::new();
    for (index, layer) in (0..).zip(&manifest.layers) {
        for kernel in order.kernels() {
            let is_shared = kernel == LayerKernel::Mha && attention.contains(&layer.mha.kernel);
            if !is_shared {
                places.push(Place {
                    layer: Some(index),
                    group: kernel.into(),
                });
            }
        }
        attention.push(layer.mha.kernel);
        if index == 0 {
            places.push(Place {
                layer: None,
                group: Group::Head,
            });
        }
    }
    Ok(places)
}

/// Returns the place whose forms serve this one: layers with the same attention kernel share the first one's.
pub(super) fn shared_place(manifest: &Manifest, place: Place) -> Place {
    let Place {
        layer: Some(layer),
        group: Group::Mha,
    } = place
    else {
        return place;
    };
    let kernel = manifest
        .layers
        .get(layer as usize)
        .map(|layer| layer.mha.kernel);
    let first = manifest
        .layers
        .iter()
        .position(|layer| Some(layer.mha.kernel) == kernel);
    Place {
        layer: first.map(|first| first as u32),
        group: Group::Mha,
    }
}

pub(super) fn place_use(manifest: &Manifest, place: Place) -> Result<&KernelUse, ExecError> {
    let Some(layer) = place.layer else {
        return Ok(&manifest.head);
    };
    let layer = manifest.layers.get(layer as usize).ok_or(unknown(place))?;
    match place.group {
        Group::Qkv => Ok(&layer.qkv),
        Group::Mha => Ok(&layer.mha),
        Group::Ffn => Ok(&layer.ffn),
        Group::Head => Err(unknown(place)),
    }
}

/// The kernel of a place.
pub(super) fn place_kernel(manifest: &Manifest, place: Place) -> Result<&Kernel, ExecError> {
    let used = place_use(manifest, place)?;
    let kernel = manifest.kernels.get(used.kernel.0 as usize);
    kernel.ok_or(unknown(place))
}

/// Sections of a place's weights, in the order in which IRs number them.
pub(super) fn use_sections(manifest: &Manifest, used: &KernelUse) -> Vec<SectionId> {
    used.weights
        .iter()
        .filter_map(|id| manifest.weights.get(id.0 as usize))
        .flat_map(Weight::sections)
        .collect()
}

pub(super) fn unknown(place: Place) -> ExecError {
    ExecError::Launch {
        group: place.group,
        layer: place.layer,
    }
}
