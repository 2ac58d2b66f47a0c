//! Reads arbitrary text as a line between the compiler and its worker: an accepted line is written back with the same
//! meaning.

use heg_openvino::precompile::{Answer, Job};

pub(crate) fn run(input: &[u8]) {
    let Ok(line) = std::str::from_utf8(input) else {
        return;
    };
    if let Some(job) = Job::parse(line) {
        assert_eq!(Job::parse(&job.to_string()), Some(job));
    }
    if let Some(answer) = Answer::parse(line) {
        assert_eq!(Answer::parse(&answer.to_string()), Some(answer));
    }
}
