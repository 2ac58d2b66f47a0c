//! The times of an answer, and the time that its drafts saved.

use std::time::{Duration, Instant};

use heg_runtime::energy::{DomainEnergy, EnergyMeter};
use heg_runtime::engine::{PairStatus, PartStatus, Status};
use heg_runtime::exec::CutCounts;
use heg_workload::MechanismUse;

use crate::options::peak_rss_bytes;
use crate::terminal::shown;

/// The times of an answer.
#[derive(Default)]
pub(super) struct Timing {
    /// Time at which the first token arrived.
    first_token: Option<Instant>,
    /// Time from submission to the first token.
    pub(super) ttft: Duration,
    /// Time from the first token to the last.
    decode: Duration,
    /// Number of tokens of the answer.
    pub(super) generated: usize,
}

impl Timing {
    pub(super) fn note_token(&mut self, submitted: Instant) {
        let now = Instant::now();
        let first = *self.first_token.get_or_insert(now);
        self.ttft = first - submitted;
        self.decode = now - first;
        self.generated += 1;
    }

    /// Returns the time per output token after the first, in milliseconds; 0 for a single token.
    pub(super) fn tpot_ms(&self) -> f64 {
        match self.generated {
            0 | 1 => 0.0,
            generated => self.decode.as_secs_f64() * 1e3 / (generated - 1) as f64,
        }
    }
}

/// Prints the output of `--stats`; `started` is the start time of the process.
pub(super) fn print(prompt_tokens: usize, timing: &Timing, status: &Status, started: Instant) {
    let first_token = timing.first_token.map(|at| at - started);
    let first_token_ms = first_token.unwrap_or_default().as_secs_f64() * 1e3;
    let ttft = timing.ttft.as_secs_f64();
    let rate = |tokens: usize, seconds: f64| {
        if seconds > 0.0 {
            tokens as f64 / seconds
        } else {
            0.0
        }
    };
    eprintln!("process start to first token  {first_token_ms:>9.1} ms");
    eprintln!(
        "TTFT   {:>9.1} ms  prompt of {prompt_tokens} tokens, {:.1} tokens/s",
        ttft * 1e3,
        rate(prompt_tokens, ttft)
    );
    eprintln!(
        "TPOT   {:>9.1} ms  {} tokens, {:.1} tokens/s",
        timing.tpot_ms(),
        timing.generated,
        rate(
            timing.generated.saturating_sub(1),
            timing.decode.as_secs_f64()
        )
    );
    for line in states(status, prompt_tokens)
        .into_iter()
        .chain(drafts(status))
    {
        eprintln!("{line}");
    }
    if let Some(pair) = &status.pair {
        eprintln!("{}", hand_overs(pair));
        eprintln!("{}", cuts(pair.cuts));
        if let Some(parts) = &pair.parts {
            eprintln!("{}", parts_on_device(parts));
        }
    }
    if let Some(moved) = status.moved_caches {
        let bytes = moved.to_device_bytes + moved.to_host_bytes;
        eprintln!(
            "copied {:>9.2} MB  of keys and values between host and GPU",
            bytes as f64 / 1e6
        );
    }
    for line in MechanismUse::from(&status.mechanisms).to_string().lines() {
        eprintln!("policy {line}");
    }
    eprintln!(
        "kernel {:>9.2} ms  the longest, first runs apart",
        status.kernel_us_max as f64 / 1e3
    );
    eprintln!(
        "memory {:>9.1} MB  peak resident",
        peak_rss_bytes() as f64 / 1e6
    );
}

/// Prints the energy of the machine while an answer was made, by domain, if the machine counts it.
pub(super) fn print_energy(meter: Option<&mut EnergyMeter>, tokens: usize) {
    for DomainEnergy { name, joules } in meter.map(EnergyMeter::read).unwrap_or_default() {
        let each = joules / tokens.max(1) as f64;
        eprintln!(
            "energy {joules:>9.2} J   {name}, all processes, {each:.3} J a token of prompt and answer"
        );
    }
}

/// Tokens of prompts that came from states of the bundle.
pub(super) fn baked_tokens(status: &Status) -> u64 {
    let states = status.baked.iter().flat_map(|baked| &baked.read_tokens);
    states.map(|(_, tokens)| tokens).sum()
}

/// Describes what of the only prompt of an engine came from a state of the bundle, and what was wrong with that.
fn states(status: &Status, prompt_tokens: usize) -> Vec<String> {
    let Some(baked) = &status.baked else {
        return Vec::new();
    };
    let read_ms = baked.read_us as f64 / 1e3;
    let read = baked.read_tokens.iter().map(|(name, tokens)| {
        format!("state  {read_ms:>9.1} ms  {tokens} of {prompt_tokens} prompt tokens read from state `{name}`")
    });
    let trouble = baked.trouble.iter();
    let trouble = trouble.map(|why| format!("state  {} was passed over", shown(why)));
    read.chain(trouble).collect()
}

/// Describes the waits of two devices for each other.
fn hand_overs(pair: &PairStatus) -> String {
    let PairStatus {
        orders: _,
        hand_overs,
        median_ns,
        p99_ns,
        parts: _,
        cuts: _,
        lost,
        why_lost,
        missing,
    } = pair;
    let why = why_lost.iter().map(|why| format!(": {}", shown(why)));
    let why: String = why.collect();
    let lost = lost.map_or(String::new(), |side| {
        format!("; the {side} device was lost{why}")
    });
    let missing = missing
        .iter()
        .map(|why| format!("; CPU alone: {}", shown(why)));
    let missing: String = missing.collect();
    let [median_us, p99_us] = [median_ns, p99_ns].map(|ns| *ns as f64 / 1e3);
    format!(
        "pair   {median_us:>9.1} us  median of {hand_overs} hand-overs, {p99_us:.1} us for 99 in 100{lost}{missing}"
    )
}

/// Describes what said how two devices share products.
fn cuts(counts: CutCounts) -> String {
    let CutCounts {
        measured,
        written,
        online,
    } = counts;
    let all = measured + written + online;
    format!(
        "cuts   {all:>9}     products: {measured} by measured pieces, {written} as the bundle says, {online} by speeds of this run"
    )
}

/// Describes the parts of products that a GPU or an NPU computed.
fn parts_on_device(parts: &PartStatus) -> String {
    let PartStatus {
        device,
        count,
        passes,
        cpu_passes,
        median_ns,
        p99_ns,
    } = parts;
    let [median_us, p99_us] = [median_ns, p99_ns].map(|ns| *ns as f64 / 1e3);
    let device = shown(device);
    let alone = match passes {
        0 => String::new(),
        passes => format!(", which ran {passes} passes alone"),
    };
    let without = match cpu_passes {
        0 => String::new(),
        passes => format!("; the CPU ran {passes} passes without it, which is faster"),
    };
    format!(
        "parts  {median_us:>9.1} us  median way there and back of {count}, {p99_us:.1} us for 99 in 100; on {device}{alone}{without}"
    )
}

/// Describes the drafts of the only answer of an engine, and the time that they saved.
fn drafts(status: &Status) -> Vec<String> {
    let Status {
        decode_steps: steps,
        drafted_tokens: drafted,
        accepted_tokens: accepted,
        ..
    } = *status;
    if drafted == 0 {
        return Vec::new();
    }
    let tokens_a_step = (steps + accepted) as f64 / steps.max(1) as f64;
    let counts = format!(
        "drafts {tokens_a_step:>9.2} tokens a step  {accepted} of {drafted} drafted tokens accepted in {steps} steps"
    );
    let plain = status.plain_iterations.count;
    let saved = saved_ms(status).map(|(saved_ms, plain_ms)| {
        format!(
            "saved  {saved_ms:>9.1} ms  an estimate, from {plain} steps without a draft of {plain_ms:.2} ms each"
        )
    });
    [counts].into_iter().chain(saved).collect()
}

/// Returns an estimate of the time that drafts saved in ms, and the mean time of a step without a draft. Without drafts
/// there would have been one more step for each accepted token, and every step would have taken as long as those
/// without a draft. `None` if too few of those were measured.
fn saved_ms(status: &Status) -> Option<(f64, f64)> {
    let (plain, drafted) = (status.plain_iterations, status.drafted_iterations);
    if plain.count < PLAIN_STEPS_MIN {
        return None;
    }
    let plain_ms = plain.time_us as f64 / 1e3 / plain.count as f64;
    let steps = drafted.count + status.accepted_tokens;
    Some((
        steps as f64 * plain_ms - drafted.time_us as f64 / 1e3,
        plain_ms,
    ))
}

/// Minimum number of steps without a draft. Chosen: a mean of fewer says little.
const PLAIN_STEPS_MIN: u64 = 3;

#[cfg(test)]
mod tests {
    use heg_runtime::engine::{BakedStatus, IterationStatus};

    use super::*;

    fn status(plain: u64, drafted: u64) -> Status {
        Status {
            decode_steps: plain + drafted,
            drafted_tokens: 40,
            accepted_tokens: 25,
            plain_iterations: IterationStatus {
                count: plain,
                time_us: plain * 2_000,
            },
            drafted_iterations: IterationStatus {
                count: drafted,
                time_us: drafted * 3_000,
            },
            ..Status::default()
        }
    }

    #[test]
    fn saved_time_is_that_of_accepted_tokens_less_what_drafts_cost() {
        // 35 steps of 2 ms, compared with 10 that took 3 ms.
        assert_eq!(saved_ms(&status(5, 10)), Some((40.0, 2.0)));
        assert_eq!(saved_ms(&status(2, 10)), None);
    }

    #[test]
    fn a_state_that_was_read_is_told_with_its_time() {
        let status = Status {
            baked: Some(BakedStatus {
                found: 1,
                read_tokens: vec![("mail".to_owned(), 1984)],
                read_us: 12_340,
                trouble: Some("state `notes`: page 3 is damaged".to_owned()),
                ..BakedStatus::default()
            }),
            ..Status::default()
        };
        assert_eq!(
            states(&status, 2003),
            [
                "state       12.3 ms  1984 of 2003 prompt tokens read from state `mail`",
                "state  state `notes`: page 3 is damaged was passed over"
            ]
        );
        assert_eq!(baked_tokens(&status), 1984);
        assert!(states(&Status::default(), 9).is_empty());
    }

    #[test]
    fn hand_overs_are_told_with_a_device_that_was_lost() {
        let pair = |lost| PairStatus {
            orders: 2,
            hand_overs: 320,
            median_ns: 384,
            p99_ns: 12_288,
            parts: None,
            cuts: CutCounts {
                measured: 7,
                written: 300,
                online: 20,
            },
            lost,
            why_lost: lost.map(|_| "it is gone".to_owned()),
            missing: None,
        };
        let line = "pair         0.4 us  median of 320 hand-overs, 12.3 us for 99 in 100";
        assert_eq!(hand_overs(&pair(None)), line);
        assert_eq!(
            cuts(pair(None).cuts),
            "cuts         327     products: 7 by measured pieces, 300 as the bundle says, 20 by speeds of this run"
        );
        let lost = hand_overs(&pair(Some(heg_spec::Side::Second)));
        let told = "; the second device was lost: it is gone";
        assert_eq!(lost, format!("{line}{told}"));
        let alone = PairStatus {
            missing: Some("no such device".to_owned()),
            ..pair(None)
        };
        assert_eq!(
            hand_overs(&alone),
            format!("{line}; CPU alone: no such device")
        );
        let parts = PartStatus {
            device: "AI Boost".to_owned(),
            count: 96,
            passes: 12,
            cpu_passes: 0,
            median_ns: 40_960,
            p99_ns: 163_840,
        };
        let line = "parts       41.0 us  median way there and back of 96, 163.8 us for 99 in 100; on AI Boost, which ran 12 passes alone";
        assert_eq!(parts_on_device(&parts), line);
        let faster = PartStatus {
            cpu_passes: 30,
            ..parts
        };
        let without = "; the CPU ran 30 passes without it, which is faster";
        assert_eq!(parts_on_device(&faster), format!("{line}{without}"));
    }

    #[test]
    fn drafts_are_told_where_there_were_some() {
        assert_eq!(
            drafts(&status(5, 10)),
            [
                "drafts      2.67 tokens a step  25 of 40 drafted tokens accepted in 15 steps",
                "saved       40.0 ms  an estimate, from 5 steps without a draft of 2.00 ms each"
            ]
        );
        assert_eq!(drafts(&status(0, 10)).len(), 1);
        assert!(drafts(&Status::default()).is_empty());
    }
}
