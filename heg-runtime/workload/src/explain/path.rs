//! The path back through a request's time: from a token to the launch that computed it, to the cause of that launch's
//! wait, and so on. If the request waited for another one, the path continues through that one's time.

use heg_sched::{HoldReason, Lane, LayerKernel, Micros, RequestId};

use super::cause::SlowCause;
use super::index::Index;
use crate::traced::{LaneAway, LaunchOutcome, TracedCall, TracedLaunch, TracedRequest};

/// A span of one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: Micros,
    pub(super) end: Micros,
    pub(super) cause: SlowCause,
    /// The request that the cause held up first, which held up this one.
    pub(super) through: Option<RequestId>,
    /// The usual time of a launch that took longer, for which the cause stands.
    pub(super) usual: Micros,
}

impl Piece {
    fn new((start, end): (Micros, Micros), cause: SlowCause) -> Self {
        Self {
            start,
            end,
            cause,
            through: None,
            usual: Micros(0),
        }
    }

    pub(super) fn time(&self) -> Micros {
        self.end.since(self.start)
    }
}

/// The path of a request, through the requests for which it waited.
pub(super) struct Path<'i, 't> {
    index: &'i Index<'t>,
    request: &'t TracedRequest,
    /// The requests on the path so far, this one first.
    chain: Vec<RequestId>,
}

/// Maximum number of requests on a path: those in between say little.
const CHAIN_MAX: usize = 8;

impl<'i, 't> Path<'i, 't> {
    pub(super) fn of(index: &'i Index<'t>, request: &'t TracedRequest) -> Self {
        Self {
            index,
            request,
            chain: vec![request.id],
        }
    }

    /// Returns the pieces of a span, in the order of time and without gaps.
    pub(super) fn back(&mut self, start: Micros, end: Micros) -> Vec<Piece> {
        self.life(self.request.id, (start, end))
    }

    /// Returns the pieces of a request's time.
    fn life(&mut self, id: RequestId, (start, end): (Micros, Micros)) -> Vec<Piece> {
        let mut backwards: Vec<Vec<Piece>> = Vec::new();
        let mut at = end;
        while at > start {
            let launch = self.index.last_before(id, at);
            let Some(launch) = launch.filter(|launch| launch.end > start) else {
                backwards.push(self.wait(id, (start, at)));
                break;
            };
            if launch.end >= at {
                let from = launch.start.max(start);
                backwards.push(self.ran(id, launch, (from, at)));
                at = from;
            } else {
                backwards.push(self.wait(id, (launch.end, at)));
                at = launch.end;
            }
        }
        backwards.into_iter().rev().flatten().collect()
    }

    /// Returns the pieces of a launch, by its use for the request.
    fn ran(&self, id: RequestId, launch: &TracedLaunch, span: (Micros, Micros)) -> Vec<Piece> {
        match launch.outcome {
            LaunchOutcome::Stopped => {
                return vec![Piece::new(span, SlowCause::Hung(id, launch.lane))];
            }
            LaunchOutcome::Lost => {
                return vec![Piece::new(span, SlowCause::WithoutLane(launch.lane))];
            }
            LaunchOutcome::Failed | LaunchOutcome::OutOfMemory | LaunchOutcome::Unreadable => {
                return vec![Piece::new(span, SlowCause::Failed(id, launch.lane))];
            }
            LaunchOutcome::Done => {}
        }
        let cause = self.good_for(launch);
        let read = match (launch.flash_tokens, launch.kept_tokens) {
            (0, 0) => None,
            (0, _) => Some(SlowCause::KeptRead),
            _ => Some(SlowCause::FlashRead),
        };
        let Some(reading) = read else {
            return self.with_excess(launch, span, cause);
        };
        let usual = self.usual(id, launch).unwrap_or_default();
        let (start, end) = span;
        let read = (end.since(launch.start) - usual + launch.start).clamp(start, end);
        vec![
            Piece::new((start, read), reading),
            Piece::new((read, end), cause),
        ]
    }

    /// Returns a launch's usual time, by its use, and the time that it took beyond that.
    fn with_excess(
        &self,
        launch: &TracedLaunch,
        (start, end): (Micros, Micros),
        cause: SlowCause,
    ) -> Vec<Piece> {
        let Some(slowed) = self.index.slowed(launch) else {
            return vec![Piece::new((start, end), cause)];
        };
        let from = (launch.start + slowed.usual).clamp(start, end);
        let why = match slowed.beside {
            Some(lane) => SlowCause::Contention(lane),
            None => SlowCause::Device(launch.lane),
        };
        let excess = Piece {
            usual: slowed.usual,
            ..Piece::new((from, end), why)
        };
        let pieces = [Piece::new((start, from), cause), excess];
        let some = pieces.into_iter().filter(|piece| piece.start < piece.end);
        some.collect()
    }

    fn good_for(&self, launch: &TracedLaunch) -> SlowCause {
        let first_token = self.request.first_token;
        let answers = first_token.is_some_and(|at| launch.start >= at);
        let of_prompt = matches!(launch.call, TracedCall::Prefill { .. } | TracedCall::Head);
        let lost = self.request.restarted.is_some_and(|at| launch.end <= at);
        if (answers && of_prompt) || (!answers && lost) {
            return SlowCause::StartedOver;
        } else if answers {
            return SlowCause::OwnAnswer;
        }
        if let TracedCall::Prefill {
            kernel, segment, ..
        } = launch.call
            && launch.lane != Lane::Npu
        {
            let warm_up = self.index.warm_up(launch.start).map(|it| it.kernel);
            let fits = warm_up.is_some_and(|it| it.context >= segment.context());
            if kernel == LayerKernel::Mha && fits {
                return SlowCause::WarmUp;
            }
            let without = self.index.away(Lane::Npu, launch.start);
            if kernel != LayerKernel::Mha && without == Some(LaneAway::Lost) {
                return SlowCause::WithoutLane(Lane::Npu);
            }
        }
        SlowCause::OwnPrompt
    }

    /// Returns the median time of a request's similar launches without a read from flash or kept state, to compare with one that
    /// reads.
    fn usual(&self, id: RequestId, launch: &TracedLaunch) -> Option<Micros> {
        let like = |other: &&TracedLaunch| {
            other.lane == launch.lane
                && (other.flash_tokens, other.kept_tokens) == (0, 0)
                && other.outcome == LaunchOutcome::Done
                && is_like(other.call, launch.call)
        };
        let launches = self.index.launches_of(id).filter(like);
        let mut times: Vec<Micros> = launches.map(|it| it.end.since(it.start)).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }

    /// Returns the pieces of a time in which nothing of the request runs.
    fn wait(&mut self, id: RequestId, (start, end): (Micros, Micros)) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = start;
        for hold in self.index.holds_of(id, start) {
            if hold.start >= end || at >= end {
                break;
            }
            if hold.end <= at {
                continue;
            }
            let from = hold.start.max(at);
            let to = hold.end.min(end);
            if from > at {
                pieces.push(Piece::new((at, from), SlowCause::Between));
            }
            pieces.extend(self.held(hold.why, (from, to)));
            at = to;
        }
        if at < end {
            pieces.push(Piece::new((at, end), SlowCause::Between));
        }
        pieces
    }

    fn held(&mut self, why: HoldReason, span: (Micros, Micros)) -> Vec<Piece> {
        match why {
            HoldReason::Prompt(of) | HoldReason::Preempted(of) => self.behind(of, why, span),
            HoldReason::Lane(lane) => self.occupants(lane, span),
            _ => vec![Piece::new(span, SlowCause::of(why))],
        }
    }

    /// Returns the pieces of a wait for another request, by the causes of that one's time.
    fn behind(&mut self, of: RequestId, why: HoldReason, span: (Micros, Micros)) -> Vec<Piece> {
        let own = SlowCause::of(why);
        if self.chain.contains(&of) || self.chain.len() > CHAIN_MAX {
            return vec![Piece::new(span, own)];
        }
        self.chain.push(of);
        let mut pieces = self.life(of, span);
        self.chain.pop();
        for piece in &mut pieces {
            match piece.cause.holds_up_others() {
                true => piece.through = Some(of),
                false => piece.cause = own,
            }
        }
        pieces
    }

    /// Returns the pieces of a time in which other work occupied a lane.
    fn occupants(&self, lane: Lane, (start, end): (Micros, Micros)) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = start;
        let free = |from: Micros, to: Micros| {
            let cause = match self.index.away(lane, from) {
                Some(LaneAway::Resetting) => SlowCause::Reset(lane),
                Some(LaneAway::Lost) => SlowCause::NoLane,
                None => SlowCause::Between,
            };
            Piece::new((from, to), cause)
        };
        for launch in self.index.on_lane(lane, start) {
            if launch.start >= end || at >= end {
                break;
            }
            if launch.end <= at {
                continue;
            }
            let (from, to) = (launch.start.max(at), launch.end.min(end));
            if from > at {
                pieces.push(free(at, from));
            }
            pieces.push(Piece::new((from, to), occupied(launch)));
            at = to;
        }
        if at < end {
            pieces.push(free(at, end));
        }
        pieces
    }
}

/// Returns the cause for a launch that occupied a lane.
fn occupied(launch: &TracedLaunch) -> SlowCause {
    let lane = launch.lane;
    let first = launch.requests.first().copied();
    match (launch.outcome, launch.call, first) {
        (LaunchOutcome::Stopped, _, Some(of)) => SlowCause::Hung(of, lane),
        (LaunchOutcome::Done, TracedCall::Decode { .. } | TracedCall::Iteration { .. }, _)
        | (_, _, None) => SlowCause::Iterations(lane),
        (LaunchOutcome::Done, _, Some(of)) => SlowCause::Kernel(of, lane),
        (_, _, Some(of)) => SlowCause::Failed(of, lane),
    }
}

/// Returns whether two calls take about as long.
fn is_like(one: TracedCall, other: TracedCall) -> bool {
    match (one, other) {
        (
            TracedCall::Prefill {
                kernel, segment, ..
            },
            TracedCall::Prefill {
                kernel: other,
                segment: part,
                ..
            },
        ) => kernel == other && segment.tokens == part.tokens,
        (TracedCall::Decode { .. }, TracedCall::Decode { .. }) => true,
        (TracedCall::Iteration { .. }, TracedCall::Iteration { .. }) => true,
        _ => false,
    }
}
