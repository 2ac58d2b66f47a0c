//! Contention between two busy devices (Agent.xpu, Fig. 4): a kernel alone, then beside a neighbour that runs without a
//! pause, memory-bound or compute-bound each.

use std::time::Duration;

use super::{Case, Profile, Subject};
use crate::annotation::{Contention, RawContention, Regime};
use crate::model::AnchorSource;
use crate::predict::CallShape;
use heg_spec::DeviceClass;

/// A call that represents a regime on a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Probe {
    pub(super) case: usize,
    pub(super) call: CallShape,
    pub(super) regime: Regime,
    pub(super) device: DeviceClass,
    /// The rate that it reaches, in B/s or FLOP/s.
    pub(super) per_sec: f64,
}

/// Measures all cells; there are none on a machine with one device.
pub(super) fn measure<S: Subject>(
    subject: &mut S,
    profile: &Profile,
) -> Result<Vec<Contention>, S::Error> {
    let probes = probes(subject.cases(), profile);
    let mut cells = Vec::new();
    for probe in &probes {
        let neighbours = probes.iter().filter(|other| other.device != probe.device);
        for neighbour in neighbours {
            let slowdown = slowdown(subject, *probe, *neighbour)?;
            let cell = Contention::new(RawContention {
                device: probe.device,
                regime: probe.regime,
                neighbour: neighbour.device,
                neighbour_regime: neighbour.regime,
                slowdown,
                source: AnchorSource::Measured,
            });
            cells.extend(cell);
        }
    }
    Ok(cells)
}

/// Returns the latency beside the neighbour divided by the latency alone. The latter is measured again right before, so
/// that both have the same clock and temperature.
fn slowdown<S: Subject>(subject: &mut S, probe: Probe, neighbour: Probe) -> Result<f64, S::Error> {
    let alone = median(subject, probe)?;
    subject.load(Some((neighbour.case, neighbour.call)))?;
    let beside = median(subject, probe);
    subject.load(None)?;
    Ok(beside?.as_secs_f64() / alone.as_secs_f64())
}

/// Median of a few runs, after one uncounted run.
fn median<S: Subject>(subject: &mut S, probe: Probe) -> Result<Duration, S::Error> {
    let mut spent = subject.run(probe.case, probe.call)?;
    let mut runs = Vec::new();
    while runs.len() < RUNS_MIN || (spent < WINDOW && runs.len() < RUNS_MAX) {
        let run = subject.run(probe.case, probe.call)?;
        spent += run;
        runs.push(run);
    }
    runs.sort_unstable();
    Ok(runs[runs.len() / 2])
}

/// Per device, the call with the most bandwidth and the call with the most throughput.
pub(super) fn probes(cases: &[Case], profile: &Profile) -> Vec<Probe> {
    let mut probes = Vec::new();
    for device in &profile.devices {
        let device = device.identity.class;
        for regime in [Regime::MemoryBound, Regime::ComputeBound] {
            let entries = cases.iter().enumerate().flat_map(|(index, case)| {
                let of_device = profile.variant(case).filter(|_| case.device == device);
                let entries = of_device.map_or(&[][..], |variant| variant.table.entries());
                entries.iter().map(move |(call, latency_us)| {
                    let amount = match regime {
                        Regime::MemoryBound => call.bytes(&case.work),
                        Regime::ComputeBound => call.flops(&case.work),
                    };
                    (amount / latency_us, index, *call)
                })
            });
            let best = entries.max_by(|one, other| one.0.total_cmp(&other.0));
            probes.extend(best.map(|(per_us, case, call)| Probe {
                case,
                call,
                regime,
                device,
                per_sec: per_us * 1e6,
            }));
        }
    }
    probes
}

/// Duration of the runs for a cell, within the numbers below: no prediction needs the ratio to the percent. Chosen.
const WINDOW: Duration = Duration::from_millis(500);
const RUNS_MIN: usize = 3;
const RUNS_MAX: usize = 101;
