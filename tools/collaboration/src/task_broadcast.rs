//! Sends one call to all tools with a tag, and gathers answers until there are enough.

use std::time::Duration;

use client::v1::CallState;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolyard_tool::{About, Concurrency, Context, Output, Permission, Tool, ToolError};

use crate::fleet::{CALLS_MAX, Fleet, Member, Selection, count};

/// The name of the tool.
pub const TASK_BROADCAST: &str = "task_broadcast";
const TIMEOUT_S: u32 = 240;
const TIMEOUT_S_MAX: u32 = 3600;
/// Time of an attempt beside that of the broadcast.
const BESIDE: Duration = Duration::from_secs(60);

/// Lets all tools with a tag do the same.
#[derive(Debug, Clone)]
pub struct TaskBroadcast(Fleet);

/// A call for many tools.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Broadcast {
    /// The tag of the tools
    tag: String,
    /// Only tools whose names match this pattern; `*` stands for any characters
    tool: Option<String>,
    /// The arguments of each call
    #[serde(default)]
    arguments: Map<String, Value>,
    /// Enough successful answers; all if not given
    #[schemars(range(min = 1, max = CALLS_MAX))]
    quorum: Option<u32>,
    /// Cancel the rest when there are enough answers. Otherwise the rest continues
    #[serde(default)]
    cancel_rest: bool,
    /// Seconds after which tools that have not answered are given up, 1 to 3600; 240 if not given
    #[schemars(range(min = 1, max = TIMEOUT_S_MAX))]
    timeout_s: Option<u32>,
}

impl TaskBroadcast {
    /// A broadcast to the tools of a fleet.
    #[must_use]
    pub fn new(fleet: Fleet) -> Self {
        Self(fleet)
    }
}

impl Tool for TaskBroadcast {
    const NAME: &'static str = TASK_BROADCAST;
    type Input = Broadcast;

    fn about(&self) -> About {
        About::new(
            "Sends one call to all tools with a tag, and gives their answers when all have answered, or as many as the \
             quorum. Lists those that failed and those that have not answered yet.",
        )
        .idempotent()
        .streaming()
        .idle_timeout(None)
        .attempt_timeout(Duration::from_secs(u64::from(TIMEOUT_S_MAX)) + BESIDE)
        .category("collaboration")
        .permission(Permission::Write)
        .side_effect_scope("fleet")
        .concurrency(Concurrency::Exclusive)
    }

    async fn call(&self, context: &Context, broadcast: Broadcast) -> Result<Output, ToolError> {
        let Broadcast { tag, tool, arguments, quorum, cancel_rest, timeout_s } = broadcast;
        let timeout = Duration::from_secs(u64::from(timeout_s.unwrap_or(TIMEOUT_S)));
        if tag.trim().is_empty() {
            return Err(ToolError::bad_input("/tag", "it is empty"));
        }
        let names = self.0.select(Selection { tag: Some(tag.clone()), name: tool, ..Selection::default() }).await?;
        if names.is_empty() {
            return Err(ToolError::bad_input("/tag", format!("no tool has the tag {tag:?}: list the tools first")));
        }
        let total = names.len();
        let quorum = quorum.and_then(|quorum| usize::try_from(quorum).ok()).unwrap_or(total);
        if quorum > total {
            let reason = format!("{total} tools have the tag {tag:?}, {quorum} cannot answer");
            return Err(ToolError::bad_input("/quorum", reason));
        }
        let arguments = Value::Object(arguments).to_string();
        let members: Vec<Member> =
            names.into_iter().map(|tool| Member { tool, arguments: arguments.clone() }).collect();
        let mut child = self.0.open(context, &members, timeout, quorum < total && !cancel_rest).await?;
        // With a quorum of all, those that fail are waited for as well.
        child.follow(|transcript| quorum < total && count(transcript, CallState::Completed) >= quorum).await?;
        let completed = child.count(CallState::Completed);
        let answers = child.answers();
        let pending = answers.iter().filter(|answer| answer["state"] == "pending").count();
        if pending > 0 && cancel_rest {
            child.cancel("enough tools have answered").await?;
        }
        Output::json(&json!({
            "run_id": child.run_id(),
            "quorum_reached": completed >= quorum,
            "completed": completed,
            "failed": total - completed - pending,
            "pending": pending,
            "answers": answers,
        }))
    }
}
