//! The worker as a program, for tests: other programs start themselves as the worker.

fn main() -> std::process::ExitCode {
    heg_confine::work()
}
