//! The use that a call makes of a lane and of the memory, and lines below that over the call's size.

use heg_sched::Lane;

/// Time that something takes of a lane, and of the memory that all lanes share, in µs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Use {
    pub(super) lane_us: f64,
    pub(super) memory_us: f64,
}

impl Use {
    pub(super) fn each(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            lane_us: f(self.lane_us, other.lane_us),
            memory_us: f(self.memory_us, other.memory_us),
        }
    }

    pub(super) fn by(self, units: f64) -> Self {
        self.each(self, |us, _| us / units)
    }

    pub(super) fn plus(self, other: Self) -> Self {
        self.each(other, |one, other| one + other)
    }

    pub(super) fn least(self, other: Self) -> Self {
        self.each(other, f64::min)
    }
}

/// The use of each lane, if it can.
pub(super) type ByLane = [Option<Use>; Lane::ALL.len()];

pub(super) fn by_lane(of: impl Fn(Lane) -> Option<Use>) -> ByLane {
    Lane::ALL.map(of)
}

/// The smaller of two uses, where a lane has both.
pub(super) fn least(one: Option<Use>, other: Option<Use>) -> Option<Use> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.least(other)),
        (one, other) => one.or(other),
    }
}

/// Sizes from 1 to `max` that grow by a twentieth, each with the size before the next one; multiples of `exact` are among
/// them.
pub(super) fn sizes(max: u32, exact: u32) -> Vec<(u32, u32)> {
    let mut firsts = vec![1];
    let mut last = 1;
    while last < max {
        let mut next = last + (last / 20).max(1);
        // Static kernels have steps at multiples of a chunk, which matter where there are few.
        if last < exact.saturating_mul(16) {
            next = match last % exact {
                0 => last + 1,
                _ => next.min(last.next_multiple_of(exact)),
            };
        }
        last = next.min(max);
        firsts.push(last);
    }
    let ends = firsts.iter().skip(1).map(|next| next - 1).chain([max]);
    firsts.iter().copied().zip(ends).collect()
}

/// A line below a call's use: `offset + slope · context`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    pub(super) offset: Use,
    pub(super) slope: Use,
}

/// Share of the use with the shortest context that is a line's offset.
const OFFSET: f64 = 0.98;

impl Line {
    /// Returns a line below uses that are at least the given ones up to each context.
    pub(super) fn below(points: &[(f64, Use)]) -> Option<Self> {
        let (_, first) = points.first()?;
        let offset = first.each(*first, |us, _| OFFSET * us);
        let slope = |(context, found): &(f64, Use)| {
            let above = found.each(offset, |us, offset| us - offset);
            above.by(*context)
        };
        let slopes = points.iter().map(slope).reduce(Use::least)?;
        Some(Self {
            offset,
            slope: slopes.each(slopes, |us, _| us.max(0.0)),
        })
    }

    pub(super) fn at(self, context: f64) -> Use {
        self.offset
            .plus(self.slope.each(self.slope, |us, _| us * context))
    }
}
