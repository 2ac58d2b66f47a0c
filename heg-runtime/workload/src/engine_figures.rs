//! The engine figures of a HEG server after a trace: measured preemption times, and their worst case.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Metrics since the server's start.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct EngineFigures {
    /// Start delay of reactive requests that arrived while no device was busy.
    pub idle: WaitFigures,
    /// Start delay of reactive requests that arrived while only proactive requests ran, which were preempted.
    pub preempting: WaitFigures,
    /// Start delay of reactive requests that had to wait for requests that are not preempted.
    pub queued: WaitFigures,
    /// Longest kernel, in ms, first runs excluded.
    pub kernel_ms_max: f64,
    /// Longest time without a preemption point, in ms, first runs excluded.
    pub stretch_ms_max: f64,
    /// Number of launches: kernels and iterations.
    pub launches: u64,
    /// Time in the scheduler and in carrying out its actions, in µs per launch.
    pub dispatch_us_per_launch: f64,
}

/// Time from a request's submission to the launch of its first kernel. Zeros if there were no requests.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct WaitFigures {
    /// Number of requests.
    pub requests: u64,
    /// Median, in ms.
    pub median_ms: f64,
    /// 90th percentile, in ms.
    pub p90_ms: f64,
    /// Longest time, in ms.
    pub max_ms: f64,
}

impl EngineFigures {
    /// Parses the text of `/metrics`; `None` if it is another server's.
    pub fn parse(metrics: &str) -> Option<Self> {
        let value = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name));
            line?.strip_prefix(' ')?.trim().parse::<f64>().ok()
        };
        let wait = |entry: &str| {
            let ms = |figure: &str| {
                let labels = format!("{{entry=\"{entry}\",figure=\"{figure}\"}}");
                Some(value(&format!("heg_reactive_wait_seconds{labels}"))? * 1e3)
            };
            let count = format!("heg_reactive_first_kernels_total{{entry=\"{entry}\"}}");
            Some(WaitFigures {
                requests: value(&count)? as u64,
                median_ms: ms("median")?,
                p90_ms: ms("p90")?,
                max_ms: ms("max")?,
            })
        };
        let launches = value("heg_launches_total")?;
        let dispatch_us = value("heg_dispatch_seconds_total")? * 1e6;
        Some(Self {
            idle: wait("idle")?,
            preempting: wait("preempting")?,
            queued: wait("queued")?,
            kernel_ms_max: value("heg_longest_kernel_seconds")? * 1e3,
            stretch_ms_max: value("heg_longest_stretch_seconds")? * 1e3,
            launches: launches as u64,
            dispatch_us_per_launch: dispatch_us / launches.max(1.0),
        })
    }
}

/// Formats the figures as lines of text.
impl fmt::Display for EngineFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "reactive preemption: {}; longest kernel {:.1} ms, longest stretch {:.1} ms; scheduling and dispatch \
             {:.1} µs per launch",
            self.preempting, self.kernel_ms_max, self.stretch_ms_max, self.dispatch_us_per_launch
        )?;
        writeln!(f, "where nothing ran:   {}", self.idle)?;
        writeln!(f, "behind others:       {}", self.queued)
    }
}

impl fmt::Display for WaitFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.requests {
            0 => f.write_str("no request"),
            1 => write!(f, "{:.2} ms, one request", self.max_ms),
            requests => write!(
                f,
                "median {:.2} ms, max {:.2} ms over {requests} requests",
                self.median_ms, self.max_ms
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = include_str!(
        "../../server/src/snapshots/heg_server__metrics__tests__the_engines_figures_are_in_seconds.snap"
    );

    #[test]
    fn what_our_server_says_is_read() {
        let figures = EngineFigures::parse(METRICS).unwrap();
        insta::assert_snapshot!(figures);
        insta::assert_snapshot!(serde_json::to_string(&figures).unwrap());
    }

    #[test]
    fn other_servers_say_nothing() {
        assert_eq!(EngineFigures::parse(""), None);
        let other = METRICS.replace("heg_longest_kernel", "vllm_longest_kernel");
        assert_eq!(EngineFigures::parse(&other), None);
        let nonsense = METRICS.replace("heg_launches_total ", "heg_launches_total x");
        assert_eq!(EngineFigures::parse(&nonsense), None);
    }
}
