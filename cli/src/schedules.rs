//! `toolyard schedules`: calls that are made at given times.

mod create;
mod show;

use proto::v1;

use self::create::Create;
use self::show::{listed, show};
use crate::exit::{Exit, Failure};
use crate::list::{LIMIT, named, table};
use crate::server::Server;
use crate::terminal::Terminal;

const LS_EXAMPLES: &str = "\
Examples:
  toolyard schedules ls
  toolyard schedules ls --status active -o json | jq -r .schedule_id";

const GET_EXAMPLES: &str = "\
Examples:
  toolyard schedules get sch_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f
  toolyard runs ls --schedule sch_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f";

const PAUSE_EXAMPLE: &str = "\
Example:
  toolyard schedules pause sch_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f --reason moving

Runs that it created go on. It does not fire until it is resumed.";

const RESUME_EXAMPLE: &str = "\
Example:
  toolyard schedules resume sch_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f

Times that fell into the pause are not made up for.";

const DELETE_EXAMPLE: &str = "\
Example:
  toolyard schedules delete sch_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f

Runs that it created go on.";

const RUN_NOW_EXAMPLES: &str = "\
Examples:
  toolyard schedules run-now sch_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f
  toolyard schedules run-now sch_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f \\
    -o json | jq -r .run_id

It fires with the rights of its creator, even if it is paused or has ended.";

/// Make calls at given times: by cron, once, or at an interval
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Create(Box<Create>),
    #[command(alias = "list")]
    Ls(Ls),
    /// Show a schedule: its next times, and what became of the latest
    #[command(after_help = GET_EXAMPLES)]
    Get {
        /// The schedule's id
        schedule: String,
    },
    /// Stop the firings of a schedule until it is resumed
    #[command(after_help = PAUSE_EXAMPLE)]
    Pause {
        /// The schedule's id
        schedule: String,
        /// Why, for people; at most 1 KiB
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
    },
    /// Let a paused schedule fire again
    #[command(after_help = RESUME_EXAMPLE)]
    Resume {
        /// The schedule's id
        schedule: String,
    },
    /// Delete a schedule
    #[command(after_help = DELETE_EXAMPLE)]
    Delete {
        /// The schedule's id
        schedule: String,
    },
    /// Fire a schedule now, beside its times
    #[command(after_help = RUN_NOW_EXAMPLES)]
    RunNow {
        /// The schedule's id
        schedule: String,
        /// An id of your own: the same request under the same id fires once
        #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
        request_id: String,
    },
}

const STATUSES: [&str; 3] = ["active", "paused", "ended"];

fn status(word: &str) -> Option<v1::ScheduleStatus> {
    v1::ScheduleStatus::from_str_name(&format!("SCHEDULE_STATUS_{word}"))
}

/// List schedules, the newest first
#[derive(Debug, clap::Args)]
#[command(after_help = LS_EXAMPLES)]
pub(crate) struct Ls {
    /// Only schedules with this status
    #[arg(long, value_parser = named(&STATUSES, status))]
    status: Option<v1::ScheduleStatus>,
    /// Only schedules of this tenant
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    tenant: String,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = LIMIT)]
    limit: usize,
}

pub(crate) async fn run(command: Command, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = door.connect().await?;
    match command {
        Command::Create(args) => show(&create::create(&client, *args).await?, terminal)?,
        Command::Ls(Ls { status, tenant, limit }) => {
            let status = status.unwrap_or_default().into();
            let request = v1::ListSchedulesRequest { status, tenant, ..v1::ListSchedulesRequest::default() };
            let schedules = client.list_schedules(request, limit).await?;
            if terminal.is_json() {
                schedules.iter().try_for_each(|schedule| terminal.message(schedule))?;
            } else if schedules.is_empty() {
                terminal.note("no such schedule");
            } else {
                let rows = schedules.iter().map(|schedule| listed(schedule).to_vec()).collect();
                table(&["SCHEDULE", "STATUS", "TIMES", "NEXT", "TOOLS", "NAME"], 1, rows, terminal)?;
            }
        }
        Command::Get { schedule } => show(&client.schedule(&schedule).await?, terminal)?,
        Command::Pause { schedule, reason } => show(&client.pause_schedule(&schedule, &reason).await?, terminal)?,
        Command::Resume { schedule } => show(&client.resume_schedule(&schedule).await?, terminal)?,
        Command::Delete { schedule } => client.delete_schedule(&schedule).await?,
        Command::RunNow { schedule, request_id } => {
            crate::runs::show(&client.run_schedule_now(&schedule, &request_id).await?, terminal)?;
        }
    }
    Ok(Exit::Completed)
}
