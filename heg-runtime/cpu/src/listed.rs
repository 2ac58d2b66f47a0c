//! An order as it runs: its calls as one list of phases, with the addresses and pieces that are found before it begins.
//!
//! Lists keep their memory from one order to the next.

use std::ops::Range;

use crate::call::CpuCall;
use crate::device::Address;
use crate::execution::{Execution, Item};

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
    /// Pieces of work.
    pub(crate) pieces: usize,
    /// Whether one more piece follows, which asks whether to go on.
    asks: bool,
}

/// What is listed of a call.
#[derive(Debug, Clone)]
pub(crate) struct ListedCall {
    tables: Range<usize>,
    items: Range<usize>,
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
    pub(crate) fn add(&mut self, execution: &Execution<'_>, is_followed: bool) {
        let call = self.calls.len();
        let first_item = self.items.len();
        let first_table = self.calls.last().map_or(0, |before| before.tables.end);
        let last_table = self.list_rows(first_table, execution.call);
        execution.list_items(&mut self.items);
        let items = first_item..self.items.len();
        let own = Execution {
            items: self.items.get(items.clone()).unwrap_or_default(),
            ..*execution
        };
        // A call of no rows has nothing to do.
        let count = if execution.call.rows == 0 {
            0
        } else {
            usize::MAX
        };
        let phases = own.pieces().take(count).enumerate();
        let phases = phases.map(|(index, pieces)| ListedPhase {
            call,
            index,
            pieces,
            asks: false,
        });
        self.phases.extend(phases);
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

    pub(crate) fn items(&self, call: &ListedCall) -> &[Item] {
        self.items.get(call.items.clone()).unwrap_or_default()
    }

    /// Pieces of each phase, the ones that ask included.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = usize> {
        let phases = self.phases.iter();
        phases.map(|phase| phase.pieces + usize::from(phase.asks))
    }

    /// Calls that are done after so many phases.
    pub(crate) fn calls_in(&self, phases: usize) -> usize {
        self.calls.partition_point(|call| call.end <= phases)
    }
}
