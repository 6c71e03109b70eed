//! `toolyard webhooks`: notifications that were not delivered in time, and their redelivery.

use proto::v1;

use crate::exit::{Exit, Failure};
use crate::list::{LIMIT, age, table};
use crate::server::Server;
use crate::terminal::Terminal;
use crate::words::counted;

const PARKED_EXAMPLES: &str = "\
Examples:
  toolyard webhooks parked
  toolyard webhooks parked --endpoint agents -o json | jq -r .body";

const REDRIVE_EXAMPLES: &str = "\
Examples:
  toolyard webhooks redrive --endpoint agents
  toolyard webhooks redrive msg_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f_1234
  toolyard webhooks redrive --all

They are sent under the same webhook-id, as if they were new.";

/// List notifications that were not delivered, and redeliver them
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List parked notices, the oldest first
    #[command(after_help = PARKED_EXAMPLES)]
    Parked(Parked),
    /// Have parked notices tried again
    #[command(after_help = REDRIVE_EXAMPLES)]
    Redrive(Redrive),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Parked {
    /// Only those for this endpoint
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = LIMIT)]
    limit: usize,
}

#[derive(Debug, clap::Args)]
#[group(id = "which", required = true, multiple = false, args = ["ids", "endpoint", "all"])]
pub(crate) struct Redrive {
    /// Their webhook-ids
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// All for this endpoint
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// All there are
    #[arg(long)]
    all: bool,
}

pub(crate) async fn run(command: Command, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = door.connect().await?;
    match command {
        Command::Parked(Parked { endpoint, limit }) => {
            let parked = client.parked_webhooks(endpoint.unwrap_or_default(), limit).await?;
            if terminal.is_json() {
                parked.iter().try_for_each(|webhook| terminal.message(webhook))?;
            } else if parked.is_empty() {
                terminal.note("no webhook is parked");
            } else {
                let rows = parked.iter().map(|webhook| line(webhook).to_vec()).collect();
                table(&["WEBHOOK", "ENDPOINT", "TYPE", "AGE"], 1, rows, terminal)?;
            }
        }
        Command::Redrive(Redrive { ids, endpoint, all: _ }) => {
            let count = client.redrive_webhooks(endpoint.unwrap_or_default(), ids).await?;
            if terminal.is_json() {
                terminal.message(&v1::RedriveWebhooksResponse { count })?;
            } else {
                terminal.note(&counted(usize::try_from(count).unwrap_or(usize::MAX), "webhook"));
            }
        }
    }
    Ok(Exit::Completed)
}

fn line(webhook: &v1::ParkedWebhook) -> [String; 4] {
    let body: serde_json::Value = serde_json::from_str(&webhook.body).unwrap_or_default();
    let what = body["type"].as_str().unwrap_or_default().to_owned();
    [webhook.webhook_id.clone(), webhook.endpoint.clone(), what, age(webhook.queue_time)]
}
