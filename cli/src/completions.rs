//! `toolyard completions` and `toolyard man`: what shells and `man` want to know of the commands.

use std::path::PathBuf;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;
use crate::words::counted;

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  toolyard completions bash > /etc/bash_completion.d/toolyard
  toolyard completions zsh > ~/.zfunc/_toolyard
  toolyard completions fish > ~/.config/fish/completions/toolyard.fish

zsh needs ~/.zfunc in its fpath, before compinit. Write them again after an
update of the program.";

const MAN_EXAMPLES: &str = "\
Examples:
  toolyard man ~/.local/share/man/man1          Then: man toolyard-runs-watch
  sudo toolyard man /usr/local/share/man/man1

A page for each command; the folder is created if it is missing.";

/// Print the completions of commands and options for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the manual pages of all commands into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct Man {
    /// The folder, such as one that `manpath` lists, with /man1
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn completions(args: &Completions, terminal: &Terminal) -> Result<Exit, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "toolyard", &mut text);
    terminal.write(&text)?;
    Ok(Exit::Completed)
}

pub(crate) fn man(args: &Man, terminal: &Terminal) -> Result<Exit, Failure> {
    let folder = &args.folder;
    let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    written.map_err(|error| Failure::Usage(format!("cannot write manual pages into {}: {error}", folder.display())))?;
    terminal.note(&format!("{} in {}", counted(pages(&Cli::command()), "page"), folder.display()));
    Ok(Exit::Completed)
}

/// How many commands have a page: this one, and those below.
fn pages(command: &clap::Command) -> usize {
    1 + command.get_subcommands().filter(|below| !below.is_hide_set()).map(pages).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell, Shell::Elvish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "toolyard", &mut text);
            let text = String::from_utf8(text).expect("completions are text");
            for command in Cli::command().get_subcommands() {
                assert!(text.contains(command.get_name()), "{shell} does not know {}", command.get_name());
            }
        }
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let folder = tempfile::tempdir().expect("a folder");
        clap_mangen::generate_to(Cli::command(), folder.path()).expect("the pages can be written");
        let names: Vec<String> = std::fs::read_dir(folder.path())
            .expect("the folder can be read")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names.len(), pages(&Cli::command()), "{names:?}");
        assert!(
            ["toolyard.1", "toolyard-runs-watch.1", "toolyard-top.1"]
                .iter()
                .all(|name| names.iter().any(|it| it == name))
        );
    }
}
