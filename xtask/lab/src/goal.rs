//! Goals of the project for ratios that are measured.

/// A bound on HEG's figure divided by another one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    None,
}

impl Goal {
    /// Whether a ratio keeps it; `None` without a bound.
    pub(crate) fn is_met(&self, ratio: f64) -> Option<bool> {
        match self {
            Self::AtLeast(bound) => Some(ratio >= *bound),
            Self::AtMost(bound) => Some(ratio <= *bound),
            Self::None => None,
        }
    }

    /// The bound and whether it is met, in words.
    pub(crate) fn verdict(&self, ratio: f64) -> String {
        let met = match self.is_met(ratio) {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        match self {
            Self::AtLeast(bound) => format!("at least {bound:.2}: {met}"),
            Self::AtMost(bound) => format!("at most {bound:.2}: {met}"),
            Self::None => String::new(),
        }
    }
}
