//! Messages over a socket: a length of four bytes, and that many bytes.
//!
//! Both ends have limits: a length above the reader's limit is an error, and nothing is allocated for a message before
//! it has arrived. In place of a length, [`ENDED`] announces the keeper's report of how a process ended.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use heg_text::{FrameLink, Silence};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

/// An end of a socket that carries messages.
#[derive(Debug)]
pub(crate) struct Frames {
    socket: UnixStream,
    /// Maximum length of a message that is received.
    bytes_max: usize,
}

impl Frames {
    pub(crate) fn new(socket: UnixStream, bytes_max: usize) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, bytes_max })
    }

    /// Returns what ends the process at the other end.
    pub(crate) fn collar(&self) -> io::Result<Collar> {
        self.socket.try_clone().map(Collar)
    }

    /// Sets the maximum length of a message that is received.
    pub(crate) fn receive_at_most(&mut self, bytes: usize) {
        self.bytes_max = bytes;
    }

    pub(crate) fn into_socket(self) -> UnixStream {
        self.socket
    }

    /// Returns whether the other end is open and has sent nothing.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut ready = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
        let now = timespec(Duration::ZERO);
        poll(&mut ready, Some(&now)).is_ok_and(|count| count == 0)
    }

    /// Sends a message before `until`.
    pub(crate) fn send_until(
        &mut self,
        message: &[u8],
        until: Option<Instant>,
    ) -> Result<(), Silence> {
        let length = u32::try_from(message.len()).map_err(|_| Silence::Gone)?;
        // A single write wakes the reader only once.
        let mut bytes = Vec::with_capacity(message.len() + 4);
        bytes.extend(length.to_le_bytes());
        bytes.extend(message);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match self.socket.write(rest) {
                Ok(0) => return Err(Silence::Gone),
                Ok(sent) => rest = &rest[sent..],
                Err(error) => self.wait(&error, PollFlags::OUT, until)?,
            }
        }
        Ok(())
    }

    /// Receives the next message, if it arrives before `until`.
    pub(crate) fn receive_until(&mut self, until: Option<Instant>) -> Result<Vec<u8>, Silence> {
        let length = u32::from_le_bytes(self.four_bytes(until)?);
        if length == ENDED {
            return Err(self.ended(until));
        }
        let length = length as usize;
        if length > self.bytes_max {
            return Err(Silence::Gone);
        }
        let mut message = Vec::new();
        while message.len() < length {
            let from = message.len();
            message.resize(length.min(from + PIECE_BYTES), 0);
            self.fill(&mut message[from..], until)?;
        }
        Ok(message)
    }

    fn ended(&mut self, until: Option<Instant>) -> Silence {
        match self.four_bytes(until).map(i32::from_le_bytes) {
            // Any other signal came from outside, for no fault of the process.
            Ok(signal) => limit(signal).map_or(Silence::Gone, |why| Silence::Ended { why }),
            Err(silence) => silence,
        }
    }

    fn four_bytes(&mut self, until: Option<Instant>) -> Result<[u8; 4], Silence> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes, until)?;
        Ok(bytes)
    }

    fn fill(&mut self, mut room: &mut [u8], until: Option<Instant>) -> Result<(), Silence> {
        while !room.is_empty() {
            match self.socket.read(room) {
                Ok(0) => return Err(Silence::Gone),
                Ok(count) => room = &mut room[count..],
                Err(error) => self.wait(&error, PollFlags::IN, until)?,
            }
        }
        Ok(())
    }

    /// Waits until the socket is ready again.
    fn wait(
        &self,
        error: &io::Error,
        flags: PollFlags,
        until: Option<Instant>,
    ) -> Result<(), Silence> {
        match error.kind() {
            io::ErrorKind::Interrupted => return Ok(()),
            io::ErrorKind::WouldBlock => {}
            _ => return Err(Silence::Gone),
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(Silence::Late);
        }
        let time = left.map(timespec);
        let mut ready = [PollFd::from_borrowed_fd(self.socket.as_fd(), flags)];
        match poll(&mut ready, time.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(_) => Err(Silence::Gone),
        }
    }
}

/// Ends the process at the other end of a socket.
#[derive(Debug)]
pub(crate) struct Collar(UnixStream);

impl Collar {
    pub(crate) fn end(&self) {
        // The keeper notices it, and kills the process.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl FrameLink for Frames {
    fn send(&mut self, message: &[u8]) -> Result<(), Silence> {
        self.send_until(message, Some(Instant::now() + SEND_MAX))
    }

    fn receive(&mut self, wait: Option<Duration>) -> Result<Vec<u8>, Silence> {
        self.receive_until(wait.map(|wait| Instant::now() + wait))
    }
}

/// Converts a time to the system's type.
pub(crate) fn timespec(time: Duration) -> Timespec {
    // Longer than any wait here; the largest value that the system takes.
    Timespec::try_from(time).unwrap_or(Timespec {
        tv_sec: i64::from(i32::MAX),
        tv_nsec: 0,
    })
}

/// Tells the other end of a process's socket that a signal ended the process.
pub(crate) fn tell_end(mut socket: &UnixStream, signal: i32) {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&ENDED.to_le_bytes());
    bytes[4..].copy_from_slice(&signal.to_le_bytes());
    // A reader that misses it sees the end of the socket.
    let _ = socket.write(&bytes);
}

/// Returns the limit that a signal stands for; `None` for other signals.
fn limit(signal: i32) -> Option<&'static str> {
    if signal == Signal::XCPU.as_raw() {
        Some("it takes too much of the processor's time")
    } else if signal == Signal::ABORT.as_raw() {
        // Rust aborts for both.
        Some("it takes too much memory or nests too deeply")
    } else if signal == Signal::SEGV.as_raw() || signal == Signal::BUS.as_raw() {
        Some("it nests too deeply")
    } else {
        None
    }
}

/// The value in place of a length that says that the process has ended.
const ENDED: u32 = u32::MAX;

/// Number of bytes for which room is made at once.
const PIECE_BYTES: usize = 1 << 20;

/// The longest wait for a message to be accepted. Chosen: messages of answers fit into the socket's buffer.
const SEND_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair(bytes_max: usize) -> (Frames, Frames) {
        let (one, other) = UnixStream::pair().unwrap();
        (
            Frames::new(one, bytes_max).unwrap(),
            Frames::new(other, bytes_max).unwrap(),
        )
    }

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(60))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn messages_arrive_as_they_were_sent(lengths in proptest::collection::vec(0_usize..300_000, 1..4)) {
            let (mut one, mut other) = pair(300_000);
            let messages: Vec<Vec<u8>> = lengths.iter().map(|length| (0..*length).map(|at| at as u8).collect()).collect();
            let expected = messages.clone();
            let sender = std::thread::spawn(move || {
                messages.iter().for_each(|message| one.send_until(message, soon()).unwrap());
            });
            for message in expected {
                prop_assert_eq!(other.receive_until(soon()).unwrap(), message);
            }
            sender.join().unwrap();
            prop_assert_eq!(other.receive_until(soon()), Err(Silence::Gone));
        }

        /// A length above the limit is refused before anything is allocated for it.
        #[test]
        fn any_bytes_are_a_message_or_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let (one, mut other) = pair(16);
            let mut socket = one.into_socket();
            socket.write_all(&bytes).unwrap();
            drop(socket);
            while let Ok(message) = other.receive_until(soon()) {
                prop_assert!(message.len() <= 16);
            }
        }
    }

    #[test]
    fn waits_end() {
        let (mut one, mut other) = pair(16);
        let past = Some(Instant::now());
        assert_eq!(other.receive_until(past), Err(Silence::Late));
        one.send_until(b"now", soon()).unwrap();
        assert_eq!(other.receive_until(soon()).unwrap(), b"now");
        // Nobody reads, so the socket's buffer fills.
        let large = vec![0; 64 << 20];
        let brief = Some(Instant::now() + Duration::from_millis(50));
        assert_eq!(one.send_until(&large, brief), Err(Silence::Late));
    }

    #[test]
    fn an_end_has_a_reason() {
        for (signal, why) in [
            (6, "too much memory"),
            (11, "too deeply"),
            (24, "processor"),
        ] {
            let (one, mut other) = pair(16);
            tell_end(&one.socket, signal);
            let Err(Silence::Ended { why: found }) = other.receive_until(soon()) else {
                panic!("no reason")
            };
            assert!(found.contains(why), "{found}");
        }
        let (one, mut other) = pair(16);
        tell_end(&one.socket, 9);
        assert_eq!(other.receive_until(soon()), Err(Silence::Gone));
    }
}
