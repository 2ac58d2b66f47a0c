//! The machines of a comparison: CPU programs as one device, or as a pair.

use anyhow::{Context, Result};
use heg_files::OwnFolder;
use heg_runtime::exec::{HandOvers, Loader, PairLanes, PairedRoles};
use heg_runtime::{Loaded, RungSource};
use heg_spec::policy::{PairLevel, Pairing, Synchronisation};
use heg_spec::{DeviceClass, Soc, shipped};
use std::num::NonZeroU32;
use std::sync::Arc;

/// The kind of a machine.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// One device with this number of threads.
    One(u32),
    /// Two sides of one thread each.
    Pair {
        level: PairLevel,
        synchronisation: Synchronisation,
    },
    /// A GPU, with a thread for what it does not run.
    Gpu,
    /// A GPU and one thread of the CPU, which share each product.
    GpuPair,
    /// An NPU and one thread of the CPU, by the pieces of products in the bundle.
    NpuPair,
}

impl Shape {
    pub(super) const fn one(threads: u32) -> Self {
        Self::One(threads)
    }

    pub(super) const fn pair(level: PairLevel, synchronisation: Synchronisation) -> Self {
        Self::Pair {
            level,
            synchronisation,
        }
    }

    pub(super) fn soc(self) -> Result<Soc> {
        let threads = match self {
            Self::One(threads) => threads,
            Self::Pair { .. } => return Ok(shipped::soc("host-pair")?),
            Self::Gpu => return Ok(shipped::soc("host-gpu")?),
            Self::GpuPair => return Ok(shipped::soc("host-pair-gpu")?),
            Self::NpuPair => return Ok(shipped::soc("host-pair-npu")?),
        };
        let mut soc = shipped::soc("host-cpu")?;
        for device in &mut soc.devices {
            let programs = device.programs.as_mut();
            let programs = programs.context("a device of the SoC has no programs")?;
            programs.threads = NonZeroU32::new(threads);
        }
        Ok(soc)
    }
}

/// A machine that is ready to load kernels.
pub(super) struct Machine {
    /// Taken by what runs kernels on it.
    loader: Option<Loader>,
    pair: Option<Arc<PairedRoles>>,
    /// The role whose kernels are run alone.
    pub(super) role: DeviceClass,
    /// Name of what runs them there.
    pub(super) source: RungSource,
}

impl Machine {
    pub(super) fn new(loaded: &Loaded, shape: Shape) -> Result<Self> {
        Self::over(loaded.loader(&shape.soc()?)?, shape)
    }

    /// A machine whose measurements are kept in a folder.
    pub(super) fn measured(loaded: &Loaded, shape: Shape, cache: &OwnFolder) -> Result<Self> {
        let loader = loaded.loader(&shape.soc()?)?.with_cache(cache.clone());
        Self::over(loader, shape)
    }

    fn over(loader: Loader, shape: Shape) -> Result<Self> {
        let (loader, role) = match shape {
            Shape::One(_) => (loader, DeviceClass::Cpu),
            Shape::Gpu => {
                let role = loader.devices().iter().find(|it| it.gpu.is_some());
                let role = role.context("the SoC has no GPU")?.role;
                (loader, role)
            }
            Shape::Pair {
                level,
                synchronisation,
            } => (paired(loader, level, synchronisation)?, DeviceClass::Npu),
            Shape::GpuPair | Shape::NpuPair => {
                let (level, waits) = (PairLevel::Tensor, Synchronisation::Fast);
                (paired(loader, level, waits)?, DeviceClass::Npu)
            }
        };
        Ok(Self {
            pair: loader.pair().cloned(),
            loader: Some(loader),
            role,
            source: match shape {
                Shape::Gpu => RungSource::Gpu,
                Shape::One(_) | Shape::Pair { .. } | Shape::GpuPair | Shape::NpuPair => {
                    RungSource::Program
                }
            },
        })
    }

    /// The two that run kernels together, if they do.
    pub(super) fn pair(&self) -> Option<&PairedRoles> {
        self.pair.as_deref()
    }

    /// The loader, once.
    pub(super) fn take_loader(&mut self) -> Result<Loader> {
        self.loader.take().context("the machine is in use")
    }

    /// Times that parts of a GPU or an NPU took beside its work so far.
    pub(super) fn hand_overs_of_partner(&self) -> Option<HandOvers> {
        self.pair.as_ref()?.partner_hand_overs()
    }

    /// Times that the sides of a pair took to hand over so far.
    pub(super) fn hand_overs(&self) -> Option<HandOvers> {
        self.pair.as_ref()?.hand_overs()
    }
}

fn paired(loader: Loader, level: PairLevel, synchronisation: Synchronisation) -> Result<Loader> {
    let pairing = Pairing {
        level,
        synchronisation,
    };
    Ok(loader.paired(pairing, PairLanes::One)?)
}
