//! Asks hooks about an execution before its end is stored.

use std::sync::Arc;

use hooks::{CallStage, HookPoint, HookRequest, Hooks};
use proto::convert::log::Job;
use run::{
    AfterPartialOutput, AttemptNumber, AttemptOutcome, CallError, Chunk, Completion, Content, ErrorKind, Progress,
    ToolName, limit,
};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};

use toolyard_tool::Table;
use toolyard_tool::runtime::{Said, completion, label_size};

/// Bytes of output that are held back for a hook, which receives and returns all of it at once.
const HELD_BYTES_MAX: usize = 512 * 1024;
/// Pieces of it.
const HELD_CHUNKS_MAX: u32 = 16 * 1024;
/// How often a call whose output is held back sends a sign of life while its tool emits output. It is shorter than the
/// margin by which the owner of its run detects silence later than its worker.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// The hooks for executions of a tool.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    pub(crate) hooks: Hooks,
    pub(crate) alias_of: Option<ToolName>,
    /// Output of the tool is held back until its end.
    pub(crate) holds_output: bool,
}

/// A hook that cannot watch a tool.
#[derive(Debug, thiserror::Error)]
#[error(
    "hook {hook:?} holds back what {tool} says, which goes on where it broke off: leave the tool out of it, or host the tool \
     with after_partial_output Restart or Buffer"
)]
pub struct Unwatchable {
    pub hook: String,
    pub tool: ToolName,
}

/// Whether these hooks can watch the tools of a table.
///
/// # Errors
/// A hook holds back the output of a tool that continues interrupted output: its progress would not be known.
pub(crate) fn check(hooks: &Hooks, table: &Table) -> Result<(), Unwatchable> {
    for (name, tool) in table.names() {
        let mut hosted = table.manifests().filter(|manifest| manifest.name == *tool);
        let continues = hosted.any(|manifest| manifest.policy.after_partial_output == AfterPartialOutput::Continue);
        let alias_of = (name != tool).then_some(tool);
        if let Some(hook) = hooks.holder(name, alias_of).filter(|_| continues) {
            return Err(Unwatchable { hook: hook.to_owned(), tool: name.clone() });
        }
    }
    Ok(())
}

/// The tools of a worker: those that its hooks can watch, and those that follow, which are not checked.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) first: Arc<Table>,
    pub(crate) later: watch::Receiver<Arc<Table>>,
}

impl Tables {
    /// Takes the first table. One that comes while the worker connects counts as a later one.
    ///
    /// # Errors
    /// As [`check`].
    pub(crate) fn check(hooks: &Hooks, mut tables: watch::Receiver<Arc<Table>>) -> Result<Self, Unwatchable> {
        let first = Arc::clone(&tables.borrow_and_update());
        check(hooks, &first)?;
        Ok(Self { first, later: tables })
    }
}

/// The outcome of an execution after all hooks answered.
pub(crate) struct Judged {
    pub(crate) outcome: AttemptOutcome,
    pub(crate) output: Vec<Chunk>,
}

impl Watched {
    /// Who is asked about executions of a tool, where anybody is.
    pub(crate) fn of(hooks: &Hooks, table: &Table, tool: &ToolName) -> Option<Self> {
        if !hooks.has(HookPoint::PostToolUse) && !hooks.has(HookPoint::ToolError) {
            return None;
        }
        let own_name = table.own_name(tool);
        let alias_of = (own_name != tool).then_some(own_name);
        let holds_output = hooks.holder(tool, alias_of).is_some();
        let watched = || Self { hooks: hooks.clone(), alias_of: alias_of.cloned(), holds_output };
        hooks.watch(tool, alias_of).then(watched)
    }

    /// Asks on the tools' runtime, which hooks of this process may keep busy. Held output of an execution without a
    /// result is discarded. Hooks are not asked about executions that were cancelled, are overdue, or are given back.
    pub(crate) async fn judge(
        self,
        (job, number): (&Job, AttemptNumber),
        outcome: AttemptOutcome,
        held: Vec<Chunk>,
        tools: &Handle,
    ) -> Judged {
        let was_completed = matches!(outcome, AttemptOutcome::Completed(_));
        let outcome = match outcome {
            AttemptOutcome::Completed(result) => {
                watchable_result(result).map_or_else(AttemptOutcome::Failed, AttemptOutcome::Completed)
            }
            AttemptOutcome::Failed(_)
            | AttemptOutcome::Cancelled
            | AttemptOutcome::Expired
            | AttemptOutcome::Returned => outcome,
        };
        let happened = match outcome {
            AttemptOutcome::Completed(Completion { result, extra_state }) => {
                CallStage::Completed { result, extra_state, output: self.holds_output.then_some(held) }
            }
            AttemptOutcome::Failed(error) => CallStage::Failed { error },
            AttemptOutcome::Cancelled | AttemptOutcome::Expired | AttemptOutcome::Returned => {
                return Judged { outcome, output: Vec::new() };
            }
        };
        let question = HookRequest {
            run: job.run,
            call: Some(job.spec.id.clone()),
            tool: job.spec.tool.clone(),
            alias_of: self.alias_of,
            tenant: job.requester.as_ref().and_then(|requester| requester.tenant.clone()),
            attempt: Some(number),
            metadata: job.spec.metadata.clone(),
            arguments: job.spec.arguments.clone(),
            happened,
        };
        let hooks = self.hooks;
        let ended = tools.spawn(async move { hooks.after(question).await }).await;
        let withheld = |why: &str| {
            let how = if was_completed { "the call ran, and its result" } else { "the call failed, and its error" };
            CallError::new(ErrorKind::HookFailed, format!("{how} was withheld: {why}"))
        };
        let Ok(ended) = ended else {
            return Judged {
                outcome: AttemptOutcome::Failed(withheld("the hooks could not be asked")),
                output: Vec::new(),
            };
        };
        let output = ended.output.unwrap_or_default();
        if output.iter().any(|chunk| size(chunk) > limit::CHUNK_BYTES_MAX || label_size(chunk) > limit::LABEL_BYTES_MAX)
        {
            let (most, label) = (limit::CHUNK_BYTES_MAX, limit::LABEL_BYTES_MAX);
            let why = format!(
                "a hook gave a piece of output of more than {most} bytes, or one whose channel, media type or message has more than {label}"
            );
            return Judged { outcome: AttemptOutcome::Failed(withheld(&why)), output: Vec::new() };
        }
        let outcome = ended.outcome.and_then(watchable_result);
        Judged { outcome: outcome.map_or_else(AttemptOutcome::Failed, AttemptOutcome::Completed), output }
    }
}

/// The result of a call for hooks. They receive all of it, because a part could pass unchecked otherwise.
fn watchable_result(given: Completion) -> Result<Completion, CallError> {
    let size = given.result.iter().map(Content::size).sum::<usize>();
    if size > limit::RESULT_BYTES_MAX {
        let max = limit::RESULT_BYTES_MAX;
        let message = format!("the result is {size} bytes, and the hooks that watch the tool look at {max} at most");
        return Err(CallError::new(ErrorKind::ResultTooLarge, message));
    }
    completion(given)
}

fn size(chunk: &Chunk) -> usize {
    match chunk {
        Chunk::Content { content, .. } => content.size(),
        Chunk::Progress(_) => 0,
    }
}

/// Output of a call that is held back.
#[derive(Debug)]
pub(crate) struct Held {
    chunks: Vec<Chunk>,
    said: Said,
    bytes: usize,
    signed: Instant,
}

impl Held {
    pub(crate) fn new() -> Self {
        Self { chunks: Vec::new(), said: Said::default(), bytes: 0, signed: Instant::now() }
    }

    /// Keeps a chunk, and returns a sign of life if one is due. `None` if the call has more output than can be kept.
    pub(crate) fn keep(&mut self, chunk: Chunk) -> Option<Option<Chunk>> {
        self.bytes += self.said.count(&chunk)?;
        if self.bytes > HELD_BYTES_MAX || self.said.chunks() > HELD_CHUNKS_MAX {
            return None;
        }
        self.chunks.push(chunk);
        let is_due = self.signed.elapsed() >= SIGN_OF_LIFE;
        if is_due {
            self.signed = Instant::now();
        }
        let sign = Progress { done: f64::from(self.said.chunks()), total: None, message: String::new() };
        Some(is_due.then_some(Chunk::Progress(sign)))
    }

    pub(crate) fn into_chunks(self) -> Vec<Chunk> {
        self.chunks
    }
}

pub(crate) fn too_much_held() -> CallError {
    let message = format!(
        "the call said more than {HELD_CHUNKS_MAX} pieces or {HELD_BYTES_MAX} bytes, and no more is held back for a hook"
    );
    CallError::new(ErrorKind::OutputTooLarge, message)
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use toolyard_tool::About;

    use super::*;

    #[test]
    fn a_table_that_comes_while_the_worker_connects_is_not_the_one_that_was_checked() {
        let sender = watch::Sender::new(Arc::new(Table::new()));
        let Tables { first, later } = Tables::check(&Hooks::default(), sender.subscribe()).expect("no hook watches");
        assert!(!later.has_changed().expect("the sender lives"));
        sender.send_replace(Arc::new(Table::new()));
        assert!(later.has_changed().expect("the sender lives"), "it is checked when it is taken");
        assert!(!Arc::ptr_eq(&first, &later.borrow()));
    }

    fn piece(bytes: usize) -> Chunk {
        Chunk::Content { channel: String::new(), content: Content::Text("x".repeat(bytes)) }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_back_shows_from_time_to_time_that_there_is_more_of_it() {
        let mut held = Held::new();
        let mut signs = Vec::new();
        for _ in 0..12 {
            tokio::time::advance(Duration::from_secs(1)).await;
            signs.extend(held.keep(piece(1)).expect("there is room"));
        }
        let counts = signs.iter().map(|sign| match sign {
            Chunk::Progress(progress) => (progress.done, progress.message.as_str()),
            Chunk::Content { .. } => panic!("what is held back was shown: {sign:?}"),
        });
        assert_eq!(counts.collect::<Vec<_>>(), [(5.0, ""), (10.0, "")]);
        assert_eq!(held.into_chunks().len(), 12);
    }

    #[tokio::test]
    async fn no_more_is_held_back_than_can_be_looked_at() {
        let mut held = Held::new();
        assert!(held.keep(piece(HELD_BYTES_MAX)).is_some());
        assert!(held.keep(piece(1)).is_none());
        let mut held = Held::new();
        assert!((0..HELD_CHUNKS_MAX).all(|_| held.keep(piece(1)).is_some()));
        assert!(held.keep(piece(1)).is_none());
    }

    #[test]
    fn where_nobody_is_asked_about_it_a_call_allocates_nothing_for_hooks() {
        let table = Table::new().define::<NoInput>("echo", &About::new("Gives the text back.")).unwrap();
        let (none, name) = (Hooks::default(), "echo".parse().unwrap());
        let asking = || assert!(Watched::of(&none, &table, &name).is_none());
        assert_eq!(allocation_counter::measure(asking).count_total, 0);
        let placement = hooks::Placement::new("all", &[HookPoint::PostToolUse]);
        let some = Hooks::default().with(placement, Allows).unwrap();
        assert!(Watched::of(&some, &table, &name).is_some(), "the test would see it");
    }

    #[derive(JsonSchema)]
    struct NoInput {}

    struct Allows;

    impl hooks::Hook for Allows {
        async fn ask(&self, _: &hooks::HookRequest) -> Result<hooks::Reply, hooks::HookError> {
            Ok(hooks::Reply::Allow)
        }
    }

    #[test]
    fn a_hook_cannot_hold_back_what_goes_on_where_it_broke_off() {
        let goes_on = About::new("Goes on.").after_partial_output(AfterPartialOutput::Continue);
        let table = || Table::new().define::<NoInput>("goes_on", &goes_on).unwrap();
        let placement = || hooks::Placement::new("holds", &[HookPoint::PostToolUse]).holding_output();
        let error = check(&Hooks::default().with(placement(), Allows).unwrap(), &table()).unwrap_err().to_string();
        assert!(error.contains("\"holds\"") && error.contains("goes_on"), "{error}");
        let elsewhere = placement().tools(&["echo"]);
        check(&Hooks::default().with(elsewhere, Allows).unwrap(), &table()).unwrap();
        let table = Table::new().define::<NoInput>("goes_on", &goes_on.alias("resumes", "")).unwrap();
        let by_alias = placement().tools(&["resumes"]);
        let error = check(&Hooks::default().with(by_alias, Allows).unwrap(), &table).unwrap_err().to_string();
        assert!(error.contains("\"holds\"") && error.contains("resumes"), "{error}");
    }
}
