//! Command lists (driver, `level_zero_driver/source/cmdlist.cpp`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::event::Event;
use super::job::Command;
use crate::abi::{
    Code, DEVICE_LOST, INVALID_ARGUMENT, NOT_AVAILABLE, Outcome, UNINITIALIZED, UNKNOWN,
};
use crate::fault::{FaultPoint, fails};
use crate::graph::Graph;
use crate::handles::Handles;
use crate::log::{lock, note};
use crate::memory::Located;

/// A list of commands.
pub(crate) struct CommandList {
    /// Whether arguments may be changed once it is closed.
    is_mutable: bool,
    state: Mutex<ListState>,
}

#[derive(Default)]
struct ListState {
    commands: Vec<Recorded>,
    is_closed: bool,
    /// Numbers that were given out before the waits of their command were recorded.
    moved: BTreeMap<u64, u64>,
}

/// A command as it is recorded: addresses are looked up when the list is submitted.
enum Recorded {
    Execute {
        graph: Arc<Graph>,
        addresses: Vec<usize>,
    },
    Plain(Command),
}

/// Lists that callers hold.
pub(crate) static COMMAND_LISTS: Handles<CommandList> = Handles::new();

impl CommandList {
    /// An empty list.
    pub(crate) fn new(is_mutable: bool) -> Self {
        Self {
            is_mutable,
            state: Mutex::default(),
        }
    }

    /// Adds a command.
    ///
    /// # Errors
    ///
    /// [`NOT_AVAILABLE`] if the list is closed (`checkCommandAppendCondition`).
    pub(crate) fn append(&self, command: Command) -> Outcome {
        let mut state = lock(&self.state);
        if state.is_closed {
            return Err(NOT_AVAILABLE);
        }
        state.commands.push(Recorded::Plain(command));
        Ok(())
    }

    /// Adds a run of a graph with its present arguments, behind waits for events.
    ///
    /// # Errors
    ///
    /// [`NOT_AVAILABLE`] if the list is closed, [`UNINITIALIZED`] if the graph could not be brought to the device, or
    /// an argument is in no buffer or has less room than its port (`appendGraphExecute`).
    pub(crate) fn append_execute(&self, graph: &Arc<Graph>, waits: Vec<Arc<Event>>) -> Outcome {
        let mut state = lock(&self.state);
        if state.is_closed {
            return Err(NOT_AVAILABLE);
        }
        let asked = state.commands.len() as u64;
        let waits = waits.into_iter();
        state
            .commands
            .extend(waits.map(|event| Recorded::Plain(Command::Wait(event))));
        let at = state.commands.len() as u64;
        if at > asked {
            state.moved.insert(asked, at);
        }
        let addresses = graph.arguments();
        if graph.is_broken() || located(graph, &addresses).is_err() {
            return Err(UNINITIALIZED);
        }
        state.commands.push(Recorded::Execute {
            graph: Arc::clone(graph),
            addresses,
        });
        Ok(())
    }

    /// Number of the next command, by which it can be changed.
    ///
    /// # Errors
    ///
    /// [`INVALID_ARGUMENT`] if the list is not mutable, or is closed (`getNextCommandId`).
    pub(crate) fn next_id(&self) -> Result<u64, Code> {
        let state = lock(&self.state);
        match self.is_mutable && !state.is_closed {
            true => Ok(state.commands.len() as u64),
            false => Err(INVALID_ARGUMENT),
        }
    }

    /// Changes arguments of runs: number of the command, port, and address, which stays as it is where that is null.
    ///
    /// # Errors
    ///
    /// [`INVALID_ARGUMENT`] if the list is not mutable, there is nothing to change, or a run or port is not there
    /// (`updateMutableCommands`); [`DEVICE_LOST`] by a fault.
    pub(crate) fn change(&self, changes: &[(u64, u32, usize)]) -> Outcome {
        if fails(FaultPoint::Update) {
            return Err(DEVICE_LOST);
        }
        if !self.is_mutable || changes.is_empty() {
            return Err(INVALID_ARGUMENT);
        }
        let mut state = lock(&self.state);
        for (id, port, address) in changes {
            let id = state.moved.get(id).copied().unwrap_or(*id);
            let id = usize::try_from(id).map_err(|_| INVALID_ARGUMENT)?;
            let Some(Recorded::Execute { addresses, .. }) = state.commands.get_mut(id) else {
                return Err(INVALID_ARGUMENT);
            };
            let argument = addresses.get_mut(*port as usize);
            let argument = argument.ok_or(INVALID_ARGUMENT)?;
            if *address != 0 {
                *argument = *address;
            }
        }
        Ok(())
    }

    /// Ends recording.
    pub(crate) fn close(&self) {
        lock(&self.state).is_closed = true;
    }

    /// Forgets all commands, and records again.
    pub(crate) fn reset(&self) {
        *lock(&self.state) = ListState::default();
    }

    /// Whether recording has ended.
    pub(super) fn is_closed(&self) -> bool {
        lock(&self.state).is_closed
    }

    /// The commands with the buffers of their arguments, as they are now.
    ///
    /// # Errors
    ///
    /// [`UNKNOWN`] if an argument is in no buffer, or has less room than its port (`updateOnSubmit`).
    pub(super) fn job(&self) -> Result<Vec<Command>, Code> {
        let state = lock(&self.state);
        let command = |recorded: &Recorded| match recorded {
            Recorded::Plain(command) => Ok(command.clone()),
            Recorded::Execute { graph, addresses } => Ok(Command::Execute {
                graph: Arc::clone(graph),
                arguments: located(graph, addresses)?,
            }),
        };
        state.commands.iter().map(command).collect()
    }
}

/// The buffers of a graph's arguments.
fn located(graph: &Graph, addresses: &[usize]) -> Result<Vec<Located>, Code> {
    let ports = graph.facts.ports.iter().zip(addresses);
    ports
        .map(|(port, address)| {
            Located::of(*address, port.bytes()).map_err(|_| {
                note!(
                    "REFUSED argument graph={} port={} address={address:#x} bytes={}",
                    graph.facts.name,
                    port.name,
                    port.bytes()
                );
                UNKNOWN
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_list_takes_no_commands_until_it_is_reset() {
        let list = CommandList::new(true);
        assert_eq!(list.next_id(), Ok(0));
        list.append(Command::Nothing).unwrap();
        assert_eq!(list.next_id(), Ok(1));
        list.close();
        assert_eq!(list.append(Command::Nothing), Err(NOT_AVAILABLE));
        assert_eq!(list.next_id(), Err(INVALID_ARGUMENT));
        assert_eq!(list.job().map(|commands| commands.len()), Ok(1));
        list.reset();
        assert_eq!(list.append(Command::Nothing), Ok(()));
    }

    #[test]
    fn only_runs_of_mutable_lists_are_changed() {
        let list = CommandList::new(true);
        list.append(Command::Nothing).unwrap();
        assert_eq!(list.change(&[]), Err(INVALID_ARGUMENT));
        assert_eq!(list.change(&[(0, 0, 1)]), Err(INVALID_ARGUMENT));
        assert_eq!(list.change(&[(7, 0, 1)]), Err(INVALID_ARGUMENT));
        let fixed = CommandList::new(false);
        assert_eq!(fixed.change(&[(0, 0, 1)]), Err(INVALID_ARGUMENT));
        assert_eq!(fixed.next_id(), Err(INVALID_ARGUMENT));
    }
}
