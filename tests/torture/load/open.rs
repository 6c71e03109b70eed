//! Opening a run: asks until a request is confirmed, and keeps what was answered to those that were not.

use proto::v1;
use proto::v1::run_event::Event;
use tokio::time::{Duration, Instant};
use tonic::Status;

use super::{Drive, RUN_TIMEOUT};
use crate::check::{Answer, Asking, Broken, Violation};
use crate::plan::Method as Way;
use crate::replicas::{Messages, Next, REQUEST_LIMIT, passes};
use crate::world::ERASE_AFTER;

/// How long a run may be refused by everybody before the client gives up: longer than the longest stall of the broker.
const ACCEPT_LIMIT: Duration = Duration::from_secs(90);
/// How long a request without an id waits for its answer. Longer than a coordinator tries to store an opening, because
/// only an answer tells whether the request was refused.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

impl Drive {
    /// Asks until the run is confirmed. Gives the stream that came with it, if one did. `None` when nobody takes it.
    ///
    /// The only place that asks for a run. Under a request id the same request is repeated, and must give one run.
    /// Without one each request is another run; what those that were not confirmed may do is judged by
    /// [`crate::check::effects_of`].
    pub(super) async fn open(&mut self) -> Option<Option<Messages>> {
        // The id of an erased run is forgotten, so repeating must end before that.
        let is_forgotten = self.plan.has_request_id && !self.plan.is_kept;
        let until = Instant::now() + if is_forgotten { ERASE_AFTER / 2 } else { ACCEPT_LIMIT };
        let first = self.seed.index(self.load.door.replicas());
        for (at, asking) in (first..).zip(0..) {
            let number = if self.plan.has_request_id { 0 } else { asking };
            let began = ::nats::now().0;
            let opened = match self.plan.door {
                Way::Create => self.create(at, number).await.map(|run_id| (run_id, None)),
                Way::Execute => self.execute(at, number).await.map(|(run_id, stream)| (run_id, Some(stream))),
            };
            match opened {
                Ok((run_id, stream)) => {
                    self.outcome.opened = Some((at % self.load.door.replicas(), began, ::nats::now().0));
                    self.outcome.run_id = run_id;
                    self.evidence.asking = number;
                    self.evidence.may_be_void = self.plan.has_request_id && !self.outcome.askings.is_empty();
                    return Some(stream);
                }
                Err(status) if !passes(&status) => {
                    let what = format!("the run was refused: {status:?}");
                    self.outcome.violations.push(Violation { broken: Broken::WrongContent, what });
                    return None;
                }
                Err(status) => self.outcome.askings.push(Asking { number, answer: Answer::of(&status) }),
            }
            if Instant::now() > until {
                self.outcome.ends.extend(self.plan.calls.iter().map(|call| (call.name(), "never accepted".into())));
                return None;
            }
            tokio::time::sleep(self.seed.ms(20..200)).await;
        }
        None
    }

    pub(super) fn request(&self, asking: u32) -> v1::CreateRunRequest {
        v1::CreateRunRequest {
            calls: self.plan.new_calls(asking, &self.load.effects),
            timeout: Some(proto::convert::duration(RUN_TIMEOUT)),
            request_id: if self.plan.has_request_id { format!("run {}", self.plan.number) } else { String::new() },
            fail_fast: self.plan.fail_fast,
            store: (!self.plan.is_kept).then_some(false),
            ..v1::CreateRunRequest::default()
        }
    }

    fn open_limit(&self) -> Duration {
        if self.plan.has_request_id { REQUEST_LIMIT } else { OPEN_LIMIT }
    }

    async fn create(&mut self, at: usize, asking: u32) -> Result<String, Status> {
        let (request, limit) = (self.request(asking), self.open_limit());
        let created = self.load.door.ask_once(&mut self.seed, at, limit, |mut runs| {
            let request = request.clone();
            async move { runs.create_run(request).await }
        });
        created.await?.run.map(|run| run.run_id).ok_or_else(|| Status::data_loss("the response lacks the run"))
    }

    async fn execute(&mut self, at: usize, asking: u32) -> Result<(String, Messages), Status> {
        let run = Some(self.request(asking));
        let (floor_policy, limit) = (self.plan.policy.into(), self.open_limit());
        let request = v1::ExecuteRunRequest { run, floor_policy, ..v1::ExecuteRunRequest::default() };
        let stream = self.load.door.ask_once(&mut self.seed, at, limit, |mut runs| {
            let request = request.clone();
            async move { runs.execute_run(request).await }
        });
        let mut stream = Messages::Execute(Box::new(stream.await?));
        while self.live.is_empty() {
            match stream.next().await {
                Next::Events(events) => self.live.extend(events),
                Next::Broken(status) => return Err(status),
                Next::RunEnded => return Err(Status::unavailable("the stream ended at its beginning")),
            }
        }
        let run_id = self.live.first().and_then(|event| match &event.event {
            Some(Event::RunOpened(opened)) => Some(opened.run_id.clone()),
            _ => None,
        });
        Ok((run_id.ok_or_else(|| Status::data_loss("the first event does not name the run"))?, stream))
    }
}
