//! `toolyard runs create` and `append`: runs and calls from files.

use proto::v1;

use super::show;
use crate::call::{RunOptions, exit_of, left};
use crate::children::ShowArgs;
use crate::exit::{self, Exit, Failure};
use crate::files;
use crate::follow::{Answers, Follow, Show, View};
use crate::interrupts::Interrupts;
use crate::last::RunArg;
use crate::prompt::Keyboard;
use crate::terminal::Terminal;
use client::Client;

const CREATE_EXAMPLES: &str = "\
Examples:
  toolyard run -f run.json                      The same as runs create
  toolyard runs create -f run.json --detach --request-id nightly-17
  id=$(toolyard run -f run.json --detach -o name)
  toolyard runs create --open --detach          Calls are added later
  jq '{calls: .}' calls.json | toolyard runs create -f - -o json

FILE has a run as `POST /v1/runs` takes it, or the list of its calls. Arguments
and context may be JSON objects. Without --detach the output of the run is shown
until it ends, and Ctrl-C cancels it.";

/// Create a run of the calls in a file
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{CREATE_EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Create {
    /// The run as JSON; - is the standard input
    #[arg(long = "run", short = 'f', value_name = "FILE", required_unless_present = "open")]
    run: Option<String>,
    /// Leave the run open for `toolyard runs append`, until `toolyard runs close`
    #[arg(long)]
    open: bool,
    /// Show the run and return at once, without waiting for its end
    #[arg(long)]
    detach: bool,
    /// An id of your own: the same run under the same id is created once
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    #[command(flatten)]
    options: RunOptions,
    #[command(flatten)]
    shown: ShowArgs,
}

const APPEND_EXAMPLES: &str = "\
Examples:
  toolyard runs append run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f -f calls.json
  toolyard runs append run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f -f - --close

FILE has a list of calls, or an object with `calls`, `request_tools`, `files`
and `approve`. `toolyard runs watch` shows their output.";

/// Add the calls in a file to an open run
#[derive(Debug, clap::Args)]
#[command(after_help = APPEND_EXAMPLES)]
pub(crate) struct Append {
    /// The run's id, the beginning or the end of it, or `last`: the run that you created last
    run: RunArg,
    /// The calls as JSON; - is the standard input
    #[arg(long = "calls", short = 'f', value_name = "FILE")]
    file: String,
    /// Then close the run
    #[arg(long)]
    close: bool,
}

impl Create {
    pub(super) async fn run(self, client: &Client, terminal: &Terminal) -> Result<Exit, Failure> {
        let Self { run, open, detach, request_id, options, shown } = self;
        let mut run = run.map(|file| files::run(&file)).transpose()?.unwrap_or_default();
        run.keep_open |= open;
        run.request_id = request_id.unwrap_or(run.request_id);
        let run = options.give_to(run);
        let answers = if terminal.has_person() { Answers::Person(Keyboard::default()) } else { Answers::Elsewhere };
        let view = View::of_run(terminal, matches!(answers, Answers::Elsewhere));
        let mut interrupts = Interrupts::listen()?;
        let watch = client.execute(run).await?;
        if detach {
            return left(client, watch, terminal).await;
        }
        let show = Show::new(terminal, view, shown);
        let followed = Follow::new(client, show, answers).until_end(watch, &mut interrupts).await?;
        Ok(exit_of(&followed))
    }
}

impl Append {
    pub(super) async fn run(self, client: &Client, terminal: &Terminal) -> Result<Exit, Failure> {
        let Self { run: run_id, file, close } = self;
        let request = v1::AppendCallsRequest { run_id: run_id.id(client).await?, ..files::calls(&file)? };
        let mut run = client.append(request).await?;
        if close {
            run = client.close(&run.run_id).await?;
        }
        show(&run, terminal)?;
        Ok(Exit::Completed)
    }
}
