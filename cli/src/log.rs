//! `toolyard log`: shows the size of the log and of its companions, and changes it.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use coordinator::{Changed, Durability, Operator, StreamUsage};

use crate::broker::BrokerArgs;
use crate::exit::{Exit, Failure};
use crate::json::Object;
use crate::list::{columns, span};
use crate::terminal::Terminal;
use crate::words::duration;

const KEY: &str = "The operator's key is operator.nk, which `toolyard nats-config` makes.";

const USAGE_EXAMPLES: &str = "\
Examples:
  toolyard log usage --nats-nkey operator.nk
  toolyard log usage -o json | jq 'select(.stream == \"ty-log\").bytes'

With -o json it writes a line for each stream: {stream, bytes, max_bytes,
messages, max_messages, subjects, max_age_s, replicas}. 0 is no limit. Each
server keeps all subjects in memory, some 1 KiB for each.";

const RESIZE_EXAMPLES: &str = "\
Examples:
  toolyard log resize 8GiB --nats-nkey operator.nk
  toolyard log resize --messages 4194304 --nats-nkey operator.nk
  toolyard log resize 4GiB --objects --nats-nkey operator.nk

A size changes the bytes alone. Each server keeps the subjects of all messages
in memory: more messages may need more memory (`toolyard doctor`, line memory).
The buckets of request ids and snapshots get their part of the bytes. A full log takes new
work again at once. Each server must be allowed to keep so much:
max_file_store in its configuration (`toolyard nats-config --store-bytes`).
With -o json it writes a line for each change: {stream, before, after}.";

const RETENTION_EXAMPLES: &str = "\
Examples:
  toolyard log retention 3d --nats-nkey operator.nk

The span is the longest time for which entries, request ids, and objects at
the broker are kept. It is at least 25h. Entries of runs that have ended leave
the log earlier with --tail and --tail-percent of coordinators. Lists of runs
go back 25 h, and further with Redis and a history. At a broker of an earlier
release it also allows --request-ids-for of coordinators. With -o json it
writes a line for each change of a span: {stream, before, after}, in
nanoseconds.";

const PARTITIONS_EXAMPLES: &str = "\
Examples:
  toolyard log partitions 4 --nats-nkey operator.nk

A partition is a stream of its own, with a leader, limits and 16 shards of its
own. New ones have the settings of the first. They are added while everything
runs: coordinators and workers find them within seconds, and after 15 s new
runs are spread over all of them. Runs stay where they are. A partition cannot
be removed. All coordinators and workers must be of a release that knows
partitions: this is not checked. With -o json it writes a line for each new
stream: {stream}.";

const DURABILITY_EXAMPLES: &str = "\
Examples:
  toolyard log durability standard --nats-nkey operator.nk

Every stream gets as many copies as the profile has. Then start coordinators
with the same profile. With -o json it writes a line for each change:
{stream, before, after}.";

/// See how large the log is, and change its size, retention and copies, as the operator
#[derive(Debug, clap::Subcommand)]
#[command(after_help = KEY)]
pub(crate) enum Command {
    /// Show the streams at the broker: bytes, messages, subjects, limits, copies
    #[command(after_help = USAGE_EXAMPLES)]
    Usage(BrokerArgs),
    /// Give the log more room, or less
    #[command(after_help = RESIZE_EXAMPLES)]
    Resize {
        /// Bytes, as 8GiB, 512MiB or 8589934592
        #[arg(value_name = "SIZE", value_parser = size, required_unless_present = "messages")]
        bytes: Option<u64>,
        /// Messages that the log may hold
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=i64::MAX as u64))]
        messages: Option<u64>,
        /// Give the bytes to objects instead
        #[arg(long, requires = "bytes", conflicts_with = "messages")]
        objects: bool,
        #[command(flatten)]
        broker: BrokerArgs,
    },
    /// Spread new runs over more streams
    #[command(after_help = PARTITIONS_EXAMPLES)]
    Partitions {
        /// How many partitions the log is to have, at most 16
        #[arg(value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
        count: u8,
        #[command(flatten)]
        broker: BrokerArgs,
    },
    /// Keep entries for longer
    #[command(after_help = RETENTION_EXAMPLES)]
    Retention {
        /// A span of time, as 30h or 3d
        #[arg(value_name = "SPAN", value_parser = span)]
        age: Duration,
        #[command(flatten)]
        broker: BrokerArgs,
    },
    /// Change how many copies there are
    #[command(after_help = DURABILITY_EXAMPLES)]
    Durability {
        /// The profile, as given to coordinators
        #[arg(value_name = "PROFILE")]
        #[arg(value_parser = PossibleValuesParser::new(Durability::NAMES).try_map(|name| name.parse::<Durability>()))]
        durability: Durability,
        #[command(flatten)]
        broker: BrokerArgs,
    },
}

pub(crate) async fn run(command: Command, terminal: &Terminal) -> Result<Exit, Failure> {
    match command {
        Command::Usage(broker) => usage(&connect(broker).await?.usage().await?, terminal)?,
        Command::Resize { bytes, messages, objects, broker } => {
            let operator = connect(broker).await?;
            if let Some(bytes) = bytes {
                let changed =
                    if objects { operator.resize_objects(bytes).await? } else { operator.resize(bytes).await? };
                tell(&changed, readable, terminal)?;
            }
            if let Some(messages) = messages {
                let changed = operator.bound_messages(messages).await?;
                let messages =
                    |count: u64| if count == 0 { "no bound".to_owned() } else { format!("{count} messages") };
                tell(&changed, messages, terminal)?;
            }
        }
        Command::Partitions { count, broker } => {
            let made = connect(broker).await?.partition(usize::from(count)).await?;
            for stream in &made {
                if terminal.is_json() {
                    terminal.object(&Object::default().field("stream", stream))?;
                } else {
                    terminal.line(&format!("made {stream}"))?;
                }
            }
            if made.is_empty() && !terminal.is_json() {
                terminal.note("nothing to change");
            }
        }
        Command::Retention { age, broker } => {
            let operator = connect(broker).await?;
            let changed = operator.retain(age).await?;
            let lets_ids_expire = operator.let_request_ids_expire().await?;
            if !lets_ids_expire || !changed.is_empty() {
                tell(&changed, |nanos| duration(Duration::from_nanos(nanos)), terminal)?;
            }
            if lets_ids_expire && !terminal.is_json() {
                terminal.note("coordinators may have --request-ids-for now");
            }
        }
        Command::Durability { durability, broker } => {
            let copies = |copies: u64| if copies == 1 { "1 copy".to_owned() } else { format!("{copies} copies") };
            tell(&connect(broker).await?.replicate(durability).await?, copies, terminal)?;
        }
    }
    Ok(Exit::Completed)
}

pub(crate) async fn connect(broker: BrokerArgs) -> Result<Operator, Failure> {
    let (nats_url, credentials) = broker.split();
    Ok(Operator::connect(&nats_url, &credentials).await?)
}

fn usage(streams: &[StreamUsage], terminal: &Terminal) -> Result<(), Failure> {
    if terminal.is_json() {
        return streams.iter().try_for_each(|stream| terminal.object(&described(stream)));
    }
    let mut lines = vec![["STREAM", "BYTES", "MESSAGES", "SUBJECTS", "KEPT", "COPIES"].map(str::to_owned)];
    lines.extend(streams.iter().map(line));
    columns(&lines, terminal)
}

fn described(stream: &StreamUsage) -> Object {
    Object::default()
        .field("stream", &stream.name)
        .field("bytes", stream.bytes)
        .field("max_bytes", stream.bytes_max.unwrap_or(0))
        .field("messages", stream.messages)
        .field("max_messages", stream.messages_max.unwrap_or(0))
        .field("subjects", stream.subjects)
        .field("max_age_s", stream.age_max.unwrap_or_default().as_secs())
        .field("replicas", stream.replicas)
}

fn line(stream: &StreamUsage) -> [String; 6] {
    let percent = |of: u64, most: u64| u128::from(of) * 100 / u128::from(most.max(1));
    let room = stream
        .bytes_max
        .map(|most| format!("{} of {}, {} %", readable(stream.bytes), readable(most), percent(stream.bytes, most)));
    let messages =
        stream.messages_max.map(|most| format!("{} of {most}, {} %", stream.messages, percent(stream.messages, most)));
    [
        stream.name.clone(),
        room.unwrap_or_else(|| readable(stream.bytes)),
        messages.unwrap_or_else(|| stream.messages.to_string()),
        stream.subjects.to_string(),
        stream.age_max.map_or_else(|| "for ever".to_owned(), duration),
        stream.replicas.to_string(),
    ]
}

fn tell(changed: &[Changed], value: impl Fn(u64) -> String, terminal: &Terminal) -> Result<(), Failure> {
    if changed.is_empty() && !terminal.is_json() {
        terminal.note("nothing to change");
    }
    changed.iter().try_for_each(|Changed { stream, before, after }| {
        if terminal.is_json() {
            let told = Object::default().field("stream", stream);
            return terminal.object(&told.field("before", *before).field("after", *after));
        }
        terminal.line(&format!("{stream}: {}, was {}", value(*after), value(*before)))
    })
}

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// `8GiB`, `512MiB`, `1000`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: give bytes, or a number and KiB, MiB, GiB or TiB, as 8GiB");
    let unit = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let number: u64 = number.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0 && i64::try_from(*bytes).is_ok()).ok_or_else(wrong)
}

pub(crate) fn readable(bytes: u64) -> String {
    match UNITS.iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => {
            let tenths = (u128::from(bytes) * 10) >> shift;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_typed_and_told_with_units() {
        assert_eq!(size("8GiB"), Ok(8 << 30));
        assert_eq!(size("512 MiB"), Ok(512 << 20));
        assert_eq!(size("1000"), Ok(1000));
        for wrong in ["", "GiB", "-1", "8GB", "1.5GiB", "0", "99999999999TiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!((readable(1536 << 20), readable(12)), ("1.5 GiB".to_owned(), "12 B".to_owned()));
    }
}
