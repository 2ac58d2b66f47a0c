//! A trace with its prompts, for servers: JSON Lines, so that all compared servers get the same requests.
//!
//! Open loop: every request has a fixed time, whether or not earlier ones were answered. So sessions are split up, and
//! each turn comes with its whole prompt.

use serde::{Deserialize, Serialize};

use super::request_file::{Workload, WorkloadError};
use super::trace::{Arrival, Trace, TraceSpec};
use heg_sched::Class;
use heg_spec::Seeded;

/// A request to a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// Time at which the request is sent, in ms from the start.
    pub at_ms: u64,
    /// Priority class.
    pub class: Class,
    /// The prompt.
    pub prompt: Prompt,
    /// Number of tokens of the prompt; an estimate for a text.
    pub prompt_tokens: u32,
    /// Number of tokens of the answer: the server is asked for exactly this many.
    pub output_tokens: u32,
}

/// The prompt of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Token ids.
    Ids(Vec<u32>),
    /// Text, for the server's own tokenizer.
    Text(String),
}

/// The kind of prompts to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompts {
    /// Random token ids, as many as the prompt has tokens: any model accepts them, and no two prompts begin alike.
    Ids {
        /// Exclusive upper bound of the ids.
        end: u32,
    },
    /// The request files' own text.
    Text,
}

/// Lowest id in random prompts: those below are often special.
const FIRST_ID: u32 = 10;

impl ReplayRequest {
    /// Draws a trace as [`Trace::draw`] does, each turn of a session by itself, in the order of time.
    ///
    /// With [`Prompts::Text`], requests whose file has no text are left out.
    pub fn draw(spec: &TraceSpec, workloads: &[Workload], prompts: Prompts) -> Vec<Self> {
        let apart: Vec<Workload> = workloads
            .iter()
            .map(|workload| workload.clone().without_sessions())
            .collect();
        let (trace, origins) = Trace::draw_with_origins(spec, &apart);
        let mut seeded = Seeded::new(spec.seed);
        let mut requests = Vec::new();
        for (request, origin) in trace.requests.iter().zip(origins) {
            let Arrival::At(at) = request.arrival else {
                continue; // only spacings that wait for answers have these
            };
            let prompt = match (prompts, &origin.prompt) {
                (Prompts::Ids { end }, _) => random_ids(&mut seeded, request.prompt_tokens, end),
                (Prompts::Text, Some(text)) => Prompt::Text(text.to_string()),
                (Prompts::Text, None) => continue,
            };
            requests.push(Self {
                at_ms: at.0 / 1000,
                class: request.class,
                prompt,
                prompt_tokens: request.prompt_tokens,
                output_tokens: request.output_tokens,
            });
        }
        requests.sort_by_key(|request| request.at_ms);
        requests
    }

    /// Returns a reactive answer of 448 tokens, and a proactive prompt of 4 000 tokens that arrives 5 s later, in the
    /// midst of it, to measure the pause in the answer.
    pub fn gap(seed: u64, ids_end: u32) -> Vec<Self> {
        let mut seeded = Seeded::new(seed);
        let mut request = |at_ms, class, prompt_tokens, output_tokens| Self {
            at_ms,
            class,
            prompt: random_ids(&mut seeded, prompt_tokens, ids_end),
            prompt_tokens,
            output_tokens,
        };
        vec![
            request(0, Class::Reactive, 32, 448),
            request(5000, Class::Proactive, 4000, 8),
        ]
    }

    /// Creates a warm-up request with a short prompt and answer.
    pub fn warm_up(ids_end: u32) -> Self {
        Self {
            at_ms: 0,
            class: Class::Reactive,
            prompt: random_ids(&mut Seeded::new(0), 300, ids_end),
            prompt_tokens: 300,
            output_tokens: 4,
        }
    }

    /// Parses lines that [`ReplayRequest::to_lines`] wrote; `name` is for errors.
    pub fn parse_lines(name: &str, text: &str) -> Result<Vec<Self>, WorkloadError> {
        let lines = text.lines().enumerate();
        let lines = lines.filter(|(_, line)| !line.trim().is_empty());
        let parse = |(index, line)| {
            serde_json::from_str(line).map_err(|source| WorkloadError::Line {
                name: name.to_owned(),
                line: index + 1,
                source,
            })
        };
        lines.map(parse).collect()
    }

    /// Writes one JSON object a line.
    pub fn to_lines(requests: &[Self]) -> String {
        // Numbers and text only, so serialising cannot fail.
        let line = |request| serde_json::to_string(request).unwrap_or_default() + "\n";
        requests.iter().map(line).collect()
    }
}

fn random_ids(seeded: &mut Seeded, count: u32, end: u32) -> Prompt {
    let range = FIRST_ID as usize..end as usize;
    let mut id = |_| seeded.within(range.clone()) as u32;
    Prompt::Ids((0..count).map(&mut id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(prompts: Prompts) -> Vec<ReplayRequest> {
        let spec = TraceSpec {
            reactive_per_minute: 6.0,
            proactive_per_minute: 12.0,
            seed: 3,
            ..TraceSpec::default()
        };
        ReplayRequest::draw(&spec, &[Workload::sample()], prompts)
    }

    #[test]
    fn prompts_keep_their_lengths_and_seeds_their_ids() {
        let ids = drawn(Prompts::Ids { end: 15_000 });
        assert!(ids.is_sorted_by_key(|request| request.at_ms));
        for request in &ids {
            let Prompt::Ids(ids) = &request.prompt else {
                panic!("{request:?}");
            };
            assert_eq!(ids.len() as u32, request.prompt_tokens);
            assert!(ids.iter().all(|id| (10..15_000).contains(id)));
        }
        assert_ne!(ids[0].prompt, ids[1].prompt);
        assert_eq!(ids, drawn(Prompts::Ids { end: 15_000 }));
        // The requests and times are the same whatever the prompts consist of.
        let times = |requests: &[ReplayRequest]| {
            let all = requests.iter().map(|r| (r.at_ms, r.prompt_tokens));
            all.collect::<Vec<_>>()
        };
        assert_eq!(times(&ids), times(&drawn(Prompts::Text)));
    }

    #[test]
    fn lines_come_back_and_a_wrong_one_is_named() {
        let mut requests = drawn(Prompts::Text);
        requests.extend(ReplayRequest::gap(1, 2048));
        let text = ReplayRequest::to_lines(&requests);
        assert_eq!(ReplayRequest::parse_lines("x", &text).unwrap(), requests);
        let wrong = ReplayRequest::parse_lines("x", "\n{\"at_ms\": -1}").unwrap_err();
        assert!(wrong.to_string().starts_with("x:2: "), "{wrong}");
    }
}
