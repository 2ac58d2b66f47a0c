//! Explains why a request was slow, by tracing its time back to causes.

mod cause;
mod index;
mod json;
mod path;
mod picture;
mod slowed;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use heg_sched::{Class, Finish, Micros, RequestId};

use crate::traced::{RunTrace, TracedRequest};
pub use cause::SlowCause;
use index::Index;
use path::{Path, Piece};
use words::{described, millis};

/// The causes of a request's time.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The request.
    pub request: TracedRequest,
    /// From its arrival to its first token; without one, to its end or that of the trace.
    pub first_token: Stretch,
    /// From its first token to its end, or that of the trace; `None` without a first token.
    pub answer: Option<Stretch>,
}

/// A part of a request's life.
#[derive(Debug, Clone, PartialEq)]
pub struct Stretch {
    /// Start time.
    pub start: Micros,
    /// End time.
    pub end: Micros,
    /// The shares of its causes, the largest first.
    pub shares: Vec<CauseShare>,
    /// The same causes in the order of time, without gaps.
    pub intervals: Vec<CausedInterval>,
}

/// The time that a cause took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CauseShare {
    /// The cause.
    pub cause: SlowCause,
    /// The time.
    pub time: Micros,
    /// The cause in words, to follow after the time.
    pub text: String,
}

/// A span of one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CausedInterval {
    /// Start time.
    pub start: Micros,
    /// End time.
    pub end: Micros,
    /// Index of the cause among the shares.
    pub share: usize,
}

/// The error for a request that the trace does not have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no request {asked} arrives in this trace; it has {count} requests, {first} to {last}")]
pub struct UnknownRequest {
    /// The requested number.
    pub asked: u64,
    /// Number of requests in the trace.
    pub count: usize,
    /// The lowest number.
    pub first: u64,
    /// The highest number.
    pub last: u64,
}

/// Goes back from the last token of a request, and from its first, through its launches and its waits, and attributes
/// all of its time to causes.
///
/// # Errors
///
/// [`UnknownRequest`] if the trace does not have the request's arrival.
pub fn explain(trace: &RunTrace, request: RequestId) -> Result<Explanation, UnknownRequest> {
    let Some(known) = trace.requests.get(&request) else {
        let number = |id: Option<&RequestId>| id.map_or(0, |id| id.0);
        return Err(UnknownRequest {
            asked: request.0,
            count: trace.requests.len(),
            first: number(trace.requests.keys().next()),
            last: number(trace.requests.keys().next_back()),
        });
    };
    let end = known.ended.map_or(trace.end, |(at, _)| at);
    let first_token = known.first_token.filter(|at| *at <= end);
    let index = Index::of(trace, known.arrived, end);
    let stretch = |start: Micros, end: Micros| {
        let mut path = Path::of(&index, known);
        Stretch::of(&index, request, (start, end), path.back(start, end))
    };
    Ok(Explanation {
        request: *known,
        first_token: stretch(known.arrived, first_token.unwrap_or(end)),
        answer: first_token.map(|first| stretch(first, end)),
    })
}

impl Stretch {
    fn of(
        index: &Index<'_>,
        own: RequestId,
        (start, end): (Micros, Micros),
        pieces: Vec<Piece>,
    ) -> Self {
        let mut groups: BTreeMap<SlowCause, Vec<&Piece>> = BTreeMap::new();
        for piece in &pieces {
            groups.entry(piece.cause).or_default().push(piece);
        }
        let time = |group: &[&Piece]| group.iter().map(|piece| piece.time().0).sum::<u64>();
        let shares = groups.iter().map(|(cause, group)| CauseShare {
            cause: *cause,
            time: Micros(time(group)),
            text: described(index, own, *cause, group),
        });
        let mut shares: Vec<CauseShare> = shares.collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.time));
        let places = shares
            .iter()
            .zip(0..)
            .map(|(share, place)| (share.cause, place));
        let places: BTreeMap<SlowCause, usize> = places.collect();
        let mut intervals: Vec<CausedInterval> = Vec::new();
        for piece in &pieces {
            let share = places.get(&piece.cause).copied().unwrap_or_default();
            match intervals.last_mut() {
                Some(last) if last.share == share => last.end = piece.end,
                _ => intervals.push(CausedInterval {
                    start: piece.start,
                    end: piece.end,
                    share,
                }),
            }
        }
        Self {
            start,
            end,
            shares,
            intervals,
        }
    }

    /// Returns the largest share.
    pub fn main(&self) -> Option<&CauseShare> {
        self.shares.first()
    }

    /// Returns the spans in which a cause took its time, in units of one `parts`-th of the whole; neighbours are
    /// joined.
    pub fn spans(&self, share: usize, parts: u32) -> Vec<[u32; 2]> {
        let total = u128::from(self.time().0.max(1));
        let part = |at: Micros| {
            let scaled = u128::from(at.since(self.start).0) * u128::from(parts);
            u32::try_from(scaled / total).unwrap_or(parts)
        };
        let mut spans: Vec<[u32; 2]> = Vec::new();
        for interval in self
            .intervals
            .iter()
            .filter(|interval| interval.share == share)
        {
            let (from, to) = (part(interval.start), part(interval.end));
            match spans.last_mut() {
                Some([_, end]) if from <= *end => *end = to,
                _ => spans.push([from, to]),
            }
        }
        spans
    }

    /// Returns the length of the stretch.
    pub fn time(&self) -> Micros {
        self.end.since(self.start)
    }

    /// Returns the shares in words: the largest ones, and the rest of the others.
    fn words(&self) -> String {
        let percent = |time: u64| percent_of(self.time(), Micros(time));
        let told = self
            .shares
            .iter()
            .take(TOLD_MAX)
            .take_while(|share| percent(share.time.0) > 0);
        let mut words: Vec<String> = told
            .map(|share| {
                let (time, percent) = (millis(share.time), percent(share.time.0));
                format!("{time} ({percent}%) {}", share.text)
            })
            .collect();
        let rest = self.shares.iter().skip(words.len());
        let rest: u64 = rest.map(|share| share.time.0).sum();
        if rest > 0 {
            words.push(format!("{} for other reasons", millis(Micros(rest))));
        }
        words.join(", ")
    }
}

/// Returns the part of a time in percent, rounded down. Times may have any value, since a trace may be untrusted.
fn percent_of(total: Micros, part: Micros) -> u128 {
    100 * u128::from(part.0) / u128::from(total.0.max(1))
}

/// Maximum number of causes that a sentence names.
const TOLD_MAX: usize = 4;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TracedRequest {
            id,
            class,
            prompt_tokens,
            output_tokens,
            first_token,
            ended,
            ..
        } = self.request;
        let class = match class {
            Class::Reactive => "reactive",
            Class::Proactive => "proactive",
        };
        let time = millis(self.first_token.time());
        write!(
            f,
            "Request {} ({class}, {prompt_tokens} prompt tokens) ",
            id.0
        )?;
        match (first_token, ended) {
            (Some(_), _) => write!(f, "had its first token after {time}")?,
            (None, Some((_, finish))) => {
                write!(f, "{} without a token after {time}", ending(finish))?;
            }
            (None, None) => write!(f, "had no token when the trace ended {time} later")?,
        }
        let words = self.first_token.words();
        if !words.is_empty() {
            write!(f, ": {words}")?;
        }
        write!(f, ".")?;
        let Some(answer) = &self.answer else {
            return Ok(());
        };
        let more = output_tokens.saturating_sub(1);
        if more == 0 || answer.time() == Micros(0) {
            return Ok(());
        }
        let each = Micros(answer.time().0 / u64::from(more));
        let (time, each) = (millis(answer.time()), millis(each));
        let words = answer.words();
        match more {
            1 => write!(f, " Its other token took {time}: {words}."),
            _ => write!(
                f,
                " Its other {more} tokens took {time}, {each} each: {words}."
            ),
        }
    }
}

fn ending(finish: Finish) -> &'static str {
    match finish {
        Finish::Complete => "ended",
        Finish::Cancelled => "was cancelled",
        Finish::Deadline => "passed its deadline",
        Finish::Failed => "failed",
        Finish::Shed => "was turned away",
    }
}
