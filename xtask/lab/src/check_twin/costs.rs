//! Costs of a machine, fitted to launches of a run on it: what each kernel takes by its tokens and what they see.

use heg_sched::{Call, Cost, Costs, Lane, LayerKernel, LayerOrder, Micros, ModelShape, WarmKernel};
use heg_sim::SpeedDrift;
use heg_workload::{LaunchOutcome, RunTrace, TracedCall, TracedLaunch};
use std::collections::BTreeMap;

/// Lines of time over size, by lane.
#[derive(Debug, Clone)]
pub(super) struct FittedCosts {
    model: ModelShape,
    lanes: [LaneCosts; Lane::ALL.len()],
}

#[derive(Debug, Clone, Default)]
struct LaneCosts {
    prefill: [Option<Line>; 3],
    head: Option<Line>,
    /// A layer of a decode step, with its share of the head.
    layer: Option<Line>,
}

/// µs as a sum over features of a call: one, its size, what it sees.
type Line = [f64; 3];

/// A launch as features and µs.
type Point = ([f64; 3], f64);

impl FittedCosts {
    /// Fits the costs to every other completed launch of a run. A decode launch has a row for each of its requests, so that
    /// the run must not have drafts.
    pub(super) fn of(trace: &RunTrace) -> Self {
        let shape = shape_of(trace);
        let mut points: [[Vec<Point>; 5]; Lane::ALL.len()] = Default::default();
        for (launch, kind, point) in fitted(trace, shape.layers) {
            points[launch.lane as usize][kind].push(point);
        }
        let lanes = points.map(|[qkv, mha, ffn, head, layer]| LaneCosts {
            prefill: [fit(&qkv), fit(&mha), fit(&ffn)],
            head: fit(&head),
            layer: fit(&layer),
        });
        Self {
            model: shape,
            lanes,
        }
    }

    /// The drift of the launches that these costs are fitted to, by lane, in spans of a tenth of a second.
    pub(super) fn drift(&self, trace: &RunTrace) -> SpeedDrift {
        let mut spans = BTreeMap::<(Lane, u64), [f64; 2]>::new();
        for (launch, kind, (features, us)) in fitted(trace, self.model.layers) {
            let line = self.lanes[launch.lane as usize].line(kind);
            if let Some(cost) = on(line, features, 0.0) {
                let span = (launch.lane, launch.start.0 / DRIFT_SPAN_US);
                let [took, expected] = spans.entry(span).or_default();
                *took += us;
                *expected += cost.latency_us;
            }
        }
        let mut drift = SpeedDrift::default();
        for ((lane, span), [took, expected]) in spans {
            let factor = (took + MEAN_SPEED_US) / (expected + MEAN_SPEED_US);
            drift.add(lane, Micros(span * DRIFT_SPAN_US), factor);
        }
        drift
    }

    /// Returns whether a lane ran anything.
    pub(super) fn has(&self, lane: Lane) -> bool {
        let costs = &self.lanes[lane as usize];
        costs.layer.is_some() || costs.prefill.iter().any(Option::is_some)
    }
}

impl LaneCosts {
    fn line(&self, kind: usize) -> Option<Line> {
        match kind {
            HEAD => self.head,
            LAYER => self.layer,
            kernel => self.prefill.get(kernel).copied().flatten(),
        }
    }
}

/// Chosen: requests take about as long, and some hundred launches are in it.
const DRIFT_SPAN_US: u64 = 100_000;

/// Work at the mean speed that each span has beside its launches, in µs: one or two short ones say little of a lane's speed.
/// Chosen among 1, 3, 5 and 10 ms by seven recorded runs.
const MEAN_SPEED_US: f64 = 3000.0;

/// Every other completed launch, with its kind and point.
fn fitted(trace: &RunTrace, layers: u32) -> impl Iterator<Item = (&TracedLaunch, usize, Point)> {
    let launches = trace.launches().iter().zip(Contexts::of(trace, layers).0);
    let done = |(launch, _): &(&TracedLaunch, u32)| launch.outcome == LaunchOutcome::Done;
    let fitted = launches.step_by(2).filter(done);
    fitted.filter_map(|(launch, seen)| {
        let us = launch.end.since(launch.start).0 as f64;
        let (kind, point) = point(launch, us, seen)?;
        Some((launch, kind, point))
    })
}

const HEAD: usize = 3;
const LAYER: usize = 4;

/// The kind of a launch, and its features with its µs; of a decode launch those of a layer.
fn point(launch: &TracedLaunch, us: f64, seen: u32) -> Option<(usize, Point)> {
    match launch.call {
        TracedCall::Prefill {
            kernel, segment, ..
        } => Some((
            kernel as usize,
            (
                of_prefill(kernel, segment.tokens, segment.position + segment.tokens),
                us,
            ),
        )),
        TracedCall::Head => Some((HEAD, ([1.0, 0.0, 0.0], us))),
        TracedCall::Decode {
            first_layer,
            end_layer,
            ..
        } => {
            let layers = f64::from(end_layer.checked_sub(first_layer).filter(|it| *it > 0)?);
            let rows = launch.requests.len() as f64;
            Some((LAYER, ([1.0, rows, f64::from(seen)], us / layers)))
        }
        TracedCall::Iteration { .. } => None,
    }
}

fn of_prefill(kernel: LayerKernel, tokens: u32, context: u32) -> [f64; 3] {
    let tokens = f64::from(tokens);
    match kernel {
        LayerKernel::Mha => [1.0, tokens, tokens * f64::from(context)],
        LayerKernel::Qkv | LayerKernel::Ffn => [1.0, tokens, 0.0],
    }
}

/// The shape of the model as far as launches show it.
fn shape_of(trace: &RunTrace) -> ModelShape {
    let (mut layers, mut chunk_tokens) = (1, 1);
    for launch in trace.launches() {
        match launch.call {
            TracedCall::Prefill { layer, segment, .. } => {
                layers = layers.max(layer + 1);
                chunk_tokens = chunk_tokens.max(segment.tokens);
            }
            TracedCall::Decode { end_layer, .. } => layers = layers.max(end_layer),
            TracedCall::Head | TracedCall::Iteration { .. } => {}
        }
    }
    ModelShape {
        layers,
        order: LayerOrder::default(),
        chunk_tokens,
        context_tokens: 1 << 20,
        // The replay has room for all caches, as the run had.
        kv_bytes_per_token: 1,
    }
}

/// Context of each launch's requests together, if it decodes.
struct Contexts(Vec<u32>);

impl Contexts {
    fn of(trace: &RunTrace, layers: u32) -> Self {
        let mut tokens: BTreeMap<_, u32> = trace
            .requests()
            .map(|request| (request.id, request.prompt_tokens + 1))
            .collect();
        let seen = |launch: &TracedLaunch| {
            let TracedCall::Decode { end_layer, .. } = launch.call else {
                return 0;
            };
            let mut sum = 0;
            for id in &launch.requests {
                if let Some(tokens) = tokens.get_mut(id) {
                    sum += *tokens;
                    *tokens += u32::from(end_layer == layers);
                }
            }
            sum
        };
        Self(trace.launches().iter().map(seen).collect())
    }
}

/// The line with the least squares through points; `None` without any.
fn fit(points: &[Point]) -> Option<Line> {
    if points.is_empty() {
        return None;
    }
    // Features of unlike sizes, and of one size alone, which a small weight on each decides.
    let scale = [0, 1, 2].map(|at| {
        let most = points.iter().map(|(features, _)| features[at].abs());
        most.fold(0.0, f64::max).max(f64::MIN_POSITIVE)
    });
    let mut matrix = [[0.0; 4]; 3];
    for (features, us) in points {
        for row in 0..3 {
            let scaled = features[row] / scale[row];
            for column in 0..3 {
                matrix[row][column] += scaled * features[column] / scale[column];
            }
            matrix[row][3] += scaled * us;
        }
    }
    for (at, row) in matrix.iter_mut().enumerate() {
        row[at] += 1e-9 * points.len() as f64;
    }
    let solved = solve(matrix);
    Some([0, 1, 2].map(|at| solved[at] / scale[at]))
}

/// Solves three equations by elimination; the matrix is positive definite.
fn solve(mut matrix: [[f64; 4]; 3]) -> [f64; 3] {
    for pivot in 0..3 {
        let of_pivot = matrix[pivot];
        for (at, row) in matrix.iter_mut().enumerate() {
            if at != pivot {
                let factor = row[pivot] / of_pivot[pivot];
                for (cell, other) in row.iter_mut().zip(of_pivot) {
                    *cell -= factor * other;
                }
            }
        }
    }
    [0, 1, 2].map(|at| matrix[at][3] / matrix[at][at])
}

/// The cost on a line. What lanes took beside each other is in it, so that nothing is added for the memory they share.
fn on(line: Option<Line>, features: [f64; 3], less_us: f64) -> Option<Cost> {
    let line = line?;
    let us: f64 = line.iter().zip(features).map(|(a, b)| a * b).sum();
    Some(Cost {
        latency_us: (us - less_us).max(1.0),
        bandwidth: 0.0,
    })
}

impl Costs for FittedCosts {
    fn model(&self) -> ModelShape {
        self.model
    }

    fn cost(&self, lane: Lane, call: Call) -> Option<Cost> {
        let costs = &self.lanes[lane as usize];
        match call {
            Call::Prefill {
                kernel,
                tokens,
                context,
            } => on(
                costs.prefill[kernel as usize],
                of_prefill(kernel, tokens, context),
                0.0,
            ),
            Call::Layer { rows, context, .. } => {
                // The simulator adds the head after the last layer.
                let head = self.cost(lane, Call::Head { rows });
                let less = head.map_or(0.0, |cost| cost.latency_us / f64::from(self.model.layers));
                on(
                    costs.layer,
                    [1.0, f64::from(rows), f64::from(context)],
                    less,
                )
            }
            Call::Verify { .. } => None,
            Call::Head { .. } => {
                on(costs.head, [1.0, 0.0, 0.0], 0.0).or_else(|| on(costs.layer, [0.0; 3], 0.0))
            }
        }
    }

    fn warm_cost(&self, _kernel: WarmKernel) -> Option<Cost> {
        None
    }

    fn warm_up(&self, _kernel: WarmKernel) -> Option<Micros> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_through_points_is_found() {
        let features = [
            [1.0, 8.0, 64.0],
            [1.0, 16.0, 4096.0],
            [1.0, 32.0, 1024.0],
            [1.0, 9.0, 700.0],
        ];
        let us = |[one, tokens, pairs]: [f64; 3]| 20.0 * one + 3.0 * tokens + 0.01 * pairs;
        let points = features.map(|it| (it, us(it)));
        let line = fit(&points).unwrap();
        for (found, expected) in line.into_iter().zip([20.0, 3.0, 0.01]) {
            assert!((found / expected - 1.0).abs() < 1e-3, "{line:?}");
        }
        assert_eq!(fit(&[]), None);
        // Of one size alone the mean is known.
        let same = [([1.0, 4.0, 0.0], 10.0), ([1.0, 4.0, 0.0], 14.0)];
        let cost = on(fit(&same), [1.0, 4.0, 0.0], 0.0).unwrap();
        assert!((cost.latency_us - 12.0).abs() < 1e-3);
    }
}
