//! Fences and events.

use std::ffi::c_void;
use std::ptr;

use crate::abi::{Code, Handle, SUCCESS, answer, place};
use crate::device::{EVENTS, Event, EventState, FENCES, Fence, QUEUES};
use crate::log::note;

#[unsafe(no_mangle)]
unsafe extern "C" fn zeFenceCreate(queue: Handle, _: *const c_void, out: *mut Handle) -> Code {
    answer(|| {
        QUEUES.get(queue)?;
        // SAFETY: as the module above says of a caller's pointers.
        *unsafe { place(out) }? = FENCES.keep(Fence::new(queue.addr()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn zeFenceDestroy(fence: Handle) -> Code {
    answer(|| FENCES.release(fence).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn zeFenceHostSynchronize(fence: Handle, timeout_ns: u64) -> Code {
    let code = match FENCES.get(fence) {
        Ok(fence) => fence.wait(timeout_ns),
        Err(code) => code,
    };
    if code != SUCCESS || timeout_ns != u64::MAX {
        note!("wait fence={fence:p} timeout_ns={timeout_ns} code={code:#x}");
    }
    code
}

#[unsafe(no_mangle)]
extern "C" fn zeFenceReset(fence: Handle) -> Code {
    answer(|| {
        FENCES.get(fence)?.reset();
        Ok(())
    })
}

/// Pools have no size here; a handle of one is never looked up.
#[unsafe(no_mangle)]
unsafe extern "C" fn zeEventPoolCreate(
    _: Handle,
    _: *const c_void,
    _: u32,
    _: *const Handle,
    out: *mut Handle,
) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        *unsafe { place(out) }? = ptr::without_provenance_mut(0x4000);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn zeEventPoolDestroy(_: Handle) -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn zeEventCreate(_: Handle, _: *const c_void, out: *mut Handle) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        *unsafe { place(out) }? = EVENTS.keep(Event::default());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn zeEventDestroy(event: Handle) -> Code {
    answer(|| EVENTS.release(event).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn zeEventHostSynchronize(event: Handle, timeout_ns: u64) -> Code {
    match EVENTS.get(event) {
        Ok(event) => event.wait(timeout_ns),
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
extern "C" fn zeEventQueryStatus(event: Handle) -> Code {
    zeEventHostSynchronize(event, 0)
}

#[unsafe(no_mangle)]
extern "C" fn zeEventHostReset(event: Handle) -> Code {
    set(event, EventState::Cleared)
}

#[unsafe(no_mangle)]
extern "C" fn zeEventHostSignal(event: Handle) -> Code {
    set(event, EventState::Signalled)
}

fn set(event: Handle, to: EventState) -> Code {
    answer(|| {
        EVENTS.get(event)?.set(to);
        Ok(())
    })
}
