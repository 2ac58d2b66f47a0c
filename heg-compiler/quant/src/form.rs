//! The forms of stored weights.

use heg_spec::GroupColumns;

use super::error::QuantError;
use heg_ingest::{BlockFormat, SourceTensor};

/// Storage form of weights in a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// Little-endian f32.
    F32,
    /// Little-endian f16.
    F16,
    /// Channel-wise int8, symmetric about zero: these are the integers; scales are stored separately, row by row.
    I8,
    /// Like [`I8`](Self::I8), but symmetric about the middle of each row's range, with centres too.
    CentredI8,
    /// 4-bit signed integers, two per byte: these are the integers; scales are stored separately, group by group.
    I4(GroupColumns),
    /// Like [`I4`](Self::I4), but unsigned and with centres.
    U4(GroupColumns),
}

impl Form {
    /// Size of this number of elements in bytes, without scales and centres.
    pub const fn bytes_of(self, elements: usize) -> usize {
        match self {
            Self::F32 => elements.saturating_mul(4),
            Self::F16 => elements.saturating_mul(2),
            Self::I8 | Self::CentredI8 => elements,
            Self::I4(_) | Self::U4(_) => elements.div_ceil(2),
        }
    }

    /// Columns of a group, if columns are in groups.
    pub(super) const fn group_columns(self) -> Option<usize> {
        match self {
            Self::I4(group) | Self::U4(group) => Some(group.count() as usize),
            Self::F32 | Self::F16 | Self::I8 | Self::CentredI8 => None,
        }
    }

    /// Whether integers have centres.
    pub const fn is_centred(self) -> bool {
        matches!(self, Self::CentredI8 | Self::U4(_))
    }

    /// Fails unless groups divide the columns of a tensor. `all` is the greatest common divisor of the columns of all
    /// tensors with such groups, for advice.
    pub fn check_columns(self, tensor: &str, columns: usize, all: usize) -> Result<(), QuantError> {
        let group = self.group_columns().unwrap_or(1);
        if columns.is_multiple_of(group) {
            return Ok(());
        }
        let mut groups = GroupColumns::ALL.into_iter().rev();
        let fits = groups.find(|group| all.is_multiple_of(group.count() as usize));
        Err(QuantError::Groups {
            tensor: tensor.to_owned(),
            columns,
            group,
            advice: match fits {
                Some(group) => format!("groups of {group} would"),
                None => "no groups would, so take 8-bit weights".to_owned(),
            },
        })
    }

    /// Fails if the source's 4-bit blocks do not match the groups and would be rounded a second time.
    pub fn check_blocks(self, src: &SourceTensor<'_>) -> Result<(), QuantError> {
        match src.block_format() {
            Some(format @ (BlockFormat::Q4_0 | BlockFormat::Q4_1)) if !self.takes_over(format) => {
                Err(QuantError::SecondRounding {
                    tensor: src.name().to_owned(),
                    format: format.to_string(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Whether blocks match the groups already, so that they are taken over unchanged.
    pub(super) fn takes_over(self, format: BlockFormat) -> bool {
        let is_centred = match format {
            BlockFormat::Q4_0 => false,
            BlockFormat::Q4_1 => true,
            _ => return false,
        };
        let is_grouped = self.group_columns() == Some(format.block_elements());
        is_grouped && (self.is_centred() || !is_centred)
    }
}
