//! A kernel that runs alone on a GPU, over buffers of its own: for known answers and measurements.

use heg_artifacts::manifest::Role;
use heg_gpu::{
    CallState, GpuCache, GpuCall, GpuError, GpuOrder, GpuRegion, GpuRows, GpuTask, RowState,
    StateLimits,
};
use heg_spec::Group;

use super::form::GpuForm;
use super::halves::Copying;
use super::role::{PATIENCE, failed, taken};
use crate::backend::{AloneCall, BoundPort};
use crate::error::ExecError;

/// A call with its memory and recorded commands.
pub(super) struct Alone {
    key: AloneKey,
    order: GpuOrder,
    cache: GpuCache,
    inputs: Vec<Option<GpuRows>>,
    outputs: Vec<Option<GpuRows>>,
}

/// The call that commands were recorded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AloneKey {
    /// Number of the form.
    form: u64,
    tokens: usize,
    position: usize,
}

/// Runs a call of a form.
pub(super) fn run(form: &GpuForm, call: &AloneCall<'_>) -> Result<(), ExecError> {
    let failed = failed(&form.name);
    let key = AloneKey {
        form: form.number,
        tokens: call.tokens,
        position: call.position,
    };
    let mut latest = taken(&form.role.alone);
    let kept = latest.take().filter(|kept| kept.key == key);
    let alone = match kept {
        Some(kept) => kept,
        None => Alone::new(form, call, key).map_err(&failed)?,
    };
    for (bound, rows) in call.inputs.iter().zip(&alone.inputs) {
        let Some((region, start)) = alone.memory(bound, rows.as_ref()) else {
            continue;
        };
        let (first, count) = place(bound, call);
        let row_bytes = bound.rows.row_bytes();
        let mut bytes = vec![0; count * row_bytes];
        bound.rows.read_packed(0, &mut bytes)?;
        let bytes = copying(bound).for_device(bytes);
        let first = copying(bound).device_bytes(first * row_bytes);
        let written = region.write(start + first as u64, &bytes);
        written.map_err(&failed)?;
    }
    alone.order.run(PATIENCE).map_err(&failed)?;
    for (bound, rows) in call.outputs.iter().zip(&alone.outputs) {
        let Some((region, start)) = alone.memory(bound, rows.as_ref()) else {
            continue;
        };
        let bytes = call.tokens * bound.rows.row_bytes();
        let mut bytes = vec![0; copying(bound).device_bytes(bytes)];
        region.read(start, &mut bytes).map_err(&failed)?;
        let bytes = copying(bound).for_host(&bytes);
        bound.rows.write_packed(0, &bytes)?;
    }
    *latest = Some(alone);
    Ok(())
}

/// The way in which a port's rows are copied: keys and values have one type on both sides.
fn copying(bound: &BoundPort) -> Copying {
    match bound.port.role {
        Role::Key | Role::Value => Copying::AsTheyAre,
        _ => Copying::of(&bound.rows),
    }
}

/// The rows of an input that its buffer holds from the start on: the first one's number on the device, and how many.
fn place(bound: &BoundPort, call: &AloneCall<'_>) -> (usize, usize) {
    match bound.port.role {
        // A table on the device begins with position 0.
        Role::Cos | Role::Sin => (call.position, call.tokens),
        Role::Key | Role::Value => (0, call.position + call.tokens),
        Role::Hidden
        | Role::Query
        | Role::Attended
        | Role::Logits
        | Role::Vector
        | Role::Position => (0, call.tokens),
    }
}

fn is_cached(role: Role) -> bool {
    matches!(role, Role::Key | Role::Value)
}

impl Alone {
    /// The memory of a port, and the first byte that is the port's; none for positions.
    fn memory<'a>(
        &'a self,
        bound: &BoundPort,
        rows: Option<&'a GpuRows>,
    ) -> Option<(&'a GpuRegion, u64)> {
        match bound.port.role {
            Role::Key => Some((&self.cache.region, 0)),
            Role::Value => Some((&self.cache.region, self.cache.half_bytes)),
            _ => rows.map(|rows| (&rows.region, 0)),
        }
    }

    fn new(form: &GpuForm, call: &AloneCall<'_>, key: AloneKey) -> Result<Self, GpuError> {
        let device = &*form.role.device;
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let visible = call.position + call.tokens;
        let bound = || call.inputs.iter().chain(call.outputs);
        let cached = bound().find(|bound| is_cached(bound.port.role));
        let row_bytes = cached.map_or(0, |bound| bound.rows.row_bytes() as u64);
        let cache = GpuCache::new(device, 1, number(visible), row_bytes)?;
        let rows = |bound: &BoundPort| -> Result<Option<GpuRows>, GpuError> {
            let rows = match bound.port.role {
                // In the state.
                Role::Position | Role::Key | Role::Value => return Ok(None),
                Role::Cos | Role::Sin => visible,
                _ => call.tokens,
            };
            let bytes = copying(bound).device_bytes(rows * bound.rows.row_bytes());
            Ok(Some(GpuRows {
                region: device.memory(bytes as u64)?,
                stride: bound.port.width,
            }))
        };
        let inputs = call.inputs.iter().map(rows);
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let outputs = call.outputs.iter().map(rows);
        let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
        let limits = StateLimits {
            rows: number(call.tokens),
            layers: 1,
            cache_row_bytes: row_bytes,
            positions: number(visible),
            tokens: 1,
        };
        let state = CallState::new(device, limits)?;
        let reads_cache = call.kernel.group == Group::Mha;
        let first = if reads_cache { call.position } else { 0 };
        let row = |token: usize| RowState {
            position: number(call.position + token),
            cache: Some(&cache),
            // New keys and values are an output of their own.
            cache_row: number(first + token),
            ..RowState::default()
        };
        state.set(&(0..call.tokens).map(row).collect::<Vec<_>>())?;
        let elements = u64::from(form.program.scratch_elements().max(1));
        let scratch = device.memory(4 * elements * call.tokens as u64)?;
        let recorded = GpuCall {
            rows: number(call.tokens),
            layer: 0,
            weights: &form.weights,
            inputs: &inputs,
            outputs: &outputs,
            scratch: &scratch,
            state: &state,
        };
        let order = GpuOrder::record(device, &[&[GpuTask::Program(&form.program, recorded)]])?;
        Ok(Self {
            key,
            order,
            cache,
            inputs,
            outputs,
        })
    }
}
