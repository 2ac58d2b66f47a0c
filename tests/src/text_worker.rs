//! The process that makes prompts and compiles forms for the servers of the tests.

fn main() -> std::process::ExitCode {
    heg_confine::work()
}
