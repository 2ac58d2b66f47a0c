//! The GPU's part of an executor: launches that follow each other on one device are one pass over its memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use heg_sched::Launch;
use heg_spec::Group;

use super::beforehand::{Unmade, alone};
use super::form::GpuForm;
use super::memory::{LaneMemory, Room};
use super::pass::Chosen;
use super::role::failed;
use super::taken::UnderWay;
use crate::backend::{Order, Session, SessionRoom, Tailor};
use crate::error::ExecError;
use crate::table::FormTable;

/// A lane's memory on each device that it uses.
pub(super) struct GpuSession {
    room: SessionRoom,
    memories: Vec<LaneMemory>,
    unmade: Unmade,
}

impl GpuSession {
    pub(super) fn new(room: SessionRoom) -> Self {
        Self {
            room,
            memories: Vec::new(),
            unmade: Unmade::default(),
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
            rows: rows.fold(self.room.rows, usize::max),
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

    /// Has pipelines made that the device lacks for a call.
    fn make(&mut self, launch: Launch, rows: usize, forms: &FormTable) -> Result<(), ExecError> {
        let target = forms.target(launch)?;
        let form = &forms.ready(target, rows, rows)?.runner;
        let form = GpuForm::of(&**form).ok_or_else(|| target.unknown())?;
        let asked = Room {
            rows: self.room.rows,
            head_rows: self.room.batch,
            scratch_elements: form.role.scratch_elements(),
        };
        let chosen = Chosen {
            launch,
            target,
            form,
            kernel: form.kernel().ok_or_else(|| target.unknown())?,
            rows,
            gathers: launch.group == Group::Head,
        };
        let memory = self.memory(form, asked)?;
        memory.record(&[chosen])?;
        if memory.under_way.is_none() {
            let copies = UnderWay::new(&form.role.device);
            memory.under_way = Some(copies.map_err(failed(&form.name))?);
        }
        Ok(())
    }
}

/// Time for pipelines before a lane looks for work again. Chosen: nobody notices as much, and a driver that compiles takes more
/// for one.
const SLICE: Duration = Duration::from_millis(20);

impl Session for GpuSession {
    fn begin(&mut self, _: &Tailor, forms: &mut FormTable) {
        self.unmade = Unmade::of(forms, self.room);
    }

    /// Makes pipelines that launches may need, until it takes too long for whoever comes meanwhile.
    fn rest(&mut self, forms: &mut FormTable) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < SLICE
            && let Some((launch, rows)) = self.unmade.take()
        {
            // A launch makes those that are missing, and says why it cannot.
            let _ = alone(forms, |forms| self.make(launch, rows, forms));
        }
        !self.unmade.is_empty()
    }

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
