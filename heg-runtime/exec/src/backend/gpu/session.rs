//! The GPU's part of an executor: launches that follow each other on one device are one pass over its memory.

use std::sync::Arc;

use heg_sched::Launch;
use heg_spec::Group;

use super::form::GpuForm;
use super::memory::{LaneMemory, Room};
use super::pass::Chosen;
use crate::backend::{Order, Session, SessionRoom};
use crate::error::ExecError;

/// A lane's memory on each device that it uses.
pub(super) struct GpuSession {
    /// Rows of a call at most.
    rows: usize,
    memories: Vec<LaneMemory>,
}

impl GpuSession {
    pub(super) fn new(room: SessionRoom) -> Self {
        Self {
            rows: room.rows,
            memories: Vec::new(),
        }
    }

    /// The memory for launches of one device, with room for them.
    fn memory(&mut self, form: &GpuForm, asked: Room) -> Result<&mut LaneMemory, ExecError> {
        let mut known = self.memories.iter();
        let known = known.position(|memory| Arc::ptr_eq(&memory.role, &form.role));
        let index = match known {
            Some(index) => index,
            None => {
                self.memories.push(LaneMemory::new(form, asked)?);
                self.memories.len() - 1
            }
        };
        let memory = self.memories.get_mut(index).ok_or(ExecError::LoaderGone)?;
        memory.make_room(form, asked)?;
        Ok(memory)
    }

    /// Runs those of the first launches that are one device's, and returns how many these are and how many of them ran.
    fn run_on_one(
        &mut self,
        order: &Order<'_>,
        launches: &[Launch],
    ) -> Result<(usize, usize), ExecError> {
        let chosen = choose(order, launches)?;
        let Some(first) = chosen.first() else {
            return Ok((0, 0));
        };
        let batch = order.batch;
        let rows = chosen.iter().map(|one| one.rows);
        let asked = Room {
            rows: rows.fold(self.rows, usize::max),
            head_rows: batch.spans.len().max(1),
            scratch_elements: first.form.role.scratch_elements(),
        };
        let memory = self.memory(first.form, asked)?;
        let ran = memory.run(order, &chosen);
        if ran.is_err() {
            // Nobody knows which rows the device has now.
            memory.copies.clear();
        }
        Ok((chosen.len(), ran?))
    }
}

impl Session for GpuSession {
    fn carry_out(&mut self, order: Order<'_>) -> Result<usize, ExecError> {
        let mut done = 0;
        while let Some(rest @ [first, ..]) = order.launches.get(done..) {
            if done > 0 && !(order.goes_on)(*first) {
                break;
            }
            let (given, ran) = self.run_on_one(&order, rest)?;
            done += ran;
            if ran < given {
                break;
            }
        }
        Ok(done)
    }
}

/// Those of the first launches that one device runs, with their forms.
fn choose<'a>(order: &'a Order<'_>, launches: &[Launch]) -> Result<Vec<Chosen<'a>>, ExecError> {
    let (batch, forms) = (order.batch, &*order.forms);
    let mut all: Vec<Chosen<'a>> = Vec::new();
    for launch in launches {
        let target = forms.target(*launch)?;
        let (rows, context) = batch.size_for(launch.group);
        let form = forms.ready(target, rows, context)?;
        let form = GpuForm::of(&*form.runner).ok_or_else(|| target.unknown())?;
        if all.first().is_some_and(|first| !first.form.is_beside(form)) {
            break;
        }
        let follows = all.last().is_some_and(|last| last.launch.layer.is_some());
        all.push(Chosen {
            launch: *launch,
            target,
            form,
            kernel: form.kernel().ok_or_else(|| target.unknown())?,
            rows,
            gathers: launch.group == Group::Head && follows,
        });
    }
    Ok(all)
}
