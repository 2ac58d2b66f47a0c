//! A line of a comparison with a paper: its figure, ours, and whether ours is at least as good. One type for all
//! papers.

use crate::statistics::Estimate;
use crate::table::Markdown;
use serde::Serialize;

/// A figure of a paper, or a goal of ours, with our result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct PaperLine {
    pub(crate) name: String,
    /// The model; `None` for all of them.
    pub(crate) model: Option<String>,
    pub(crate) unit: Unit,
    pub(crate) origin: Origin,
    /// The paper's figure, if it has one.
    pub(crate) paper: Option<Figure>,
    /// Our figure; if `low` and `high` are given, the mean over traces.
    pub(crate) ours: Figure,
    /// 95% confidence interval, with `high`.
    pub(crate) low: Option<f64>,
    pub(crate) high: Option<f64>,
    /// Best figure that any scheduler can reach under these anchors, if known.
    pub(crate) bound: Option<f64>,
    /// Whether the paper's figure is within that bound.
    pub(crate) reachable: bool,
    pub(crate) reached: bool,
    /// Whether the paper has this line; the others are for comparison.
    pub(crate) paper_line: bool,
    /// The reason why the paper's figure is not reached, or another remark.
    pub(crate) note: Option<String>,
    #[serde(skip)]
    pub(crate) better: Better,
}

/// A figure, or the smallest and the largest of several.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Figure {
    One(f64),
    Range([f64; 2]),
}

/// Source of our figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Origin {
    /// Simulated in virtual time.
    Simulated,
    /// Counted in real texts.
    Recorded,
    /// Computed from costs.
    Planned,
}

/// Whether more or less is better.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Better {
    More,
    Less,
}

/// Unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Unit {
    #[serde(rename = "%")]
    Percent,
    #[serde(rename = "s")]
    Secs,
    #[serde(rename = "×")]
    Times,
    #[serde(rename = "token/s")]
    TokensPerSec,
    #[serde(rename = "GB/s")]
    GigabytesPerSec,
    #[serde(rename = "W")]
    Watts,
}

impl Unit {
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            _ if value.is_nan() => "none".to_owned(),
            Self::Percent => format!("{value:.1}%"),
            Self::Secs => format!("{value:.3} s"),
            Self::Times => format!("{value:.2}×"),
            Self::TokensPerSec => format!("{value:.1} token/s"),
            Self::GigabytesPerSec => format!("{value:.1} GB/s"),
            Self::Watts => format!("{value:.2} W"),
        }
    }
}

impl Origin {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Simulated => "simulated",
            Self::Recorded => "recorded",
            Self::Planned => "planned",
        }
    }
}

impl Figure {
    /// The figure, or the smallest of several.
    fn least(self) -> f64 {
        match self {
            Self::One(figure) | Self::Range([figure, _]) => figure,
        }
    }

    /// The smallest and the largest of `figures`; NaN without any.
    pub(crate) fn ends(figures: &[f64]) -> [f64; 2] {
        let fold = |f: fn(f64, f64) -> f64| figures.iter().copied().reduce(f).unwrap_or(f64::NAN);
        [fold(f64::min), fold(f64::max)]
    }

    pub(crate) fn show(self, unit: Unit) -> String {
        match self {
            Self::One(figure) => unit.show(figure),
            Self::Range([least, most]) => {
                let most = unit.show(most);
                format!("{least:.2}–{most}")
            }
        }
    }

    /// Whether all of its numbers are finite.
    #[cfg(test)]
    pub(crate) fn is_finite(self) -> bool {
        match self {
            Self::One(figure) => figure.is_finite(),
            Self::Range(ends) => ends.iter().all(|end| end.is_finite()),
        }
    }
}

impl PaperLine {
    /// A simulated figure without a counterpart in the paper.
    pub(crate) fn beside(name: impl Into<String>, unit: Unit, ours: Figure) -> Self {
        Self {
            name: name.into(),
            model: None,
            unit,
            origin: Origin::Simulated,
            paper: None,
            ours,
            low: None,
            high: None,
            bound: None,
            reachable: true,
            reached: true,
            paper_line: false,
            note: None,
            better: Better::More,
        }
    }

    /// A line about the mean of `samples`, one per trace.
    pub(crate) fn of_samples(
        name: String,
        unit: Unit,
        better: Better,
        paper: f64,
        samples: &[f64],
    ) -> Self {
        let found = Estimate::of(samples);
        let mut line = Self {
            paper: Some(Figure::One(paper)),
            low: Some(found.low),
            high: Some(found.high),
            paper_line: true,
            better,
            ..Self::beside(name, unit, Figure::One(found.mean))
        };
        line.reached = line.is_as_good(found.mean);
        line
    }

    /// A figure that should be at least the paper's; `why` is the reason if it is not.
    pub(crate) fn at_least(
        name: impl Into<String>,
        unit: Unit,
        [paper, ours]: [f64; 2],
        why: &str,
    ) -> Self {
        Self {
            paper: Some(Figure::One(paper)),
            paper_line: true,
            ..Self::beside(name, unit, Figure::One(ours))
        }
        .reaching(ours >= paper, why)
    }

    /// A figure that should be at most the paper's; `why` is the reason if it is not.
    pub(crate) fn at_most(
        name: impl Into<String>,
        unit: Unit,
        [paper, ours]: [f64; 2],
        why: &str,
    ) -> Self {
        Self {
            better: Better::Less,
            ..Self::at_least(name, unit, [paper, ours], why)
        }
        .reaching(ours <= paper, why)
    }

    /// Ratios that should be at least the paper's, at both ends of the range.
    pub(crate) fn gain(
        name: String,
        paper: [f64; 2],
        ours: &[f64],
        origin: Origin,
        why: &str,
    ) -> Self {
        let [least, most] = Figure::ends(ours);
        Self {
            origin,
            paper: Some(Figure::Range(paper)),
            paper_line: true,
            ..Self::beside(name, Unit::Times, Figure::Range([least, most]))
        }
        .reaching(least >= paper[0] && most >= paper[1], why)
    }

    /// Sets the outcome, and the reason if the goal is not reached.
    pub(crate) fn reaching(self, reached: bool, why: &str) -> Self {
        Self {
            reached,
            note: (!reached).then(|| why.to_owned()),
            ..self
        }
    }

    /// Whether a figure is at least as good as the paper's.
    fn is_as_good(&self, figure: f64) -> bool {
        let paper = self.paper.map_or(f64::NAN, Figure::least);
        match self.better {
            Better::More => figure >= paper,
            Better::Less => figure <= paper,
        }
    }

    pub(crate) fn of_model(self, model: &str) -> Self {
        let model = Some(model.to_owned());
        Self { model, ..self }
    }

    /// Sets the best figure that any scheduler can reach.
    pub(crate) fn bounded(mut self, bound: f64) -> Self {
        self.reachable = self.reached || self.is_as_good(bound);
        self.bound = Some(bound);
        self
    }

    /// Marks the line as not in the paper.
    pub(crate) fn ours_only(self) -> Self {
        Self {
            paper_line: false,
            ..self
        }
    }

    pub(crate) fn noting(self, note: String) -> Self {
        Self {
            note: Some(note),
            ..self
        }
    }

    /// Formats our figure, with half of its interval.
    pub(crate) fn show(&self) -> String {
        let ours = self.ours.show(self.unit);
        match (self.low, self.high) {
            (Some(low), Some(high)) if (high - low).is_finite() => {
                format!("{ours} ± {}", self.unit.show((high - low) / 2.0))
            }
            _ => ours,
        }
    }

    /// The verdict as text; for a mean, with its distance from the goal.
    pub(crate) fn verdict(&self) -> String {
        let (paper, ours) = (
            self.paper.map_or(f64::NAN, Figure::least),
            self.ours.least(),
        );
        let short = match self.better {
            Better::More => paper - ours,
            Better::Less => ours - paper,
        };
        match (self.reached, self.reachable) {
            (true, _) => "yes".to_owned(),
            (false, false) => "unreachable under these anchors".to_owned(),
            (false, true) if self.low.is_none() => "**no**".to_owned(),
            (false, true) if self.unit == Unit::Percent => {
                format!("**missed** by {short:.1} points")
            }
            (false, true) => format!("**missed** by {}", self.unit.show(short)),
        }
    }
}

/// Formats the lines as a Markdown table. Columns that are the same in each line are left out.
pub(crate) fn table(lines: &[PaperLine]) -> String {
    let has_models = lines.iter().any(|line| line.model.is_some());
    let has_origins = lines.iter().any(|line| line.origin != Origin::Simulated);
    let has_bounds = lines.iter().any(|line| line.bound.is_some());
    let columns = [
        ("figure", true),
        ("model", has_models),
        ("origin", has_origins),
        ("paper", true),
        ("ours", true),
        ("bound", has_bounds),
        ("reached", true),
        ("note", true),
    ];
    let shown = |cells: [String; 8]| {
        let cells = cells.into_iter().zip(columns);
        cells.filter_map(|(cell, (_, shown))| shown.then_some(cell))
    };
    let mut table = Markdown::new(shown(columns.map(|(name, _)| name.to_owned())));
    for line in lines {
        let figure =
            |figure: Option<Figure>| figure.map_or("-".to_owned(), |figure| figure.show(line.unit));
        table.row(shown([
            line.name.clone(),
            line.model.clone().unwrap_or("all".to_owned()),
            line.origin.name().to_owned(),
            figure(line.paper),
            line.show(),
            figure(line.bound.map(Figure::One)),
            line.verdict(),
            line.note.clone().unwrap_or_default(),
        ]));
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_say_how_far_behind_and_what_is_out_of_reach() {
        let line = |unit, better, paper, ours: f64| {
            PaperLine::of_samples("x".to_owned(), unit, better, paper, &[ours, ours])
        };
        let less = line(Unit::Secs, Better::Less, 0.1, 0.25);
        assert_eq!(less.verdict(), "**missed** by 0.150 s");
        assert_eq!(less.show(), "0.250 s ± 0.000 s");
        let more = line(Unit::Percent, Better::More, 19.0, 19.0);
        assert_eq!(more.clone().bounded(20.0).verdict(), "yes");
        let far = line(Unit::Percent, Better::More, 92.0, 57.0);
        assert_eq!(
            far.clone().bounded(93.0).verdict(),
            "**missed** by 35.0 points"
        );
        let far = far.bounded(59.0);
        assert_eq!(far.verdict(), "unreachable under these anchors");
        assert!(!far.reachable && !far.reached);
        // A missing figure is not good.
        assert!(!line(Unit::Secs, Better::Less, 0.1, f64::NAN).reached);
    }

    #[test]
    fn both_ends_of_a_range_have_to_be_reached() {
        let line = |ours: &[f64]| {
            let origin = Origin::Simulated;
            PaperLine::gain("x".to_owned(), [1.1, 2.0], ours, origin, "because")
        };
        assert!(line(&[2.5, 1.2]).reached);
        assert_eq!(line(&[2.5, 1.2]).note, None);
        assert_eq!(line(&[2.5, 1.2]).show(), "1.20–2.50×");
        assert!(!line(&[1.5, 1.2]).reached);
        assert_eq!(line(&[1.0, 2.5]).note.as_deref(), Some("because"));
        assert!(!line(&[]).reached);
    }
}
