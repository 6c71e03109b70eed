//! The requests of the console: what its effects mean at the coordinator, and what comes of them as events.

use std::time::Duration;

use client::{Client, Code, Error};
use proto::v1;
use proto::v1::call_decision::Decision;
use tokio::sync::mpsc::Sender;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::effect::{Action, Done, Event, Explained, Fleet, Loaded, Page};
use super::state::Tab;
use crate::exit::Failure;
use crate::follow;
use crate::words::short_id;

/// A page that is not loaded in this time counts as lost.
const LOAD_LIMIT: Duration = Duration::from_secs(5);
/// The pause before the output of a run is requested again.
const FOLLOW_PAUSE: Duration = Duration::from_secs(1);
/// Rows of a page.
const ROWS_MAX: usize = 500;
/// Runs whose calls give the overview the times of tools: it is loaded each second.
const TIMED_MAX: usize = 100;
/// Failures on the overview.
const FAILED_MAX: usize = 20;
const REASON: &str = "cancelled in toolyard top";

#[derive(Debug)]
pub(super) struct Requests {
    client: Client,
    events: Sender<Event>,
    tasks: JoinSet<()>,
    following: Option<AbortHandle>,
}

impl Requests {
    pub(super) fn new(client: Client, events: Sender<Event>) -> Self {
        Self { client, events, tasks: JoinSet::new(), following: None }
    }

    pub(super) fn load(&mut self, page: Page) {
        let client = self.client.clone();
        self.send(async move {
            match timeout(LOAD_LIMIT, loaded(&client, page)).await {
                Ok(Ok(loaded)) => Event::Loaded(Box::new(loaded)),
                Ok(Err(error)) if is_lost(&error) => Event::Lost(error.to_string()),
                Ok(Err(error)) => Event::Refused(Failure::from(error).to_string()),
                Err(_) => Event::Lost(format!("the coordinator did not answer in {} s", LOAD_LIMIT.as_secs())),
            }
        });
    }

    pub(super) fn explain(&mut self, run_id: String, call_id: String) {
        let client = self.client.clone();
        self.send(async move {
            let answer = client.explain(&run_id, &call_id).await.map_err(|error| Failure::from(error).to_string());
            Event::Explained(Box::new(Explained { run_id, call_id, answer }))
        });
    }

    pub(super) fn act(&mut self, action: Action) {
        let client = self.client.clone();
        self.send(
            async move { Event::Done(done(&client, action).await.map_err(|error| Failure::from(error).to_string())) },
        );
    }

    /// Reads the output of a run, and that of no other one any more.
    pub(super) fn follow(&mut self, run_id: String) {
        self.unfollow();
        let (client, events) = (self.client.clone(), self.events.clone());
        self.following = Some(self.tasks.spawn_local(async move { read(&client, run_id, &events).await }));
    }

    pub(super) fn unfollow(&mut self) {
        if let Some(following) = self.following.take() {
            following.abort();
        }
    }

    fn send(&mut self, request: impl Future<Output = Event> + 'static) {
        // Tasks that have ended are forgotten.
        while self.tasks.try_join_next().is_some() {}
        let events = self.events.clone();
        self.tasks.spawn_local(async move {
            // The console ends, if nothing receives the event.
            drop(events.send(request.await).await);
        });
    }
}

/// Whether the coordinator cannot be reached, or is leaving.
fn is_lost(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } => true,
        Error::Refused(status) => status.code() == Code::Unavailable,
        Error::Settings(_) | Error::RunUnknown | Error::Source(_) => false,
    }
}

async fn loaded(client: &Client, page: Page) -> Result<Loaded, Error> {
    // First, because it fails at once if the coordinator is away.
    let counts = client.counts().await?;
    let mut loaded = Loaded { counts, ..Loaded::default() };
    let Page::Of(tab, status) = page else { return Ok(loaded) };
    match tab {
        Tab::Overview => {
            loaded.fleet = Some(fleet(client).await?);
            loaded.runs = Some(client.list_runs(v1::ListRunsRequest::default(), TIMED_MAX).await?.0);
            loaded.failed = Some(calls(client, v1::CallState::Failed, FAILED_MAX).await?);
        }
        Tab::Runs => {
            let request = v1::ListRunsRequest { status: status.into(), ..v1::ListRunsRequest::default() };
            loaded.runs = Some(client.list_runs(request, ROWS_MAX).await?.0);
        }
        Tab::Inbox => {
            let request = v1::ListCallsRequest { inbox: true, ..v1::ListCallsRequest::default() };
            loaded.inbox = Some(client.list_calls(request, ROWS_MAX).await?.0);
        }
        Tab::Fleet => loaded.fleet = Some(fleet(client).await?),
    }
    Ok(loaded)
}

async fn fleet(client: &Client) -> Result<Fleet, Error> {
    let workers = permitted(client.workers(String::new()).await)?;
    let pauses = permitted(client.paused().await)?;
    let is_forbidden = workers.is_none();
    let mut open = Vec::new();
    for state in [v1::CallState::Running, v1::CallState::Accepted, v1::CallState::Queued] {
        open.extend(calls(client, state, ROWS_MAX).await?);
    }
    Ok(Fleet { workers: workers.unwrap_or_default(), pauses: pauses.unwrap_or_default(), open, is_forbidden })
}

/// `None` if the user lacks the role for it.
fn permitted<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Refused(status)) if status.code() == Code::PermissionDenied => Ok(None),
        Err(error) => Err(error),
    }
}

async fn calls(client: &Client, state: v1::CallState, most: usize) -> Result<Vec<v1::ListedCall>, Error> {
    let request = v1::ListCallsRequest { state: state.into(), ..v1::ListCallsRequest::default() };
    Ok(client.list_calls(request, most).await?.0)
}

/// Reads the output of a run to its end, over as many connections as it takes.
async fn read(client: &Client, run_id: String, events: &Sender<Event>) {
    let mut last = None;
    loop {
        let error = match read_on(client, &run_id, &mut last, events).await {
            Ok(()) => return drop(events.send(Event::Over { run_id }).await),
            Err(error) => error,
        };
        if !is_lost(&error) {
            let error = Failure::from(error).to_string();
            return drop(events.send(Event::Unreadable { run_id, error }).await);
        }
        sleep(FOLLOW_PAUSE).await;
    }
}

async fn read_on(client: &Client, run_id: &str, last: &mut Option<u64>, events: &Sender<Event>) -> Result<(), Error> {
    let mut watch = client.watch(run_id, *last, v1::FloorPolicy::Arrival).await?;
    while let Some(received) = watch.next().await? {
        *last = received.last().map(|event| event.sequence).or(*last);
        let output = Event::Output { run_id: run_id.to_owned(), events: received };
        if events.send(output).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

async fn done(client: &Client, action: Action) -> Result<Done, Error> {
    let mut made = None;
    let text = match action {
        Action::CancelRun { run_id } => {
            client.cancel_run(&run_id, REASON).await?;
            format!("{} is being cancelled", short_id(&run_id))
        }
        Action::CancelCall { run_id, call_id } => {
            client.cancel_call(&run_id, &call_id, REASON).await?;
            format!("{call_id} is being cancelled")
        }
        Action::Redrive { run_id, call_id } => {
            let run = client.redrive(&run_id, &call_id).await?;
            made = Some(run.run_id.clone());
            format!("{call_id} is executed once more in {}", short_id(&run.run_id))
        }
        Action::Approve { run_id, call_id, arguments } => {
            let decision = Some(Decision::Approve(v1::CallApproval { arguments }));
            client.decide(run_id, v1::CallDecision { call_id: call_id.clone(), decision }).await?;
            format!("{call_id} was approved")
        }
        Action::Reject { run_id, call_id, reason } => {
            let decision = Some(Decision::Reject(v1::CallRejection { reason }));
            client.decide(run_id, v1::CallDecision { call_id: call_id.clone(), decision }).await?;
            format!("{call_id} was rejected")
        }
        Action::Answer { run_id, call_id, text } => {
            client.submit(&run_id, follow::output(&call_id, Ok(text))).await?;
            format!("{call_id} was answered")
        }
        Action::Pause { pool, reason } => {
            client.pause(v1::pause_request::What::Pool(pool.clone()), reason).await?;
            format!("the pool {pool} is paused")
        }
        Action::Resume { pool } => {
            client.resume(v1::resume_request::What::Pool(pool.clone())).await?;
            format!("the pool {pool} goes on")
        }
        Action::Drain { worker_id } => {
            client.drain_worker(worker_id.clone()).await?;
            format!("{worker_id} drains")
        }
    };
    Ok(Done { text, run_id: made })
}
