//! The project's goals for measured ratios.

/// A bound on HEG's figure divided by another one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    /// Whether a ratio meets it.
    pub(crate) fn is_met(&self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(bound) => ratio >= *bound,
            Self::AtMost(bound) => ratio <= *bound,
        }
    }

    /// The bound and whether it is met, as text.
    pub(crate) fn verdict(&self, ratio: f64) -> String {
        let met = match self.is_met(ratio) {
            true => "met",
            false => "MISSED",
        };
        match self {
            Self::AtLeast(bound) => format!("at least {bound:.2}: {met}"),
            Self::AtMost(bound) => format!("at most {bound:.2}: {met}"),
        }
    }
}
