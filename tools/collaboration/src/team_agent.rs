//! Calls several tools of the fleet at once, and gathers their answers.

use std::time::Duration;

use client::v1::CallState;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolyard_tool::{About, Concurrency, Context, Output, Permission, Tool, ToolError};

use crate::fleet::{CALLS_MAX, Fleet, Member, Selection};

/// The name of the tool.
pub const TEAM_AGENT: &str = "team_agent";
const TIMEOUT_S: u32 = 240;
const TIMEOUT_S_MAX: u32 = 3600;
/// Time of an attempt beside that of the team.
const BESIDE: Duration = Duration::from_secs(60);

/// Lets several tools work on something.
#[derive(Debug, Clone)]
pub struct TeamAgent(Fleet);

/// The members of a team.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Team {
    /// The members. Each is one tool by its name, or all tools of a tag, a category or a pool
    #[schemars(length(min = 1, max = CALLS_MAX))]
    members: Vec<TeamMember>,
    /// Seconds after which members that have not answered are given up, 1 to 3600; 240 if not given
    #[schemars(range(min = 1, max = TIMEOUT_S_MAX))]
    timeout_s: Option<u32>,
}

/// A member, or several.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TeamMember {
    /// The name of a tool
    tool: Option<String>,
    /// All tools that have this tag
    tag: Option<String>,
    /// All tools of this category
    category: Option<String>,
    /// All tools that this pool hosts
    pool: Option<String>,
    /// The arguments of the call
    #[serde(default)]
    arguments: Map<String, Value>,
}

impl TeamAgent {
    /// A team of the tools of a fleet.
    #[must_use]
    pub fn new(fleet: Fleet) -> Self {
        Self(fleet)
    }

    async fn members(&self, team: Vec<TeamMember>) -> Result<Vec<Member>, ToolError> {
        let mut members = Vec::new();
        for (index, TeamMember { tool, tag, category, pool, arguments }) in team.into_iter().enumerate() {
            let arguments = Value::Object(arguments).to_string();
            let names = match (tool, tag, category, pool) {
                (Some(tool), None, None, None) => vec![tool],
                (None, None, None, None) | (Some(_), ..) => {
                    let reason = "give either tool, or some of tag, category and pool";
                    return Err(ToolError::bad_input(format!("/members/{index}"), reason));
                }
                (None, tag, category, pool) => {
                    let names = self.0.select(Selection { category, tag, pool, name: None }).await?;
                    if names.is_empty() {
                        let reason = "no tool is like this: list the tools first";
                        return Err(ToolError::bad_input(format!("/members/{index}"), reason));
                    }
                    names
                }
            };
            members.extend(names.into_iter().map(|tool| Member { tool, arguments: arguments.clone() }));
        }
        Ok(members)
    }
}

impl Tool for TeamAgent {
    const NAME: &'static str = TEAM_AGENT;
    type Input = Team;

    fn about(&self) -> About {
        About::new(
            "Calls several tools at once, by name, tag, category or pool, and gives their answers in the order of the \
             members. Members that fail do not stop the others.",
        )
        // A repeated attempt goes on with the run of the one before.
        .idempotent()
        .open_world()
        .streaming()
        .idle_timeout(None)
        .attempt_timeout(Duration::from_secs(u64::from(TIMEOUT_S_MAX)) + BESIDE)
        .category("collaboration")
        .permission(Permission::External)
        .side_effect_scope("fleet")
        .concurrency(Concurrency::Parallel)
    }

    async fn call(&self, context: &Context, team: Team) -> Result<Output, ToolError> {
        let timeout = Duration::from_secs(u64::from(team.timeout_s.unwrap_or(TIMEOUT_S)));
        let members = self.members(team.members).await?;
        let mut child = self.0.open(context, &members, timeout, false).await?;
        child.follow(|_| false).await?;
        Output::json(&json!({
            "run_id": child.run_id(),
            "completed": child.count(CallState::Completed),
            "of": members.len(),
            "answers": child.answers(),
        }))
    }
}
