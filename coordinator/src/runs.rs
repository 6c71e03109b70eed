//! Commands of clients on runs. Each reads the run, decides, and appends; on a conflict it starts over.

mod admission;
mod answer_hooks;
mod answer_token;
mod appending;
pub(crate) mod approved;
mod asking;
mod conversation;
mod decisions;
mod digest;
mod erase;
mod explain;
pub(crate) mod hooks;
mod naming;
pub(crate) mod objects;
mod opening;
mod parked;
mod places;
mod questions;
mod resolve;
mod scheduled;

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::hooks::Hooks;
use ::objects::Objects;
use formats::tools::Format;
use proto::names;
use proto::subject::SubjectKind;
use run::{
    Answer, CallId, Command, Decision, Event, Fields, FloorPolicy, ParentCall, RequestId, Rules, Run, RunId, Shard,
    TenantId, Timestamp, ToolName, limit,
};
use tokio::sync::watch;
use uuid::Builder;

use self::approved::Approved;
use self::asking::Asking;
pub(crate) use self::erase::EraseOutcome;
use self::objects::AskedFile;
use crate::admission::accept::{Offer, RequestedCall, Scope};
use crate::admission::custom::CustomTools;
use crate::admission::error::RequestError;
use crate::auth::callers::{Caller, Callers, Reading, Role, TenantTools};
use crate::fleet::registry::Registry;
use crate::hook_notices::HookNotices;
use crate::nats::journal::{AppendError, Bound, Journal, Journals, NOTHING, ReadError};
use crate::nats::pauses::Pauses;
use crate::nats::positions::Positions;
use crate::nats::requests::Requests;
use crate::nats::setup::RETENTION;
use crate::nats::signals::Signals;
use crate::offload::Permit;
use crate::overview::Overview;
use crate::owner::OwnerHandle;
use crate::quotas::Quotas;
use crate::readers::{Reader, WatchError};
use crate::requests::RequestKey;
use crate::shards::Owned;
use crate::turns::TurnOrder;
use owner::{Expected, Known};

/// How often a command is decided again because another writer appended first.
const DECISIONS_MAX: usize = 16;

/// For how long new runs of a coordinator go to the same partition, in milliseconds: longer than a short call takes.
const PARTITION_TURN_MS: u64 = 50;

/// The dependencies of serving requests.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) journals: Journals,
    pub(crate) objects: Objects,
    pub(crate) requests: Requests,
    pub(crate) positions: Positions,
    pub(crate) ledger: OwnerHandle,
    pub(crate) registry: watch::Receiver<Arc<Registry>>,
    pub(crate) owned: watch::Receiver<Owned>,
    pub(crate) hooks: Hooks,
    pub(crate) hook_notices: HookNotices,
    pub(crate) callers: Callers,
    pub(crate) quotas: Quotas,
    pub(crate) turns: TurnOrder,
    pub(crate) overview: Overview,
    pub(crate) pauses: Pauses,
    pub(crate) signals: Signals,
    /// How long after its end a run with `store: false` can be read.
    pub(crate) erase_after: Duration,
    /// Calls may name only tools that their run attached.
    pub(crate) attached_only: bool,
    /// Differs between coordinators, so that their runs are not all in the same partition at a time.
    pub(crate) turn_offset: u64,
}

/// Commands on runs in the name of a caller. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Runs {
    parts: Arc<Parts>,
    /// If callers are authenticated and none was set: [`Caller::Nobody`], who has no rights.
    pub(crate) caller: Caller,
    /// Set for a request with a deadline.
    pub(crate) about_to_open: Option<AboutToOpen>,
    /// The form in which the client knows the tools' names; `None` for their own names.
    pub(crate) form: Option<Format>,
}

/// The run that a request opened or is about to open. The error of an overdue request names it.
#[derive(Debug, Clone, Default)]
pub(crate) struct AboutToOpen(Arc<Mutex<Option<RunId>>>);

impl AboutToOpen {
    pub(crate) fn get(&self) -> Option<RunId> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, run: RunId) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(run);
    }
}

impl Deref for Runs {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

/// A request for a new run.
#[derive(Debug)]
pub(crate) struct NewRun {
    pub(crate) calls: Vec<RequestedCall>,
    /// Files that the request names for its calls; each call has its own list once they are resolved.
    pub(crate) files: Vec<AskedFile>,
    pub(crate) keep_open: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) fail_fast: bool,
    /// None of its calls is executed by a worker.
    pub(crate) client_only: bool,
    /// Tools that only this run defines.
    pub(crate) custom: CustomTools,
    pub(crate) tenant: Option<TenantId>,
    /// The tools that its calls may name; empty for all listed tools.
    pub(crate) tools: Vec<ToolName>,
    pub(crate) rules: Rules,
    /// Context for its calls beside their arguments.
    pub(crate) context: Fields,
    /// `false`: the run is erased some time after its end.
    pub(crate) store: bool,
    /// Calls that the caller approves with the request.
    pub(crate) approved: Approved,
    pub(crate) request_id: Option<RequestId>,
    /// The call that makes it.
    pub(crate) parent: Option<Box<ParentCall>>,
    /// It redrives a parked call: without that call there is nothing to open.
    pub(crate) redrives: bool,
}

impl NewRun {
    fn key(&self) -> Option<RequestKey> {
        self.request_id.as_ref().map(|id| RequestKey::of(self.tenant.as_ref(), id))
    }

    /// Whether another call makes it, which may be attempted again for a day.
    fn is_of_call(&self) -> bool {
        self.parent.is_some() || self.calls.iter().any(|call| call.metadata.contains_key(names::PARENT_RUN))
    }
}

impl Runs {
    pub(crate) fn new(parts: Parts) -> Self {
        let caller = parts.callers.unsaid();
        Self { parts: Arc::new(parts), caller, about_to_open: None, form: None }
    }

    /// The same commands in the name of the caller that is in the request's extensions.
    pub(crate) fn by(&self, extensions: &http::Extensions) -> Self {
        let caller = extensions.get::<Caller>().cloned().unwrap_or_else(|| self.callers.unsaid());
        let about_to_open = extensions.get().cloned();
        Self { parts: Arc::clone(&self.parts), caller, about_to_open, form: None }
    }

    /// Whether runs of this tenant may call attached tools only.
    pub(crate) fn attaches_only(&self, tenant: Option<&TenantTools>) -> bool {
        self.attached_only || tenant.is_some_and(|tools| tools.attached_only)
    }

    /// The scope in which the calls of a new run are accepted.
    pub(crate) fn scope_of<'here>(&'here self, new: &'here NewRun, registry: &'here Registry) -> Scope<'here> {
        let (now, tenant) = (::nats::now(), self.callers.tools_of(new.tenant.as_ref()));
        Scope {
            first: 0,
            offer: Offer {
                custom: &new.custom,
                attached: &new.tools,
                attached_only: self.attaches_only(tenant.as_deref()),
                registry,
                tenant: new.tenant.as_ref(),
            },
            client_only: new.client_only,
            run_deadline: now.after(new.timeout.unwrap_or(limit::RUN_LIFE)),
            now,
            hooks: &self.hooks,
            earlier: None,
            rules: &new.rules,
            context: &new.context,
            caller: &self.caller,
            tenant,
            form: self.form,
        }
    }

    /// The scope in which calls are added to a run.
    fn scope_in<'here>(
        &'here self,
        run: &'here Run,
        custom: &'here CustomTools,
        registry: &'here Registry,
    ) -> Scope<'here> {
        let tenant = self.callers.tools_of(run.tenant());
        Scope {
            first: run.requested_calls().count(),
            offer: Offer {
                custom,
                attached: run.tools(),
                attached_only: self.attaches_only(tenant.as_deref()),
                registry,
                tenant: run.tenant(),
            },
            client_only: run.is_client_only(),
            run_deadline: run.deadline(),
            now: ::nats::now(),
            hooks: &self.hooks,
            earlier: Some(run),
            rules: run.rules(),
            context: run.context(),
            caller: &self.caller,
            tenant,
            form: self.form,
        }
    }

    /// A shard of a partition that takes runs, and of ours, so that submitting, watching and the effects in between
    /// stay in one process. Any shard of such a partition if we own none, and one of a partition that all coordinators
    /// know if there is no such partition. Partitions take turns: entries that are stored together in one cost the
    /// broker less than as many in several.
    fn pick_shard(&self) -> Shard {
        let (ours, open) = (self.owned.borrow().shards(), self.journals.open_to_runs());
        let known = self.journals.known_to_all();
        let choices = [ours.intersection(open), open, ours.intersection(known), known];
        let shards = choices.into_iter().find(|shards| !shards.is_empty()).unwrap_or_default();
        let shards = shards.in_turn(self.turn_offset + ::nats::now().0 / PARTITION_TURN_MS);
        shards.iter().nth(rand::random_range(0..shards.len().max(1))).unwrap_or(Shard(0))
    }

    pub(crate) async fn watch(
        &self,
        id: RunId,
        policy: FloorPolicy,
        after: Option<u64>,
    ) -> Result<Box<Reader>, RequestError> {
        self.caller.must(Role::Read)?;
        let reader = self.read(id, policy, after, self.caller.begin_reading()?).await?;
        // The run of another tenant is reported as missing.
        if self.caller.sees(reader.tenant()) { Ok(reader) } else { Err(missing(id, &self.journals)) }
    }

    async fn read(
        &self,
        id: RunId,
        policy: FloorPolicy,
        after: Option<u64>,
        place: Option<Reading>,
    ) -> Result<Box<Reader>, RequestError> {
        if !self.journals.finds(id.shard()).await? {
            return Err(missing(id, &self.journals));
        }
        let reader = Reader::of_run(self.journals.of(id), self.ledger.clone(), id, policy, after).await;
        let held = reader.map(|mut reader| {
            reader.hold(place);
            reader
        });
        held.map_err(|error| match error {
            WatchError::Unknown => missing(id, &self.journals),
            WatchError::Stopped(stopped) => stopped.into(),
            WatchError::Read(error) => error.into(),
            WatchError::Gone(_) => RequestError::EventsExpired(id),
            WatchError::History(error) => error.into(),
        })
    }

    pub(crate) async fn get(&self, id: RunId) -> Result<Arc<Run>, RequestError> {
        self.caller.must(Role::Read)?;
        self.known(id).await.map(|known| known.run)
    }

    /// The run as its owner here has it, or else read from the log.
    pub(crate) async fn known(&self, id: RunId) -> Result<Known, RequestError> {
        match self.ledger.state(id).await? {
            Some(known) => self.behind_the_wall(known),
            None => self.replay(id).await,
        }
    }

    /// The run of another tenant is reported as missing.
    fn behind_the_wall(&self, known: Known) -> Result<Known, RequestError> {
        if self.caller.sees(known.run.tenant()) { Ok(known) } else { Err(missing(known.run.id(), &self.journals)) }
    }

    /// The run read from the log, which may be newer than the owner's, or from the history if it has left the log.
    async fn replay(&self, id: RunId) -> Result<Known, RequestError> {
        if !self.journals.finds(id.shard()).await? {
            return Err(missing(id, &self.journals));
        }
        // An error of the history does not matter if the log has the run.
        let journal = self.journals.of(id);
        if let Ok(Some(known)) = Box::pin(journal.past_first(id)).await {
            return self.behind_the_wall(known);
        }
        let known = journal.known(id).await?;
        if known.run.opened_at().is_some() {
            return self.behind_the_wall(known);
        }
        match Box::pin(journal.past(id)).await? {
            Some(known) => self.behind_the_wall(known),
            None => Err(missing(id, &self.journals)),
        }
    }

    /// Finds something in a run. The owner may be a moment behind the log, and so may a server of the broker that was
    /// its leader. So an error that a newer state could lift is checked against both.
    async fn found_in<T>(
        &self,
        known: Known,
        find: impl Fn(&Run) -> Result<T, RequestError>,
    ) -> Result<(Known, T), RequestError> {
        let may_be_lifted = |found: &Result<T, RequestError>| match found {
            Err(RequestError::Rejected(rejection)) => !rejection.lasts(),
            _ => false,
        };
        let (id, mut known) = (known.run.id(), known);
        let mut found = find(&known.run);
        if may_be_lifted(&found) {
            known = self.replay(id).await?;
            found = find(&known.run);
        }
        if may_be_lifted(&found) && !known.is_past {
            known = self.journals.of(id).known_for_certain(id).await?;
            if known.run.opened_at().is_none() {
                return Err(missing(id, &self.journals));
            }
            known = self.behind_the_wall(known)?;
            found = find(&known.run);
        }
        Ok((known, found?))
    }

    /// The journal of a run that another coordinator opened, perhaps in a partition that this one had not found yet.
    async fn journal_of(&self, id: RunId) -> Result<Journal, ReadError> {
        let unknown = || ReadError::new(&format!("run {id} is in a partition that the broker does not have"));
        self.journals.finds(id.shard()).await?.then(|| self.journals.of(id)).ok_or_else(unknown)
    }

    /// New work is rejected before the log is full, so that accepted calls have room to end.
    fn check_room(&self) -> Result<(), RequestError> {
        self.journals.crowded().map_or(Ok(()), |bound| Err(RequestError::LogFull(Some(bound))))
    }

    /// A run that may outlive the log will have to be carried.
    fn check_room_for(&self, timeout: Option<Duration>) -> Result<(), RequestError> {
        let is_long = timeout.is_some_and(|timeout| timeout > limit::EXECUTION_MAX);
        if is_long && self.journals.carried_is_full() {
            return Err(RequestError::LogFull(Some(Bound::Carried)));
        }
        self.check_room()
    }

    /// The same for work that goes to a given shard. The room of a partition that was not found yet is not known.
    fn check_room_of(&self, shard: Shard) -> Result<(), RequestError> {
        let known = self.journals.knows(shard).then(|| self.journals.of_shard(shard));
        let crowded = known.and_then(|journal| journal.crowded());
        crowded.map_or(Ok(()), |bound| Err(RequestError::LogFull(Some(bound))))
    }

    /// Runs a command of a caller, who must have a role. The result is written to the audit log.
    async fn judged<T>(
        &self,
        (command_name, role): (&'static str, Role),
        (id, call): (RunId, Option<&CallId>),
        work: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, RequestError> {
        let asking = Asking::on(self, command_name, (id, call));
        let done = match self.caller.must(role) {
            Ok(()) => work.await,
            Err(denied) => Err(denied.into()),
        };
        asking.done(Some(id), done.as_ref().err());
        done
    }

    pub(crate) async fn close(&self, id: RunId) -> Result<Arc<Run>, RequestError> {
        let work = self.command(id, |_| Command::Close);
        self.judged(("CloseRun", Role::Submit), (id, None), work).await
    }

    pub(crate) async fn submit_outputs(
        &self,
        id: RunId,
        answers: &[Answer],
        all_required: bool,
    ) -> Result<Arc<Run>, RequestError> {
        // Its refusal names all calls that wait, and the bearer of an answer token may know of one only.
        let all_required = all_required && self.caller.only().is_none();
        let work = async {
            self.caller.may_answer(id, answers)?;
            let answers = &*Box::pin(self.ask_about_answers(id, answers)).await?;
            let permit = if questions::is_quick(answers) { None } else { Some(Permit::acquire().await) };
            let command = |run: &Run| {
                let check = || questions::checked(run, answers);
                let answers = permit.as_ref().map_or_else(check, |permit| permit.run(check))?;
                Ok(Command::SubmitOutputs { answers, all_required })
            };
            Ok(self.command_stored(id, command).await?.0)
        };
        let only = if let [answer] = answers { Some(&answer.call) } else { None };
        self.judged(("SubmitToolOutputs", Role::Answer), (id, only), work).await
    }

    /// A run as its caller may see it: the bearer of an answer token sees that call only.
    pub(crate) fn shown(&self, run: &Run) -> proto::v1::Run {
        let mut shown = crate::trace::run_out(run);
        if let Some(only) = self.caller.only() {
            shown.calls.retain(|call| call.call_id == only.as_str());
            shown.extra_state.clear();
            shown.trace_id.clear();
        }
        shown
    }

    /// Decides on calls that await approval. Arguments that replace a call's own must fit its tool's schema.
    pub(crate) async fn decide(&self, id: RunId, decisions: Vec<(CallId, Decision)>) -> Result<Arc<Run>, RequestError> {
        let only = if let [(call, _)] = &*decisions { Some(call.clone()) } else { None };
        let work = self.decide_checked(id, decisions);
        self.judged(("DecideCalls", Role::Approve), (id, only.as_ref()), work).await
    }

    pub(crate) async fn cancel_run(&self, id: RunId, reason: &str) -> Result<Arc<Run>, RequestError> {
        let work = self.command(id, |_| Command::CancelRun { reason: reason.to_owned() });
        self.judged(("CancelRun", Role::Submit), (id, None), work).await
    }

    pub(crate) async fn cancel_call(&self, id: RunId, call: &CallId, reason: &str) -> Result<Arc<Run>, RequestError> {
        let work = self.command(id, |_| Command::CancelCall { call: call.clone(), reason: reason.to_owned() });
        self.judged(("CancelCall", Role::Submit), (id, Some(call)), work).await
    }

    /// As [`Self::cancel_call`]; returns `false` if the call had ended or was being cancelled already, so nothing was
    /// stored.
    pub(crate) async fn cancel_open_call(&self, id: RunId, call: &CallId, reason: &str) -> Result<bool, RequestError> {
        let work = async {
            let command = |_: &Run| Ok(Command::CancelCall { call: call.clone(), reason: reason.to_owned() });
            Ok(self.command_stored(id, command).await?.1)
        };
        self.judged(("CancelCall", Role::Submit), (id, Some(call)), work).await
    }

    async fn command(&self, id: RunId, command: impl Fn(&Run) -> Command) -> Result<Arc<Run>, RequestError> {
        Ok(self.command_stored(id, |run| Ok(command(run))).await?.0)
    }

    /// Decides on the present state of the run and appends the events, each only if no other writer was faster. Also
    /// returns whether anything had to be stored.
    async fn command_stored(
        &self,
        id: RunId,
        command: impl Fn(&Run) -> Result<Command, RequestError>,
    ) -> Result<(Arc<Run>, bool), RequestError> {
        let (mut known_at, mut newest) = (::nats::now(), self.known(id).await?);
        for _ in 0..DECISIONS_MAX {
            let decide = |run: &Run| Ok(run.decide(command(run)?, ::nats::now())?);
            let (known, events) = self.found_in(newest, decide).await?;
            if events.is_empty() {
                return Ok((known.run, false));
            }
            if known.is_past {
                return Err(RequestError::EventsExpired(id));
            }
            match self.append_each(&known, &events, known_at).await {
                // Workers may have stored something in between. The feed delivers it, or else the run is read from the
                // log. The position up to which to read is known from the append; looking up the last entry of a run
                // would cost the broker a search.
                Ok(last) => {
                    self.note(id, Some(&known.run), &events);
                    let of_stored = |refusal: RequestError| refusal.of_stored(id);
                    let known =
                        match self.ledger.state_through(id, last).await.map_err(|stopped| of_stored(stopped.into()))? {
                            Some(known) => known,
                            None => {
                                let read = self.journals.of(id).known_through(id, last).await;
                                read.map_err(|error| of_stored(error.into()))?
                            }
                        };
                    return Ok((known.run, true));
                }
                Err(AppendError::Conflict) => (known_at, newest) = (::nats::now(), self.replay(id).await?),
                Err(error) => return Err(error.into()),
            }
        }
        Err(RequestError::Contended)
    }

    /// A command's events are on different subjects, so none of them changes another's expected sequence. Returns the
    /// position of the last.
    async fn append_each(&self, known: &Known, events: &[Event], known_at: Timestamp) -> Result<u64, AppendError> {
        let (run, mut last) = (known.run.id(), 0);
        for event in events.chunks(1) {
            let expected = SubjectKind::of(event).map_or(NOTHING.into(), |place| known.expected(&place));
            let expected = Expected { known_at: Some(known_at), ..expected };
            match self.journals.of(run).append(run, event, None, expected).await {
                Ok(sequence) => last = last.max(sequence),
                Err(AppendError::Conflict) => return Err(AppendError::Conflict),
                Err(error) if last == 0 => return Err(error),
                // Some of the events are stored.
                Err(error) => return Err(AppendError::Unconfirmed { run, reason: error.to_string() }),
            }
        }
        Ok(last.max(known.last))
    }
}

/// Not [`uuid::Uuid::now_v7`], because the time in the id is the broker's, as everywhere.
fn fresh_id(shard: Shard) -> RunId {
    RunId::new(shard, Builder::from_unix_timestamp_millis(::nats::now().0, &rand::random()).into_uuid())
}

fn missing(id: RunId, journals: &Journals) -> RequestError {
    let has_aged = || ::nats::now().since(id.created_at()) > RETENTION;
    if journals.knows(id.shard()) && (has_aged() || journals.of(id).oldest() > id.created_at()) {
        RequestError::EventsExpired(id)
    } else {
        RequestError::RunNotFound(id)
    }
}
