//! Reads a trace that [`TraceFile`](super::TraceFile) wrote. The file may be untrusted: its size is bounded, and
//! entries that are not ours are ignored.

use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use thiserror::Error;

use heg_sched::{Lane, LayerKernel, Micros, RequestId, Segment, WarmKernel};

use super::names::{
    ARRIVES, AWAY, CLASSES, COMPILER, ENDS, FINISHES, FIRST_TOKEN, HOLD, KERNELS, LANE_NAMES,
    LANES, LEFT_OUT, MILESTONE, OUTCOMES, REQUESTS, ReasonParts, STARTS_OVER, WARM_UP, named,
    reason,
};
use super::{
    LaneAway, LaunchOutcome, RunTrace, TraceEvent, TracedAbsence, TracedCall, TracedHold,
    TracedLaunch, TracedRequest, TracedWarmUp,
};

/// The reason why a trace cannot be read.
#[derive(Debug, Error)]
pub enum TraceReadError {
    /// The file is not JSON, or an entry of ours is malformed.
    #[error("expected a trace of `heg serve --trace`, found something else")]
    Format(#[source] serde_json::Error),
    /// The file is larger than the maximum.
    #[error("the trace has more than {} MiB, expected less: trace a shorter run", BYTES_MAX >> 20)]
    TooLarge,
    /// The trace has no requests.
    #[error(
        "no request arrives in this trace, expected one of `heg serve --trace` with at least one"
    )]
    NoRequests,
}

/// Size of the largest file, in bytes. Chosen: hours of a busy server, and a few times the memory that a small machine
/// has for it.
pub(super) const BYTES_MAX: u64 = 1 << 30;

impl RunTrace {
    /// Reads a trace, an array of events or an object with `traceEvents`; the array may lack its end.
    ///
    /// # Errors
    ///
    /// [`TraceReadError`], for anything that is not a trace of ours.
    pub fn read(file: impl Read) -> Result<Self, TraceReadError> {
        let mut trace = Self::default();
        let mut bounded = file.take(BYTES_MAX);
        let outcome = {
            let reader = std::io::BufReader::new(&mut bounded);
            let mut json = serde_json::Deserializer::from_reader(reader);
            Entries(&mut trace)
                .deserialize(&mut json)
                .and_then(|()| json.end())
        };
        if bounded.limit() == 0 {
            return Err(TraceReadError::TooLarge);
        }
        match outcome {
            // The process that wrote it was killed.
            Err(error) if error.is_eof() && !trace.requests.is_empty() => Ok(trace),
            Err(error) => Err(TraceReadError::Format(error)),
            Ok(()) if trace.requests.is_empty() => Err(TraceReadError::NoRequests),
            Ok(()) => Ok(trace),
        }
    }
}

/// Adds events to a trace as they are read.
struct Entries<'t>(&'t mut RunTrace);

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of trace events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(entry) = entries.next_element::<Entry>()? {
            if (entry.pid, entry.cat.as_str()) == (LANES, LEFT_OUT) {
                let more = entry.args.events.unwrap_or(1);
                self.0.left_out = self.0.left_out.saturating_add(more);
                continue;
            }
            let event = entry.event().map_err(de::Error::custom)?;
            event.into_iter().for_each(|event| self.0.add(event));
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(field) = fields.next_key::<String>()? {
            match field.as_str() {
                "traceEvents" => fields.next_value_seed(Entries(&mut *self.0))?,
                _ => {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// An entry of any trace.
#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    pid: u64,
    #[serde(default)]
    tid: u64,
    #[serde(default)]
    name: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    ts: u64,
    #[serde(default)]
    dur: u64,
    #[serde(default)]
    args: Arguments,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Arguments {
    class: Option<String>,
    prompt_tokens: Option<u32>,
    output_tokens: Option<u32>,
    finish: Option<String>,
    requests: Option<Vec<u64>>,
    outcome: Option<String>,
    flash_tokens: u32,
    kept_tokens: u32,
    baked_tokens: u32,
    layer: Option<u32>,
    position: Option<u32>,
    layers: Option<[u32; 2]>,
    fused: bool,
    tokens: Option<u32>,
    context: Option<u32>,
    of: Option<u64>,
    lane: Option<String>,
    events: Option<u64>,
}

/// The problem with an entry of ours.
#[derive(Debug, Error)]
#[error("the entry `{name}` at {ts} µs has no {field} that fits")]
struct Misfit {
    name: String,
    ts: u64,
    field: &'static str,
}

impl Entry {
    /// Converts the entry to an event; `None` for entries that only viewers need.
    fn event(&self) -> Result<Option<TraceEvent>, Misfit> {
        match (self.pid, self.cat.as_str()) {
            (LANES, AWAY) => self.absence().map(Some),
            (LANES, WARM_UP) if self.tid == COMPILER => self.warm_up().map(Some),
            (LANES, category) if named(&CLASSES, category).is_some() => self.launch().map(Some),
            (REQUESTS, HOLD) => self.hold().map(Some),
            (REQUESTS, MILESTONE) => self.milestone(),
            _ => Ok(None),
        }
    }

    fn require<T>(&self, field: &'static str, value: Option<T>) -> Result<T, Misfit> {
        value.ok_or_else(|| Misfit {
            name: self.name.chars().take(40).collect(),
            ts: self.ts,
            field,
        })
    }

    fn span(&self) -> Result<(Micros, Micros), Misfit> {
        let end = self.require("`dur`", self.ts.checked_add(self.dur))?;
        Ok((Micros(self.ts), Micros(end)))
    }

    fn lane(&self) -> Result<Lane, Misfit> {
        let mut lanes = Lane::ALL.into_iter();
        self.require("`tid`", lanes.find(|lane| *lane as u64 == self.tid))
    }

    fn absence(&self) -> Result<TraceEvent, Misfit> {
        let state = match self.name.as_str() {
            "resetting" => Some(LaneAway::Resetting),
            "lost" => Some(LaneAway::Lost),
            _ => None,
        };
        let (start, end) = self.span()?;
        Ok(TraceEvent::Away(TracedAbsence {
            lane: self.lane()?,
            state: self.require("`name`", state)?,
            start,
            end,
        }))
    }

    fn warm_up(&self) -> Result<TraceEvent, Misfit> {
        let (start, end) = self.span()?;
        Ok(TraceEvent::WarmUp(TracedWarmUp {
            kernel: WarmKernel {
                tokens: self.require("`tokens`", self.args.tokens)?,
                context: self.require("`context`", self.args.context)?,
            },
            start,
            end,
        }))
    }

    fn launch(&self) -> Result<TraceEvent, Misfit> {
        let (start, end) = self.span()?;
        let outcome = match &self.args.outcome {
            Some(outcome) => self.require("`outcome`", named(&OUTCOMES, outcome))?,
            None => LaunchOutcome::Done,
        };
        let requests = self.require("`requests`", self.args.requests.as_ref())?;
        Ok(TraceEvent::Launch(TracedLaunch {
            lane: self.lane()?,
            call: self.call()?,
            requests: requests.iter().map(|id| RequestId(*id)).collect(),
            class: self.require("`cat`", named(&CLASSES, &self.cat))?,
            start,
            end,
            outcome,
            flash_tokens: self.args.flash_tokens,
            kept_tokens: self.args.kept_tokens,
            baked_tokens: self.args.baked_tokens,
        }))
    }

    fn call(&self) -> Result<TracedCall, Misfit> {
        let args = &self.args;
        match self.name.as_str() {
            "head" => Ok(TracedCall::Head),
            "decode" => {
                let [first_layer, end_layer] = self.require("`layers`", args.layers)?;
                Ok(TracedCall::Decode {
                    first_layer,
                    end_layer,
                    fused: args.fused,
                })
            }
            "iteration" => Ok(TracedCall::Iteration {
                prompt_tokens: self.require("`prompt_tokens`", args.prompt_tokens)?,
            }),
            name => self.prefill(self.require("`name`", named(&KERNELS, name))?),
        }
    }

    fn prefill(&self, kernel: LayerKernel) -> Result<TracedCall, Misfit> {
        let (position, tokens) = (self.args.position, self.args.tokens);
        // A context is the sum of both.
        let both = position.zip(tokens);
        let both = both.filter(|(position, tokens)| position.checked_add(*tokens).is_some());
        let (position, tokens) = self.require("`position` and `tokens`", both)?;
        Ok(TracedCall::Prefill {
            kernel,
            layer: self.require("`layer`", self.args.layer)?,
            segment: Segment { position, tokens },
        })
    }

    fn hold(&self) -> Result<TraceEvent, Misfit> {
        let (start, end) = self.span()?;
        let lane = self.args.lane.as_deref();
        let why = reason(ReasonParts {
            name: &self.name,
            of: self.args.of.map(RequestId),
            lane: lane.and_then(|lane| named(&LANE_NAMES, lane)),
        });
        Ok(TraceEvent::Held(TracedHold {
            request: RequestId(self.tid),
            why: self.require("`name`, `of` and `lane`", why)?,
            start,
            end,
        }))
    }

    fn milestone(&self) -> Result<Option<TraceEvent>, Misfit> {
        let (id, at) = (RequestId(self.tid), Micros(self.ts));
        Ok(match self.name.as_str() {
            ARRIVES => {
                let class = self.args.class.as_deref();
                let class = class.and_then(|class| named(&CLASSES, class));
                Some(TraceEvent::Arrived(TracedRequest {
                    id,
                    class: self.require("`class`", class)?,
                    prompt_tokens: self.require("`prompt_tokens`", self.args.prompt_tokens)?,
                    output_tokens: 0,
                    arrived: at,
                    started: None,
                    first_token: None,
                    restarted: None,
                    ended: None,
                }))
            }
            FIRST_TOKEN => Some(TraceEvent::FirstToken(id, at)),
            STARTS_OVER => Some(TraceEvent::Restarted(id, at)),
            ENDS => Some(self.end(id, at)?),
            _ => None,
        })
    }

    fn end(&self, id: RequestId, at: Micros) -> Result<TraceEvent, Misfit> {
        let finish = self.args.finish.as_deref();
        let finish = finish.and_then(|finish| named(&FINISHES, finish));
        let ended = Some((at, self.require("`finish`", finish)?));
        Ok(TraceEvent::Ended(TracedRequest {
            id,
            output_tokens: self.require("`output_tokens`", self.args.output_tokens)?,
            ended,
            // The permanent attributes are known from its arrival.
            class: heg_sched::Class::Proactive,
            prompt_tokens: 0,
            arrived: at,
            started: None,
            first_token: None,
            restarted: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let error = RunTrace::read(text.as_bytes()).unwrap_err();
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}\n", cause.unwrap_or_default())
    }

    #[test]
    fn what_is_no_trace_of_ours_is_refused() {
        let arrives = r#"{"ph":"i","pid":2,"tid":1,"name":"arrives","cat":"milestone","ts":5,"args":{"class":"reactive","prompt_tokens":3}}"#;
        let wrong = [
            "".to_owned(),
            "heg".to_owned(),
            "[]".to_owned(),
            "{\"traceEvents\": []}".to_owned(),
            "[{\"ts\": -1}]".to_owned(),
            "[[1]]".to_owned(),
            format!("[{arrives}] and more"),
            format!("[{}]", arrives.replace("reactive", "urgent")),
            format!(r#"[{arrives},{{"pid":2,"tid":1,"name":"lane","cat":"hold","ts":1}}]"#),
            format!(
                r#"[{arrives},{{"pid":1,"tid":9,"name":"head","cat":"reactive","ts":1,"args":{{"requests":[1]}}}}]"#
            ),
            format!(
                r#"[{arrives},{{"pid":1,"tid":0,"name":"ffn","cat":"reactive","ts":1,"args":{{"requests":[1],"layer":0,"position":4294967295,"tokens":2}}}}]"#
            ),
            format!(
                r#"[{arrives},{{"pid":1,"tid":0,"name":"lost","cat":"away","ts":9,"dur":18446744073709551615}}]"#
            ),
        ];
        let all: String = wrong.iter().map(|text| refused(text)).collect();
        insta::assert_snapshot!(all);
    }

    #[test]
    fn what_others_add_is_passed_over() {
        let text = r#"{"displayTimeUnit":"ms","otherData":{"a":[1,{"b":2}]},"traceEvents":[
            {"ph":"X","pid":7,"tid":1,"name":"theirs","ts":3,"args":{"anything":[1]}},
            {"ph":"i","pid":2,"tid":1,"name":"arrives","cat":"milestone","ts":5,"args":{"class":"reactive","prompt_tokens":3}}]}"#;
        let trace = RunTrace::read(text.as_bytes()).unwrap();
        assert_eq!(trace.requests().count(), 1);
    }
}
