//! Common arguments of commands that act on everything that matches: a dry run, and a confirmation.

use crate::exit::Failure;
use crate::terminal::Terminal;
use crate::words::harmless;

#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Bulk {
    /// Only show what the command would do
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    pub(crate) yes: bool,
}

/// Without a terminal, a program must confirm with `--yes` that it means everything.
pub(crate) fn needs_yes(what: &str) -> Failure {
    Failure::Usage(format!(
        "{what} needs a confirmation, and there is no terminal to ask on: give --yes, or --dry-run to look first"
    ))
}

/// Asks the user to type `expected`.
pub(crate) async fn confirm(question: &str, expected: &str, terminal: &Terminal) -> Result<(), Failure> {
    terminal.aside(&format!("{question} Type {} to confirm: ", harmless(expected)));
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    // Without a line there is no confirmation.
    let line = read.await.ok().and_then(Result::ok).unwrap_or_default();
    if line.trim() == expected { Ok(()) } else { Err(Failure::Usage("not confirmed: nothing was done".to_owned())) }
}
