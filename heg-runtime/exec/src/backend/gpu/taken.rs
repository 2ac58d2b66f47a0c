//! The way back of a pass: what its launches wrote and others read, taken to the host's memory.

use heg_gpu::{GpuCopies, GpuDevice, GpuError, GpuRegion, GpuTaken};
use heg_sched::Span;
use heg_spec::Group;

use super::halves::Copying;
use super::memory::{LaneMemory, Passed};
use super::pass::{Chosen, HALVES, Placed, host_rows};
use super::role::failed;
use crate::backend::Order;
use crate::error::ExecError;
use crate::mem::Half;

/// The copies of a pass, and what they take.
pub(super) struct UnderWay {
    pub(super) copies: GpuCopies,
    pub(super) taken: Vec<Taken>,
    /// Bytes on their way to where they go.
    buffer: Vec<u8>,
}

impl UnderWay {
    pub(super) fn new(device: &GpuDevice) -> Result<Self, GpuError> {
        Ok(Self {
            copies: GpuCopies::new(device)?,
            taken: Vec::new(),
            buffer: Vec::new(),
        })
    }

    /// Forgets the last pass.
    pub(super) fn clear(&mut self) {
        self.copies.clear();
        self.taken.clear();
    }
}

/// Bytes that are taken, and where they go.
pub(super) type Taken = (GpuTaken, Destination);

/// The place of bytes in the host's memory.
pub(super) enum Destination {
    Rows(Passed),
    Logits,
    /// Rows of a layer's half of a sequence's cache, from its span on.
    Cache {
        /// The sequence's number.
        index: usize,
        layer: usize,
        half: Half,
    },
}

impl LaneMemory {
    /// Lists the activations and logits that launches wrote and that others read.
    pub(super) fn take_rows(
        &self,
        launches: &[Chosen<'_>],
        order: &Order<'_>,
        copies: &mut GpuCopies,
        taken: &mut Vec<Taken>,
    ) -> Result<(), ExecError> {
        let Some(last) = launches.last() else {
            return Ok(());
        };
        let batch = order.batch;
        let written = |rows: Passed| {
            let mut outputs = launches.iter().flat_map(|chosen| chosen.passed(true));
            outputs.any(|other| other == rows)
        };
        for rows in read_behind(last).into_iter().filter(|rows| written(*rows)) {
            let host = host_rows(batch.rows, rows);
            let bytes = batch.tokens() * host.row_bytes();
            let bytes = Copying::of(host).device_bytes(bytes);
            let own = take(last, copies, self.passed(rows), 0, bytes)?;
            taken.push((own, Destination::Rows(rows)));
        }
        if last.launch.group == Group::Head {
            let bytes = last.rows * order.scratch.logits.row_bytes();
            let own = take(last, copies, &self.logits, 0, bytes)?;
            taken.push((own, Destination::Logits));
        }
        Ok(())
    }

    /// Lists the keys and values that launches wrote to copies.
    pub(super) fn take_caches(
        &self,
        launches: &[Chosen<'_>],
        placed: &[Placed<'_>],
        copies: &mut GpuCopies,
        taken: &mut Vec<Taken>,
    ) -> Result<(), ExecError> {
        let of_group = launches.iter();
        for chosen in of_group.filter(|chosen| chosen.launch.group == Group::Qkv) {
            let layer = chosen.layer();
            for (index, sequence) in placed.iter().enumerate() {
                let Span {
                    position, tokens, ..
                } = sequence.span;
                if sequence.copy.is_none() {
                    continue;
                }
                let bytes = tokens * sequence.cache.row_bytes();
                let region = &sequence.memory.region;
                for (number, half) in HALVES.into_iter().enumerate() {
                    let first = sequence.first_byte(layer, number, position);
                    let own = take(chosen, copies, region, first, bytes)?;
                    taken.push((own, Destination::Cache { index, layer, half }));
                    self.role.moved.note_taken(bytes);
                }
            }
        }
        Ok(())
    }

    /// Notes that the host has the keys and values that launches wrote: they were brought there, or are there.
    pub(super) fn note_caches(&mut self, launches: &[Chosen<'_>], placed: &[Placed<'_>]) {
        let of_group = launches.iter();
        let of_group = of_group.filter(|chosen| chosen.launch.group == Group::Qkv);
        let layers: Vec<usize> = of_group.map(Chosen::layer).collect();
        for sequence in placed {
            let Span {
                position, tokens, ..
            } = sequence.span;
            let copy = sequence.copy.and_then(|index| self.copies.get(index));
            let Some(copy) = copy else {
                if !layers.is_empty() {
                    sequence.cache.note_write(position);
                }
                continue;
            };
            for layer in &layers {
                if copy.same(*layer) >= position {
                    copy.note_same(*layer, position + tokens);
                }
            }
            copy.note_stamp(sequence.cache);
        }
    }
}

/// Puts what was taken where others have it.
pub(super) fn receive(
    order: &Order<'_>,
    placed: &[Placed<'_>],
    under_way: &mut UnderWay,
) -> Result<(), ExecError> {
    let UnderWay {
        copies,
        taken,
        buffer,
    } = under_way;
    let batch = order.batch;
    for (own, destination) in taken {
        let bytes = copies.read(own, buffer).map_err(failed("all"))?;
        match destination {
            Destination::Rows(rows) => {
                let host = host_rows(batch.rows, *rows);
                host.write_row(batch.first(), &Copying::of(host).for_host(bytes))?;
            }
            Destination::Logits => order.scratch.logits.write_row(0, bytes)?,
            Destination::Cache { index, layer, half } => {
                if let Some(Placed { cache, span, .. }) = placed.get(*index) {
                    cache.write_row(*layer, *half, span.position, bytes)?;
                }
            }
        }
    }
    Ok(())
}

/// The rows that launches behind one read before they write them: those that its layer goes on with, or the next layer.
fn read_behind(last: &Chosen<'_>) -> Vec<Passed> {
    let layer = last.layer();
    match last.launch.group {
        Group::Qkv => vec![Passed::Query, Passed::Hidden(layer % 2)],
        Group::Mha => vec![Passed::Attended, Passed::Hidden(layer % 2)],
        Group::Ffn => vec![Passed::Hidden((layer + 1) % 2)],
        // Another head may follow, over other rows.
        Group::Head => vec![Passed::Hidden(layer % 2)],
    }
}

fn take(
    chosen: &Chosen<'_>,
    copies: &mut GpuCopies,
    region: &GpuRegion,
    first: usize,
    bytes: usize,
) -> Result<GpuTaken, ExecError> {
    let listed = copies.take(region, first as u64, bytes);
    listed.map_err(failed(&chosen.form.name))
}
