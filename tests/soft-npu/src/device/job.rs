//! Jobs: the commands of a list as they were when it was submitted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::completion::Completion;
use super::event::{Event, EventState};
use crate::abi::{Code, DEVICE_LOST, SUCCESS, UNKNOWN};
use crate::compute;
use crate::fault::{FaultPoint, fails};
use crate::graph::Graph;
use crate::log::note;
use crate::memory::Located;
use crate::settings::settings;

/// A command of a list.
#[derive(Clone)]
pub(crate) enum Command {
    /// Runs a graph.
    Execute {
        graph: Arc<Graph>,
        /// By port.
        arguments: Vec<Located>,
    },
    /// Copies memory.
    Copy { to: Located, from: Located },
    /// Sets or clears an event.
    Set(Arc<Event>, EventState),
    /// Waits for an event.
    Wait(Arc<Event>),
    /// Does nothing here, and is counted: commands are numbered.
    Nothing,
}

/// Commands on their way to the device.
pub(super) struct Job {
    pub(super) commands: Vec<Command>,
    pub(super) completion: Arc<Completion>,
}

/// The outcome of a command.
enum Ended {
    With(Code),
    /// It never ends.
    Never,
}

impl Job {
    /// Runs the commands up to the first that fails.
    pub(super) fn run(&self, priority: u32) {
        for command in &self.commands {
            match command.run(priority) {
                Ended::With(SUCCESS) => {}
                Ended::With(code) => return self.completion.end(code),
                Ended::Never => return,
            }
        }
        self.completion.end(SUCCESS);
    }
}

impl Command {
    fn run(&self, priority: u32) -> Ended {
        match self {
            Self::Execute { graph, arguments } => return execute(graph, arguments, priority),
            Self::Copy { to, from } => compute::copy(to, from),
            Self::Set(event, to) => event.set(*to),
            // What never comes is a hang, which the kernel aborts.
            Self::Wait(event) if event.wait(HANG_NS) != SUCCESS => {
                note!("ABORTED wait");
                return Ended::With(DEVICE_LOST);
            }
            Self::Wait(_) | Self::Nothing => {}
        }
        Ended::With(SUCCESS)
    }
}

/// Runs a graph in the time that settings give it.
fn execute(graph: &Graph, arguments: &[Located], priority: u32) -> Ended {
    let begin = Instant::now();
    if fails(FaultPoint::Hang) {
        return Ended::Never;
    }
    let code = if fails(FaultPoint::Abort) {
        // Driver, `vpu_driver/source/device/vpu_command_queue.cpp`: the kernel's time for a job is 2 seconds. Status
        // ABORTED is DEVICE_LOST (`level_zero_driver/source/device.hpp`, `jobStatusToResult`).
        std::thread::sleep(Duration::from_nanos(HANG_NS));
        DEVICE_LOST
    } else if fails(FaultPoint::Lost) {
        DEVICE_LOST
    } else {
        computed(graph, arguments)
    };
    if fails(FaultPoint::Late) {
        std::thread::sleep(LATE);
    }
    let given = settings().time_of(graph.kernel());
    std::thread::sleep(given.saturating_sub(begin.elapsed()));
    note!(
        "run graph={} kernel={} priority={priority} us={} code={code:#x}",
        graph.facts.name,
        graph.kernel(),
        begin.elapsed().as_micros()
    );
    Ended::With(code)
}

fn computed(graph: &Graph, arguments: &[Located]) -> Code {
    let ports = graph.facts.ports.iter().zip(arguments);
    let mut outputs = ports.filter(|(port, _)| !port.is_input);
    // ivpu, `ivpu_mmu.c`: a write to pages that were pinned to be read is a fault of the context, whose jobs are
    // aborted.
    if let Some((port, _)) = outputs.find(|(_, argument)| !argument.region.is_writable()) {
        note!(
            "REFUSED write graph={} port={}",
            graph.facts.name,
            port.name
        );
        return DEVICE_LOST;
    }
    let fault = WRONG.into_iter().find(|point| fails(*point));
    let outputs = || {
        let ports = graph.facts.ports.iter().zip(arguments);
        let outputs = ports.filter(|(port, _)| !port.is_input);
        outputs.map(|(_, argument)| argument)
    };
    if fault == Some(FaultPoint::Unwritten) {
        return SUCCESS;
    }
    match &graph.recipe {
        Ok(recipe) if fault.is_none_or(|fault| fault == FaultPoint::Negated) => {
            if let Err(error) = compute::run(recipe, arguments) {
                note!("FAILED run graph={}: {error}", graph.facts.name);
                return UNKNOWN;
            }
            if fault.is_some() {
                outputs().for_each(compute::negate);
            }
        }
        Ok(_) | Err(_) if fault == Some(FaultPoint::NotANumber) => {
            outputs().for_each(|output| compute::fill(output, 0xFF));
        }
        Ok(_) | Err(_) => outputs().for_each(|output| compute::fill(output, 0)),
    }
    SUCCESS
}

/// Faults of the numbers that a run gives.
const WRONG: [FaultPoint; 4] = [
    FaultPoint::Wrong,
    FaultPoint::NotANumber,
    FaultPoint::Negated,
    FaultPoint::Unwritten,
];

/// The kernel's time for a job.
const HANG_NS: u64 = 2_000_000_000;

/// Chosen: a hundred kernels of a small model.
const LATE: Duration = Duration::from_millis(400);
