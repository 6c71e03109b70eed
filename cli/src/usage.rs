//! Usage errors, for people or, with `-o json`, for programs.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _};

use crate::args::Cli;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;
use crate::terminal::{Color, Output};

/// Prints the error, or the requested help.
pub(crate) fn report(error: clap::Error) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let output = wanted(&arguments).filter(|_| error.use_stderr() && !is_help(error.kind()));
    if let Some(output) = output {
        let failure = Failure::Usage(message(&error));
        Terminal::new(output, Color::Never).failure(&failure);
        return failure.exit().into();
    }
    if error.kind() == ErrorKind::MissingSubcommand {
        let mut root = Cli::command();
        root.build();
        // Failures are ignored: there is nowhere to report them.
        drop(write!(std::io::stderr(), "{}", command_of(&mut root, &arguments).render_help()));
        return ExitCode::from(Exit::Refused.code());
    }
    with_usage(error, &arguments).exit()
}

fn is_help(kind: ErrorKind) -> bool {
    kind == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
}

/// The error without its prefix, its usage line and its hint at `--help`.
fn message(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let lines =
        text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    lines.map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The error with the usage line of its command. The usage line that clap makes for an error lists every option that
/// has a value, so it calls an option required if its environment variable is set.
fn with_usage(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    if error.get(ContextKind::Usage).is_some() {
        let mut root = Cli::command();
        root.build();
        let usage = command_of(&mut root, arguments).render_usage();
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
    error
}

/// The subcommand that was typed: the deepest one that the arguments name in turn.
fn command_of<'a>(root: &'a mut Command, arguments: &[OsString]) -> &'a mut Command {
    let mut command = root;
    for argument in arguments {
        if command.find_subcommand(argument).is_some() {
            command = command.find_subcommand_mut(argument).expect("it was found");
        }
    }
    command
}

/// The form for programs that the arguments select, as far as arguments that do not parse show it.
fn wanted(arguments: &[OsString]) -> Option<Output> {
    let is_output = |argument: &OsString| argument == "-o" || argument == "--output";
    let selects = |name: &str| {
        let follows = arguments.windows(2).any(|pair| is_output(&pair[0]) && pair[1] == *name);
        let forms = ["-o", "-o=", "--output="].map(|option| format!("{option}{name}"));
        follows || arguments.iter().any(|argument| forms.iter().any(|form| argument == form.as_str()))
    };
    [("json", Output::Json), ("yaml", Output::Yaml)]
        .into_iter()
        .find_map(|(name, output)| selects(name).then_some(output))
}
