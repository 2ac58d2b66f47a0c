//! A prepared order: its calls as one list of phases, with row addresses and pieces found in advance.
//!
//! Lists keep their memory from one order to the next.

use std::ops::Range;

use heg_spec::{Bug, Cut, CutProduct, Side, bug};

use crate::call::CpuCall;
use crate::device::Address;
use crate::divider::Divided;
use crate::division::{Division, SIDES, WorkItem, index};
use crate::execution::{Execution, Item};
use crate::pace::PaceKey;
use crate::pool::Pieces;
use crate::product::FEW_ROWS;
use crate::solo_tuner::MemoryBound;

/// The phases of an order, and the rows and pieces of its calls.
#[derive(Debug, Default)]
pub(crate) struct ListedOrder {
    phases: Vec<ListedPhase>,
    calls: Vec<ListedCall>,
    /// Row addresses by port: the inputs of each call, then its outputs. Surplus tables are left from earlier orders.
    tables: Vec<Vec<Address>>,
    /// Pieces of attention of all calls.
    items: Vec<Item>,
}

/// A phase of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListedPhase {
    /// Index of the call in the order.
    pub(crate) call: usize,
    /// Index of the phase in the call.
    pub(crate) index: usize,
    /// The product that it is to a partition.
    pub(crate) product: Option<CutProduct>,
    /// Its division between the sides.
    pub(crate) division: Division,
    /// Number of pieces, by side.
    pub(crate) pieces: [usize; 2],
    /// Key of phases that take the same time.
    timing_key: u64,
    /// Whether it has many rows, as prompts do, and may take long.
    pub(crate) is_long: bool,
    /// Whether both sides of a pair can take part in it.
    pub(crate) is_shared: bool,
    /// Whether a partner has a part of it to be measured, not to be faster.
    pub(crate) is_question: bool,
    /// Set if it is bound by reading weights rather than by arithmetic.
    pub(crate) memory_bound: Option<MemoryBound>,
    pub(crate) weights: usize,
    /// Multiply-adds of its product; 0 if it has none.
    pub(crate) units: usize,
    /// The side that has an extra piece, which asks if the order goes on.
    pub(crate) asker: Option<Side>,
}

/// The part of the lists that belongs to one call.
#[derive(Debug, Clone)]
pub(crate) struct ListedCall {
    tables: Range<usize>,
    /// Pieces of attention, by side.
    items: [Range<usize>; 2],
    /// Index of the first phase behind the call.
    end: usize,
}

impl ListedPhase {
    /// The key of the pace at which sides do it.
    pub(crate) const fn pace_key(&self) -> PaceKey {
        PaceKey {
            product: self.product,
            is_long: self.is_long,
        }
    }
}

impl ListedOrder {
    pub(crate) fn clear(&mut self) {
        self.phases.clear();
        self.calls.clear();
        self.items.clear();
    }

    /// Appends a call. `divide` chooses the division of each phase; `is_followed`: the order has another call behind
    /// it.
    pub(crate) fn add(
        &mut self,
        execution: &Execution<'_>,
        divide: &mut dyn FnMut(WorkItem, bool) -> Divided,
        is_followed: bool,
    ) -> Result<(), Bug> {
        let call = self.calls.len();
        let first_table = self.calls.last().map_or(0, |before| before.tables.end);
        let last_table = self.list_rows(first_table, execution.call);
        let rows = execution.call.rows;
        let mut items = [0..0, 0..0];
        for index in 0..execution.kernel.phases.len() {
            let work = execution.work_item(index);
            let sole_side = execution.sole_side(index);
            let mut divided = match sole_side {
                Some(side) => Divided::by(Division::of(&Cut::Whole(side), work)),
                None => divide(work, rows > FEW_ROWS),
            };
            if sole_side.is_none() {
                divided.division = execution.as_partner_takes(index, work, divided.division);
            }
            let division = divided.division;
            if work.product == Some(CutProduct::Attention) {
                for (side, items) in SIDES.into_iter().zip(&mut items) {
                    items.start = self.items.len();
                    execution.list_items(division, side, &mut self.items)?;
                    items.end = self.items.len();
                }
            }
            let own = Execution {
                items: part(&self.items, &items),
                ..*execution
            };
            self.phases.push(ListedPhase {
                call,
                index,
                product: work.product,
                division,
                pieces: own.pieces(index, division),
                timing_key: timing_key(execution, index, division),
                is_long: rows > FEW_ROWS,
                is_shared: sole_side.is_none(),
                is_question: divided.is_question,
                // A question says nothing of what is faster.
                memory_bound: MemoryBound::of(&work, rows > FEW_ROWS)
                    .filter(|_| !divided.is_question),
                weights: work.rows * work.columns,
                units: execution.units(index),
                asker: None,
            });
        }
        if let Some(last) = self.phases.last_mut() {
            // A partner's thread may have nothing else to do.
            let asker = execution.partner.map_or(Side::First, Side::other);
            last.asker = is_followed.then_some(asker);
        }
        self.calls.push(ListedCall {
            tables: first_table..last_table,
            items,
            end: self.phases.len(),
        });
        Ok(())
    }

    /// Lists the address of each row of each port. Returns the index of the next free table.
    fn list_rows(&mut self, first: usize, call: &CpuCall<'_>) -> usize {
        let ports = call.inputs.iter().chain(call.outputs);
        let end = first + call.inputs.len() + call.outputs.len();
        if self.tables.len() < end {
            self.tables.resize_with(end, Vec::new);
        }
        for (table, runs) in self.tables.iter_mut().skip(first).zip(ports) {
            table.clear();
            for run in *runs {
                table.extend((0..run.count()).map(|row| Address(run.row(row))));
            }
        }
        end
    }

    /// The phases of the order.
    pub(crate) fn phases(&self) -> &[ListedPhase] {
        &self.phases
    }

    /// Number of phases.
    pub(crate) fn len(&self) -> usize {
        self.phases.len()
    }

    /// A phase of the order, and its call.
    pub(crate) fn phase(&self, number: usize) -> Result<(ListedPhase, &ListedCall), Bug> {
        let phase = self.phases.get(number);
        let phase = *phase.ok_or_else(|| bug!("an order does not have this phase"))?;
        let call = self.calls.get(phase.call);
        Ok((phase, call.ok_or_else(|| bug!("a phase has no call"))?))
    }

    pub(crate) fn tables(&self, call: &ListedCall) -> Result<&[Vec<Address>], Bug> {
        let tables = self.tables.get(call.tables.clone());
        tables.ok_or_else(|| bug!("a call has rows that no table lists"))
    }

    pub(crate) fn items(&self, call: &ListedCall) -> [&[Item]; 2] {
        part(&self.items, &call.items)
    }

    /// Pieces of each phase, including those that ask whether to go on.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Pieces> {
        self.phases.iter().map(|phase| {
            let mut of_side = phase.pieces;
            if let Some(asker) = phase.asker {
                of_side[index(asker)] += 1;
            }
            Pieces {
                of_side,
                timing_key: phase.timing_key,
                is_long: phase.is_long,
            }
        })
    }

    /// Number of calls that are complete after `phases` phases.
    pub(crate) fn calls_in(&self, phases: usize) -> usize {
        self.calls.partition_point(|call| call.end <= phases)
    }
}

fn part<'i>(items: &'i [Item], sides: &[Range<usize>; 2]) -> [&'i [Item]; 2] {
    let of_side = |side: &Range<usize>| items.get(side.clone()).unwrap_or_default();
    sides.each_ref().map(of_side)
}

/// A hash that phases of equal duration share: those of the same kernel in other layers.
fn timing_key(execution: &Execution<'_>, index: usize, division: Division) -> u64 {
    let Division {
        first, of, tokens, ..
    } = division;
    let kernel = std::ptr::from_ref(execution.kernel).addr();
    let parts = [kernel, index, execution.call.rows, first, of, tokens];
    parts.into_iter().fold(0, |all: u64, part| {
        (all.rotate_left(5) ^ part as u64).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}
