//! Descents: steps down the ladder, as data and as text. Commands that load a bundle print them.

use std::collections::BTreeMap;
use std::fmt;

use heg_artifacts::manifest::{Kernel, Variant};
use heg_spec::DeviceClass;
use serde::Serialize;

use super::{DeviceFacts, Misfit, Plan, Rung, RungSource};

/// A rung that was passed over, with the reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Descent {
    /// Name of the kernel.
    pub kernel: String,
    /// The step that should have run.
    pub from: DescentStep,
    /// The step that runs instead; `None` if no step is left.
    pub to: Option<DescentStep>,
    /// The reason why it was passed over.
    pub reason: Reason,
}

/// A rung, or a whole device, by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DescentStep {
    /// OpenVINO's name of the device; `GPU` also for one that runs programs.
    pub device: String,
    /// The role that the device plays: `npu`, `igpu`, `cpu`.
    pub role: &'static str,
    /// Calls that the variant admits, e.g. `dynamic`, `256`, `256×2048`; `None` for the whole device.
    pub shape: Option<String>,
    /// `program`, `blob 3720` or `IR`; `None` for the whole device.
    pub source: Option<String>,
}

/// The reason why a rung is not used.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The device is missing, with the message of its back end.
    Missing(String),
    /// The bundle has no variant for this class of device with the activations of the others.
    NoVariant,
    /// No blob of the variant fits the device, with the reason for the nearest one.
    Misfit(Misfit),
    /// Its forms do not admit every call; larger calls go down the ladder.
    TooSmall {
        /// Tokens of the largest call.
        tokens: usize,
        /// Rows of context of the largest call.
        context: usize,
    },
    /// The device refused it, with OpenVINO's message.
    Refused(String),
    /// It failed its known-answer test and is quarantined.
    Wrong {
        /// Largest difference, as a share of the largest expected value.
        worst: f32,
        /// Largest difference that would have passed.
        tolerance: f32,
    },
    /// It failed its known-answer test, and passed it when it ran again as it was.
    Passed {
        /// Largest difference, as a share of the largest expected value.
        worst: f32,
        /// Largest difference that would have passed.
        tolerance: f32,
    },
    /// It failed its known-answer test twice, and passed it when made again from verified bytes.
    Damaged {
        /// Largest difference, as a share of the largest expected value.
        worst: f32,
        /// Largest difference that would have passed.
        tolerance: f32,
    },
    /// A baked state has keys and values of another arithmetic than this machine's.
    StateForm {
        /// The arithmetic that it was baked in.
        baked: String,
        /// The arithmetic of this machine.
        here: String,
    },
}

impl DescentStep {
    /// Returns the step that stands for a whole device.
    pub(crate) fn device(device: &DeviceFacts) -> Self {
        Self {
            device: device.name.clone(),
            role: device.role.name(),
            shape: None,
            source: None,
        }
    }

    /// Returns the step of a rung.
    pub(crate) fn of(device: &DeviceFacts, kernel: &Kernel, rung: Rung) -> Self {
        let variant = kernel.variants.get(rung.variant);
        let source = match rung.source {
            RungSource::Program | RungSource::Gpu => "program".to_owned(),
            RungSource::Ir => "IR".to_owned(),
            RungSource::Blob(at) => {
                let blob = variant.and_then(|variant| variant.blobs.get(at));
                blob.map_or("blob".to_owned(), |blob| format!("blob {}", blob.platform))
            }
        };
        let whole = Self::device(device);
        Self {
            device: match rung.source {
                RungSource::Gpu => "GPU".to_owned(),
                RungSource::Program | RungSource::Blob(_) | RungSource::Ir => whole.device,
            },
            shape: variant.map(|variant| variant.shape.to_string()),
            source: Some(source),
            ..whole
        }
    }
}

/// Notes why a role's GPU cannot run a program.
pub(super) fn pass_gpu(
    device: &DeviceFacts,
    kernel: &Kernel,
    (index, variant): (usize, &Variant),
    plan: &mut Plan,
) {
    if let Some(Err(message)) = &device.gpu
        && variant.program.is_some()
    {
        let rung = Rung {
            role: device.role,
            variant: index,
            source: RungSource::Gpu,
        };
        let step = DescentStep::of(device, kernel, rung);
        plan.pass(step, Reason::Missing(message.clone()));
    }
}

/// Returns lines to print: one for all descents of the same kind, with their kernels and shapes.
pub fn summary(descents: &[Descent]) -> Vec<String> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for descent in descents {
        let to = descent
            .to
            .as_ref()
            .map_or("nothing".to_owned(), |to| to.kind());
        let other_shape = descent.to.as_ref().and_then(|to| to.shape.as_ref());
        let to = match other_shape.filter(|shape| Some(*shape) != descent.from.shape.as_ref()) {
            Some(shape) => format!("{to} {shape}"),
            None => to,
        };
        let kind = format!("{} -> {to}: {}", descent.from.kind(), descent.reason);
        let what = match &descent.from.shape {
            Some(shape) => format!("{} {shape}", descent.kernel),
            None => descent.kernel.clone(),
        };
        let group = groups.entry(kind).or_default();
        if !group.contains(&what) {
            group.push(what);
        }
    }
    let line = |(kind, what): (String, Vec<String>)| {
        let more = what.len().saturating_sub(NAMED_MAX);
        let mut named = what
            .into_iter()
            .take(NAMED_MAX)
            .collect::<Vec<_>>()
            .join(", ");
        if more > 0 {
            named.push_str(&format!(" and {more} more"));
        }
        format!("{named}: {kind}")
    };
    groups.into_iter().map(line).collect()
}

/// Most kernels named in a line; chosen.
const NAMED_MAX: usize = 6;

impl DescentStep {
    /// Returns the device, with its role if that is not its own: `NPU`, `CPU as npu`.
    pub fn device_in_role(&self) -> String {
        let own = DeviceClass::of_openvino(&self.device).map(DeviceClass::name);
        if own == Some(self.role) {
            return self.device.clone();
        }
        format!("{} as {}", self.device, self.role)
    }

    fn kind(&self) -> String {
        match &self.source {
            Some(source) => format!("{} {source}", self.device_in_role()),
            None => self.device_in_role(),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(message) => write!(f, "the device cannot be used: {message}"),
            Self::NoVariant => f.write_str("the bundle has no such variant"),
            Self::Misfit(misfit) => misfit.fmt(f),
            Self::TooSmall { tokens, context } => {
                write!(f, "no form for {tokens} tokens over {context} rows")
            }
            Self::Refused(message) => write!(f, "refused: {message}"),
            Self::Wrong { worst, tolerance } => write!(
                f,
                "quarantined: its known answer differs by {worst:.3}, at most {tolerance} is right"
            ),
            Self::Passed { worst, tolerance } => write!(
                f,
                "the device computed wrongly once: its known answer differs by {worst:.3}, at most {tolerance} is right, \
                 and it is right when it runs again"
            ),
            Self::StateForm { baked, here } => write!(f, "baked with {baked}; here {here}"),
            Self::Damaged { worst, tolerance } => write!(
                f,
                "its bytes in memory are damaged: its known answer differs by {worst:.3}, at most \
                 {tolerance} is right, and a fresh copy is right"
            ),
        }
    }
}
