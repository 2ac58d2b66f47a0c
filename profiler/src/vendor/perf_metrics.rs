//! The compiler's estimate of one kernel: a table of ticks over clock and memory bandwidth.
//!
//! The section is `VpuPerformanceMetrics` of the NPU's interface headers, 320 bytes, little-endian:
//!
//! ```text
//! u32 freq_base, freq_step   MHz of the first row, from row to row
//! u32 bw_base, bw_step       MB/s of the first column, from column to column
//! u64 ticks[5][5]            outer index clock, inner index bandwidth
//! f32 scalability[5][5]      likewise
//! f32 activity_factor
//! ```
//!
//! The numbers are defined in npu_compiler, `dialect/VPU/utils/performance_metrics.cpp`: ticks are the cycles of the
//! compiler's cost model, divided by the row's clock, in periods of the profiling timer, truncated to integers.
//! Compilers up to 8.4 put the same ticks into all columns ("currently ignore bandwidth scaling") and the constants 0,
//! 0.2, 0.4, 0.6, 0.8 into every row of scalability; so neither says anything about a kernel yet. `profiler/MODEL.md`
//! says how far to trust the rest.

use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use super::error::BlobError;

/// Number of rows, and of columns, of the table.
pub const STEPS: usize = 5;

/// The vendor compiler's estimate of a kernel, per clock and bandwidth.
///
/// Invariants:
/// - axes are above 0 and rise, up to 10⁸;
/// - ticks are 1 to 2⁴⁰: every latency is finite and above 0;
/// - scalability is in 0..=1, the activity factor finite and at least 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawPerfMetrics", into = "RawPerfMetrics")]
pub struct PerfMetrics(RawPerfMetrics);

impl PerfMetrics {
    /// Checks an estimate; refuses with the error of the first number that breaks an invariant.
    pub fn new(raw: RawPerfMetrics) -> Result<Self, BlobError> {
        if !(1..=AXIS_MAX).contains(&raw.timer_khz) {
            return Err(BlobError::TimerFrequency {
                found: raw.timer_khz,
            });
        }
        raw.frequency_mhz.check("clock in MHz")?;
        raw.bandwidth_mb_per_sec.check("bandwidth in MB/s")?;
        for &found in raw.ticks.as_flattened() {
            if !(1..=TICKS_MAX).contains(&found) {
                return Err(BlobError::Ticks { found });
            }
        }
        for &found in raw.scalability.as_flattened() {
            if !(0.0..=1.0).contains(&found) {
                return Err(BlobError::Scalability { found });
            }
        }
        let found = raw.activity_factor;
        if !(found.is_finite() && found >= 0.0) {
            return Err(BlobError::ActivityFactor { found });
        }
        Ok(PerfMetrics(raw))
    }

    /// Reads the section of a blob for this platform. `None` if there is no tick: the compiler's analysis was off.
    pub(super) fn read(section: &[u8], platform: u32) -> Result<Option<Self>, BlobError> {
        if section.len() as u64 != SECTION_BYTES {
            return Err(BlobError::PerfMetricsBytes {
                found: section.len() as u64,
            });
        }
        let mut bytes = Bytes::new("section of estimates", section);
        let raw = RawPerfMetrics {
            timer_khz: timer_khz(platform).ok_or(BlobError::Timer { platform })?,
            frequency_mhz: Axis::read(&mut bytes)?,
            bandwidth_mb_per_sec: Axis::read(&mut bytes)?,
            ticks: table(|| bytes.u64())?,
            scalability: table(|| bytes.f32())?,
            activity_factor: bytes.f32()?,
        };
        match raw.ticks == [[0; STEPS]; STEPS] {
            true => Ok(None),
            false => PerfMetrics::new(raw).map(Some),
        }
    }

    /// Clocks of the rows, in MHz, rising.
    pub fn frequencies_mhz(&self) -> [u32; STEPS] {
        self.0.frequency_mhz.values()
    }

    /// Memory bandwidths of the columns, in MB/s, rising.
    pub fn bandwidths_mb_per_sec(&self) -> [u32; STEPS] {
        self.0.bandwidth_mb_per_sec.values()
    }

    /// Latency at each clock of the table, in (MHz, µs), at the highest bandwidth.
    pub fn latencies_us(&self) -> [(u32, f64); STEPS] {
        self.frequencies_mhz()
            .map(|mhz| (mhz, self.latency_us(mhz.into(), f64::INFINITY)))
    }

    /// Latency at a clock in MHz and a memory bandwidth in MB/s, in µs.
    ///
    /// Between two columns the latency is linear in the bandwidth. Between two rows, the *cycles* are linear in the
    /// clock and the latency is cycles over clock, which is exact for a kernel that takes the same cycles at any clock.
    /// The result lies between those of the neighbours. Outside the table it is that of the nearest edge, also at
    /// infinity. A negative or NaN argument gives NaN.
    pub fn latency_us(&self, frequency_mhz: f64, bandwidth_mb_per_sec: f64) -> f64 {
        if !(frequency_mhz >= 0.0 && bandwidth_mb_per_sec >= 0.0) {
            return f64::NAN;
        }
        let (row, row_share) = self.0.frequency_mhz.place(frequency_mhz);
        let (column, column_share) = self.0.bandwidth_mb_per_sec.place(bandwidth_mb_per_sec);
        let ticks = |row: usize| {
            let (low, high) = (self.0.ticks[row][column], self.0.ticks[row][column + 1]);
            low as f64 * (1.0 - column_share) + high as f64 * column_share
        };
        let clocks = self.frequencies_mhz().map(f64::from);
        let (low, high) = (clocks[row] * (1.0 - row_share), clocks[row + 1] * row_share);
        let ticks = (ticks(row) * low + ticks(row + 1) * high) / (low + high);
        ticks * US_PER_MS / f64::from(self.0.timer_khz)
    }

    /// The numbers as they are in the blob, with the timer of its platform.
    pub fn raw(&self) -> &RawPerfMetrics {
        &self.0
    }
}

impl TryFrom<RawPerfMetrics> for PerfMetrics {
    type Error = BlobError;

    fn try_from(raw: RawPerfMetrics) -> Result<Self, BlobError> {
        PerfMetrics::new(raw)
    }
}

impl From<PerfMetrics> for RawPerfMetrics {
    fn from(checked: PerfMetrics) -> RawPerfMetrics {
        checked.0
    }
}

/// Unchecked [`PerfMetrics`]. Tables are indexed by clock, then by bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename = "PerfMetrics", deny_unknown_fields)]
pub struct RawPerfMetrics {
    /// Frequency of the timer that counts the ticks, in kHz; the platform's, not in the blob.
    pub timer_khz: u32,
    /// Clocks of the rows, in MHz.
    pub frequency_mhz: Axis,
    /// Memory bandwidths of the columns, in MB/s.
    pub bandwidth_mb_per_sec: Axis,
    /// Expected duration of one inference, in periods of the timer.
    pub ticks: [[u64; STEPS]; STEPS],
    /// Scalability of the kernel with bandwidth, from 0 to 1; constants up to compiler 8.4.
    pub scalability: [[f32; STEPS]; STEPS],
    /// Estimated share of the device's peak power; above 1 in extreme cases.
    pub activity_factor: f32,
}

/// The values of the rows or columns: [`STEPS`] of them, at equal distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// The first value.
    pub base: u32,
    /// The distance to the next.
    pub step: u32,
}

impl Axis {
    fn read(bytes: &mut Bytes<'_>) -> Result<Self, BlobError> {
        let (base, step) = (bytes.u32()?, bytes.u32()?);
        Ok(Axis { base, step })
    }

    fn check(self, axis: &'static str) -> Result<(), BlobError> {
        let Axis { base, step } = self;
        let rises = base >= 1 && step >= 1;
        let last = u64::from(base) + u64::from(step) * (STEPS as u64 - 1);
        match rises && last <= AXIS_MAX.into() {
            true => Ok(()),
            false => Err(BlobError::Axis { axis, base, step }),
        }
    }

    /// All values. Only after [`Axis::check`], which excludes an overflow.
    fn values(self) -> [u32; STEPS] {
        std::array::from_fn(|index| self.base + self.step * index as u32)
    }

    /// Index of the lower neighbour of a value, and the share of the upper one, the next, from 0 to 1.
    fn place(self, value: f64) -> (usize, f64) {
        let last = (STEPS - 1) as f64;
        let place = ((value - f64::from(self.base)) / f64::from(self.step)).clamp(0.0, last);
        let lower = place.floor().min(last - 1.0);
        (lower as usize, place - lower)
    }
}

fn table<T: Copy + Default>(
    mut next: impl FnMut() -> Result<T, BlobError>,
) -> Result<[[T; STEPS]; STEPS], BlobError> {
    let mut table = [[T::default(); STEPS]; STEPS];
    for entry in table.as_flattened_mut() {
        *entry = next()?;
    }
    Ok(table)
}

/// Frequency of the profiling timer in kHz: `PERF_CLK_DEFAULT_VALUE_MHZ` of npu_compiler,
/// `NPU37XX/dialect/config/constraints.hpp` and `NPU40XX/dialect/config/constraints.hpp`; 50XX takes the
/// latter. With 38.4 MHz a plain f16 product on 4000 would beat the device's multipliers.
fn timer_khz(platform: u32) -> Option<u32> {
    match platform {
        3720 => Some(38_400),
        4000 | 5010 | 5020 => Some(19_200),
        _ => None,
    }
}

/// The largest clock in MHz, bandwidth in MB/s or timer in kHz: chosen, a hundred times today's and more.
pub(super) const AXIS_MAX: u32 = 100_000_000;
/// The longest estimate: chosen, 2^40 ticks are eight hours at 38.4 MHz.
pub(super) const TICKS_MAX: u64 = 1 << 40;

const SECTION_BYTES: u64 = 320;
const US_PER_MS: f64 = 1000.0;

#[cfg(test)]
pub(super) mod tests;
