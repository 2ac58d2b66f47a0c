//! Fits a policy to a machine: the lanes that the machine has, and the limits that still apply to them.

use heg_spec::policy::SchedulerKind;
use heg_spec::{DeviceClass, Policy, SpecError, shipped};

use super::request::Lane;

/// Rows that verify drafted tokens if one request has the machine for itself; the same as in the shipped policies.
const DRAFT_ROWS_MAX: u32 = 32;

/// The lanes of a machine: one with dynamic kernels, and possibly the NPU's, with static kernels, beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineLanes {
    /// The lane of dynamic kernels: the iGPU's, or the CPU's if there is no iGPU.
    pub dynamic: Lane,
    /// Whether there is an NPU.
    pub npu: bool,
}

impl MachineLanes {
    /// Returns the lanes of a machine; `has` says which roles it has a device for.
    pub fn of(has: impl Fn(DeviceClass) -> bool) -> Self {
        Self {
            dynamic: match has(DeviceClass::Igpu) {
                true => Lane::Igpu,
                false => Lane::Cpu,
            },
            npu: has(DeviceClass::Npu),
        }
    }

    /// Returns all lanes, the one of dynamic kernels last.
    pub fn all(self) -> impl Iterator<Item = Lane> {
        let npu = self.npu.then_some(Lane::Npu);
        npu.into_iter().chain([self.dynamic])
    }

    /// Name of the shipped policy that suits these lanes.
    pub fn policy(self) -> &'static str {
        match self.npu {
            true => "agent-xpu",
            false => "agent-xpu-one-device",
        }
    }

    /// Name of the shipped policy that suits these lanes if a model only gives vectors or scores of texts.
    pub fn policy_of_texts(self) -> &'static str {
        match (self.npu, self.dynamic) {
            (false, Lane::Cpu) => "cpu-priority-batching",
            _ => self.policy(),
        }
    }
}

/// The properties of a machine that a policy depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineFacts {
    /// The lanes of the machine.
    pub lanes: MachineLanes,
    /// Whether there is a place on flash for KV caches.
    pub flash: bool,
    /// Whether a kernel may hang. On a CPU it does not: it only waits for cores that other processes have.
    pub kernels_hang: bool,
}

/// The error of a policy that runs everything on a device for which the machine has no lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoLane(pub DeviceClass);

/// Returns the policy as it applies to a machine.
///
/// # Errors
/// [`NoLane`] if the policy is for one device, and the machine's lane of dynamic kernels is on another. Other
/// policies use the lanes that exist.
pub fn for_machine(mut policy: Policy, machine: &MachineFacts) -> Result<Policy, NoLane> {
    let on_one_device = match policy.scheduler {
        SchedulerKind::AgentXpu => false,
        SchedulerKind::ContinuousBatching | SchedulerKind::PriorityBatching => true,
    };
    if on_one_device && Lane::from(policy.device) != machine.lanes.dynamic {
        return Err(NoLane(policy.device));
    }
    if !machine.flash {
        policy.limits.flash_mib = 0;
    }
    if !machine.kernels_hang {
        policy.limits.timeout_min_ms = u32::MAX;
    }
    Ok(policy)
}

/// Returns the policy limited to kernels that take at most `batch` rows of a decode batch and `iteration` rows of an
/// iteration.
pub fn with_rows(mut policy: Policy, batch: usize, iteration: usize) -> Policy {
    let least = |most: u32, rows: usize| most.min(u32::try_from(rows).unwrap_or(u32::MAX));
    policy.decode.batch_max = least(policy.decode.batch_max, batch);
    policy.decode.draft_rows_max = least(policy.decode.draft_rows_max, iteration);
    policy.limits.tokens_per_iteration = least(policy.limits.tokens_per_iteration, iteration);
    policy
}

/// Returns the policy for one request at a time: continuous batching with batches of one, without the limits that
/// only several requests need.
///
/// # Errors
/// None, as long as the policy that ships with HEG is valid.
pub fn one_request_policy(lanes: MachineLanes, chunk_tokens: usize) -> Result<Policy, SpecError> {
    let mut policy = shipped::policy("cpu-continuous-batching")?;
    policy.device = match lanes.dynamic {
        Lane::Igpu => DeviceClass::Igpu,
        Lane::Cpu | Lane::Npu => DeviceClass::Cpu,
    };
    policy.limits.tokens_per_iteration = u32::MAX;
    // The context bounds the only cache, and no other request waits for a kernel that takes long.
    policy.limits.kv_mib = u32::MAX;
    policy.limits.timeout_min_ms = u32::MAX;
    policy.decode.draft_rows_max = DRAFT_ROWS_MAX;
    Ok(with_rows(policy, 1, chunk_tokens))
}

/// Tokens of the longest launch of a prompt under a policy, if the machine's kernels take `chunk_tokens`.
pub fn prefill_tokens_max(policy: &Policy, chunk_tokens: usize) -> usize {
    match policy.scheduler {
        SchedulerKind::AgentXpu => chunk_tokens,
        SchedulerKind::ContinuousBatching | SchedulerKind::PriorityBatching => {
            policy.limits.tokens_per_iteration as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(lanes: &[DeviceClass]) -> MachineFacts {
        MachineFacts {
            lanes: MachineLanes::of(|class| lanes.contains(&class)),
            flash: false,
            kernels_hang: false,
        }
    }

    #[test]
    fn limits_shrink_to_what_the_machine_has() {
        let policy = shipped::policy("agent-xpu").unwrap();
        let held = for_machine(policy, &facts(&[DeviceClass::Cpu])).unwrap();
        assert_eq!(with_rows(held.clone(), 8, 64).decode.batch_max, 8);
        assert_eq!(held.limits.flash_mib, 0);
        assert_eq!(held.limits.timeout_min_ms, u32::MAX);
    }

    #[test]
    fn a_policy_of_one_device_needs_its_lane() {
        let policy = shipped::policy("igpu-continuous-batching").unwrap();
        let cpu = facts(&[DeviceClass::Cpu, DeviceClass::Npu]);
        let refused = for_machine(policy.clone(), &cpu);
        assert_eq!(refused.unwrap_err(), NoLane(DeviceClass::Igpu));
        assert!(for_machine(policy, &facts(&[DeviceClass::Igpu])).is_ok());
    }

    #[test]
    fn the_lane_of_dynamic_kernels_comes_last() {
        let lanes = |classes| facts(classes).lanes.all().collect::<Vec<_>>();
        assert_eq!(lanes(&[DeviceClass::Cpu]), [Lane::Cpu]);
        let all = [DeviceClass::Cpu, DeviceClass::Igpu, DeviceClass::Npu];
        assert_eq!(lanes(&all), [Lane::Npu, Lane::Igpu]);
    }
}
