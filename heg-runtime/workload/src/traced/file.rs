//! A trace that is written during a run, on a separate thread, so that a scheduler waits for no file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

use heg_sched::{Action, ActivationCounts, Event, Hold, Micros, Observer, RequestId};
use serde_json::Value;

use super::json::{entries, left_out, preamble};
use super::read::BYTES_MAX;
use super::{TraceEvent, TraceRecorder};
use crate::mechanisms::MechanismUse;

/// A file with the events of an engine or a simulator, written as they happen.
///
/// It is a JSON array, which its readers accept without its end: a killed process leaves a valid trace. Events that
/// cannot be written are left out, and end the trace, as does its maximum size.
pub struct TraceFile {
    recorder: TraceRecorder,
    pages: Pages,
    now: Micros,
    counts: ActivationCounts,
}

/// The treatment of an event while the queue of the writer is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhenFull {
    /// The run waits for the writer.
    Wait,
    /// The event is left out, and counted.
    LeaveOut,
}

/// The connection to the writer.
struct Pages {
    /// The queue of the writer; `None` after the end of the trace.
    queue: Option<SyncSender<TraceEvent>>,
    when_full: WhenFull,
    /// Number of events that the file lacks because the writer was behind.
    left_out: u64,
    /// The writer's thread, which returns the file at the end of the queue.
    writer: Option<JoinHandle<Option<Paper>>>,
}

impl TraceFile {
    /// Creates a trace of a simulated run in a new file, replacing an existing one. The run waits if the file is slow.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::start(File::create(path)?, WhenFull::Wait, BYTES_MAX)
    }

    /// Creates a trace of an engine in an empty file. Events for which the writer has no time are left out and counted
    /// in the file.
    pub fn live(file: File) -> io::Result<Self> {
        Self::start(file, WhenFull::LeaveOut, BYTES_MAX)
    }

    fn start(file: File, when_full: WhenFull, bytes_max: u64) -> io::Result<Self> {
        let paper = Paper::begin(file, bytes_max)?;
        let (queue, events) = sync_channel(QUEUED_MAX);
        let writer = thread::Builder::new()
            .name("trace".to_owned())
            .spawn(move || write_all(&events, paper))?;
        Ok(Self {
            recorder: TraceRecorder::default(),
            pages: Pages {
                queue: Some(queue),
                when_full,
                left_out: 0,
                writer: Some(writer),
            },
            now: Micros(0),
            counts: ActivationCounts::default(),
        })
    }
}

/// Maximum number of events that wait for the writer. Chosen: some megabytes, and seconds of a busy engine.
const QUEUED_MAX: usize = 1 << 15;

impl Pages {
    fn write(&mut self, event: TraceEvent) {
        let Some(queue) = &self.queue else { return };
        let sent = match self.when_full {
            WhenFull::Wait => queue.send(event).map_err(|_| WriterGone),
            WhenFull::LeaveOut => match queue.try_send(event) {
                Err(TrySendError::Full(_)) => {
                    self.left_out += 1;
                    Ok(())
                }
                Err(TrySendError::Disconnected(_)) => Err(WriterGone),
                Ok(()) => Ok(()),
            },
        };
        if let Err(WriterGone) = sent {
            self.queue = None;
        }
    }

    /// Ends the queue, and waits for the file.
    fn close(&mut self, now: Micros) {
        self.queue = None;
        let written = self.writer.take().and_then(|writer| writer.join().ok());
        // Nobody is left to hear of a failure, and readers do without the end.
        if let Some(paper) = written.flatten() {
            let _ = paper.end(self.left_out, now);
        }
    }
}

/// The trace has ended by itself: it could not be written, or reached its maximum size.
struct WriterGone;

/// Writes events until there are no more; returns the file unless the trace ended before.
fn write_all(events: &Receiver<TraceEvent>, mut paper: Paper) -> Option<Paper> {
    for event in events {
        for entry in entries(&event) {
            paper.add(&entry).ok()?;
        }
    }
    Some(paper)
}

/// A file with a maximum size.
struct Paper {
    file: BufWriter<File>,
    left_bytes: u64,
}

impl Paper {
    fn begin(file: File, bytes_max: u64) -> io::Result<Self> {
        let mut paper = Self {
            file: BufWriter::new(file),
            left_bytes: bytes_max.saturating_sub(END_BYTES),
        };
        for (place, event) in preamble().iter().enumerate() {
            let before = if place == 0 { "[" } else { "," };
            paper.write(&format!("{before}{event}\n"))?;
        }
        Ok(paper)
    }

    fn add(&mut self, entry: &Value) -> io::Result<()> {
        self.write(&format!(",{entry}\n"))
    }

    fn write(&mut self, line: &str) -> io::Result<()> {
        let left = self.left_bytes.checked_sub(line.len() as u64);
        self.left_bytes = left.ok_or(io::ErrorKind::FileTooLarge)?;
        self.file.write_all(line.as_bytes())
    }

    /// Writes the number of missing events, and ends the array.
    fn end(mut self, events: u64, now: Micros) -> io::Result<()> {
        if events > 0 {
            let entry = left_out(events, now);
            writeln!(self.file, ",{entry}")?;
        }
        self.file.write_all(b"]\n")?;
        self.file.flush()
    }
}

/// Number of bytes reserved for the end of a trace.
const END_BYTES: u64 = 1024;

impl Observer for TraceFile {
    fn stepped(&mut self, now: Micros, event: &Event, actions: &[Action]) {
        self.now = now;
        let pages = &mut self.pages;
        let write = |event| pages.write(event);
        self.recorder.stepped(now, event, actions, write);
    }

    fn baked(&mut self, request: RequestId) {
        self.recorder.baked(request);
    }

    fn asks_why(&self) -> bool {
        true
    }

    fn held(&mut self, now: Micros, holds: &[Hold]) {
        let pages = &mut self.pages;
        self.recorder.held(now, holds, |event| pages.write(event));
    }

    fn counted(&mut self, counts: &ActivationCounts) {
        self.counts = *counts;
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        let pages = &mut self.pages;
        self.recorder.close(self.now, |event| pages.write(event));
        let used = MechanismUse::from(&self.counts);
        if !used.steps.is_empty() {
            pages.write(TraceEvent::Mechanisms(used, self.now));
        }
        pages.close(self.now);
    }
}

#[cfg(test)]
mod tests {
    use heg_sched::{
        Class, ClientId, Finish, HoldReason, Lane, LayerKernel, PromptLogits, PromptWindow,
        RequestId, Segment, Submission, Ticket, WarmKernel, Work,
    };

    use super::super::{RunTrace, TraceRecorder};
    use super::*;

    fn submit(id: u64, class: Class) -> Event {
        Event::Submit(Submission {
            id: RequestId(id),
            client: ClientId::default(),
            flow: None,
            class,
            prompt_tokens: 5,
            shared_tokens: 0,
            kept_tokens: 0,
            output_tokens_max: 1,
            deadline: None,
            prompt_logits: PromptLogits::LastRow,
        })
    }

    fn launch(lane: Lane, ticket: u64, work: Work) -> Action {
        let ticket = Ticket(ticket);
        Action::Launch { lane, ticket, work }
    }

    fn done(ticket: u64) -> Event {
        Event::Done {
            ticket: Ticket(ticket),
            layers: 0,
            ended: Vec::new(),
            given: Vec::new(),
        }
    }

    /// Plays a run with some of everything that a trace can record.
    fn play(observer: &mut impl Observer) {
        let (first, second) = (RequestId(3), RequestId(4));
        let kernel = WarmKernel {
            tokens: 256,
            context: 512,
        };
        let prompt = Work::Prefill {
            request: first,
            segment: Segment {
                position: 0,
                tokens: 5,
            },
            layer: 1,
            kernel: LayerKernel::Ffn,
        };
        let holds = |why| {
            [Hold {
                request: second,
                why,
            }]
        };
        let mut step = |now, event: Event, actions: &[Action], holds: &[Hold]| {
            observer.stepped(Micros(now), &event, actions);
            observer.held(Micros(now), holds);
        };
        let begins = launch(Lane::Npu, 0, prompt);
        step(
            10,
            submit(3, Class::Reactive),
            &[begins, Action::Warm(kernel)],
            &[],
        );
        let behind = holds(HoldReason::Prompt(first));
        step(12, submit(4, Class::Proactive), &[], &behind);
        step(
            20,
            done(0),
            &[launch(Lane::Igpu, 1, Work::Head(first))],
            &behind,
        );
        let actions = [
            Action::Emit(first),
            Action::Finish(first, Finish::Complete),
            launch(Lane::Npu, 2, Work::Head(second)),
        ];
        step(35, done(1), &actions, &[]);
        step(
            40,
            Event::Timer,
            &[Action::Reset(Lane::Npu)],
            &holds(HoldReason::Stopping),
        );
        step(
            50,
            Event::Ready(Lane::Npu),
            &[Action::Restart(second)],
            &holds(HoldReason::Memory),
        );
        step(60, Event::Warmed(kernel), &[], &holds(HoldReason::Memory));
    }

    #[test]
    fn a_trace_has_launches_requests_and_what_they_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let mut trace = TraceFile::create(&path).unwrap();
        play(&mut trace);
        drop(trace);
        let text = std::fs::read_to_string(&path).unwrap();
        insta::assert_snapshot!(text);
    }

    /// Keeps the events of a recorder.
    #[derive(Default)]
    struct Kept(TraceRecorder, RunTrace);

    impl Observer for Kept {
        fn stepped(&mut self, now: Micros, event: &Event, actions: &[Action]) {
            let trace = &mut self.1;
            self.0
                .stepped(now, event, actions, |event| trace.add(event));
        }

        fn held(&mut self, now: Micros, holds: &[Hold]) {
            let trace = &mut self.1;
            self.0.held(now, holds, |event| trace.add(event));
        }
    }

    #[test]
    fn what_was_written_is_read_as_it_was_recorded_also_without_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let mut trace = TraceFile::create(&path).unwrap();
        play(&mut trace);
        drop(trace);
        let mut kept = Kept::default();
        play(&mut kept);
        let Kept(mut recorder, mut expected) = kept;
        recorder.close(Micros(60), |event| expected.add(event));
        let text = std::fs::read(&path).unwrap();
        assert_eq!(RunTrace::read(text.as_slice()).unwrap(), expected);
        let killed = &text[..text.len() - 2];
        assert_eq!(RunTrace::read(killed).unwrap(), expected);
        let mut lines = killed.split(|byte| *byte == b'\n');
        let cut = lines.next_back().unwrap().len();
        let half = RunTrace::read(&killed[..killed.len() - cut - 20]).unwrap();
        assert_eq!(half.requests, expected.requests);
    }

    #[test]
    fn how_often_mechanisms_acted_is_read_again() {
        use heg_sched::Mechanism;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let mut trace = TraceFile::create(&path).unwrap();
        trace.stepped(Micros(1), &submit(1, Class::Reactive), &[]);
        let used = MechanismUse {
            steps: vec![
                (Mechanism::Preemption, [3, 1]),
                (Mechanism::Backfill, [0, 0]),
            ],
        };
        let event = TraceEvent::Mechanisms(used.clone(), Micros(9));
        trace.pages.write(event);
        drop(trace);
        let text = std::fs::read(&path).unwrap();
        let read = RunTrace::read(text.as_slice()).unwrap();
        assert_eq!(*read.mechanisms(), used);
    }

    #[test]
    fn a_launch_that_reads_a_state_of_the_bundle_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let mut read = Vec::new();
        for is_baked in [true, false] {
            let path = folder.path().join("trace.json");
            let mut trace = TraceFile::create(&path).unwrap();
            let Event::Submit(plain) = submit(3, Class::Reactive) else {
                unreachable!("it submits");
            };
            let submission = Submission {
                flow: Some(heg_sched::FlowId(9)),
                kept_tokens: 4,
                ..plain
            };
            if is_baked {
                trace.baked(submission.id);
            }
            let reserved = Action::Reserve {
                request: submission.id,
                tokens: 6,
                reused: 4,
                window: PromptWindow::WHOLE,
            };
            let begun = launch(Lane::Cpu, 0, Work::Head(submission.id));
            trace.stepped(Micros(1), &Event::Submit(submission), &[reserved, begun]);
            trace.stepped(Micros(5), &done(0), &[]);
            drop(trace);
            let text = std::fs::read(&path).unwrap();
            let launch = RunTrace::read(text.as_slice()).unwrap().launches.remove(0);
            read.push((launch.kept_tokens, launch.baked_tokens));
        }
        assert_eq!(read, [(4, 4), (4, 0)]);
    }

    /// A full pipe without a reader acts as a slow disk.
    #[cfg(unix)]
    #[test]
    fn a_run_goes_on_beside_a_file_that_is_not_written() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut trace = TraceFile::live(File::from(std::os::fd::OwnedFd::from(writer))).unwrap();
        let steps = 2 * QUEUED_MAX as u64;
        for id in 0..steps {
            trace.stepped(Micros(id), &submit(id, Class::Reactive), &[]);
        }
        // Without a bound the trace would hold them all; without its own thread the test would never get here.
        assert!(trace.pages.left_out > 0);
        let reading = thread::spawn(move || RunTrace::read(reader));
        let missing = trace.pages.left_out;
        drop(trace);
        let read = reading.join().unwrap().unwrap();
        assert!(missing < steps && !read.requests.is_empty());
        assert!((read.requests.len() as u64) < steps);
        assert!(read.left_out() >= missing);
    }

    #[test]
    fn a_trace_has_a_longest_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let file = File::create(&path).unwrap();
        let mut trace = TraceFile::start(file, WhenFull::Wait, 20_000).unwrap();
        for id in 0..1000 {
            trace.stepped(Micros(id), &submit(id, Class::Reactive), &[]);
        }
        drop(trace);
        let text = std::fs::read(&path).unwrap();
        assert!((15_000..=20_000).contains(&text.len()), "{}", text.len());
        assert!(!RunTrace::read(text.as_slice()).unwrap().requests.is_empty());
    }
}
