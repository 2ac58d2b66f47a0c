//! Makes a form ready to run, using the back end of its rung.
//!
//! The `ladder` chooses the forms; the back end (`backend`) makes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use heg_artifacts::Bundle;
use heg_artifacts::manifest::ShapeClass;
use heg_costs::first_kernels;
use heg_files::OwnFolder;
use heg_openvino::{Core, Memory};
use heg_sched::MachineLanes;
use heg_spec::policy::{PairLevel, Pairing};
use heg_spec::{DeviceClass, Group, Soc};

use crate::backend::{
    self, Backend, MovedCaches, Origin, PairLanes, PairSetup, PairedRoles, PartnerOffer,
};
use crate::duty::Duty;
use crate::error::{ExecError, Loss};
use crate::form::{BackendIndex, Form};
use crate::gpu_examiner::GpuExaminer;
use crate::known_cuts::KnownCuts;
use crate::ladder::{DeviceFacts, Ladder, Rung};
use crate::mem::MemoryHome;
use crate::parts::Parts;
use crate::place::{Place, place_kernel, place_use, unknown, use_sections};
use crate::soc::{as_played, device_of};

/// Makes forms ready to run; shared by the threads that load.
pub struct Loader {
    bundle: Arc<Bundle>,
    backends: Vec<Box<dyn Backend>>,
    soc: Soc,
    ladder: Ladder,
    cache: Option<OwnFolder>,
}

impl Loader {
    /// Opens a bundle on the devices of `soc`, whose names and drivers it reads. OpenVINO is loaded only if a device
    /// needs it: a CPU that runs programs does not.
    ///
    /// # Errors
    ///
    /// [`ExecError::OpenVino`] if its libraries are needed and missing.
    pub fn open(bundle: Arc<Bundle>, soc: Soc) -> Result<Self, ExecError> {
        let backends = backend::all(&bundle, &soc, None, None)?;
        Ok(Self::over(backends, bundle, soc))
    }

    /// Opens a bundle like [`open`](Self::open), and uses a GPU only after a process of its own has run the bundle there:
    /// the first time with this version of its driver. What was found and what is compiled is kept as by
    /// [`with_cache`](Self::with_cache).
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open).
    pub fn open_examined(
        bundle: Arc<Bundle>,
        soc: Soc,
        examiner: &GpuExaminer,
    ) -> Result<Self, ExecError> {
        let backends = backend::all(&bundle, &soc, None, Some(examiner))?;
        Ok(Self::over(backends, bundle, soc).with_cache(examiner.cache.clone()))
    }

    /// Opens a bundle like [`open`](Self::open), with OpenVINO loaded already.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open).
    pub fn new(core: Core, bundle: Arc<Bundle>, soc: Soc) -> Result<Self, ExecError> {
        let backends = backend::all(&bundle, &soc, Some(core), None)?;
        Ok(Self::over(backends, bundle, soc))
    }

    fn over(backends: Vec<Box<dyn Backend>>, bundle: Arc<Bundle>, soc: Soc) -> Self {
        let soc = as_played(soc);
        let devices = facts(&soc, &backends);
        Self {
            ladder: Ladder::new(bundle.manifest(), devices),
            bundle,
            backends,
            soc,
            cache: None,
        }
    }

    /// Makes the roles of NPU and iGPU run kernels together. As one lane they may be a GPU and a CPU, or an NPU and a CPU, which
    /// share each product; otherwise CPU programs play both.
    ///
    /// # Errors
    ///
    /// [`ExecError::Pair`] if one of them has no CPU programs; [`ExecError::Section`] or [`ExecError::Partition`] if the
    /// bundle's own partition for this machine is damaged, or of another model.
    pub fn paired(mut self, pairing: Pairing, lanes: PairLanes) -> Result<Self, ExecError> {
        let known = match pairing.level {
            // Before a device is given up to the pair: measurements are of the devices that the machine has.
            PairLevel::Tensor => KnownCuts::of(&self)?,
            PairLevel::Layer => KnownCuts::default(),
        };
        let (mut partner, mut missing) = (None, None);
        for backend in self.backends.iter_mut().filter(|_| lanes == PairLanes::One) {
            match backend.give_partner(&self.bundle)? {
                PartnerOffer::Device(device) => partner = partner.or(Some(device)),
                PartnerOffer::Missing(why) => missing = missing.or(Some(why)),
                PartnerOffer::None => {}
            }
        }
        if partner.is_some() {
            let devices = facts(&self.soc, &self.backends);
            self.ladder = Ladder::new(self.bundle.manifest(), devices);
        }
        let setup = PairSetup {
            pairing,
            lanes,
            missing: missing.filter(|_| partner.is_none()),
            partner,
            known,
        };
        for backend in &mut self.backends {
            if backend.pair_up(&setup)? {
                return Ok(self);
            }
        }
        Err(ExecError::Pair { soc: self.soc.name })
    }

    /// The roles that run kernels together, if any do.
    pub fn pair(&self) -> Option<&Arc<PairedRoles>> {
        self.backends.iter().find_map(|backend| backend.pair())
    }

    /// Keeps verdicts and compiled forms in a folder, for the next start.
    #[must_use]
    pub fn with_cache(mut self, folder: OwnFolder) -> Self {
        for backend in &mut self.backends {
            backend.keep_in(&folder, self.ladder.devices());
        }
        self.cache = Some(folder);
        self
    }

    /// Reads sections from `memory`, laid out like the bundle's file, instead of the mapped bundle.
    #[must_use]
    pub fn with_memory(mut self, memory: Arc<dyn Memory>) -> Self {
        for backend in &mut self.backends {
            backend.read_from(&memory);
        }
        self
    }

    /// Uses `devices` instead of the facts that the devices report about themselves.
    #[must_use]
    pub fn with_devices(mut self, devices: Vec<DeviceFacts>) -> Self {
        self.ladder = Ladder::new(self.bundle.manifest(), devices);
        self
    }

    /// The bundle that forms are made from.
    pub fn bundle(&self) -> &Arc<Bundle> {
        &self.bundle
    }

    /// The devices that forms are made for.
    pub fn soc(&self) -> &Soc {
        &self.soc
    }

    /// Facts about these devices, one for each role.
    pub fn devices(&self) -> &[DeviceFacts] {
        self.ladder.devices()
    }

    /// Returns the runner of kernels in each role, a line each: `CPU programs (avx2, I8, 4 threads)`, or a device of
    /// OpenVINO, or why nothing runs there.
    pub fn what_runs(&self) -> Vec<String> {
        let devices = self.devices().iter();
        let line = |device: &DeviceFacts| {
            let runs = match &device.missing {
                Some(why) => format!("nothing: {why}"),
                None => self.describe(device),
            };
            let mut backends = self.backends.iter().filter(|_| self.pair().is_none());
            let partner = backends.find_map(|backend| backend.describe_partner(device.role));
            let partner = partner.map_or(String::new(), |it| format!("; in a pair {it}"));
            let runs = format!("{runs}{partner}");
            match device.role {
                DeviceClass::Cpu => runs,
                role => format!("{}: {runs}", role.name()),
            }
        };
        devices.map(line).collect()
    }

    /// The runner of kernels on a device: the first back end that runs one of its rungs.
    fn describe(&self, device: &DeviceFacts) -> String {
        let kernels = self.bundle.manifest().kernels.iter();
        let rungs: Vec<Rung> = kernels
            .flat_map(|kernel| self.ladder.all(kernel))
            .filter(|rung| rung.role == device.role)
            .collect();
        let mut backends = self.backends.iter();
        let described = backends.find_map(|backend| {
            let runs = rungs.iter().any(|rung| backend.runs(*rung));
            backend.describe(device).filter(|_| runs)
        });
        described.unwrap_or_else(|| "nothing: the bundle has no kernels for it".to_owned())
    }

    /// Whether a device with this role can be used.
    fn has(&self, role: DeviceClass) -> bool {
        let mut devices = self.devices().iter();
        devices.any(|device| device.role == role && device.missing.is_none())
    }

    /// Shapes of the variants that a role's device can run, by group, of the kernels that stand for all.
    pub fn shapes(&self, role: DeviceClass) -> BTreeMap<Group, Vec<ShapeClass>> {
        first_kernels(self.bundle.manifest())
            .map(|kernel| (kernel.group, self.ladder.shapes(kernel, role)))
            .collect()
    }

    /// Returns the lanes of its devices; a pair may be one lane.
    pub fn lanes(&self) -> MachineLanes {
        let is_paired = self.pair().is_some_and(|pair| pair.is_one_lane());
        MachineLanes::of(|role| self.has(role) && !(is_paired && role == DeviceClass::Npu))
    }

    /// Whether a kernel may hang on one of the devices. On a machine that has only its CPU none does: a slow kernel
    /// there waits for cores that other programs use.
    pub fn may_hang(&self) -> bool {
        let may = |device: &DeviceFacts| {
            let mut backends = self.backends.iter();
            backends.any(|backend| backend.may_hang(device))
        };
        self.devices().iter().any(may)
    }

    /// The version of OpenVINO; `None` if it was not needed when the bundle was opened.
    pub fn plugin_version(&self) -> Option<&str> {
        self.backends.iter().find_map(|backend| backend.version())
    }

    /// Devices that were there when the bundle was opened, and are lost, with the reasons.
    pub fn lost_devices(&self) -> impl Iterator<Item = (&DeviceFacts, String)> {
        let devices = self.devices().iter();
        devices.filter_map(|device| Some((device, self.why_lost(device)?)))
    }

    /// Why a device is lost; `None` if it is not.
    pub(super) fn why_lost(&self, device: &DeviceFacts) -> Option<String> {
        let mut backends = self.backends.iter();
        backends.find_map(|backend| backend.why_lost(device))
    }

    /// Whether a device is asked for known answers again while it serves.
    pub(super) fn is_asked_again(&self, device: &DeviceFacts) -> bool {
        let mut backends = self.backends.iter();
        backends.any(|backend| backend.is_asked_again(device))
    }

    /// Gives up a device that computes wrongly; `None` if no back end has it.
    pub(super) fn give_up(&self, device: &DeviceFacts, loss: Loss, why: &str) -> Option<ExecError> {
        let mut backends = self.backends.iter();
        backends.find_map(|backend| backend.give_up(device, loss, why))
    }

    /// Whether a device is left for the calls of a duty.
    pub fn has_left(&self, duty: Duty) -> bool {
        let mut left = self.devices().iter().filter(|device| {
            let is_there = device.missing.is_none() && self.why_lost(device).is_none();
            is_there && duty.roles().contains(&device.role)
        });
        left.next().is_some()
    }

    /// Keys and values that were copied between the host and GPUs since the bundle was opened; `None` if there is no GPU.
    pub fn moved_caches(&self) -> Option<MovedCaches> {
        let mut backends = self.backends.iter();
        backends.find_map(|backend| backend.moved_caches())
    }

    /// The home of rows and KV caches, so that devices work on them without copies.
    pub fn home(&self) -> MemoryHome {
        let homes = self.backends.iter().map(|backend| backend.home());
        homes.fold(MemoryHome::default(), MemoryHome::or)
    }

    /// The back ends, in the order of `BackendIndex`.
    pub(super) fn backends(&self) -> &[Box<dyn Backend>] {
        &self.backends
    }

    pub(super) fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    /// The folder in which verdicts are kept.
    pub fn cache(&self) -> Option<&OwnFolder> {
        self.cache.as_ref()
    }

    /// Makes the kernel of `place` ready on a rung of its ladder.
    pub(super) fn form(&self, place: Place, rung: Rung) -> Result<Form, ExecError> {
        self.prepare(&self.parts(place, rung)?, rung, Origin::Mapped)
    }

    /// Makes the kernel of `place` ready on the device that is a pair's partner, for passes that it runs alone; `None` where
    /// it does not take the kernel.
    pub(super) fn partners_form(&self, place: Place, rung: Rung) -> Option<Form> {
        let mut backends = self.backends.iter();
        let rung = backends.find_map(|backend| backend.partners_rung(rung))?;
        self.form(place, rung).ok()
    }

    /// Makes a form like [`form`](Self::form), narrowed to `context` rows of the KV cache: for rungs of static
    /// attention, and no more rows than they have.
    pub(super) fn form_over(
        &self,
        place: Place,
        rung: Rung,
        context: u32,
    ) -> Result<Form, ExecError> {
        let mut parts = self.parts(place, rung)?;
        let tokens = parts.variant.shape.chunk().ok_or(unknown(place))?;
        parts.shape = ShapeClass::Bucket { tokens, context };
        self.prepare(&parts, rung, Origin::Mapped)
    }

    /// Makes a form like [`form`](Self::form), for calls of exactly `rows` rows, to which calls are padded: for rungs
    /// that take any number of rows and contain their weights.
    pub(super) fn form_of_rows(
        &self,
        place: Place,
        rung: Rung,
        rows: u32,
    ) -> Result<Form, ExecError> {
        let mut parts = self.parts(place, rung)?;
        parts.shape = ShapeClass::Static { tokens: rows };
        self.prepare(&parts, rung, Origin::Mapped)
    }

    /// Makes a form like [`form`](Self::form), from sections that are hashed again.
    pub(super) fn form_from_copy(&self, place: Place, rung: Rung) -> Result<Form, ExecError> {
        self.prepare(&self.parts(place, rung)?, rung, Origin::HashedAgain)
    }

    /// Makes a form with the first back end that runs the rung.
    fn prepare(&self, parts: &Parts<'_>, rung: Rung, origin: Origin) -> Result<Form, ExecError> {
        let mut backends = self.backends.iter().enumerate();
        let found = backends.find(|(_, backend)| backend.runs(rung));
        let (at, backend) = found.ok_or_else(|| ExecError::Refused {
            kernel: parts.kernel.name.clone(),
            message: format!("no back end runs {:?}", rung.source),
        })?;
        Ok(Form {
            rung,
            shape: parts.shape,
            elements: parts.elements,
            backend: BackendIndex(at),
            runner: backend.prepare(parts, rung, origin)?,
        })
    }

    fn parts(&self, place: Place, rung: Rung) -> Result<Parts<'_>, ExecError> {
        let manifest = self.bundle.manifest();
        let used = place_use(manifest, place)?;
        let kernel = place_kernel(manifest, place)?;
        let variant = kernel.variants.get(rung.variant).ok_or(unknown(place))?;
        Ok(Parts {
            bundle: &self.bundle,
            used,
            kernel,
            variant,
            elements: self.ladder.elements_of(rung, variant),
            shape: variant.shape,
            device: device_of(&self.soc, rung.role).ok_or(unknown(place))?,
            weights: use_sections(manifest, used),
        })
    }
}

/// Returns facts about the devices of a SoC as back ends report them, one for each role.
fn facts(soc: &Soc, backends: &[Box<dyn Backend>]) -> Vec<DeviceFacts> {
    let mut all: Vec<DeviceFacts> = Vec::new();
    for device in &soc.devices {
        let role = device.class;
        // The first device of a class plays its role.
        if all.iter().any(|known| known.role == role) {
            continue;
        }
        let mut facts = DeviceFacts::of(device);
        for backend in backends {
            backend.report(device, &mut facts);
        }
        all.push(facts);
    }
    all
}

/// Loads OpenVINO for tests; returns `None`, with a message, if it is missing.
#[cfg(test)]
pub(super) fn core_or_skip() -> Option<Core> {
    match heg_openvino::find_libraries() {
        Ok(folder) => Some(Core::load_from(&folder).unwrap()),
        Err(error) => {
            assert!(
                std::env::var_os("HEG_REQUIRE_OPENVINO").is_none(),
                "{error}"
            );
            println!("skipped: {error} (run: cargo xtask setup)");
            None
        }
    }
}
