//! The differences between operating systems: the signals for an unreadable page of a mapped file, and for exhausted
//! stack or memory; the size of a process's memory; the way to a server of this machine.

use std::io;
use std::path::Path;

/// Installs a handler that ends the process with a plain line and
/// [`Incompatible`](heg_runtime::ExitStatus::Incompatible) if a page of a mapped file cannot be read: the bundle was
/// truncated within a pass, before it could be checked, or its disk failed.
#[cfg(target_os = "linux")]
pub(crate) fn end_plainly_on_lost_pages() {
    signals::handle_lost_pages();
}

/// While the returned value is alive, the process ends with a plain line and
/// [`Incompatible`](heg_runtime::ExitStatus::Incompatible) instead of being aborted if a bundle's template or tokenizer
/// exhausts the stack or the memory.
#[cfg(target_os = "linux")]
pub(crate) fn end_plainly_while() -> impl Drop {
    signals::Plainly::begin()
}

/// Returns the private memory of this process, in bytes; `None` if the system does not say.
#[cfg(target_os = "linux")]
pub(crate) fn own_memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// The stream to a server's Unix socket.
#[cfg(unix)]
type LocalStream = tokio::net::UnixStream;

/// The stream to a server's named pipe.
#[cfg(windows)]
type LocalStream = tokio::net::windows::named_pipe::NamedPipeClient;

/// Connects to the Unix socket of a server. Must run in a tokio runtime.
#[cfg(unix)]
pub(crate) async fn connect_locally(path: &Path) -> io::Result<LocalStream> {
    LocalStream::connect(path).await
}

/// Connects to the named pipe of a server. Must run in a tokio runtime.
#[cfg(windows)]
pub(crate) async fn connect_locally(path: &Path) -> io::Result<LocalStream> {
    tokio::net::windows::named_pipe::ClientOptions::new().open(path)
}

/// Does nothing: on other systems the signal has further causes, or does not exist.
#[cfg(not(target_os = "linux"))]
pub(crate) fn end_plainly_on_lost_pages() {}

/// Does nothing: on other systems such a process is aborted.
#[cfg(not(target_os = "linux"))]
pub(crate) fn end_plainly_while() -> impl Drop {
    struct Nothing;
    impl Drop for Nothing {
        fn drop(&mut self) {}
    }
    Nothing
}

/// Returns `None`: other systems do not say.
#[cfg(not(target_os = "linux"))]
pub(crate) fn own_memory_bytes() -> Option<u64> {
    None
}

#[cfg(target_os = "linux")]
#[allow(
    unsafe_code,
    reason = "signals are handled through the C library; the proofs stand at the blocks"
)]
mod signals {
    use std::ffi::{c_int, c_void};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::{mem, ptr};

    use heg_runtime::ExitStatus;

    const LOST_PAGE: &str = "error: a mapped file cannot be read any more: the bundle was cut off while it was in use, or \
                             its disk failed\nhint: to replace a bundle, write another file and rename it\n";

    const TEXT_TOOK_ALL: &str = "error: making the prompt or compiling the form took all stack or memory that there is: the \
                                 bundle's chat template or tokenizer, or the form, is not fit for this\n";

    /// Whether a prompt is being made, or a form compiled.
    static TEXT_AT_WORK: AtomicBool = AtomicBool::new(false);

    /// Makes an abortion end the process plainly, until this is dropped.
    pub(super) struct Plainly(());

    impl Plainly {
        pub(super) fn begin() -> Self {
            handle(libc::SIGABRT);
            TEXT_AT_WORK.store(true, Ordering::Relaxed);
            Self(())
        }
    }

    impl Drop for Plainly {
        fn drop(&mut self) {
            TEXT_AT_WORK.store(false, Ordering::Relaxed);
        }
    }

    pub(super) fn handle_lost_pages() {
        handle(libc::SIGBUS);
    }

    fn handle(signal: c_int) {
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = end;
        // SAFETY: all zeros is a `sigaction` with no flags and an empty mask. The call reads it and keeps nothing of
        // it; the handler has the signature that `SA_SIGINFO` asks for. The call cannot fail for these signals and
        // these flags, and a failure would leave the existing handler.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &action, ptr::null_mut());
        }
    }

    extern "C" fn end(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel gives a handler with `SA_SIGINFO` a valid `info`.
        let code = unsafe { (*info).si_code };
        let message = match signal {
            libc::SIGBUS if code == libc::BUS_ADRERR => Some(LOST_PAGE),
            libc::SIGABRT if TEXT_AT_WORK.load(Ordering::Relaxed) => Some(TEXT_TOOK_ALL),
            _ => None,
        };
        // SAFETY: `write`, `_exit`, `signal` and `raise` may be called in a handler (POSIX, async-signal-safe), and nothing
        // else of the process is touched: a static text is written.
        unsafe {
            if let Some(message) = message {
                libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
                libc::_exit(ExitStatus::Incompatible as c_int);
            }
            // Sent by another process, or of another cause: acts as if this handler did not exist.
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}
