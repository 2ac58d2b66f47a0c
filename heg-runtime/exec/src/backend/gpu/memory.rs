//! The memory of a lane on a device, and the commands that were recorded over it.
//!
//! Activations of the batch at hand are in its first rows. Where a call needs more than there is, all is made anew, larger.
//! Keys and values are elsewhere (`caches`): commands find them by the state of rows, and so stay as they are.

use std::sync::Arc;

use heg_artifacts::manifest::{ElementType, Manifest, Port, Role};
use heg_gpu::{
    CallState, GatherCall, GpuCall, GpuDevice, GpuError, GpuOrder, GpuRegion, GpuRows, GpuTask,
    StateLimits,
};
use heg_sched::Launch;
use heg_spec::Group;

use super::caches::Copies;
use super::form::GpuForm;
use super::pace::Pace;
use super::pass::Chosen;
use super::recorded::Recorded;
use super::role::{GpuRole, failed};
use super::taken::UnderWay;
use crate::error::ExecError;

/// Sizes that calls need, or that a memory has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// Rows of a call.
    pub(super) rows: usize,
    /// Rows that the head takes.
    pub(super) head_rows: usize,
    /// Elements of scratch memory for each row.
    pub(super) scratch_elements: u32,
}

impl Room {
    /// Enough for what is asked for, and for what will be soon.
    fn grown(self, asked: Self) -> Self {
        let rows = |has: usize, asked: usize| match asked > has {
            true => asked.next_power_of_two(),
            false => has,
        };
        Self {
            rows: self.rows.max(asked.rows),
            head_rows: rows(self.head_rows, asked.head_rows),
            scratch_elements: self.scratch_elements.max(asked.scratch_elements),
        }
    }
}

/// Rows of activations that launches pass to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passed {
    /// A half of the residual stream.
    Hidden(usize),
    Query,
    Attended,
}

impl Passed {
    /// The rows of a port of a layer, which reads one half of the residual stream and writes the other.
    pub(super) fn of(role: Role, layer: usize, is_output: bool) -> Option<Self> {
        match role {
            Role::Hidden => Some(Self::Hidden((layer + usize::from(is_output)) % 2)),
            Role::Query => Some(Self::Query),
            Role::Attended => Some(Self::Attended),
            Role::Key
            | Role::Value
            | Role::Cos
            | Role::Sin
            | Role::Logits
            | Role::Vector
            | Role::Position => None,
        }
    }
}

/// The rows that a launch works on, and those that a head is gathered from and to.
pub(super) struct Ports {
    inputs: Vec<Option<GpuRows>>,
    outputs: Vec<Option<GpuRows>>,
    from: GpuRows,
    last: GpuRows,
}

/// A lane's memory on the device of a role.
pub(super) struct LaneMemory {
    pub(super) role: Arc<GpuRole>,
    room: Room,
    kv: ElementType,
    pub(super) state: CallState,
    hidden: [GpuRegion; 2],
    query: GpuRegion,
    attended: GpuRegion,
    /// Rows that the head reads.
    pub(super) last: GpuRegion,
    pub(super) logits: GpuRegion,
    scratch: GpuRegion,
    pub(super) copies: Copies,
    pub(super) recorded: Recorded,
    /// Copies of a pass; none before the first, and behind one that failed.
    pub(super) under_way: Option<UnderWay>,
    pub(super) pace: Pace,
}

impl LaneMemory {
    /// Memory on the device of a form's role.
    pub(super) fn new(form: &GpuForm, asked: Room) -> Result<Self, ExecError> {
        Self::of_room(form, Room::default().grown(asked)).map_err(failed(&form.name))
    }

    fn of_room(form: &GpuForm, room: Room) -> Result<Self, GpuError> {
        let (role, kv, manifest) = (&form.role, form.kv, form.bundle.manifest());
        let device = &*role.device;
        let model = &manifest.model;
        let floats = |rows: usize, width: u32| 4 * rows as u64 * u64::from(width);
        let row = |width| device.memory(floats(room.rows, width));
        let query = model.heads * model.head_dim;
        Ok(Self {
            state: CallState::new(device, limits(manifest, room, kv))?,
            hidden: [row(model.hidden)?, row(model.hidden)?],
            query: row(query)?,
            attended: row(query)?,
            last: device.memory(floats(room.head_rows, model.hidden))?,
            logits: device.memory(floats(room.head_rows, model.vocab))?,
            scratch: row(room.scratch_elements.max(1))?,
            copies: Copies::new(manifest.layers.len()),
            recorded: Recorded::default(),
            under_way: None,
            pace: Pace::default(),
            role: Arc::clone(role),
            room,
            kv,
        })
    }

    /// Makes room for calls that need so much.
    pub(super) fn make_room(&mut self, form: &GpuForm, asked: Room) -> Result<(), ExecError> {
        let room = self.room.grown(asked);
        if room != self.room || self.kv != form.kv {
            let has_copies = self.kv == form.kv;
            let made = Self::of_room(form, room).map_err(failed(&form.name))?;
            let before = std::mem::replace(self, made);
            if has_copies {
                self.copies = before.copies;
            }
        }
        Ok(())
    }

    pub(super) fn device(&self) -> &GpuDevice {
        &self.role.device
    }

    /// Rows that launches pass to each other.
    pub(super) fn passed(&self, rows: Passed) -> &GpuRegion {
        match rows {
            Passed::Hidden(half) => {
                let [even, odd] = &self.hidden;
                if half == 0 { even } else { odd }
            }
            Passed::Query => &self.query,
            Passed::Attended => &self.attended,
        }
    }

    /// The rows that a launch works on.
    pub(super) fn ports(&self, chosen: &Chosen<'_>) -> Result<Ports, ExecError> {
        let inputs = chosen.kernel.inputs.iter();
        let inputs = inputs.map(|port| self.rows_of(chosen, port, false));
        let outputs = chosen.kernel.outputs.iter();
        let outputs = outputs.map(|port| self.rows_of(chosen, port, true));
        let width = chosen.form.bundle.manifest().model.hidden;
        let plain = |region: &GpuRegion| GpuRows {
            region: region.clone(),
            stride: width,
        };
        let half = Passed::of(Role::Hidden, chosen.layer(), false);
        Ok(Ports {
            inputs: inputs.collect::<Result<_, _>>()?,
            outputs: outputs.collect::<Result<_, _>>()?,
            from: plain(self.passed(half.unwrap_or(Passed::Hidden(0)))),
            last: plain(&self.last),
        })
    }

    /// Writes launches down as one.
    pub(super) fn record(&self, launches: &[Chosen<'_>]) -> Result<GpuOrder, ExecError> {
        let ports = launches.iter().map(|chosen| self.ports(chosen));
        let ports = ports.collect::<Result<Vec<_>, _>>()?;
        let mut tasks = Vec::with_capacity(launches.len() + 1);
        for (chosen, ports) in launches.iter().zip(&ports) {
            let rows = u32::try_from(chosen.rows).unwrap_or(u32::MAX);
            if chosen.gathers {
                tasks.push(GpuTask::Gather(GatherCall {
                    from: &ports.from,
                    width: ports.from.stride,
                    rows,
                    out: &ports.last,
                    state: &self.state,
                }));
            }
            let call = GpuCall {
                rows,
                layer: u32::try_from(chosen.layer()).unwrap_or(u32::MAX),
                weights: &chosen.form.weights,
                inputs: &ports.inputs,
                outputs: &ports.outputs,
                scratch: &self.scratch,
                state: &self.state,
            };
            tasks.push(GpuTask::Program(&chosen.form.program, call));
        }
        let name = launches.first().map_or("all", |chosen| &chosen.form.name);
        GpuOrder::record(self.device(), &[&tasks]).map_err(failed(name))
    }

    /// The rows of a port; none for positions, keys and values, which are in the state.
    fn rows_of(
        &self,
        chosen: &Chosen<'_>,
        port: &Port,
        is_output: bool,
    ) -> Result<Option<GpuRows>, ExecError> {
        let layer = layer_of(chosen.form, chosen.launch);
        let rotary = |part: usize| -> Result<GpuRegion, ExecError> {
            let table = chosen.target.rope(chosen.form.bundle.manifest());
            let table = table.ok_or_else(|| chosen.target.unknown())?;
            let [cos, sin] = chosen.form.rotary(table)?;
            Ok(if part == 0 { cos } else { sin })
        };
        let is_head = chosen.launch.group == Group::Head;
        let region = match port.role {
            Role::Hidden if is_head => Some(self.last.clone()),
            Role::Logits | Role::Vector => Some(self.logits.clone()),
            Role::Cos => Some(rotary(0)?),
            Role::Sin => Some(rotary(1)?),
            Role::Key | Role::Value | Role::Position => return Ok(None),
            role @ (Role::Hidden | Role::Query | Role::Attended) => {
                let passed = Passed::of(role, layer, is_output);
                passed.map(|passed| self.passed(passed).clone())
            }
        };
        let region = region.ok_or_else(|| chosen.target.unknown())?;
        let stride = port.width;
        Ok(Some(GpuRows { region, stride }))
    }
}

/// The layer of a launch; the head is the one behind all.
pub(super) fn layer_of(form: &GpuForm, launch: Launch) -> usize {
    let layers = form.bundle.manifest().layers.len();
    launch.layer.map_or(layers, |layer| layer as usize)
}

/// Bounds of the state of rows in a memory of a model.
fn limits(manifest: &Manifest, room: Room, kv: ElementType) -> StateLimits {
    let model = &manifest.model;
    let count = |rows: usize| u32::try_from(rows).unwrap_or(u32::MAX);
    let positions = manifest.rope.iter().map(|table| table.rows).min();
    StateLimits {
        rows: count(room.rows),
        layers: count(manifest.layers.len()),
        cache_row_bytes: u64::from(model.kv_heads * model.head_dim) * kv.bytes(),
        positions: positions.unwrap_or(model.context_tokens),
        tokens: model.vocab,
    }
}
