//! `toolyard schedules create`.

use std::time::Duration;

use prost_types::Timestamp;
use proto::convert::duration;
use proto::v1;
use proto::v1::schedule_spec::Timing;

use crate::arguments::{self, Pair};
use crate::call::{approval_request, check_approval, known, seconds};
use crate::exit::Failure;
use crate::files;
use crate::list::{span, time};
use client::Client;

const EXAMPLES: &str = "\
Examples:
  toolyard schedules create --cron '0 9 * * mon-fri' \\
    --time-zone Europe/Berlin get_current_time time_zone=Europe/Berlin
  toolyard schedules create --every 10m --overlap skip bash command='make check'
  toolyard schedules create --at 2030-01-01T00:00:00Z bash command=./new-year.sh
  toolyard schedules create --every 1h --jitter 5m --run run.json
  toolyard schedules create --cron '0 17 * * fri' --approval \\
    --approval-timeout 3d --run-timeout 4d bash command=./release.sh

Each firing is a run of its own, exactly once, whichever coordinators die. A
call that is typed here counts as approved, unless --approval is given. RUN is a
file with a run as `POST /v1/runs` takes it: any calls, and the rules of the run.";

/// Create a schedule
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(override_usage = "toolyard schedules create [OPTIONS] <--cron <EXPRESSION>|--at <TIME>|--every <SPAN>> \
    <TOOL [KEY=VALUE]...|--run <FILE>>")]
pub(crate) struct Create {
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    what: What,
    /// The time zone of --cron, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", default_value = "", hide_default_value = true, requires = "cron")]
    time_zone: String,
    /// A name for people
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    name: String,
    /// Firings that were missed, because nothing was up
    #[arg(long, value_enum, default_value_t)]
    missed: Missed,
    /// A firing while the previous run has not ended
    #[arg(long, value_enum, default_value_t)]
    overlap: Overlap,
    /// Delay each firing by up to so much, as 30s or 5m
    #[arg(long, value_name = "SPAN", value_parser = span)]
    jitter: Option<Duration>,
    /// Do not fire after this time, as 2030-01-01T00:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,
    /// End after so many firings
    #[arg(long, value_name = "N", default_value_t, hide_default_value = true)]
    firings: u32,
    /// How long each run may last, as 90m, 12h or 4d, the wait for approval included; at most 30d [default: 24 h, or
    /// the `timeout` in the file of the run]
    #[arg(long, value_name = "SPAN", value_parser = seconds)]
    run_timeout: Option<Duration>,
    /// The tenant of the runs
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    tenant: String,
    /// An id of your own: the same schedule under the same id is created once
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    request_id: String,
}

#[derive(Debug, clap::Args)]
#[group(id = "times", required = true, multiple = false)]
struct Times {
    /// At the times of a cron expression: minute, hour, day, month, day of the week; with a sixth field, seconds first
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// Once, at this time, as 2030-01-01T00:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<Timestamp>,
    /// Again and again, as 30s, 10m, 2h or 1d
    #[arg(long, value_name = "SPAN", value_parser = span)]
    every: Option<Duration>,
}

#[derive(Debug, clap::Args)]
struct What {
    /// The tool's name, as `toolyard tools ls` shows it
    #[arg(required_unless_present = "run", conflicts_with = "run")]
    tool: Option<String>,
    /// Arguments, as with `toolyard call`
    #[arg(value_name = "KEY=VALUE")]
    pairs: Vec<Pair>,
    /// Arguments as a JSON object; KEY=VALUE goes on top
    #[arg(long, value_name = "OBJECT", requires = "tool")]
    json: Option<String>,
    /// By when each call has ended, its waits for approval and in the queue included. Never later than the end of its
    /// run [default: the end of the run]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "tool")]
    timeout: Option<Duration>,
    /// Do not execute the calls before they are approved
    #[arg(long, requires = "tool")]
    approval: bool,
    /// With --approval: how long each call may await approval, as 30m, 12h or 3d. Then it is rejected. Not longer than
    /// --timeout and --run-timeout [default: 1 h]
    #[arg(long, value_name = "SPAN", value_parser = seconds, requires = "approval")]
    approval_timeout: Option<Duration>,
    /// A file with the run, as JSON
    #[arg(long, value_name = "FILE")]
    run: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Missed {
    /// None is made up for
    Skip,
    /// Only the latest is made up for
    #[default]
    Latest,
    /// All are made up for, at most 100
    All,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Overlap {
    /// Create the run all the same
    #[default]
    Allow,
    /// Create no run
    Skip,
    /// Cancel the previous run first
    CancelPrevious,
}

pub(super) async fn create(client: &Client, args: Create) -> Result<v1::Schedule, Failure> {
    let Create {
        times,
        what,
        time_zone,
        name,
        missed,
        overlap,
        jitter,
        until,
        firings,
        run_timeout,
        tenant,
        request_id,
    } = args;
    check_approval(what.approval_timeout, what.timeout, run_timeout)?;
    let mut run = requested(client, what).await?;
    run.timeout = run_timeout.map(duration).or(run.timeout);
    if !tenant.is_empty() {
        run.tenant = tenant;
    }
    let cron = times.cron.map(|expression| Timing::Cron(v1::CronTiming { expression, time_zone }));
    let timing = cron.or(times.at.map(Timing::OnceAt)).or(times.every.map(|every| Timing::Every(duration(every))));
    let missed = match missed {
        Missed::Skip => v1::MissedPolicy::Skip,
        Missed::Latest => v1::MissedPolicy::Latest,
        Missed::All => v1::MissedPolicy::All,
    };
    let overlap = match overlap {
        Overlap::Allow => v1::OverlapPolicy::Allow,
        Overlap::Skip => v1::OverlapPolicy::Skip,
        Overlap::CancelPrevious => v1::OverlapPolicy::CancelPrevious,
    };
    let spec = v1::ScheduleSpec {
        name,
        timing,
        run: Some(run),
        missed_policy: missed.into(),
        overlap_policy: overlap.into(),
        jitter: jitter.map(duration),
        end_time: until,
        firings_max: firings,
    };
    let request = v1::CreateScheduleRequest { spec: Some(spec), request_id };
    Ok(client.create_schedule(request).await?)
}

/// The run of each firing.
async fn requested(client: &Client, what: What) -> Result<v1::CreateRunRequest, Failure> {
    let What { tool, pairs, json, timeout, approval, approval_timeout, run } = what;
    let Some(name) = tool else { return files::run(&run.unwrap_or_default()) };
    name.parse::<run::ToolName>().map_err(|error| Failure::Usage(error.to_string()))?;
    let base = arguments::parse_base(json.as_deref())?;
    let tool = known(client, &name).await?;
    let arguments = arguments::build(base, pairs, tool.as_ref().map_or("", |tool| &tool.input_schema))?;
    let call = v1::NewCall {
        tool: name,
        arguments,
        timeout: timeout.map(duration),
        approval: approval.then(|| approval_request(approval_timeout)),
        ..v1::NewCall::default()
    };
    let rules = Some(v1::RunRules { confirmation: v1::Confirmation::None.into(), ..v1::RunRules::default() });
    Ok(v1::CreateRunRequest { calls: vec![call], rules, ..v1::CreateRunRequest::default() })
}
