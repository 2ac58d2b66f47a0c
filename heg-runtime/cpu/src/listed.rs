//! An order as it runs: its calls as one list of phases, with the addresses and pieces that are found before it begins.
//!
//! Lists keep their memory from one order to the next.

use std::ops::Range;

use heg_spec::CutProduct;

use crate::call::CpuCall;
use crate::device::Address;
use crate::division::{Division, SIDES, Uncut};
use crate::execution::{Execution, Item};
use crate::pool::Pieces;
use crate::product::FEW_ROWS;
use crate::solo::Reading;

/// The phases of an order, and what its calls work on.
#[derive(Debug, Default)]
pub(crate) struct ListedOrder {
    phases: Vec<ListedPhase>,
    calls: Vec<ListedCall>,
    /// Addresses of rows, by port: of each call the inputs, then the outputs. There may be more, of earlier orders.
    tables: Vec<Vec<Address>>,
    /// Pieces of the calls' attention.
    items: Vec<Item>,
}

/// A phase of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListedPhase {
    /// Number of the call in the order.
    pub(crate) call: usize,
    /// Number of the phase in the call.
    pub(crate) index: usize,
    /// What it is to a partition.
    pub(crate) product: Option<CutProduct>,
    /// How the sides share it.
    pub(crate) division: Division,
    /// Times as long as the first side's part takes because of static shapes.
    pub(crate) padding: f64,
    /// Pieces of work, of each side.
    pub(crate) pieces: [usize; 2],
    /// What tells it from phases that take another time.
    likeness: u64,
    /// Whether it is one of a prompt, and may take long.
    pub(crate) is_long: bool,
    /// What it is where it reads weights rather than computes, and how many.
    pub(crate) reading: Option<Reading>,
    pub(crate) weights: usize,
    /// Whether one more piece of the first side follows, which asks whether to go on.
    asks: bool,
}

/// What is listed of a call.
#[derive(Debug, Clone)]
pub(crate) struct ListedCall {
    tables: Range<usize>,
    /// Of each side.
    items: [Range<usize>; 2],
    /// Number of the first phase behind it.
    end: usize,
}

impl ListedOrder {
    pub(crate) fn clear(&mut self) {
        self.phases.clear();
        self.calls.clear();
        self.items.clear();
    }

    /// Adds a call whose rows and items are not listed yet, and which another may follow.
    pub(crate) fn add(
        &mut self,
        execution: &Execution<'_>,
        divide: &mut dyn FnMut(Uncut, bool) -> (Division, f64),
        is_followed: bool,
    ) {
        let call = self.calls.len();
        let first_table = self.calls.last().map_or(0, |before| before.tables.end);
        let last_table = self.list_rows(first_table, execution.call);
        let rows = execution.call.rows;
        let mut items = [0..0, 0..0];
        for index in 0..execution.kernel.phases.len() {
            let uncut = execution.uncut(index);
            let (division, padding) = divide(uncut, rows > FEW_ROWS);
            if uncut.product == Some(CutProduct::Attention) {
                for (side, items) in SIDES.into_iter().zip(&mut items) {
                    items.start = self.items.len();
                    execution.list_items(division, side, &mut self.items);
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
                product: uncut.product,
                division,
                padding,
                pieces: own.pieces(index, division),
                likeness: likeness(execution, index, division),
                is_long: rows > FEW_ROWS,
                reading: Reading::of(&uncut, rows > FEW_ROWS),
                weights: uncut.rows * uncut.columns,
                asks: false,
            });
        }
        if let Some(last) = self.phases.last_mut() {
            last.asks = is_followed;
        }
        self.calls.push(ListedCall {
            tables: first_table..last_table,
            items,
            end: self.phases.len(),
        });
    }

    /// Writes the address of each row of each port, and returns the number of the first table behind.
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

    /// A phase of the order, and its call.
    pub(crate) fn phase(&self, number: usize) -> Option<(ListedPhase, &ListedCall)> {
        let phase = *self.phases.get(number)?;
        Some((phase, self.calls.get(phase.call)?))
    }

    pub(crate) fn tables(&self, call: &ListedCall) -> &[Vec<Address>] {
        self.tables.get(call.tables.clone()).unwrap_or_default()
    }

    pub(crate) fn items(&self, call: &ListedCall) -> [&[Item]; 2] {
        part(&self.items, &call.items)
    }

    /// Pieces of each phase, the ones that ask included.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Pieces> {
        self.phases.iter().map(|phase| {
            let [first, second] = phase.pieces;
            Pieces {
                of_side: [first + usize::from(phase.asks), second],
                likeness: phase.likeness,
                is_long: phase.is_long,
            }
        })
    }

    /// Calls that are done after so many phases.
    pub(crate) fn calls_in(&self, phases: usize) -> usize {
        self.calls.partition_point(|call| call.end <= phases)
    }
}

fn part<'i>(items: &'i [Item], sides: &[Range<usize>; 2]) -> [&'i [Item]; 2] {
    let of_side = |side: &Range<usize>| items.get(side.clone()).unwrap_or_default();
    sides.each_ref().map(of_side)
}

/// A number that phases have in common that take the same time: the same of another layer.
fn likeness(execution: &Execution<'_>, index: usize, division: Division) -> u64 {
    let Division { first, of, tokens } = division;
    let kernel = std::ptr::from_ref(execution.kernel).addr();
    let parts = [kernel, index, execution.call.rows, first, of, tokens];
    parts.into_iter().fold(0, |all: u64, part| {
        (all.rotate_left(5) ^ part as u64).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}
