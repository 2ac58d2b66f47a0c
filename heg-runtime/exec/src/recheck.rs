//! Known answers that devices are asked again while they serve.
//!
//! The test at a bundle's first start shows that a device computes right, and is remembered. That it goes on to do so is
//! asked again: before the first launch, every [`INTERVAL`] launches, and when the lane rests, of one kernel of each group
//! in turn. A device that answers wrongly twice is given up. Before its first launch that is all. Later what it gave since
//! its last right answer counts as wrong ([`Loss::Wrong`]): requests that are under way end with that error.
//!
//! This does not show a kernel that computes wrongly once and gives numbers all the same, as memory that flips does.
//! Nothing short of computing twice would.

use heg_spec::Group;

use crate::answers::{KnownAnswer, wrong};
use crate::error::{ExecError, Loss};
use crate::ladder::{DeviceFacts, Rung};
use crate::loader::Loader;
use crate::place::Place;
use crate::table::FormTable;
use heg_sched::Launch;

/// The kernels that are asked, and when.
#[derive(Default)]
pub(crate) struct Recheck {
    kernels: Vec<Rechecked>,
    /// The next one that is asked.
    next: usize,
    /// Kernels that are to be asked before anything else runs, or while nothing does.
    due: usize,
    /// Launches since one was asked.
    launches: usize,
    /// Verdict of a wrong answer on earlier results; `None` while there are none.
    of_earlier: Option<Loss>,
}

/// A kernel on a device.
struct Rechecked {
    device: DeviceFacts,
    group: Group,
    known: KnownAnswer,
}

impl Recheck {
    /// Makes ready one kernel of each group, in the middle of the model, on each device that is asked again. What cannot be
    /// made ready is not asked: its device shows what is wrong with it when it is to run.
    pub(crate) fn new(loader: &Loader, layers: u32, forms: &FormTable) -> Self {
        let mut kernels = Vec::new();
        for group in [Group::Ffn, Group::Qkv, Group::Mha] {
            let launch = Launch {
                layer: Some(layers / 2),
                group,
            };
            let Ok(rungs) = forms.rungs(launch) else {
                continue;
            };
            let mut asked: Vec<Rung> = Vec::new();
            for rung in rungs {
                if asked.iter().any(|other| other.role == rung.role) {
                    continue;
                }
                let device = loader.ladder().device(rung.role);
                let Some(device) = device.filter(|device| loader.is_asked_again(device)) else {
                    continue;
                };
                let known = KnownAnswer::of_rung(loader, Place::from(launch), rung);
                if let Ok(Some(known)) = known {
                    asked.push(rung);
                    kernels.push(Rechecked {
                        device: device.clone(),
                        group,
                        known,
                    });
                }
            }
        }
        Self {
            due: kernels.len(),
            kernels,
            ..Self::default()
        }
    }

    /// Asks what is due before launches.
    ///
    /// # Errors
    ///
    /// [`ExecError::DeviceLost`] if a device computes wrongly, or is lost meanwhile.
    pub(crate) fn before(&mut self, loader: &Loader, launches: usize) -> Result<(), ExecError> {
        if self.kernels.is_empty() {
            return Ok(());
        }
        if self.launches >= INTERVAL {
            self.due = self.due.max(1);
        }
        while self.due > 0 {
            self.ask_next(loader)?;
        }
        self.launches = self.launches.saturating_add(launches);
        self.of_earlier = Some(Loss::Wrong);
        Ok(())
    }

    /// Asks one kernel, if something ran since all were asked. Says whether there is more to do.
    ///
    /// # Errors
    ///
    /// As [`before`](Self::before).
    pub(crate) fn rest(&mut self, loader: &Loader) -> Result<bool, ExecError> {
        if self.launches > 0 {
            self.due = self.kernels.len();
        }
        if self.due > 0 {
            self.ask_next(loader)?;
        }
        Ok(self.due > 0)
    }

    fn ask_next(&mut self, loader: &Loader) -> Result<(), ExecError> {
        self.due = self.due.saturating_sub(1);
        self.launches = 0;
        let count = self.kernels.len().max(1);
        let kernel = self.kernels.get_mut(self.next % count);
        self.next = (self.next + 1) % count;
        let Some(kernel) = kernel else { return Ok(()) };
        let mut last = None;
        for _ in 0..2 {
            match kernel.known.ask() {
                Ok(verdict) if verdict.is_right() => return Ok(()),
                Ok(verdict) => last = Some(verdict),
                Err(error) if error.loss().is_some() => return Err(error),
                // The next kernel that is to run on the device shows whether it passes.
                Err(_) => return Ok(()),
            }
        }
        let Some(verdict) = last else { return Ok(()) };
        let group = kernel.group.name();
        let why = format!(
            "kernel `{group}` computes wrongly since it was tested: {}",
            wrong(verdict)
        );
        let loss = self.of_earlier.unwrap_or(Loss::Failed);
        match loader.give_up(&kernel.device, loss, &why) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Launches between two questions. Chosen: half a percent of the time, and a few tokens of a model of 30 layers.
const INTERVAL: usize = 256;
