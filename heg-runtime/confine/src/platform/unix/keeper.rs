//! The keeper of processes: forks itself for each piece of work, and kills processes for which nobody waits.
//!
//! It holds the same end of a copy's socket as the copy itself. If the other end is gone, nobody wants the work any
//! more, and the copy is killed, whatever it is doing. If the copy has ended, the other end is told why.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open,
    set_parent_process_death_signal, setpriority_process, waitpid,
};

use super::fork::{Side, fork};
use super::frame::{tell_end, timespec};

/// The kinds of work for which a process is forked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Makes prompts.
    Prompts = 1,
    /// Keeps the processes that compile forms.
    Forms,
    /// Compiles a form, and keeps the processes of its answers.
    Form,
    /// Makes the masks of an answer.
    Answer,
}

impl Role {
    fn of(byte: u8) -> Option<Self> {
        let all = [Self::Prompts, Self::Forms, Self::Form, Self::Answer];
        all.into_iter().find(|role| *role as u8 == byte)
    }
}

/// Asks the keeper at the other end of `control` for a copy in this role, and returns the socket to it.
///
/// # Errors
/// The keeper is gone, or this process has too many files open.
pub(crate) fn ask(control: &UnixStream, role: Role) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = SendAncillaryBuffer::new(&mut room);
    let theirs = [theirs.as_fd()];
    files.push(SendAncillaryMessage::ScmRights(&theirs));
    let byte = [role as u8];
    sendmsg(
        control,
        &[IoSlice::new(&byte)],
        &mut files,
        SendFlags::NOSIGNAL,
    )?;
    Ok(ours)
}

/// Keeps processes until the other end of `control` is gone. Returns only in the copies, with their role and their
/// socket.
pub(crate) fn keep(control: UnixStream) -> Option<(Role, UnixStream)> {
    // The loop checks the state of everything after each wake-up, so no call may block.
    if control.set_nonblocking(true).is_err() {
        return None;
    }
    let mut copies: Vec<Copy> = Vec::new();
    loop {
        let wait = copies.iter().filter_map(Copy::until_slow).min();
        wait_for_any(&control, &copies, wait)?;
        copies.retain_mut(Copy::is_going_on);
        loop {
            match receive(&control) {
                Ok(Some((role, socket))) => match Copy::start(role, socket) {
                    Ok(Started::Here(copy)) => copies.push(copy),
                    // The copy drops everything that belongs to the keeper: `copies` and `control`.
                    Ok(Started::Copy(socket)) => return Some((role, socket)),
                    // The other end sees its socket close.
                    Err(_) => {}
                },
                Ok(None) => return None,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return None,
            }
        }
    }
}

/// Waits until there is something to do.
fn wait_for_any(control: &UnixStream, copies: &[Copy], wait: Option<Duration>) -> Option<()> {
    let mut ready = vec![PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN)];
    for copy in copies {
        // Only the closing of the other side is waited for.
        ready.push(PollFd::from_borrowed_fd(
            copy.socket.as_fd(),
            PollFlags::empty(),
        ));
        ready.push(PollFd::from_borrowed_fd(copy.exit.as_fd(), PollFlags::IN));
    }
    match poll(&mut ready, wait.map(timespec).as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Some(()),
        Err(_) => None,
    }
}

/// Receives the next request for a copy; `None` if there can be no more.
fn receive(control: &UnixStream) -> io::Result<Option<(Role, UnixStream)>> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = RecvAncillaryBuffer::new(&mut room);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    let received = recvmsg(control, &mut into, &mut files, RecvFlags::CMSG_CLOEXEC)?;
    let socket = files.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    if received.bytes == 0 {
        return Ok(None);
    }
    match (Role::of(byte[0]), socket) {
        (Some(role), Some(socket)) => Ok(Some((role, UnixStream::from(socket)))),
        _ => Err(io::Error::other("expected a role and a socket")),
    }
}

/// A copy of this process, as its keeper sees it.
struct Copy {
    role: Role,
    pid: Pid,
    /// A descriptor that becomes readable when the copy has ended.
    exit: OwnedFd,
    /// The copy's end of its socket.
    socket: UnixStream,
    /// The time at which the copy counts as slow; `None` once that was checked.
    slow_at: Option<Instant>,
}

/// The side of a start on which the code runs.
enum Started {
    Here(Copy),
    Copy(UnixStream),
}

impl Copy {
    fn start(role: Role, socket: UnixStream) -> io::Result<Started> {
        let keeper = rustix::process::getpid();
        match fork()? {
            Side::Parent(pid) => Ok(Started::Here(Self {
                role,
                pid,
                exit: pidfd_open(pid, PidfdFlags::empty())?,
                socket,
                slow_at: (role == Role::Form).then(|| Instant::now() + SLOW),
            })),
            Side::Child => {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // The keeper may have ended before this.
                if rustix::process::getppid() != Some(keeper) {
                    std::process::exit(1);
                }
                Ok(Started::Copy(socket))
            }
        }
    }

    fn until_slow(&self) -> Option<Duration> {
        Some(self.slow_at?.saturating_duration_since(Instant::now()))
    }

    /// Kills the copy if nobody waits for it, and reaps it if it has ended. Returns whether it is still running.
    fn is_going_on(&mut self) -> bool {
        if self.slow_at.is_some_and(|at| at <= Instant::now()) {
            self.slow_at = None;
            self.make_way();
        }
        let ended = waitpid(Some(self.pid), WaitOptions::NOHANG);
        if let Ok(Some((_, status))) = ended {
            if let Some(signal) = status.terminating_signal() {
                tell_end(&self.socket, signal);
            }
            return false;
        }
        if self.has_no_other_end() {
            // The copy is our own child and not yet reaped, so the process id is still its own.
            let _ = kill_process(self.pid, Signal::KILL);
            let _ = waitpid(Some(self.pid), WaitOptions::empty());
            return false;
        }
        true
    }

    fn has_no_other_end(&self) -> bool {
        let mut ready = [PollFd::from_borrowed_fd(
            self.socket.as_fd(),
            PollFlags::empty(),
        )];
        let now = timespec(Duration::ZERO);
        poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Lowers the copy's priority from now on: a form that takes long to compile delays only its sender.
    fn make_way(&self) {
        debug_assert_eq!(self.role, Role::Form);
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_pid()));
        // `pid (name) R …` means that it computes. Otherwise it has compiled its form and waits.
        let is_busy = stat.is_ok_and(|stat| stat.contains(") R "));
        if is_busy {
            let _ = setpriority_process(Some(self.pid), SLOW_PRIORITY);
        }
    }
}

/// The time after which compiling a form counts as slow. Chosen: three times the time of agents' forms.
const SLOW: Duration = Duration::from_millis(15);

/// Priority (nice value) of slow copies; nothing raises it again.
const SLOW_PRIORITY: i32 = 10;
