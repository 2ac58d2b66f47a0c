//! Reads arbitrary text as a line between the compiler and its worker: an accepted line is written back with the same
//! meaning.

#![no_main]

use heg_openvino::precompile::{Answer, Job};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &str| {
    if let Some(job) = Job::parse(line) {
        assert_eq!(Job::parse(&job.to_string()), Some(job));
    }
    if let Some(answer) = Answer::parse(line) {
        assert_eq!(Answer::parse(&answer.to_string()), Some(answer));
    }
});
