//! `toolyard why`: the reason why a call waits or ended.

use crate::exit::{Exit, Failure};
use crate::last::RunArg;
use crate::server::Server;
use crate::terminal::Terminal;
use crate::words::harmless;

const EXAMPLES: &str = "\
Examples:
  toolyard why run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0
  toolyard why run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0 -o json |
    jq .call.failed_attempts";

/// Explain in one line why a call waits, or why it ended
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The run's id, or `last`: the run that you created last
    run: RunArg,
    /// The call's id
    call: String,
}

pub(crate) async fn run(args: Args, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = door.connect().await?;
    let explained = client.explain(&args.run.id()?, &args.call).await?;
    if terminal.is_json() {
        terminal.message(&explained)?;
    } else {
        terminal.write(format!("{}\n", harmless(&explained.why)).as_bytes())?;
    }
    Ok(Exit::Completed)
}
