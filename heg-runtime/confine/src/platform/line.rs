//! Several conversations over one pair of pipes, for systems on which a process can neither be given another socket
//! nor wait for a pipe by the clock.
//!
//! One thread at each end reads the pipe, and gives each message to the conversation that it belongs to. A message is
//! the number of its conversation, a length of four bytes, and that many bytes; in place of a length, [`BEGIN`] and
//! [`END`] begin and end a conversation. As many messages as [`WAITING_MAX`] wait to be received: an end that sends
//! more has to wait itself.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use heg_text::Silence;

/// An end of a pair of pipes.
pub(crate) struct Line {
    output: Mutex<Box<dyn Write + Send>>,
    talks: Mutex<Talks>,
}

/// The conversations of a line.
#[derive(Default)]
struct Talks {
    open: HashMap<u32, SyncSender<Vec<u8>>>,
    /// The number of the next one.
    next: u32,
    /// Whether the other end is gone.
    is_over: bool,
}

/// An end of a conversation, which ends when it is dropped.
pub(crate) struct Talk {
    line: Arc<Line>,
    number: u32,
    messages: Receiver<Vec<u8>>,
}

impl Line {
    /// Creates an end that writes to `output`.
    pub(crate) fn new(output: impl Write + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            output: Mutex::new(Box::new(output)),
            talks: Mutex::default(),
        })
    }

    /// Begins a conversation. Only one of the two ends begins any.
    ///
    /// # Errors
    /// The other end is gone.
    pub(crate) fn begin(self: &Arc<Self>) -> io::Result<Talk> {
        let number = {
            let mut talks = self.talks();
            let number = talks.next;
            talks.next = number.wrapping_add(1);
            number
        };
        let talk = self.talk(number);
        self.write(number, BEGIN, &[])?;
        Ok(talk)
    }

    /// Reads the pipe until it ends, or has anything else than messages of at most `bytes_max` bytes. `begun` gets the
    /// conversations that the other end begins.
    pub(crate) fn listen(
        self: &Arc<Self>,
        mut input: impl Read,
        bytes_max: usize,
        mut begun: impl FnMut(Talk),
    ) {
        while let Ok((number, length)) = head(&mut input) {
            match length {
                BEGIN => begun(self.talk(number)),
                END => drop(self.talks().open.remove(&number)),
                _ => {
                    let Some(message) = body(&mut input, length as usize, bytes_max) else {
                        break;
                    };
                    let to = self.talks().open.get(&number).cloned();
                    // Nobody may wait for it any more.
                    let _ = to.map(|to| to.send(message));
                }
            }
        }
        let mut talks = self.talks();
        talks.is_over = true;
        talks.open.clear();
    }

    fn talk(self: &Arc<Self>, number: u32) -> Talk {
        let (sender, messages) = sync_channel(WAITING_MAX);
        let mut talks = self.talks();
        if !talks.is_over {
            talks.open.insert(number, sender);
        }
        Talk {
            line: Arc::clone(self),
            number,
            messages,
        }
    }

    fn write(&self, number: u32, length: u32, message: &[u8]) -> io::Result<()> {
        let head = [number.to_le_bytes(), length.to_le_bytes()];
        let bytes = [head.as_flattened(), message].concat();
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        output.write_all(&bytes)?;
        output.flush()
    }

    fn talks(&self) -> MutexGuard<'_, Talks> {
        self.talks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let open = self.talks().open.len();
        f.debug_struct("Line").field("open", &open).finish()
    }
}

impl Talk {
    /// Begins another conversation on the same line.
    ///
    /// # Errors
    /// The other end is gone.
    pub(crate) fn another(&self) -> io::Result<Self> {
        self.line.begin()
    }

    /// Returns whether the other end is there and has sent nothing.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self.messages.try_recv(), Err(TryRecvError::Empty))
    }

    /// Sends a message, and waits until the pipe has taken it. The other end always reads.
    ///
    /// # Errors
    /// `Gone`.
    pub(crate) fn send(&self, message: &[u8]) -> Result<(), Silence> {
        let length = u32::try_from(message.len()).ok();
        let length = length.filter(|length| *length < END);
        let written = length.map(|length| self.line.write(self.number, length, message));
        written.and_then(Result::ok).ok_or(Silence::Gone)
    }

    /// Receives the next message, if it arrives before `until`.
    ///
    /// # Errors
    /// `Late` or `Gone`.
    pub(crate) fn receive(&self, until: Option<Instant>) -> Result<Vec<u8>, Silence> {
        let Some(until) = until else {
            return self.messages.recv().map_err(|_| Silence::Gone);
        };
        let left = until.saturating_duration_since(Instant::now());
        let message = self.messages.recv_timeout(left);
        message.map_err(|error| match error {
            RecvTimeoutError::Timeout => Silence::Late,
            RecvTimeoutError::Disconnected => Silence::Gone,
        })
    }
}

impl std::fmt::Debug for Talk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Talk")
            .field("number", &self.number)
            .finish()
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.line.talks().open.remove(&self.number);
        // Another end that is gone need not be told.
        let _ = self.line.write(self.number, END, &[]);
    }
}

/// Reads the number of a conversation, and the length of its next message.
fn head(input: &mut impl Read) -> io::Result<(u32, u32)> {
    let mut head = [[0; 4]; 2];
    input.read_exact(head.as_flattened_mut())?;
    Ok((u32::from_le_bytes(head[0]), u32::from_le_bytes(head[1])))
}

/// Reads a message. Nothing is allocated for what has not arrived.
fn body(input: &mut impl Read, length: usize, bytes_max: usize) -> Option<Vec<u8>> {
    if length > bytes_max {
        return None;
    }
    let mut message = Vec::new();
    input.take(length as u64).read_to_end(&mut message).ok()?;
    (message.len() == length).then_some(message)
}

/// The value in place of a length that begins a conversation.
const BEGIN: u32 = u32::MAX;

/// The value in place of a length that ends a conversation: the smallest that is none.
const END: u32 = u32::MAX - 1;

/// Maximum number of messages of a conversation that wait to be received. Both ends speak in turns.
const WAITING_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const BYTES_MAX: usize = 300_000;

    /// Two ends, each with a thread that listens; and what the second one is told of.
    fn pair() -> (Arc<Line>, Receiver<Talk>) {
        let (near_input, far_output) = io::pipe().unwrap();
        let (far_input, near_output) = io::pipe().unwrap();
        let (near, far) = (Line::new(near_output), Line::new(far_output));
        let (begun, heard) = channel();
        let line = Arc::clone(&near);
        thread::spawn(move || line.listen(near_input, BYTES_MAX, drop));
        thread::spawn(move || far.listen(far_input, BYTES_MAX, |talk| drop(begun.send(talk))));
        (near, heard)
    }

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(60))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        #[test]
        fn each_conversation_gets_its_own_messages(lengths in proptest::collection::vec((0..3_usize, 0..BYTES_MAX), 1..9)) {
            let (line, heard) = pair();
            let near: Vec<Talk> = (0..3).map(|_| line.begin().unwrap()).collect();
            let far: Vec<Talk> = (0..3).map(|_| heard.recv().unwrap()).collect();
            let message = |talk: usize, length: usize| vec![talk as u8; length];
            let sent = lengths.clone();
            let sender = thread::spawn(move || {
                sent.iter().for_each(|(talk, length)| near[*talk].send(&message(*talk, *length)).unwrap());
                near
            });
            for (talk, length) in lengths {
                prop_assert_eq!(far[talk].receive(soon()).unwrap(), message(talk, length));
            }
            drop(sender.join().unwrap());
        }

        #[test]
        fn any_bytes_are_messages_or_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            Line::new(io::sink()).listen(bytes.as_slice(), 16, drop);
        }
    }

    #[test]
    fn a_conversation_ends_with_either_side_and_the_others_go_on() {
        let (line, heard) = pair();
        let near = line.begin().unwrap();
        let other = near.another().unwrap();
        let (far, other_far) = (heard.recv().unwrap(), heard.recv().unwrap());
        far.send(b"last").unwrap();
        drop(far);
        assert_eq!(near.receive(soon()).unwrap(), b"last");
        assert_eq!(near.receive(soon()), Err(Silence::Gone));
        drop(near);
        assert!(other.is_quiet());
        assert_eq!(other.receive(Some(Instant::now())), Err(Silence::Late));
        other_far.send(b"still here").unwrap();
        assert_eq!(other.receive(soon()).unwrap(), b"still here");
        drop(other);
        assert_eq!(other_far.receive(soon()), Err(Silence::Gone));
    }

    #[test]
    fn a_message_above_the_limit_ends_the_line() {
        let (line, heard) = pair();
        let (near, other) = (line.begin().unwrap(), line.begin().unwrap());
        let (far, other_far) = (heard.recv().unwrap(), heard.recv().unwrap());
        near.send(&vec![0; BYTES_MAX]).unwrap();
        assert_eq!(far.receive(soon()).unwrap().len(), BYTES_MAX);
        // The pipe may break before all of it was written.
        let _ = near.send(&vec![0; BYTES_MAX + 1]);
        assert_eq!(far.receive(soon()), Err(Silence::Gone));
        assert_eq!(other_far.receive(soon()), Err(Silence::Gone));
        drop(other);
    }
}
