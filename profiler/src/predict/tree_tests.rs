//! Step functions compared with a decision tree (HeteroLLM §4.3) on estimates of a real NPU compiler, as cited in
//! `MODEL.md`.

/// Products of the 3B and 8B models' `qkv` and `ffn`: millions of weights, depth, and the compiler's estimates on
/// platform 3720 at 1300 MHz in µs, for [`CHUNKS`] (the shipped model sheets).
const ESTIMATES: [(f64, f64, [f64; 5]); 4] = [
    (15.73, 3072.0, [546.6, 1009.2, 1759.1, 2701.5, 5887.1]),
    (84.93, 3072.0, [2451.6, 4463.7, 8893.4, 17_302.3, 33_419.5]),
    (25.17, 4096.0, [797.2, 1382.0, 2326.9, 4398.2, 9935.6]),
    (
        192.94,
        4096.0,
        [5955.5, 11_610.4, 20_627.4, 40_187.7, 78_793.8],
    ),
];
const CHUNKS: [f64; 5] = [32.0, 64.0, 128.0, 256.0, 512.0];

/// A point: weights, depth and chunk, and the latency to learn.
type Point = ([f64; 3], f64);

/// All points, with their latencies.
fn points() -> Vec<Point> {
    let kernels = ESTIMATES.iter().flat_map(|(weights, depth, us)| {
        let chunks = CHUNKS.iter().zip(us);
        chunks.map(|(chunk, us)| ([*weights, *depth, *chunk], *us))
    });
    kernels.collect()
}

/// A regression tree: each split minimises the squared error, down to single points.
enum Tree {
    Leaf(f64),
    Split(usize, f64, Box<[Tree; 2]>),
}

impl Tree {
    fn grown(points: &[Point]) -> Self {
        let mut best: Option<(f64, usize, f64)> = None;
        for feature in 0..3 {
            let mut values: Vec<f64> = points.iter().map(|(at, _)| at[feature]).collect();
            values.sort_by(f64::total_cmp);
            values.dedup();
            for pair in values.windows(2) {
                let at = (pair[0] * pair[1]).sqrt();
                let [below, above] = split(points, feature, at);
                let left = squares(&below) + squares(&above);
                if best.is_none_or(|(least, ..)| left < least) {
                    best = Some((left, feature, at));
                }
            }
        }
        let Some((_, feature, at)) = best else {
            return Self::Leaf(mean(points));
        };
        let halves = split(points, feature, at).map(|half| Self::grown(&half));
        Self::Split(feature, at, Box::new(halves))
    }

    fn at(&self, place: [f64; 3]) -> f64 {
        match self {
            Self::Leaf(value) => *value,
            Self::Split(feature, at, halves) => {
                halves[usize::from(place[*feature] >= *at)].at(place)
            }
        }
    }
}

fn split(points: &[Point], feature: usize, at: f64) -> [Vec<Point>; 2] {
    let (below, above) = points.iter().partition(|(place, _)| place[feature] < at);
    [below, above]
}

fn mean(points: &[Point]) -> f64 {
    points.iter().map(|(_, value)| value).sum::<f64>() / points.len() as f64
}

fn squares(points: &[Point]) -> f64 {
    let mean = mean(points);
    points.iter().map(|(_, value)| (value - mean).powi(2)).sum()
}

/// Interpolates between the kernel's neighbouring chunks, and extrapolates in proportion to the tokens, as
/// [`super::Steps::without`] does.
fn stepped([weights, _, chunk]: [f64; 3]) -> f64 {
    let (.., us) = ESTIMATES
        .iter()
        .find(|(known, ..)| *known == weights)
        .unwrap();
    let place = CHUNKS.iter().position(|known| *known == chunk).unwrap();
    let neighbour = match place {
        0 => 1,
        4 => 3,
        _ => return us[place - 1] * 2.0 / 3.0 + us[place + 1] / 3.0,
    };
    us[neighbour] * chunk / CHUNKS[neighbour]
}

/// Median and largest error of the predictions of left-out points, in per mille.
fn errors(predicted: impl Fn([f64; 3], &[Point]) -> f64) -> [i64; 2] {
    let all = points();
    let of = |(left_out, (place, us)): (usize, &Point)| {
        let mut rest = all.clone();
        rest.remove(left_out);
        (1000.0 * (predicted(*place, &rest) / us - 1.0).abs()).round() as i64
    };
    let mut errors: Vec<i64> = all.iter().enumerate().map(of).collect();
    errors.sort_unstable();
    [(errors[9] + errors[10]) / 2, errors[19]]
}

#[test]
fn steps_predict_an_npu_better_than_a_tree() {
    let learnt = |of: fn([f64; 3]) -> f64| {
        move |place: [f64; 3], rest: &[Point]| {
            let known: Vec<Point> = rest
                .iter()
                .map(|(at, us)| (*at, (us / of(*at)).ln()))
                .collect();
            Tree::grown(&known).at(place).exp() * of(place)
        }
    };
    let latency = errors(learnt(|_| 1.0));
    let rate = errors(learnt(|[weights, _, chunk]| weights * chunk));
    let steps = errors(|place, _| stepped(place));
    assert_eq!([latency, rate, steps], [[484, 992], [67, 173], [56, 161]]);
}
