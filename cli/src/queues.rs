//! `toolyard queues`: creates the queues of pools in advance.

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use coordinator::{Durability, LogOptions};
use run::PoolId;

use crate::broker::BrokerArgs;
use crate::exit::{Exit, Failure};
use crate::json::Object;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  toolyard queues shell builds --nats-nkey keys/coordinator.nk

A coordinator makes a pool's queue when its first worker comes. An autoscaler that looks at the queue before takes what
it cannot find for a long one: run this first. What is there stays as it is, and the log is made where there is none.
With -o json it writes {queues}.";

/// Make the queues of pools, for autoscalers that look at them before the first worker comes
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The pools
    #[arg(value_name = "POOL", required = true)]
    pools: Vec<PoolId>,
    #[command(flatten)]
    broker: BrokerArgs,
    /// Durability of the log, as given to coordinators
    #[arg(long, env = "TOOLYARD_DURABILITY", value_name = "PROFILE", default_value_t = Durability::default())]
    #[arg(value_parser = PossibleValuesParser::new(Durability::NAMES).try_map(|name| name.parse::<Durability>()))]
    durability: Durability,
    /// Limit of the log's bytes if it is created, as given to coordinators
    #[arg(long, env = "TOOLYARD_LOG_MAX_BYTES", value_name = "B", default_value_t = LogOptions::default().bytes_max)]
    #[arg(value_parser = clap::value_parser!(i64).range(1..))]
    log_max_bytes: i64,
    /// Limit of the log's messages if it is created, as given to coordinators [default: its bytes / 512]
    #[arg(long, env = "TOOLYARD_LOG_MAX_MESSAGES", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(i64).range(1..))]
    log_max_messages: Option<i64>,
}

pub(crate) async fn run(args: Args, terminal: &Terminal) -> Result<Exit, Failure> {
    let (nats_url, credentials) = args.broker.split();
    let log = LogOptions {
        durability: args.durability,
        bytes_max: args.log_max_bytes,
        messages_max: args.log_max_messages,
        ..LogOptions::default()
    };
    coordinator::make_queues(&nats_url, &credentials, &log, &args.pools).await?;
    let names: Vec<String> = args.pools.iter().map(proto::names::pool_consumer).collect();
    if terminal.is_json() {
        terminal.object(&Object::default().field("queues", names))?;
    } else {
        terminal.line(&names.join(" "))?;
    }
    Ok(Exit::Completed)
}
