//! Hooks: external decisions about calls. Each hook is called at certain points for certain tools, and sees the changes
//! of the hooks that were called before it.
//!
//! Hooks surround a call as interceptors do: the first of the file is the outermost. Before a call they are called in
//! the order of the file, after it in the reverse order. A hook may answer a call itself; then nothing inside it is
//! called.
//!
//! Coordinators call hooks before a call, workers after it; both hold [`Hooks`]. Coordinators also call them about the
//! answers of clients, and notify them of the ends that no worker reports. Without a hook at a point nothing is
//! done: [`Hooks::has`] reads a flag. A hook is a program ([`file`]), a web service, or a [`Hook`] in the same process.
//! The same file configures [`Resolvers`].

pub mod client;
mod command;
mod confirm;
mod contract;
pub mod file;
mod http;
mod json;
mod metrics;
mod outside;
mod reach;
mod resolve;
pub mod sign;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use globset::{Glob, GlobSet, GlobSetBuilder};
use run::{CallError, Completion, ErrorKind, Fields, HookAnswer, ToolName};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use confirm::{Confirm, Confirmation, Dangerous};
pub use contract::{Admitted, CallStage, Ended, HookError, HookPoint, HookRequest, Reply};
pub use file::InvalidHooks;
pub use metrics::METRICS;
pub use resolve::{KEEP, KEEP_MAX, KEEP_UNKNOWN, Resolution, Resolve, Resolved, ResolverPlacement, Resolvers};

/// Default timeout of a hook: a person does not wait longer for a call to begin.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest configurable value.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Bytes of an answer: the largest result and output that a hook receives, as JSON.
pub const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Hooks of one process, because each delays every call that it is called for.
pub const HOOKS_MAX: usize = 64;
/// Bytes of a hook's name, which appears in errors to the model.
const NAME_BYTES_MAX: usize = 64;
/// The log target of decisions about calls.
pub const AUDIT: &str = "toolyard::audit";

/// A hook in this process.
///
/// It should be quick, because the call waits for it. Its future is dropped at its timeout. A panic counts as a
/// failure.
pub trait Hook: Send + Sync + 'static {
    /// Decides about a call.
    ///
    /// # Errors
    /// If there is no answer. Then the call is refused, or its result is withheld.
    fn ask(&self, question: &HookRequest) -> impl Future<Output = Result<Reply, HookError>> + Send;
}

/// The settings of a hook.
#[derive(Debug, Clone)]
pub struct Placement {
    /// Its name for logs and errors; 1 to 64 bytes, unique.
    pub name: String,
    pub on: Vec<HookPoint>,
    /// Names of tools, `*` matches any characters; empty for all tools. A tool matches by any of its names.
    pub tools: Vec<String>,
    /// Its timeout; [`TIMEOUT`] unless set, at most [`TIMEOUT_MAX`].
    pub timeout: Duration,
    /// It also receives the output of the execution, which is therefore held back until the call ends.
    pub holds_output: bool,
    /// Results of a worker that does not run it are not accepted. It is known by its name, at all processes.
    pub required: bool,
}

impl Placement {
    #[must_use]
    pub fn new(name: impl Into<String>, on: &[HookPoint]) -> Self {
        let (name, on, tools) = (name.into(), on.to_vec(), Vec::new());
        Self { name, on, tools, timeout: TIMEOUT, holds_output: false, required: false }
    }

    /// Only for these tools.
    #[must_use]
    pub fn tools(mut self, tools: &[&str]) -> Self {
        self.tools = tools.iter().map(|tool| (*tool).to_owned()).collect();
        self
    }

    #[must_use]
    pub fn holding_output(mut self) -> Self {
        self.holds_output = true;
        self
    }

    #[must_use]
    pub fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Workers call it, about the ends of executions.
    fn is_about_ends(&self) -> bool {
        self.on.iter().any(|point| matches!(point, HookPoint::PostToolUse | HookPoint::ToolError))
    }
}

/// Why the settings of a hook are invalid.
#[derive(Debug, thiserror::Error)]
#[error("hook {name:?}: {field}: {reason}")]
pub struct Misplaced {
    pub name: String,
    pub field: &'static str,
    pub reason: String,
}

/// The hooks of a process, in their order. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Hooks {
    list: Arc<Vec<Placed>>,
    /// The deployment's rules for approvals.
    pub confirm: Confirm,
    /// Resolvers of names that no worker hosts; used by coordinators.
    pub resolvers: Resolvers,
}

#[derive(Debug, Clone)]
struct Placed {
    placement: Placement,
    tools: Tools,
    link: Arc<dyn Link>,
}

/// Names and patterns of tools.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tools(Option<GlobSet>);

impl Tools {
    /// Matches all tools if none is named.
    fn new(patterns: &[String]) -> Result<Self, globset::Error> {
        if patterns.is_empty() {
            return Ok(Self(None));
        }
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            set.add(Glob::new(pattern)?);
        }
        Ok(Self(Some(set.build()?)))
    }

    fn have(&self, tool: &ToolName, alias_of: Option<&ToolName>) -> bool {
        let names = || std::iter::once(tool).chain(alias_of);
        self.0.as_ref().is_none_or(|set| names().any(|name| set.is_match(name.as_str())))
    }
}

impl Hooks {
    /// Appends a hook.
    ///
    /// # Errors
    /// If its settings are invalid.
    pub fn with(mut self, placement: Placement, hook: impl Hook) -> Result<Self, Misplaced> {
        let misplaced = |field, reason: String| Misplaced { name: placement.name.clone(), field, reason };
        if placement.name.is_empty() || placement.name.len() > NAME_BYTES_MAX {
            return Err(misplaced("name", format!("must be 1 to {NAME_BYTES_MAX} bytes")));
        }
        if self.list.iter().any(|other| other.placement.name == placement.name) {
            return Err(misplaced("name", "another hook has it".to_owned()));
        }
        if placement.on.is_empty() {
            return Err(misplaced("on", format!("is empty: name some of {}", HookPoint::NAMES.join(", "))));
        }
        if placement.timeout.is_zero() || placement.timeout > TIMEOUT_MAX {
            return Err(misplaced("timeout_ms", format!("must be 1 to {}", TIMEOUT_MAX.as_millis())));
        }
        if placement.holds_output && !placement.on.contains(&HookPoint::PostToolUse) {
            return Err(misplaced("output", "is seen after a call alone: add post_tool_use to on".to_owned()));
        }
        if placement.required && !placement.is_about_ends() {
            let why = "is about hooks that workers run: add post_tool_use or tool_error to on";
            return Err(misplaced("required", why.to_owned()));
        }
        if self.list.len() == HOOKS_MAX {
            return Err(misplaced("name", format!("there are more than {HOOKS_MAX} hooks")));
        }
        let tools = Tools::new(&placement.tools).map_err(|error| misplaced("tools", error.to_string()))?;
        Arc::make_mut(&mut self.list).push(Placed { placement, tools, link: Arc::new(hook) });
        Ok(self)
    }

    /// Whether there is a hook at this point.
    #[must_use]
    pub fn has(&self, moment: HookPoint) -> bool {
        self.list.iter().any(|placed| placed.placement.on.contains(&moment))
    }

    /// Whether there is a hook for the executions of a tool.
    #[must_use]
    pub fn watch(&self, tool: &ToolName, alias_of: Option<&ToolName>) -> bool {
        self.list.iter().any(|placed| placed.placement.is_about_ends() && placed.tools.have(tool, alias_of))
    }

    /// The names of the hooks that workers must run on the executions of a tool.
    #[must_use]
    pub fn required(&self, tool: &ToolName, alias_of: Option<&ToolName>) -> Vec<String> {
        let required = self.list.iter().filter(|placed| placed.placement.required && placed.tools.have(tool, alias_of));
        required.map(|placed| placed.placement.name.clone()).collect()
    }

    /// The first of these hooks that does not run here on the executions of a tool.
    #[must_use]
    pub fn lacking<'a>(&self, names: &'a [String], tool: &ToolName, alias_of: Option<&ToolName>) -> Option<&'a String> {
        let runs = |name: &String| {
            self.list.iter().any(|placed| {
                placed.placement.name == *name && placed.placement.is_about_ends() && placed.tools.have(tool, alias_of)
            })
        };
        names.iter().find(|name| !runs(name))
    }

    /// The hook that requires the tool's output to be held back.
    #[must_use]
    pub fn holder(&self, tool: &ToolName, alias_of: Option<&ToolName>) -> Option<&str> {
        let mut holders = self.list.iter().filter(|placed| placed.placement.holds_output);
        holders.find(|placed| placed.tools.have(tool, alias_of)).map(|placed| placed.placement.name.as_str())
    }

    /// The names of the hooks that workers call about the ends of executions.
    #[must_use]
    pub fn about_executions(&self) -> Vec<&str> {
        let about = self.list.iter().filter(|placed| placed.placement.is_about_ends());
        about.map(|placed| placed.placement.name.as_str()).collect()
    }

    /// The names of hooks at none of these points: other processes call them.
    #[must_use]
    pub fn asked_elsewhere(&self, moments: &[HookPoint]) -> Vec<&str> {
        let here = |placed: &&Placed| placed.placement.on.iter().any(|moment| moments.contains(moment));
        self.list.iter().filter(|placed| !here(placed)).map(|placed| placed.placement.name.as_str()).collect()
    }

    /// Calls the hooks before a call is accepted. The hooks behind one that leaves it to the client are called too,
    /// because they may deny it. If a hook answers the call, those before it are called about the result.
    ///
    /// # Errors
    /// If the call is not accepted: a hook denies it, withholds the answer of another, or did not answer.
    pub async fn before(&self, mut question: HookRequest) -> Result<Admitted, CallError> {
        let mut admitted = Admitted::default();
        for (position, placed) in self.list.iter().enumerate() {
            if !placed.is_asked(HookPoint::PreToolUse, &question) {
                continue;
            }
            match placed.ask(&question).await {
                Ok(Reply::Allow) => placed.count(&question, "allow"),
                Ok(Reply::Modify { arguments }) => {
                    placed.note(&question, "modify");
                    question.arguments = arguments.clone();
                    admitted.arguments = Some(arguments);
                }
                Ok(Reply::LeaveToClient) => {
                    placed.note(&question, "leave_to_client");
                    admitted.left_to_client = true;
                }
                Ok(Reply::Answer { result }) => {
                    placed.note(&question, "answer");
                    question.happened = CallStage::Completed { result, extra_state: Fields::default(), output: None };
                    let ended =
                        after_result(&self.list[..position], question, "the answer of a hook was withheld").await;
                    let Completion { result, .. } = ended.outcome?;
                    admitted.answer = Some(HookAnswer { hook: placed.placement.name.clone(), result });
                    return Ok(admitted);
                }
                Ok(Reply::Deny { reason }) => {
                    placed.note(&question, "deny");
                    return Err(CallError::new(ErrorKind::Denied, format!("the call was denied: {reason}")));
                }
                Ok(reply @ Reply::ModifyResult { .. }) => {
                    return Err(placed.failed(&question, &misplaced(&reply), "the call was not executed"));
                }
                Err(why) => return Err(placed.failed(&question, &why, "the call was not executed")),
            }
        }
        Ok(admitted)
    }

    /// Calls the hooks after an execution, before its end is stored. The last of the file is called first.
    pub async fn after(&self, question: HookRequest) -> Ended {
        match question.happened {
            CallStage::Completed { .. } => {
                // Without an attempt it is the answer of a client.
                let withheld = match question.attempt {
                    Some(_) => "the call ran, and its result was withheld",
                    None => "the client answered, and its answer was withheld",
                };
                after_result(&self.list, question, withheld).await
            }
            CallStage::Failed { .. } => self.after_error(question).await,
            CallStage::Asked | CallStage::Ended { .. } => Ended::of(question.happened),
        }
    }

    /// A hook may change the message of an error, but not its kind or whether it is retried.
    async fn after_error(&self, mut question: HookRequest) -> Ended {
        let withheld = "the call failed, and its own error was withheld";
        for placed in self.list.iter().rev() {
            if !placed.is_asked(HookPoint::ToolError, &question) {
                continue;
            }
            let message = match placed.ask(&question).await {
                Ok(Reply::Allow) => {
                    placed.count(&question, "allow");
                    continue;
                }
                Ok(Reply::ModifyResult { result: Some(result), .. }) => {
                    placed.note(&question, "modify_result");
                    return Ended { outcome: Ok(result.into()), output: None };
                }
                Ok(Reply::Deny { reason }) => {
                    placed.note(&question, "deny");
                    reason
                }
                Ok(reply) => placed.failed(&question, &misplaced(&reply), withheld).message,
                Err(why) => placed.failed(&question, &why, withheld).message,
            };
            if let CallStage::Failed { error } = &mut question.happened {
                let CallError { kind, retryable, retry_after, .. } = *error;
                *error = CallError { retryable, retry_after, ..CallError::new(kind, message) };
            }
        }
        Ended::of(question.happened)
    }

    /// Notifies the hooks of a call that ended without an execution about which they decided, or that will not be
    /// executed. Their answers have no effect.
    pub async fn notify(&self, question: HookRequest) {
        for placed in self.list.iter().filter(|placed| placed.is_asked(question.moment(), &question)) {
            match placed.ask(&question).await {
                Ok(_) => placed.count(&question, "notified"),
                Err(why) => {
                    placed.count(&question, "failed");
                    tracing::warn!(hook = placed.placement.name, %why, "notifying hook of the end of a call failed");
                }
            }
        }
    }
}

/// Calls these hooks about a result, the last one first. `withheld` says what happened to a result that is denied.
async fn after_result(hooks: &[Placed], mut question: HookRequest, withheld: &str) -> Ended {
    for placed in hooks.iter().rev() {
        if !placed.is_asked(HookPoint::PostToolUse, &question) {
            continue;
        }
        let error = match placed.ask(&question).await {
            Ok(Reply::Allow) => {
                placed.count(&question, "allow");
                continue;
            }
            Ok(Reply::ModifyResult { result: new, extra_state: state, output: said }) => {
                placed.note(&question, "modify_result");
                if let CallStage::Completed { result, extra_state, output } = &mut question.happened {
                    new.into_iter().for_each(|new| *result = new);
                    state.into_iter().for_each(|state| *extra_state = state);
                    if let (Some(output), Some(said)) = (output, said) {
                        *output = said;
                    }
                }
                continue;
            }
            Ok(Reply::Deny { reason }) => {
                placed.note(&question, "deny");
                CallError::new(ErrorKind::Denied, format!("{withheld}: {reason}"))
            }
            Ok(reply) => placed.failed(&question, &misplaced(&reply), withheld),
            Err(why) => placed.failed(&question, &why, withheld),
        };
        return Ended { outcome: Err(error), output: None };
    }
    Ended::of(question.happened)
}

/// A decision that cannot be made at this point.
fn misplaced(reply: &Reply) -> HookError {
    HookError::misplaced(match reply {
        Reply::Allow => "allow",
        Reply::Deny { .. } => "deny",
        Reply::Modify { .. } => "modify",
        Reply::LeaveToClient => "leave_to_client",
        Reply::Answer { .. } => "answer",
        Reply::ModifyResult { .. } => "modify_result",
    })
}

impl Placed {
    fn is_asked(&self, moment: HookPoint, question: &HookRequest) -> bool {
        self.placement.on.contains(&moment) && self.tools.have(&question.tool, question.alias_of.as_ref())
    }

    /// Runs in its own task, so that a panic ends only this task.
    async fn ask(&self, question: &HookRequest) -> Result<Reply, HookError> {
        let (link, mut question) = (Arc::clone(&self.link), question.clone());
        if !self.placement.holds_output
            && let CallStage::Completed { output, .. } = &mut question.happened
        {
            *output = None;
        }
        let (mut task, began, point) = (JoinSet::new(), Instant::now(), question.moment());
        task.spawn(async move { link.ask(&question).await });
        let answered = match tokio::time::timeout(self.placement.timeout, task.join_next()).await {
            Ok(Some(Ok(answered))) => answered,
            Ok(Some(Err(_)) | None) => Err(HookError::new("it panicked")),
            Err(_) => Err(HookError::new(format!("it did not answer within {:?}", self.placement.timeout))),
        };
        metrics::took(&self.placement.name, point, began.elapsed());
        answered
    }

    fn count(&self, question: &HookRequest, decision: &'static str) {
        metrics::decided(&self.placement.name, question.moment(), decision);
    }

    fn failed(&self, question: &HookRequest, why: &HookError, so: &str) -> CallError {
        let name = &self.placement.name;
        tracing::warn!(hook = name, run.id = %question.run, tool = %question.tool, %why, "a hook failed");
        self.note(question, "failed");
        CallError::new(ErrorKind::HookFailed, format!("{so}: hook {name} failed: {why}"))
    }

    /// Counts a decision and writes it to the audit log.
    fn note(&self, question: &HookRequest, decision: &'static str) {
        self.count(question, decision);
        tracing::info!(
            target: AUDIT,
            tenant = question.tenant.as_ref().map(tracing::field::display),
            run.id = %question.run,
            call.id = question.call.as_ref().map(tracing::field::display),
            tool = %question.tool,
            hook = self.placement.name,
            event = question.moment().name(),
            decision,
        );
    }
}

/// A [`Hook`] with its type erased.
trait Link: Send + Sync {
    fn ask<'a>(&'a self, question: &'a HookRequest) -> Answer<'a>;
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Reply, HookError>> + Send + 'a>>;

impl<H: Hook> Link for H {
    fn ask<'a>(&'a self, question: &'a HookRequest) -> Answer<'a> {
        Box::pin(Hook::ask(self, question))
    }
}

impl std::fmt::Debug for dyn Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a hook")
    }
}
