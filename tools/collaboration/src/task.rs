//! Tasks that agents share: who does what, and how far it is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolyard_tool::{About, Context, Output, Permission, Tool, ToolError};

use crate::shelf::{Shelf, after_of, fresh_id, limit_of, needed, now, text_of};

pub(crate) const PREFIX: &str = "task/";
const TITLE_BYTES_MAX: usize = 500;
const NOTES_BYTES_MAX: usize = 16 * 1024;
const NAME_BYTES_MAX: usize = 200;

/// Keeps tasks in the records of its pool.
#[derive(Debug, Clone, Copy)]
pub struct Tasks;

/// What to do with tasks.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskInput {
    /// What to do. create needs title; get, update, assign, complete and delete need id
    action: TaskAction,
    /// The id of a task, as create and list give it
    id: Option<String>,
    /// What is to be done, in one line
    title: Option<String>,
    /// Everything else that matters
    notes: Option<String>,
    /// Who does it. For list: only tasks of this one
    assignee: Option<String>,
    /// Its status. For list: only tasks in this status
    status: Option<TaskStatus>,
    /// Change the task only if this is still its version
    version: Option<u64>,
    /// For list: read on after this `next`
    after: Option<String>,
    /// For list: at most this many, 1 to 50
    #[schemars(range(min = 1, max = 50))]
    limit: Option<u32>,
}

/// What is done with tasks.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskAction {
    Create,
    List,
    Get,
    Update,
    Assign,
    Complete,
    Delete,
}

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    Open,
    InProgress,
    Done,
    Dropped,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) title: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) notes: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    assignee: String,
    status: TaskStatus,
    created: String,
    changed: String,
}

impl Tool for Tasks {
    const NAME: &'static str = "task";
    type Input = TaskInput;

    fn about(&self) -> About {
        About::new(
            "Keeps tasks that agents and later conversations share: create, list, get, update, assign, complete, \
             delete. Every task has a version, which changes with it.",
        )
        .idempotent()
        .category("collaboration")
        .permission(Permission::Write)
        .side_effect_scope("records")
        .parallel_when(r#"{"properties":{"action":{"enum":["list","get"]}},"required":["action"]}"#)
    }

    async fn call(&self, context: &Context, input: TaskInput) -> Result<Output, ToolError> {
        let shelf = Shelf::new(PREFIX);
        match input.action {
            TaskAction::Create => {
                let task = created(input)?;
                Output::json(&shelf.add(context, &fresh_id(context), task).await?)
            }
            TaskAction::List => {
                let (after, limit) = (after_of(input.after)?, limit_of(input.limit));
                let page = shelf.list(
                    context,
                    (&after, limit),
                    |_| false,
                    |kept: &crate::shelf::Kept<Task>| {
                        input.status.is_none_or(|status| status == kept.thing.status)
                            && input.assignee.as_ref().is_none_or(|assignee| *assignee == kept.thing.assignee)
                    },
                );
                Output::json(&page.await?)
            }
            TaskAction::Get => {
                let id = needed(input.id, "id", "get")?;
                Output::json(&shelf.must_find::<Task>(context, ("/id", &id)).await?)
            }
            TaskAction::Update => {
                let id = needed(input.id.clone(), "id", "update")?;
                let change = Change::of(input)?;
                if change.is_nothing() {
                    return Err(ToolError::bad_input("", "update needs title, notes, assignee or status"));
                }
                change.make(context, &shelf, &id).await
            }
            TaskAction::Assign => {
                let id = needed(input.id.clone(), "id", "assign")?;
                needed(input.assignee.as_ref(), "assignee", "assign")?;
                Change::of(input)?.make(context, &shelf, &id).await
            }
            TaskAction::Complete => {
                let id = needed(input.id.clone(), "id", "complete")?;
                let change = Change::of(TaskInput { status: Some(TaskStatus::Done), ..input })?;
                change.make(context, &shelf, &id).await
            }
            TaskAction::Delete => {
                let id = needed(input.id, "id", "delete")?;
                shelf.remove(context, &id).await?;
                Output::json(&serde_json::json!({ "deleted": id }))
            }
        }
    }
}

fn created(input: TaskInput) -> Result<Task, ToolError> {
    let now = now();
    let Change { notes, assignee, status, title, .. } = Change::of(input)?;
    Ok(Task {
        title: needed(title, "title", "create")?,
        notes: notes.unwrap_or_default(),
        assignee: assignee.unwrap_or_default(),
        status: status.unwrap_or(TaskStatus::Open),
        created: now.clone(),
        changed: now,
    })
}

/// New values, checked.
struct Change {
    title: Option<String>,
    notes: Option<String>,
    assignee: Option<String>,
    status: Option<TaskStatus>,
    version: Option<u64>,
}

impl Change {
    fn of(input: TaskInput) -> Result<Self, ToolError> {
        let limited = |text: Option<String>, field: &str, bytes_max: usize| match text {
            Some(text) if text.is_empty() && field != "title" => Ok(Some(text)),
            Some(text) => text_of(text, field, bytes_max).map(Some),
            None => Ok(None),
        };
        Ok(Self {
            title: limited(input.title, "title", TITLE_BYTES_MAX)?,
            notes: limited(input.notes, "notes", NOTES_BYTES_MAX)?,
            assignee: limited(input.assignee, "assignee", NAME_BYTES_MAX)?,
            status: input.status,
            version: input.version,
        })
    }

    fn is_nothing(&self) -> bool {
        self.title.is_none() && self.notes.is_none() && self.assignee.is_none() && self.status.is_none()
    }

    async fn make(self, context: &Context, shelf: &Shelf, id: &str) -> Result<Output, ToolError> {
        let now = now();
        let changed = shelf.change(context, (id, self.version), |task: &mut Task| {
            let set = |to: &mut String, new: &Option<String>| {
                if let Some(new) = new {
                    to.clone_from(new);
                }
            };
            set(&mut task.title, &self.title);
            set(&mut task.notes, &self.notes);
            set(&mut task.assignee, &self.assignee);
            task.status = self.status.unwrap_or(task.status);
            task.changed.clone_from(&now);
        });
        Output::json(&changed.await?)
    }
}
