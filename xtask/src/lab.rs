//! The laboratory's commands. They are in a separate program, `heg-lab`, because they need dependencies that nothing
//! else here needs: the simulator, workloads and charts. This file builds that program and passes it the arguments.

use anyhow::Result;
use clap::{Arg, ArgMatches};
use std::ffi::OsString;
use std::process::{Command, ExitCode};
use xtask::laboratory::{LAB_COMMANDS, LabCommand};
use xtask::workspace;

/// Adds the laboratory's commands to `front_door`, leaving their arguments alone, `--help` included.
pub(crate) fn add_commands(front_door: clap::Command) -> clap::Command {
    let commands = LAB_COMMANDS.iter().map(|command| {
        let arguments = Arg::new(ARGUMENTS)
            .value_name("ARGS")
            .num_args(0..)
            .trailing_var_arg(true)
            .allow_hyphen_values(true)
            .value_parser(clap::value_parser!(OsString));
        clap::Command::new(command.name)
            .about(command.about)
            .disable_help_flag(true)
            .arg(arguments)
    });
    front_door.subcommands(commands)
}

/// The laboratory's command that was called, with its arguments, if any.
pub(crate) fn called(matches: &ArgMatches) -> Option<(LabCommand, Vec<OsString>)> {
    let (name, matches) = matches.subcommand()?;
    let command = LAB_COMMANDS.iter().find(|command| command.name == name)?;
    let arguments = matches.get_many(ARGUMENTS).unwrap_or_default();
    Some((*command, arguments.cloned().collect()))
}

/// Runs `heg-lab COMMAND`, which prints its own errors. Returns its exit status.
pub(crate) fn run(command: LabCommand, arguments: &[OsString]) -> Result<ExitCode> {
    let program = workspace::build_lab(command.build)?;
    let mut lab = Command::new(program);
    lab.arg(command.name).args(arguments);
    let status = workspace::status(&mut lab)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Turns `help COMMAND` into `COMMAND --help`, so that the laboratory prints the help for its commands.
pub(crate) fn spell_out_help(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is_ours = |name: &OsString| LAB_COMMANDS.iter().any(|command| name == command.name);
    if arguments.len() == 3 && arguments[1] == "help" && is_ours(&arguments[2]) {
        arguments[1] = arguments[2].clone();
        arguments[2] = "--help".into();
    }
    arguments
}

const ARGUMENTS: &str = "arguments";
