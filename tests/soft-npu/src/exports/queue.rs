//! Queues.

use crate::abi::core::{QueueDesc, QueueNpuDesc};
use crate::abi::{
    Code, Handle, INVALID_SYNCHRONIZATION_OBJECT, answer, as_structure, chain, given, handles,
    place,
};
use crate::device::{COMMAND_LISTS, FENCES, Priority, QUEUES, Queue};
use crate::log::note;

#[unsafe(no_mangle)]
unsafe extern "C" fn zeCommandQueueCreate(
    _: Handle,
    _: Handle,
    desc: *const QueueDesc,
    out: *mut Handle,
) -> Code {
    answer(|| {
        // SAFETY: as the module above says of a caller's pointers.
        let (desc, out) = unsafe { (given(desc)?, place(out)?) };
        // SAFETY: likewise; what follows are descriptions of the NPU's queues, of either version.
        let options = unsafe { chain(&raw const desc.head) };
        // SAFETY: both versions have their options, or one boolean, behind the head.
        let options = options.map(|part| unsafe { as_structure::<QueueNpuDesc>(part) }.options);
        let options: Vec<u32> = options.collect();
        let queue = QUEUES.keep(Queue::new(Priority::of(desc.priority))?);
        note!(
            "queue-create {queue:p} priority={} options={options:?}",
            desc.priority
        );
        *out = queue;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn zeCommandQueueDestroy(queue: Handle) -> Code {
    note!("queue-destroy {queue:p}");
    answer(|| QUEUES.release(queue).map(drop))
}

/// Driver, `level_zero_driver/source/cmdqueue.cpp`, `executeCommandLists`: a fence is of the queue that it was made
/// for.
#[unsafe(no_mangle)]
unsafe extern "C" fn zeCommandQueueExecuteCommandLists(
    queue: Handle,
    count: u32,
    lists: *const Handle,
    fence: Handle,
) -> Code {
    note!("submit queue={queue:p} lists={count} fence={fence:p}");
    answer(|| {
        let made = QUEUES.get(queue)?;
        // SAFETY: as the module above says of a caller's pointers.
        let lists = unsafe { handles(count, lists) }?;
        let lists = lists.into_iter().map(|list| COMMAND_LISTS.get(list));
        let lists: Vec<_> = lists.collect::<Result<_, Code>>()?;
        let jobs = made.submit(&lists)?;
        if fence.is_null() {
            return Ok(());
        }
        let fence = FENCES.get(fence)?;
        if fence.queue != queue.addr() {
            return Err(INVALID_SYNCHRONIZATION_OBJECT);
        }
        fence.track(jobs);
        Ok(())
    })
}
