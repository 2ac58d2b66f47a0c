//! Whether a device still answers. A kernel that does not end in time is cancelled, and one that does not end then either
//! is left behind: its device counts as lost from then on, and so does one that fails twice with the same kernel, or whose
//! known answers are wrong while it serves.
//!
//! Nothing more runs on a lost device. The CPU is none: a slow kernel there waits for cores that other programs use.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use heg_openvino::{InferRequest, OpenvinoError, Progress};

use super::compiled::is_cpu;
use crate::error::{ExecError, Loss};

/// Watches a device while kernels run on it.
pub(super) struct DeviceWatch {
    /// OpenVINO's name of the device.
    device: String,
    /// Most time that a kernel may take; `None` for the CPU.
    limit: Option<Duration>,
    /// The loss of the device and its reason, once it is lost.
    lost: OnceLock<(Loss, String)>,
}

/// Why a kernel gave no result.
#[derive(Debug)]
pub(super) enum RunError {
    /// OpenVINO returned an error, or the run was cancelled from outside.
    Failed(OpenvinoError),
    /// The device is lost.
    Lost(ExecError),
}

impl DeviceWatch {
    pub(super) fn new(device: &str) -> Self {
        Self::within(device, KERNEL_LIMIT)
    }

    fn within(device: &str, limit: Duration) -> Self {
        Self {
            device: device.to_owned(),
            limit: (!is_cpu(device)).then_some(limit),
            lost: OnceLock::new(),
        }
    }

    /// Why the device is lost; `None` if it is not.
    pub(super) fn why_lost(&self) -> Option<&str> {
        self.lost.get().map(|(_, why)| why.as_str())
    }

    /// Checks that the device is not lost.
    pub(super) fn check(&self) -> Result<(), ExecError> {
        match self.lost.get() {
            None => Ok(()),
            Some(lost) => Err(self.error(lost)),
        }
    }

    /// Whether the device may fail: all but the CPU.
    pub(super) fn may_fail(&self) -> bool {
        self.limit.is_some()
    }

    /// OpenVINO's name of the device.
    pub(super) fn device(&self) -> &str {
        &self.device
    }

    /// Whether an error may be the device's, which the same kernel need not have again.
    pub(super) fn may_pass(&self, error: &ExecError) -> bool {
        let is_call = matches!(
            error,
            ExecError::OpenVino {
                source: OpenvinoError::Call { .. },
                ..
            }
        );
        (is_call || matches!(error, ExecError::NoResult { .. })) && self.may_fail()
    }

    /// Counts the device as lost for this reason, if it is not already.
    pub(super) fn lose(&self, loss: Loss, why: String) -> ExecError {
        self.error(self.lost.get_or_init(|| (loss, why)))
    }

    fn error(&self, (loss, why): &(Loss, String)) -> ExecError {
        ExecError::DeviceLost {
            device: self.device.clone(),
            loss: *loss,
            why: why.clone(),
        }
    }

    /// Runs a request to its end; cancels it once `cancel` is set, or its time is over.
    pub(super) fn run(
        &self,
        request: &mut InferRequest,
        cancel: Option<&AtomicBool>,
    ) -> Result<(), RunError> {
        if self.limit.is_none() && cancel.is_none() {
            return request.infer().map_err(RunError::Failed);
        }
        self.check().map_err(RunError::Lost)?;
        request.start().map_err(RunError::Failed)?;
        self.wait(request, cancel)
    }

    /// Waits for the end of a started run; cancels it once `cancel` is set, or its time is over.
    pub(super) fn wait(
        &self,
        request: &mut InferRequest,
        cancel: Option<&AtomicBool>,
    ) -> Result<(), RunError> {
        let deadline = self
            .limit
            .and_then(|limit| Instant::now().checked_add(limit));
        loop {
            match request.wait(Some(PATIENCE)) {
                Ok(Progress::Finished) => return Ok(()),
                Ok(Progress::Pending) => {}
                Err(error) => return Err(RunError::Failed(error)),
            }
            if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                request.cancel().map_err(RunError::Failed)?;
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(RunError::Lost(self.give_up(request)));
            }
        }
    }

    /// Ends a run whose result nobody wants any more; one that does not end is left behind with its request.
    pub(super) fn end(&self, request: &mut InferRequest) {
        let _ = request.end_within(CANCEL_LIMIT);
    }

    /// Cancels a run whose time is over.
    fn give_up(&self, request: &mut InferRequest) -> ExecError {
        let limit = self.limit.unwrap_or_default().as_secs();
        let ended = match request.end_within(CANCEL_LIMIT) {
            true => "ended when it was cancelled",
            false => "did not end when it was cancelled",
        };
        self.lose(
            Loss::Failed,
            format!("a kernel ran for {limit} s, and {ended}"),
        )
    }
}

/// Interval at which the cancel flag is read while a kernel runs.
const PATIENCE: Duration = Duration::from_millis(100);

/// Most time that a kernel may take. Chosen: Linux' driver ends jobs of an NPU that hang after 2 s, and the longest kernel
/// of a model of 8B takes less than 100 ms.
const KERNEL_LIMIT: Duration = Duration::from_secs(10);

/// Time that a cancelled kernel has to end. Chosen, as the limit.
const CANCEL_LIMIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(message: &str) -> ExecError {
        ExecError::OpenVino {
            doing: "run kernel `qkv`".to_owned(),
            source: OpenvinoError::Call {
                function: "ov_infer_request_wait",
                status: "GENERAL_ERROR".to_owned(),
                message: message.to_owned(),
            },
        }
    }

    #[test]
    fn nothing_runs_on_a_lost_device_and_the_first_reason_stays() {
        let watch = DeviceWatch::new("NPU");
        watch.check().unwrap();
        let error = watch.lose(Loss::Failed, "it fell silent".to_owned());
        assert_eq!(error.loss(), Some(Loss::Failed));
        assert_eq!(error.to_string(), "device `NPU` is lost: it fell silent");
        watch.lose(Loss::Wrong, "another reason".to_owned());
        assert_eq!(watch.why_lost(), Some("it fell silent"));
        let refusal = watch.check().unwrap_err().refusal();
        assert_eq!(
            refusal.as_deref(),
            Some("device `NPU` is lost: it fell silent")
        );
    }

    #[test]
    fn errors_of_calls_may_pass_but_not_those_of_the_cpu() {
        let watch = DeviceWatch::new("NPU");
        assert!(watch.may_pass(&failed("ZE_RESULT_ERROR_DEVICE_LOST")));
        assert!(!watch.may_pass(&ExecError::Abandoned));
        assert!(!DeviceWatch::new("CPU").may_pass(&failed("no memory")));
    }
}
