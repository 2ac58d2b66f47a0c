//! Charts as SVG, in one style: line charts over a rate, and horizontal bars.
//!
//! The width of text is estimated, not taken from a font, so that the bytes are the same on any machine.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A drawing area of an SVG under construction.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(crate) const INK: RGBColor = RGBColor(31, 41, 55);
pub(crate) const FAINT: RGBColor = RGBColor(107, 114, 128);
const GRID: RGBColor = RGBColor(229, 231, 235);

/// Colours that colour-blind readers can distinguish (Okabe and Ito).
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(148, 103, 189),
    RGBColor(204, 121, 167),
    RGBColor(127, 127, 127),
];

/// The colour of the series at index `place`.
pub(crate) fn colour(place: usize) -> RGBColor {
    COLOURS[place % COLOURS.len()]
}

/// Heights in pixels of the title with its subtitle, and of the legend.
const HEAD: i32 = 62;
const LEGEND: i32 = 30;

/// Draws a picture of this size.
pub(crate) fn draw(
    size: (u32, u32),
    paint: impl FnOnce(&Area<'_>) -> Result<()>,
) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        paint(&area)?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Drawing into a string fails only because of a bug of ours.
pub(crate) fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

/// Draws text at a point; `h` and `v` are the point's position within the text.
pub(crate) fn text(
    area: &Area<'_>,
    words: &str,
    at: (i32, i32),
    size: i32,
    colour: RGBColor,
    (h, v): (HPos, VPos),
) -> Result<()> {
    let style = ("sans-serif", size).into_text_style(area).color(&colour);
    let style = style.pos(Pos::new(h, v));
    area.draw(&Text::new(words.to_owned(), at, style))
        .map_err(failed)
}

/// Draws title and subtitle at the top left; returns the area below.
pub(crate) fn heading<'a>(area: &Area<'a>, title: &str, subtitle: &str) -> Result<Area<'a>> {
    let at = (HPos::Left, VPos::Top);
    text(area, title, (24, 16), 19, INK, at)?;
    text(area, subtitle, (24, 41), 13, FAINT, at)?;
    Ok(area.split_vertically(HEAD).1)
}

/// Draws a row of coloured squares with names; returns the area below.
pub(crate) fn legend<'a>(area: &Area<'a>, entries: &[(String, RGBColor)]) -> Result<Area<'a>> {
    let mut x = 24;
    for (name, colour) in entries {
        let square = Rectangle::new([(x, 8), (x + 12, 20)], colour.filled());
        area.draw(&square).map_err(failed)?;
        text(
            area,
            name,
            (x + 18, 14),
            13,
            INK,
            (HPos::Left, VPos::Center),
        )?;
        x += 18 + 24 + (name.chars().count() as f64 * 6.1) as i32;
    }
    Ok(area.split_vertically(LEGEND).1)
}

/// A line over points.
pub(crate) struct Series {
    pub(crate) colour: RGBColor,
    pub(crate) points: Vec<(f64, f64)>,
    /// Whether it is dashed, for a second figure of the same subject.
    pub(crate) dashed: bool,
}

/// A chart among several in one picture.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) series: Vec<Series>,
}

/// The heading of a picture's charts, and the number of columns.
pub(crate) struct Sheet {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    pub(crate) legend: Vec<(String, RGBColor)>,
    pub(crate) columns: usize,
}

impl Sheet {
    /// Draws title, subtitle and legend; returns the area below.
    fn paint<'a>(&self, area: &Area<'a>) -> Result<Area<'a>> {
        let below = heading(area, &self.title, &self.subtitle)?;
        match self.legend.is_empty() {
            true => Ok(below),
            false => legend(&below, &self.legend),
        }
    }
}

/// A picture of charts in rows.
pub(crate) struct Lines {
    pub(crate) sheet: Sheet,
    pub(crate) x: String,
    pub(crate) y: String,
    pub(crate) panels: Vec<Panel>,
}

impl Lines {
    /// Draws the picture. All charts have the same axes; y is logarithmic.
    pub(crate) fn svg(&self) -> Result<String> {
        let columns = self.sheet.columns.max(1);
        let rows = self.panels.len().div_ceil(columns).max(1);
        let size = (
            40 + 340 * columns as u32,
            (HEAD + LEGEND) as u32 + 16 + 260 * rows as u32,
        );
        let points = || {
            self.panels
                .iter()
                .flat_map(|p| &p.series)
                .flat_map(|s| &s.points)
        };
        let most_x = points().map(|p| p.0).fold(1.0, f64::max);
        let least_x = points().map(|p| p.0).fold(most_x, f64::min);
        let positive = points().map(|p| p.1).filter(|y| *y > 0.0);
        let (low, high) = positive.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), y| {
            (low.min(y), high.max(y))
        });
        let range = (low.min(high) * 0.8)..(high * 1.25);
        draw(size, |area| {
            let below = self.sheet.paint(area)?.margin(0, 12, 16, 16);
            for (place, (panel, area)) in self
                .panels
                .iter()
                .zip(below.split_evenly((rows, columns)))
                .enumerate()
            {
                let first = place % columns == 0;
                let last = place + columns >= self.panels.len();
                let labels = (
                    if last { self.x.as_str() } else { "" },
                    if first { self.y.as_str() } else { "" },
                );
                panel.paint(
                    &area,
                    least_x.min(most_x - 1.0).max(0.0)..most_x,
                    range.clone(),
                    labels,
                )?;
            }
            Ok(())
        })
    }
}

impl Panel {
    fn paint(
        &self,
        area: &Area<'_>,
        x: std::ops::Range<f64>,
        y: std::ops::Range<f64>,
        (x_label, y_label): (&str, &str),
    ) -> Result<()> {
        text(area, &self.title, (58, 6), 14, INK, (HPos::Left, VPos::Top))?;
        let mut chart = ChartBuilder::on(area)
            .margin_top(26)
            .margin_right(14)
            .x_label_area_size(40)
            .y_label_area_size(58)
            .build_cartesian_2d(x, y.log_scale())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(GRID)
            .axis_style(FAINT)
            .label_style(("sans-serif", 12).into_text_style(area).color(&FAINT))
            .axis_desc_style(("sans-serif", 13).into_text_style(area).color(&INK))
            .x_desc(x_label)
            .y_desc(y_label)
            .x_labels(7)
            .y_labels(6)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| figure(*y))
            .draw()
            .map_err(failed)?;
        for series in &self.series {
            let style = series.colour.stroke_width(2);
            let points = series.points.iter().copied().filter(|(_, y)| *y > 0.0);
            let points: Vec<(f64, f64)> = points.collect();
            if series.dashed {
                let line = DashedLineSeries::new(points, 5, 4, series.colour.stroke_width(1));
                chart.draw_series(line).map_err(failed)?;
                continue;
            }
            let dots = points
                .iter()
                .map(|point| Circle::new(*point, 3, series.colour.filled()));
            let dots: Vec<_> = dots.collect();
            chart
                .draw_series(LineSeries::new(points, style))
                .map_err(failed)?;
            chart.draw_series(dots).map_err(failed)?;
        }
        Ok(())
    }
}

/// Formats a number with the digits that an axis needs.
pub(crate) fn figure(value: f64) -> String {
    match value {
        v if v >= 10.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}").trim_end_matches(".0").to_owned(),
        0.0 => "0".to_owned(),
        v => format!("{v:.3}").trim_end_matches('0').to_owned(),
    }
}

/// A horizontal bar of coloured parts, followed by a text.
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) parts: Vec<(f64, RGBColor)>,
    pub(crate) words: String,
}

/// Bars under one title.
pub(crate) struct BarGroup {
    pub(crate) title: String,
    pub(crate) bars: Vec<Bar>,
}

/// A picture of groups of bars, side by side in columns; the longest bar of a group fills its width.
pub(crate) struct Bars {
    pub(crate) sheet: Sheet,
    pub(crate) groups: Vec<BarGroup>,
}

/// Widths in pixels of a group's column, of the names in it, and of the bars.
const COLUMN: i32 = 520;
const NAMES: i32 = 180;
const LONGEST: i32 = 220;
/// Height in pixels of a bar with the gap to the next.
const STEP: i32 = 26;

impl Bars {
    /// Draws the picture.
    pub(crate) fn svg(&self) -> Result<String> {
        let columns = self.sheet.columns.max(1);
        let rows = self.groups.len().div_ceil(columns) as i32;
        let bars = self
            .groups
            .iter()
            .map(|group| group.bars.len())
            .max()
            .unwrap_or(0);
        let height = 46 + STEP * bars as i32;
        let legend_height = if self.sheet.legend.is_empty() {
            0
        } else {
            LEGEND
        };
        let size = (
            (24 + COLUMN * columns as i32) as u32,
            (HEAD + legend_height + height * rows + 10) as u32,
        );
        draw(size, |area| {
            let below = self.sheet.paint(area)?;
            for (place, group) in self.groups.iter().enumerate() {
                let origin = (
                    24 + COLUMN * (place % columns) as i32,
                    8 + height * (place / columns) as i32,
                );
                group.paint(&below, origin)?;
            }
            Ok(())
        })
    }
}

impl BarGroup {
    fn paint(&self, area: &Area<'_>, (x, y): (i32, i32)) -> Result<()> {
        text(area, &self.title, (x, y), 14, INK, (HPos::Left, VPos::Top))?;
        let total = |bar: &Bar| bar.parts.iter().map(|(value, _)| value).sum::<f64>();
        let longest = self
            .bars
            .iter()
            .map(total)
            .fold(f64::MIN_POSITIVE, f64::max);
        for (place, bar) in self.bars.iter().enumerate() {
            let top = y + 26 + STEP * place as i32;
            let middle = top + STEP / 2 - 3;
            let names = (HPos::Right, VPos::Center);
            text(area, &bar.name, (x + NAMES - 10, middle), 13, INK, names)?;
            let mut sum = 0.0;
            for (value, colour) in &bar.parts {
                let left = x + NAMES + (f64::from(LONGEST) * sum / longest) as i32;
                sum += value;
                let right = x + NAMES + (f64::from(LONGEST) * sum / longest) as i32;
                let part = Rectangle::new([(left, top), (right, top + STEP - 7)], colour.filled());
                area.draw(&part).map_err(failed)?;
            }
            let end = x + NAMES + (f64::from(LONGEST) * sum / longest) as i32 + 8;
            text(
                area,
                &bar.words,
                (end, middle),
                12,
                FAINT,
                (HPos::Left, VPos::Center),
            )?;
        }
        Ok(())
    }
}
