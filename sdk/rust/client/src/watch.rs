//! A run's ordered output, each event once, over as many connections as it takes: when one breaks, or its coordinator
//! shuts down, the output is read on after the last sequence number.

use proto::v1;
use tonic::{Status, Streaming};

use crate::backoff::Backoff;
use crate::client::{Client, passes};
use crate::error::Error;

/// A run's ordered output, each event once. If a connection breaks, or its coordinator shuts down, it connects again
/// and continues after the last event, for at most 60 s.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    floor: Floor,
    /// Empty until the first event of a new run names it.
    run_id: String,
    /// The sequence number of the last event that was given out.
    last: Option<u64>,
    messages: Messages,
    /// Counts from the moment in which the connection was lost.
    backoff: Option<Backoff>,
}

/// The order of the output.
#[derive(Debug, Clone, Default)]
pub(crate) struct Floor {
    pub(crate) policy: i32,
    /// One that the deployment adds, in place of `policy`.
    pub(crate) name: String,
}

impl From<v1::FloorPolicy> for Floor {
    fn from(policy: v1::FloorPolicy) -> Self {
        Self { policy: policy.into(), name: String::new() }
    }
}

#[derive(Debug)]
enum Messages {
    Execute(Box<Streaming<v1::ExecuteRunResponse>>),
    Watch(Box<Streaming<v1::WatchRunResponse>>),
    Broken,
    Ended,
}

/// A message's events, and whether it ends the stream.
type Parts = (Vec<v1::RunEvent>, Option<v1::StreamEnd>);

impl Watch {
    pub(crate) fn executing(client: Client, stream: Streaming<v1::ExecuteRunResponse>, floor: Floor) -> Self {
        let messages = Messages::Execute(Box::new(stream));
        Self { client, floor, run_id: String::new(), last: None, messages, backoff: None }
    }

    pub(crate) fn of_run(client: Client, run_id: &str, after: Option<u64>, floor: Floor) -> Self {
        Self { client, floor, run_id: run_id.to_owned(), last: after, messages: Messages::Broken, backoff: None }
    }

    /// The next events, at least one; `None` once the run has ended. Cancel safe: if it is dropped while it waits, no
    /// event is lost.
    ///
    /// # Errors
    /// If the run does not exist or is erased, or no coordinator is reached for 60 s.
    pub async fn next(&mut self) -> Result<Option<Vec<v1::RunEvent>>, Error> {
        loop {
            let message = match &mut self.messages {
                Messages::Execute(stream) => execute_parts(stream).await,
                Messages::Watch(stream) => watch_parts(stream).await,
                Messages::Broken => {
                    self.reconnect().await?;
                    continue;
                }
                Messages::Ended => return Ok(None),
            };
            match message {
                Ok(Some(parts)) => {
                    let events = self.take(parts);
                    if !events.is_empty() {
                        return Ok(Some(events));
                    }
                }
                // A stream that ends without saying so was cut.
                Ok(None) => self.messages = Messages::Broken,
                Err(status) if passes(&status) => self.messages = Messages::Broken,
                Err(status) => return Err(self.client.error(status)),
            }
        }
    }

    /// Whose output is shown when.
    pub(crate) fn floor(&self) -> Floor {
        self.floor.clone()
    }

    /// The run's id; empty before the first event of a new run.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    fn take(&mut self, (events, end): Parts) -> Vec<v1::RunEvent> {
        self.backoff = None;
        if let Some(end) = end {
            self.messages = match end.reason() {
                v1::StreamEndReason::RunEnded => Messages::Ended,
                v1::StreamEndReason::Shutdown | v1::StreamEndReason::Unspecified => Messages::Broken,
            };
        }
        if let Some(v1::RunEvent { event: Some(v1::run_event::Event::RunOpened(opened)), .. }) = events.first() {
            self.run_id.clone_from(&opened.run_id);
        }
        self.last = events.last().map(|event| event.sequence).or(self.last);
        events
    }

    async fn reconnect(&mut self) -> Result<(), Error> {
        if self.run_id.is_empty() {
            return Err(Error::RunUnknown);
        }
        self.backoff.get_or_insert_with(Backoff::new).wait().await;
        let Err(status) = self.open().await else { return Ok(()) };
        let Some(backoff) = self.backoff.as_mut().filter(|backoff| passes(&status) && backoff.has_patience()) else {
            return Err(self.client.error(status));
        };
        if backoff.is_noticeable() {
            tracing::warn!("the coordinator is away, waiting for it");
        }
        Ok(())
    }

    /// Opens the stream after the last event.
    pub(crate) async fn open(&mut self) -> Result<(), Status> {
        let request = v1::WatchRunRequest {
            run_id: self.run_id.clone(),
            after_sequence: self.last,
            floor_policy: self.floor.policy,
            floor_policy_name: self.floor.name.clone(),
        };
        let stream = self.client.runs.watch_run(request).await?;
        self.messages = Messages::Watch(Box::new(stream.into_inner()));
        Ok(())
    }
}

async fn execute_parts(stream: &mut Streaming<v1::ExecuteRunResponse>) -> Result<Option<Parts>, Status> {
    Ok(stream.message().await?.map(|message| (message.events, message.end)))
}

async fn watch_parts(stream: &mut Streaming<v1::WatchRunResponse>) -> Result<Option<Parts>, Status> {
    Ok(stream.message().await?.map(|message| (message.events, message.end)))
}
