//! What a policy means on a machine: which lanes it has, and what they leave of the policy's limits.

use heg_spec::policy::SchedulerKind;
use heg_spec::{DeviceClass, Policy, SpecError, shipped};

use super::request::Lane;

/// Rows that verify drafted tokens where one request has the machine: as in the shipped policies.
const DRAFT_ROWS_MAX: u32 = 32;

/// The lanes of a machine: one of dynamic kernels, and perhaps the NPU's, of static ones, beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineLanes {
    /// The lane of dynamic kernels: the iGPU's, or the CPU's where there is no iGPU.
    pub dynamic: Lane,
    /// Whether there is an NPU.
    pub npu: bool,
}

impl MachineLanes {
    /// The lanes of a machine that has a device for the roles that `has` says.
    pub fn of(has: impl Fn(DeviceClass) -> bool) -> Self {
        Self {
            dynamic: match has(DeviceClass::Igpu) {
                true => Lane::Igpu,
                false => Lane::Cpu,
            },
            npu: has(DeviceClass::Npu),
        }
    }

    /// All of them, the one of dynamic kernels last.
    pub fn all(self) -> impl Iterator<Item = Lane> {
        let npu = self.npu.then_some(Lane::Npu);
        npu.into_iter().chain([self.dynamic])
    }

    /// Name of the shipped policy that suits them.
    pub fn policy(self) -> &'static str {
        match self.npu {
            true => "agent-xpu",
            false => "agent-xpu-one-device",
        }
    }
}

/// What a machine has for a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineFacts {
    /// Its lanes.
    pub lanes: MachineLanes,
    /// Whether there is a place on flash for KV caches.
    pub flash: bool,
    /// Whether a kernel may hang; on a CPU it waits for cores that others have.
    pub kernels_hang: bool,
}

/// A policy runs everything on a device that the machine has no lane for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoLane(pub DeviceClass);

/// The policy as it holds on a machine.
///
/// # Errors
/// [`NoLane`] for a policy of one device that has no lane of dynamic kernels there. The other policies take the lanes
/// that there are.
pub fn for_machine(mut policy: Policy, machine: &MachineFacts) -> Result<Policy, NoLane> {
    let on_one_device = match policy.scheduler {
        SchedulerKind::AgentXpu | SchedulerKind::Serial => false,
        SchedulerKind::ContinuousBatching
        | SchedulerKind::PreemptRecompute
        | SchedulerKind::TimeSharing => true,
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

/// The policy for kernels that take so many rows of a decode batch, and of an iteration, at most.
pub fn with_rows(mut policy: Policy, batch: usize, iteration: usize) -> Policy {
    let least = |most: u32, rows: usize| most.min(u32::try_from(rows).unwrap_or(u32::MAX));
    policy.decode.batch_max = least(policy.decode.batch_max, batch);
    policy.decode.draft_rows_max = least(policy.decode.draft_rows_max, iteration);
    policy.limits.tokens_per_iteration = least(policy.limits.tokens_per_iteration, iteration);
    policy
}

/// The policy for one request at a time: continuous batching with batches of one, without the limits that only many
/// requests need.
///
/// # Errors
/// None, as long as the policy that ships with HEG is what it should be.
pub fn one_request_policy(lanes: MachineLanes, chunk_tokens: usize) -> Result<Policy, SpecError> {
    let mut policy = shipped::policy("cpu-continuous-batching")?;
    policy.device = match lanes.dynamic {
        Lane::Igpu => DeviceClass::Igpu,
        Lane::Cpu | Lane::Npu => DeviceClass::Cpu,
    };
    policy.limits.tokens_per_iteration = u32::MAX;
    // The context bounds the one cache there is, and nobody else waits for a kernel that takes long.
    policy.limits.kv_mib = u32::MAX;
    policy.limits.timeout_min_ms = u32::MAX;
    policy.decode.draft_rows_max = DRAFT_ROWS_MAX;
    Ok(with_rows(policy, 1, chunk_tokens))
}

/// Tokens of the longest launch of a prompt under a policy, where the machine's kernels take `chunk_tokens`.
pub fn prefill_tokens_max(policy: &Policy, chunk_tokens: usize) -> usize {
    match policy.scheduler {
        SchedulerKind::AgentXpu | SchedulerKind::Serial => chunk_tokens,
        SchedulerKind::ContinuousBatching
        | SchedulerKind::PreemptRecompute
        | SchedulerKind::TimeSharing => policy.limits.tokens_per_iteration as usize,
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
