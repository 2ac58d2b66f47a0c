//! Launches that took longer than those like them: beside another lane's, or by themselves.
//!
//! A launch is compared with those of the same lane and call that ran alone, anywhere in the trace. Nine in ten of them
//! took no longer than its usual time: decode runs that gave way early, and noise, then accuse nobody. What it took beyond
//! that is put down to the lanes that were busy beside it, if they were for at least as long; else to its device.

use std::collections::BTreeMap;

use heg_sched::{Lane, LayerKernel, Micros};

use super::index::Launches;
use crate::traced::{LaunchOutcome, TracedCall, TracedLaunch};

/// Least number of launches that a usual time is known from. Chosen: one may have been unlucky.
const ALONE_MIN: usize = 3;

/// Least excess over the usual time that counts, as a part of it. Chosen: clocks and temperatures change times by less.
const EXCESS_MIN: u64 = 10;

/// Most time beside others for a launch that counts as alone, as a part of its own.
const BESIDE_MAX: u64 = 10;

/// A launch that took longer than usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slowed {
    /// The lane beside which it ran; `None` if it took longer by itself.
    pub(super) beside: Option<Lane>,
    /// Its usual time.
    pub(super) usual: Micros,
}

/// The usual times of launches that run alone.
#[derive(Debug, Default)]
pub(super) struct UsualTimes(BTreeMap<CallKind, Micros>);

/// Launches that take about as long as each other: their lane, their kind, and their sizes.
type CallKind = (Lane, u8, [u32; 3]);

impl UsualTimes {
    /// Collects the times of all launches on lanes, each in the order of their starts.
    pub(super) fn of(lanes: &[Launches<'_>; Lane::ALL.len()]) -> Self {
        let mut alone: BTreeMap<CallKind, Vec<Micros>> = BTreeMap::new();
        for launch in lanes.iter().flatten().copied() {
            let time = launch.end.since(launch.start);
            let beside = overlaps(lanes, launch).map(|(_, time)| time.0);
            let beside = beside.fold(0, u64::saturating_add);
            if let Some(kind) = kind_of(launch)
                && beside <= time.0 / BESIDE_MAX
            {
                alone.entry(kind).or_default().push(time);
            }
        }
        let known = alone.into_iter().filter(|(_, it)| it.len() >= ALONE_MIN);
        let usual = known.filter_map(|(kind, mut times)| {
            times.sort_unstable();
            let nine_in_ten = (times.len() * 9).div_ceil(10);
            Some((kind, *times.get(nine_in_ten.checked_sub(1)?)?))
        });
        Self(usual.collect())
    }

    /// Returns what slowed a launch down; `None` if nothing did, or if its usual time is not known.
    pub(super) fn slowed(
        &self,
        lanes: &[Launches<'_>; Lane::ALL.len()],
        launch: &TracedLaunch,
    ) -> Option<Slowed> {
        let usual = *self.0.get(&kind_of(launch)?)?;
        let excess = launch.end.since(launch.start).since(usual);
        if excess.0 <= usual.0 / EXCESS_MIN {
            return None;
        }
        let most = overlaps(lanes, launch).max_by_key(|(_, time)| *time);
        let beside = most.filter(|(_, time)| *time >= excess);
        Some(Slowed {
            beside: beside.map(|(lane, _)| lane),
            usual,
        })
    }
}

/// Returns the time that launches of each other lane ran beside a launch.
fn overlaps(
    lanes: &[Launches<'_>; Lane::ALL.len()],
    launch: &TracedLaunch,
) -> impl Iterator<Item = (Lane, Micros)> {
    let others = Lane::ALL.into_iter().zip(lanes);
    let others = others.filter(|(lane, _)| *lane != launch.lane);
    others.map(|(lane, launches)| {
        let first = launches.partition_point(|other| other.end <= launch.start);
        let beside = launches.iter().skip(first);
        let beside = beside.take_while(|other| other.start < launch.end);
        let times = beside.map(|other| {
            let (start, end) = (other.start.max(launch.start), other.end.min(launch.end));
            end.since(start).0
        });
        (lane, Micros(times.fold(0, u64::saturating_add)))
    })
}

/// Returns what is like a launch; `None` for one that did not run its call alone and to the end.
fn kind_of(launch: &TracedLaunch) -> Option<CallKind> {
    let reads = launch.flash_tokens > 0 || launch.kept_tokens > 0;
    if launch.outcome != LaunchOutcome::Done || reads {
        return None;
    }
    let rows = u32::try_from(launch.requests.len()).ok()?;
    let (kind, sizes) = match launch.call {
        TracedCall::Prefill {
            kernel, segment, ..
        } => match kernel {
            LayerKernel::Qkv => (0, [segment.tokens, 0, 0]),
            LayerKernel::Ffn => (1, [segment.tokens, 0, 0]),
            LayerKernel::Mha => (2, [segment.tokens, segment.position, 0]),
        },
        TracedCall::Head => (3, [0; 3]),
        TracedCall::Decode {
            first_layer,
            end_layer,
            fused,
        } => {
            let layers = end_layer.saturating_sub(first_layer);
            (4, [layers, rows, u32::from(fused)])
        }
        TracedCall::Iteration { prompt_tokens } => (5, [prompt_tokens, rows, 0]),
    };
    Some((launch.lane, kind, sizes))
}
