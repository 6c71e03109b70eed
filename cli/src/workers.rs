//! `toolyard workers`: lists workers and drains them.

use std::collections::HashSet;

use proto::v1;

use crate::exit::{Exit, Failure};
use crate::list::table;
use crate::server::Server;
use crate::terminal::Terminal;
use crate::words::{counted, harmless};

const LS_EXAMPLES: &str = "\
Examples:
  toolyard workers ls
  toolyard workers ls --pool builds -o json | jq -r .worker_id";

const DRAIN_EXAMPLES: &str = "\
Examples:
  toolyard workers drain worker-01980f3c2a5b7c3e
  toolyard workers drain \\
    $(toolyard workers ls --pool builds -o json | jq -r .worker_id)

It takes no more calls, lets those that it runs end within its own drain time,
gives back the others, and ends with 0, as after SIGTERM. A supervisor that
starts it again starts a worker with another id.";

/// List workers, or drain one
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the workers that live, by their ids
    #[command(after_help = LS_EXAMPLES)]
    #[command(alias = "list")]
    Ls {
        /// Those of this pool alone
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
    },
    /// Drain workers: they finish running calls, take no new ones, and leave
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain {
        /// Their ids
        #[arg(required = true, value_name = "WORKER")]
        workers: Vec<String>,
    },
}

pub(crate) async fn run(command: Command, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = door.connect().await?;
    match command {
        Command::Ls { pool } => {
            let workers = client.workers(pool.unwrap_or_default()).await?;
            let pauses = client.paused().await?;
            let paused = paused_pools(&pauses);
            if terminal.is_json() {
                workers.iter().try_for_each(|worker| terminal.message(worker))?;
            } else if workers.is_empty() {
                terminal.note("no worker lives");
            } else {
                let rows = workers.iter().map(|worker| line(worker, &paused).to_vec()).collect();
                table(&["WORKER", "POOL", "SLOTS", "RELEASE", "SANDBOX", "STATE"], 1, rows, terminal)?;
            }
        }
        Command::Drain { workers } => {
            for worker in workers {
                client.drain_worker(worker.clone()).await?;
                terminal.note(&format!("{worker} drains"));
            }
        }
    }
    Ok(Exit::Completed)
}

fn paused_pools<'a>(paused: &'a [v1::Pause]) -> HashSet<&'a str> {
    let pool = |pause: &'a v1::Pause| match &pause.what {
        Some(v1::pause::What::Pool(name)) => Some(name.as_str()),
        Some(v1::pause::What::Tool(_)) | None => None,
    };
    paused.iter().filter_map(pool).collect()
}

/// How it confines programs, such as `confined, tenant`.
fn sandbox(worker: &v1::Worker) -> String {
    let Some(v1::WorkerSandbox { level, workspace, network }) = &worker.sandbox else { return "-".to_owned() };
    let network = if *network && level != "none" { "network" } else { "" };
    let words = [level.as_str(), workspace.as_str(), network];
    harmless(&words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", "))
}

/// Whether it takes calls, in words.
pub(crate) fn does(worker: &v1::Worker, is_paused: bool) -> &'static str {
    match (worker.draining, worker.pulling) {
        (true, _) => "drains",
        (false, _) if is_paused => "its pool is paused",
        (false, true) => "takes calls",
        (false, false) => "gets no calls",
    }
}

fn line(worker: &v1::Worker, paused: &HashSet<&str>) -> [String; 6] {
    let does = does(worker, paused.contains(worker.pool.as_str()));
    let release = if worker.release.is_empty() { "release not told" } else { &worker.release };
    let slots = counted(worker.slots as usize, "slot");
    [worker.worker_id.clone(), worker.pool.clone(), slots, harmless(release), sandbox(worker), does.to_owned()]
}
