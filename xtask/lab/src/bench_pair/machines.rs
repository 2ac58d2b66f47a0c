//! The machines of a comparison: CPU programs as one device, or as a pair.

use anyhow::{Context, Result, ensure};
use heg_runtime::Loaded;
use heg_runtime::exec::{HandOvers, Loader, PairLanes, PairedRoles, Partition};
use heg_spec::policy::{PairLevel, Pairing, Synchronisation};
use heg_spec::{DeviceClass, Soc, shipped};
use std::num::NonZeroU32;
use std::sync::Arc;

/// What a machine is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// One device of so many threads.
    One(u32),
    /// Two sides of one thread each, of which the second may be slower, and the first may have static shapes.
    Pair {
        level: PairLevel,
        synchronisation: Synchronisation,
        throttle: u32,
        static_tokens: &'static [u32],
    },
}

impl Shape {
    pub(super) const fn one(threads: u32) -> Self {
        Self::One(threads)
    }

    pub(super) const fn pair(level: PairLevel, synchronisation: Synchronisation) -> Self {
        Self::Pair {
            level,
            synchronisation,
            throttle: 1,
            static_tokens: &[],
        }
    }

    /// The same with a second side that takes so many times as long.
    pub(super) const fn throttled(mut self, times: u32) -> Self {
        if let Self::Pair { throttle, .. } = &mut self {
            *throttle = times;
        }
        self
    }

    /// The same with a first side whose shapes have such sizes.
    pub(super) const fn with_static(mut self, sizes: &'static [u32]) -> Self {
        if let Self::Pair { static_tokens, .. } = &mut self {
            *static_tokens = sizes;
        }
        self
    }

    fn soc(self) -> Result<Soc> {
        let name = match self {
            Self::One(_) => "host-cpu",
            Self::Pair { .. } => "host-pair",
        };
        let mut soc = shipped::soc(name)?;
        for device in &mut soc.devices {
            let programs = device.programs.as_mut();
            let programs = programs.context("a device of the SoC has no programs")?;
            match self {
                Self::One(threads) => programs.threads = NonZeroU32::new(threads),
                Self::Pair { throttle, .. } if device.class == DeviceClass::Igpu => {
                    programs.throttle = NonZeroU32::new(throttle).unwrap_or(NonZeroU32::MIN);
                }
                Self::Pair { static_tokens, .. } => {
                    let sizes = static_tokens.iter().copied();
                    programs.static_tokens = sizes.filter_map(NonZeroU32::new).collect();
                }
            }
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
}

impl Machine {
    pub(super) fn new(loaded: &Loaded, shape: Shape) -> Result<Self> {
        let loader = loaded.loader(&shape.soc()?)?;
        let (loader, role) = match shape {
            Shape::One(_) => (loader, DeviceClass::Cpu),
            Shape::Pair {
                level,
                synchronisation,
                ..
            } => {
                let pairing = Pairing {
                    level,
                    synchronisation,
                };
                (loader.paired(pairing, PairLanes::One)?, DeviceClass::Npu)
            }
        };
        Ok(Self {
            pair: loader.pair().cloned(),
            loader: Some(loader),
            role,
        })
    }

    /// The loader, once.
    pub(super) fn take_loader(&mut self) -> Result<Loader> {
        self.loader.take().context("the machine is in use")
    }

    /// How long the sides of a pair took to hand over so far.
    pub(super) fn hand_overs(&self) -> Option<HandOvers> {
        self.pair.as_ref()?.hand_overs()
    }

    /// Has a pair share work in another way.
    pub(super) fn share_by(&self, partition: Box<dyn Partition>) -> Result<()> {
        let pair = self.pair.as_ref().context("the machine is no pair")?;
        ensure!(pair.share_by(partition), "the pair is two lanes");
        Ok(())
    }
}
