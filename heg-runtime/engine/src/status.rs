//! The state of an engine in numbers, for metrics and for admission.

use std::collections::BTreeMap;

use super::baked::BakedStatus;
use super::drafts::SourceCounts;
use super::health::LostLane;
use super::kept::KeptStatus;
use super::waits::WaitStatus;
use heg_draft::DraftSource;
use heg_exec::{CutCounts, HandOvers, MovedCaches, PairedRoles};
use heg_sched::{ActivationCounts, Class, Lane};
use heg_spec::Side;

/// Numbers of live requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Phases {
    /// Requests that wait for their first kernel.
    pub queued: u32,
    /// Requests whose prompt is in progress, or was preempted.
    pub prefilling: u32,
    /// Requests that have their first token.
    pub decoding: u32,
}

/// State of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneStatus {
    /// The lane.
    pub lane: Lane,
    /// Class of the work that it is running; `None` if it is idle.
    pub busy: Option<Class>,
    /// Time that it has been busy, in µs.
    pub busy_us: u64,
    /// Time that its work has waited while engines of other models had the device, in µs.
    pub waited_us: u64,
}

/// Number and time of one kind of iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IterationStatus {
    /// Number of iterations.
    pub count: u64,
    /// Time that they took, in µs.
    pub time_us: u64,
}

/// Statistics of two devices that run every kernel together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairStatus {
    /// Orders that both devices ran.
    pub orders: u64,
    /// Number of times that one device waited for the other.
    pub hand_overs: u64,
    /// Median time from the end of one device's part until the other went on, in ns.
    pub median_ns: u64,
    /// The 99th percentile of that time, in ns.
    pub p99_ns: u64,
    /// Parts of products on a device that is no CPU, if one of the two is none.
    pub parts: Option<PartStatus>,
    /// Products that were cut, by what said how.
    pub cuts: CutCounts,
    /// The device that was lost, if one was: the other runs everything.
    pub lost: Option<Side>,
    /// Why that device was lost, if it says.
    pub why_lost: Option<String>,
    /// Why the CPU alone is both, where one was to be another device.
    pub missing: Option<String>,
}

/// Statistics of the parts of products that another device computed while the CPU computed the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartStatus {
    /// Name of the device, as a user reads it.
    pub device: String,
    /// Number of parts since the start.
    pub count: u64,
    /// Passes that the device ran alone.
    pub passes: u64,
    /// Passes that the CPU ran without the device, since that was measured to be faster.
    pub cpu_passes: u64,
    /// Median time that a part took beside the device's work, from its submission until the end was known, in ns.
    pub median_ns: u64,
    /// The 99th percentile of that time, in ns.
    pub p99_ns: u64,
}

/// State of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// Whether kernels are ready.
    pub ready: bool,
    /// Live reactive requests.
    pub reactive: Phases,
    /// Live proactive requests.
    pub proactive: Phases,
    /// Bytes of memory that KV caches of live requests and flows may take, in whole pages.
    pub kv_bytes: u64,
    /// Bytes of KV cache that the policy allows.
    pub kv_budget_bytes: u64,
    /// Flows that keep a cache.
    pub flows_kept: u32,
    /// Lanes in use.
    pub lanes: Vec<LaneStatus>,
    /// Lanes that were lost, or whose kernels could not be prepared.
    pub lost: Vec<LostLane>,
    /// Two devices that run every kernel together, if any do.
    pub pair: Option<PairStatus>,
    /// Keys and values that were copied between the host and a GPU since the start; `None` without a GPU.
    pub moved_caches: Option<MovedCaches>,
    /// Tokens of prompts that were prefilled since the start.
    pub prompt_tokens: u64,
    /// Tokens of prompts that were reused from a cache since the start.
    pub reused_tokens: u64,
    /// Prefixes that were kept for later processes, and found, if there is a folder for them.
    pub kept: Option<KeptStatus>,
    /// States of the bundle that prompts began with, if it has some.
    pub baked: Option<BakedStatus>,
    /// Tokens generated since the start.
    pub generated_tokens: u64,
    /// Decode steps of requests since the start: each gave a token, and the draft's tokens that were right.
    pub decode_steps: u64,
    /// Drafted tokens that were verified since the start.
    pub drafted_tokens: u64,
    /// Drafted tokens that became part of an answer since the start.
    pub accepted_tokens: u64,
    /// Drafted tokens that were verified since the start, by where they came from.
    pub draft_sources: BTreeMap<DraftSource, SourceCounts>,
    /// Rows of prompts after which likely tokens were found since the start, for drafts.
    pub calibrated_rows: u64,
    /// Those of them whose prompt did not have its first token yet.
    pub calibrated_early_rows: u64,
    /// Rows of prompts that were given up, since there was no bubble for them in time.
    pub uncalibrated_rows: u64,
    /// Rows of prompts that wait for a bubble.
    pub calibrating_rows: u32,
    /// Iterations since the start that only decoded, and verified no draft.
    pub plain_iterations: IterationStatus,
    /// Iterations since the start that only decoded, and verified drafts.
    pub drafted_iterations: IterationStatus,
    /// Requests that ended since the start.
    pub finished: u64,
    /// Launches since the start.
    pub launches: u64,
    /// Steps of the scheduler since the start in which each mechanism acted.
    pub mechanisms: ActivationCounts,
    /// Static attention kernels that were compiled while requests waited, since the start.
    pub warmed: u64,
    /// Reasons why kernels could not be compiled, each once.
    pub warm_failures: Vec<String>,
    /// Time spent in the scheduler and in carrying out its actions since the start, in µs.
    pub dispatch_us: u64,
    /// Waiting times of reactive requests for their first kernel, by the state at their arrival.
    pub waits: Vec<WaitStatus>,
    /// The longest kernel on any lane, in µs; without the first runs, in which plugins pack weights.
    pub kernel_us_max: u64,
    /// The longest time in which a lane could not yield, in µs; without the first runs.
    pub stretch_us_max: u64,
}

impl PairStatus {
    /// Returns the status of two roles, once they have run an order.
    pub(super) fn of(pair: &PairedRoles) -> Option<Self> {
        let hand_overs = pair.hand_overs()?;
        let ns = |of: &HandOvers, share| of.quantile_us(share).map_or(0, |us| (us * 1e3) as u64);
        let parts = pair.partner_hand_overs().map(|partner| PartStatus {
            device: pair.partner_name().unwrap_or_default().to_owned(),
            count: pair.partner_parts(),
            passes: pair.partner_passes(),
            cpu_passes: pair.cpu_passes(),
            median_ns: ns(&partner, 0.5),
            p99_ns: ns(&partner, 0.99),
        });
        Some(Self {
            orders: pair.orders(),
            hand_overs: hand_overs.count(),
            median_ns: ns(&hand_overs, 0.5),
            p99_ns: ns(&hand_overs, 0.99),
            parts,
            cuts: pair.cuts(),
            lost: pair.lost_side(),
            why_lost: pair.why_lost(),
            missing: pair.missing().map(str::to_owned),
        })
    }
}

impl Status {
    pub(super) fn lane_mut(&mut self, lane: Lane) -> Option<&mut LaneStatus> {
        self.lanes.iter_mut().find(|status| status.lane == lane)
    }
}
