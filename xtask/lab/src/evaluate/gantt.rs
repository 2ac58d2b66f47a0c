//! The counterpart of the paper's figure 6 (Agent.xpu v2): four schemes serve one proactive and one reactive
//! request, launch by launch.

use super::Subject;
use super::chart::{Area, FAINT, INK, draw, failed, figure as digits, heading, legend, text};
use anyhow::{Context, Result};
use heg_sched::{Class, Lane, Micros, Work};
use heg_sim::{Contender, Run};
use heg_workload::{Arrival, Trace, TraceRequest};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use xtask::fail::Fail;

/// Schemes by the names of their policies, in the order of the figure.
const SCHEMES: [(&str, &str); 4] = [
    (
        "(a) instant preemption, recomputing",
        "igpu-preempt-recompute",
    ),
    ("(b) time sharing", "igpu-time-sharing"),
    ("(c) continuous batching", "igpu-continuous-batching"),
    ("(d) Agent.xpu", "agent-xpu"),
];

/// Colours by class, lighter for decoding.
const PARTS: [(&str, RGBColor); 4] = [
    ("reactive prefill", RGBColor(200, 55, 20)),
    ("reactive decode", RGBColor(250, 170, 120)),
    ("proactive prefill", RGBColor(25, 95, 165)),
    ("proactive decode", RGBColor(150, 195, 230)),
];
const BOTH: (&str, RGBColor) = ("both in one launch", RGBColor(165, 135, 185));

/// A proactive request, and a reactive one that arrives in the middle of its prefill.
fn trace() -> Trace {
    let request = |at_ms: u64, class, prompt_tokens, output_tokens| {
        let arrival = Arrival::At(Micros(at_ms * 1000));
        TraceRequest::lone(class, arrival, prompt_tokens, output_tokens)
    };
    Trace {
        requests: vec![
            request(0, Class::Proactive, 1600, 24),
            request(1200, Class::Reactive, 700, 24),
        ],
    }
}

/// The figure for the first model, with its file's name.
pub(crate) fn figure(subject: &Subject) -> Result<Option<(String, String)>> {
    let Some(platform) = subject.platforms.first() else {
        return Ok(None);
    };
    let mut runs = Vec::new();
    for (title, name) in SCHEMES {
        let policy = Contender::named(name)?;
        let run = platform.serve(&policy, &trace(), true);
        runs.push((
            title,
            run.with_context(|| Fail::check(format!("policy `{name}`")))?,
        ));
    }
    let span = runs
        .iter()
        .map(|(_, run)| run.ended.as_secs())
        .fold(0.0, f64::max);
    let title = format!(
        "One reactive request among proactive work (figure 6), {}",
        platform.model
    );
    let subtitle = format!(
        "{}: 1600 prompt tokens in the background from 0 s; 700 of a question at 1.2 s; 24 tokens of answer each",
        platform.soc
    );
    let svg = draw((1100, 452), |area| {
        let parts = PARTS.iter().chain([&BOTH]);
        let entries: Vec<(String, RGBColor)> = parts
            .map(|(name, colour)| ((*name).to_owned(), *colour))
            .collect();
        let below = legend(&heading(area, &title, &subtitle)?, &entries)?;
        for (place, (title, run)) in runs.iter().enumerate() {
            paint(&below, title, run, 12 + 82 * place as i32, span)?;
        }
        axis(&below, span)
    })?;
    Ok(Some(("fig6-schemes.svg".to_owned(), svg)))
}

/// Left and right end of the time axis, in pixels.
const LEFT: i32 = 90;
const RIGHT: i32 = 1060;

fn place_of(secs: f64, span: f64) -> i32 {
    LEFT + (f64::from(RIGHT - LEFT) * secs / span) as i32
}

/// Draws one scheme: a title, and the lanes below it.
fn paint(area: &Area<'_>, title: &str, run: &Run, top: i32, span: f64) -> Result<()> {
    let ended = |class| {
        let of_class = run.requests.iter().filter(|r| r.class == class);
        of_class
            .filter_map(|r| r.ended)
            .max()
            .unwrap_or_default()
            .as_secs()
    };
    let reactive = ended(Class::Reactive);
    let words = format!(
        "{title}: answer after {:.1} s, all done at {:.1} s",
        reactive - 1.2,
        ended(Class::Proactive).max(reactive)
    );
    text(area, &words, (LEFT, top), 13, INK, (HPos::Left, VPos::Top))?;
    for (row, lane) in [Lane::Npu, Lane::Igpu].into_iter().enumerate() {
        let (y, height) = (top + 20 + 25 * row as i32, 20);
        let name = if lane == Lane::Npu { "NPU" } else { "iGPU" };
        text(
            area,
            name,
            (LEFT - 10, y + height / 2),
            12,
            FAINT,
            (HPos::Right, VPos::Center),
        )?;
        let back = Rectangle::new(
            [(LEFT, y), (RIGHT, y + height)],
            RGBColor(246, 247, 249).filled(),
        );
        area.draw(&back).map_err(failed)?;
        for (from, to, colour) in spans(run, lane) {
            let left = place_of(from, span);
            // A span of less than a pixel is drawn as one.
            let right = place_of(to, span).max(left + 1);
            let bar = Rectangle::new([(left, y), (right, y + height)], colour.filled());
            area.draw(&bar).map_err(failed)?;
        }
        for at in [1.2, reactive] {
            let x = place_of(at, span);
            let line = PathElement::new(vec![(x, y - 3), (x, y + height + 3)], INK.stroke_width(1));
            area.draw(&line).map_err(failed)?;
        }
    }
    Ok(())
}

/// The spans of a lane: start and end in s, and colour. Launches of one colour that follow each other closely are drawn
/// as one.
fn spans(run: &Run, lane: Lane) -> Vec<(f64, f64, RGBColor)> {
    let mut spans: Vec<(f64, f64, RGBColor)> = Vec::new();
    for slice in run.timeline.iter().filter(|slice| slice.lane == lane) {
        let colour = colour_of(run, &slice.work);
        let (from, to) = (slice.start.as_secs(), slice.end.as_secs());
        match spans.last_mut() {
            Some(last) if last.2 == colour && from - last.1 < 1e-3 => last.1 = to,
            _ => spans.push((from, to, colour)),
        }
    }
    spans
}

fn colour_of(run: &Run, work: &Work) -> RGBColor {
    let ids = work.requests();
    let decode = match work {
        Work::Prefill { .. } | Work::Head(_) => false,
        Work::Decode(_) => true,
        Work::Mixed { prompts, .. } => prompts.is_empty(),
    };
    let has = |class| {
        let mut found = ids.iter().filter_map(|id| run.requests.get(id.0 as usize));
        found.any(|request| request.class == class)
    };
    match (has(Class::Reactive), has(Class::Proactive)) {
        (true, true) => BOTH.1,
        (reactive, _) => PARTS[usize::from(!reactive) * 2 + usize::from(decode)].1,
    }
}

fn axis(area: &Area<'_>, span: f64) -> Result<()> {
    let y = 12 + 82 * 4;
    let step = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0];
    let step = step
        .into_iter()
        .find(|step| span / step <= 14.0)
        .unwrap_or(100.0);
    let mut at = 0.0;
    while at <= span {
        let x = place_of(at, span);
        let tick = PathElement::new(vec![(x, y - 4), (x, y)], FAINT.stroke_width(1));
        area.draw(&tick).map_err(failed)?;
        let words = format!("{} s", digits(at));
        text(
            area,
            &words,
            (x, y + 3),
            12,
            FAINT,
            (HPos::Center, VPos::Top),
        )?;
        at += step;
    }
    Ok(())
}
