//! The forms of stored weights.

use heg_spec::GroupColumns;

use super::error::QuantError;
use crate::ingest::{BlockFormat, SourceTensor};

/// How weights are stored in a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// Little-endian f32.
    F32,
    /// Little-endian f16.
    F16,
    /// Channel-wise int8, symmetric about zero: values here, what they stand for beside them, row by row.
    I8,
    /// As [`I8`](Self::I8), symmetric about the middle of each row's range.
    CentredI8,
    /// 4-bit signed integers, two to a byte: values here, what they stand for beside them, group by group.
    I4(GroupColumns),
    /// As [`I4`](Self::I4), unsigned and with centres.
    U4(GroupColumns),
}

impl Form {
    /// Bytes of so many elements, those of their rows and groups not counted.
    pub const fn bytes_of(self, elements: usize) -> usize {
        match self {
            Self::F32 => elements.saturating_mul(4),
            Self::F16 => elements.saturating_mul(2),
            Self::I8 | Self::CentredI8 => elements,
            Self::I4(_) | Self::U4(_) => elements.div_ceil(2),
        }
    }

    /// Columns of a group, where columns are in groups.
    pub(super) const fn group_columns(self) -> Option<usize> {
        match self {
            Self::I4(group) | Self::U4(group) => Some(group.count() as usize),
            Self::F32 | Self::F16 | Self::I8 | Self::CentredI8 => None,
        }
    }

    /// Whether integers have centres.
    pub(crate) const fn is_centred(self) -> bool {
        matches!(self, Self::CentredI8 | Self::U4(_))
    }

    /// Errors unless groups divide the columns of a tensor. `all` is the greatest common divisor of the columns of all
    /// tensors that are to have such groups, for advice.
    pub(crate) fn check_columns(
        self,
        tensor: &str,
        columns: usize,
        all: usize,
    ) -> Result<(), QuantError> {
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

    /// Errors where blocks of four bits are not such groups and would be rounded a second time.
    pub(crate) fn check_blocks(self, src: &SourceTensor<'_>) -> Result<(), QuantError> {
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

    /// Whether blocks are such groups already, so that they are taken over.
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
