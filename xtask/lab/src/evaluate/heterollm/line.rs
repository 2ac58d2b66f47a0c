//! A line of the comparison: the paper's figure, ours, and whether ours is at least as good.

use serde::Serialize;

/// A line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) unit: Unit,
    /// The paper's figure, where it has one.
    pub(super) paper: Option<f64>,
    pub(super) ours: f64,
    pub(super) reached: bool,
    pub(super) origin: &'static str,
    /// Why ours is not reached.
    pub(super) note: Option<String>,
}

/// What a line counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Unit {
    #[serde(rename = "×")]
    Times,
    #[serde(rename = "token/s")]
    TokensPerSec,
    #[serde(rename = "GB/s")]
    GigabytesPerSec,
    #[serde(rename = "%")]
    Percent,
    #[serde(rename = "W")]
    Watts,
}

impl Unit {
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::Times => format!("{value:.2}×"),
            Self::TokensPerSec => format!("{value:.1} token/s"),
            Self::GigabytesPerSec => format!("{value:.1} GB/s"),
            Self::Percent => format!("{value:.1}%"),
            Self::Watts => format!("{value:.2} W"),
        }
    }
}

/// A line that wants at least the paper's figure.
pub(super) fn at_least(
    name: impl Into<String>,
    unit: Unit,
    [paper, ours]: [f64; 2],
    why: &str,
) -> Line {
    let reached = ours >= paper;
    Line {
        name: name.into(),
        unit,
        paper: Some(paper),
        ours,
        reached,
        origin: "simulated",
        note: (!reached).then(|| why.to_owned()),
    }
}

/// A line that wants at most the paper's figure.
pub(super) fn at_most(
    name: impl Into<String>,
    unit: Unit,
    [paper, ours]: [f64; 2],
    why: &str,
) -> Line {
    let reached = ours <= paper;
    Line {
        reached,
        note: (!reached).then(|| why.to_owned()),
        ..at_least(name, unit, [paper, ours], why)
    }
}

/// A figure without a counterpart.
pub(super) fn beside(name: String, unit: Unit, ours: f64) -> Line {
    Line {
        name,
        unit,
        paper: None,
        ours,
        reached: true,
        origin: "simulated",
        note: None,
    }
}
