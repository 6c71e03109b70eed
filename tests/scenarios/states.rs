//! Random commands to runs through the API, each judged by a model of the states in `docs/reference/states.md`: a
//! command does what the model says, or is refused with the reason that the model gives, and changes nothing else.

use std::path::{Path, PathBuf};

use harness::{Client, PATIENCE, Run, Yard, call, client_answer, reason};
use proto::v1::call_decision::Decision;
use proto::v1::{self, ApprovalDefault, CallState, FloorPolicy, RunStatus};
use serde_json::json;
use tonic::Status;

use crate::{FIXTURE, check, question};

const RUNS: u64 = 32;
const STEPS: usize = 40;

/// Numbers that depend on the seed alone (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).expect("it is below a usize")
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// The client answers it.
    Question,
    /// A worker executes it until it is released.
    Executed,
    /// A worker executes it once it is approved.
    Approved,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Waiting,
    AwaitingApproval,
    /// Accepted, queued or running: when it goes from one to the next is not the model's.
    Executing,
    Completed,
    Failed,
    Cancelled,
}

impl State {
    fn is_end(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    fn is(self, state: CallState) -> bool {
        match self {
            Self::Waiting => state == CallState::WaitingForClient,
            Self::AwaitingApproval => state == CallState::AwaitingApproval,
            Self::Executing => matches!(state, CallState::Accepted | CallState::Queued | CallState::Running),
            Self::Completed => state == CallState::Completed,
            Self::Failed => state == CallState::Failed,
            Self::Cancelled => state == CallState::Cancelled,
        }
    }
}

/// A command. Calls are named by their places; the one behind the last is unknown.
#[derive(Debug, Clone, Copy)]
enum Command {
    Append(Kind),
    AppendAgain,
    Close,
    Answer(usize, &'static str),
    Decide(usize, bool),
    CancelCall(usize),
    CancelRun,
    Drop(usize),
    Redrive(usize),
    /// Lets a tool end.
    Release(usize),
}

#[derive(Debug, Clone)]
struct ModelCall {
    kind: Kind,
    state: State,
    answer: Option<&'static str>,
    decided: Option<bool>,
}

/// A run as the tables of states have it.
#[derive(Debug, Clone, Default)]
struct Model {
    calls: Vec<ModelCall>,
    is_closed: bool,
    is_cancelled: bool,
}

impl Model {
    fn has_ended(&self) -> bool {
        self.is_closed && self.calls.iter().all(|call| call.state.is_end())
    }

    fn status(&self) -> RunStatus {
        let has = |state| self.calls.iter().any(|call| call.state == state);
        match (self.has_ended(), self.is_cancelled) {
            (true, true) => RunStatus::Cancelled,
            (true, false) => RunStatus::Completed,
            (false, _) if has(State::Executing) => RunStatus::InProgress,
            (false, _) if has(State::Waiting) || has(State::AwaitingApproval) => RunStatus::RequiresAction,
            (false, _) => RunStatus::InProgress,
        }
    }

    /// What the command does, or the reason for which it is refused.
    fn take(&mut self, command: Command) -> Result<(), &'static str> {
        match command {
            Command::Append(_) | Command::AppendAgain if self.has_ended() => Err("RUN_ENDED"),
            Command::Append(_) | Command::AppendAgain if self.is_closed => Err("RUN_CLOSED"),
            Command::AppendAgain => Err("DUPLICATE_CALL_ID"),
            Command::Append(kind) => {
                let state = match kind {
                    Kind::Question => State::Waiting,
                    Kind::Executed => State::Executing,
                    Kind::Approved => State::AwaitingApproval,
                };
                self.calls.push(ModelCall { kind, state, answer: None, decided: None });
                Ok(())
            }
            Command::Close => {
                self.is_closed = true;
                Ok(())
            }
            Command::CancelRun => {
                if !self.has_ended() {
                    (self.is_closed, self.is_cancelled) = (true, true);
                    self.calls.iter_mut().for_each(ModelCall::cancel);
                }
                Ok(())
            }
            Command::Answer(call, text) => self.call(call)?.answer(text),
            Command::Decide(call, approves) => self.call(call)?.decide(approves),
            Command::CancelCall(call) => {
                self.call(call)?.cancel();
                Ok(())
            }
            // No call of these runs ends in a way that another attempt might mend.
            Command::Drop(call) | Command::Redrive(call) => self.call(call).and(Err("CALL_NOT_PARKED")),
            Command::Release(call) => {
                let call = self.call(call)?;
                call.state = if call.state == State::Executing { State::Completed } else { call.state };
                Ok(())
            }
        }
    }

    fn call(&mut self, call: usize) -> Result<&mut ModelCall, &'static str> {
        self.calls.get_mut(call).ok_or("CALL_NOT_FOUND")
    }
}

impl ModelCall {
    fn cancel(&mut self) {
        self.state = if self.state.is_end() { self.state } else { State::Cancelled };
    }

    fn answer(&mut self, text: &'static str) -> Result<(), &'static str> {
        match (self.kind, self.state) {
            (Kind::Question, State::Waiting) => {
                (self.state, self.answer) = (State::Completed, Some(text));
                Ok(())
            }
            (Kind::Question, State::Completed) if self.answer == Some(text) => Ok(()),
            (Kind::Question, State::Completed) => Err("CALL_ALREADY_ANSWERED"),
            _ => Err("CALL_NOT_WAITING"),
        }
    }

    fn decide(&mut self, approves: bool) -> Result<(), &'static str> {
        match (self.decided, self.state) {
            (Some(earlier), _) if earlier == approves => Ok(()),
            (Some(_), _) => Err("CALL_ALREADY_DECIDED"),
            (None, State::AwaitingApproval) => {
                self.decided = Some(approves);
                self.state = if approves { State::Executing } else { State::Failed };
                Ok(())
            }
            (None, _) => Err("CALL_NOT_AWAITING_APPROVAL"),
        }
    }
}

/// A run, its model, and what was done to it.
struct Subject {
    run: Run,
    folder: PathBuf,
    model: Model,
    history: Vec<Command>,
}

impl Subject {
    async fn open(client: &Client, folder: &Path, number: u64) -> Self {
        let request = v1::CreateRunRequest { keep_open: true, ..v1::CreateRunRequest::default() };
        let created = client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
        let run = Run { client: client.clone(), id: created.run.expect("the response has the run").run_id };
        Self { run, folder: folder.join(number.to_string()), model: Model::default(), history: Vec::new() }
    }

    /// The file for which the tool of a call waits.
    fn file(&self, call: usize) -> PathBuf {
        self.folder.join(call.to_string())
    }

    fn draw(&self, numbers: &mut Numbers) -> Command {
        let some_call = numbers.below(self.model.calls.len() + 1);
        match numbers.below(40) {
            0..8 => Command::Append([Kind::Question, Kind::Executed, Kind::Approved][numbers.below(3)]),
            8 if !self.model.calls.is_empty() => Command::AppendAgain,
            9 if self.history.len() > STEPS / 2 => Command::Close,
            10 if self.history.len() > STEPS / 2 => Command::CancelRun,
            11..18 => Command::Answer(some_call, ["yes", "no"][numbers.below(2)]),
            18..25 => Command::Decide(some_call, numbers.below(3) > 0),
            25..28 => Command::CancelCall(some_call),
            28..30 => Command::Drop(some_call),
            30..32 => Command::Redrive(some_call),
            _ => Command::Release(some_call),
        }
    }

    fn new_call(&self, kind: Kind, place: usize) -> v1::NewCall {
        let (id, path) = (place.to_string(), self.file(place));
        match kind {
            Kind::Question => question(&id),
            Kind::Executed => call(&id, "waits", json!({ "path": path })),
            Kind::Approved => {
                let approval = Some(v1::ApprovalRequest { timeout: None, default: ApprovalDefault::Reject.into() });
                v1::NewCall { approval, ..call(&id, "waits", json!({ "path": path })) }
            }
        }
    }

    async fn send(&self, command: Command, next: usize) -> Result<(), Status> {
        let (mut runs, run_id, reason) = (self.run.client.runs.clone(), self.run.id.clone(), "enough".to_owned());
        match command {
            Command::Append(kind) => {
                let calls = vec![self.new_call(kind, next)];
                let request = v1::AppendCallsRequest { run_id, calls, ..v1::AppendCallsRequest::default() };
                runs.append_calls(request).await.map(drop)
            }
            Command::AppendAgain => {
                let calls = vec![self.new_call(Kind::Executed, 0)];
                let request = v1::AppendCallsRequest { run_id, calls, ..v1::AppendCallsRequest::default() };
                runs.append_calls(request).await.map(drop)
            }
            Command::Close => runs.close_run(v1::CloseRunRequest { run_id }).await.map(drop),
            Command::Answer(call, text) => {
                self.run.submit(vec![client_answer(&call.to_string(), text)]).await.map(drop)
            }
            Command::Decide(call, approves) => {
                let decision = if approves {
                    Decision::Approve(v1::CallApproval::default())
                } else {
                    Decision::Reject(v1::CallRejection { reason })
                };
                let decisions = vec![v1::CallDecision { call_id: call.to_string(), decision: Some(decision) }];
                runs.decide_calls(v1::DecideCallsRequest { run_id, decisions }).await.map(drop)
            }
            Command::CancelCall(call) => {
                let request = v1::CancelCallRequest { run_id, call_id: call.to_string(), reason };
                runs.cancel_call(request).await.map(drop)
            }
            Command::CancelRun => runs.cancel_run(v1::CancelRunRequest { run_id, reason }).await.map(drop),
            Command::Drop(call) => {
                runs.drop_call(v1::DropCallRequest { run_id, call_id: call.to_string() }).await.map(drop)
            }
            Command::Redrive(call) => {
                runs.redrive_call(v1::RedriveCallRequest { run_id, call_id: call.to_string() }).await.map(drop)
            }
            Command::Release(call) => {
                let made = std::fs::create_dir_all(&self.folder);
                made.and_then(|()| std::fs::write(self.file(call), "")).map_err(Status::from)
            }
        }
    }

    /// Sends a command and compares its answer, and the run after it, with the model.
    async fn step(&mut self, command: Command) {
        self.history.push(command);
        let before = self.model.clone();
        let expected = self.model.take(command);
        // A file that is there before its call is executed would release it at once.
        let is_executing = |call: usize| before.calls.get(call).is_some_and(|call| call.state == State::Executing);
        if !matches!(command, Command::Release(call) if !is_executing(call)) {
            let answer = self.send(command, before.calls.len()).await;
            let answer = answer.as_ref().map_err(reason);
            assert_eq!(answer.copied(), expected.map_err(str::to_owned), "{:#?}", self.history);
        }
        // A tool takes its time to end; everything else holds at once.
        let waits = |now: &ModelCall, before: &ModelCall| now.state.is_end() && before.state == State::Executing;
        let is_immediate = !self.model.calls.iter().zip(&before.calls).any(|(now, before)| waits(now, before));
        let settled = async {
            while let Err(difference) = self.compare(&self.run.get().await) {
                assert!(!is_immediate, "{difference}: {:#?}", self.history);
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, settled).await;
        assert!(in_time.is_ok(), "{:?} {:#?}", self.compare(&self.run.get().await), self.history);
    }

    fn compare(&self, run: &v1::Run) -> Result<(), String> {
        let differs = |what: &str| Err(format!("{what}: {:?} is not {run:#?}", self.model));
        if run.calls.len() != self.model.calls.len() {
            return differs("another number of calls");
        }
        let mut pairs = self.model.calls.iter().zip(&run.calls);
        if !pairs.all(|(model, call)| model.state.is(call.state())) {
            return differs("another state of a call");
        }
        if run.status() == self.model.status() { Ok(()) } else { differs("another status") }
    }

    /// Cancels what has not ended, and compares what a reader sees with the model.
    async fn finish(mut self) -> usize {
        self.step(Command::CancelRun).await;
        self.step(Command::Append(Kind::Question)).await;
        let events = self.run.watch(FloorPolicy::Arrival).await.to_end().await;
        check::whole(&events, true);
        let outcomes = check::outcomes(&events);
        for (place, call) in self.model.calls.iter().enumerate() {
            assert!(call.state.is(outcomes[&place.to_string()].state()), "{place} {:#?}", self.history);
        }
        self.model.calls.len()
    }
}

#[tokio::test]
async fn random_commands_do_what_the_tables_of_states_say_and_nothing_else() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(256).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runs = (0..RUNS).map(|number| {
        let (client, folder) = (yard.client.clone(), folder.path().to_owned());
        async move {
            let (mut numbers, mut subject) = (Numbers(number), Subject::open(&client, &folder, number).await);
            for _ in 0..STEPS {
                let command = subject.draw(&mut numbers);
                subject.step(command).await;
            }
            subject.finish().await
        }
    });
    let calls: usize = futures::future::join_all(runs).await.into_iter().sum();
    assert!(calls > 100, "the runs are not dull: {calls} calls");
}
