//! A trace that is written while a run goes on.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use heg_sched::{Action, Event, Hold, Micros, Observer};

use super::json::{entries, preamble};
use super::{TraceEvent, TraceRecorder};

/// A file with what an engine or a simulator does, as it happens.
///
/// It is a JSON array, which its readers take without the end too: a killed process leaves a trace of what was
/// written. What cannot be written is left out, and ends the trace.
pub struct TraceFile {
    recorder: TraceRecorder,
    pages: Pages,
    now: Micros,
}

struct Pages(Option<BufWriter<File>>);

impl TraceFile {
    /// A trace in a new file, in place of what was there.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        for (place, event) in preamble().iter().enumerate() {
            let before = if place == 0 { "[" } else { "," };
            writeln!(file, "{before}{event}")?;
        }
        Ok(Self {
            recorder: TraceRecorder::default(),
            pages: Pages(Some(file)),
            now: Micros(0),
        })
    }
}

impl Pages {
    fn write(&mut self, event: &TraceEvent) {
        for entry in entries(event) {
            let written = self.0.as_mut().map(|file| writeln!(file, ",{entry}"));
            if matches!(written, Some(Err(_))) {
                self.0 = None;
            }
        }
    }
}

impl Observer for TraceFile {
    fn stepped(&mut self, now: Micros, event: &Event, actions: &[Action]) {
        self.now = now;
        let pages = &mut self.pages;
        let write = |event| pages.write(&event);
        self.recorder.stepped(now, event, actions, write);
    }

    fn asks_why(&self) -> bool {
        true
    }

    fn held(&mut self, now: Micros, holds: &[Hold]) {
        let pages = &mut self.pages;
        self.recorder.held(now, holds, |event| pages.write(&event));
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        let pages = &mut self.pages;
        self.recorder.close(self.now, |event| pages.write(&event));
        if let Some(file) = &mut pages.0 {
            // Nobody is left to hear of a failure; readers do without the end.
            let _ = file.write_all(b"]\n").and_then(|()| file.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use heg_sched::{
        Class, Finish, HoldReason, Kernel, Lane, PromptLogits, RequestId, Segment, Submission,
        Ticket, WarmKernel, Work,
    };

    use super::super::{RunTrace, TraceRecorder};
    use super::*;

    fn submit(id: u64, class: Class) -> Event {
        Event::Submit(Submission {
            id: RequestId(id),
            flow: None,
            class,
            prompt_tokens: 5,
            shared_tokens: 0,
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

    /// Everything that a trace tells, a little of each.
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
            kernel: Kernel::Ffn,
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

    /// Keeps what a recorder tells.
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
}
