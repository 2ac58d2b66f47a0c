//! Rows by their numbers: those of the embedding table by tokens, and those that the head takes.

use heg_artifacts::manifest::ElementType;
use heg_spirv::{Module, constant, element_number};

use crate::device::GpuDevice;
use crate::error::GpuError;
use crate::program::{GpuRows, GpuWeight, row_pieces};
use crate::region::GpuRegion;
use crate::state::CallState;
use crate::vulkan::{Args, Dispatch};

/// Embeds the tokens of a call's rows.
#[derive(Clone, Copy)]
pub struct EmbeddingCall<'a> {
    /// The table, of as many rows as the state may name tokens.
    pub table: &'a GpuWeight,
    /// Its element type.
    pub element: ElementType,
    /// Elements of a row.
    pub width: u32,
    /// Factor on all elements.
    pub factor: f32,
    /// Tokens.
    pub rows: u32,
    /// Memory that embeddings are written to.
    pub out: &'a GpuRows,
    /// State of the rows.
    pub state: &'a CallState,
}

/// Copies the rows that the head takes, as the state names them, behind each other.
#[derive(Clone, Copy)]
pub struct GatherCall<'a> {
    /// Rows to choose from, as many as the state may have.
    pub from: &'a GpuRows,
    /// Elements of a row.
    pub width: u32,
    /// Rows that are taken.
    pub rows: u32,
    /// Memory that they are written to.
    pub out: &'a GpuRows,
    /// State of the rows.
    pub state: &'a CallState,
}

impl EmbeddingCall<'_> {
    pub(crate) fn dispatch(&self, device: &GpuDevice) -> Result<Dispatch, GpuError> {
        let tokens = u64::from(self.state.limits().tokens);
        let elements = tokens * u64::from(self.width);
        let bytes = self.element.bytes_of(elements).unwrap_or(u64::MAX);
        at_least(
            "bytes of an embedding table",
            bytes,
            self.table.values.bytes(),
        )?;
        at_least(
            "rows of a state",
            u64::from(self.rows),
            u64::from(self.state.limits().rows),
        )?;
        for numbers in [&self.table.scales, &self.table.centres]
            .into_iter()
            .flatten()
        {
            at_least(
                "bytes of an embedding's scales",
                4 * tokens,
                numbers.bytes(),
            )?;
        }
        check_rows(self.out, self.rows, self.width)?;
        let address = |region: &Option<GpuRegion>| region.as_ref().map_or(0, GpuRegion::address);
        let mut args = Args::default();
        args.at[0] = self.table.values.address();
        args.at[1] = address(&self.table.scales);
        args.at[2] = self.out.region.address();
        args.at[3] = self.state.region().address();
        args.at[4] = address(&self.table.centres);
        let has = |region: &Option<GpuRegion>, flag| if region.is_some() { flag } else { 0 };
        args.n[0] = self.rows;
        args.n[1] = has(&self.table.scales, 1) | has(&self.table.centres, 2);
        args.n[3] = self.out.stride;
        args.s[0] = self.factor;
        dispatch(
            device,
            Module::Embedding,
            self.width,
            Some(self.element),
            args,
        )
    }

    pub(crate) fn regions(&self) -> impl Iterator<Item = &GpuRegion> {
        let table = std::iter::once(&self.table.values);
        let table = table.chain(&self.table.scales).chain(&self.table.centres);
        table.chain([&self.out.region, self.state.region()])
    }
}

impl GatherCall<'_> {
    pub(crate) fn dispatch(&self, device: &GpuDevice) -> Result<Dispatch, GpuError> {
        let most = self.state.limits().rows;
        check_rows(self.from, most, self.width)?;
        check_rows(self.out, self.rows, self.width)?;
        at_least("rows of a state", u64::from(self.rows), u64::from(most))?;
        let mut args = Args::default();
        args.at[0] = self.from.region.address();
        args.at[1] = self.state.head_rows()?.address();
        args.at[2] = self.out.region.address();
        args.n[0] = self.rows;
        args.n[1] = self.from.stride;
        args.n[3] = self.out.stride;
        dispatch(device, Module::Gather, self.width, None, args)
    }

    pub(crate) fn regions(&self) -> impl Iterator<Item = &GpuRegion> {
        [&self.from.region, &self.out.region, self.state.region()].into_iter()
    }
}

fn dispatch(
    device: &GpuDevice,
    module: Module,
    width: u32,
    element: Option<ElementType>,
    args: Args,
) -> Result<Dispatch, GpuError> {
    let element = element.map(|element| (constant::ELEMENT, element_number(element)));
    let constants: Vec<_> = std::iter::once((constant::WIDTH, width))
        .chain(element)
        .collect();
    Ok(Dispatch {
        pipeline: device
            .pipelines
            .of(module, &constants, device.probe().arithmetic)?,
        groups: [args.n[0], row_pieces(device, width)],
        args,
        waits: true,
    })
}

fn check_rows(rows: &GpuRows, count: u32, width: u32) -> Result<(), GpuError> {
    at_least(
        "elements from a row to the next",
        u64::from(width),
        u64::from(rows.stride),
    )?;
    let elements = u64::from(count.saturating_sub(1)) * u64::from(rows.stride) + u64::from(width);
    at_least("bytes of rows", 4 * elements, rows.region.bytes())
}

fn at_least(what: &'static str, expected: u64, found: u64) -> Result<(), GpuError> {
    match found >= expected {
        true => Ok(()),
        false => Err(GpuError::Call {
            what,
            index: 0,
            expected,
            found,
        }),
    }
}
