//! Turns what a client asked for into calls as they are accepted: routed, checked against their schemas, with deadlines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hooks::{Confirm, Confirmation};
use proto::steps::Steps;
use proto::{history, schema};
use run::{
    Approval, CallError, CallId, CallIndex, CallSpec, Concurrency, DefaultDecision, ErrorKind, Fields, File, PoolId,
    Route, Rules, TenantId, Timestamp, ToolName, WithoutWorker,
};

use crate::callers::{Caller, Role, TenantTools, not_permitted};
use crate::custom::{Custom, CustomTools};
use crate::limits;
use crate::registry::{Entry, Registry};
use crate::runs::Refusal;
use crate::trace;

/// Names that an error for an unknown tool lists: enough for any sensible set, bounded for the others.
const TOOLS_LISTED_MAX: usize = 64;

/// A call as it was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) id: Option<CallId>,
    pub(crate) tool: ToolName,
    pub(crate) arguments: Bytes,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) queue_timeout: Option<Duration>,
    pub(crate) without_worker: WithoutWorker,
    /// Where the caller does not say, the tool does.
    pub(crate) concurrency: Option<Concurrency>,
    /// Somebody must agree to it first. Where the caller does not ask for that, its tool may.
    pub(crate) approval: Option<AskedApproval>,
    /// What its tool is to be given beside the arguments, over what the run gives.
    pub(crate) context: Fields,
    /// What it may open.
    pub(crate) files: Vec<File>,
    /// Why it is not to be executed, as hooks and resolvers have it.
    pub(crate) refusal: Option<CallError>,
    /// What is known of its tool otherwise than from what is on offer.
    pub(crate) unlisted: Option<Unlisted>,
}

/// What is known of a tool that is not on offer.
#[derive(Debug, Clone)]
pub(crate) enum Unlisted {
    /// The name that was asked for stands for this tool, which need not be on offer itself.
    Alias,
    /// The client answers its calls; their arguments were looked at.
    Client,
    /// Why nobody could be asked what the name stands for.
    Unresolved(Arc<str>),
}

/// How a call is to be approved.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AskedApproval {
    pub(crate) timeout: Option<Duration>,
    pub(crate) default: DefaultDecision,
}

/// What the calls of a run may name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer<'a> {
    /// Tools of the request. They go before all others.
    pub(crate) custom: &'a CustomTools,
    /// The tools that the run attached; empty for all that are listed.
    pub(crate) attached: &'a [ToolName],
    pub(crate) registry: &'a Registry,
    /// Whose run it is: its tools are those that its tenant can use.
    pub(crate) tenant: Option<&'a TenantId>,
}

impl<'a> Offer<'a> {
    /// Where calls of a worker's tool go, unless a tool of the request has its name.
    fn route(&self, tool: &ToolName, fit: impl FnOnce(&Entry) -> bool) -> Option<(&'a PoolId, &'a Entry)> {
        self.registry.route(tool, self.tenant, fit).filter(|(_, entry)| self.holds(entry))
    }

    /// Nobody here knows the tool, and the run may name it: who knows tools elsewhere may be asked.
    pub(crate) fn lacks(&self, tool: &ToolName) -> bool {
        let is_open = self.attached.is_empty() || self.attached.contains(tool);
        is_open && !self.custom.contains_key(tool) && self.registry.catalog.find(tool).is_none()
    }

    /// Whether the run may name a tool that its tenant cannot use.
    fn names(&self, tool: &ToolName) -> bool {
        self.registry.catalog.find(tool).is_some_and(|entry| self.holds(entry))
    }

    /// Whether checking this call's arguments is sure to be quick.
    pub(crate) fn is_quick(&self, call: &Asked) -> bool {
        match self.custom.get(&call.tool) {
            Some(custom) => custom.is_quick(&call.arguments),
            None => {
                let entry = self.registry.catalog_of(self.tenant).find(&call.tool);
                let mut versions = entry.into_iter().flat_map(Entry::versions);
                versions.all(|entry| entry.hosted.is_quick(&call.arguments))
            }
        }
    }

    fn holds(&self, entry: &Entry) -> bool {
        let is_open = if self.attached.is_empty() {
            !entry.hosted.manifest.result_use.hidden
        } else {
            self.attached.contains(&entry.name)
        };
        is_open && !self.custom.contains_key(&entry.name)
    }
}

/// What is known where calls are accepted.
pub(crate) struct Scope<'here> {
    /// The first call's position in its run.
    pub(crate) first: usize,
    pub(crate) offer: Offer<'here>,
    /// Nothing is executed here.
    pub(crate) client_only: bool,
    pub(crate) run_deadline: Timestamp,
    pub(crate) now: Timestamp,
    /// Which calls a person confirms, and how the run is to be run.
    pub(crate) confirm: &'here Confirm,
    pub(crate) rules: Rules,
    /// What the run gives to its calls.
    pub(crate) context: &'here Fields,
    pub(crate) caller: &'here Caller,
    /// The tools that the run's tenant has; `None` for all.
    pub(crate) tenant: Option<Arc<TenantTools>>,
}

impl Scope<'_> {
    /// Why a tool may not be called, where that is so.
    fn denies(&self, entry: &Entry) -> Option<&'static str> {
        if self.tenant.as_ref().is_some_and(|tenant| !tenant.have(entry)) {
            return Some("its tenant does not have it");
        }
        (!self.caller.may_call(entry)).then_some("its caller has not the right")
    }
}

/// Accepts calls. One that cannot be executed is accepted too, and ended at once with an error that the model can mend; the
/// others go on.
pub(crate) fn accept(calls: Vec<Asked>, scope: &Scope<'_>) -> Vec<Arc<CallSpec>> {
    let mut steps = steps_for(&calls);
    let with_index = calls.into_iter().zip(scope.first..);
    with_index.map(|(call, index)| Arc::new(accept_one(call, index, scope, &mut steps))).collect()
}

/// The steps that the checks of some calls may take together.
pub(crate) fn steps_for(calls: &[Asked]) -> Steps {
    Steps::of_request(calls.iter().map(|call| call.arguments.len()).sum())
}

pub(crate) fn accept_one(call: Asked, index: usize, scope: &Scope<'_>, steps: &mut Steps) -> CallSpec {
    let Asked {
        id,
        tool,
        arguments,
        mut metadata,
        timeout,
        queue_timeout,
        without_worker,
        concurrency,
        approval,
        context,
        files,
        refusal,
        unlisted,
    } = call;
    let Scope { offer, run_deadline, now, .. } = *scope;
    trace::carry_on(&mut metadata);
    let deadline = timeout.map_or(run_deadline, |timeout| now.after(timeout).min(run_deadline));
    let custom = offer.custom.get(&tool).filter(|_| unlisted.is_none());
    let takes_object = custom.is_none_or(Custom::takes_object);
    let arguments = if arguments.is_empty() && takes_object { Bytes::from_static(b"{}") } else { arguments };
    let queue_deadline = queue_timeout.map(|timeout| now.after(timeout).min(deadline));
    // A version that is rolled out gets what it can execute: callers know the one that is listed.
    let fit = |next: &Entry| scope.denies(next).is_none() && fits(next, &arguments);
    let found = match &unlisted {
        Some(Unlisted::Alias) => offer.registry.route(&tool, offer.tenant, fit),
        Some(Unlisted::Client) => None,
        Some(Unlisted::Unresolved(_)) | None => offer.route(&tool, fit),
    };
    let wanted = Wanted { tool: &tool, arguments: &arguments, without_worker, custom, unlisted: unlisted.as_ref() };
    let route = match (route(&wanted, scope, found, steps), scope.client_only) {
        (Route::Pool { .. }, true) => Route::Client,
        (route, _) => route,
    };
    let refusal = refusal.or_else(|| limits::beyond(index, scope.rules));
    let refusal = refusal.or_else(|| found.and_then(|(_, entry)| waived(&tool, entry, approval, scope)));
    let route = refusal.map_or(route, Route::Refused);
    let id = id.unwrap_or_else(|| made_id(index));
    let manifest = found.map(|(_, entry)| &entry.hosted.manifest);
    let confirmation = found.map_or(Confirmation::NotNeeded, |(_, entry)| confirmation(entry, scope));
    let (asks, must) = (confirmation != Confirmation::NotNeeded, confirmation == Confirmation::Required);
    // What is not executed here need not be approved here.
    let is_executed = matches!(route, Route::Pool { .. });
    let approval = approval.or(asks.then(AskedApproval::default)).filter(|_| is_executed);
    let approval = approval.map(|AskedApproval { timeout, default }| Approval {
        deadline: now.after(timeout.unwrap_or(run::limit::APPROVAL_TIMEOUT)).min(deadline),
        default: if must { DefaultDecision::Reject } else { default },
    });
    let says = || found.map(|(_, entry)| entry.hosted.concurrency.of(&arguments, approval.is_some()));
    let concurrency = concurrency.or_else(says).unwrap_or(Concurrency::Parallel);
    let result_use = manifest.map(|manifest| manifest.result_use).unwrap_or_default();
    let keys = manifest.filter(|_| is_executed).map_or(&[][..], |manifest| &manifest.context_keys);
    let context = given(keys, scope.context, &context);
    CallSpec {
        id,
        tool,
        arguments,
        metadata,
        route,
        deadline,
        queue_deadline,
        without_worker,
        concurrency,
        approval,
        result_use,
        context,
        files,
    }
}

/// Whether a tool takes these arguments, as far as can be said within the steps of a call.
fn fits(entry: &Entry, arguments: &Bytes) -> bool {
    let mut steps = Steps::of_request(arguments.len());
    arguments.len() <= run::limit::ARGUMENTS_BYTES_MAX
        && entry.hosted.schema.check_within(arguments, &mut steps).is_ok()
}

/// What a tool is given: of the run's context, with the call's over it, the keys that it declares. The place of the run's history is
/// kept for when the call's job is stored.
fn given(keys: &[String], run: &Fields, call: &Fields) -> Fields {
    let mut given = Fields::default();
    if keys.is_empty() {
        return given;
    }
    given.overlay(run);
    given.overlay(call);
    given.keep(keys);
    if keys.iter().any(|key| key == history::TOOL_CALL_HISTORY) {
        given.set(history::TOOL_CALL_HISTORY, history::NONE);
    }
    given
}

/// What a tool wants, and the deployment of a dangerous one.
fn confirmation(entry: &Entry, scope: &Scope<'_>) -> Confirmation {
    let manifest = &entry.hosted.manifest;
    match manifest.requires_confirmation {
        true => Confirmation::Required,
        false => scope.confirm.of(manifest, entry.alias_of.as_ref(), scope.rules.confirm),
    }
}

/// Why a call is refused whose approval its caller waives: only who may approve may do without. A tool that requires approval has
/// it, whatever its caller wants.
fn waived(tool: &ToolName, entry: &Entry, approval: Option<AskedApproval>, scope: &Scope<'_>) -> Option<CallError> {
    let by_default = approval.is_some_and(|approval| approval.default == DefaultDecision::Approve);
    if !(by_default || scope.rules.confirm == Some(false)) || scope.client_only {
        return None;
    }
    let manifest = &entry.hosted.manifest;
    // What the deployment wants where nobody waives it.
    let wanted = scope.confirm.of(manifest, entry.alias_of.as_ref(), None);
    if wanted != Confirmation::Wanted || manifest.requires_confirmation || scope.caller.must(Role::Approve).is_ok() {
        return None;
    }
    let why = "its calls await approval, which this request waives, and its caller lacks the role approve: leave \
               `confirmation` and `approval.default` out, or use `toolyard call --approval`";
    Some(not_permitted(tool, why))
}

fn made_id(index: usize) -> CallId {
    format!("call_{}", CallIndex(u16::try_from(index).unwrap_or(u16::MAX)))
        .parse()
        .expect("a word and a number have no control characters")
}

/// What a call's way hangs on.
struct Wanted<'a> {
    tool: &'a ToolName,
    arguments: &'a Bytes,
    without_worker: WithoutWorker,
    custom: Option<&'a Custom>,
    unlisted: Option<&'a Unlisted>,
}

fn route(wanted: &Wanted<'_>, scope: &Scope<'_>, found: Option<(&PoolId, &Entry)>, steps: &mut Steps) -> Route {
    let Wanted { tool, arguments, without_worker, custom, unlisted } = *wanted;
    let registry = scope.offer.registry;
    // Oversized arguments are refused as a whole request: they are not worth looking at here.
    let is_sized = arguments.len() <= run::limit::ARGUMENTS_BYTES_MAX;
    if let Some(Unlisted::Client) = unlisted {
        return Route::Client;
    }
    if let Some(custom) = custom {
        let checked = if is_sized { custom.check(arguments, steps) } else { Ok(()) };
        return checked.map_or_else(Route::Refused, |()| Route::Client);
    }
    let Some((pool, entry)) = found else {
        let closed = registry.closed_to(scope.offer.tenant, tool).filter(|_| scope.offer.names(tool));
        return Route::Refused(closed.unwrap_or_else(|| unknown_tool(tool, unlisted, scope)));
    };
    let hosted = &entry.hosted;
    if let Some(why) = scope.denies(entry) {
        return Route::Refused(not_permitted(tool, why));
    }
    if is_sized && let Err(violations) = hosted.schema.check_within(arguments, steps) {
        let error = CallError::new(ErrorKind::ArgumentsInvalid, schema::describe(&violations));
        return Route::Refused(CallError { violations, ..error });
    }
    if hosted.manifest.definition_only {
        return Route::Client;
    }
    // Before we have listened for a while, a worker that is not known may live all the same: then the call's owner decides.
    let fails = without_worker == WithoutWorker::Fail && !scope.client_only;
    if fails && registry.settled && registry.living_hosts(pool, entry).taking == 0 {
        return Route::Refused(run::no_worker(tool, pool));
    }
    Route::Pool { pool: pool.clone(), policy: hosted.manifest.policy.clone(), version: entry.version().cloned() }
}

/// Arguments that somebody put in the place of a call's own fit its tool, as it is known now; the worker checks them once
/// more.
pub(crate) fn check_changed(
    spec: &CallSpec,
    arguments: &Bytes,
    (registry, tenant): (&Registry, Option<&TenantId>),
) -> Result<(), Refusal> {
    let Route::Pool { pool, .. } = &spec.route else { return Ok(()) };
    let entry = registry.catalog_of(tenant).find(&spec.tool).ok_or_else(|| Refusal::ToolNotFound(spec.tool.clone()))?;
    let entry = entry.of(pool);
    // Oversized ones are refused by the run.
    if arguments.len() > run::limit::ARGUMENTS_BYTES_MAX {
        return Ok(());
    }
    let invalid = |violations| Refusal::ArgumentsInvalid { call: spec.id.clone(), violations };
    entry.hosted.schema.check(arguments).map(|_| ()).map_err(invalid)
}

fn unknown_tool(tool: &ToolName, unlisted: Option<&Unlisted>, scope: &Scope<'_>) -> CallError {
    let offer = &scope.offer;
    let offered =
        |entry: &&Entry| offer.holds(entry) && offer.registry.is_available(entry) && scope.denies(entry).is_none();
    let hosted = offer.registry.catalog_of(offer.tenant).after(None).iter().filter(offered).map(|entry| &entry.name);
    let mut names: Vec<&str> = offer.custom.keys().chain(hosted).map(ToolName::as_str).collect();
    let more = names.len().saturating_sub(TOOLS_LISTED_MAX);
    names.truncate(TOOLS_LISTED_MAX);
    let known = match (names.as_slice(), more) {
        ([], _) => "no tool is known yet".to_owned(),
        (names, 0) => format!("the tools are: {}", names.join(", ")),
        (names, more) => format!("the tools are: {}, and {more} more", names.join(", ")),
    };
    let why = match unlisted {
        Some(Unlisted::Unresolved(why)) => format!(", for {why}"),
        Some(Unlisted::Alias) => ", for which another name stands".to_owned(),
        Some(Unlisted::Client) | None => String::new(),
    };
    CallError::new(ErrorKind::UnknownTool, format!("there is no tool {tool}{why}; {known}"))
}
