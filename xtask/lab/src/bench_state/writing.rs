//! An answer that runs on while another client's prompt is kept, beside the same with a server that keeps nothing: the tokens
//! that come behind the end of the other's answer, when its pages are written.

use super::Bench;
use super::ask::{Question, tokens};
use super::kept_folder::KeptFolder;
use crate::bench_attacks::server::{ATTACKER, OTHER};
use crate::goal::Goal;
use crate::lines::{Line, Report};
use crate::statistics;
use anyhow::{Context, Result, anyhow};
use std::thread;
use std::time::Instant;
use xtask::fail::Fail;

pub(super) fn measure(bench: &Bench, report: &mut Report) -> Result<()> {
    let (mut with, mut without) = (Streams::default(), Streams::default());
    let mut written_mb = Vec::new();
    for round in 0..=bench.rounds {
        let kept = KeptFolder::new()?;
        let stream = stream(bench, Some(&kept), round)?;
        let beside = self::stream(bench, None, round)?;
        if round > 0 {
            with.add(&stream)?;
            without.add(&beside)?;
            written_mb.push(kept.bytes()? as f64 / 1e6);
        }
    }
    let what = format!("a token while {} others are written", bench.tokens);
    let line = Line::of(&what, "kept", with.token_ms);
    report.add(line.beside("not kept", without.token_ms, [Goal::AtLeast(0.97)]));
    let iteration_ms = statistics::median(&without.longest_ms).context("no round")?;
    let longest = Line::of("longest gap between tokens", "kept", with.longest_ms);
    let longest = longest.held_to(Goal::AtMost(iteration_ms + 20.0));
    report.add(longest.beside("not kept", without.longest_ms, []));
    report.add(Line::of("written in a round", "kept", written_mb).in_unit("MB"));
    Ok(())
}

/// Figures of streams, one for each round.
#[derive(Default)]
struct Streams {
    token_ms: Vec<f64>,
    longest_ms: Vec<f64>,
}

impl Streams {
    fn add(&mut self, gaps_ms: &[f64]) -> Result<()> {
        let token_ms = gaps_ms.iter().sum::<f64>() / gaps_ms.len() as f64;
        let longest_ms = gaps_ms.iter().copied().reduce(f64::max);
        self.token_ms.push(token_ms);
        self.longest_ms
            .push(longest_ms.context("an answer has no words")?);
        Ok(())
    }
}

/// The gaps of an answer, in ms, from the end of another client's answer on, whose prompt is kept then.
fn stream(bench: &Bench, kept: Option<&KeptFolder>, round: usize) -> Result<Vec<f64>> {
    let server = bench.server(kept).server()?;
    let port = server.port();
    let (prompt, short) = (tokens(10 + round as u64, bench.tokens), tokens(9, SHORT));
    let other = Question {
        prompt: &prompt,
        answer: 1,
        client: ATTACKER,
    };
    let own = Question {
        prompt: &short,
        answer: ANSWER,
        client: OTHER,
    };
    let (arrivals, written_from) = thread::scope(|scope| {
        let own = scope.spawn(|| own.arrivals(port));
        other.ask(port)?;
        let written_from = Instant::now();
        let own = own.join().map_err(|_| anyhow!("a client ended"))??;
        anyhow::Ok((own, written_from))
    })?;
    if let Some(kept) = kept {
        kept.wait_for(bench.tokens)?;
    }
    let beside = arrivals.iter().position(|at| *at > written_from);
    let beside = beside.and_then(|first| arrivals.get(first..=first + WATCHED));
    let beside = beside.with_context(|| {
        Fail::check(format!(
            "an answer of {ANSWER} tokens ended before the other one was kept"
        ))
        .hint("measure with fewer --tokens")
    })?;
    let gaps = beside.windows(2).map(|pair| pair[1] - pair[0]);
    Ok(gaps.map(|gap| gap.as_secs_f64() * 1e3).collect())
}

/// Tokens of the prompt whose answer is watched: less than a page.
const SHORT: usize = 16;

/// Chosen: longer than a prompt of 4096 tokens and its writing take beside it.
const ANSWER: usize = 1024;

/// Tokens whose gaps count. Chosen: several times as long as pages of 4096 tokens are written.
const WATCHED: usize = 64;
