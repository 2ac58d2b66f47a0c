//! `heg`: runs, inspects and verifies bundles (`heg_commands`).

use std::process::ExitCode;

fn main() -> ExitCode {
    heg_commands::main()
}
