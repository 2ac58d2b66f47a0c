//! Limits that a process of the worker sets on itself before it reads untrusted input, by a job object.
//!
//! Time is limited by the wall clock alone, by whoever waits; and the stack, by its thread's size.

#![allow(
    unsafe_code,
    reason = "jobs and counters of memory are the system's; the proofs stand at the calls"
)]

use std::io;
use std::mem::size_of;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_ACTIVE_PROCESS,
    JOB_OBJECT_LIMIT_PROCESS_MEMORY, JOBOBJECT_BASIC_LIMIT_INFORMATION,
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JobObjectExtendedLimitInformation,
    SetInformationJobObject,
};
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::Threading::GetCurrentProcess;

/// The job of this process, whose handle stays open for as long as the process runs.
static JOB: OnceLock<Job> = OnceLock::new();

/// The private memory of this process when its heap was limited, in bytes.
static BEFORE_BYTES: AtomicU64 = AtomicU64::new(0);

/// Puts this process into a job of its own, in which it starts no other process.
pub(crate) fn for_the_worker() -> io::Result<()> {
    let job = Job::new()?;
    job.limit(JOB_OBJECT_LIMIT_ACTIVE_PROCESS, 0)?;
    job.enter()?;
    JOB.set(job)
        .map_err(|_| io::Error::other("this process has its job"))
}

/// Limits the growth of the heap to this many bytes from here on.
pub(crate) fn heap_from_here(bytes: u64) -> io::Result<()> {
    let now = private_bytes()?;
    BEFORE_BYTES.store(now, Ordering::Relaxed);
    let job = JOB.get();
    let job = job.ok_or_else(|| io::Error::other("this process has no job"))?;
    let limits = JOB_OBJECT_LIMIT_ACTIVE_PROCESS | JOB_OBJECT_LIMIT_PROCESS_MEMORY;
    job.limit(limits, now.saturating_add(bytes))
}

/// Does nothing: whoever waits for the work ends it by the wall clock.
pub(crate) fn processor_seconds(_seconds: u64) -> io::Result<()> {
    Ok(())
}

/// Does nothing, as there is no limit on processor time.
pub(crate) fn no_limit_on_time() -> io::Result<()> {
    Ok(())
}

/// Returns the private memory that this process took since its heap was limited, in bytes.
///
/// # Errors
/// The system does not say.
pub(crate) fn own_bytes() -> io::Result<u64> {
    Ok(private_bytes()?.saturating_sub(BEFORE_BYTES.load(Ordering::Relaxed)))
}

/// A job object.
struct Job(HANDLE);

// SAFETY: a handle of the system is a number that any thread may use, and this one is never closed.
unsafe impl Send for Job {}
// SAFETY: as above; calls on one handle from several threads at once are the system's to order.
unsafe impl Sync for Job {}

impl Job {
    fn new() -> io::Result<Self> {
        // SAFETY: null stands for no attributes and for no name.
        let handle = unsafe { CreateJobObjectW(ptr::null(), ptr::null()) };
        match handle.is_null() {
            true => Err(io::Error::last_os_error()),
            false => Ok(Self(handle)),
        }
    }

    /// Sets the limits that `which` names, on processes in place of the earlier ones.
    fn limit(&self, which: u32, memory_bytes: u64) -> io::Result<()> {
        let limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION {
            BasicLimitInformation: JOBOBJECT_BASIC_LIMIT_INFORMATION {
                LimitFlags: which,
                ActiveProcessLimit: 1,
                ..JOBOBJECT_BASIC_LIMIT_INFORMATION::default()
            },
            ProcessMemoryLimit: usize::try_from(memory_bytes).unwrap_or(usize::MAX),
            ..JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default()
        };
        let size = size_of::<JOBOBJECT_EXTENDED_LIMIT_INFORMATION>() as u32;
        // SAFETY: the handle is open, and the call reads `size` bytes of `limits`, which is a value of the class.
        done(unsafe {
            SetInformationJobObject(
                self.0,
                JobObjectExtendedLimitInformation,
                ptr::from_ref(&limits).cast(),
                size,
            )
        })
    }

    /// Puts this process into the job.
    fn enter(&self) -> io::Result<()> {
        // SAFETY: both handles are open; that of the current process is a constant.
        done(unsafe { AssignProcessToJobObject(self.0, GetCurrentProcess()) })
    }
}

/// Returns the memory that this process has for itself, in bytes.
fn private_bytes() -> io::Result<u64> {
    let mut counters = PROCESS_MEMORY_COUNTERS::default();
    let size = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
    // SAFETY: the call writes at most `size` bytes to `counters`, which has as many.
    done(unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, size) })?;
    Ok(counters.PagefileUsage as u64)
}

fn done(status: i32) -> io::Result<()> {
    match status {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
