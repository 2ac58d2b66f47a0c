//! The project's goals for a server under attack, and whether a measurement meets them.

use super::attack::Attack;
use super::measure::{KV_MIB, Seen};
use super::other::Block;
use super::scene::{Became, Sent};
use crate::statistics::quantile;
use serde::Serialize;

/// A goal and whether it is met.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Criterion {
    pub(super) name: &'static str,
    pub(super) kept: bool,
    /// The observation, if it is not met.
    pub(super) seen: String,
}

/// The other client's figures, each the median over rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Latency {
    pub(super) median_ms: f64,
    pub(super) p99_ms: f64,
}

impl Latency {
    /// The latency over some rounds; NaN if there are none.
    pub(super) fn of(rounds: &[Block]) -> Self {
        let each = |share: f64| -> f64 {
            let all: Vec<f64> = rounds
                .iter()
                .map(|block| quantile(&block.times_ms, share))
                .collect();
            median(&all)
        };
        Self {
            median_ms: each(0.5),
            p99_ms: each(0.99),
        }
    }
}

/// The median, the lower of the two middle values for an even number; NaN if there are no figures.
pub(super) fn median(figures: &[f64]) -> f64 {
    quantile(figures, 0.5)
}

/// Every goal that applies to the attack.
pub(super) fn criteria(attack: &Attack, seen: &Seen) -> Vec<Criterion> {
    let mut all = Vec::new();
    let mut add = |name, kept: bool, words: String| {
        let seen = if kept { String::new() } else { words };
        all.push(Criterion { name, kept, seen });
    };
    if !attack.ends_server {
        let died = seen.died.clone();
        add(LIVES, died.is_none(), died.unwrap_or_default());
    }
    if seen.peak_bytes > 0 {
        let over = over_budget_mib(seen);
        add(
            MEMORY,
            over <= OVER_MIB_MAX,
            format!("{over:.0} MiB above the budgets"),
        );
    }
    if !seen.beside.is_empty() {
        let (kept, words) = others(seen);
        add(OTHERS, kept, words);
    }
    let (judged, wrong) = senders(attack, &seen.sent);
    if judged > 0 {
        let first = wrong.first().cloned().unwrap_or_default();
        let words = format!("{} of {judged}: {first}", wrong.len());
        add(SENDER, wrong.is_empty(), words);
    }
    if !seen.gone_busy_ms.is_empty() && !attack.ends_server {
        let longest = seen.gone_busy_ms.iter().copied().fold(0.0, f64::max);
        let words = format!("{longest:.0} ms of processor time in the 200 ms after");
        add(GONE, longest <= GONE_BUSY_MS_MAX, words);
    }
    for finding in &seen.findings {
        let words = format!("{}: {}", finding.claim, finding.seen);
        add(STEPS, finding.held, words);
    }
    all
}

pub(super) const LIVES: &str = "lives";
pub(super) const MEMORY: &str = "memory";
pub(super) const OTHERS: &str = "others";
pub(super) const SENDER: &str = "sender";
pub(super) const GONE: &str = "gone";
pub(super) const STEPS: &str = "steps";

/// The server's largest memory above its baseline and the clients' budgets, in MiB.
pub(super) fn over_budget_mib(seen: &Seen) -> f64 {
    over_baseline_mib(seen) - BUDGETS_MIB
}

/// The server's largest memory above its baseline, in MiB.
pub(super) fn over_baseline_mib(seen: &Seen) -> f64 {
    seen.peak_bytes.saturating_sub(seen.baseline_bytes) as f64 / (1 << 20) as f64
}

/// Memory that one client may make the server keep, in MiB: its account (64), all small bodies (24), and the KV caches.
pub(super) const BUDGETS_MIB: f64 = (64 + 24 + KV_MIB) as f64;

/// The goal for memory above the budgets, in MiB.
const OVER_MIB_MAX: f64 = 64.0;

/// Whether the other client's requests were answered, about as fast as alone.
fn others(seen: &Seen) -> (bool, String) {
    let failures: Vec<&String> = seen.beside.iter().flat_map(|it| &it.failures).collect();
    if let Some(first) = failures.first() {
        return (
            false,
            format!("{} requests failed: {first}", failures.len()),
        );
    }
    let (alone, beside) = (Latency::of(&seen.alone), Latency::of(&seen.beside));
    let pairs = [
        ("median", alone.median_ms, beside.median_ms),
        ("P99", alone.p99_ms, beside.p99_ms),
    ];
    let late = pairs.into_iter().find(|(_, alone, beside)| {
        // NaN counts as late.
        let in_time = *beside <= alone * TIMES_MAX && beside - alone <= MORE_MS_MAX;
        !in_time
    });
    match late {
        None => (true, String::new()),
        Some((name, alone, beside)) => {
            let times = beside / alone;
            (false, format!("{name} {times:.1} times as long"))
        }
    }
}

/// The goals for another client's median and P99 beside an attack: the factor over the time alone, and the additional
/// ms.
const TIMES_MAX: f64 = 1.5;
const MORE_MS_MAX: f64 = 50.0;

/// Number of the sender's requests that can be judged, and the failures among them.
fn senders(attack: &Attack, sent: &[Sent]) -> (usize, Vec<String>) {
    let longest_s = attack
        .budget
        .map(|budget| budget.as_secs_f64() + LATE_S_MAX);
    let is_late = |it: &Sent| longest_s.is_some_and(|longest| it.seconds > longest);
    let judged = sent
        .iter()
        .filter(|it| it.became != Became::Waiting || is_late(it));
    let mut count = 0;
    let mut wrong = Vec::new();
    for it in judged {
        count += 1;
        let seconds = it.seconds;
        match &it.became {
            Became::Waiting => wrong.push(format!("no answer in {seconds:.1} s")),
            Became::Cut => wrong.push(format!("closed without an answer after {seconds:.1} s")),
            Became::Answered { status, reason } => {
                let is_refusal = REFUSALS.contains(status);
                if *status != 200 && !is_refusal {
                    wrong.push(format!("status {status}: {reason}"));
                } else if is_refusal && reason.is_empty() {
                    wrong.push(format!("status {status} without a reason"));
                } else if is_late(it) {
                    wrong.push(format!("status {status} after {seconds:.1} s"));
                }
            }
        }
    }
    (count, wrong)
}

/// Statuses with which a sender may be refused; a request that can be answered in time may also be answered.
const REFUSALS: [u16; 5] = [400, 413, 422, 429, 504];

/// The goal for the delay of an answer beyond the sender's budget or deadline, in s.
const LATE_S_MAX: f64 = 1.0;

/// One tick of Linux's clock in 200 ms: an idle server uses as much now and then.
pub(super) const GONE_BUSY_MS_MAX: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn attack() -> Attack {
        Attack {
            budget: Some(Duration::from_secs(2)),
            ..Attack::beside("x", "0", "an attack", |_| {})
        }
    }

    fn block(times_ms: &[f64]) -> Block {
        Block {
            times_ms: times_ms.to_vec(),
            failures: Vec::new(),
        }
    }

    fn good() -> Seen {
        Seen {
            alone: vec![
                block(&[2.0, 2.0, 3.0]),
                block(&[2.0, 2.0, 90.0]),
                block(&[2.0, 2.0, 3.0]),
            ],
            beside: vec![
                block(&[2.5, 2.5, 4.0]),
                block(&[2.5, 2.5, 4.0]),
                block(&[9.0; 3]),
            ],
            sent: vec![
                answered(400, "too large", 2.5),
                answered(200, "", 0.1),
                waiting(1.0),
            ],
            baseline_bytes: 10 << 20,
            peak_bytes: 200 << 20,
            gone_busy_ms: vec![0.0, 10.0],
            ..Seen::default()
        }
    }

    fn answered(status: u16, reason: &str, seconds: f64) -> Sent {
        let reason = reason.to_owned();
        Sent {
            seconds,
            became: Became::Answered { status, reason },
        }
    }

    fn waiting(seconds: f64) -> Sent {
        Sent {
            seconds,
            became: Became::Waiting,
        }
    }

    /// The only missed goal, and its observation.
    fn missed(change: impl FnOnce(&mut Seen)) -> (&'static str, String) {
        let mut seen = good();
        change(&mut seen);
        let missed: Vec<Criterion> = criteria(&attack(), &seen)
            .into_iter()
            .filter(|it| !it.kept)
            .collect();
        assert_eq!(missed.len(), 1, "{missed:?}");
        (missed[0].name, missed[0].seen.clone())
    }

    #[test]
    fn a_good_server_keeps_all_goals() {
        let all = criteria(&attack(), &good());
        let names: Vec<_> = all.iter().map(|it| it.name).collect();
        assert_eq!(names, [LIVES, MEMORY, OTHERS, SENDER, GONE]);
        assert!(all.iter().all(|it| it.kept), "{all:?}");
    }

    #[test]
    fn each_goal_is_missed_alone() {
        let found = missed(|seen| seen.died = Some("was ended by signal 6".to_owned()));
        assert_eq!(found, (LIVES, "was ended by signal 6".to_owned()));
        let found = missed(|seen| seen.peak_bytes = 227 << 20);
        assert_eq!(found, (MEMORY, "65 MiB above the budgets".to_owned()));
        let found = missed(|seen| seen.beside[1] = block(&[4.0; 3]));
        assert_eq!(found, (OTHERS, "median 2.0 times as long".to_owned()));
        let found = missed(|seen| seen.beside[0].failures.push("504 late".to_owned()));
        assert_eq!(found, (OTHERS, "1 requests failed: 504 late".to_owned()));
        let found = missed(|seen| seen.gone_busy_ms.push(150.0));
        assert_eq!(found.0, GONE);
        let claim = Finding::new("the newer wins", false, "5 of 10");
        let found = missed(|seen| seen.findings.push(claim));
        assert_eq!(found, (STEPS, "the newer wins: 5 of 10".to_owned()));
    }

    #[test]
    fn a_sender_is_answered_in_time_and_told_why() {
        for (sent, words) in [
            (
                answered(400, "", 0.1),
                "1 of 3: status 400 without a reason",
            ),
            (answered(400, "late", 3.5), "1 of 3: status 400 after 3.5 s"),
            (answered(500, "oh", 0.1), "1 of 3: status 500: oh"),
            (waiting(3.5), "1 of 3: no answer in 3.5 s"),
        ] {
            let found = missed(|seen| seen.sent.push(sent));
            assert_eq!(found, (SENDER, words.to_owned()));
        }
    }

    use super::super::attack::Finding;
}
