//! Command lists.

use std::ffi::c_void;
use std::sync::Arc;

use crate::abi::core::{
    ListDesc, MutableCommandIdDesc, MutableGraphArgument, STYPE_MUTABLE_GRAPH_ARGUMENT,
    STYPE_MUTABLE_GRAPH_ARGUMENT_OLD,
};
use crate::abi::{
    Code, Handle, Head, INVALID_ARGUMENT, NOT_AVAILABLE, answer, as_structure, chain, given,
    handles, place,
};
use crate::device::{COMMAND_LISTS, Command, CommandList, EVENTS, Event, EventState};
use crate::log::note;
use crate::memory::{Located, region_of};

#[unsafe(no_mangle)]
unsafe extern "C" fn zeCommandListCreate(
    _: Handle,
    _: Handle,
    desc: *const ListDesc,
    out: *mut Handle,
) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let (desc, out) = unsafe { (given(desc)?, place(out)?) };
        // What may follow is the description of a list that can be changed.
        let is_mutable = !desc.head.next.is_null();
        *out = COMMAND_LISTS.keep(CommandList::new(is_mutable));
        note!("list-create {:p} mutable={is_mutable}", *out);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn zeCommandListDestroy(list: Handle) -> Code {
    note!("list-destroy {list:p}");
    answer(|| COMMAND_LISTS.release(list).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn zeCommandListReset(list: Handle) -> Code {
    answer(|| {
        COMMAND_LISTS.get(list)?.reset();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn zeCommandListClose(list: Handle) -> Code {
    answer(|| {
        COMMAND_LISTS.get(list)?.close();
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeCommandListGetNextCommandIdExp(
    list: Handle,
    desc: *const MutableCommandIdDesc,
    out: *mut u64,
) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let (_, out) = unsafe { (given(desc)?, place(out)?) };
        *out = COMMAND_LISTS.get(list)?.next_id()?;
        Ok(())
    })
}

/// Driver, `level_zero_driver/source/cmdlist.cpp`, `updateMutableCommands`: what is not known in the chain is refused.
#[unsafe(no_mangle)]
unsafe extern "C" fn zeCommandListUpdateMutableCommandsExp(
    list: Handle,
    desc: *const Head,
) -> Code {
    answer(|| {
        let mut changes = Vec::new();
        // SAFETY: as the module above says of a caller's pointers.
        for part in unsafe { chain(desc) } {
            if ![
                STYPE_MUTABLE_GRAPH_ARGUMENT,
                STYPE_MUTABLE_GRAPH_ARGUMENT_OLD,
            ]
            .contains(&part.stype)
            {
                note!("REFUSED update list={list:p} stype={:#x}", part.stype);
                return Err(INVALID_ARGUMENT);
            }
            // SAFETY: this is the structure of these types.
            let change: &MutableGraphArgument = unsafe { as_structure(part) };
            let address = change.value.expose_provenance();
            note!(
                "update list={list:p} id={} index={} address={address:#x} memory={}",
                change.command,
                change.index,
                region_of(address).map_or("unknown", |region| region.kind_name())
            );
            changes.push((change.command, change.index, address));
        }
        COMMAND_LISTS.get(list)?.change(&changes)
    })
}

fn append(list: Handle, command: impl FnOnce() -> Result<Command, Code>) -> Code {
    answer(|| COMMAND_LISTS.get(list)?.append(command()?))
}

#[unsafe(no_mangle)]
extern "C" fn zeCommandListAppendBarrier(
    list: Handle,
    _: Handle,
    _: u32,
    _: *const Handle,
) -> Code {
    append(list, || Ok(Command::Nothing))
}

/// Between buffers that the device knows.
#[unsafe(no_mangle)]
extern "C" fn zeCommandListAppendMemoryCopy(
    list: Handle,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    _: Handle,
    _: u32,
    _: *const Handle,
) -> Code {
    append(list, || {
        let located = |address| Located::of(address, bytes).map_err(|_| NOT_AVAILABLE);
        Ok(Command::Copy {
            to: located(to.expose_provenance())?,
            from: located(from.expose_provenance())?,
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn zeCommandListAppendSignalEvent(list: Handle, event: Handle) -> Code {
    append(list, || {
        Ok(Command::Set(EVENTS.get(event)?, EventState::Signalled))
    })
}

#[unsafe(no_mangle)]
extern "C" fn zeCommandListAppendEventReset(list: Handle, event: Handle) -> Code {
    append(list, || {
        Ok(Command::Set(EVENTS.get(event)?, EventState::Cleared))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeCommandListAppendWaitOnEvents(
    list: Handle,
    count: u32,
    events: *const Handle,
) -> Code {
    answer(|| {
        let list = COMMAND_LISTS.get(list)?;
        // SAFETY: as the module above says of a caller's pointers.
        for event in unsafe { waits(count, events) }? {
            list.append(Command::Wait(event))?;
        }
        Ok(())
    })
}

/// The events of a list of handles.
///
/// # Safety
///
/// As [`handles`] asks.
pub(crate) unsafe fn waits(count: u32, events: *const Handle) -> Result<Vec<Arc<Event>>, Code> {
    // SAFETY: the caller promises as much.
    let events = unsafe { handles(count, events) }?;
    events.into_iter().map(|event| EVENTS.get(event)).collect()
}

#[unsafe(no_mangle)]
extern "C" fn zeCommandListAppendWriteGlobalTimestamp(
    list: Handle,
    _: *mut u64,
    _: Handle,
    _: u32,
    _: *const Handle,
) -> Code {
    append(list, || Ok(Command::Nothing))
}
