//! A line of a comparison with a paper: its figure, ours, and how far they agree. One type for all papers.
//!
//! A line is *reached* if ours is within a tolerance of the paper's on both sides, or *better* for a reason that the line
//! states. What is beyond the paper's figure without such a reason says that our model flatters, and is not reached. Lines
//! that repeat another, and figures that went into ours or were fitted to, are printed and not counted.

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
    pub(crate) standing: Standing,
    /// The paper's figure, if it has one.
    pub(crate) paper: Option<Figure>,
    /// Our figure; if `low` and `high` are given, the mean over traces.
    pub(crate) ours: Figure,
    /// 95% confidence interval, with `high`.
    pub(crate) low: Option<f64>,
    pub(crate) high: Option<f64>,
    /// Best figure that any scheduler can reach with these kernels, if known.
    pub(crate) bound: Option<f64>,
    pub(crate) outcome: Outcome,
    /// Whether the outcome is [`Outcome::Reached`] or [`Outcome::Better`].
    pub(crate) reached: bool,
    /// The reason of the outcome, or another remark.
    pub(crate) note: Option<String>,
    #[serde(skip)]
    pub(crate) better: Better,
}

/// A line's verdict on our figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Standing {
    /// The paper measured it, and ours follows from other figures.
    Counts,
    /// It is another line times a ratio of the paper's.
    Repeats,
    /// The paper's figure goes into ours.
    Input,
    /// Ours was fitted to the paper's figure.
    Fitted,
    /// The paper does not have it.
    Ours,
}

/// Agreement of our figure with the paper's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// There is nothing to compare with.
    Beside,
    /// Within the tolerance, or a goal of ours that is met.
    Reached,
    /// Better than the paper's, for the reason in the note.
    Better,
    /// Better than the paper's without a reason to be: the model flatters.
    Beyond,
    /// Worse than the paper's.
    Missed,
    /// Worse than the paper's, which no scheduler could reach with these kernels.
    Unreachable,
}

/// Relative difference up to which figures agree. Chosen: what two phones of a kind differ by.
const TOLERANCE: f64 = 0.1;

/// The same for percentages, in points; at most half of what the paper's leaves of 100.
const TOLERANCE_POINTS: f64 = 5.0;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

    /// The figure, or both ends of a range.
    fn ends_of(self) -> Vec<f64> {
        match self {
            Self::One(figure) => vec![figure],
            Self::Range(ends) => ends.to_vec(),
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

impl Standing {
    /// Words for a table; none for lines that count.
    fn name(self) -> &'static str {
        match self {
            Self::Counts => "",
            Self::Repeats => "repeats another",
            Self::Input => "input",
            Self::Fitted => "fitted",
            Self::Ours => "not the paper's",
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
            standing: Standing::Ours,
            paper: None,
            ours,
            low: None,
            high: None,
            bound: None,
            outcome: Outcome::Beside,
            reached: true,
            note: None,
            better: Better::More,
        }
    }

    /// A simulated figure beside the paper's.
    pub(crate) fn compared(
        name: impl Into<String>,
        unit: Unit,
        better: Better,
        [paper, ours]: [f64; 2],
    ) -> Self {
        Self {
            paper: Some(Figure::One(paper)),
            standing: Standing::Counts,
            better,
            ..Self::beside(name, unit, Figure::One(ours))
        }
        .judged()
    }

    /// The mean of `samples`, one per trace, beside the paper's figure.
    pub(crate) fn of_samples(
        name: String,
        unit: Unit,
        better: Better,
        paper: f64,
        samples: &[f64],
    ) -> Self {
        let found = Estimate::of(samples);
        Self {
            low: Some(found.low),
            high: Some(found.high),
            ..Self::compared(name, unit, better, [paper, found.mean])
        }
    }

    /// Ratios beside the paper's range; both ends have to agree.
    pub(crate) fn gain(name: String, paper: [f64; 2], ours: &[f64], origin: Origin) -> Self {
        Self {
            origin,
            paper: Some(Figure::Range(paper)),
            standing: Standing::Counts,
            ..Self::beside(name, Unit::Times, Figure::Range(Figure::ends(ours)))
        }
        .judged()
    }

    /// Makes it a goal of ours.
    pub(crate) fn wanted(self, is_met: bool, note: impl Into<String>) -> Self {
        let outcome = if is_met {
            Outcome::Reached
        } else {
            Outcome::Missed
        };
        Self {
            note: Some(note.into()),
            ..self.with(outcome)
        }
    }

    fn with(self, outcome: Outcome) -> Self {
        Self {
            outcome,
            reached: matches!(
                outcome,
                Outcome::Beside | Outcome::Reached | Outcome::Better
            ),
            ..self
        }
    }

    /// Compares the figures.
    fn judged(self) -> Self {
        let Some(paper) = self.paper else {
            return self;
        };
        let pairs = paper.ends_of().into_iter().zip(self.ours.ends_of());
        let ends: Vec<Outcome> = pairs.map(|(paper, ours)| self.end(paper, ours)).collect();
        let has = |outcome| ends.contains(&outcome);
        let outcome = match () {
            () if has(Outcome::Missed) => Outcome::Missed,
            () if has(Outcome::Beyond) => Outcome::Beyond,
            () => Outcome::Reached,
        };
        self.with(outcome)
    }

    fn end(&self, paper: f64, ours: f64) -> Outcome {
        let ahead = match self.better {
            Better::More => ours - paper,
            Better::Less => paper - ours,
        };
        let tolerance = match self.unit {
            Unit::Percent => TOLERANCE_POINTS.min((100.0 - paper).abs() / 2.0),
            _ => TOLERANCE * paper.abs(),
        };
        match ahead {
            _ if ahead.abs() <= tolerance => Outcome::Reached,
            _ if ahead > 0.0 => Outcome::Beyond,
            // A missing figure is not good.
            _ => Outcome::Missed,
        }
    }

    /// Gives the reason why the paper's figure is missed, if it is.
    pub(crate) fn missed_since(self, why: &str) -> Self {
        match self.outcome {
            Outcome::Missed | Outcome::Unreachable => self.noting(why.to_owned()),
            _ => self,
        }
    }

    /// Gives the reason why ours is better than the paper's, if it is.
    pub(crate) fn better_since(self, why: &str) -> Self {
        match self.outcome {
            Outcome::Beyond => self.with(Outcome::Better).noting(why.to_owned()),
            _ => self,
        }
    }

    /// Says in what way the model flatters ours, if it does.
    pub(crate) fn beyond_since(self, why: &str) -> Self {
        match self.outcome {
            Outcome::Beyond => self.noting(why.to_owned()),
            _ => self,
        }
    }

    pub(crate) fn standing(self, standing: Standing) -> Self {
        Self { standing, ..self }
    }

    pub(crate) fn of_model(self, model: &str) -> Self {
        let model = Some(model.to_owned());
        Self { model, ..self }
    }

    /// Sets the best figure that any scheduler can reach.
    pub(crate) fn bounded(self, bound: f64) -> Self {
        let paper = self.paper.map_or(f64::NAN, Figure::least);
        let unreachable =
            self.outcome == Outcome::Missed && self.end(paper, bound) == Outcome::Missed;
        let line = Self {
            bound: Some(bound),
            ..self
        };
        match unreachable {
            true => line.with(Outcome::Unreachable),
            false => line,
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

    /// The outcome as text, with the distance of single figures.
    pub(crate) fn verdict(&self) -> String {
        let apart = match (self.paper, self.ours) {
            (Some(Figure::One(paper)), Figure::One(ours)) => {
                let apart = (paper - ours).abs();
                match self.unit {
                    Unit::Percent => format!(" by {apart:.1} points"),
                    unit => format!(" by {}", unit.show(apart)),
                }
            }
            _ => String::new(),
        };
        match self.outcome {
            Outcome::Beside => "–".to_owned(),
            Outcome::Reached => "yes".to_owned(),
            Outcome::Better => format!("better{apart}"),
            Outcome::Beyond => format!("beyond it{apart}"),
            Outcome::Missed => format!("**missed**{apart}"),
            Outcome::Unreachable => format!("missed{apart}; no scheduler could"),
        }
    }
}

/// Counts lines by their outcomes, in sentences.
pub(crate) fn count(lines: &[PaperLine]) -> String {
    let of = |outcome| {
        let counted = lines
            .iter()
            .filter(|line| line.standing == Standing::Counts);
        counted.filter(|line| line.outcome == outcome).count()
    };
    let standing = |standing| {
        let lines = lines.iter().filter(|line| line.standing == standing);
        lines.count()
    };
    format!(
        "Of the paper's {} lines that count {} are reached within {:.0}% ({:.0} points of a percentage, at most half of what \
         it leaves of 100), {} are better for the reason given, {} are beyond the paper's without one (the model flatters), {} are missed, and {} \
         no scheduler could reach. Not counted: {} repeat another by a fixed ratio, {} are inputs, {} were fitted.\n",
        standing(Standing::Counts),
        of(Outcome::Reached),
        100.0 * TOLERANCE,
        TOLERANCE_POINTS,
        of(Outcome::Better),
        of(Outcome::Beyond),
        of(Outcome::Missed),
        of(Outcome::Unreachable),
        standing(Standing::Repeats),
        standing(Standing::Input),
        standing(Standing::Fitted)
    )
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
        ("standing", true),
        ("paper", true),
        ("ours", true),
        ("bound", has_bounds),
        ("reached", true),
        ("note", true),
    ];
    let shown = |cells: [String; 9]| {
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
            line.standing.name().to_owned(),
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
mod tests;
