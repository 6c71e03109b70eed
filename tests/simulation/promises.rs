//! The promises, checked for every stored entry and every piece that is read. It also knows the actual effects of
//! tools, which no process knows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use owner::erasure::erase_request;
use run::{
    AfterPartialOutput, AskedBy, AttemptId, AttemptNumber, Call, CallIndex, CallState, ChunkIndex, Concurrency,
    DeadlineKind, Entry, ErrorKind, Event, Fact, FloorPolicy, Outcome, OutputKind, Route, Run, RunId, RunStatus,
    Sequencer, Shard, Stopped, Timestamp,
};

use crate::net::{Paused, Piece, Place, Stored};
use crate::rim::CLOCKS_APART;
use crate::shard::Notification;

pub(crate) const POLICIES: [FloorPolicy; 3] = [FloorPolicy::Arrival, FloorPolicy::Submission, FloorPolicy::Interleaved];

/// How long a coordinator may act without knowing of a pause: it may stand still for as long as its lease lasts.
const PAUSE_KNOWN: Duration = Duration::from_secs(14);
/// How late a run is erased at most.
const ERASED_WITHIN: Duration = Duration::from_secs(40);

#[derive(Default)]
pub(crate) struct Promises {
    runs: BTreeMap<RunId, Told>,
    executions: BTreeMap<(RunId, CallIndex), Vec<Execution>>,
    /// Runs whose clients were told that they may not be stored.
    refused: BTreeSet<RunId>,
    /// A consumer was reset just as it had delivered a job, and delivered it at once to another worker: then the one
    /// attempt may acknowledge the job that the other has. Should the other be lost, its call waits for its deadline:
    /// a known weakness.
    pub(crate) jobs_repeat: bool,
    /// Questions whose end their tools know.
    pub(crate) told: BTreeSet<(RunId, AskedBy)>,
    /// The newest claim of each shard for which a coordinator acted.
    owned: BTreeMap<Shard, u64>,
    /// The first promise that was broken.
    pub(crate) broken: Option<String>,
    pub(crate) tally: BTreeMap<&'static str, u32>,
}

/// A run as the log tells it, and its output as each policy orders it.
struct Told {
    run: Run,
    entries: BTreeMap<u64, std::sync::Arc<Entry>>,
    readers: [(Sequencer, Vec<Piece>); 3],
    /// The valid output of each call, for each policy.
    said: [BTreeMap<CallIndex, Vec<(AttemptId, String)>>; 3],
    continuing: BTreeMap<(CallIndex, AttemptNumber), bool>,
    /// Its statuses, each with its entry, and how many of them were put into the queue of webhooks.
    statuses: Vec<(u64, RunStatus)>,
    notified: usize,
    /// When it is to be erased. A job that is stored after its end moves nothing: no worker executes it, and another
    /// copy of it is removed as an orphan.
    due: Option<Timestamp>,
    /// When the log lost its entries.
    erased: Option<Timestamp>,
}

/// The actual effects of a tool.
struct Execution {
    attempt: AttemptId,
    from: u32,
    said: Vec<String>,
}

impl Promises {
    pub(crate) fn run(&self, id: RunId) -> Option<&Run> {
        self.runs.get(&id).map(|told| &told.run)
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = &Run> {
        self.runs.values().map(|told| &told.run)
    }

    pub(crate) fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some(what());
        }
    }

    pub(crate) fn note(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// The log of the run that a broken promise is about.
    pub(crate) fn story(&self) -> String {
        let broken = self.broken.as_deref().unwrap_or_default();
        let told = self.runs.values().find(|told| broken.contains(&told.run.id().to_string()));
        let entries = told.into_iter().flat_map(|told| told.entries.values());
        entries.map(|entry| format!("{} @{} {:?}\n", entry.sequence, entry.at.0, entry.events)).collect()
    }

    /// A coordinator acts for a shard that it claimed at this revision.
    pub(crate) fn owned(&mut self, shard: Shard, claim: u64) {
        let newest = self.owned.entry(shard).or_default();
        *newest = claim.max(*newest);
        let newest = *newest;
        self.check(claim == newest, || {
            format!("shard {shard} has an owner since {newest}, and one since {claim} acts")
        });
    }

    // What tools do.

    pub(crate) fn tool_called(&mut self, (run, attempt): (RunId, AttemptId), from: ChunkIndex, now: Timestamp) {
        let is_void = self.runs.get(&run).is_some_and(Told::is_void);
        self.check(!is_void, || format!("{run} call {} is called, and its run was opened too late", attempt.call));
        let executions = self.executions.entry((run, attempt.call)).or_default();
        executions.push(Execution { attempt, from: from.0, said: Vec::new() });
        let count = executions.len();
        let call = self.runs.get(&run).and_then(|told| told.run.call(attempt.call));
        let once =
            call.is_some_and(|call| matches!(&call.spec().route, Route::Pool { policy, .. } if !policy.repeatable));
        let until = call.and_then(|call| call.spec().not_before);
        self.note(if once { "called once" } else { "called" });
        if let Some(until) = until {
            self.note("called after a delay");
            self.check(until <= now.after(CLOCKS_APART), || {
                format!("{run} call {} is called before {until:?}", attempt.call)
            });
        }
        self.check(!once || count == 1, || {
            format!("{run} call {} is not safe to repeat and ran {count} times", attempt.call)
        });
    }

    pub(crate) fn tool_said(&mut self, run: RunId, attempt: AttemptId, body: String) {
        let executions = self.executions.entry((run, attempt.call)).or_default();
        if let Some(execution) = executions.iter_mut().find(|execution| execution.attempt == attempt) {
            execution.said.push(body);
        }
    }

    // What is stored.

    pub(crate) fn stored(&mut self, stored: &Stored) {
        let Stored { run: id, place, entry, .. } = stored;
        let told = self.runs.entry(*id).or_insert_with(|| Told::new(*id));
        let before = told.run.clone();
        let mut heard = Vec::new();
        told.run.apply(entry, &mut heard);
        let is_job =
            |entry: &Entry| matches!(place, Place::Job(_)) && Place::of(&entry.events) == *place && !entry.is_late();
        let is_job_again = is_job(entry) && told.entries.values().any(|old| is_job(old));
        told.entries.insert(entry.sequence, std::sync::Arc::clone(entry));
        let broken = told.read(entry, &heard).err();
        if !before.status().is_final() {
            told.due = told.run.erase_at();
        } else if let Some(request) = erase_request(entry) {
            told.due = Some(entry.at.max(request.not_before));
        }
        told.statuses.extend(heard.iter().filter_map(|fact| match fact {
            Fact::StatusChanged(status) if !told.run.is_void() => Some((entry.sequence, *status)),
            _ => None,
        }));
        let after = told.run.clone();
        self.check(!is_job_again, || format!("{id} {place:?} has two jobs"));
        if entry.is_late() {
            self.note("too late");
        }
        let is_refused = self.refused.contains(id) && before.opened_at().is_none() && !after.status().is_final();
        self.check(!is_refused, || format!("{id} is open, and its client was told that it is not"));
        self.check(broken.is_none(), || format!("{id}: {}", broken.unwrap_or_default()));
        self.check(!before.status().is_final() || before.status() == after.status(), || {
            format!("{id} changed after its end")
        });
        for (old, new) in before.calls().iter().zip(after.calls()) {
            let stands = old.outcome().is_none() || old.state() == new.state();
            self.check(stands, || format!("{id} call {} changed after its end", old.index()));
        }
        let in_flight = |call: &&Call| matches!(call.state(), CallState::Queued { .. } | CallState::Running(_));
        let in_flight: Vec<&Call> = after.calls().iter().filter(in_flight).collect();
        let alone = in_flight.iter().find(|call| call.spec().concurrency == Concurrency::Exclusive);
        self.check(in_flight.len() < 2 || alone.is_none(), || format!("{id} has others beside {alone:?}"));
        if alone.is_some() && after.calls().iter().any(|call| after.waits_for(call).is_some()) {
            self.note("held up");
        }
        for fact in &heard {
            match fact {
                Fact::CallEnded { call } => self.ended(*id, *call),
                Fact::AttemptStarted { continues: true, .. } => self.note("continued"),
                Fact::AttemptStopping { .. } => self.note("told to stop"),
                Fact::Decided { .. } => self.note("decided"),
                _ => {}
            }
        }
        if heard.is_empty() && matches!(place, Place::Output(_)) {
            self.note("not heard");
        }
        self.check_questions(*id, entry, &heard);
    }

    fn ended(&mut self, id: RunId, index: CallIndex) {
        let Some(told) = self.runs.get(&id) else { return };
        let Some(call) = told.run.call(index) else { return };
        let (Some(outcome), Route::Pool { policy, .. }) = (call.outcome().cloned(), &call.spec().route) else { return };
        let once = !policy.repeatable;
        let executions = self.executions.get(&(id, index)).map_or(&[][..], Vec::as_slice);
        let ran = executions.len();
        // A completed call has exactly the chunks that its tool sent.
        let mut complete = true;
        if let (Outcome::Completed(_), Some(Event::AttemptEnded { attempt, .. })) = (&outcome, told.last_event(index)) {
            let execution = executions.iter().find(|execution| execution.attempt == *attempt);
            complete = execution.is_some_and(|execution| {
                // By turns, a call's output may wait for the floor; without a floor all of it was said.
                let said = told.said[2].get(&index).map_or(&[][..], Vec::as_slice);
                let own: Vec<&String> = said.iter().skip(execution.from as usize).map(|(_, body)| body).collect();
                said.len() >= execution.from as usize && own == execution.said.iter().collect::<Vec<_>>()
            });
        }
        self.check(complete, || format!("{id} call {index} completed with other output than its tool gave"));
        self.check(!(ran > 0 && denies(&outcome, once)), || {
            format!("{id} call {index} ran, and its caller is told that it did not: {outcome:?}")
        });
        self.note(match &outcome {
            Outcome::Completed(_) => "completed",
            Outcome::Failed(error) if error.kind == ErrorKind::Interrupted => "interrupted",
            Outcome::Failed(error) if error.kind == ErrorKind::WorkerLost => "worker lost",
            Outcome::Failed(error) if error.kind == ErrorKind::OutputIncomplete => "output incomplete",
            Outcome::Failed(error) if error.kind == ErrorKind::NoWorker => "no worker",
            Outcome::Failed(error) if error.kind == ErrorKind::Rejected => "rejected",
            Outcome::Failed(_) => "failed",
            Outcome::Cancelled { .. } => "cancelled",
            Outcome::Expired(_) => "expired",
        });
        let mode = policy_of(&self.runs, id, index);
        let incomplete = matches!(&outcome, Outcome::Failed(error) if error.kind == ErrorKind::OutputIncomplete);
        self.check(!incomplete, || format!("{id} call {index} ({mode:?}) lost output"));
    }

    /// A job that is acknowledged does not come again, so its call has ended, or is about to.
    pub(crate) fn acknowledged(&mut self, id: RunId, index: CallIndex, now: Timestamp) {
        let Some(call) = self.runs.get(&id).and_then(|told| told.run.call(index)) else { return };
        let deadline = call.spec().queue_deadline.unwrap_or(call.spec().deadline).min(call.spec().deadline);
        let over = call.outcome().is_some() || deadline <= now.after(Duration::from_secs(1));
        let state = call.state_name();
        self.check(over || self.jobs_repeat, || format!("{id} call {index} is {state}, and its job is gone"));
    }

    /// A call that was denied to have run must not run afterwards either.
    pub(crate) fn check_truth(&mut self, run: RunId, attempt: AttemptId) {
        let call = self.runs.get(&run).and_then(|told| told.run.call(attempt.call));
        let Some(call) = call else { return };
        let once = matches!(&call.spec().route, Route::Pool { policy, .. } if !policy.repeatable);
        let (denied, state) = (call.outcome().is_some_and(|outcome| denies(outcome, once)), call.state_name());
        self.check(!denied, || {
            format!("{run} call {} was {state}, its caller is told that it did not run, and it ran", attempt.call)
        });
    }

    /// A coordinator dispatches a call. It knows which tools are paused, and since when.
    pub(crate) fn dispatching(&mut self, id: RunId, index: CallIndex, paused: &Paused, now: Timestamp) {
        let call = self.runs.get(&id).and_then(|told| told.run.call(index));
        let since = call.and_then(|call| paused.tools.get(call.spec().tool.as_str()));
        let is_paused = since.is_some_and(|since| now.since(*since) > PAUSE_KNOWN);
        self.check(!is_paused, || format!("{id} call {index} is dispatched, and its tool is paused"));
    }

    // What is erased, and who is notified.

    /// The entries of a run up to this one are removed from the log.
    pub(crate) fn purged(&mut self, id: RunId, through: u64, now: Timestamp) {
        self.note("erased");
        let Some(told) = self.runs.get_mut(&id) else { return };
        told.erased.get_or_insert(now);
        let ended = |(sequence, status): &(u64, RunStatus)| status.is_final() && *sequence <= through;
        let had_ended = told.run.is_void() || told.statuses.iter().any(ended);
        let due = told.due;
        self.check(had_ended, || format!("{id} is erased and had not ended"));
        let is_due = due.is_some_and(|due| due <= now.after(CLOCKS_APART));
        self.check(is_due, || format!("{id} is erased at {now:?} and is due at {due:?}"));
    }

    pub(crate) fn is_erased(&self, id: RunId) -> bool {
        self.runs.get(&id).is_some_and(|told| told.erased.is_some())
    }

    /// A notification was put into the queue of webhooks. Some are twice.
    pub(crate) fn notified(&mut self, notification: &Notification) {
        let Notification { run, sequence, status } = *notification;
        let told = self.runs.get_mut(&run);
        let place = told.as_ref().and_then(|told| told.statuses.iter().position(|own| *own == (sequence, status)));
        let (Some(told), Some(place)) = (told, place) else {
            return self
                .check(false, || format!("{run} was never {status:?} by entry {sequence}, and somebody is told"));
        };
        let expected = told.notified;
        told.notified = expected.max(place + 1);
        self.note(if place < expected { "notified again" } else { "notified" });
        self.check(place <= expected, || format!("{run}: notification {place} comes before {expected}"));
    }

    /// Everything is notified, and erased where this was asked.
    pub(crate) fn is_settled(&self) -> bool {
        self.runs.values().filter(|told| !told.is_void()).all(Told::is_settled)
    }

    // What is read.

    /// A reader got this number, having had the one before.
    pub(crate) fn was_read(&mut self, id: RunId, policy: FloorPolicy, number: u64, piece: &Piece) {
        let place = POLICIES.iter().position(|known| *known == policy).unwrap_or(0);
        let told = self.runs.get(&id).and_then(|told| told.readers[place].1.get(usize::try_from(number).unwrap_or(0)));
        let same = told == Some(piece);
        self.check(same, || format!("{id} {policy:?} {number}: one reader got {piece:?}"));
        self.note("read");
    }

    /// A client is told that its run may not be stored. If it is not by now, it never counts.
    pub(crate) fn unconfirmed(&mut self, id: RunId) {
        self.note("unconfirmed");
        self.refused.insert(id);
    }

    pub(crate) fn accepted(&mut self, id: RunId, calls: usize) {
        let has = self.runs.get(&id).map_or(0, |told| told.run.calls().len());
        self.check(has >= calls, || format!("{id}: {calls} calls were accepted, {has} are in the log"));
    }

    /// Nothing has ended later than it should. Faults were over at `quiet`.
    pub(crate) fn all_ended(&mut self, quiet: Timestamp, slack: Duration) {
        let mut late = None;
        for told in self.runs.values().filter(|told| !told.is_void()) {
            for call in told.run.calls() {
                let deadline = call.spec().deadline.min(told.run.deadline());
                let by = deadline.max(quiet).after(slack);
                match call.state() {
                    CallState::Ended(ended) if ended.at <= by => {}
                    state => late = Some(format!("{} call {} by {by:?}: {state:?}", told.run.id(), call.index())),
                }
            }
            if !told.run.status().is_final() {
                late = Some(format!("{} has not ended: {:?}", told.run.id(), told.run));
            }
            if told.notified < told.statuses.len() {
                late = Some(format!("{}: only {} are notified of {:?}", told.run.id(), told.notified, told.statuses));
            }
            if let Some(due) = told.due {
                let by = due.max(quiet).after(ERASED_WITHIN);
                if told.erased.is_none_or(|at| at > by) {
                    late = Some(format!("{} is erased at {:?}, and not by {by:?}", told.run.id(), told.erased));
                }
            }
        }
        self.check(late.is_none(), || late.unwrap_or_default());
    }
}

fn opens(event: &Event) -> bool {
    matches!(event, Event::RunOpened(_))
}

/// Says that the call did not run. Of a repeatable tool only a cancelled call says so.
fn denies(outcome: &Outcome, once: bool) -> bool {
    match outcome {
        Outcome::Cancelled { stopped, .. } => *stopped == Stopped::NotRunning,
        Outcome::Expired(deadline) => once && *deadline == DeadlineKind::Queue,
        Outcome::Failed(error) => once && matches!(error.kind, ErrorKind::NoWorker | ErrorKind::Rejected),
        Outcome::Completed(_) => false,
    }
}

fn policy_of(runs: &BTreeMap<RunId, Told>, id: RunId, index: CallIndex) -> Option<AfterPartialOutput> {
    match &runs.get(&id)?.run.call(index)?.spec().route {
        Route::Pool { policy, .. } => Some(policy.after_partial_output),
        Route::Client | Route::Refused(_) | Route::Answered(_) => None,
    }
}

impl Told {
    fn new(id: RunId) -> Self {
        Self {
            run: Run::new(id),
            entries: BTreeMap::new(),
            readers: POLICIES.map(|policy| (Sequencer::new(policy), Vec::new())),
            said: Default::default(),
            continuing: BTreeMap::new(),
            statuses: Vec::new(),
            notified: 0,
            due: None,
            erased: None,
        }
    }

    /// It was opened too late.
    fn is_void(&self) -> bool {
        self.entries.values().find(|entry| entry.events.iter().any(opens)).is_some_and(|opening| opening.is_late())
    }

    /// Nothing is left to be done after its end.
    fn is_settled(&self) -> bool {
        self.notified == self.statuses.len() && (self.due.is_none() || self.erased.is_some())
    }

    fn last_event(&self, of: CallIndex) -> Option<&Event> {
        let ends = |event: &&Event| matches!(event, Event::AttemptEnded { attempt, .. } if attempt.call == of);
        self.entries.last_key_value()?.1.events.iter().rfind(ends)
    }

    /// Reads on, with every policy.
    fn read(&mut self, entry: &Entry, heard: &[Fact]) -> Result<(), String> {
        for fact in heard {
            if let Fact::AttemptStarted { attempt, continues } = fact {
                self.continuing.insert((attempt.call, attempt.number), *continues);
            }
        }
        for place in 0..POLICIES.len() {
            let mut spoken = Vec::new();
            self.readers[place].0.observe(entry.at, heard, &mut spoken);
            for spoken in spoken {
                if spoken.number != self.readers[place].1.len() as u64 {
                    return Err(format!("number {} after {}", spoken.number, self.readers[place].1.len()));
                }
                let pieces = pieces(&self.entries, spoken.what);
                for piece in &pieces {
                    self.check_piece(place, piece)?;
                }
                self.readers[place].1.extend(pieces);
            }
        }
        Ok(())
    }

    /// Chunks of the attempt that counts come once and in order; those of an older one only where it is gone on from.
    fn check_piece(&mut self, place: usize, piece: &Piece) -> Result<(), String> {
        match piece {
            Piece::Fact(OutputKind::Withdrawn { call, .. }) => {
                self.said[place].remove(call);
            }
            Piece::Fact(_) => {}
            Piece::Chunk { attempt, index, body } => {
                let said = self.said[place].entry(attempt.call).or_default();
                if said.len() != index.0 as usize {
                    return Err(format!("chunk {} of {attempt:?} after {} chunks", index.0, said.len()));
                }
                if let Some((before, _)) = said.last().filter(|(before, _)| before != attempt) {
                    let continues = self.continuing.get(&(attempt.call, attempt.number)) == Some(&true);
                    if !continues || before.number >= attempt.number {
                        return Err(format!("{attempt:?} speaks after {before:?}"));
                    }
                }
                if *body != chunk_body(*attempt, index.0) {
                    return Err(format!("chunk {} of {attempt:?} is {body}", index.0));
                }
                said.push((*attempt, body.clone()));
            }
        }
        Ok(())
    }
}

pub(crate) fn chunk_body(attempt: AttemptId, index: u32) -> String {
    format!("{}/{}/{}/{index}", attempt.call, attempt.number.0, attempt.nonce.0)
}

/// An utterance, number by number, with chunks from where the log has them.
pub(crate) fn pieces(entries: &BTreeMap<u64, std::sync::Arc<Entry>>, what: OutputKind) -> Vec<Piece> {
    let OutputKind::Output { attempt, span } = what else { return vec![Piece::Fact(what)] };
    let event = entries.get(&span.position.sequence).and_then(|entry| entry.events.get(span.position.event as usize));
    let Some(Event::Output { chunks, .. }) = event else { return Vec::new() };
    let body = |nth: u32| match chunks.get((span.skip + nth) as usize) {
        Some(run::Chunk::Content { content: run::Content::Text(text), .. }) => text.clone(),
        other => format!("{other:?}"),
    };
    (0..span.count)
        .map(|nth| Piece::Chunk { attempt, index: ChunkIndex(span.first.0 + nth), body: body(nth) })
        .collect()
}
