//! Opens runs: the request is checked, takes its request id, and the run's opening is stored.
//!
//! A rejected request stores nothing. So every check comes before the request id is taken, and the id is given back if
//! the log rejects the opening. Each request writes the key of its id before it opens a run, by compare-and-set:
//!
//! - If the key is free, or its run was never opened and never will be, the key gets a new run.
//! - If the key has a run that may still be opened, an earlier request with the id is in progress or has died. The key
//!   keeps its run, so both requests store their opening on the same subject and the log takes one of them. The key's
//!   new revision keeps the earlier request from giving the id back, because the later one may open the run.

use std::sync::Arc;
use std::time::Duration;

use run::{CallId, CallSpec, Entry, Erasure, Event, FloorPolicy, Opening, Route, Run, RunId, RunOpened, Timestamp};

use super::approved::Approved;
use super::asking::{self, Asking};
use super::digest::digest;
use super::{NewRun, Runs, fresh_id};
use crate::admission::accept::{self, Offer, Scope};
use crate::admission::conversation::Conversation;
use crate::admission::error::RequestError;
use crate::admission::limits;
use crate::auth::callers::{Reading, Role};
use crate::metrics::COUNTS;
use crate::nats::journal::{AppendError, NOTHING, Opened};
use crate::nats::requests::{Held, PutError};
use crate::quotas::Admitted;
use crate::readers::Reader;
use crate::requests::{Digest, RequestKey, Taken};
use crate::turns::Turn;

/// How often a request tries to take its id, with a pause before each further try. Another request with the id, sent at
/// the same time, opens the run meanwhile, which takes some milliseconds.
const TAKES_MAX: u32 = 40;
const TAKE_PAUSE: Duration = Duration::from_millis(50);
/// After this time a request looks again whether another one with its id has opened the run. Most of the time in which
/// an opening counts is left then.
const LOOK_AGAIN: Duration = Duration::from_secs(4);
/// How long the broker may take to give a request id back. The client waits for it.
const GIVE_BACK_PATIENCE: Duration = Duration::from_secs(2);

/// The state of a request before anything of its run is stored.
#[expect(clippy::large_enum_variant, reason = "there is one for each request, and it is taken apart at once")]
enum Placed<'here> {
    New(New<'here>),
    /// The request was made before, and its run is in the log.
    Known(RunId),
}

/// A run that is about to be opened. Its quota is returned if it is dropped before that.
struct New<'here> {
    id: RunId,
    events: Vec<Event>,
    admitted: Admitted<'here>,
    /// Set for a request with an id.
    claim: Option<Claim>,
    /// Set if the events have the job of its only call.
    turn: Option<Turn>,
    /// The conversation of the request, which its calls may be given as an object of the run.
    conversation: Option<Arc<Conversation>>,
}

/// A request id that a request takes for its run.
struct Claim {
    key: RequestKey,
    /// The id is that of a client, and not of another call, of a schedule or of a redriven call.
    is_of_client: bool,
    digest: Digest,
    found: Found,
    takes: u32,
    /// Before this moment no other request can have opened the run.
    unopened_at: Timestamp,
    /// The revision under which the key has a run that only this request may open.
    alone: Option<u64>,
}

/// The value of the key of a request id, with its revision.
#[derive(Clone, Copy)]
enum Found {
    /// No run, or one that was never opened and never will be.
    Free(u64),
    /// A run that may be opened at any moment.
    Pending { run: RunId, revision: u64, looked_at: Timestamp },
    /// A run that is in the log.
    Opened(RunId),
}

impl Runs {
    pub(crate) async fn create(&self, new: NewRun) -> Result<Arc<Run>, RequestError> {
        let mut asking = Asking::new(self, "CreateRun", asking::tools(&self.caller, &new.calls));
        let done = async {
            let new = self.owned_by_caller(new)?;
            let key = new.key();
            self.create_under(key, new, Some(&mut asking)).await
        };
        let done = done.await;
        asking.done(done.as_ref().ok().map(|run| run.id()), done.as_ref().err());
        done
    }

    pub(super) fn owned_by_caller(&self, new: NewRun) -> Result<NewRun, RequestError> {
        self.caller.must(Role::Submit)?;
        let tenant = self.caller.makes_for(new.tenant)?;
        Ok(NewRun { tenant, ..new })
    }

    pub(super) async fn create_under(
        &self,
        key: Option<RequestKey>,
        new: NewRun,
        mut asking: Option<&mut Asking<'_>>,
    ) -> Result<Arc<Run>, RequestError> {
        let (approved, calls) = (new.approved.clone(), new.calls.len());
        let mut new = match self.prepare(key, new).await? {
            Placed::New(new) => new,
            Placed::Known(id) => return self.stored(id, (&approved, calls)).await,
        };
        loop {
            if let Some(known) = self.take(&mut new).await? {
                return self.stored(known, (&approved, calls)).await;
            }
            if let Some(sequence) = self.store(&mut new, asking.as_deref_mut(), None).await? {
                let id = new.id;
                if let Some(run) = self.approve(id, waiting(&new.events), &approved).await? {
                    return Ok(run);
                }
                let mut run = Run::new(id);
                let entry = Entry { sequence, at: ::nats::now(), not_after: None, hooked: false, events: new.events };
                run.apply(&entry, &mut Vec::new());
                return Ok(Arc::new(run));
            }
        }
    }

    async fn stored(&self, id: RunId, approved: (&Approved, usize)) -> Result<Arc<Run>, RequestError> {
        self.approve_stored(id, approved).await?;
        let known = Box::pin(self.known(id)).await;
        known.map(|known| known.run).map_err(|refusal| refusal.of_stored(id))
    }

    pub(crate) async fn execute(&self, new: NewRun, policy: FloorPolicy) -> Result<Box<Reader>, RequestError> {
        let mut asking = Asking::new(self, "ExecuteRun", asking::tools(&self.caller, &new.calls));
        let done = self.execute_as_caller(new, policy, &mut asking).await;
        asking.done(done.as_ref().ok().map(|(run, _)| *run), done.as_ref().err());
        done.map(|(_, mut reader)| {
            reader.answers_opening = true;
            reader
        })
    }

    async fn execute_as_caller(
        &self,
        new: NewRun,
        policy: FloorPolicy,
        asking: &mut Asking<'_>,
    ) -> Result<(RunId, Box<Reader>), RequestError> {
        let new = self.owned_by_caller(new)?;
        let (key, approved, calls) = (new.key(), new.approved.clone(), new.calls.len());
        let mut new = match self.prepare(key, new).await? {
            Placed::New(new) => new,
            Placed::Known(id) => {
                self.approve_stored(id, (&approved, calls)).await?;
                return self.read_stored(id, policy, self.caller.begin_reading()?).await;
            }
        };
        let place = self.caller.begin_reading()?;
        loop {
            if let Some(known) = self.take(&mut new).await? {
                self.approve_stored(known, (&approved, calls)).await?;
                return self.read_stored(known, policy, place).await;
            }
            let reader = Reader::of_new_run(self.journals.of(new.id), self.ledger.clone(), new.id, policy).await;
            let mut reader = match reader {
                Ok(reader) => reader,
                Err(stopped) => {
                    Box::pin(self.give_back(&new)).await;
                    return Err(stopped.into());
                }
            };
            // The feed delivers everything that is stored in a shard of ours, or soon will be, and without a request id
            // only this request knows the run.
            let feed_reader = new.claim.is_none() && self.owned.borrow().holds(new.id.shard());
            if self.store(&mut new, Some(asking), feed_reader.then_some(&mut *reader)).await?.is_some() {
                reader.hold(place);
                self.approve(new.id, waiting(&new.events), &approved).await?;
                return Ok((new.id, reader));
            }
        }
    }

    async fn read_stored(
        &self,
        id: RunId,
        policy: FloorPolicy,
        place: Option<Reading>,
    ) -> Result<(RunId, Box<Reader>), RequestError> {
        let reader = Box::pin(self.read(id, policy, None, place)).await;
        Ok((id, reader.map_err(|refusal| refusal.of_stored(id))?))
    }

    /// Stores a run's opening and returns its position in the log; `None` if another request with the id was faster.
    /// `feed_reader`: the reader that receives it from the feed.
    async fn store(
        &self,
        new: &mut New<'_>,
        asking: Option<&mut Asking<'_>>,
        feed_reader: Option<&mut Reader>,
    ) -> Result<Option<u64>, RequestError> {
        let id = new.id;
        let mut conversation = None;
        if let Some(given) = new.conversation.clone() {
            match Box::pin(self.store_conversation(&given, id, &mut new.events)).await {
                Ok(stored) => conversation = stored,
                Err(error) => {
                    Box::pin(self.give_back(new)).await;
                    return Err(error);
                }
            }
        }
        let unopened = Box::pin(self.is_still_unopened(new)).await;
        if !matches!(unopened, Ok(true)) {
            Box::pin(self.remove_conversation(conversation)).await;
            if unopened.is_err() {
                Box::pin(self.give_back(new)).await;
            }
            return unopened.map(|_| None);
        }
        if let Some(asking) = asking {
            asking.about(id);
        }
        // The client may disconnect meanwhile, and the run is executed all the same.
        let noted = Noted { runs: self, id, events: &new.events, is_refused: false };
        let journal = self.journals.of(id);
        let stored = match (&new.claim, feed_reader) {
            (None, Some(reader)) => journal.append_heard(id, &new.events, reader.opening()).await,
            // Boxed, because they are large and rarer.
            (None, None) => Box::pin(journal.append(id, &new.events, None, NOTHING)).await,
            (Some(claim), _) => Box::pin(journal.append_opening(id, &new.events, claim.unopened_at)).await,
        };
        let error = match stored {
            Ok(sequence) => {
                drop(noted);
                new.admitted.keep();
                new.turn.iter_mut().for_each(Turn::is_used);
                return Ok(Some(sequence));
            }
            Err(error) => error,
        };
        noted.refused();
        if matches!(error, AppendError::Full { is_certain: true } | AppendError::TooLarge) {
            Box::pin(self.remove_conversation(conversation)).await;
        }
        match (&error, &mut new.claim) {
            (AppendError::Conflict, Some(claim)) => {
                claim.found = Box::pin(self.look(&claim.key, claim.digest, true)).await?;
                return Ok(None);
            }
            (AppendError::Full { is_certain: true } | AppendError::TooLarge | AppendError::Unavailable(_), Some(_)) => {
                Box::pin(self.give_back(new)).await;
            }
            // The run may still be opened, or there is no id.
            _ => {}
        }
        Err(error.into())
    }

    /// Looks again whether another request with the id has opened the run, if the last look was long ago: the opening
    /// counts from that look on. Returns `false` if the id is to be taken again.
    async fn is_still_unopened(&self, new: &mut New<'_>) -> Result<bool, RequestError> {
        let Some(claim) = new.claim.as_mut().filter(|claim| ::nats::now().since(claim.unopened_at) > LOOK_AGAIN) else {
            return Ok(true);
        };
        match self.look(&claim.key, claim.digest, true).await? {
            Found::Pending { run, looked_at, .. } if run == new.id => {
                claim.unopened_at = looked_at;
                Ok(true)
            }
            found => {
                claim.found = found;
                Ok(false)
            }
        }
    }

    /// Takes the id of a request, if it has one. Returns the run that an earlier request with the id opened.
    async fn take(&self, new: &mut New<'_>) -> Result<Option<RunId>, RequestError> {
        match &mut new.claim {
            Some(claim) => {
                let known = Box::pin(self.take_id(&mut new.id, &mut new.admitted, claim)).await?;
                known.into_iter().for_each(|run| self.note_repeated_events(&new.events, run));
                Ok(known)
            }
            None => Ok(None),
        }
    }

    async fn take_id(
        &self,
        id: &mut RunId,
        admitted: &mut Admitted<'_>,
        claim: &mut Claim,
    ) -> Result<Option<RunId>, RequestError> {
        loop {
            let is_first = claim.takes == 0;
            if claim.takes == TAKES_MAX {
                return Err(RequestError::Contended);
            }
            claim.takes += 1;
            let now = ::nats::now();
            let (run, revision, unopened_at) = match claim.found {
                Found::Opened(run) => {
                    COUNTS.repeated.add(1);
                    return Ok(Some(run));
                }
                Found::Pending { run, revision, looked_at } => (run, revision, looked_at),
                Found::Free(revision) if is_first => (*id, revision, now),
                // The run that was tried before may be void by now.
                Found::Free(revision) => (fresh_id(id.shard()), revision, now),
            };
            let taken = Taken { run, digest: claim.digest };
            let put = match claim.is_of_client {
                true => self.requests.put_of_client(&claim.key, &taken, revision).await,
                false => self.requests.put(&claim.key, &taken, revision).await,
            };
            match put {
                Ok(Some(revision)) => {
                    claim.alone = matches!(claim.found, Found::Free(_)).then_some(revision);
                    claim.unopened_at = unopened_at;
                    admitted.rename(run);
                    *id = run;
                    return Ok(None);
                }
                // Another request was faster, or the broker has not confirmed our write: read the key again.
                Ok(None) | Err(PutError::Unavailable(_)) => {}
                Err(full @ PutError::Full) => return Err(full.into()),
            }
            if !is_first {
                tokio::time::sleep(TAKE_PAUSE).await;
            }
            claim.found = self.look(&claim.key, claim.digest, true).await?;
        }
    }

    /// Releases the id of a request whose run was certainly not opened, unless a later request has taken it as well. If
    /// that fails, the id is free when its run is too old to be opened.
    async fn give_back(&self, new: &New<'_>) {
        let Some((key, revision)) = new.claim.as_ref().and_then(|claim| Some((&claim.key, claim.alone?))) else {
            return;
        };
        let given = tokio::time::timeout(GIVE_BACK_PATIENCE, self.requests.give_back(key, revision)).await;
        if !matches!(given, Ok(Ok(()))) {
            tracing::warn!(run.id = %new.id, "releasing the request id of a refused run failed; it is free in some \
                minutes");
        }
    }

    /// Reads the key of a request id. `newest`: from the broker's leader; otherwise any replica answers.
    async fn look(&self, key: &RequestKey, digest: Digest, newest: bool) -> Result<Found, RequestError> {
        let held = if newest { self.requests.newest(key).await? } else { self.requests.find(key).await? };
        let Held { taken: Some(taken), revision } = held else { return Ok(Found::Free(held.revision)) };
        let looked_at = ::nats::now();
        let age = looked_at.since(taken.run.created_at());
        let journal = self.journal_of(taken.run).await?;
        let found = match journal.opened(taken.run).await? {
            Opened::Yes => Found::Opened(taken.run),
            // Its opening stays on its subject, so the log accepts no other one.
            Opened::TooLate => return Ok(Found::Free(revision)),
            Opened::No if journal.may_have_left(taken.run).await? => match Box::pin(journal.past(taken.run)).await? {
                Some(_) => Found::Opened(taken.run),
                None => return Err(RequestError::EventsExpired(taken.run)),
            },
            Opened::No if age > run::NEVER_OPENED_AFTER => return Ok(Found::Free(revision)),
            Opened::No => Found::Pending { run: taken.run, revision, looked_at },
        };
        if taken.digest != digest {
            return Err(RequestError::RequestIdTaken { run: taken.run });
        }
        // An opening that is written now may be late, and one that was written before may still arrive.
        let is_too_old = matches!(found, Found::Pending { .. }) && age > run::REOPENED_WITHIN;
        if is_too_old { Err(RequestError::Contended) } else { Ok(found) }
    }

    /// Performs every check that may reject a request, and finds the id under which its run is to be opened. Stores
    /// nothing.
    async fn prepare(&self, key: Option<RequestKey>, mut new: NewRun) -> Result<Placed<'_>, RequestError> {
        self.may_approve(&new.approved)?;
        if let Some(parent) = &new.parent
            && !self.journals.finds(parent.run.shard()).await?
        {
            let reason = format!("parent: run {} is in no shard that there is", parent.run);
            return Err(RequestError::Malformed { field: "parent".to_owned(), reason });
        }
        // The owner of the shard cancels the run when its parent ends.
        let shard = new.parent.as_ref().map_or_else(|| self.pick_shard(), |parent| parent.run.shard());
        let (mut id, mut claim) = (fresh_id(shard), None);
        if let Some(key) = key {
            let digest = digest(&new);
            let found = Box::pin(self.look(&key, digest, false)).await?;
            match found {
                Found::Opened(run) => {
                    COUNTS.repeated.add(1);
                    Box::pin(self.note_repeated(new.calls.len(), run)).await;
                    return Ok(Placed::Known(run));
                }
                Found::Pending { run, .. } => id = run,
                Found::Free(_) => {}
            }
            let is_of_client = new.key() == Some(key) && !new.is_of_call();
            claim = Some(Claim { key, is_of_client, digest, found, takes: 0, unopened_at: Timestamp(0), alone: None });
        }
        // Without a partition that takes runs, it may be one that has no room.
        self.check_room_of(id.shard())?;
        if !new.files.is_empty() {
            Box::pin(self.give_files(&mut new)).await?;
        }
        self.rename(&mut new);
        if self.asks() {
            // Checked before hooks run, so that hooks never see a request that is then rejected.
            self.quotas.check(None, new.tenant.as_ref(), new.calls.len())?;
            Box::pin(self.ask_about(&mut new, id)).await;
        }
        let conversation = new.calls.first().and_then(|call| call.conversation.clone());
        let mut events = self.decide_new_unhurried(new, key).await?;
        let admitted = self.admit(id, &events)?;
        let turn = self.take_turn(id, &mut events).await;
        Ok(Placed::New(New { id, events, admitted, claim, turn, conversation }))
    }

    /// Gives tools that the request names as they are exported their own names.
    fn rename(&self, new: &mut NewRun) {
        let registry = Arc::clone(&self.registry.borrow());
        let tenant = new.tenant.as_ref();
        let all = Offer { custom: &new.custom, attached: &[], attached_only: false, registry: &registry, tenant };
        for tool in &mut new.tools {
            if let Some(own) = all.exported_as(tool, self.form) {
                *tool = own;
            }
        }
        limits::by_own_names(&mut new.rules, &all, self.form);
        Offer { attached: &new.tools, ..all }.rename(&mut new.calls, self.form);
    }

    /// Counts the calls of a new run in its tenant's quota.
    fn admit(&self, id: RunId, events: &[Event]) -> Result<Admitted<'_>, RequestError> {
        let opened = opened(events);
        let tenant = opened.and_then(|opened| opened.tenant.as_ref());
        let calls = opened.map_or(&[][..], |opened| opened.calls.as_slice());
        Ok(self.quotas.admit_new(id, tenant, calls.iter().map(|call| &*call.arguments))?)
    }

    /// `key`: the key of the request's id, if it has one. Then the run is opened by an entry of its own.
    pub(super) fn decide_new(&self, mut new: NewRun, key: Option<RequestKey>) -> Result<Vec<Event>, RequestError> {
        self.check_room_for(new.timeout)?;
        let registry = Arc::clone(&self.registry.borrow());
        // Hooks may have been asked meanwhile, and the caller's rights may have ended.
        let asks = self.callers.renewed(&self.caller);
        asks.must(Role::Submit)?;
        let calls = std::mem::take(&mut new.calls);
        let scope = Scope { caller: &asks, ..self.scope_of(&new, &registry) };
        let (deadline, now) = (scope.run_deadline, scope.now);
        let calls = accept::accept(calls, &scope);
        let refused = |spec: &Arc<CallSpec>| match &spec.route {
            Route::Refused(error) => Some(RequestError::RedriveRefused { call: spec.id.clone(), error: error.clone() }),
            Route::Pool { .. } | Route::Client | Route::Answered(_) => None,
        };
        if let Some(refused) = calls.iter().filter(|_| new.redrives).find_map(refused) {
            return Err(refused);
        }
        let (caller, roles) = (asks.name().cloned(), asks.roles());
        let apart = key.is_some() || self.waits_for_owner(&calls, new.tenant.as_ref(), &registry);
        let request = key.map(|key| key.0);
        let NewRun { keep_open: open, fail_fast, client_only, tenant, tools, rules, context, store, parent, .. } = new;
        let erasure = (!store).then_some(Erasure { after: self.erase_after, request });
        let opening = Opening {
            calls,
            deadline,
            open,
            fail_fast,
            client_only,
            tenant,
            caller,
            roles,
            tools,
            rules,
            context,
            apart,
            erasure,
            parent,
        };
        Ok(Run::open(opening, now)?)
    }
}

fn opened(events: &[Event]) -> Option<&RunOpened> {
    events.iter().find_map(|event| match event {
        Event::RunOpened(opened) => Some(opened),
        _ => None,
    })
}

/// The calls of a new run that await approval.
fn waiting(events: &[Event]) -> impl Iterator<Item = CallId> {
    let calls = opened(events).map_or(&[][..], |opened| opened.calls.as_slice());
    let waits = |spec: &&Arc<CallSpec>| spec.approval.is_some() && matches!(spec.route, Route::Pool { .. });
    calls.iter().filter(waits).map(|spec| spec.id.clone())
}

/// Writes the decisions on a run's calls to the audit log when it is dropped. Also if its client disconnects before the
/// opening is confirmed, because the run may be executed.
struct Noted<'here> {
    runs: &'here Runs,
    id: RunId,
    events: &'here [Event],
    is_refused: bool,
}

impl Noted<'_> {
    fn refused(mut self) {
        self.is_refused = true;
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if !self.is_refused {
            self.runs.note(self.id, None, self.events);
        }
    }
}
