//! A call of a program: the memory that it works on.

use crate::region::GpuRegion;
use crate::state::CallState;

/// The memory that a program works on in one call.
#[derive(Clone, Copy)]
pub struct GpuCall<'a> {
    /// Tokens of all sequences together, at least one.
    pub rows: u32,
    /// One for each parameter of the kernel.
    pub weights: &'a [GpuWeight],
    /// Number of the layer whose keys and values it reads and writes, in the caches that the state names.
    pub layer: u32,
    /// For each input port its rows. Rotary tables are whole, from position 0 on; positions, keys and values, which the
    /// state has, have none.
    pub inputs: &'a [Option<GpuRows>],
    /// For each output port its rows; keys and values have none.
    pub outputs: &'a [Option<GpuRows>],
    /// Scratch memory, of `rows · scratch_elements` f32 at least.
    pub scratch: &'a GpuRegion,
    /// State of the rows.
    pub state: &'a CallState,
}

/// A weight on the device.
#[derive(Clone)]
pub struct GpuWeight {
    /// Elements, row-major.
    pub values: GpuRegion,
    /// Factors of integers.
    pub scales: Option<GpuRegion>,
    /// Terms of integers, where they are centred.
    pub centres: Option<GpuRegion>,
}

/// Rows at one distance from each other.
#[derive(Clone)]
pub struct GpuRows {
    /// Their place.
    pub region: GpuRegion,
    /// Elements from one row to the next.
    pub stride: u32,
}
