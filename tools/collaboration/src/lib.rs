//! Built-in tools with which agents work together. Some keep things in the records of their pool: tasks, an agenda, a
//! forum, and a search over them. Others call tools of the fleet, or a service outside.

mod agenda;
mod fleet;
mod forum;
mod remote_trigger;
mod schedule_cron;
mod search;
mod search_tools;
mod shelf;
mod task;
mod task_broadcast;
mod team_agent;
mod time_reasoning;
mod triggers;

use toolyard_tool::{InvalidTool, Table};

pub use agenda::{Agenda, AgendaAction, AgendaInput};
pub use fleet::{Fleet, below, child_id, parent, parent_call, refused, stop_with_parent};
pub use forum::{Forum, ForumAction, ForumInput};
pub use remote_trigger::{REMOTE_TRIGGER, RemoteTrigger, TriggerInput};
pub use schedule_cron::{CronAction, CronInput, SCHEDULE_CRON, ScheduleCron};
pub use search::{RecordSearch, SearchInput, SearchKind};
pub use search_tools::{SEARCH_TOOLS, SearchTools, ToolQuery};
pub use task::{TaskAction, TaskInput, TaskStatus, Tasks};
pub use task_broadcast::{Broadcast, TASK_BROADCAST, TaskBroadcast};
pub use team_agent::{TEAM_AGENT, Team, TeamAgent, TeamMember};
pub use time_reasoning::{TimeAction, TimeInput, TimeReasoning};
pub use triggers::{InvalidTriggers, Triggers};

/// What some of the tools need beside their pool. A tool without it is not hosted.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The coordinators, for `team_agent`, `task_broadcast`, `schedule_cron` and `search_tools`.
    pub fleet: Option<Fleet>,
    /// The addresses of `remote_trigger`.
    pub triggers: Option<Triggers>,
}

/// A tool cannot be hosted without an option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{tool} needs {option}: give it, or do not enable the tool")]
pub struct NeedsOptionError {
    /// The tool.
    pub tool: &'static str,
    /// The option of `toolyard worker`.
    pub option: &'static str,
}

impl Options {
    /// Checks the names of tools that are to be hosted.
    ///
    /// # Errors
    /// If one of them needs an option that is not given.
    pub fn check(&self, enabled: &[String]) -> Result<(), NeedsOptionError> {
        let needs = [
            (TEAM_AGENT, "--api-url", self.fleet.is_some()),
            (TASK_BROADCAST, "--api-url", self.fleet.is_some()),
            (SCHEDULE_CRON, "--api-url", self.fleet.is_some()),
            (SEARCH_TOOLS, "--api-url", self.fleet.is_some()),
            (REMOTE_TRIGGER, "--triggers", self.triggers.is_some()),
        ];
        for (tool, option, is_given) in needs {
            if !is_given && enabled.iter().any(|name| name == tool) {
                return Err(NeedsOptionError { tool, option });
            }
        }
        Ok(())
    }
}

/// Adds the tools to a table.
///
/// # Errors
/// The table hosts a tool with one of their names.
pub fn host(table: Table, options: Options) -> Result<Table, InvalidTool> {
    let Options { fleet, triggers } = options;
    let mut table = table.host(Tasks)?.host(Agenda)?.host(Forum)?.host(RecordSearch)?.host(TimeReasoning)?;
    if let Some(fleet) = fleet {
        table = table.host(TeamAgent::new(fleet.clone()))?.host(TaskBroadcast::new(fleet.clone()))?;
        table = table.host(ScheduleCron::new(fleet.clone()))?.host(SearchTools::new(fleet))?;
    }
    match triggers {
        Some(triggers) => table.host(RemoteTrigger::new(triggers)),
        None => Ok(table),
    }
}
