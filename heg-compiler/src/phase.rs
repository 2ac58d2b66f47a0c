//! The phases of a compile, and the reporting of its progress.

/// Phases in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Config, text assets, and the headers of the weight files.
    Ingest,
    /// Operator graphs of all layers and of the head, fused into kernels.
    Graph,
    /// OpenVINO IR of every variant.
    Lower,
    /// Blobs for NPUs, counted in blobs.
    Precompile,
    /// Weights, encoded into the store.
    Encode,
    /// Known answers of all places, from the encoded weights.
    Answer,
    /// The bundle file.
    Bundle,
}

/// The unit of progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes read or written.
    Bytes,
    /// Blobs made or found.
    Blobs,
}

impl Phase {
    /// The unit of the phase's progress.
    pub fn unit(self) -> Unit {
        match self {
            Self::Precompile => Unit::Blobs,
            Self::Ingest
            | Self::Graph
            | Self::Lower
            | Self::Encode
            | Self::Answer
            | Self::Bundle => Unit::Bytes,
        }
    }

    /// Description of the phase, for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Ingest => "reading the model folder",
            Self::Graph => "building graphs and kernels",
            Self::Lower => "lowering kernels to OpenVINO IR",
            Self::Precompile => "compiling kernels for NPUs",
            Self::Encode => "encoding weights",
            Self::Answer => "computing known answers",
            Self::Bundle => "writing the bundle",
        }
    }
}

/// Receives a compile's progress; called from several threads.
pub trait Progress: Sync {
    /// A phase begins; `total` is the amount of its work, in the unit of [`Phase::unit`], or 0 if that is not known.
    fn begin(&self, phase: Phase, total: u64);
    /// `amount` more is done.
    fn advance(&self, amount: u64);
    /// A notice to the user; the compile continues.
    fn note(&self, text: &str);
}

/// Reports nothing.
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _phase: Phase, _total: u64) {}
    fn advance(&self, _amount: u64) {}
    fn note(&self, _text: &str) {}
}
