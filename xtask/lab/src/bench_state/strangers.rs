//! Prompts that another client has kept, and prompts that nobody has, in pairs: the time to an answer of one token, by
//! the stranger's own clock, must not tell which is which.

use super::Bench;
use super::ask::{Question, tokens};
use super::kept_folder::KeptFolder;
use crate::bench_attacks::server::{ATTACKER, OTHER};
use crate::lines::{Line, Report};
use crate::statistics::Estimate;
use anyhow::Result;
use heg_spec::Seeded;
use std::time::Instant;
use xtask::fail::Fail;

pub(super) fn measure(bench: &Bench, report: &mut Report) -> Result<()> {
    let kept = KeptFolder::new()?;
    let server = bench.server(Some(&kept)).server()?;
    let ask = |prompt: &[u32], client| {
        let question = Question {
            prompt,
            answer: 1,
            client,
        };
        question.ask(server.port())
    };
    for pair in 0..bench.pairs {
        ask(&tokens(kept_seed(pair), PROMPT), OTHER)?;
    }
    kept.wait_for(bench.pairs * PROMPT)?;
    let mut seeded = Seeded::new(1);
    let (mut known_ms, mut unknown_ms) = (Vec::new(), Vec::new());
    for pair in 0..bench.pairs {
        let mut seeds = [kept_seed(pair), kept_seed(pair) + 1];
        seeded.shuffle(&mut seeds);
        for seed in seeds {
            let prompt = tokens(seed, PROMPT);
            let asked = Instant::now();
            let answer = ask(&prompt, ATTACKER)?;
            let took_ms = asked.elapsed().as_secs_f64() * 1e3;
            if answer.cached > 0 {
                let message = "a stranger was given tokens that another client has kept";
                return Err(Fail::check(message).into());
            }
            match seed == kept_seed(pair) {
                true => known_ms.push(took_ms),
                false => unknown_ms.push(took_ms),
            }
        }
    }
    let differences: Vec<f64> = known_ms
        .iter()
        .zip(&unknown_ms)
        .map(|(a, b)| a - b)
        .collect();
    let found = Estimate::of(&differences);
    let met = match found.is_significant() {
        true => "MISSED",
        false => "met",
    };
    let what = format!("an answer to {PROMPT} tokens, {} pairs", bench.pairs);
    let line = Line::of(&what, "another has kept it", known_ms);
    let (mean, half) = (found.mean, found.half());
    let verdict = format!("no difference, {mean:+.3} ± {half:.3} ms: {met}");
    report.add(line.beside("nobody has", unknown_ms, []).judged(verdict));
    Ok(())
}

/// Seed of a pair's prompt that is kept; that of the other one follows.
const fn kept_seed(pair: usize) -> u64 {
    1000 + 2 * pair as u64
}

/// Tokens of a prompt: two pages.
const PROMPT: usize = 128;
