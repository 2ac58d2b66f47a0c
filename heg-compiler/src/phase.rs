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
    /// Weights, encoded into the store.
    Encode,
    /// Known answers of all places, from the encoded weights.
    Answer,
    /// The bundle file.
    Bundle,
}

impl Phase {
    /// What it is doing, for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Ingest => "reading the model folder",
            Self::Graph => "building graphs and kernels",
            Self::Lower => "lowering kernels to OpenVINO IR",
            Self::Encode => "encoding weights",
            Self::Answer => "computing known answers",
            Self::Bundle => "writing the bundle",
        }
    }
}

/// Receives a compile's progress; called from several threads.
pub trait Progress: Sync {
    /// A phase begins; `total_bytes` is how much it will handle, 0 where that is not measured in bytes.
    fn begin(&self, phase: Phase, total_bytes: u64);
    /// So many bytes more are done.
    fn advance(&self, bytes: u64);
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _phase: Phase, _total_bytes: u64) {}
    fn advance(&self, _bytes: u64) {}
}
