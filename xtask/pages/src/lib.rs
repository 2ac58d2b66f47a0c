//! Completions and man pages of a command, made of its command line: `heg pages` and `hegc pages`, which `cargo xtask
//! dist` runs. They are made by the program that ships, so they cannot say what it does not do.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::{Shell, generate_to};

/// Writes `completions/…` of the command `name` for four shells, and `man/…`, a page for it and for each of its
/// subcommands, below `folder`.
///
/// # Errors
///
/// The errors of the file system.
pub fn write(name: &'static str, command: Command, folder: &Path) -> io::Result<()> {
    let (completions, man) = (folder.join("completions"), folder.join("man"));
    fs::create_dir_all(&completions)?;
    fs::create_dir_all(&man)?;
    // Completions would offer hidden commands; pages leave them out.
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    let mut shown = Command::new(name)
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments().cloned())
        .subcommands(shown.cloned());
    for shell in [Shell::Bash, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
        generate_to(shell, &mut shown, name, &completions)?;
    }
    // `help` of each command would have pages, too.
    let command = command.disable_help_subcommand(true);
    clap_mangen::generate_to(
        command.mut_subcommands(|it| it.disable_help_subcommand(true)),
        man,
    )
}
