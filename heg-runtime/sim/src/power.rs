//! The power of devices by stage.

use heg_spec::Soc;

use heg_sched::{Lane, Work, WorkStage};

/// Power of one device while it is busy, in W.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StagePower {
    /// Power in prefill kernels.
    pub prefill_watts: f64,
    /// Power in decode kernels.
    pub decode_watts: f64,
}

/// The power model of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PowerModel {
    /// Power of each lane, in the order of [`Lane::ALL`].
    pub lanes: [StagePower; Lane::ALL.len()],
    /// Power of the CPU while it compiles a kernel, in W.
    pub compile_watts: f64,
    /// Idle power of the machine, in W.
    pub idle_watts: f64,
}

impl PowerModel {
    /// Creates the power model of a SoC file. Figures that the file leaves out are 0; so is idle power, since the
    /// sources measured above it.
    pub fn of(soc: &Soc) -> Self {
        let mut model = Self::default();
        for device in &soc.devices {
            let Some(power) = &device.power else { continue };
            model.lanes[Lane::from(device.class) as usize] = StagePower {
                prefill_watts: power.prefill_watts,
                decode_watts: power.decode_watts,
            };
            model.compile_watts = power.compile_watts.unwrap_or(model.compile_watts);
        }
        model
    }

    /// Returns the power of a lane while it runs `work`, in W.
    pub(super) fn watts(&self, lane: Lane, work: &Work) -> f64 {
        let stages = self.lanes[lane as usize];
        match WorkStage::of(work) {
            WorkStage::Decode => stages.decode_watts,
            WorkStage::Prefill => stages.prefill_watts,
        }
    }
}
