//! The commands and their common arguments. Each command's own arguments are beside the command.

use clap::{Args, Parser, Subcommand};

use crate::server::Server;
use crate::terminal::{Color, Output};
use crate::{
    backup, call, calls, completions, context, demo, dev, doctor, inbox, index, json, key, log, model, nats_config,
    nats_keys, objects, open, parked, pause, plan, queues, runs, schedules, serve, submit, tail, tools, top, webhooks,
    why, workers,
};

const EXAMPLES: &str = "\
Examples:
  toolyard demo                                  See it work, in one command
  toolyard dev                                   Broker, coordinator and worker
  toolyard tools ls                              List the tools
  toolyard call bash command='ls | head -3'      Call a tool, see its output
  toolyard call bash -o json command=ls | jq .   The same, one event a line

Logs go to standard error; TOOLYARD_LOG chooses what is logged, as in
TOOLYARD_LOG=debug.";

/// Run the tool calls of AI agents on a fleet of machines
#[derive(Debug, Parser)]
#[command(name = "toolyard", version, max_term_width = 110)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", json::HELP))]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    #[command(flatten)]
    pub(crate) door: Server,
    /// The form of the output: for people, or for programs (`toolyard --help` describes the JSON)
    #[arg(short, long, value_enum, default_value_t, global = true)]
    pub(crate) output: Output,
    /// When to colour; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, default_value_t, global = true, value_name = "WHEN")]
    pub(crate) color: Color,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(demo::Args),
    Dev(dev::Args),
    Model(model::Args),
    Call(call::Args),
    Run(Box<runs::Create>),
    Top(top::Args),
    #[command(subcommand)]
    Tools(tools::Command),
    #[command(subcommand)]
    Runs(runs::Command),
    Tail(tail::Args),
    Open(open::Args),
    #[command(subcommand)]
    Schedules(schedules::Command),
    #[command(subcommand)]
    Calls(calls::Command),
    Inbox(inbox::Args),
    #[command(subcommand)]
    Index(index::Command),
    #[command(subcommand)]
    Key(key::Command),
    #[command(subcommand)]
    Pause(pause::Command),
    #[command(subcommand)]
    Resume(pause::Resume),
    #[command(subcommand)]
    Workers(workers::Command),
    #[command(subcommand)]
    Objects(objects::Command),
    Submit(submit::Args),
    Why(why::Args),
    #[command(subcommand)]
    Parked(parked::Command),
    #[command(subcommand)]
    Webhooks(webhooks::Command),
    Doctor(doctor::Args),
    Plan(plan::Args),
    NatsConfig(nats_config::Args),
    #[command(subcommand)]
    NatsKeys(nats_keys::Command),
    Queues(queues::Args),
    #[command(subcommand)]
    Log(log::Command),
    Backup(backup::Backup),
    Restore(backup::Restore),
    Coordinator(Box<serve::CoordinatorArgs>),
    Worker(Box<serve::WorkerArgs>),
    #[command(subcommand)]
    Context(context::Command),
    Completions(completions::Completions),
    Man(completions::Man),
}

#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    /// The commands in the examples of a command's help and its subcommands', each with its continuation lines joined.
    fn examples(command: &clap::Command) -> Vec<String> {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let joined = help.replace("\\\n    ", "").replace("|\n", "|");
        let lines =
            joined.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| line.starts_with("toolyard "));
        let own: Vec<String> = lines.map(str::to_owned).collect();
        own.into_iter().chain(command.get_subcommands().flat_map(examples)).collect()
    }

    /// The words of one command, without the commands behind a pipe. Enough of a shell for the examples.
    pub(super) fn words(example: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for letter in example.chars() {
            match (quote, letter) {
                (Some(open), letter) if letter == open => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(letter);
                    word.get_or_insert_default();
                }
                (None, '|' | '>' | '<') => break,
                (None, ' ') => words.extend(word.take()),
                (_, letter) => word.get_or_insert_default().push(letter),
            }
        }
        words.into_iter().chain(word).collect()
    }

    #[test]
    fn every_example_in_the_help_is_a_command_that_parses() {
        let examples = examples(&Cli::command());
        assert!(examples.len() > 50, "the examples were found: {}", examples.len());
        let wrong = examples.iter().filter_map(|example| {
            // Three spaces begin an explanation. A command in another command's place stands for its output.
            let command = example.split("   ").next().unwrap_or_default().replace("$(", "'").replace(')', "'");
            Some(format!("{example}: {}", Cli::try_parse_from(words(&command)).err()?))
        });
        let wrong: Vec<String> = wrong.collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn no_example_is_longer_than_the_eighty_columns_of_a_terminal() {
        fn too_long(command: &clap::Command) -> Vec<String> {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let own =
                help.lines().filter(|line| line.starts_with("  ") && line.chars().count() > 80).map(str::to_owned);
            own.chain(command.get_subcommands().flat_map(too_long)).collect()
        }
        let too_long = too_long(&Cli::command());
        assert!(too_long.is_empty(), "{too_long:#?}");
    }
}
