//! `toolyard parked`: calls that used up their attempts, why they did, and what becomes of them.

use proto::v1;

use crate::client::Client;
use crate::exit::{Exit, Failure};
use crate::json;
use crate::runs::show;
use crate::terminal::{Paint, Terminal};
use crate::words::{brief, error, harmless};

const SHOW_EXAMPLE: &str = "\
Example:
  toolyard parked show run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0";

const REDRIVE_EXAMPLES: &str = "\
Examples:
  toolyard parked redrive run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0

The call is executed once more, with the same arguments, as the only call of a
new run. The old one keeps its outcome. Redriving twice gives the same run.";

const DROP_EXAMPLES: &str = "\
Examples:
  toolyard parked drop run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0

The call keeps its outcome and is listed as parked no more.";

/// See calls that used up their attempts, ask for them once more, or put them aside
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show a parked call: its arguments, its attempts, and why each failed
    #[command(after_help = SHOW_EXAMPLE)]
    Show(Which),
    /// Ask for a parked call once more
    #[command(after_help = REDRIVE_EXAMPLES)]
    Redrive(Which),
    /// Put a parked call aside for good
    #[command(after_help = DROP_EXAMPLES)]
    Drop(Which),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// The run's id
    run: String,
    /// The call's id
    call: String,
}

pub(crate) async fn run(command: Command, url: &str, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = Client::connect(url).await?;
    match command {
        Command::Show(Which { run, call }) => {
            let explained = client.explain(&run, &call).await?;
            if terminal.is_json() {
                terminal.object(&json::explained(&explained))?;
            } else {
                terminal.write(described(&explained, terminal.paint()).as_bytes())?;
            }
        }
        Command::Redrive(Which { run, call }) => show(&client.redrive(&run, &call).await?, terminal)?,
        Command::Drop(Which { run, call }) => show(&client.drop_call(&run, &call).await?, terminal)?,
    }
    Ok(Exit::Completed)
}

fn described(explained: &v1::ExplainCallResponse, paint: Paint) -> String {
    let call = explained.call.clone().unwrap_or_default();
    let who = format!("{} · {}", harmless(&call.tool), harmless(&call.call_id));
    let mut text = format!("{}\n{}\n", paint.bold(&who), harmless(&explained.why));
    text.push_str(&format!("{} {}\n", paint.dim("arguments"), brief(&harmless(&call.arguments))));
    for failed in &call.failed_attempts {
        let why = failed.error.as_ref().map(error).unwrap_or_default();
        let time = failed.time.map(|time| time.to_string()).unwrap_or_default();
        text.push_str(&format!(
            "{} {} {}\n",
            paint.dim(&time),
            paint.bad(&format!("attempt {}", failed.attempt)),
            brief(&why)
        ));
    }
    text
}
