//! The division of a product of integers among workgroups: which module computes it, and over which grid.

use heg_spirv::{Module, constant};

use crate::device::GpuDevice;

/// The facts about a product that its division follows from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) rows: u32,
    pub(super) outputs: u32,
    pub(super) columns: u32,
    /// Addresses of weights and operands.
    pub(super) at: [u64; 2],
}

/// A product's division.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tiling {
    /// An output and some rows for each invocation, as processors read fastest.
    Each { rows: u32 },
    /// Some rows and outputs for a workgroup, which reads `slice` groups of columns side by side.
    FewRows { rows: u32, slice: u32 },
    /// A tile of 16 · `rows` rows and 64 outputs for a workgroup.
    Tile { rows: u32 },
}

/// Rows that an invocation multiplies a weight with, at most. Chosen: their sums stay in registers.
const EACH_ROWS_MAX: u32 = 4;

/// Rows of [`Tiling::FewRows`], at most: totals of eight rows take 18 KiB of shared memory, those of four half as much.
const FEW_ROWS_MAX: [u32; 2] = [4, 8];

/// Bytes of shared memory from which on totals of eight rows fit.
const MUCH_SHARED_BYTES: u32 = 32 << 10;

/// Invocations of a workgroup of [`Tiling::FewRows`], and outputs of each, as in `shaders/few_rows.comp`.
const FEW_ROWS_INVOCATIONS: u32 = 128;
const FEW_ROWS_EACH: u32 = 4;

/// Outputs of a tile, and rows for each of its rows of invocations, as in `shaders/tile.comp`.
const TILE_OUTPUTS: u32 = 64;
const TILE_LINES: u32 = 16;

/// Rows from which on tiles are taken. Chosen: fewer leave most of a tile empty.
const TILE_ROWS_MIN: u32 = 33;

/// Tiles that keep a large device busy: an H100 has 132 processors, which take two at least. Chosen.
const BUSY_GROUPS: u32 = 256;

/// Workgroups that every device takes side by side.
const GROUPS_MAX: u32 = 65535;

/// Numbers of rows whose calls between them need every pipeline that calls of at most `most` rows do, the fewest rows first:
/// few rows have pipelines of their own, and of more the grid of tiles says which they take, as does attention.
pub fn row_counts(most: u32) -> impl Iterator<Item = u32> {
    let [_, few] = FEW_ROWS_MAX;
    let tile = 2 * TILE_LINES;
    let first_of_tiles = (tile + 1..most).step_by(tile as usize);
    let all = (1..=few).chain([tile]).chain(first_of_tiles);
    all.filter(move |rows| *rows < most).chain([most])
}

impl Tiling {
    /// The division for a device.
    pub(super) fn new(device: &GpuDevice, shape: Shape) -> Self {
        let whole = shape.columns.is_multiple_of(32);
        let aligned = shape.at.iter().all(|at| at.is_multiple_of(16));
        if !device.is_wide() || !whole || !aligned {
            return Self::Each {
                rows: shape.rows.min(EACH_ROWS_MAX),
            };
        }
        if shape.rows >= TILE_ROWS_MIN {
            // Small tiles if large ones leave processors idle, and no tiles if small ones do.
            let tiles = [Self::Tile { rows: 4 }, Self::Tile { rows: 2 }];
            let enough = [BUSY_GROUPS, BUSY_GROUPS / 2];
            let mut fitting = tiles.into_iter().zip(enough).filter(|(tile, enough)| {
                let [across, down] = tile.groups(shape);
                across.saturating_mul(down) >= *enough
            });
            if let Some((tile, _)) = fitting.next() {
                return tile;
            }
        }
        let much = device.shared_bytes() >= MUCH_SHARED_BYTES;
        Self::FewRows {
            rows: shape.rows.min(FEW_ROWS_MAX[usize::from(much)]),
            slice: (shape.columns / 32).next_power_of_two().clamp(32, 128),
        }
    }

    /// Its module.
    pub(super) fn module(self, dots: bool) -> Module {
        match (self, dots) {
            (Self::Each { .. }, false) => Module::Product,
            (Self::Each { .. }, true) => Module::ProductDots,
            (Self::FewRows { .. }, false) => Module::FewRows,
            (Self::FewRows { .. }, true) => Module::FewRowsDots,
            (Self::Tile { .. }, false) => Module::Tile,
            (Self::Tile { .. }, true) => Module::TileDots,
        }
    }

    /// Constants that the module is specialised by.
    pub(super) fn constants(self) -> Vec<(u32, u32)> {
        match self {
            Self::Each { rows } | Self::Tile { rows } => vec![(constant::ROWS, rows)],
            Self::FewRows { rows, slice } => {
                vec![(constant::ROWS, rows), (constant::SLICE, slice)]
            }
        }
    }

    /// Workgroups.
    pub(super) fn groups(self, shape: Shape) -> [u32; 2] {
        let Shape { rows, outputs, .. } = shape;
        match self {
            Self::Each { rows: each } => [outputs.div_ceil(64), rows.div_ceil(each)],
            Self::FewRows { rows: each, slice } => {
                let of_group = FEW_ROWS_EACH * (FEW_ROWS_INVOCATIONS / slice);
                let blocks = outputs
                    .div_ceil(of_group)
                    .saturating_mul(rows.div_ceil(each));
                [blocks.min(GROUPS_MAX), 1]
            }
            Self::Tile { rows: each } => [
                outputs.div_ceil(TILE_OUTPUTS),
                rows.div_ceil(TILE_LINES * each),
            ],
        }
    }
}
