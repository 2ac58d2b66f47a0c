//! A line of the comparison with the paper.

use super::statistics::Estimate;
use serde::{Serialize, Serializer};

/// A figure of the paper, or a goal of ours, with what was simulated.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PaperLine {
    pub(crate) name: String,
    /// None: all of them.
    pub(crate) model: Option<String>,
    pub(crate) unit: Unit,
    pub(crate) paper: f64,
    /// Mean over traces, with its 95% confidence interval.
    pub(crate) ours: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// What no scheduler can pass under these anchors, where that is known.
    pub(crate) bound: Option<f64>,
    /// Whether the paper's figure lies within that bound.
    pub(crate) reachable: bool,
    pub(crate) reached: bool,
    /// Whether the paper states this figure; the others are ours, beside it for comparison.
    pub(crate) paper_line: bool,
    pub(crate) note: String,
    #[serde(skip)]
    better: Better,
}

/// Whether more or less is better.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Better {
    More,
    Less,
}

/// Unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Unit {
    Percent,
    Secs,
    Times,
}

impl Unit {
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            _ if value.is_nan() => "none".to_owned(),
            Self::Percent => format!("{value:.1}%"),
            Self::Secs => format!("{value:.3} s"),
            Self::Times => format!("{value:.2}×"),
        }
    }
}

impl Serialize for Unit {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match self {
            Self::Percent => "%",
            Self::Secs => "s",
            Self::Times => "×",
        })
    }
}

impl PaperLine {
    /// A line about one figure, with a sample a trace.
    pub(crate) fn new(
        name: String,
        unit: Unit,
        better: Better,
        paper: f64,
        samples: &[f64],
    ) -> Self {
        let found = Estimate::of(samples);
        let mut line = Self {
            name,
            model: None,
            unit,
            paper,
            ours: found.mean,
            low: found.low,
            high: found.high,
            bound: None,
            reachable: true,
            reached: false,
            paper_line: true,
            note: String::new(),
            better,
        };
        line.reached = line.is_as_good(found.mean);
        line
    }

    /// Whether a figure is at least as good as the paper's.
    fn is_as_good(&self, figure: f64) -> bool {
        match self.better {
            Better::More => figure >= self.paper,
            Better::Less => figure <= self.paper,
        }
    }

    pub(crate) fn of_model(self, model: &str) -> Self {
        let model = Some(model.to_owned());
        Self { model, ..self }
    }

    /// With what no scheduler can pass.
    pub(crate) fn bounded(mut self, bound: f64) -> Self {
        self.reachable = self.reached || self.is_as_good(bound);
        self.bound = Some(bound);
        self
    }

    /// The paper does not say it.
    pub(crate) fn ours_only(self) -> Self {
        Self {
            paper_line: false,
            ..self
        }
    }

    pub(crate) fn noting(self, note: String) -> Self {
        Self { note, ..self }
    }

    /// Ours, with half of its interval.
    pub(crate) fn show(&self) -> String {
        let half = (self.high - self.low) / 2.0;
        match half.is_finite() {
            true => format!("{} ± {}", self.unit.show(self.ours), self.unit.show(half)),
            false => self.unit.show(self.ours),
        }
    }

    /// In words.
    pub(crate) fn verdict(&self) -> String {
        let short = match self.better {
            Better::More => self.paper - self.ours,
            Better::Less => self.ours - self.paper,
        };
        match (self.reached, self.reachable) {
            (true, _) => "reached".to_owned(),
            (false, false) => "unreachable under these anchors".to_owned(),
            (false, true) if self.unit == Unit::Percent => {
                format!("**missed** by {short:.1} points")
            }
            (false, true) => format!("**missed** by {}", self.unit.show(short)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_say_how_far_behind_and_what_is_out_of_reach() {
        let line = |unit, better, paper, ours: f64| {
            PaperLine::new("x".to_owned(), unit, better, paper, &[ours, ours])
        };
        let less = line(Unit::Secs, Better::Less, 0.1, 0.25);
        assert_eq!(less.verdict(), "**missed** by 0.150 s");
        assert_eq!(less.show(), "0.250 s ± 0.000 s");
        let more = line(Unit::Percent, Better::More, 19.0, 19.0);
        assert_eq!(more.clone().bounded(20.0).verdict(), "reached");
        let far = line(Unit::Percent, Better::More, 92.0, 57.0);
        assert_eq!(
            far.clone().bounded(93.0).verdict(),
            "**missed** by 35.0 points"
        );
        let far = far.bounded(59.0);
        assert_eq!(far.verdict(), "unreachable under these anchors");
        assert!(!far.reachable && !far.reached);
        // No figure at all is not good.
        assert!(!line(Unit::Secs, Better::Less, 0.1, f64::NAN).reached);
    }
}
