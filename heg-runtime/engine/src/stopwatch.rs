//! The longest kernel of a lane, and the longest time in which it does not give way.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use heg_spec::Group;

use heg_sched::Launch;

/// The longest times so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Longest {
    /// Time of the longest kernel.
    pub(super) kernel: Duration,
    /// Longest time from one point where a lane may yield to the next: a kernel of a prompt, a layer of a decode
    /// iteration, its last layer with head and sampling, an iteration of continuous batching.
    pub(super) stretch: Duration,
}

/// Times the work of a lane. A stretch in which a kernel runs for the first time at its place does not count:
/// the plugin packs the weights then.
pub(super) struct Stopwatch {
    longest: Longest,
    ran: BTreeSet<(Option<u32>, Group)>,
    /// The last point where the lane could yield.
    point: Instant,
    /// The time at which the running kernel began.
    begin: Instant,
    /// The longest kernel since that point.
    kernel: Duration,
    /// Whether a kernel has run for the first time since that point.
    packed: bool,
}

impl Stopwatch {
    pub(super) fn new() -> Self {
        Self {
            longest: Longest::default(),
            ran: BTreeSet::new(),
            point: Instant::now(),
            begin: Instant::now(),
            kernel: Duration::ZERO,
            packed: false,
        }
    }

    /// Notes the beginning of a job.
    pub(super) fn start(&mut self) {
        self.begin_stretch(Instant::now());
    }

    /// Notes the beginning of the first kernel of an order.
    pub(super) fn begin_kernel(&mut self) {
        self.begin = Instant::now();
    }

    /// Notes that a kernel has run, and that the next one of its order begins.
    pub(super) fn ran(&mut self, launch: Launch) {
        let now = Instant::now();
        self.packed |= self.ran.insert((launch.layer, launch.group));
        self.kernel = self.kernel.max(now - self.begin);
        self.begin = now;
    }

    /// Notes that the lane could yield here, or that its job is over.
    pub(super) fn may_yield(&mut self) {
        let now = Instant::now();
        if !self.packed {
            self.longest.kernel = self.longest.kernel.max(self.kernel);
            self.longest.stretch = self.longest.stretch.max(now - self.point);
        }
        self.begin_stretch(now);
    }

    /// Notes that the lane goes on after it made way for another engine: that time is no kernel's.
    pub(super) fn resume(&mut self) {
        let now = Instant::now();
        self.begin_stretch(now);
        self.begin = now;
    }

    /// The longest times so far.
    pub(super) fn longest(&self) -> Longest {
        self.longest
    }

    fn begin_stretch(&mut self, now: Instant) {
        self.point = now;
        self.kernel = Duration::ZERO;
        self.packed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ago(ms: u64) -> Instant {
        Instant::now() - Duration::from_millis(ms)
    }

    #[test]
    fn kernels_count_from_their_second_run_at_a_place() {
        let qkv = |layer| Launch {
            layer: Some(layer),
            group: Group::Qkv,
        };
        let mut stopwatch = Stopwatch::new();
        stopwatch.start();
        stopwatch.point = ago(500);
        stopwatch.begin = ago(400);
        stopwatch.ran(qkv(0));
        stopwatch.may_yield();
        assert_eq!(stopwatch.longest(), Longest::default());

        stopwatch.point = ago(90);
        stopwatch.begin = ago(60);
        stopwatch.ran(qkv(0));
        stopwatch.begin = ago(20);
        stopwatch.ran(qkv(0));
        stopwatch.may_yield();
        // Another layer's weights are packed, and the job began anew.
        stopwatch.begin = ago(700);
        stopwatch.ran(qkv(1));
        stopwatch.start();
        stopwatch.may_yield();
        let Longest { kernel, stretch } = stopwatch.longest();
        let about = |span: Duration, ms| (ms..ms + 30).contains(&(span.as_millis() as u64));
        assert!(
            about(kernel, 60) && about(stretch, 90),
            "{kernel:?} {stretch:?}"
        );
    }
}
