//! `toolyard doctor`: examines the broker and the history, and reports problems and remedies.

use coordinator::{Finding, Level};

use crate::broker::BrokerArgs;
use crate::exit::{Exit, Failure};
use crate::history::HistoryArgs;
use crate::json::Object;
use crate::terminal::{Paint, Terminal};
use crate::words::harmless;

const EXAMPLES: &str = "\
Examples:
  toolyard doctor
  toolyard doctor --nats-url nats://broker:4222 --history s3://bucket/toolyard
  toolyard doctor -o json | jq '.findings[] | select(.level != \"ok\")'

It takes some seconds, in which it listens to workers. With -o json it writes
{well, findings [level, what, found, advice]}; a level is ok, warn or fail.
Exit code 0 when nothing failed, else 1.";

/// Examine the broker and the history: the log, its replicas, the queues, and which processes are alive
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    history: HistoryArgs,
}

pub(crate) async fn run(args: Args, terminal: &Terminal) -> Result<Exit, Failure> {
    let (nats_url, credentials) = args.broker.split();
    let history = args.history.open()?;
    let findings = coordinator::examine(&nats_url, &credentials, history.as_ref()).await;
    let well = findings.iter().all(|finding| finding.level != Level::Fail);
    if terminal.is_json() {
        let findings: Vec<Object> = findings.iter().map(described).collect();
        terminal.object(&Object::default().field("well", well).field("findings", findings))?;
    } else {
        let width = findings.iter().map(|finding| finding.what.chars().count()).max().unwrap_or_default();
        findings.iter().try_for_each(|finding| terminal.line(&line(finding, width, terminal.paint())))?;
    }
    Ok(if well { Exit::Completed } else { Exit::Failed })
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Warn => "warn",
        Level::Fail => "fail",
    }
}

fn described(finding: &Finding) -> Object {
    Object::default()
        .field("level", word(finding.level))
        .field("what", &finding.what)
        .field("found", &finding.found)
        .maybe("advice", Some(&finding.advice).filter(|advice| !advice.is_empty()))
}

fn line(finding: &Finding, width: usize, paint: Paint) -> String {
    let word = format!("{:4}", word(finding.level));
    let level = match finding.level {
        Level::Ok => paint.good(&word),
        Level::Warn => paint.asking(&word),
        Level::Fail => paint.bad(&word),
    };
    let what = paint.bold(&format!("{:width$}", harmless(&finding.what)));
    let advice = if finding.advice.is_empty() { String::new() } else { format!(" -> {}", harmless(&finding.advice)) };
    format!("{level}  {what}  {}{advice}", harmless(&finding.found).replace('\n', " "))
}
