//! A server is killed and started again: the first token of a prompt that was kept, with its pages in memory or on disk, beside
//! the same prompt read again.

use super::Bench;
use super::ask::{Answer, Question, tokens};
use super::kept_folder::KeptFolder;
use crate::bench_attacks::server::OTHER;
use crate::goal::Goal;
use crate::lines::{Line, Report};
use anyhow::Result;
use std::time::Instant;
use xtask::fail::Fail;

pub(super) fn measure(bench: &Bench, report: &mut Report) -> Result<()> {
    let begin = tokens(1, bench.tokens);
    let prompt = [begin.as_slice(), &tokens(2, NEW)].concat();
    let kept = KeptFolder::new()?;
    let server = bench.server(Some(&kept)).server()?;
    let question = Question {
        prompt: &begin,
        answer: 1,
        client: OTHER,
    };
    question.ask(server.port())?;
    kept.wait_for(bench.tokens)?;
    drop(server);
    let question = Question {
        prompt: &prompt,
        answer: ANSWER,
        ..question
    };
    let (mut warm_ms, mut cold_ms, mut read_ms, mut again_ms) = (vec![], vec![], vec![], vec![]);
    let (first, expected) = started(bench, None, &question)?;
    again_ms.push(first);
    let same = |answer: Answer| match answer.text == expected.text {
        true if answer.cached as usize >= bench.tokens => Ok(()),
        true => Err(Fail::check(format!(
            "{} tokens of the prompt were read again",
            prompt.len() as u64 - answer.cached
        ))),
        false => Err(Fail::check("the answer behind kept state is another one")),
    };
    for round in 0..=bench.rounds {
        kept.forget()?;
        let read = kept.read_ms()?;
        kept.forget()?;
        let (cold, answer) = started(bench, Some(&kept), &question)?;
        same(answer)?;
        let (warm, answer) = started(bench, Some(&kept), &question)?;
        same(answer)?;
        // The first round reads weights from the disk, too.
        if round > 0 {
            read_ms.push(read);
            cold_ms.push(cold);
            warm_ms.push(warm);
        }
    }
    let what = format!(
        "first token, {} of {} tokens kept",
        bench.tokens,
        prompt.len()
    );
    let warm = Line::of(&what, "pages in memory", warm_ms).held_to(Goal::AtMost(WARM_MS));
    report.add(warm.beside("all of it read again", again_ms, []));
    let cold = Line::of(&what, "pages on disk", cold_ms);
    let name = format!("reading {:.0} MB of pages", kept.bytes()? as f64 / 1e6);
    report.add(cold.beside(&name, read_ms, [Goal::AtLeast(1.0 / 1.2)]));
    Ok(())
}

/// Starts a server, and returns the time from there to the first token of an answer in ms, and the answer.
fn started(
    bench: &Bench,
    kept: Option<&KeptFolder>,
    question: &Question<'_>,
) -> Result<(f64, Answer)> {
    let begin = Instant::now();
    let server = bench.server(kept).server()?;
    let start_ms = begin.elapsed().as_secs_f64() * 1e3;
    let answer = question.ask(server.port())?;
    Ok((start_ms + answer.first_ms, answer))
}

/// New tokens behind those that are kept.
const NEW: usize = 32;

/// Tokens of an answer that is compared. With the new ones they fill no page, so that rounds find the same.
const ANSWER: usize = 16;

const WARM_MS: f64 = 250.0;
