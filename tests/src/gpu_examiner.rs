//! The process that examines a GPU for the tests.

use std::process::ExitCode;

use heg_runtime::exec::{chain, examine};

fn main() -> ExitCode {
    let question = std::env::args_os().next_back().unwrap_or_default();
    match examine(&question) {
        Ok(found) => {
            println!("{found}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}", chain(&error));
            ExitCode::FAILURE
        }
    }
}
