//! Who asked for what, and whether it was done: one event a command, for whoever must account for it later. Never arguments,
//! results, keys or tokens. Only where it is known who asks.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use hooks::AUDIT;
use run::{CallId, CallSpec, CallerName, Run, RunId, TenantId, WorkerId};

use crate::accept::Asked;
use crate::callers::Caller;
use crate::metrics;
use crate::paused::Pausable;
use crate::runs::{Refusal, Runs};

const ADMITTED: &str = "admitted";
const REFUSED: &str = "refused";
/// Whether it was done is not known: its client went away before that.
const UNKNOWN: &str = "unknown";
const CLIENT_GONE: &str = "CLIENT_GONE";

/// Names of tools that one event tells.
const TOOLS_TOLD_MAX: usize = 16;

/// The tools of a request, each once; `None` where nobody accounts for them.
pub(crate) fn tools(caller: &Caller, calls: &[Asked]) -> Option<String> {
    if matches!(caller, Caller::Anyone) {
        return None;
    }
    let tools: BTreeSet<&str> = calls.iter().map(|call| call.tool.as_str()).collect();
    Some(tools.into_iter().take(TOOLS_TOLD_MAX).collect::<Vec<_>>().join(","))
}

/// Somebody came of whom it is not known who they are.
pub(crate) fn turned_away(command: &str, from: Option<SocketAddr>, reason: &str) {
    let from = from.map(tracing::field::display);
    tracing::info!(target: AUDIT, command = last(command), from, decision = REFUSED, reason, "audit");
}

/// Somebody may not ask for this at all.
pub(crate) fn refused(caller: &Caller, command: &str, reason: &str) {
    count_refusal(caller);
    let (name, tenant) = who(caller);
    tracing::info!(target: AUDIT, caller = name, tenant, command = last(command), decision = REFUSED, reason, "audit");
}

fn count_refusal(caller: &Caller) {
    if let Some(tenant) = caller.tenant() {
        metrics::tenants::refused(tenant);
    }
}

/// A command at work. Its event is written when it is done, or when its client goes away before: what is stored by then is
/// executed all the same.
pub(crate) struct Asking<'here> {
    runs: &'here Runs,
    command: &'static str,
    run: Option<RunId>,
    call: Option<&'here CallId>,
    tools: Option<String>,
    is_done: bool,
}

impl<'here> Asking<'here> {
    /// A command that makes a run.
    pub(crate) fn new(runs: &'here Runs, command: &'static str, tools: Option<String>) -> Self {
        Self { runs, command, run: None, call: None, tools, is_done: false }
    }

    /// A command on a run, or on a call of it.
    pub(crate) fn on(runs: &'here Runs, command: &'static str, (run, call): (RunId, Option<&'here CallId>)) -> Self {
        Self { runs, command, run: Some(run), call, tools: None, is_done: false }
    }

    /// The run is about to be opened.
    pub(crate) fn about(&mut self, run: RunId) {
        self.run = Some(run);
        if let Some(slot) = &self.runs.about_to_open {
            slot.set(run);
        }
    }

    /// How it went. A refusal names the run only if the command was on one.
    pub(crate) fn done(mut self, run: Option<RunId>, refusal: Option<&Refusal>) {
        self.is_done = true;
        command(&self.runs.caller, self.command, (run, self.call), self.tools.as_deref(), refusal);
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            let decision = (UNKNOWN, Some(CLIENT_GONE));
            write(&self.runs.caller, self.command, (self.run, self.call), self.tools.as_deref(), decision);
        }
    }
}

/// A command, as it went.
pub(crate) fn command(
    caller: &Caller,
    command: &'static str,
    (run, call): (Option<RunId>, Option<&CallId>),
    tool: Option<&str>,
    refusal: Option<&Refusal>,
) {
    if refusal.is_some() {
        count_refusal(caller);
    }
    let decision = refusal.map_or((ADMITTED, None), |refusal| (REFUSED, Some(word(refusal))));
    write(caller, command, (run, call), tool, decision);
}

fn write(
    caller: &Caller,
    command: &'static str,
    (run, call): (Option<RunId>, Option<&CallId>),
    tool: Option<&str>,
    (decision, reason): (&str, Option<&str>),
) {
    if matches!(caller, Caller::Anyone) {
        return;
    }
    let (name, tenant) = who(caller);
    let run = run.map(tracing::field::display);
    let call = call.map(CallId::as_str);
    tracing::info!(
        target: AUDIT,
        caller = name,
        tenant,
        command,
        run.id = run,
        call.id = call,
        tool,
        decision,
        reason,
        "audit"
    );
}

/// Something was paused, or goes on.
pub(crate) fn paused(caller: &Caller, command: &'static str, what: &Pausable, refusal: Option<&Refusal>) {
    if matches!(caller, Caller::Anyone) {
        return;
    }
    let (name, tenant) = who(caller);
    let (tool, pool) = match what {
        Pausable::Tool(tool) => (Some(tool.as_str()), None),
        Pausable::Pool(pool) => (None, Some(pool.as_str())),
    };
    let (decision, reason) = refusal.map_or((ADMITTED, None), |refusal| (REFUSED, Some(word(refusal))));
    tracing::info!(target: AUDIT, caller = name, tenant, command, tool, pool, decision, reason, "audit");
}

/// Runs were to be erased: of a tenant, or one run. Of a request that was served, also how many.
pub(crate) fn erased(
    caller: &Caller,
    (tenant, run): (&str, &str),
    done: Result<&proto::v1::EraseRunsResponse, &Refusal>,
    dry_run: bool,
) {
    if matches!(caller, Caller::Anyone) {
        return;
    }
    let (name, own) = who(caller);
    let of = |text: &str| (!text.is_empty()).then(|| text.get(..64).unwrap_or("").to_owned());
    let (decision, reason) = done.map_or_else(|refusal| (REFUSED, Some(word(refusal))), |_| (ADMITTED, None));
    let (matched, requested) = done.map(|answer| (Some(answer.matched), Some(answer.requested))).unwrap_or_default();
    tracing::info!(
        target: AUDIT,
        caller = name,
        tenant = own,
        command = "EraseRuns",
        erased.tenant = of(tenant),
        run.id = of(run),
        dry_run,
        matched,
        requested,
        decision,
        reason,
        "audit"
    );
}

/// A worker was told to drain.
pub(crate) fn drained(caller: &Caller, worker: &WorkerId, refusal: Option<&Refusal>) {
    if matches!(caller, Caller::Anyone) {
        return;
    }
    let (name, tenant) = who(caller);
    let (decision, reason) = refusal.map_or((ADMITTED, None), |refusal| (REFUSED, Some(word(refusal))));
    let (command, worker) = ("DrainWorker", worker.as_str());
    tracing::info!(target: AUDIT, caller = name, tenant, command, worker.id = worker, decision, reason, "audit");
}

/// A call that its caller may not make any more.
pub(crate) fn call_refused(run: &Run, spec: &CallSpec) {
    tracing::info!(
        target: AUDIT,
        caller = run.caller().map(CallerName::as_str),
        tenant = run.tenant().map(TenantId::as_str),
        command = "Dispatch",
        run.id = %run.id(),
        call.id = spec.id.as_str(),
        tool = spec.tool.as_str(),
        decision = REFUSED,
        reason = "NOT_PERMITTED",
        "audit"
    );
}

fn who(caller: &Caller) -> (Option<&str>, Option<&str>) {
    (caller.name().map(CallerName::as_str), caller.tenant().map(TenantId::as_str))
}

/// Why, in a word: texts may hold what the caller sent.
fn word(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Malformed { .. } => "MALFORMED",
        Refusal::NothingSelected => "NOTHING_SELECTED",
        Refusal::Rejected(_) => "REJECTED",
        Refusal::NotPermitted(denied) => denied.reason,
        Refusal::Denied { .. } => "DENIED_BY_HOOK",
        Refusal::Exceeded(_) => "QUOTA_EXCEEDED",
        Refusal::RunNotFound(_) => "RUN_NOT_FOUND",
        Refusal::EventsExpired(_) => "EVENTS_EXPIRED",
        Refusal::ArgumentsInvalid { .. } => "ARGUMENTS_INVALID",
        Refusal::ToolNotFound(_) => "TOOL_NOT_FOUND",
        Refusal::PoolNotFound(_) => "POOL_NOT_FOUND",
        Refusal::WorkerNotFound(_) => "WORKER_NOT_FOUND",
        Refusal::WorkerSilent(_) => "WORKER_SILENT",
        Refusal::RequestIdTaken { .. } => "REQUEST_ID_TAKEN",
        Refusal::ObjectNotFound(_) => "OBJECT_NOT_FOUND",
        Refusal::LinkUnknown => "LINK_UNKNOWN",
        Refusal::ObjectsFull => "OBJECTS_FULL",
        Refusal::UploadsFull { .. } => "UPLOADS_FULL",
        Refusal::TooManyUploads { .. } => "TOO_MANY_UPLOADS",
        Refusal::UploadsBusy => "UPLOADS_BUSY",
        Refusal::ObjectsUnavailable(_) => "OBJECTS_UNAVAILABLE",
        Refusal::ObjectTooLarge => "PAYLOAD_TOO_LARGE",
        Refusal::OutOfObject { .. } => "OUT_OF_OBJECT",
        Refusal::LogFull(_) | Refusal::RequestIdsFull => "LOG_FULL",
        Refusal::TooLarge => "PAYLOAD_TOO_LARGE",
        Refusal::Contended => "CONTENDED",
        Refusal::BrokerUnavailable(_) => "BROKER_UNAVAILABLE",
        Refusal::Unconfirmed { .. } => "UNCONFIRMED",
        Refusal::ShuttingDown => "SHUTTING_DOWN",
    }
}

/// The method of a path, which alone is worth reading.
fn last(path: &str) -> &str {
    let method = path.rsplit('/').next().unwrap_or(path);
    method.get(..64).unwrap_or(method)
}
