//! `urxe man` and `urxe completion`: manual pages and completions, made from the command lines
//! themselves. Packages install them; who has copied the binary alone makes them where it is.

use crate::cli::Cli;
use crate::error::Error;
use crate::output;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use std::path::PathBuf;

const MAN_EXAMPLES: &str = "\
Examples:
  urxe man ~/.local/share/man/man1
      `man urxe-run` and the others, for this user.";

/// Write the manual pages of urxe, its commands and urxed into a directory.
#[derive(Args, Debug)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArguments {
    /// The directory. It is made if it is not there.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

const COMPLETION_EXAMPLES: &str = "\
Examples:
  urxe completion bash > ~/.local/share/bash-completion/completions/urxe
  urxe completion zsh > ~/.zfunc/_urxe
  urxe completion fish --program urxed > ~/.config/fish/completions/urxed.fish";

/// Print what makes a shell complete the arguments of urxe or urxed.
#[derive(Args, Debug)]
#[command(after_help = COMPLETION_EXAMPLES)]
pub(crate) struct CompletionArguments {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
    /// The program.
    #[arg(long, value_enum, default_value_t)]
    program: Program,
}

/// A program whose arguments are known here.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default)]
enum Program {
    #[default]
    Urxe,
    Urxed,
}

impl Program {
    fn command(self) -> Command {
        match self {
            Program::Urxe => Cli::command(),
            Program::Urxed => urxe_daemon::Arguments::command(),
        }
    }
}

/// Writes a page for each command.
pub(crate) fn write_pages(arguments: &ManArguments) -> Result<(), Error> {
    let directory = &arguments.directory;
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(directory)?;
        for program in [Program::Urxe, Program::Urxed] {
            clap_mangen::generate_to(program.command(), directory)?;
        }
        Ok(())
    };
    write().map_err(|error| Error::Failed(format!("{}: {error}", directory.display())))
}

/// Prints the script for a shell.
pub(crate) fn print_completion(arguments: &CompletionArguments) -> Result<(), Error> {
    let mut command = arguments.program.command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    output::text(String::from_utf8_lossy(&script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_page_and_hidden_ones_have_none() {
        let directory = tempfile::tempdir().unwrap();
        write_pages(&ManArguments { directory: directory.path().into() }).unwrap();
        let is_there = |name: &str| directory.path().join(name).exists();
        assert!(is_there("urxe.1") && is_there("urxed.1"));
        for command in Cli::command().get_subcommands() {
            let page = format!("urxe-{}.1", command.get_name());
            assert_eq!(is_there(&page), !command.is_hide_set(), "{page}");
        }
    }
}
