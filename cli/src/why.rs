//! `toolyard why`: the reason why a call waits or ended.

use crate::exit::{Exit, Failure};
use crate::last::RunArg;
use crate::server::Server;
use crate::terminal::Terminal;
use crate::words::harmless;
use client::Client;

const EXAMPLES: &str = "\
Examples:
  toolyard why run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0
  toolyard why last
  toolyard why run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0 -o json |
    jq .call.failed_attempts";

/// Explain in one line why a call waits, or why it ended
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The run's id, the beginning or the end of it, or `last`: the run that you created last
    run: RunArg,
    /// The call's id; it may be left out if the run has one call
    call: Option<String>,
}

pub(crate) async fn run(args: Args, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = door.connect().await?;
    let run = args.run.id(&client).await?;
    let call = only_call(&client, &run, args.call).await?;
    let explained = client.explain(&run, &call).await?;
    if terminal.is_json() {
        terminal.message(&explained)?;
    } else {
        terminal.write(format!("{}\n", harmless(&explained.why)).as_bytes())?;
    }
    Ok(Exit::Completed)
}

/// The call that is named, or the only one of the run.
pub(crate) async fn only_call(client: &Client, run_id: &str, named: Option<String>) -> Result<String, Failure> {
    if let Some(call) = named {
        return Ok(call);
    }
    let run = client.run(run_id).await?;
    let ids: Vec<&str> = run.calls.iter().map(|call| call.call_id.as_str()).collect();
    match ids.as_slice() {
        [id] => Ok((*id).to_owned()),
        [] => Err(Failure::Usage("the run has no call yet".to_owned())),
        several => {
            Err(Failure::Usage(format!("the run has several calls, name one: {}", harmless(&several.join(", ")))))
        }
    }
}
