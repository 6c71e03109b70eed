//! Turns the calls of a request into accepted calls: routed, checked against their schemas, with deadlines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use formats::tools::{self, Format};
use hooks::{Confirmation, Hooks};
use proto::conversation::TOOL_CALL_CONVERSATION;
use proto::history;
use proto::names::CALLED_AS;
use run::{
    Approval, CallError, CallId, CallIndex, CallSpec, Concurrency, DefaultDecision, ErrorKind, Fields, File,
    HookAnswer, PoolId, Priority, Route, Rules, Run, TenantId, Timestamp, ToolName, Violation, WithoutWorker,
};
use schema::steps::Steps;
use sha2::{Digest as _, Sha256};

use crate::admission::conversation::Conversation;
use crate::admission::custom::{Custom, CustomTools};
use crate::admission::error::RequestError;
use crate::admission::limits;
use crate::auth::callers::{Caller, Role, TenantTools};
use crate::fleet::facades::Facade;
use crate::fleet::registry::{Catalog, Entry, Registry, not_permitted};
use crate::trace;

/// Tool names that an "unknown tool" error lists: enough for any sensible set, and bounded for the others.
const TOOLS_LISTED_MAX: usize = 64;
/// Key in the metadata of a call that was added to a run, for the digest of its arguments as the client gave them, if
/// others were accepted.
pub(crate) const GIVEN_ARGUMENTS: &str = "toolyard.given_arguments";

/// A call of a request.
#[derive(Debug, Clone)]
pub(crate) struct RequestedCall {
    pub(crate) id: Option<CallId>,
    pub(crate) tool: ToolName,
    pub(crate) arguments: Bytes,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Not before this time; a time that has passed is no delay.
    pub(crate) not_before: Option<Timestamp>,
    /// Counted from `not_before`, as the next one.
    pub(crate) timeout: Option<Duration>,
    pub(crate) queue_timeout: Option<Duration>,
    pub(crate) without_worker: WithoutWorker,
    /// `None`: as the tool's manifest declares.
    pub(crate) concurrency: Option<Concurrency>,
    /// A person must approve the call first. `None`: as the tool requires.
    pub(crate) approval: Option<AskedApproval>,
    /// Context for the tool beside the arguments; takes precedence over the run's.
    pub(crate) context: Fields,
    /// Objects that it may open.
    pub(crate) files: Vec<File>,
    /// Its request or a hook leaves it to the client.
    pub(crate) is_clients: bool,
    /// Its tool must be one that streams.
    pub(crate) must_stream: bool,
    /// `None`: as its run.
    pub(crate) priority: Option<Priority>,
    /// The conversation of its request, for a tool that requests it.
    pub(crate) conversation: Option<Arc<Conversation>>,
    /// The error of the call, according to hooks and resolvers.
    pub(crate) refusal: Option<CallError>,
    /// The answer of a hook, which makes its execution unnecessary.
    pub(crate) answer: Option<HookAnswer>,
    /// How its tool is known, if it is not listed.
    pub(crate) unlisted: Option<Unlisted>,
}

/// A tool that is not listed.
#[derive(Debug, Clone)]
pub(crate) enum Unlisted {
    /// The requested name is an alias of this tool, which need not be listed itself.
    Alias,
    /// The client answers its calls; their arguments were checked.
    Client,
    /// Why no resolver could be queried for the name.
    Unresolved(Arc<str>),
}

/// The approval that a request demands of a call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AskedApproval {
    pub(crate) timeout: Option<Duration>,
    pub(crate) default: DefaultDecision,
}

/// The tools that the calls of a run may name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer<'a> {
    /// Tools that the request defines. They take precedence.
    pub(crate) custom: &'a CustomTools,
    /// The tools that the run attached; empty for all listed tools, unless `attached_only`.
    pub(crate) attached: &'a [ToolName],
    /// A run that attached none may name none.
    pub(crate) attached_only: bool,
    pub(crate) registry: &'a Registry,
    /// The run's tenant, whose pools and tools are offered.
    pub(crate) tenant: Option<&'a TenantId>,
}

impl<'a> Offer<'a> {
    /// The pool of a worker's tool, unless the request defines a tool of that name.
    fn route(&self, tool: &ToolName, fit: impl FnOnce(&Entry) -> bool) -> Option<(&'a PoolId, &'a Entry)> {
        self.registry.route(tool, self.tenant, fit).filter(|(_, entry)| self.holds(entry))
    }

    /// The tool is unknown here and the run may name it, so resolvers may be queried.
    pub(crate) fn lacks(&self, tool: &ToolName) -> bool {
        let is_open = self.takes_all() || self.attached.contains(tool);
        is_open && !self.custom.contains_key(tool) && self.registry.catalog.find(tool).is_none()
    }

    /// Whether the run may name a tool that its tenant cannot use.
    fn names(&self, tool: &ToolName) -> bool {
        self.registry.catalog.find(tool).is_some_and(|entry| self.holds(entry))
    }

    /// Replaces names under which tools are exported for models by the tools' own names.
    pub(crate) fn rename(&self, calls: &mut [RequestedCall], form: Option<Format>) {
        for call in calls {
            if let Some(own) = self.exported_as(&call.tool, form) {
                call.tool = own;
            }
        }
    }

    /// The tool that is exported under a name which is no tool's own. The names of `form` come first.
    pub(crate) fn exported_as(&self, name: &ToolName, form: Option<Format>) -> Option<ToolName> {
        // The names of other tenants' tools change nothing.
        let catalog = self.registry.catalog_of(self.tenant);
        if self.custom.contains_key(name) || catalog.find(name).is_some() {
            return None;
        }
        let mut forms = form.into_iter().chain([Format::OpenAi, Format::Anthropic, Format::Gemini]);
        let meant = |form| catalog.meant(name, form).find(|entry| self.holds(entry)).map(|entry| entry.name.clone());
        forms.find_map(meant)
    }

    /// The tool that executes calls under a name, which may be a facade or an alias.
    pub(crate) fn behind<'name>(&self, name: &'name ToolName) -> &'name ToolName
    where
        'a: 'name,
    {
        let entry = self.registry.catalog_of(self.tenant).find(name).filter(|_| !self.custom.contains_key(name));
        entry.and_then(|entry| entry.alias_of.as_ref()).unwrap_or(name)
    }

    /// Whether checking this call's arguments is certain to be quick.
    pub(crate) fn is_quick(&self, call: &RequestedCall) -> bool {
        match self.custom.get(&call.tool) {
            Some(custom) => custom.is_quick(&call.arguments),
            None => {
                let entry = self.registry.catalog_of(self.tenant).find(&call.tool);
                let mut versions = entry.into_iter().flat_map(Entry::versions);
                versions.all(|entry| entry.hosted.is_quick(&call.arguments))
            }
        }
    }

    /// Whether the run may name every listed tool.
    fn takes_all(&self) -> bool {
        self.attached.is_empty() && !self.attached_only
    }

    fn holds(&self, entry: &Entry) -> bool {
        let is_open = if self.takes_all() {
            !entry.hosted.manifest.result_use.hidden
        } else {
            self.attached.contains(&entry.name)
        };
        is_open && !self.custom.contains_key(&entry.name)
    }
}

/// The context in which calls are accepted.
pub(crate) struct Scope<'here> {
    /// The first call's position in its run.
    pub(crate) first: usize,
    pub(crate) offer: Offer<'here>,
    /// No call is executed by a worker.
    pub(crate) client_only: bool,
    pub(crate) run_deadline: Timestamp,
    pub(crate) now: Timestamp,
    /// The deployment's rules of approval and required hooks, and the run's rules.
    pub(crate) hooks: &'here Hooks,
    pub(crate) rules: &'here Rules,
    /// The run to which the calls are added; `None` for a new run.
    pub(crate) earlier: Option<&'here Run>,
    /// Context that the run gives to its calls.
    pub(crate) context: &'here Fields,
    pub(crate) caller: &'here Caller,
    /// The tools that the run's tenant has; `None` for all.
    pub(crate) tenant: Option<Arc<TenantTools>>,
    /// The form in which the client knows the tools' names; `None` for their own names.
    pub(crate) form: Option<Format>,
}

impl Scope<'_> {
    /// Calls of this tool are left to the client, whatever they say for themselves.
    fn leaves_to_client(&self, tool: &ToolName) -> bool {
        self.client_only || self.rules.leaves_to_client(self.offer.behind(tool))
    }

    /// Why the tool may not be called; `None` if it may.
    fn denies(&self, entry: &Entry) -> Option<&'static str> {
        if self.tenant.as_ref().is_some_and(|tenant| !tenant.have(entry)) {
            return Some("its tenant does not have it");
        }
        (!self.caller.may_call(entry)).then_some("its caller lacks the right")
    }
}

/// Accepts calls. A call that cannot be executed is accepted too, and ends immediately with an error that the model can
/// correct; the others go on.
pub(crate) fn accept(calls: Vec<RequestedCall>, scope: &Scope<'_>) -> Vec<Arc<CallSpec>> {
    let mut steps = steps_for(&calls);
    let with_index = calls.into_iter().zip(scope.first..);
    let with_forms = with_index.map(|(mut call, index)| {
        let given = call.arguments.clone();
        if scope.form.is_some() {
            fail_if_oversized(&mut call);
        }
        let mut spec = accept_one(call, index, scope, &mut steps);
        if scope.form.is_some() && scope.earlier.is_some() {
            keep_given(&given, &mut spec);
        }
        spec
    });
    let mut specs: Vec<_> = with_forms.collect();
    limits::refuse_beyond(&mut specs, scope);
    limits::refuse_large_answers(&mut specs);
    specs.into_iter().map(Arc::new).collect()
}

/// The budget of steps that the checks of some calls share.
pub(crate) fn steps_for(calls: &[RequestedCall]) -> Steps {
    Steps::of_request(calls.iter().map(|call| call.arguments.len()).sum())
}

pub(crate) fn accept_one(mut call: RequestedCall, index: usize, scope: &Scope<'_>, steps: &mut Steps) -> CallSpec {
    let facade = delegate(&mut call, &scope.offer);
    let (deadline, queue_deadline) = deadlines(&call, scope);
    let RequestedCall {
        id,
        tool,
        arguments,
        mut metadata,
        not_before,
        without_worker,
        concurrency,
        approval,
        is_clients,
        must_stream,
        priority,
        refusal,
        unlisted,
        ..
    } = call;
    let Scope { offer, now, .. } = *scope;
    trace::carry_on(&mut metadata);
    let custom = offer.custom.get(&tool).filter(|_| unlisted.is_none());
    let takes_object = custom.is_none_or(Custom::takes_object);
    let arguments = if arguments.is_empty() && takes_object { Bytes::from_static(b"{}") } else { arguments };
    // A version that is being rolled out gets only calls that it can execute, because callers know the listed version.
    let fit = |next: &Entry| scope.denies(next).is_none() && fits(next, &arguments);
    let found = match &unlisted {
        Some(Unlisted::Alias) => offer.registry.route(&tool, offer.tenant, fit),
        Some(Unlisted::Client) => None,
        Some(Unlisted::Unresolved(_)) | None => offer.route(&tool, fit),
    };
    let arguments = found.and_then(|(_, entry)| without_nulls(entry, &arguments, steps)).unwrap_or(arguments);
    let is_clients = is_clients || scope.leaves_to_client(&tool);
    let starts_now = not_before.is_none_or(|until| until <= now);
    let needs_worker = without_worker == WithoutWorker::Fail && starts_now && !is_clients;
    let wanted = Wanted { tool: &tool, arguments: &arguments, needs_worker, custom, unlisted: unlisted.as_ref() };
    let streams = found.is_some_and(|(_, entry)| entry.hosted.manifest.streaming);
    let route = match route(&wanted, scope, found, steps) {
        Route::Pool { .. } | Route::Client if must_stream && !streams => Route::Refused(unstreamed(&tool)),
        Route::Pool { .. } if is_clients => Route::Client,
        route => route,
    };
    let refusal = refusal.or_else(|| limits::beyond(index, scope.rules));
    let waived = || found.filter(|_| !is_clients).and_then(|(_, entry)| waived(&tool, entry, approval, scope));
    let route = settled(route, refusal.or_else(waived), call.answer);
    // A call that is not executed by a worker needs no approval, context or hooks.
    let executed = found.filter(|_| matches!(route, Route::Pool { .. }));
    let approval = executed.and_then(|(_, entry)| awaited(approval, entry, scope, deadline));
    let says = || found.map(|(_, entry)| entry.hosted.concurrency.of(&arguments, approval.is_some()));
    let concurrency = concurrency.or_else(says).unwrap_or(Concurrency::Parallel);
    let result_use = found.map(|(_, entry)| entry.hosted.manifest.result_use).unwrap_or_default();
    let keys = executed.map_or(&[][..], |(_, entry)| &entry.hosted.manifest.context_keys);
    let (context, files) = given(keys, scope.context, (&call.context, call.files, call.conversation));
    let required_hooks = required_hooks(&tool, executed, scope);
    let tool = facade.map_or(tool, |facade| facade.tool.clone());
    CallSpec {
        metadata,
        not_before,
        queue_deadline,
        without_worker,
        concurrency,
        approval,
        result_use,
        context,
        files,
        required_hooks,
        priority,
        ..CallSpec::new(id.unwrap_or_else(|| made_id(index)), tool, arguments, route, deadline)
    }
}

/// The route of a call that ends as it is accepted, or else its own. An answer makes no call acceptable.
fn settled(route: Route, refusal: Option<CallError>, answer: Option<HookAnswer>) -> Route {
    match (refusal.map_or(route, Route::Refused), answer) {
        (Route::Pool { .. } | Route::Client, Some(answer)) => Route::Answered(answer),
        (route, _) => route,
    }
}

/// A model that writes too many arguments gets an error for that call, and the others continue. The arguments are
/// dropped. A client of the native API chose them itself: its whole request is rejected.
fn fail_if_oversized(call: &mut RequestedCall) {
    let (size, limit) = (call.arguments.len(), run::limit::ARGUMENTS_BYTES_MAX);
    if size > limit {
        let message = format!(
            "the arguments are too large: {size} bytes, and the limit is {limit} bytes. The call was not executed: \
             shorten them, or split the call"
        );
        call.arguments = Bytes::from_static(b"{}");
        call.refusal = Some(CallError::new(ErrorKind::ArgumentsInvalid, message));
    }
}

/// Keeps the digest of the arguments that a client gave, if others were accepted, so that its repeated call is known.
fn keep_given(given: &Bytes, spec: &mut CallSpec) {
    if spec.arguments != *given && !given.is_empty() {
        keep(GIVEN_ARGUMENTS, digest(given), &mut spec.metadata);
    }
}

pub(crate) fn digest(arguments: &[u8]) -> String {
    Sha256::digest(arguments).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hooks that workers must run on a call that a pool executes.
fn required_hooks(tool: &ToolName, found: Option<(&PoolId, &Entry)>, scope: &Scope<'_>) -> Vec<String> {
    found.map(|(_, entry)| scope.hooks.required(tool, entry.alias_of.as_ref())).unwrap_or_default()
}

/// The deadlines of a call and of its start. Both count from the time before which the call does not begin.
fn deadlines(call: &RequestedCall, scope: &Scope<'_>) -> (Timestamp, Option<Timestamp>) {
    let begins = call.not_before.map_or(scope.now, |until| until.max(scope.now));
    let deadline = call.timeout.map_or(scope.run_deadline, |timeout| begins.after(timeout).min(scope.run_deadline));
    (deadline, call.queue_timeout.map(|timeout| begins.after(timeout).min(deadline)))
}

/// Gives a call of a facade the arguments for the tool behind it; `None` if the name is no facade.
fn delegate(call: &mut RequestedCall, offer: &Offer<'_>) -> Option<Arc<Facade>> {
    let is_listed = call.unlisted.is_none() && !offer.custom.contains_key(&call.tool);
    let entry = offer.registry.catalog_of(offer.tenant).find(&call.tool).filter(|_| is_listed)?;
    let facade = Arc::clone(&entry.facade.as_ref()?.0);
    if call.arguments.is_empty() {
        call.arguments = Bytes::from_static(b"{}");
    }
    match facade.arguments(&call.tool, &call.arguments) {
        Ok(arguments) => call.arguments = arguments,
        Err(error) => call.refusal = call.refusal.take().or(Some(error)),
    }
    if !keep_called_as(&call.tool, &mut call.metadata) {
        let limit = run::limit::METADATA_BYTES_MAX;
        let full = format!("its metadata leaves no room for the name {}; the limit is {limit} bytes", call.tool);
        call.refusal = call.refusal.take().or(Some(CallError::new(ErrorKind::ArgumentsInvalid, full)));
    }
    Some(facade)
}

/// Keeps the name that the client used in the call's metadata, if there is room for it.
pub(crate) fn keep_called_as(name: &ToolName, metadata: &mut BTreeMap<String, String>) -> bool {
    keep(CALLED_AS, name.to_string(), metadata)
}

fn keep(key: &str, value: String, metadata: &mut BTreeMap<String, String>) -> bool {
    let others = metadata.iter().filter(|(other, _)| *other != key);
    let size: usize = others.map(|(key, value)| key.len() + value.len()).sum();
    let has_room = size + key.len() + value.len() <= run::limit::METADATA_BYTES_MAX;
    if has_room {
        metadata.insert(key.to_owned(), value);
    }
    has_room
}

/// The arguments for a call's tool, if the client used the name of a facade.
///
/// # Errors
/// The facade does not take them.
fn of_facade(spec: &CallSpec, arguments: &Bytes, catalog: &Catalog) -> Result<Bytes, CallError> {
    let name: Option<ToolName> = spec.metadata.get(CALLED_AS).and_then(|name| name.parse().ok());
    let facade = name.and_then(|name| Some((&catalog.find(&name)?.facade.as_ref()?.0, name)));
    match facade {
        Some((facade, name)) if facade.tool == spec.tool => facade.arguments(&name, arguments),
        Some(_) | None => Ok(arguments.clone()),
    }
}

/// Whether a tool takes these arguments, as far as the check finishes within the steps of a call.
fn fits(entry: &Entry, arguments: &Bytes) -> bool {
    let mut steps = Steps::of_request(arguments.len());
    arguments.len() <= run::limit::ARGUMENTS_BYTES_MAX
        && entry.hosted.schema.check_within(arguments, &mut steps).is_ok()
}

/// The arguments without nulls for parameters that may be missing and do not take null, if the tool takes them so only.
/// A model that follows a strict definition writes them.
fn without_nulls(entry: &Entry, arguments: &Bytes, steps: &mut Steps) -> Option<Bytes> {
    let mut fits = |arguments: &Bytes| entry.hosted.schema.check_within(arguments, steps).is_ok();
    let has_null = arguments.windows(4).any(|part| part == b"null");
    if !has_null || arguments.len() > run::limit::ARGUMENTS_BYTES_MAX || fits(arguments) {
        return None;
    }
    let pruned: Bytes = schema::nulls::dropped(&entry.hosted.manifest.input_schema, arguments)?.into();
    fits(&pruned).then_some(pruned)
}

/// The context of a call: of the run's context, overridden by the call's, the keys that the tool declares. The place of
/// the run's history is reserved until the call's job is stored. The conversation is there or among the files.
fn given(
    keys: &[String],
    run: &Fields,
    (call, mut files, conversation): (&Fields, Vec<File>, Option<Arc<Conversation>>),
) -> (Fields, Vec<File>) {
    let mut given = Fields::default();
    if keys.is_empty() {
        return (given, files);
    }
    given.overlay(run);
    given.overlay(call);
    given.keep(keys);
    if keys.iter().any(|key| key == history::TOOL_CALL_HISTORY) {
        given.set(history::TOOL_CALL_HISTORY, history::NONE);
    }
    if let Some(conversation) = conversation.filter(|_| keys.iter().any(|key| key == TOOL_CALL_CONVERSATION)) {
        conversation.give(&mut given, &mut files);
    }
    (given, files)
}

/// The approval that a call awaits which a worker executes.
fn awaited(asked: Option<AskedApproval>, entry: &Entry, scope: &Scope<'_>, deadline: Timestamp) -> Option<Approval> {
    let confirmation = confirmation(entry, scope);
    let needed = (confirmation != Confirmation::NotNeeded).then(AskedApproval::default);
    let AskedApproval { timeout, default } = asked.or(needed)?;
    Some(Approval {
        deadline: scope.now.after(timeout.unwrap_or(run::limit::APPROVAL_TIMEOUT)).min(deadline),
        default: if confirmation == Confirmation::Required { DefaultDecision::Reject } else { default },
    })
}

/// The approval that the tool demands, and the one that the deployment demands of dangerous tools.
fn confirmation(entry: &Entry, scope: &Scope<'_>) -> Confirmation {
    let manifest = &entry.hosted.manifest;
    match manifest.requires_confirmation {
        true => Confirmation::Required,
        false => scope.hooks.confirm.of(manifest, entry.alias_of.as_ref(), scope.rules.confirm),
    }
}

/// Why a call is rejected whose approval its caller waives: only a caller with the role `approve` may waive it. A tool
/// that requires approval keeps it, whatever the caller requests.
fn waived(tool: &ToolName, entry: &Entry, approval: Option<AskedApproval>, scope: &Scope<'_>) -> Option<CallError> {
    let by_default = approval.is_some_and(|approval| approval.default == DefaultDecision::Approve);
    if !(by_default || scope.rules.confirm == Some(false)) {
        return None;
    }
    let manifest = &entry.hosted.manifest;
    // The rule of the deployment if nobody waives it.
    let wanted = scope.hooks.confirm.of(manifest, entry.alias_of.as_ref(), None);
    if wanted != Confirmation::Wanted || manifest.requires_confirmation || scope.caller.must(Role::Approve).is_ok() {
        return None;
    }
    let why = "its calls await approval, which this request waives, and its caller lacks the role approve: leave \
        `confirmation` and `approval.default` out, or use `toolyard call --approval`";
    Some(not_permitted(tool, why))
}

/// Why a call is rejected whose tool cannot do what it requires.
fn unstreamed(tool: &ToolName) -> CallError {
    let message = format!("tool {tool} does not support streaming: call it without `stream`");
    CallError::new(ErrorKind::StreamingUnsupported, message)
}

fn made_id(index: usize) -> CallId {
    format!("call_{}", CallIndex(u16::try_from(index).unwrap_or(u16::MAX)))
        .parse()
        .expect("a word and a number have no control characters")
}

/// What decides how a call is routed.
struct Wanted<'a> {
    tool: &'a ToolName,
    arguments: &'a Bytes,
    /// The call fails if no worker is alive now. For a delayed call, its owner looks when the delay ends.
    needs_worker: bool,
    custom: Option<&'a Custom>,
    unlisted: Option<&'a Unlisted>,
}

fn route(wanted: &Wanted<'_>, scope: &Scope<'_>, found: Option<(&PoolId, &Entry)>, steps: &mut Steps) -> Route {
    let Wanted { tool, arguments, needs_worker, custom, unlisted } = *wanted;
    let registry = scope.offer.registry;
    // Oversized arguments cause the whole request to be rejected later, so they are not checked here.
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
    // Shortly after the start, a worker that is still unknown may be alive: then the call's owner decides.
    if needs_worker && registry.settled && registry.living_hosts(pool, entry).taking == 0 {
        return Route::Refused(run::no_worker(tool, pool, &[]));
    }
    Route::Pool { pool: pool.clone(), policy: hosted.manifest.policy.clone(), version: entry.version().cloned() }
}

/// Replaced arguments for the call's tool, with those that its facade binds. They fit the tool as it is known now; the
/// worker checks them once more.
pub(crate) fn check_changed(
    spec: &CallSpec,
    arguments: &Bytes,
    (registry, tenant): (&Registry, Option<&TenantId>),
) -> Result<Bytes, RequestError> {
    let Route::Pool { pool, .. } = &spec.route else { return Ok(arguments.clone()) };
    // Oversized arguments are rejected by the run.
    if arguments.len() > run::limit::ARGUMENTS_BYTES_MAX {
        return Ok(arguments.clone());
    }
    let catalog = registry.catalog_of(tenant);
    let invalid = |violations| RequestError::ArgumentsInvalid { call: spec.id.clone(), violations };
    let arguments = of_facade(spec, arguments, catalog).map_err(|CallError { message, violations, .. }| {
        invalid(if violations.is_empty() { vec![Violation { path: String::new(), message }] } else { violations })
    })?;
    let entry = catalog.find(&spec.tool).ok_or_else(|| RequestError::ToolNotFound(spec.tool.clone()))?;
    entry.of(pool).hosted.schema.check(&arguments).map_err(invalid)?;
    Ok(arguments)
}

fn unknown_tool(tool: &ToolName, unlisted: Option<&Unlisted>, scope: &Scope<'_>) -> CallError {
    let offer = &scope.offer;
    let offered =
        |entry: &&Entry| offer.holds(entry) && offer.registry.is_available(entry) && scope.denies(entry).is_none();
    let hosted = offer.registry.catalog_of(offer.tenant).after(None).iter().filter(offered).map(|entry| &entry.name);
    let hosted: Vec<&str> = hosted.map(ToolName::as_str).collect();
    let hosted = match scope.form {
        Some(form) => tools::names(&hosted, form),
        None => hosted.into_iter().map(str::to_owned).collect(),
    };
    let mut names: Vec<String> = offer.custom.keys().map(ToString::to_string).chain(hosted).collect();
    let more = names.len().saturating_sub(TOOLS_LISTED_MAX);
    names.truncate(TOOLS_LISTED_MAX);
    let known = match (names.as_slice(), more) {
        ([], _) => "no tools are known yet".to_owned(),
        (names, 0) => format!("available tools: {}", names.join(", ")),
        (names, more) => format!("available tools: {}, and {more} more", names.join(", ")),
    };
    let is_closed = offer.attached.is_empty() && offer.attached_only;
    let why = match unlisted {
        None if is_closed => ", because the run attached no tools and may name no other ones (`tools`)".to_owned(),
        Some(Unlisted::Unresolved(why)) => format!(" ({why})"),
        Some(Unlisted::Alias) => ", which is an alias of a tool that is not available".to_owned(),
        Some(Unlisted::Client) | None => String::new(),
    };
    CallError::new(ErrorKind::UnknownTool, format!("unknown tool {tool}{why}; {known}"))
}
