//! The audit log: one event per command, with its caller and its outcome. It never has arguments, results, keys or
//! tokens. Only written if callers are authenticated.

use std::net::SocketAddr;

use hooks::AUDIT;
use proto::Reason;
use run::{CallError, CallId, CallIndex, CallSpec, CallerName, DefaultDecision, Run, RunId, TenantId, WorkerId};

use crate::auth::callers::Caller;
use crate::fleet::paused::Pausable;
use crate::metrics;

const ADMITTED: &str = "admitted";
const REFUSED: &str = "refused";
/// The outcome is unknown because the client disconnected before.
const UNKNOWN: &str = "unknown";
const CLIENT_GONE: &str = "CLIENT_GONE";

/// A request that was not authenticated.
pub(crate) fn turned_away(command: &str, from: Option<SocketAddr>, reason: Reason) {
    let reason = reason.code();
    let from = from.map(tracing::field::display);
    tracing::info!(target: AUDIT, command = last(command), from, decision = REFUSED, reason, "audit");
}

/// A request that its caller may never make.
pub(crate) fn refused(caller: &Caller, command: &str, reason: Reason) {
    let reason = reason.code();
    count_refusal(caller);
    let (name, tenant) = who(caller);
    tracing::info!(target: AUDIT, caller = name, tenant, command = last(command), decision = REFUSED, reason, "audit");
}

fn count_refusal(caller: &Caller) {
    if let Some(tenant) = caller.tenant() {
        metrics::tenants::refused(tenant);
    }
}

/// A command and its subject.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Command<'a> {
    pub(crate) name: &'static str,
    pub(crate) run: Option<RunId>,
    pub(crate) call: Option<&'a CallId>,
    pub(crate) tool: Option<&'a str>,
}

impl Command<'_> {
    /// A command that is about no run.
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, ..Self::default() }
    }
}

/// A command whose client disconnected before it was done.
pub(crate) fn abandoned(caller: &Caller, command: Command<'_>) {
    write(caller, command, UNKNOWN, Some(CLIENT_GONE));
}

/// A command and its outcome.
pub(crate) fn command(caller: &Caller, command: Command<'_>, refusal: Option<Reason>) {
    if refusal.is_some() {
        count_refusal(caller);
    }
    let (decision, reason) = refusal.map_or((ADMITTED, None), |refusal| (REFUSED, Some(refusal.code())));
    write(caller, command, decision, reason);
}

fn write(caller: &Caller, command: Command<'_>, decision: &str, reason: Option<&str>) {
    if matches!(caller, Caller::Anyone) {
        return;
    }
    let (name, tenant) = who(caller);
    let Command { name: command, run, call, tool } = command;
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

/// Something was paused or resumed.
pub(crate) fn paused(caller: &Caller, command: &'static str, what: &Pausable, refusal: Option<Reason>) {
    if matches!(caller, Caller::Anyone) {
        return;
    }
    let (name, tenant) = who(caller);
    let (tool, pool) = match what {
        Pausable::Tool(tool) => (Some(tool.as_str()), None),
        Pausable::Pool(pool) => (None, Some(pool.as_str())),
    };
    let (decision, reason) = refusal.map_or((ADMITTED, None), |refusal| (REFUSED, Some(refusal.code())));
    tracing::info!(target: AUDIT, caller = name, tenant, command, tool, pool, decision, reason, "audit");
}

/// Runs were requested to be erased: those of a tenant, or one run. If the request was served, with their number.
pub(crate) fn erased(
    caller: &Caller,
    (tenant, run): (&str, &str),
    done: Result<&proto::v1::EraseRunsResponse, Reason>,
    dry_run: bool,
) {
    if matches!(caller, Caller::Anyone) {
        return;
    }
    let (name, own) = who(caller);
    let of = |text: &str| (!text.is_empty()).then(|| text.chars().take(64).collect::<String>());
    let (decision, reason) = done.map_or_else(|refusal| (REFUSED, Some(refusal.code())), |_| (ADMITTED, None));
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

/// A worker received a request to drain.
pub(crate) fn drained(caller: &Caller, worker: &WorkerId, refusal: Option<Reason>) {
    if matches!(caller, Caller::Anyone) {
        return;
    }
    let (name, tenant) = who(caller);
    let (decision, reason) = refusal.map_or((ADMITTED, None), |refusal| (REFUSED, Some(refusal.code())));
    let (command, worker) = ("DrainWorker", worker.as_str());
    tracing::info!(target: AUDIT, caller = name, tenant, command, worker.id = worker, decision, reason, "audit");
}

/// A command on a schedule.
pub(crate) fn schedule(caller: &Caller, command: &'static str, id: Option<&str>, refusal: Option<Reason>) {
    if refusal.is_some() {
        count_refusal(caller);
    }
    if matches!(caller, Caller::Anyone) {
        return;
    }
    let (name, tenant) = who(caller);
    let id = id.and_then(|id| id.get(..64).or(Some(id).filter(|id| id.len() < 64)));
    let (decision, reason) = refusal.map_or((ADMITTED, None), |refusal| (REFUSED, Some(refusal.code())));
    tracing::info!(target: AUDIT, caller = name, tenant, command, schedule.id = id, decision, reason, "audit");
}

/// A call that its caller lost the right to make.
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

/// Logs the default decision on a call without a decision in time.
pub(crate) fn note_default(run: &Run, call: CallIndex) {
    let Some(spec) = run.call(call).map(run::Call::spec) else { return };
    let decision = match spec.approval.map(|approval| approval.default) {
        Some(DefaultDecision::Approve) => "approved_by_default",
        Some(DefaultDecision::Reject) | None => "rejected_by_default",
    };
    decided(run.id(), run.tenant(), spec, decision, None);
}

/// One event per decision: the caller, the call, and the decision; never arguments or results.
pub(crate) fn decided(
    run: RunId,
    tenant: Option<&TenantId>,
    spec: &CallSpec,
    decision: &'static str,
    why: Option<&CallError>,
) {
    tracing::info!(
        target: AUDIT,
        tenant = tenant.map(tracing::field::display),
        run.id = %run,
        // As text, which the human-readable log quotes, because an id may hold spaces.
        call.id = spec.id.as_str(),
        tool = spec.tool.as_str(),
        decision,
        why = why.map(|error| proto::convert::error_kind_name(error.kind)),
    );
}

/// The method of a path, the only readable part.
fn last(path: &str) -> &str {
    let method = path.rsplit('/').next().unwrap_or(path);
    method.get(..64).unwrap_or(method)
}
