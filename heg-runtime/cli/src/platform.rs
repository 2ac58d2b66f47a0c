//! What operating systems do differently: how a process hears that a page of a mapped file cannot be read.

/// Ends the process with a plain line and [`Incompatible`](heg_runtime::ExitStatus::Incompatible) where a page of a
/// mapped file cannot be read: a bundle that was cut off within a pass, before anybody could look, or whose disk failed.
#[cfg(target_os = "linux")]
pub(crate) fn end_plainly_on_lost_pages() {
    lost_pages::handle();
}

/// Does nothing: elsewhere the signal has other causes too, or there is none.
#[cfg(not(target_os = "linux"))]
pub(crate) fn end_plainly_on_lost_pages() {}

#[cfg(target_os = "linux")]
#[allow(
    unsafe_code,
    reason = "signals are handled through the C library; the proofs stand at the blocks"
)]
mod lost_pages {
    use std::ffi::{c_int, c_void};
    use std::{mem, ptr};

    use heg_runtime::ExitStatus;

    const MESSAGE: &str = "error: a mapped file cannot be read any more: the bundle was cut off while it was in use, or \
                           its disk failed\nhint: to replace a bundle, write another file and rename it\n";

    pub(super) fn handle() {
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = end;
        // SAFETY: all zeros is a `sigaction` with no flags and an empty mask. The call reads it and keeps nothing of it;
        // the handler has the signature that `SA_SIGINFO` asks for. That the call fails for this signal and these
        // flags is impossible, and would leave what is there.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
        }
    }

    extern "C" fn end(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel gives a handler with `SA_SIGINFO` a valid `info`. `write`, `_exit`, `signal` and `raise`
        // may be called in a handler (POSIX, async-signal-safe), and nothing else of the process is touched: a static
        // text is written.
        unsafe {
            if (*info).si_code == libc::BUS_ADRERR {
                libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
                libc::_exit(ExitStatus::Incompatible as c_int);
            }
            // Sent by somebody, or of another cause: what would have happened without us.
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}
