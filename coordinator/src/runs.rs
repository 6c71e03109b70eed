//! What clients ask of runs: each command looks, decides, and appends; a conflict means to look again.

use std::sync::Arc;
use std::time::Duration;

use proto::names;
use proto::subject;
use rand::seq::IndexedRandom as _;
use run::{Answer, Command, Entry, Event, FloorPolicy, Opening, Rejection, Run, RunId, Shard, ToolName, limit};
use tokio::sync::watch;
use uuid::Uuid;

use crate::accept::{self, Asked};
use crate::ledger::{Ledger, Stopped};
use crate::nats::journal::{AppendError, Expect, Journal, ReadError};
use crate::nats::leases::Owned;
use crate::nats::setup::RETENTION;
use crate::registry::Registry;
use crate::watch::{Reader, WatchError};

/// How often a command is decided again because somebody else appended first.
const DECISIONS_MAX: usize = 16;

/// Everything that a door needs. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Runs {
    pub(crate) journal: Journal,
    pub(crate) ledger: Ledger,
    pub(crate) registry: watch::Receiver<Arc<Registry>>,
    pub(crate) owned: watch::Receiver<Owned>,
}

/// Why a request was not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("{field}: {reason}")]
    Malformed { field: String, reason: String },
    #[error(transparent)]
    Rejected(#[from] Rejection),
    #[error("there is no run {0}")]
    RunNotFound(RunId),
    #[error("run {0} is older than the log: events are kept for {hours} hours", hours = RETENTION.as_secs() / 3600)]
    EventsExpired(RunId),
    #[error("there is no tool {0}")]
    ToolNotFound(ToolName),
    #[error("the log is full: it accepts nothing new until it has drained")]
    LogFull,
    #[error("the calls do not fit one event of the log: put large input in files")]
    TooLarge,
    #[error("too many others change the run at the same time")]
    Contended,
    #[error("the broker does not answer: {0}")]
    BrokerUnavailable(String),
    #[error("the coordinator is shutting down")]
    ShuttingDown,
}

impl From<Stopped> for Refusal {
    fn from(Stopped: Stopped) -> Self {
        Self::ShuttingDown
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        Self::BrokerUnavailable(error.to_string())
    }
}

impl From<AppendError> for Refusal {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Conflict => Self::Contended,
            AppendError::Full => Self::LogFull,
            AppendError::TooLarge => Self::TooLarge,
            AppendError::Unavailable(reason) => Self::BrokerUnavailable(reason),
        }
    }
}

/// A run as it was asked for.
#[derive(Debug)]
pub(crate) struct NewRun {
    pub(crate) calls: Vec<Asked>,
    pub(crate) keep_open: bool,
    pub(crate) timeout: Option<Duration>,
}

/// A run that was decided but is not stored yet.
struct Decided {
    id: RunId,
    events: Vec<Event>,
}

impl Runs {
    pub(crate) async fn create(&self, new: NewRun) -> Result<Run, Refusal> {
        let Decided { id, events } = self.decide_new(new)?;
        let sequence = self.journal.append(id, &events, None, Expect::New).await?;
        let mut run = Run::new(id);
        run.apply(&Entry { sequence, at: proto::now(), events }, &mut Vec::new());
        Ok(run)
    }

    pub(crate) async fn execute(&self, new: NewRun, policy: FloorPolicy) -> Result<Reader, Refusal> {
        let Decided { id, events } = self.decide_new(new)?;
        let reader = Reader::of_new_run(self.journal.clone(), self.ledger.clone(), id, policy).await?;
        self.journal.append(id, &events, None, Expect::New).await?;
        Ok(reader)
    }

    fn decide_new(&self, new: NewRun) -> Result<Decided, Refusal> {
        self.check_room()?;
        let now = proto::now();
        let deadline = now.after(new.timeout.unwrap_or(limit::RUN_LIFE_MAX));
        let registry = Arc::clone(&self.registry.borrow());
        let calls = accept::accept(new.calls, 0, &registry, deadline, now);
        let events = Run::open(Opening { calls, deadline, open: new.keep_open }, now)?;
        Ok(Decided { id: RunId::new(self.pick_shard(), Uuid::now_v7()), events })
    }

    /// A shard of ours, so that submitting, watching and the effects in between stay in one process; any if we have none.
    fn pick_shard(&self) -> Shard {
        let ours = self.owned.borrow().shards();
        ours.choose(&mut rand::rng()).copied().unwrap_or_else(|| Shard(rand::random_range(0..names::SHARDS)))
    }

    pub(crate) async fn watch(&self, id: RunId, policy: FloorPolicy, after: Option<u64>) -> Result<Reader, Refusal> {
        let reader = Reader::of_run(self.journal.clone(), self.ledger.clone(), id, policy, after).await;
        reader.map_err(|error| match error {
            WatchError::Unknown => missing(id),
            WatchError::Stopped(stopped) => stopped.into(),
            WatchError::Read(error) => error.into(),
            WatchError::Gone(_) => Refusal::EventsExpired(id),
        })
    }

    pub(crate) async fn get(&self, id: RunId) -> Result<Run, Refusal> {
        match self.ledger.state(id).await? {
            Some(run) => Ok(run),
            None => self.replay(id).await,
        }
    }

    /// The run as the log has it, which may be newer than the ledger's.
    async fn replay(&self, id: RunId) -> Result<Run, Refusal> {
        let mut run = Run::new(id);
        let (filter, mut after) = (subject::of_run(id), 0);
        loop {
            let page = self.journal.page(&filter, after).await?;
            for entry in &page.entries {
                run.apply(entry, &mut Vec::new());
            }
            after = page.through;
            if page.last {
                break;
            }
        }
        if run.opened_at().is_none() {
            return Err(missing(id));
        }
        Ok(run)
    }

    /// New work is refused while there is still room for what was accepted to end in.
    fn check_room(&self) -> Result<(), Refusal> {
        if self.journal.is_crowded() { Err(Refusal::LogFull) } else { Ok(()) }
    }

    pub(crate) async fn append_calls(&self, id: RunId, calls: &[Asked]) -> Result<Run, Refusal> {
        self.check_room()?;
        self.command(id, |run| {
            let registry = Arc::clone(&self.registry.borrow());
            let calls = accept::accept(calls.to_vec(), run.calls().len(), &registry, run.deadline(), proto::now());
            Command::AppendCalls { calls }
        })
        .await
    }

    pub(crate) async fn close(&self, id: RunId) -> Result<Run, Refusal> {
        self.command(id, |_| Command::Close).await
    }

    pub(crate) async fn submit_outputs(&self, id: RunId, answers: &[Answer]) -> Result<Run, Refusal> {
        self.command(id, |_| Command::SubmitOutputs { answers: answers.to_vec() }).await
    }

    pub(crate) async fn cancel_run(&self, id: RunId, reason: &str) -> Result<Run, Refusal> {
        self.command(id, |_| Command::CancelRun { reason: reason.to_owned() }).await
    }

    pub(crate) async fn cancel_call(&self, id: RunId, call: &run::CallId, reason: &str) -> Result<Run, Refusal> {
        self.command(id, |_| Command::CancelCall { call: call.clone(), reason: reason.to_owned() }).await
    }

    /// Decides on the run as it stands and appends what follows, each event only if nobody else was faster.
    async fn command(&self, id: RunId, command: impl Fn(&Run) -> Command) -> Result<Run, Refusal> {
        let mut run = self.get(id).await?;
        for _ in 0..DECISIONS_MAX {
            let events = match run.decide(command(&run), proto::now()) {
                Ok(events) => events,
                // The ledger may be a moment behind the log; a refusal must not rest on that.
                Err(_) => {
                    run = self.replay(id).await?;
                    run.decide(command(&run), proto::now())?
                }
            };
            if events.is_empty() {
                return Ok(run);
            }
            match self.append_each(&run, events).await {
                // Workers may have stored something in between: the log says how the run stands now.
                Ok(()) => return self.replay(id).await,
                Err(AppendError::Conflict) => run = self.replay(id).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(Refusal::Contended)
    }

    /// A command's events stand on different subjects, so none of them moves another's expectation.
    async fn append_each(&self, run: &Run, events: Vec<Event>) -> Result<(), AppendError> {
        for event in events {
            let events = [event];
            self.journal.append(run.id(), &events, None, Expect::Last(revision(run, &events))).await?;
        }
        Ok(())
    }
}

/// The last entry on the subject on which a command's event will stand.
fn revision(run: &Run, events: &[Event]) -> u64 {
    use proto::subject::Place;
    match Place::of(events) {
        Some(Place::Control { call }) => run.call(call).map_or(0, run::Call::revision),
        _ => run.revision(),
    }
}

fn missing(id: RunId) -> Refusal {
    if proto::now().since(id.created_at()) > RETENTION { Refusal::EventsExpired(id) } else { Refusal::RunNotFound(id) }
}
