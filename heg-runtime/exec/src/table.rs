//! The kernel and the forms of every launch, by layer and op group: found once, when all kernels are ready.

use std::collections::BTreeMap;
use std::sync::Arc;

use heg_artifacts::manifest::{Kernel, Manifest, RopeTable};
use heg_spec::Group;

use super::form::{BackendIndex, Form};
use super::place::{Place, place_use, shared_place, unknown};
use super::prepared::Prepared;
use crate::backend::PairedRoles;
use crate::error::ExecError;
use crate::ladder::Rung;
use crate::pair_ways::{PairWay, PairWays};
use heg_sched::Launch;

/// The forms at every place of a model. Empty until all kernels are ready.
#[derive(Default)]
pub(super) struct FormTable {
    prepared: Vec<(Place, Prepared)>,
    /// The ways of a pair, if either device runs every place alone, too.
    pub(super) ways: Option<PairWays>,
    /// The way of the pass that runs.
    pub(super) way: PairWay,
    /// The targets of each layer: qkv, attention, ffn.
    layers: Vec<[Target; 3]>,
    head: Option<Target>,
}

/// The kernel and the forms that a launch runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) launch: Launch,
    /// Index into [`FormTable::prepared`].
    prepared: usize,
    /// Index into [`Manifest::kernels`].
    kernel: usize,
    /// Index into [`Manifest::rope`].
    rope: Option<usize>,
}

impl Target {
    fn new(
        manifest: &Manifest,
        prepared: &[(Place, Prepared)],
        launch: Launch,
    ) -> Result<Self, ExecError> {
        let used = place_use(manifest, Place::from(launch))?;
        let place = shared_place(manifest, Place::from(launch));
        let ready = prepared.binary_search_by_key(&place, |(place, _)| *place);
        Ok(Self {
            launch,
            prepared: ready.map_err(|_| unknown(place))?,
            kernel: used.kernel.0 as usize,
            rope: used.rope.map(|rope| rope.0 as usize),
        })
    }

    /// Returns the kernel in the bundle.
    pub(super) fn kernel(self, manifest: &Manifest) -> Result<&Kernel, ExecError> {
        manifest.kernels.get(self.kernel).ok_or(self.unknown())
    }

    /// Returns the rotary table that the kernel reads, if any.
    pub(super) fn rope(self, manifest: &Manifest) -> Option<&RopeTable> {
        manifest.rope.get(self.rope?)
    }

    /// Returns the error for a launch that no form can run.
    pub(super) fn unknown(self) -> ExecError {
        unknown(Place::from(self.launch))
    }
}

impl FormTable {
    /// Makes the table of a model whose places are all ready, for a pair if it is one.
    ///
    /// # Errors
    ///
    /// [`ExecError::Launch`] if a place is missing.
    pub(super) fn new(
        manifest: &Manifest,
        ready: BTreeMap<Place, Prepared>,
        pair: Option<&Arc<PairedRoles>>,
    ) -> Result<Self, ExecError> {
        let prepared: Vec<(Place, Prepared)> = ready.into_iter().collect();
        let target = |layer, group| Target::new(manifest, &prepared, Launch { layer, group });
        let layers = (0..manifest.layers.len() as u32).map(|layer| {
            Ok([
                target(Some(layer), Group::Qkv)?,
                target(Some(layer), Group::Mha)?,
                target(Some(layer), Group::Ffn)?,
            ])
        });
        let mut all = prepared.iter();
        let alone = match all.all(|(_, prepared)| prepared.partners.is_some()) {
            true => Some(PairWay::Partner),
            false => pair.and_then(|pair| pair.way_of_programs()),
        };
        Ok(Self {
            ways: alone.map(PairWays::new),
            way: PairWay::default(),
            layers: layers.collect::<Result<_, ExecError>>()?,
            head: Some(target(None, Group::Head)?),
            prepared,
        })
    }

    /// Whether kernels are not ready yet.
    pub(super) fn is_empty(&self) -> bool {
        self.prepared.is_empty()
    }

    /// Returns the kernel and the forms that a launch runs.
    pub(super) fn target(&self, launch: Launch) -> Result<Target, ExecError> {
        let layer = || self.layers.get(launch.layer? as usize);
        let target = match launch.group {
            Group::Qkv => layer().map(|[qkv, _, _]| qkv),
            Group::Mha => layer().map(|[_, mha, _]| mha),
            Group::Ffn => layer().map(|[_, _, ffn]| ffn),
            Group::Head => self.head.as_ref().filter(|_| launch.layer.is_none()),
        };
        target.copied().ok_or(unknown(Place::from(launch)))
    }

    /// Returns the form of a target for `tokens` tokens over `context` visible rows of the cache; 0 if no cache is
    /// read.
    pub(super) fn form(
        &mut self,
        target: Target,
        tokens: usize,
        context: usize,
    ) -> Result<&mut Form, ExecError> {
        let way = self.way;
        let prepared = self.prepared(target)?;
        let mut forms = prepared.forms.iter_mut();
        if let (PairWay::Partner, Some(partners)) = (way, &mut prepared.partners) {
            return Ok(partners);
        }
        forms
            .find(|form| form.shape.admits(tokens, context))
            .ok_or(target.unknown())
    }

    /// Returns the same form as [`form`](Self::form), read-only.
    pub(super) fn ready(
        &self,
        target: Target,
        tokens: usize,
        context: usize,
    ) -> Result<&Form, ExecError> {
        let prepared = self.prepared.get(target.prepared);
        let (_, prepared) = prepared.ok_or(target.unknown())?;
        if let (PairWay::Partner, Some(partners)) = (self.way, &prepared.partners) {
            return Ok(partners);
        }
        let mut forms = prepared.forms.iter();
        forms
            .find(|form| form.shape.admits(tokens, context))
            .ok_or(target.unknown())
    }

    /// Returns the rungs of the forms that a launch may run, in order.
    pub(super) fn rungs(&self, launch: Launch) -> Result<Vec<Rung>, ExecError> {
        let target = self.target(launch)?;
        let prepared = self.prepared.get(target.prepared);
        let (_, prepared) = prepared.ok_or(target.unknown())?;
        Ok(prepared.forms.iter().map(|form| form.rung).collect())
    }

    /// Returns the back end that runs a target for `tokens` tokens over `context` visible rows of the cache: that of
    /// the form that admits the call, or else of all forms of the place, for which it may cut the call.
    pub(super) fn backend(
        &self,
        target: Target,
        tokens: usize,
        context: usize,
    ) -> Result<BackendIndex, ExecError> {
        if let Ok(form) = self.ready(target, tokens, context) {
            return Ok(form.backend);
        }
        let prepared = self.prepared.get(target.prepared);
        let backend = prepared.and_then(|(_, prepared)| prepared.backend);
        backend.ok_or(target.unknown())
    }

    /// Returns all forms of a target.
    pub(super) fn prepared(&mut self, target: Target) -> Result<&mut Prepared, ExecError> {
        let prepared = self.prepared.get_mut(target.prepared);
        prepared
            .map(|(_, prepared)| prepared)
            .ok_or(target.unknown())
    }

    /// Returns the forms at a place, if it is one of the model's.
    pub(super) fn at(&mut self, place: Place) -> Option<&mut Prepared> {
        let mut all = self.iter_mut();
        all.find_map(|(other, prepared)| (other == place).then_some(prepared))
    }

    /// Returns every place with its forms, in order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Place, &mut Prepared)> {
        self.prepared
            .iter_mut()
            .map(|(place, prepared)| (*place, prepared))
    }
}
