//! `toolyard pause` and `toolyard resume`: tools and pools that are to stand still.

use proto::v1;

use crate::exit::{Exit, Failure};
use crate::list::{age, table};
use crate::server::Server;
use crate::terminal::Terminal;
use crate::words::{brief, harmless};

const EXAMPLES: &str = "\
Examples:
  toolyard pause tool fetch_page --reason 'the site asked us to'
  toolyard pause pool builds
  toolyard pause ls
  toolyard resume tool fetch_page

Calls are still accepted. They wait, those that are queued already too, and
`toolyard why` tells what for; their deadlines go on. Calls that run go on. A
pause outlives restarts: it lasts until somebody resumes it.";

/// Let calls of a tool or a pool wait
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Hold the calls of a tool
    #[command(after_help = EXAMPLES)]
    Tool(Which),
    /// Hold the queue of a pool
    #[command(after_help = EXAMPLES)]
    Pool(Which),
    /// List paused tools and pools
    #[command(after_help = EXAMPLES)]
    #[command(alias = "list")]
    Ls,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// Its name
    name: String,
    /// Why, for people; at most 1 KiB
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
}

/// Let calls of a tool or a pool go on
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Resume {
    /// Go on with the calls of a tool
    #[command(after_help = EXAMPLES)]
    Tool {
        /// Its name
        name: String,
    },
    /// Go on with the queue of a pool
    #[command(after_help = EXAMPLES)]
    Pool {
        /// Its name
        name: String,
    },
}

pub(crate) async fn run(command: Command, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    use v1::pause_request::What;
    let client = door.connect().await?;
    match command {
        Command::Tool(Which { name, reason }) => {
            client.pause(What::Tool(name.clone()), reason).await?;
            terminal.note(&format!("tool {} is paused", harmless(&name)));
        }
        Command::Pool(Which { name, reason }) => {
            client.pause(What::Pool(name.clone()), reason).await?;
            terminal.note(&format!("pool {} is paused", harmless(&name)));
        }
        Command::Ls => {
            let paused = client.paused().await?;
            if terminal.is_json() {
                paused.iter().try_for_each(|pause| terminal.message(pause))?;
            } else if paused.is_empty() {
                terminal.note("nothing is paused");
            } else {
                let rows = paused.iter().map(|pause| line(pause).to_vec()).collect();
                table(&["KIND", "NAME", "AGE", "BY", "REASON"], 2, rows, terminal)?;
            }
        }
    }
    Ok(Exit::Completed)
}

fn line(pause: &v1::Pause) -> [String; 5] {
    let (kind, name) = match &pause.what {
        Some(v1::pause::What::Tool(name)) => ("tool", name.as_str()),
        Some(v1::pause::What::Pool(name)) => ("pool", name.as_str()),
        None => ("", ""),
    };
    [kind.to_owned(), harmless(name), age(pause.time), harmless(&pause.by), brief(&harmless(&pause.reason))]
}

pub(crate) async fn resume(command: Resume, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    use v1::pause::What as Paused;
    use v1::resume_request::What;
    let client = door.connect().await?;
    let (what, paused, told) = match command {
        Resume::Tool { name } => (What::Tool(name.clone()), Paused::Tool(name.clone()), format!("tool {name}")),
        Resume::Pool { name } => (What::Pool(name.clone()), Paused::Pool(name.clone()), format!("pool {name}")),
    };
    // A caller that may resume may list pauses, too. A typing error in the name would otherwise go unnoticed.
    let was_paused = client.paused().await?.iter().any(|pause| pause.what.as_ref() == Some(&paused));
    client.resume(what).await?;
    let told = harmless(&told);
    terminal.note(&if was_paused { format!("{told} goes on") } else { format!("{told} was not paused") });
    Ok(Exit::Completed)
}
