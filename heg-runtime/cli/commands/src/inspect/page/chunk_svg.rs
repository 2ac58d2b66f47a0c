//! A chart of the chunk sweep: one bar for each candidate, and the bound that the choice had to keep.

use super::super::kernels::scaled;
use super::svg::{Align, Svg};

/// The data of a chunk chart.
pub(super) struct Bars<'a> {
    pub(super) title: &'a str,
    /// Chunk size in tokens, and a time in µs above 0.
    pub(super) bars: Vec<(u32, f64)>,
    pub(super) chosen: Option<u32>,
    /// A horizontal line, in µs, with its name.
    pub(super) bound: (f64, String),
}

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 224.0;
const LEFT: f64 = 1.0;
const TOP: f64 = 66.0;
const BOTTOM: f64 = 182.0;

impl Bars<'_> {
    pub(super) fn draw(&self) -> String {
        let label = format!("Bar chart: {}; the table below has its numbers", self.title);
        let mut svg = Svg::new("bars", "img", [WIDTH, HEIGHT], &label);
        svg.text("title", [LEFT, 16.0], Align::Start, self.title);
        let most_us = self.bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
        let (bound_us, name) = &self.bound;
        // A bound far above all bars would leave no room for them.
        let shown = *bound_us <= 2.0 * most_us;
        let top_us = if shown {
            most_us.max(*bound_us)
        } else {
            most_us
        };
        let place = |time_us: f64| BOTTOM - time_us / top_us * (BOTTOM - TOP);
        let step = (WIDTH - 2.0 * LEFT) / self.bars.len().max(1) as f64;
        let width = (step * 0.6).min(56.0);
        let middles = (0..self.bars.len()).map(|index| LEFT + (index as f64 + 0.5) * step);
        let bars: Vec<_> = self.bars.iter().zip(middles).collect();
        for ((tokens, time_us), middle) in &bars {
            let chosen = self.chosen == Some(*tokens);
            let y = place(*time_us);
            svg.open(
                "g",
                &[("class", if chosen { &"bar chosen" } else { &"bar" })],
            );
            svg.title(&format!("chunk {tokens}: {}", time(*time_us)));
            svg.rect("", [middle - width / 2.0, y], [width, BOTTOM - y], 2.0);
            svg.close();
        }
        svg.line("axis", &[[LEFT, BOTTOM], [WIDTH - LEFT, BOTTOM]]);
        if shown {
            let y = place(*bound_us);
            svg.line("bound", &[[LEFT, y], [WIDTH - LEFT, y]]);
        }
        for ((tokens, time_us), middle) in &bars {
            let chosen = self.chosen == Some(*tokens);
            let class = if chosen { "strong" } else { "tick" };
            let above = [*middle, place(*time_us) - 6.0];
            svg.text(class, above, Align::Middle, &time(*time_us));
            let below = [*middle, BOTTOM + 18.0];
            svg.text(class, below, Align::Middle, &tokens.to_string());
            if chosen {
                svg.text("strong", [*middle, BOTTOM + 35.0], Align::Middle, "chosen");
            }
        }
        let words = match shown {
            true => format!("dashed: {name}, {}", time(*bound_us)),
            false => format!("{name}, {}, is far above", time(*bound_us)),
        };
        svg.text("note", [LEFT, 34.0], Align::Start, &words);
        svg.finish()
    }
}

fn time(time_us: f64) -> String {
    scaled(time_us * 1e-6, "s")
}
