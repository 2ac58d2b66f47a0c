//! The phases of a compile, and how it reports its progress.

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

/// What progress is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes read or written.
    Bytes,
    /// Blobs made or found.
    Blobs,
}

impl Phase {
    /// What its progress is counted in.
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

    /// What it is doing, for people.
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
    /// A phase begins; `total` is how much it will handle, in what [`Phase::unit`] says, 0 where that is not
    /// known.
    fn begin(&self, phase: Phase, total: u64);
    /// So much more is done.
    fn advance(&self, amount: u64);
    /// Something that people should know although the compile goes on.
    fn note(&self, text: &str);
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _phase: Phase, _total: u64) {}
    fn advance(&self, _amount: u64) {}
    fn note(&self, _text: &str) {}
}
