//! A device's roofline with its kernels on it: throughput over intensity, both logarithmic.
//!
//! Ceilings are those of the peaks and of every calibration; points are runs of variants, at their work divided
//! by their traffic and by their estimated time. Points beyond the axes are only in the table.

use heg_profiler::DevicePeaks;
use heg_profiler::Roofline;
use heg_spec::Group;

use super::super::kernels::scaled;
use super::svg::{Align, Svg, distance};

/// The data of a roofline chart.
pub(super) struct Chart<'a> {
    /// Class of the style sheet for the device's colour.
    pub(super) style: &'a str,
    /// A description of the picture in a sentence.
    pub(super) label: String,
    pub(super) peaks: DevicePeaks,
    /// Calibrated ceilings; the first has its knee marked.
    pub(super) rooflines: Vec<Roofline>,
    /// The variants, those of each kernel one after the other.
    pub(super) points: Vec<Point>,
}

/// A run of a variant.
pub(super) struct Point {
    pub(super) kernel: String,
    pub(super) group: Group,
    pub(super) intensity_flops_per_byte: f64,
    pub(super) flops_per_sec: f64,
    /// Whether the call takes this variant.
    pub(super) taken: bool,
    /// A description of the point, in one line of at most 60 characters.
    pub(super) readout: String,
    /// A description of the point, in words.
    pub(super) title: String,
}

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 356.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 442.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 304.0;

/// Maximum number of decades of an axis on either side of the knee. Chosen: kernels in use span four.
const DECADES_MAX: f64 = 5.0;

/// A logarithmic axis, drawn from one position to another. Its ends are exponents of ten.
struct Axis {
    ends: [f64; 2],
    places: [f64; 2],
}

impl Axis {
    /// Creates an axis for all values that are not too far from the middle, with a little room on both sides.
    fn around(middle: f64, values: impl Iterator<Item = f64>, places: [f64; 2]) -> Self {
        let middle = middle.log10();
        let logs = values.map(f64::log10).filter(|log| log.is_finite());
        let near = logs.filter(|log| (log - middle).abs() <= DECADES_MAX);
        let (least, most) = near.fold((middle, middle), |(least, most), log| {
            (least.min(log), most.max(log))
        });
        Axis {
            ends: [least - 0.1, most + 0.1],
            places,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let [from, to] = self.ends;
        let share = (value.log10() - from) / (to - from);
        self.places[0] + share * (self.places[1] - self.places[0])
    }

    /// Returns the powers of ten on the axis.
    fn decades(&self) -> impl Iterator<Item = f64> {
        let [from, to] = self.ends;
        (from.ceil() as i32..=to.floor() as i32).map(|decade| 10f64.powi(decade))
    }

    /// Returns the least and the largest value of the axis.
    fn range(&self) -> [f64; 2] {
        self.ends.map(|end| 10f64.powf(end))
    }

    fn holds(&self, value: f64) -> bool {
        let [from, to] = self.range();
        (from..=to).contains(&value)
    }
}

/// Both axes.
struct Plane {
    x: Axis,
    y: Axis,
}

impl Plane {
    fn of(chart: &Chart<'_>) -> Self {
        let knee = chart.knee();
        let peak = chart.peaks.flops_per_sec();
        let points = chart.points.iter();
        let anchors = chart.rooflines.iter().map(Roofline::anchors);
        let anchors = anchors
            .flat_map(|pair| [pair.memory_bound(), pair.compute_bound()])
            .map(|anchor| anchor.intensity_flops_per_byte());
        let intensities = points.clone().map(|point| point.intensity_flops_per_byte);
        let around = [knee / 30.0, knee * 10.0].into_iter();
        let x = Axis::around(
            knee,
            around.chain(intensities).chain(anchors),
            [LEFT, RIGHT],
        );
        let speeds = points.map(|point| point.flops_per_sec);
        let ceiling = chart.peaks.bytes_per_sec() * x.range()[0];
        let around = [peak * 2.0, ceiling.clamp(peak / 100.0, peak / 10.0)].into_iter();
        let y = Axis::around(peak, around.chain(speeds), [BOTTOM, TOP]);
        Plane { x, y }
    }

    fn at(&self, intensity: f64, speed: f64) -> [f64; 2] {
        [self.x.place(intensity), self.y.place(speed)]
    }

    /// Returns the line min(B · I, P) within the axes.
    fn roof(&self, bytes_per_sec: f64, flops_per_sec: f64) -> Vec<[f64; 2]> {
        let [first, last] = self.x.range();
        let low = self.y.range()[0];
        let knee = flops_per_sec / bytes_per_sec;
        let start = first.max(low / bytes_per_sec);
        let mut points = Vec::new();
        if start < knee {
            points.push(self.at(start, start * bytes_per_sec));
        }
        points.push(self.at(knee.max(first), flops_per_sec));
        if knee < last {
            points.push(self.at(last, flops_per_sec));
        }
        points.retain(|[x, y]| {
            (LEFT - 0.5..=RIGHT + 0.5).contains(x) && (TOP - 0.5..=BOTTOM + 0.5).contains(y)
        });
        points
    }
}

impl Chart<'_> {
    fn knee(&self) -> f64 {
        let peaks = self.peaks.flops_per_sec() / self.peaks.bytes_per_sec();
        self.rooflines
            .first()
            .map_or(peaks, Roofline::knee_flops_per_byte)
    }

    /// Draws the chart; returns it with the number of points that it does not show.
    pub(super) fn draw(&self) -> (String, usize) {
        let plane = Plane::of(self);
        let class = format!("roofline {}", self.style);
        let mut svg = Svg::new(&class, "group", [WIDTH, HEIGHT], &self.label);
        svg.text(
            "hint",
            [LEFT, 16.0],
            Align::Start,
            "point at a mark, or move to it with the Tab key",
        );
        axes(&mut svg, &plane);
        self.ceilings(&mut svg, &plane);
        self.traces(&mut svg, &plane);
        self.anchors(&mut svg, &plane);
        let beyond = self.marks(&mut svg, &plane);
        self.labels(&mut svg, &plane);
        (svg.finish(), beyond)
    }

    fn ceilings(&self, svg: &mut Svg, plane: &Plane) {
        let (flops, bytes) = (self.peaks.flops_per_sec(), self.peaks.bytes_per_sec());
        svg.line("peak", &plane.roof(bytes, flops));
        for roofline in &self.rooflines {
            let bytes = roofline.effective_bytes_per_sec();
            let flops = roofline.effective_flops_per_sec();
            svg.line("ceiling", &plane.roof(bytes, flops));
        }
        let knee = self.knee();
        if plane.x.holds(knee) {
            let x = plane.x.place(knee);
            svg.line("knee", &[[x, TOP], [x, BOTTOM]]);
            svg.text(
                "note",
                [x, TOP - 8.0],
                Align::Middle,
                &format!("I* {}", figure(knee)),
            );
            if x - LEFT > 130.0 {
                svg.text("note", [x - 46.0, TOP - 8.0], Align::End, "memory-bound");
            }
            if RIGHT - x > 130.0 {
                svg.text("note", [x + 46.0, TOP - 8.0], Align::Start, "compute-bound");
            }
        }
        let y = plane.y.place(flops);
        let peak = scaled(flops, "FLOP/s");
        svg.text("strong", [RIGHT - 4.0, y - 10.0], Align::End, &peak);
        if let [[x0, y0], [x1, y1], ..] = plane.roof(bytes, flops)[..]
            && x1 - x0 > 90.0
        {
            let degrees = (y1 - y0).atan2(x1 - x0).to_degrees();
            let at = [(x0 + x1) / 2.0 - 5.0, (y0 + y1) / 2.0 - 7.0];
            let peak = scaled(bytes, "B/s");
            svg.turned_text("strong", at, Align::Middle, degrees, &peak);
        }
    }

    /// Draws a line through the static shapes of each kernel.
    fn traces(&self, svg: &mut Svg, plane: &Plane) {
        for points in self.points.chunk_by(|a, b| a.kernel == b.kernel) {
            let places: Vec<[f64; 2]> = points
                .iter()
                .filter_map(|point| place(plane, point))
                .collect();
            if places.len() > 1 {
                svg.line("trace", &places);
            }
        }
    }

    fn anchors(&self, svg: &mut Svg, plane: &Plane) {
        for roofline in &self.rooflines {
            let pair = roofline.anchors();
            let named = [
                ("memory-bound", pair.memory_bound()),
                ("compute-bound", pair.compute_bound()),
            ];
            for (regime, anchor) in named {
                let intensity = anchor.intensity_flops_per_byte();
                // A copy, I = 0, is infinitely far to the left.
                let shown = intensity.max(plane.x.range()[0]);
                let speed = roofline.performance_flops_per_sec(shown);
                if !(plane.x.holds(shown) && plane.y.holds(speed)) {
                    continue;
                }
                let [x, y] = plane.at(shown, speed);
                let words = format!(
                    "{regime} anchor: {} FLOP/B, {}% of the peak bandwidth",
                    figure(intensity),
                    figure(anchor.utilisation() * 100.0)
                );
                focusable(svg, "anchor", &words, &words);
                svg.line("cross", &[[x - 5.0, y - 5.0], [x + 5.0, y + 5.0]]);
                svg.line("cross", &[[x - 5.0, y + 5.0], [x + 5.0, y - 5.0]]);
                svg.rect("touch", [x - 9.0, y - 9.0], [18.0, 18.0], 9.0);
                svg.close();
            }
        }
    }

    /// Draws the points, those that the call takes last; returns the number of points beyond the axes.
    fn marks(&self, svg: &mut Svg, plane: &Plane) -> usize {
        let (taken, others): (Vec<&Point>, Vec<&Point>) =
            self.points.iter().partition(|point| point.taken);
        let mut beyond = 0;
        for point in others.into_iter().chain(taken) {
            let Some(at) = place(plane, point) else {
                beyond += 1;
                continue;
            };
            let class = if point.taken { "mark taken" } else { "mark" };
            focusable(svg, class, &point.title, &point.readout);
            mark(svg, point.group, at);
            svg.close();
        }
        beyond
    }

    /// Positions along the ceilings and the knee, every few pixels.
    fn lines(&self, plane: &Plane) -> Vec<[f64; 2]> {
        let effective = |found: &Roofline| {
            let bytes = found.effective_bytes_per_sec();
            plane.roof(bytes, found.effective_flops_per_sec())
        };
        let peak = plane.roof(self.peaks.bytes_per_sec(), self.peaks.flops_per_sec());
        let knee = plane.x.place(self.knee());
        let mut lines: Vec<Vec<[f64; 2]>> = self.rooflines.iter().map(effective).collect();
        lines.extend([peak, vec![[knee, TOP], [knee, BOTTOM]]]);
        let mut places = Vec::new();
        for pair in lines.iter().flat_map(|line| line.windows(2)) {
            let [[x0, y0], [x1, y1]] = [pair[0], pair[1]];
            let steps = (distance(pair[0], pair[1]) / 4.0).ceil();
            places.extend((0..=steps as u32).map(|step| {
                let share = f64::from(step) / steps.max(1.0);
                [x0 + share * (x1 - x0), y0 + share * (y1 - y0)]
            }));
        }
        places
    }

    /// Draws the names of the kernels beside the points that the call takes, where they cover nothing.
    fn labels(&self, svg: &mut Svg, plane: &Plane) {
        let places = |point: &Point| place(plane, point);
        let mut covered: Vec<[f64; 4]> = self
            .points
            .iter()
            .filter_map(places)
            .map(|at| around(at, 6.0))
            .collect();
        covered.extend(self.lines(plane).into_iter().map(|at| around(at, 2.0)));
        for point in self.points.iter().filter(|point| point.taken) {
            let Some([x, y]) = place(plane, point) else {
                continue;
            };
            let width = point.kernel.chars().count() as f64 * 7.3;
            let (right, left, middle) = (10.0, -10.0 - width, -width / 2.0);
            // Below and to the right first, because the roof is above.
            let offsets = [
                (right, 16.0),
                (right, 4.0),
                (middle, 21.0),
                (left, 16.0),
                (left, 4.0),
                (middle, 34.0),
                (right, 30.0),
                (left, 30.0),
                (middle, -11.0),
                (middle, 48.0),
            ];
            let boxes =
                offsets.map(|(dx, dy)| [x + dx, y + dy - 11.0, x + dx + width, y + dy + 3.0]);
            let free = boxes.into_iter().find(|area| {
                let inside = area[0] > LEFT && area[2] < RIGHT && area[3] < BOTTOM && area[1] > TOP;
                inside && !covered.iter().any(|other| overlap(area, other))
            });
            if let Some(area) = free {
                let at = [area[0], area[3] - 3.0];
                svg.text("label", at, Align::Start, &point.kernel);
                covered.push(area);
            }
        }
    }
}

fn around([x, y]: [f64; 2], reach: f64) -> [f64; 4] {
    [x - reach, y - reach, x + reach, y + reach]
}

fn overlap(a: &[f64; 4], b: &[f64; 4]) -> bool {
    a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
}

/// Returns the position of a point; `None` if it is beyond the axes.
fn place(plane: &Plane, point: &Point) -> Option<[f64; 2]> {
    let (intensity, speed) = (point.intensity_flops_per_byte, point.flops_per_sec);
    (plane.x.holds(intensity) && plane.y.holds(speed)).then(|| plane.at(intensity, speed))
}

/// Opens a part that can have the keyboard's focus, which shows its line above the chart.
fn focusable(svg: &mut Svg, class: &str, title: &str, readout: &str) {
    svg.open(
        "g",
        &[
            ("class", &class),
            ("tabindex", &"0"),
            ("role", &"img"),
            ("aria-label", &title),
        ],
    );
    svg.title(title);
    svg.text("readout", [LEFT, 16.0], Align::Start, readout);
}

/// Draws the mark of a group: each has a shape of its own, so that colour is not needed.
pub(super) fn mark(svg: &mut Svg, group: Group, [x, y]: [f64; 2]) {
    let points = match group {
        Group::Qkv => return svg.rect("shape", [x - 4.5, y - 4.5], [9.0, 9.0], 4.5),
        Group::Ffn => return svg.rect("shape", [x - 4.2, y - 4.2], [8.4, 8.4], 0.0),
        Group::Mha => vec![[x, y - 5.5], [x + 5.2, y + 3.8], [x - 5.2, y + 3.8]],
        Group::Head => vec![[x, y - 5.8], [x + 5.8, y], [x, y + 5.8], [x - 5.8, y]],
    };
    let closed: Vec<[f64; 2]> = points.iter().chain(points.first()).copied().collect();
    svg.line("shape", &closed);
}

fn axes(svg: &mut Svg, plane: &Plane) {
    for intensity in plane.x.decades() {
        let x = plane.x.place(intensity);
        svg.line("grid", &[[x, TOP], [x, BOTTOM]]);
        svg.text("tick", [x, BOTTOM + 18.0], Align::Middle, &tick(intensity));
    }
    for speed in plane.y.decades() {
        let y = plane.y.place(speed);
        svg.line("grid", &[[LEFT, y], [RIGHT, y]]);
        svg.text("tick", [LEFT - 8.0, y + 4.0], Align::End, &tick(speed));
    }
    svg.line("axis", &[[LEFT, TOP], [LEFT, BOTTOM], [RIGHT, BOTTOM]]);
    let middle = [(LEFT + RIGHT) / 2.0, (TOP + BOTTOM) / 2.0];
    svg.text(
        "note",
        [middle[0], BOTTOM + 40.0],
        Align::Middle,
        "intensity, FLOP/B",
    );
    svg.turned_text(
        "note",
        [14.0, middle[1]],
        Align::Middle,
        -90.0,
        "throughput, FLOP/s",
    );
}

/// Formats a power of ten with a decimal prefix: `100 m`, `10`, `1 T`.
fn tick(value: f64) -> String {
    const PREFIXES: [(&str, f64); 6] = [
        (" P", 1e15),
        (" T", 1e12),
        (" G", 1e9),
        (" M", 1e6),
        (" k", 1e3),
        ("", 1.0),
    ];
    match PREFIXES.iter().find(|(_, size)| value >= 0.999 * size) {
        Some((prefix, size)) if value < 999_500.0 * size => {
            format!("{:.0}{prefix}", value / size)
        }
        None if value > 0.0009 => format!("{value:.3}").trim_end_matches('0').to_owned(),
        _ => format!("{value:.0e}"),
    }
}

/// Formats a number with up to three digits: `59.4`, `0.125`, `50`, `1.2e9`.
pub(super) fn figure(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => return "0".to_owned(),
        size if !(0.001..100_000.0).contains(&size) => return format!("{value:.1e}"),
        size if size < 1.0 => 3,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => return format!("{value:.0}"),
    };
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_have_prefixes() {
        let ticks = [1e-9, 0.001, 0.1, 1.0, 10.0, 1e5, 1e12, 1e15, 1e30].map(tick);
        let expected = [
            "1e-9", "0.001", "0.1", "1", "10", "100 k", "1 T", "1 P", "1e30",
        ];
        assert_eq!(ticks, expected);
    }

    #[test]
    fn an_axis_holds_what_is_near() {
        let values = [1e-300, 0.1, 1000.0, f64::NAN];
        let axis = Axis::around(10.0, values.into_iter(), [0.0, 42.0]);
        assert_eq!(axis.ends, [-1.1, 3.1]);
        assert!((axis.place(10.0) - 21.0).abs() < 1e-9);
        assert!(axis.holds(1100.0) && !axis.holds(1300.0));
        let decades: Vec<f64> = axis.decades().collect();
        assert_eq!(decades, [0.1, 1.0, 10.0, 100.0, 1000.0]);
    }
}
