//! Messages between coordinators and workers besides the log.

use std::time::Duration;

use bytes::Bytes;
pub use owner::{Question, Unanswered, UserAnswer, UserQuestion};
use prost::Message as _;
use run::{
    AskedBy, AttemptId, AttemptNumber, CallIndex, ChunkIndex, Manifest, NewQuestion, Partition, RunId, ToolName,
    ToolSetId, Verdict, WorkerId,
};
use sha2::{Digest as _, Sha256};

use super::log::{answer_in, answer_out, attempt_in, attempt_out, ended_out, outcome_in};
use super::manifest::{InvalidManifest, Usable, manifest_out, manifest_within};
use super::{InvalidMessage, VERSION, check_version};
use crate::wire::v1 as wire;
use schema::pattern::Budget;

/// A sign of life of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    pub worker: WorkerId,
    /// The number of calls that it may run at once.
    pub slots: u32,
    pub running: u32,
    pub leaving: bool,
    /// Whether the broker answers its requests for jobs, or all its slots are in use.
    pub pulling: bool,
    /// The tools that it hosts.
    pub tools: ToolSetId,
    /// It takes no new calls; running calls may finish.
    pub draining: bool,
    /// The release of its library; empty if it is not given.
    pub release: String,
    /// `None` if its tools start no programs, or it does not say.
    pub sandbox: Option<WorkerSandbox>,
    /// The hooks that it calls about the ends of executions, by name.
    pub hooks: Vec<String>,
}

/// How a worker confines programs of its tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerSandbox {
    /// `none`, `confined` or `isolated`.
    pub level: String,
    /// `call`, `run` or `tenant`; empty if all calls work in one folder.
    pub workspace: String,
    /// Programs reach the network.
    pub network: bool,
}

/// The most bytes of such a text that are kept, because the worker chooses it.
const TEXT_BYTES_MAX: usize = 32;

/// The most hooks of a worker that are kept, and the most bytes of the name of one: more than a file of hooks may have.
const HOOKS_MAX: usize = 64;
const HOOK_BYTES_MAX: usize = 128;

fn plain(text: String) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".+-".contains(&byte);
    if text.len() <= TEXT_BYTES_MAX && text.bytes().all(is_plain) { text } else { String::new() }
}

fn sandbox_out(sandbox: &WorkerSandbox) -> wire::WorkerSandbox {
    let WorkerSandbox { level, workspace, network } = sandbox.clone();
    wire::WorkerSandbox { level, workspace, network }
}

fn sandbox_in(wire: wire::WorkerSandbox) -> WorkerSandbox {
    WorkerSandbox { level: plain(wire.level), workspace: plain(wire.workspace), network: wire.network }
}

impl Heartbeat {
    #[must_use]
    pub fn encode(&self) -> Bytes {
        wire::WorkerHeartbeat {
            version: VERSION,
            worker_id: self.worker.to_string(),
            slots: self.slots,
            running: self.running,
            leaving: self.leaving,
            pulling: self.pulling,
            tool_set: self.tools.to_string(),
            draining: self.draining,
            release: self.release.clone(),
            sandbox: self.sandbox.as_ref().map(sandbox_out),
            hooks: self.hooks.clone(),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes a heartbeat.
    ///
    /// # Errors
    /// The message is not a heartbeat.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        let wire = wire::WorkerHeartbeat::decode(payload)?;
        check_version(wire.version)?;
        let (worker, tools) = (wire.worker_id.parse()?, wire.tool_set.parse()?);
        let wire::WorkerHeartbeat { slots, running, leaving, pulling, draining, release, sandbox, mut hooks, .. } =
            wire;
        let (release, sandbox) = (plain(release), sandbox.map(sandbox_in));
        hooks.retain(|hook| hook.len() <= HOOK_BYTES_MAX);
        hooks.truncate(HOOKS_MAX);
        Ok(Self { worker, slots, running, leaving, pulling, tools, draining, release, sandbox, hooks })
    }
}

/// Encodes an advertisement and returns the id of its set of tools.
///
/// # Panics
/// Never, because hexadecimal digits are a valid id.
#[must_use]
pub fn encode_advertisement<'a>(manifests: impl Iterator<Item = &'a Manifest>) -> (ToolSetId, Bytes) {
    let tools = manifests.map(manifest_out).collect();
    let advertisement = wire::Advertisement { version: VERSION, tools }.encode_to_vec();
    let digest: String = Sha256::digest(&advertisement)[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    (digest.parse().expect("hexadecimal digits make an id"), advertisement.into())
}

/// The tools of an advertisement. Each is validated separately.
///
/// # Errors
/// The message is not an advertisement.
pub fn decode_advertisement(payload: Bytes) -> Result<Vec<Result<Usable, InvalidManifest>>, InvalidMessage> {
    let wire = wire::Advertisement::decode(payload)?;
    check_version(wire.version)?;
    let mut patterns = Budget::new(Budget::TOOLS_BYTES);
    Ok(wire.tools.into_iter().map(|tool| manifest_within(tool, &mut patterns)).collect())
}

/// Encodes a worker's question.
#[must_use]
pub fn encode_question(question: &Question) -> Bytes {
    wire::JobQuestion {
        version: VERSION,
        run_id: question.run.to_string(),
        call: u32::from(question.call.0),
        delivered: question.delivered,
        sequence: question.sequence,
        attempt: question.attempt.map(attempt_out),
        executed: question.executed,
        user_question: None,
    }
    .encode_to_vec()
    .into()
}

/// Decodes a worker's question.
///
/// # Errors
/// When the message is not a question.
pub fn decode_question(payload: Bytes) -> Result<Question, InvalidMessage> {
    let wire = wire::JobQuestion::decode(payload)?;
    check_version(wire.version)?;
    let (run, call) = (wire.run_id.parse()?, index_in(wire.call)?);
    let attempt = wire.attempt.map(|attempt| attempt_in(attempt, call));
    let wire::JobQuestion { delivered, sequence, executed, .. } = wire;
    Ok(Question { run, call, delivered, sequence, attempt, executed })
}

/// Encodes a tool's question to its client.
#[must_use]
pub fn encode_user_question(UserQuestion { run, sequence, question }: &UserQuestion) -> Bytes {
    let NewQuestion { asked_by: AskedBy { attempt, number }, arguments, timeout } = question;
    let timeout_ms = timeout.map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1));
    let user_question = wire::UserQuestion { number: u32::from(*number), arguments: arguments.clone(), timeout_ms };
    wire::JobQuestion {
        version: VERSION,
        run_id: run.to_string(),
        call: u32::from(attempt.call.0),
        delivered: attempt.number.0,
        sequence: *sequence,
        attempt: Some(attempt_out(*attempt)),
        user_question: Some(user_question),
        ..wire::JobQuestion::default()
    }
    .encode_to_vec()
    .into()
}

/// A worker's request to the owner of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerRequest {
    /// What to do with a job.
    Job(Question),
    /// A tool asks its client.
    Ask(UserQuestion),
}

/// Decodes a worker's request.
///
/// # Errors
/// The message is not one.
pub fn decode_request(payload: Bytes) -> Result<WorkerRequest, InvalidMessage> {
    let wire = wire::JobQuestion::decode(payload.clone())?;
    let Some(asks) = wire.user_question else { return decode_question(payload).map(WorkerRequest::Job) };
    check_version(wire.version)?;
    let call = index_in(wire.call)?;
    let attempt = attempt_in(wire.attempt.ok_or(InvalidMessage::Missing("the attempt that asks"))?, call);
    let asked_by = AskedBy { attempt, number: question_number_in(asks.number)? };
    let timeout = (asks.timeout_ms > 0).then(|| Duration::from_millis(asks.timeout_ms));
    let question = NewQuestion { asked_by, arguments: asks.arguments, timeout };
    Ok(WorkerRequest::Ask(UserQuestion { run: wire.run_id.parse()?, sequence: wire.sequence, question }))
}

/// Encodes how a question to the client stands; `None` means that the owner does not know yet.
#[must_use]
pub fn encode_user_answer(answer: Option<&UserAnswer>) -> Bytes {
    use wire::user_answer::State;
    let verdict = match answer {
        None => wire::job_answer::Verdict::AskAgain(wire::AskAgain {}),
        Some(answer) => {
            let state = match answer {
                UserAnswer::Open => State::Open(wire::QuestionOpen {}),
                UserAnswer::Answered(answer) => State::Answered(answer_out(answer)),
                UserAnswer::Unanswered(Unanswered::Expired) => {
                    State::Ended(wire::QuestionEnded { expired: true, reason: String::new() })
                }
                UserAnswer::Unanswered(Unanswered::Cancelled { reason }) => {
                    State::Ended(wire::QuestionEnded { expired: false, reason: reason.clone() })
                }
                UserAnswer::Refused(why) => State::Refused(why.clone()),
            };
            wire::job_answer::Verdict::UserAnswer(wire::UserAnswer { state: Some(state) })
        }
    };
    wire::JobAnswer { version: VERSION, verdict: Some(verdict) }.encode_to_vec().into()
}

/// The reply to a question to the client.
#[derive(Debug, Clone, PartialEq)]
pub enum UserReply {
    Known(UserAnswer),
    /// The owner does not know yet.
    AskAgain,
    /// The owner is of the release before questions.
    OwnerTooOld,
}

/// Decodes the reply to a question to the client.
///
/// # Errors
/// The message is no such reply.
pub fn decode_user_answer(payload: Bytes) -> Result<UserReply, InvalidMessage> {
    use wire::user_answer::State;
    let wire = wire::JobAnswer::decode(payload)?;
    check_version(wire.version)?;
    let answer = match wire.verdict.ok_or(InvalidMessage::Missing("the answer"))? {
        wire::job_answer::Verdict::UserAnswer(answer) => answer,
        wire::job_answer::Verdict::AskAgain(_) => return Ok(UserReply::AskAgain),
        _ => return Ok(UserReply::OwnerTooOld),
    };
    let answer = match answer.state.ok_or(InvalidMessage::Missing("how the question stands"))? {
        State::Open(_) => UserAnswer::Open,
        State::Answered(answered) => UserAnswer::Answered(answer_in(answered)?),
        State::Ended(ended) if ended.expired => UserAnswer::Unanswered(Unanswered::Expired),
        State::Ended(ended) => UserAnswer::Unanswered(Unanswered::Cancelled { reason: ended.reason }),
        State::Refused(why) => UserAnswer::Refused(why),
    };
    Ok(UserReply::Known(answer))
}

/// The owner's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub verdict: Verdict,
    /// The sequence of the call's last output in the log; 0 if there is none.
    pub last_output: u64,
    /// If the job is to be executed: a live worker of the pool hosts what the call needs.
    pub has_taker: bool,
}

/// `None` means that the owner does not know yet.
#[must_use]
pub fn encode_answer(answer: Option<&Answer>) -> Bytes {
    use wire::job_answer::Verdict as Wire;
    let (last_output, has_taker) = answer.map_or((0, false), |answer| (answer.last_output, answer.has_taker));
    let verdict = match answer.map(|answer| &answer.verdict) {
        Some(Verdict::Go { number, used, from }) => {
            Wire::GoAhead(wire::GoAhead { number: number.0, used: *used, last_output, from: from.0, has_taker })
        }
        Some(Verdict::End { attempt, outcome }) => {
            let ended = ended_out(0, outcome);
            let (outcome, error) = (ended.outcome, ended.error);
            Wire::EndAttempt(wire::EndAttempt { attempt: Some(attempt_out(*attempt)), outcome, error, last_output })
        }
        Some(Verdict::Drop) => Wire::DropJob(wire::DropJob {}),
        Some(Verdict::Leave) => Wire::LeaveJob(wire::LeaveJob {}),
        None => Wire::AskAgain(wire::AskAgain {}),
    };
    wire::JobAnswer { version: VERSION, verdict: Some(verdict) }.encode_to_vec().into()
}

/// Decodes the answer.
///
/// # Errors
/// The message is not an answer.
pub fn decode_answer(payload: Bytes, call: CallIndex) -> Result<Option<Answer>, InvalidMessage> {
    use wire::job_answer::Verdict as Wire;
    let wire = wire::JobAnswer::decode(payload)?;
    check_version(wire.version)?;
    let (mut last_output, mut has_taker) = (0, false);
    let verdict = match wire.verdict.ok_or(InvalidMessage::Missing("the verdict"))? {
        Wire::GoAhead(go) => {
            (last_output, has_taker) = (go.last_output, go.has_taker);
            Verdict::Go { number: AttemptNumber(go.number), used: go.used, from: ChunkIndex(go.from) }
        }
        Wire::EndAttempt(end) => {
            last_output = end.last_output;
            let attempt = attempt_in(end.attempt.ok_or(InvalidMessage::Missing("the attempt"))?, call);
            let ended = wire::AttemptEnded { outcome: end.outcome, error: end.error, ..wire::AttemptEnded::default() };
            Verdict::End { attempt, outcome: outcome_in(ended)? }
        }
        Wire::DropJob(_) => Verdict::Drop,
        Wire::LeaveJob(_) => Verdict::Leave,
        Wire::AskAgain(_) => return Ok(None),
        Wire::UserAnswer(_) => return Err(InvalidMessage::Misplaced { event: "answer of a client" }),
    };
    Ok(Some(Answer { verdict, last_output, has_taker }))
}

/// A message from a coordinator to the workers of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    Attempt(RunId, AttemptId),
    /// A worker takes no new calls, finishes its running calls, and leaves.
    Worker(WorkerId),
    /// Jobs of these tools, and of no others, go back to the queue. The pool need not host the tools. This holds until
    /// the next message, and without one for [`HELD_FOR`](crate::names::HELD_FOR).
    Held(Vec<ToolName>),
    /// Names that workers with this tool set advertise and that no call is routed to, each with the reason. It stops
    /// nothing.
    Refused(ToolSetId, Vec<(String, String)>),
    /// Whether most of the broker's servers store messages, as seen by a coordinator. It stops nothing. `false` holds
    /// for [`UNSTORED_FOR`](crate::names::UNSTORED_FOR).
    Storing(bool),
    /// The number of partitions of the log, each with a queue of the pool. It stops nothing, and is repeated while
    /// there is more than one.
    Partitions(usize),
}

impl Stop {
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let wire = match self {
            Self::Attempt(run, attempt) => wire::StopAttempt {
                run_id: run.to_string(),
                call: u32::from(attempt.call.0),
                attempt: Some(attempt_out(*attempt)),
                ..wire::StopAttempt::default()
            },
            Self::Worker(worker) => wire::StopAttempt { worker_id: worker.to_string(), ..wire::StopAttempt::default() },
            Self::Held(tools) => {
                let held = wire::Held { tools: tools.iter().map(ToString::to_string).collect() };
                wire::StopAttempt { held: Some(held), ..wire::StopAttempt::default() }
            }
            Self::Refused(set, names) => {
                let name = |(tool, reason): &(String, String)| wire::RefusedName {
                    tool: tool.clone(),
                    reason: reason.clone(),
                };
                let names = names.iter().map(name).collect();
                let refused = wire::RefusedNames { tool_set: set.to_string(), names };
                wire::StopAttempt { refused: Some(refused), ..wire::StopAttempt::default() }
            }
            Self::Storing(storing) => {
                let storing = Some(wire::Storing { storing: *storing });
                wire::StopAttempt { storing, ..wire::StopAttempt::default() }
            }
            Self::Partitions(count) => {
                let partitions = u32::try_from(*count).unwrap_or(u32::MAX);
                wire::StopAttempt { partitions, ..wire::StopAttempt::default() }
            }
        };
        wire::StopAttempt { version: VERSION, ..wire }.encode_to_vec().into()
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// The message is not one of these.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        let wire = wire::StopAttempt::decode(payload)?;
        check_version(wire.version)?;
        if !wire.worker_id.is_empty() {
            return Ok(Self::Worker(wire.worker_id.parse()?));
        }
        if let Some(held) = wire.held {
            return Ok(Self::Held(held.tools.iter().map(|tool| tool.parse()).collect::<Result<_, _>>()?));
        }
        if let Some(refused) = wire.refused {
            let names = refused.names.into_iter().map(|name| (name.tool, name.reason)).collect();
            return Ok(Self::Refused(refused.tool_set.parse()?, names));
        }
        if let Some(storing) = wire.storing {
            return Ok(Self::Storing(storing.storing));
        }
        if wire.partitions > 0 {
            return Ok(Self::Partitions((wire.partitions as usize).min(Partition::MAX)));
        }
        let call = index_in(wire.call)?;
        let attempt = attempt_in(wire.attempt.ok_or(InvalidMessage::Missing("the attempt"))?, call);
        Ok(Self::Attempt(wire.run_id.parse()?, attempt))
    }
}

pub(super) fn question_number_in(number: u32) -> Result<u16, InvalidMessage> {
    u16::try_from(number).map_err(|_| InvalidMessage::Missing("a question's number"))
}

pub(super) fn index_in(call: u32) -> Result<CallIndex, InvalidMessage> {
    u16::try_from(call).map(CallIndex).map_err(|_| InvalidMessage::Missing("a call index within a run"))
}
