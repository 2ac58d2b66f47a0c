//! The graphs that a block may have.

/// One of a block's graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Graph {
    Long,
    Short,
}

impl Graph {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Long => Self::Short,
            Self::Short => Self::Long,
        }
    }
}
