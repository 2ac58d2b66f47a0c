//! Traces: requests and the times of their arrival.

use super::request_file::{Workload, WorkloadRequest};
use heg_sched::{Class, ClientId, FlowId, Micros};
use heg_spec::Seeded;

/// A trace of requests, each identified by its index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// The requests, in any order.
    pub requests: Vec<TraceRequest>,
}

/// A request of a trace, with the length of its answer, which the scheduler is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceRequest {
    /// Time of arrival.
    pub arrival: Arrival,
    /// The client that sends it.
    pub client: ClientId,
    /// Priority class.
    pub class: Class,
    /// The flow to which it belongs.
    pub flow: Option<FlowId>,
    /// Whether it is the last call of its flow.
    pub ends_flow: bool,
    /// Number of tokens of the prompt.
    pub prompt_tokens: u32,
    /// Number of leading tokens that it shares with the flow's previous call and its answer.
    pub shared_tokens: u32,
    /// Number of tokens of the answer.
    pub output_tokens: u32,
    /// Maximum number of tokens of the answer, as the scheduler is told.
    pub output_tokens_max: u32,
    /// Time from arrival to deadline.
    pub deadline_after: Option<Micros>,
    /// Time from arrival to cancellation.
    pub cancel_after: Option<Micros>,
}

impl TraceRequest {
    /// Creates a request outside any flow, of the default client, whose answer has its maximum length.
    pub fn lone(class: Class, arrival: Arrival, prompt_tokens: u32, output_tokens: u32) -> Self {
        Self {
            arrival,
            client: ClientId::default(),
            class,
            flow: None,
            ends_flow: false,
            prompt_tokens,
            shared_tokens: 0,
            output_tokens,
            output_tokens_max: output_tokens,
            deadline_after: None,
            cancel_after: None,
        }
    }
}

/// The time at which a request arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// At this time.
    At(Micros),
    /// After the end of another request.
    After {
        /// Index of the other request.
        request: u64,
        /// Time in between, in which somebody reads, thinks, or runs a tool.
        pause: Micros,
        /// Earliest time of arrival.
        not_before: Micros,
    },
}

/// The arrival process of reactive requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Spacing {
    /// A Poisson process with this mean rate (v2 6.1). Later turns of a session wait for the previous answer.
    Poisson,
    /// One user: the next question comes once the last answer has arrived, and was read for about `60 / rate` seconds
    /// (v1).
    AfterAnswer,
}

/// The lengths of the answers of a drawn trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerLengths {
    /// The lengths of the reference answers. Requests that are too long are not drawn.
    Reference,
    /// Long-tailed lengths, as on-device assistants answer (v2 6.1, "outliers reaching up to 1.6k tokens"): lognormal
    /// with a mean of 214.5 tokens, as in LMSYS-Chat-1M (Zheng et al. 2024, table 1), with one in a hundred longer than
    /// 1,600. Prompts that are too long are cut.
    LongTailed,
}

/// Median of [`AnswerLengths::LongTailed`], in tokens, and the deviation of its logarithm; the two follow from the mean
/// and the hundredth.
const LONG_TAILED: (f64, f64) = (111.2, 1.1466);

/// The parameters of a drawn trace.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceSpec {
    /// Time during which requests arrive.
    pub span: Micros,
    /// Reactive requests a minute; 0 for none.
    pub reactive_per_minute: f64,
    /// Proactive requests a minute; 0 for none.
    pub proactive_per_minute: f64,
    /// The arrival process of reactive requests.
    pub spacing: Spacing,
    /// Mean pause between the turns of a session, in s.
    pub think_secs: f64,
    /// Maximum length of an answer, in tokens; longer ones are cut.
    pub output_tokens_max: u32,
    /// Maximum length of prompt and answer together, in tokens; longer requests are not drawn.
    pub context_tokens: u32,
    /// The lengths of answers.
    pub answers: AnswerLengths,
    /// Seed of the random choices; equal seeds give equal traces.
    pub seed: u64,
}

impl Default for TraceSpec {
    /// 15 minutes, as in the paper; answers of at most 512 tokens, contexts of at most 4096.
    fn default() -> Self {
        Self {
            span: Micros(15 * 60 * 1_000_000),
            reactive_per_minute: 0.0,
            proactive_per_minute: 0.0,
            spacing: Spacing::Poisson,
            think_secs: 10.0,
            output_tokens_max: 512,
            context_tokens: 4096,
            answers: AnswerLengths::Reference,
            seed: 0,
        }
    }
}

impl Trace {
    /// Draws a trace. Each arrival chooses one of its class's workloads with equal weight, then takes the next of its
    /// sessions in random order, none twice until all are used. A request by itself is a session of one.
    pub fn draw(spec: &TraceSpec, workloads: &[Workload]) -> Self {
        Self::draw_with_origins(spec, workloads).0
    }

    /// Draws a trace as [`Trace::draw`] does, with the workload request behind each request.
    pub(super) fn draw_with_origins<'w>(
        spec: &TraceSpec,
        workloads: &'w [Workload],
    ) -> (Self, Vec<&'w WorkloadRequest>) {
        let mut trace = Self::default();
        let mut origins = Vec::new();
        for class in [Class::Reactive, Class::Proactive] {
            // One stream of numbers per class: the proactive half is the same whatever the reactive rate.
            let seeded = Seeded::new(spec.seed << 1 | u64::from(class == Class::Reactive));
            let rate = match class {
                Class::Reactive => spec.reactive_per_minute,
                Class::Proactive => spec.proactive_per_minute,
            };
            let decks: Vec<Deck> = workloads
                .iter()
                .map(|workload| Deck::new(workload, class, spec))
                .filter(|deck| !deck.sessions.is_empty())
                .collect();
            if rate > 0.0 && rate.is_finite() && !decks.is_empty() {
                let drawing = Drawing {
                    spec,
                    class,
                    rate,
                    seeded,
                    decks,
                    trace: &mut trace,
                    origins: &mut origins,
                };
                drawing.draw();
            }
        }
        (trace, origins)
    }
}

/// The sessions of a workload in random order.
struct Deck<'a> {
    sessions: Vec<Vec<&'a WorkloadRequest>>,
    order: Vec<usize>,
}

impl<'a> Deck<'a> {
    fn new(workload: &'a Workload, class: Class, spec: &TraceSpec) -> Self {
        let fits = |r: &&WorkloadRequest| {
            let output = r.output_tokens.min(spec.output_tokens_max);
            let cut = spec.answers == AnswerLengths::LongTailed;
            r.class == class && (cut || r.prompt_tokens + output <= spec.context_tokens)
        };
        let mut sessions: Vec<Vec<&WorkloadRequest>> = Vec::new();
        for request in workload.requests.iter().filter(fits) {
            let last = sessions.last_mut().filter(|session| {
                request.session.is_some() && session[0].session == request.session
            });
            match last {
                Some(session) => session.push(request),
                None => sessions.push(vec![request]),
            }
        }
        Self {
            sessions,
            order: Vec::new(),
        }
    }

    fn next(&mut self, seeded: &mut Seeded) -> Vec<&'a WorkloadRequest> {
        if self.order.is_empty() {
            self.order = (0..self.sessions.len()).collect();
            seeded.shuffle(&mut self.order);
        }
        let session = self.order.pop();
        session.map_or(Vec::new(), |session| self.sessions[session].clone())
    }
}

/// The requests of one class.
struct Drawing<'a, 'w> {
    spec: &'a TraceSpec,
    class: Class,
    rate: f64,
    seeded: Seeded,
    decks: Vec<Deck<'w>>,
    trace: &'a mut Trace,
    /// The workload request behind each request of the trace.
    origins: &'a mut Vec<&'w WorkloadRequest>,
}

impl Drawing<'_, '_> {
    /// Draws the requests. A session's first turn takes an arrival of the Poisson process; so does each later one,
    /// which comes when it is both due and possible. So the rate holds for requests, not for sessions.
    fn draw(mut self) {
        let mut at = self.gap();
        let mut last = None;
        let chained = self.class == Class::Reactive && self.spec.spacing == Spacing::AfterAnswer;
        while at <= self.spec.span {
            let choice = self.seeded.below(self.decks.len());
            let session = self.decks[choice].next(&mut self.seeded);
            let flow = (session.len() > 1).then_some(FlowId(self.trace.requests.len() as u64));
            let turns = session.len();
            let mut shared_tokens = 0;
            let mut previous = None;
            for (turn, request) in session.into_iter().enumerate() {
                if at > self.spec.span {
                    break;
                }
                let place = self.trace.requests.len() as u64;
                let arrival = match (chained, last, previous) {
                    (true, Some(request), _) => Arrival::After {
                        request,
                        pause: self.gap(),
                        not_before: Micros(0),
                    },
                    (false, _, Some(request)) => Arrival::After {
                        request,
                        pause: self.think(),
                        not_before: at,
                    },
                    (_, _, None) | (true, None, _) => Arrival::At(at),
                };
                let (prompt_tokens, output_tokens) = self.lengths(request);
                self.origins.push(request);
                self.trace.requests.push(TraceRequest {
                    arrival,
                    client: ClientId::default(),
                    class: self.class,
                    flow,
                    ends_flow: turn + 1 == turns,
                    prompt_tokens,
                    shared_tokens: request.shared_tokens.min(shared_tokens).min(prompt_tokens),
                    output_tokens,
                    output_tokens_max: self.spec.output_tokens_max,
                    deadline_after: None,
                    cancel_after: None,
                });
                shared_tokens = prompt_tokens + output_tokens;
                previous = Some(place);
                last = Some(place);
                at = at + self.gap();
            }
            // The span may end in the middle of a session.
            if let Some(request) = self.trace.requests.last_mut() {
                request.ends_flow = request.flow.is_some();
            }
        }
    }

    /// Returns the number of tokens of a request's prompt, and of its answer.
    fn lengths(&mut self, request: &WorkloadRequest) -> (u32, u32) {
        let most = self.spec.output_tokens_max;
        match self.spec.answers {
            AnswerLengths::Reference => {
                let output = request.output_tokens.clamp(1, most);
                (request.prompt_tokens.max(1), output)
            }
            AnswerLengths::LongTailed => {
                let (median, deviation) = LONG_TAILED;
                // Twelve numbers of a uniform distribution add up to nearly a normal one, with a variance of 1.
                let normal: f64 = (0..12).map(|_| self.seeded.unit()).sum::<f64>() - 6.0;
                let output = median * (deviation * normal).exp();
                let prompt_max = self.spec.context_tokens.saturating_sub(most).max(1);
                let output = (output.round() as u32).clamp(1, most);
                (request.prompt_tokens.clamp(1, prompt_max), output)
            }
        }
    }

    fn gap(&mut self) -> Micros {
        Micros::from_f64(self.seeded.gap_us(self.rate))
    }

    fn think(&mut self) -> Micros {
        let per_minute = 60.0 / self.spec.think_secs.max(1e-3);
        Micros::from_f64(self.seeded.gap_us(per_minute))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(spec: &TraceSpec) -> Trace {
        Trace::draw(spec, &[Workload::sample()])
    }

    fn spec() -> TraceSpec {
        TraceSpec {
            reactive_per_minute: 10.0,
            proactive_per_minute: 30.0,
            seed: 7,
            ..TraceSpec::default()
        }
    }

    #[test]
    fn rates_come_out_and_equal_seeds_give_equal_traces() {
        let trace = drawn(&spec());
        let count = |class| trace.requests.iter().filter(|r| r.class == class).count();
        // 15 minutes: 150 and 450 expected, within four standard deviations.
        assert!((100..200).contains(&count(Class::Reactive)));
        assert!((365..535).contains(&count(Class::Proactive)));
        assert_eq!(trace, drawn(&spec()));
        assert_ne!(trace, drawn(&TraceSpec { seed: 8, ..spec() }));
    }

    #[test]
    fn the_proactive_half_does_not_depend_on_the_reactive_rate() {
        let proactive = |rate| {
            let trace = drawn(&TraceSpec {
                reactive_per_minute: rate,
                ..spec()
            });
            let mut all = trace.requests;
            all.retain(|r| r.class == Class::Proactive && r.flow.is_none());
            all.iter()
                .map(|r| (r.arrival, r.prompt_tokens))
                .collect::<Vec<_>>()
        };
        assert_eq!(proactive(1.0), proactive(20.0));
    }

    #[test]
    fn turns_of_a_session_follow_each_other_and_share_their_prefix() {
        let trace = drawn(&spec());
        let mut later_turns = 0;
        for (place, request) in trace.requests.iter().enumerate() {
            let Some(flow) = request.flow else {
                assert!(!request.ends_flow && request.shared_tokens == 0);
                continue;
            };
            if flow.0 == place as u64 {
                continue;
            }
            later_turns += 1;
            let Arrival::After {
                request: before, ..
            } = request.arrival
            else {
                panic!("{request:?}");
            };
            let before_it = trace.requests[before as usize];
            assert_eq!((before + 1, before_it.flow), (place as u64, Some(flow)));
            assert!(request.shared_tokens > 0 && !before_it.ends_flow);
            assert!(request.shared_tokens <= before_it.prompt_tokens + before_it.output_tokens);
        }
        assert!(later_turns > 10);
    }

    #[test]
    fn long_tailed_answers_have_the_mean_and_the_tail_of_their_source() {
        let trace = drawn(&TraceSpec {
            span: Micros(1000 * 60_000_000),
            answers: AnswerLengths::LongTailed,
            output_tokens_max: 1600,
            context_tokens: 1700,
            ..spec()
        });
        let lengths = trace.requests.iter().map(|r| r.output_tokens);
        let mean = lengths.clone().map(f64::from).sum::<f64>() / trace.requests.len() as f64;
        // The tail is cut.
        assert!((195.0..215.0).contains(&mean), "{mean}");
        let longest = lengths.filter(|tokens| *tokens == 1600).count();
        let share = longest as f64 / trace.requests.len() as f64;
        assert!((0.005..0.015).contains(&share), "{share}");
        let prompts = trace.requests.iter().map(|r| r.prompt_tokens);
        assert_eq!(prompts.max(), Some(100));
    }

    #[test]
    fn a_single_user_asks_again_after_the_answer() {
        let trace = drawn(&TraceSpec {
            spacing: Spacing::AfterAnswer,
            ..spec()
        });
        let reactive = trace.requests.iter().filter(|r| r.class == Class::Reactive);
        let free = reactive.filter(|r| matches!(r.arrival, Arrival::At(_)));
        assert_eq!(free.count(), 1);
    }
}
