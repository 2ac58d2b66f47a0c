//! A pass over a lane's memory: brings what its launches read, runs them, and takes back what they wrote.

use std::sync::Arc;
use std::time::Instant;

use heg_artifacts::manifest::Kernel;
use heg_gpu::{GpuCache, GpuCopies, GpuPass, GpuRegion, RowState};
use heg_sched::{Launch, Span};
use heg_spec::Group;

use super::form::GpuForm;
use super::halves::Copying;
use super::memory::{LaneMemory, Passed, layer_of};
use super::role::{PATIENCE, failed};
use super::taken::{UnderWay, receive};
use crate::backend::Order;
use crate::batch::Batch;
use crate::error::ExecError;
use crate::mem::{ActivationRows, Half, KvCache, RowBuffer};
use crate::table::Target;

/// A launch with the form that runs it.
pub(super) struct Chosen<'a> {
    pub(super) launch: Launch,
    pub(super) target: Target,
    pub(super) form: &'a GpuForm,
    pub(super) kernel: &'a Kernel,
    /// Rows of its call.
    pub(super) rows: usize,
    /// Whether the head's rows are those of a layer that the device has run just before.
    pub(super) gathers: bool,
}

impl Chosen<'_> {
    /// Whether it reads or writes keys and values.
    pub(super) fn uses_caches(&self) -> bool {
        matches!(self.launch.group, Group::Qkv | Group::Mha)
    }

    pub(super) fn layer(&self) -> usize {
        layer_of(self.form, self.launch)
    }

    /// Rows of activations that it reads, and those that it writes.
    pub(super) fn passed(&self, is_output: bool) -> impl Iterator<Item = Passed> {
        let ports = match is_output {
            true => &self.kernel.outputs,
            false => &self.kernel.inputs,
        };
        let layer = self.layer();
        let ports = ports.iter();
        ports.filter_map(move |port| Passed::of(port.role, layer, is_output))
    }
}

/// A sequence of a batch, with its keys and values on the device.
pub(super) struct Placed<'a> {
    pub(super) cache: &'a KvCache,
    pub(super) span: Span,
    /// The memory that the device works on.
    pub(super) memory: GpuCache,
    /// The device's copy, if that is what the memory is; otherwise it is the cache's own.
    pub(super) copy: Option<usize>,
}

impl Placed<'_> {
    /// The first byte of a row in a half of a layer.
    pub(super) fn first_byte(&self, layer: usize, half: usize, row: usize) -> usize {
        let half_bytes = usize::try_from(self.memory.half_bytes).unwrap_or(usize::MAX);
        (2 * layer + half).saturating_mul(half_bytes) + row * self.cache.row_bytes()
    }
}

/// The halves of a layer, in their order on the device.
pub(super) const HALVES: [Half; 2] = [Half::Keys, Half::Values];

impl LaneMemory {
    /// Runs launches one after the other, and returns the number of those that ran.
    pub(super) fn run(
        &mut self,
        order: &Order<'_>,
        launches: &[Chosen<'_>],
    ) -> Result<usize, ExecError> {
        let Some(first) = launches.first() else {
            return Ok(0);
        };
        let failed = failed(&first.form.name);
        let batch = order.batch;
        let placed = match launches.iter().any(Chosen::uses_caches) {
            true => self.place(first, batch)?,
            false => Vec::new(),
        };
        self.set_state(first, batch, &placed)?;
        if launches.iter().any(|chosen| chosen.gathers) {
            let first_row = batch.first();
            let last = |span: &Span| number((span.row + span.tokens).saturating_sub(first_row + 1));
            let last: Vec<u32> = batch.spans.iter().map(last).collect();
            self.state.set_head_rows(&last).map_err(&failed)?;
        }
        let mut under_way = match self.under_way.take() {
            Some(under_way) => under_way,
            None => UnderWay::new(self.device()).map_err(&failed)?,
        };
        under_way.clear();
        self.bring_rows(launches, batch, &mut under_way.copies)?;
        self.bring_caches(launches, &placed, &mut under_way.copies)?;
        let ran = self.submit(order, launches, &placed, &mut under_way)?;
        receive(order, &placed, &mut under_way)?;
        self.note_caches(launches.get(..ran).unwrap_or(launches), &placed);
        self.under_way = Some(under_way);
        Ok(ran)
    }

    /// Submits launches in groups, until all are done or the order is not to go on, and returns how many ran. Behind the
    /// last of them everything is taken that the host lacks.
    fn submit(
        &mut self,
        order: &Order<'_>,
        launches: &[Chosen<'_>],
        placed: &[Placed<'_>],
        under_way: &mut UnderWay,
    ) -> Result<usize, ExecError> {
        let Some(first) = launches.first() else {
            return Ok(0);
        };
        let failed = failed(&first.form.name);
        let together = self.pace.together(first.rows);
        let units = self.units(launches, together)?;
        let start = Instant::now();
        let UnderWay { copies, taken, .. } = under_way;
        let mut pass = GpuPass::new(copies, PATIENCE, order.cancel);
        let (mut rest, mut ran) = (units.iter().peekable(), 0);
        loop {
            pass.wait_for_turn().map_err(&failed)?;
            let (mut group, first) = (Vec::new(), ran);
            let mut is_last = rest.peek().is_none();
            while let Some(unit) = rest.next_if(|unit| {
                unit.launches.end - first <= together || unit.launches.start == first
            }) {
                let mut own = unit.launches.clone();
                let asked = |index: usize| launches.get(index).filter(|_| index > 0);
                if !own.all(|index| asked(index).is_none_or(|it| (order.goes_on)(it.launch))) {
                    is_last = true;
                    break;
                }
                ran = unit.launches.end;
                group.push(&*unit.order);
                is_last = rest.peek().is_none();
            }
            if is_last {
                let done = launches.get(..ran).unwrap_or(launches);
                self.take_rows(done, order, pass.copies(), taken)?;
                self.take_caches(done, placed, pass.copies(), taken)?;
            }
            pass.submit(&group, is_last).map_err(&failed)?;
            if is_last {
                break;
            }
        }
        pass.finish().map_err(&failed)?;
        self.pace.note(first.rows, ran, start.elapsed());
        Ok(ran)
    }

    /// Finds the caches of sequences on the device. Those that are not in memory that both work on have copies there.
    fn place<'a>(
        &mut self,
        first: &Chosen<'_>,
        batch: &Batch<'a>,
    ) -> Result<Vec<Placed<'a>>, ExecError> {
        let unknown = || first.target.unknown();
        let device = Arc::clone(&self.role.device);
        let sequences = || batch.caches.iter().copied().zip(batch.spans);
        let shared: Vec<_> = sequences()
            .map(|(cache, _)| cache.on_gpu(&device))
            .collect();
        if shared.len() < batch.spans.len() {
            return Err(unknown());
        }
        let asked = sequences().zip(&shared).filter(|(_, own)| own.is_none());
        let asked = asked.map(|((cache, span), _)| (cache, span.position + span.tokens));
        let copies = self.copies.place(&device, &asked.collect::<Vec<_>>());
        let mut copies = copies.map_err(failed(&first.form.name))?.into_iter();
        let placed = sequences().zip(shared).map(|((cache, span), shared)| {
            let (memory, copy) = match shared {
                Some(memory) => (memory, None),
                None => {
                    let index = copies.next().ok_or_else(unknown)?;
                    let copy = self.copies.get(index).ok_or_else(unknown)?;
                    (copy.memory.clone(), Some(index))
                }
            };
            let span = *span;
            Ok(Placed {
                cache,
                span,
                memory,
                copy,
            })
        });
        placed.collect()
    }

    /// Sets the state of the rows of sequences.
    fn set_state(
        &self,
        first: &Chosen<'_>,
        batch: &Batch<'_>,
        placed: &[Placed<'_>],
    ) -> Result<(), ExecError> {
        let mut rows = Vec::with_capacity(batch.tokens());
        for (index, sequence) in placed.iter().enumerate() {
            let position = sequence.span.position;
            for token in 0..sequence.span.tokens {
                let way = batch.tree(index).map(|follows| way(follows, token));
                let steps = way.as_ref().map(Vec::len);
                let depth = steps.map_or(token, |steps| steps.saturating_sub(1));
                let way = way.unwrap_or_default().into_iter();
                rows.push((
                    RowState {
                        position: number(position + depth),
                        cache: Some(&sequence.memory),
                        cache_row: number(position + token),
                        ..RowState::default()
                    },
                    way.map(|token| number(position + token))
                        .collect::<Vec<_>>(),
                ));
            }
        }
        let states = rows.iter().map(|(state, way)| RowState { way, ..*state });
        let states: Vec<_> = states.collect();
        self.state.set(&states).map_err(failed(&first.form.name))
    }

    /// Brings the activations that launches read before any of them writes these.
    fn bring_rows(
        &self,
        launches: &[Chosen<'_>],
        batch: &Batch<'_>,
        copies: &mut GpuCopies,
    ) -> Result<(), ExecError> {
        let mut there: Vec<Passed> = Vec::new();
        for chosen in launches {
            if chosen.launch.group == Group::Head {
                if !chosen.gathers {
                    self.bring_last(chosen, batch, copies)?;
                }
                continue;
            }
            for rows in chosen.passed(false) {
                if !there.contains(&rows) {
                    let host = host_rows(batch.rows, rows);
                    let mut bytes = vec![0; batch.tokens() * host.row_bytes()];
                    host.read_rows(batch.first(), &mut bytes)?;
                    let bytes = Copying::of(host).for_device(bytes);
                    bring(chosen, copies, self.passed(rows), 0, &bytes)?;
                    there.push(rows);
                }
            }
            there.extend(chosen.passed(true));
        }
        Ok(())
    }

    /// Brings the last row of each span to the head.
    fn bring_last(
        &self,
        head: &Chosen<'_>,
        batch: &Batch<'_>,
        copies: &mut GpuCopies,
    ) -> Result<(), ExecError> {
        let hidden = &batch.rows.hidden[head.layer() % 2];
        let row_bytes = hidden.row_bytes();
        let mut bytes = vec![0; batch.spans.len() * row_bytes];
        for (span, row) in batch.spans.iter().zip(bytes.chunks_exact_mut(row_bytes)) {
            hidden.read_rows((span.row + span.tokens).saturating_sub(1), row)?;
        }
        let bytes = Copying::of(hidden).for_device(bytes);
        bring(head, copies, &self.last, 0, &bytes)
    }

    /// Brings the keys and values that attention reads, but for those that the device has or computes before.
    fn bring_caches(
        &mut self,
        launches: &[Chosen<'_>],
        placed: &[Placed<'_>],
        copies: &mut GpuCopies,
    ) -> Result<(), ExecError> {
        let mut computed = Vec::new();
        for chosen in launches {
            let layer = chosen.layer();
            match chosen.launch.group {
                Group::Qkv => computed.push(layer),
                Group::Mha => {
                    let is_computed = computed.contains(&layer);
                    for sequence in placed {
                        let Span {
                            position, tokens, ..
                        } = sequence.span;
                        let end = position + if is_computed { 0 } else { tokens };
                        self.bring_cache(chosen, sequence, end, copies)?;
                    }
                }
                Group::Ffn | Group::Head => {}
            }
        }
        Ok(())
    }

    /// Brings the rows of a layer before `end`, where the device has a copy.
    fn bring_cache(
        &mut self,
        chosen: &Chosen<'_>,
        sequence: &Placed<'_>,
        end: usize,
        copies: &mut GpuCopies,
    ) -> Result<(), ExecError> {
        let unknown = || chosen.target.unknown();
        let layer = chosen.layer();
        let Some(index) = sequence.copy else {
            return Ok(());
        };
        let copy = self.copies.get(index).ok_or_else(unknown)?;
        let from = copy.same(layer);
        if from >= end {
            return Ok(());
        }
        copy.note_same(layer, end);
        let cache = sequence.cache;
        let mut bytes = vec![0; (end - from) * cache.row_bytes()];
        for (index, half) in HALVES.into_iter().enumerate() {
            cache.read_rows(layer, half, from, &mut bytes)?;
            let first = sequence.first_byte(layer, index, from);
            bring(chosen, copies, &sequence.memory.region, first, &bytes)?;
            self.role.moved.note_brought(bytes.len());
        }
        Ok(())
    }
}

/// A count as the device has it. One that it has no number for fits no memory either.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The host's rows of activations.
pub(super) fn host_rows(rows: &ActivationRows, passed: Passed) -> &RowBuffer {
    match passed {
        Passed::Hidden(half) => &rows.hidden[half % 2],
        Passed::Query => &rows.query,
        Passed::Attended => &rows.attended,
    }
}

fn bring(
    chosen: &Chosen<'_>,
    copies: &mut GpuCopies,
    region: &GpuRegion,
    first: usize,
    bytes: &[u8],
) -> Result<(), ExecError> {
    let listed = copies.bring(region, first as u64, bytes);
    listed.map_err(failed(&chosen.form.name))
}

/// The tokens of a tree that lead to one, which is the last of them.
fn way(follows: &[u16], token: usize) -> Vec<usize> {
    let mut way = vec![token];
    let mut at = token;
    while let Some(before) = at.checked_sub(1).and_then(|link| follows.get(link)) {
        let before = usize::from(*before);
        if before >= at {
            break;
        }
        way.push(before);
        at = before;
    }
    way.reverse();
    way
}

#[cfg(test)]
mod tests {
    use super::way;

    #[test]
    fn ways_lead_from_the_root() {
        // 0 - 1 - 2, 1 - 3, 0 - 4.
        let follows = [0, 1, 1, 0];
        let ways: Vec<_> = (0..5).map(|token| way(&follows, token)).collect();
        let expected: [&[usize]; 5] = [&[0], &[0, 1], &[0, 1, 2], &[0, 1, 3], &[0, 4]];
        assert_eq!(ways, expected);
        // A link that leads nowhere ends a way.
        assert_eq!(way(&[7], 1), [1]);
    }
}
