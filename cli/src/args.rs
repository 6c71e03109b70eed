//! What can be typed: the commands, and what all of them share. Each command's own arguments stand beside the command.

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::door::Door;
use crate::{
    call, calls, demo, dev, doctor, inbox, index, json, key, nats_config, objects, parked, pause, queues, runs, serve,
    submit, tools, webhooks, why, workers,
};

const EXAMPLES: &str = "\
Examples:
  toolyard demo                                  See it work, in one command
  toolyard dev                                   A broker, a coordinator and a worker, until Ctrl-C
  toolyard tools ls                              What can be called
  toolyard call bash command='ls | head -3'      Call a tool and see its output as it comes
  toolyard call bash -o json command=ls | jq .   The same, an event a line

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
    pub(crate) door: Door,
    /// For people, or one JSON object a line for programs (`toolyard --help` describes them)
    #[arg(short, long, value_enum, default_value_t, global = true)]
    pub(crate) output: Output,
    /// When to colour; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, default_value_t, global = true, value_name = "WHEN")]
    pub(crate) color: Color,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Output {
    #[default]
    Human,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(demo::Args),
    Dev(dev::Args),
    Call(call::Args),
    #[command(subcommand)]
    Tools(tools::Command),
    #[command(subcommand)]
    Runs(runs::Command),
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
    NatsConfig(nats_config::Args),
    Queues(queues::Args),
    Coordinator(serve::CoordinatorArgs),
    Worker(serve::WorkerArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }
}
