//! Schedules calls of tools: by cron, at intervals, or once.

use std::collections::BTreeMap;
use std::time::Duration;

use client::Client;
use client::v1::{self, schedule_spec::Timing};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolyard_tool::{About, Concurrency, Context, Output, Permission, Tool, ToolError};

use crate::fleet::{Fleet, below, child_id, refused};

/// The name of the tool.
pub const SCHEDULE_CRON: &str = "schedule_cron";
/// Schedules that a list returns.
const LISTED_MAX: usize = 100;

/// Creates, lists, pauses and deletes schedules of the run's tenant.
#[derive(Debug, Clone)]
pub struct ScheduleCron(Fleet);

/// What to do with schedules.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CronAction {
    /// Creates a schedule of a call
    Create,
    /// Lists the schedules
    List,
    /// Stops the firings of a schedule
    Pause,
    /// Lets a paused schedule fire again
    Resume,
    /// Deletes a schedule
    Delete,
}

/// An action on schedules.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CronInput {
    /// What to do
    action: CronAction,
    /// The schedule to pause, resume or delete
    schedule_id: Option<String>,
    /// A name for people
    name: Option<String>,
    /// For create: a cron expression of five fields, or six with seconds in front
    cron: Option<String>,
    /// The IANA time zone of the expression, such as Europe/Berlin; UTC if not given
    time_zone: Option<String>,
    /// For create, in place of cron: the interval in seconds
    #[schemars(range(min = 1))]
    every_s: Option<u64>,
    /// For create, in place of cron: the only time, such as 2026-12-01T09:00:00Z
    at: Option<String>,
    /// For create: the tool to call each time
    tool: Option<String>,
    /// The arguments of each call
    #[serde(default)]
    arguments: Map<String, Value>,
    /// For create: end the schedule after so many firings
    #[schemars(range(min = 1))]
    firings_max: Option<u32>,
}

impl ScheduleCron {
    /// Schedules at a fleet.
    #[must_use]
    pub fn new(fleet: Fleet) -> Self {
        Self(fleet)
    }
}

impl Tool for ScheduleCron {
    const NAME: &'static str = SCHEDULE_CRON;
    type Input = CronInput;

    fn about(&self) -> About {
        About::new(
            "Schedules calls of a tool: by a cron expression, at intervals, or once. Each firing makes a run of its \
             own. Also lists, pauses, resumes and deletes schedules.",
        )
        .idempotent()
        .category("collaboration")
        .permission(Permission::Write)
        .side_effect_scope("DB_WRITE")
        .concurrency(Concurrency::Exclusive)
        .title("Schedule calls")
    }

    async fn call(&self, context: &Context, input: CronInput) -> Result<Output, ToolError> {
        let client = self.0.client().await?;
        let changed = match input.action {
            CronAction::Create => {
                let tenant = client.run(&context.run_id().to_string()).await.map_err(refused)?.tenant;
                let request = v1::CreateScheduleRequest {
                    spec: Some(spec(input, tenant, below(context)?)?),
                    // A repeated attempt gets the schedule of the one before.
                    request_id: child_id(context),
                };
                client.create_schedule(request).await.map_err(refused)?
            }
            CronAction::List => {
                let tenant = client.run(&context.run_id().to_string()).await.map_err(refused)?.tenant;
                let request = v1::ListSchedulesRequest { tenant, ..v1::ListSchedulesRequest::default() };
                let listed = client.list_schedules(request, LISTED_MAX).await.map_err(refused)?;
                return Output::json(&json!({ "schedules": listed.iter().map(shown).collect::<Vec<_>>() }));
            }
            CronAction::Pause => {
                let reason = format!("paused by call {}", context.call_id());
                let id = named(&client, context, &input).await?;
                client.pause_schedule(&id, &reason).await.map_err(refused)?
            }
            CronAction::Resume => {
                client.resume_schedule(&named(&client, context, &input).await?).await.map_err(refused)?
            }
            CronAction::Delete => {
                client.delete_schedule(&named(&client, context, &input).await?).await.map_err(refused)?;
                return Output::json(&json!({ "schedule_id": input.schedule_id, "status": "deleted" }));
            }
        };
        Output::json(&shown(&changed))
    }
}

/// The schedule that an action names. It has to be of the run's tenant, whatever the worker's key may see.
async fn named(client: &Client, context: &Context, input: &CronInput) -> Result<String, ToolError> {
    let bad = |reason: String| ToolError::bad_input("/schedule_id", reason);
    let id = input.schedule_id.as_deref().filter(|id| !id.is_empty());
    let id = id.ok_or_else(|| bad("name the schedule: list them first".to_owned()))?;
    let tenant = client.run(&context.run_id().to_string()).await.map_err(refused)?.tenant;
    let schedule = client.schedule(id).await.map_err(refused)?;
    match schedule.tenant == tenant {
        true => Ok(id.to_owned()),
        false => Err(bad(format!("there is no schedule {id:?}: list them first"))),
    }
}

/// The schedule to create. The coordinator checks the rest.
fn spec(input: CronInput, tenant: String, metadata: BTreeMap<String, String>) -> Result<v1::ScheduleSpec, ToolError> {
    let CronInput { name, cron, time_zone, every_s, at, tool, arguments, firings_max, .. } = input;
    let timing = match (cron, every_s, at) {
        (Some(expression), None, None) => {
            Timing::Cron(v1::CronTiming { expression, time_zone: time_zone.unwrap_or_default() })
        }
        (None, Some(seconds), None) => {
            let every = Duration::from_secs(seconds).try_into();
            Timing::Every(every.map_err(|_| ToolError::bad_input("/every_s", "it is too long"))?)
        }
        (None, None, Some(text)) => {
            let time: Result<Timestamp, jiff::Error> = text.parse();
            let time = time.map_err(|error| ToolError::bad_input("/at", error.to_string()))?;
            Timing::OnceAt(prost_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() })
        }
        _ => return Err(ToolError::bad_input("", "give one of cron, every_s and at")),
    };
    let tool = tool.ok_or_else(|| ToolError::bad_input("/tool", "name the tool that each firing calls"))?;
    let call = v1::NewCall {
        call_id: "scheduled".to_owned(),
        tool,
        arguments: Value::Object(arguments).to_string(),
        metadata: metadata.into_iter().collect(),
        ..v1::NewCall::default()
    };
    let run = v1::CreateRunRequest { calls: vec![call], tenant, ..v1::CreateRunRequest::default() };
    Ok(v1::ScheduleSpec {
        name: name.unwrap_or_default(),
        timing: Some(timing),
        run: Some(run),
        firings_max: firings_max.unwrap_or(0),
        ..v1::ScheduleSpec::default()
    })
}

fn shown(schedule: &v1::Schedule) -> Value {
    let status = match schedule.status() {
        v1::ScheduleStatus::Active => "active",
        v1::ScheduleStatus::Paused => "paused",
        v1::ScheduleStatus::Ended => "ended",
        v1::ScheduleStatus::Unspecified => "unknown",
    };
    let time = |time: &prost_types::Timestamp| Timestamp::new(time.seconds, time.nanos).ok().map(|it| it.to_string());
    let spec = schedule.spec.as_ref();
    let call = spec.and_then(|spec| spec.run.as_ref()?.calls.first());
    json!({
        "schedule_id": schedule.schedule_id,
        "name": spec.map_or("", |spec| spec.name.as_str()),
        "tool": call.map_or("", |call| call.tool.as_str()),
        "status": status,
        "next": schedule.next_fire_times.iter().filter_map(time).collect::<Vec<_>>(),
        "last_run_id": schedule.last_run_id,
    })
}
