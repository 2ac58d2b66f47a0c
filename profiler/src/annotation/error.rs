//! The errors of an annotation document, as data.

/// Reasons why a document, or a number in one, is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AnnotationError {
    /// The roofline model refuses a number.
    #[error(transparent)]
    Model(#[from] crate::error::RooflineError),

    /// The document is longer than any real one.
    #[error("the annotations are `{found}` bytes long, expected up to `{limit}`")]
    TooLong {
        /// Length of the text.
        found: usize,
        /// The longest that is read.
        limit: usize,
    },

    /// The text is not an annotation document.
    #[error("annotations, line {line}, column {column}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The parser's message: what was expected and found.
        message: String,
    },

    /// A newer program wrote this.
    #[error(
        "the annotations' revision `{found}` is unknown: this program reads `1` to `{supported}`"
    )]
    Revision {
        /// The revision in the document.
        found: u32,
        /// The newest revision that is read.
        supported: u32,
    },

    /// Something is described twice, so that its value would depend on the order.
    #[error("the annotations describe {what} `{found}` more than once")]
    Twice {
        /// Kind of thing.
        what: &'static str,
        /// Name of the thing.
        found: String,
    },

    /// A latency that no kernel has.
    #[error("the latency in µs is `{found:?}`, expected a finite number above 0")]
    Latency {
        /// The latency, in µs.
        found: f64,
    },

    /// The frequencies are not those of a latency table.
    #[error(
        "the vendor's frequencies in MHz are {found:?}, expected `1` to `{limit}` ascending ones from 1"
    )]
    Frequencies {
        /// The frequencies, in MHz.
        found: Vec<u32>,
        /// The largest number of them.
        limit: usize,
    },

    /// A power that no device draws.
    #[error("the power in W is `{found:?}`, expected a finite number above 0")]
    Power {
        /// The power, in W.
        found: f64,
    },

    /// A slowdown that no neighbour causes.
    #[error("the slow-down is `{found:?}`, expected a finite factor above 0")]
    Slowdown {
        /// Latency beside the neighbour divided by latency alone.
        found: f64,
    },

    /// A choice of chunk that does not follow from its candidates.
    #[error("the chunk sweep chose `{found:?}`, expected `{expected:?}` by its own candidates")]
    Choice {
        /// The chunk in the document, in tokens.
        found: Option<u32>,
        /// The chunk that the candidates give, in tokens.
        expected: Option<u32>,
    },

    /// Limits of a sweep that allow no choice, or candidates out of order.
    #[error("the chunk sweep's {what} is `{found:?}`, expected {expected}")]
    Sweep {
        /// Name of the number.
        what: &'static str,
        /// Its value.
        found: f64,
        /// The valid values.
        expected: &'static str,
    },
}
