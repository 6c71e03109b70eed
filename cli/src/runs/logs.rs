//! `toolyard runs logs`: what the calls of a run wrote, and nothing else.

use client::Client;
use proto::v1;
use proto::v1::call_output::Piece;
use proto::v1::run_event::Event;

use crate::exit::{Exit, Failure};
use crate::last::RunArg;
use crate::plain::Guards;
use crate::tail::Printer;
use crate::tally::Tally;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  toolyard runs logs last
  toolyard runs logs last --call call_1 > build.log
  toolyard runs logs 7c8d9e0f --prefix

What a call wrote goes to standard output, its `stderr` channel to standard
error. The result of a call that wrote nothing is its output. The command waits
until the run has ended; `toolyard runs watch` shows the rest of a run, too.";

/// Print what the calls of a run wrote, and nothing else, until the run ends
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Logs {
    /// The run's id, the beginning or the end of it, or `last`: the run that you created last
    run: RunArg,
    /// Only this call
    #[arg(long, value_name = "CALL")]
    call: Option<String>,
    /// Begin each line with its call
    #[arg(long)]
    prefix: bool,
}

impl Logs {
    pub(super) async fn run(self, client: &Client, terminal: &Terminal) -> Result<Exit, Failure> {
        let run_id = self.run.id(client).await?;
        let known = client.run(&run_id).await?;
        if let Some(call) = self.call.as_ref().filter(|call| !known.calls.iter().any(|it| it.call_id == **call)) {
            let ids: Vec<&str> = known.calls.iter().map(|call| call.call_id.as_str()).collect();
            return Err(Failure::Usage(format!("the run has no call {call:?}: it has {}", ids.join(", "))));
        }
        let mut watch = client.watch(&run_id, None, v1::FloorPolicy::Arrival).await?;
        let (mut tally, mut printer) = (Tally::of_run(run_id.clone()), Printer::new(terminal.paint()));
        let mut guards = Guards::default();
        while let Some(events) = watch.next().await? {
            for event in &events {
                tally.note(event);
                let of = event.event.as_ref().and_then(formats::openai::share::call_of);
                if self.call.as_deref().is_some_and(|call| of.is_some_and(|of| of != call)) {
                    continue;
                }
                if terminal.is_json() {
                    if matches!(event.event, Some(Event::CallOutput(_) | Event::CallEnded(_))) {
                        terminal.message(event)?;
                    }
                } else if self.prefix {
                    terminal.write(printer.print(&run_id, event).as_bytes())?;
                } else {
                    write(event, &tally, &mut guards, terminal)?;
                }
            }
        }
        Ok(Exit::Completed)
    }
}

fn write(event: &v1::RunEvent, tally: &Tally, guards: &mut Guards, terminal: &Terminal) -> Result<(), Failure> {
    match &event.event {
        Some(Event::CallOutput(output)) => match &output.piece {
            Some(Piece::Content(said)) if output.channel == "stderr" => {
                terminal.aside(&guards.beside(said, terminal.stderr_is_terminal()));
                Ok(())
            }
            Some(Piece::Content(said)) => terminal.write(&guards.output(said, terminal.stdout_is_terminal())),
            Some(Piece::Progress(_)) | None => Ok(()),
        },
        Some(Event::CallOutputWithdrawn(_)) => {
            terminal.note("the output above is void, it starts again");
            Ok(())
        }
        Some(Event::CallEnded(ended)) => {
            let said = tally.call(&ended.call_id).is_some_and(|(_, call)| call.said);
            let result = ended.outcome.iter().filter(|_| !said).flat_map(|outcome| &outcome.result);
            for content in result {
                let mut text = guards.output(content, terminal.stdout_is_terminal());
                if !text.ends_with(b"\n") {
                    text.push(b'\n');
                }
                terminal.write(&text)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
