//! `toolyard runs watch` and `messages`: the output of a run for people and programs, and its results for a model.

use std::time::Duration;

use formats::turns::Form;
use proto::v1;

use crate::children::ShowArgs;
use crate::exit::{Exit, Failure};
use crate::follow::{Show, View};
use crate::json;
use crate::last::RunArg;
use crate::list::span;
use crate::tally::Tally;
use crate::terminal::Terminal;
use client::{Client, Nested};

const WATCH_EXAMPLES: &str = "\
Examples:
  toolyard runs watch run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f
  toolyard runs watch run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f \\
    --after 41 -o json
  toolyard runs watch run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f \\
    --children -o json

The runs that its calls make, as agents do, are shown below these calls, with
the output of each in its order. Ctrl-C stops reading, and the run goes on. The
exit code tells how the run ended: 0 completed, 3 cancelled, 4 expired.";

/// Read a run's ordered output, from its beginning, until the run ends
#[derive(Debug, clap::Args)]
#[command(after_help = WATCH_EXAMPLES, after_long_help = format!("{WATCH_EXAMPLES}\n\n{}", json::HELP))]
pub(crate) struct Watch {
    /// The run's id, the beginning or the end of it, or `last`: the run that you created last
    run: RunArg,
    /// Begin after this sequence number, or in a run below after that of RUN=SEQUENCE. Numbers belong to a floor policy
    #[arg(long, value_name = "[RUN=]SEQUENCE", value_parser = after)]
    after: Vec<After>,
    /// Which call has the floor if several have output
    #[arg(long, value_enum, default_value_t)]
    floor: Floor,
    #[command(flatten)]
    shown: ShowArgs,
}

/// Up to which event the output of a run is known.
#[derive(Debug, Clone)]
struct After {
    /// `None` for the run that is watched.
    run: Option<String>,
    sequence: u64,
}

fn after(text: &str) -> Result<After, String> {
    let (run, number) = match text.split_once('=') {
        Some((run, number)) => (Some(run.to_owned()), number),
        None => (None, text),
    };
    let sequence = number.parse().map_err(|_| format!("{number:?} is no sequence number: write it as 41"))?;
    Ok(After { run, sequence })
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Floor {
    /// One call at a time; next is the call with the oldest pending output
    #[default]
    Arrival,
    /// One call at a time, in the order of submission
    Submission,
    /// Output as it is stored, each piece with its call
    Interleaved,
}

impl Watch {
    pub(super) async fn run(self, client: &Client, terminal: &Terminal) -> Result<Exit, Failure> {
        let Self { run, after, floor, shown } = self;
        let run = run.id(client).await?;
        let floor = match floor {
            Floor::Arrival => v1::FloorPolicy::Arrival,
            Floor::Submission => v1::FloorPolicy::Submission,
            Floor::Interleaved => v1::FloorPolicy::Interleaved,
        };
        let view = View::of_run(terminal, true);
        let mut show = Show::new(terminal, view, shown);
        let own = after.iter().find(|after| after.run.as_ref().is_none_or(|of| *of == run));
        // Older events name the runs below.
        let from = own.map(|after| after.sequence).filter(|_| !show.has_children());
        let mut watch = show.follow(client, client.watch(&run, from, floor).await?);
        for After { run: of, sequence } in after {
            watch = watch.after(of.unwrap_or_else(|| run.clone()), sequence);
        }
        let mut tally = Tally::of_run(run);
        while let Some(next) = watch.next().await? {
            match next {
                Nested::Events(place, events) if place.depth > 0 => {
                    events.iter().try_for_each(|event| show.below(&place, event, &tally))?;
                }
                Nested::Events(_, events) => events.iter().try_for_each(|event| {
                    tally.note(event);
                    show.event(event, &tally)
                })?,
                Nested::Unreadable(place, error) => show.unreadable(&place, error),
            }
        }
        Ok(exit_of(tally.status))
    }
}

fn exit_of(status: Option<v1::RunStatus>) -> Exit {
    match status {
        Some(v1::RunStatus::Cancelled) => Exit::Cancelled,
        Some(v1::RunStatus::Expired) => Exit::Expired,
        Some(v1::RunStatus::Failed) => Exit::Failed,
        Some(
            v1::RunStatus::Completed
            | v1::RunStatus::Unspecified
            | v1::RunStatus::InProgress
            | v1::RunStatus::RequiresAction,
        )
        // The run had ended before the event after which it was read.
        | None => Exit::Completed,
    }
}

const MESSAGES_EXAMPLES: &str = "\
Examples:
  toolyard runs messages run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f \\
    --format anthropic
  toolyard runs messages run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f \\
    --format openai-chat --wait 30s | jq .messages

It prints one JSON object, which docs/openapi.json describes: messages, complete,
open_calls, status and others.";

/// Print the results of a run's calls as messages for a model, in the form of its API
#[derive(Debug, clap::Args)]
#[command(after_help = MESSAGES_EXAMPLES)]
pub(crate) struct Messages {
    /// The run's id, the beginning or the end of it, or `last`: the run that you created last
    run: RunArg,
    /// The form of the messages; openai is that of Responses
    #[arg(long, value_name = "FORM", value_parser = forms())]
    format: String,
    /// How long to wait for calls that have not ended, as 30s
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "0s", hide_default_value = true)]
    wait: Duration,
}

fn forms() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(Form::ALL.map(Form::as_str).into_iter().chain(["openai"]))
}

impl Messages {
    pub(super) async fn run(self, client: &Client, terminal: &Terminal) -> Result<Exit, Failure> {
        let Self { run, format, wait } = self;
        terminal.json(&client.messages(&run.id(client).await?, &format, wait).await?)?;
        Ok(Exit::Completed)
    }
}
