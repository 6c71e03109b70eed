//! `toolyard submit`: answers a call that waits for its client.

use proto::v1;
use proto::v1::content::Body;

use crate::exit::{Exit, Failure};
use crate::last::RunArg;
use crate::runs::show;
use crate::server::Server;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  toolyard submit run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0 'The blue one'
  toolyard submit run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0 \\
    --json '{\"approved\": true}'
  toolyard submit run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0 \\
    --error 'The user has left'

The same answer twice does no harm; a different one is refused.";

/// Answer a call that waits for its client
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(override_usage = "toolyard submit [OPTIONS] <RUN> <CALL> <TEXT|--json <VALUE>|--error <TEXT>>")]
pub(crate) struct Args {
    /// The run's id, the beginning or the end of it, or `last`: the run that you created last
    run: RunArg,
    /// The call's id
    call: String,
    #[command(flatten)]
    answer: Answer,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Answer {
    /// The answer, as text
    text: Option<String>,
    /// The answer, as JSON
    #[arg(long, value_name = "VALUE")]
    json: Option<String>,
    /// Why there is no answer, for the model
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
}

pub(crate) async fn run(args: Args, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let Args { run, call, answer } = args;
    let output = output(call, answer)?;
    let client = door.connect().await?;
    show(&client.submit(&run.id(&client).await?, output).await?, terminal)?;
    Ok(Exit::Completed)
}

fn output(call_id: String, answer: Answer) -> Result<v1::ToolOutput, Failure> {
    let Answer { text, json, error } = answer;
    if let Some(json) = &json {
        let parsed: Result<serde::de::IgnoredAny, _> = serde_json::from_str(json);
        parsed.map_err(|error| Failure::Usage(format!("--json is no JSON: {error}")))?;
    }
    if error.as_deref() == Some("") {
        return Err(Failure::Usage("--error is empty: say why there is no answer".to_owned()));
    }
    let body = text.map(Body::Text).or(json.map(Body::Json));
    let result = body.map(v1::Content::from).into_iter().collect();
    Ok(v1::ToolOutput { call_id, result, error: error.unwrap_or_default() })
}
