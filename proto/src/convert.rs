//! The only conversions between the wire and the domain: `log` for log entries, `manifest` for tools, `worker` for
//! other messages between coordinators and workers, `object` for messages about objects, `snapshot` for the snapshots
//! of shard owners, `carried` for entries that may leave the log, `history` for ended runs, `api` for the public API,
//! `fields` for JSON objects. Shared types (content, errors, policies) are here.

pub mod api;
pub mod carried;
pub mod fields;
pub mod history;
pub mod log;
pub mod manifest;
pub mod object;
pub mod overview;
pub mod position;
pub mod record;
mod requester;
pub mod snapshot;
pub mod worker;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use run::{
    AfterPartialOutput, Backoff, CallError, Citation, CitationSource, CitedText, Concurrency, Content, DefaultDecision,
    ErrorKind, InvalidId, Object, ParentCall, Policy, Priority, Progress, RetryOn, Rules, Violation,
};

use self::fields::NotAnObject;
use crate::subject::InvalidSubject;
use crate::v1;

/// The version of every wire message.
pub const VERSION: u32 = 1;

/// A message that cannot be decoded. It is counted and skipped.
#[derive(Debug, thiserror::Error)]
pub enum InvalidMessage {
    #[error(transparent)]
    Subject(#[from] InvalidSubject),
    #[error("decoding the message failed: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error("the message has version {0}, but this program supports version {VERSION}: upgrade it")]
    Version(u32),
    #[error(transparent)]
    Id(#[from] InvalidId),
    #[error("the message lacks {0}")]
    Missing(&'static str),
    #[error("its {field} {error}")]
    Object { field: &'static str, error: NotAnObject },
    #[error("a {event} does not belong on this subject")]
    Misplaced { event: &'static str },
}

fn check_version(version: u32) -> Result<(), InvalidMessage> {
    if version == VERSION { Ok(()) } else { Err(InvalidMessage::Version(version)) }
}

/// Converts each value, into a vector without spare room. `collect` would use the memory of the wire's vector again,
/// which has room for at least four values that are several times as large, and entries are kept.
fn each_in<W, D>(
    wire: Vec<W>,
    mut convert: impl FnMut(W) -> Result<D, InvalidMessage>,
) -> Result<Vec<D>, InvalidMessage> {
    let mut all = Vec::with_capacity(wire.len());
    for one in wire {
        all.push(convert(one)?);
    }
    Ok(all)
}

/// Ten thousand years, the longest duration that the format can represent.
const DURATION_SECONDS_MAX: i64 = 315_576_000_000;

/// A domain duration in wire form.
#[must_use]
pub fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX).min(DURATION_SECONDS_MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default(),
    }
}

/// A duration from the wire; `None` if it is negative, or is none that JSON can represent. The library's own conversion
/// overflows at the limit of its range.
#[must_use]
pub fn time_in(wire: prost_types::Duration) -> Option<Duration> {
    let (seconds, nanos) = (u64::try_from(wire.seconds).ok()?, u32::try_from(wire.nanos).ok()?);
    let is_time = wire.seconds <= DURATION_SECONDS_MAX && nanos < 1_000_000_000;
    is_time.then(|| Duration::new(seconds, nanos))
}

fn duration_or(wire: Option<prost_types::Duration>, default: Duration) -> Duration {
    wire.and_then(time_in).unwrap_or(default)
}

pub(crate) fn content_out(content: &Content) -> v1::Content {
    let body = match content {
        Content::Text(text) => v1::content::Body::Text(text.clone()),
        Content::Json(json) => v1::content::Body::Json(json.clone()),
        Content::Data { media_type, data } => {
            v1::content::Body::Data(v1::Data { media_type: media_type.clone(), data: data.clone() })
        }
        Content::Object(object) => v1::content::Body::Object(object_out(object)),
        Content::Cited(cited) => v1::content::Body::Text(cited.text.clone()),
    };
    let citations = match content {
        Content::Cited(cited) => cited.citations.iter().map(citation_out).collect(),
        Content::Text(_) | Content::Json(_) | Content::Data { .. } | Content::Object(_) => Vec::new(),
    };
    v1::Content { body: Some(body), citations }
}

fn citation_out(citation: &Citation) -> v1::Citation {
    let source = match citation.source.clone() {
        CitationSource::Url(url) => v1::citation::Source::Url(url),
        CitationSource::File(id) => v1::citation::Source::FileId(id),
    };
    v1::Citation { source: Some(source), title: citation.title.clone(), start: citation.start, end: citation.end }
}

/// `None` for a source of a kind that is newer than this program.
fn citation_in(wire: v1::Citation) -> Option<Citation> {
    let source = match wire.source? {
        v1::citation::Source::Url(url) => CitationSource::Url(url),
        v1::citation::Source::FileId(id) => CitationSource::File(id),
    };
    Some(Citation { source, title: wire.title, start: wire.start, end: wire.end })
}

pub(crate) fn content_in(wire: v1::Content) -> Result<Content, InvalidMessage> {
    match wire.body.ok_or(InvalidMessage::Missing("the body of a content"))? {
        v1::content::Body::Text(text) if wire.citations.is_empty() => Ok(Content::Text(text)),
        v1::content::Body::Text(text) => {
            let citations = wire.citations.into_iter().filter_map(citation_in).collect();
            Ok(Content::Cited(Box::new(CitedText { text, citations })))
        }
        v1::content::Body::Json(json) => Ok(Content::Json(json)),
        v1::content::Body::Data(v1::Data { media_type, data }) => Ok(Content::Data { media_type, data }),
        v1::content::Body::Object(object) => Ok(Content::Object(Box::new(object_in(object)?))),
    }
}

/// A reference to an object.
#[must_use]
pub fn object_out(object: &Object) -> v1::Object {
    v1::Object {
        object_id: object.id.to_string(),
        media_type: object.media_type.clone(),
        size_bytes: object.size,
        sha256: Bytes::copy_from_slice(&object.sha256),
        preview: object.preview.clone(),
    }
}

pub(crate) fn object_in(wire: v1::Object) -> Result<Object, InvalidMessage> {
    let sha256 = wire.sha256.as_ref().try_into().map_err(|_| InvalidMessage::Missing("the SHA-256 of an object"))?;
    Ok(Object {
        id: wire.object_id.parse()?,
        media_type: wire.media_type,
        size: wire.size_bytes,
        sha256,
        preview: wire.preview,
    })
}

fn parent_out(parent: &ParentCall) -> v1::ParentCall {
    v1::ParentCall { run_id: parent.run.to_string(), call_id: parent.call.to_string() }
}

/// The call that made a run.
///
/// # Errors
/// An id is malformed.
pub fn parent_in(wire: v1::ParentCall) -> Result<ParentCall, InvalidMessage> {
    Ok(ParentCall { run: wire.run_id.parse()?, call: wire.call_id.parse()? })
}

fn contents_out(contents: &[Content]) -> Vec<v1::Content> {
    contents.iter().map(content_out).collect()
}

fn progress_out(progress: &Progress) -> v1::Progress {
    v1::Progress { done: progress.done, total: progress.total, message: progress.message.clone() }
}

fn progress_in(wire: v1::Progress) -> Progress {
    Progress { done: wire.done, total: wire.total, message: wire.message }
}

/// The kinds of errors, for both directions.
const ERROR_KINDS: [(ErrorKind, v1::CallErrorKind); 23] = [
    (ErrorKind::UnknownTool, v1::CallErrorKind::UnknownTool),
    (ErrorKind::ArgumentsInvalid, v1::CallErrorKind::ArgumentsInvalid),
    (ErrorKind::ToolFailed, v1::CallErrorKind::ToolFailed),
    (ErrorKind::ToolPanicked, v1::CallErrorKind::ToolPanicked),
    (ErrorKind::AttemptTimeout, v1::CallErrorKind::AttemptTimeout),
    (ErrorKind::Interrupted, v1::CallErrorKind::Interrupted),
    (ErrorKind::WorkerLost, v1::CallErrorKind::WorkerLost),
    (ErrorKind::ResultTooLarge, v1::CallErrorKind::ResultTooLarge),
    (ErrorKind::OutputTooLarge, v1::CallErrorKind::OutputTooLarge),
    (ErrorKind::OutputIncomplete, v1::CallErrorKind::OutputIncomplete),
    (ErrorKind::ClientFailed, v1::CallErrorKind::ClientFailed),
    (ErrorKind::NoWorker, v1::CallErrorKind::NoWorker),
    (ErrorKind::IdleTimeout, v1::CallErrorKind::IdleTimeout),
    (ErrorKind::Rejected, v1::CallErrorKind::Rejected),
    (ErrorKind::ModelRetry, v1::CallErrorKind::ModelRetry),
    (ErrorKind::NeedsInput, v1::CallErrorKind::NeedsInput),
    (ErrorKind::RateLimited, v1::CallErrorKind::RateLimited),
    (ErrorKind::Denied, v1::CallErrorKind::Denied),
    (ErrorKind::HookFailed, v1::CallErrorKind::HookFailed),
    (ErrorKind::HookRequired, v1::CallErrorKind::HookRequired),
    (ErrorKind::LimitExceeded, v1::CallErrorKind::LimitExceeded),
    (ErrorKind::NotPermitted, v1::CallErrorKind::NotPermitted),
    (ErrorKind::StreamingUnsupported, v1::CallErrorKind::StreamingUnsupported),
];

/// A kind of error as one lower-case word, such as `tool_failed`.
#[must_use]
pub fn error_word(kind: ErrorKind) -> String {
    error_kind_out(kind).as_str_name().trim_start_matches("CALL_ERROR_KIND_").to_lowercase()
}

fn error_kind_out(kind: ErrorKind) -> v1::CallErrorKind {
    ERROR_KINDS.iter().find(|(known, _)| *known == kind).map(|(_, wire)| *wire).unwrap_or_default()
}

/// A kind of error as one word for clients: `TOOL_FAILED`.
#[must_use]
pub fn error_kind_name(kind: ErrorKind) -> &'static str {
    let name = error_kind_out(kind).as_str_name();
    name.strip_prefix("CALL_ERROR_KIND_").unwrap_or(name)
}

fn error_out(error: &CallError) -> v1::CallError {
    let violations = error.violations.iter();
    v1::CallError {
        kind: error_kind_out(error.kind).into(),
        message: error.message.clone(),
        retryable: error.retryable,
        retry_after: error.retry_after.map(duration),
        violations: violations
            .map(|violation| v1::ArgumentViolation { path: violation.path.clone(), message: violation.message.clone() })
            .collect(),
    }
}

fn error_in(wire: v1::CallError) -> CallError {
    // A kind from a newer program counts as a failure of the tool.
    let kind =
        ERROR_KINDS.iter().find(|(_, known)| *known == wire.kind()).map_or(ErrorKind::ToolFailed, |(kind, _)| *kind);
    let violations = wire.violations.into_iter();
    CallError {
        violations: violations.map(|wire| Violation { path: wire.path, message: wire.message }).collect(),
        retryable: wire.retryable,
        retry_after: wire.retry_after.and_then(|wire| Duration::try_from(wire).ok()),
        ..CallError::new(kind, wire.message)
    }
}

#[must_use]
pub fn policy_out(policy: &Policy) -> v1::ToolPolicy {
    let RetryOn { retryable, timeout, panic, lost, other } = policy.retry_on;
    let after_partial_output = match policy.after_partial_output {
        AfterPartialOutput::Restart => v1::AfterPartialOutput::Restart,
        AfterPartialOutput::Continue => v1::AfterPartialOutput::Continue,
        AfterPartialOutput::Buffer => v1::AfterPartialOutput::Buffer,
    };
    v1::ToolPolicy {
        repeatable: policy.repeatable,
        attempts_max: policy.attempts_max,
        attempt_timeout: Some(duration(policy.attempt_timeout)),
        backoff_first: Some(duration(policy.backoff.first)),
        backoff_longest: Some(duration(policy.backoff.longest)),
        backoff_jitter_percent: Some(u32::from(policy.backoff.jitter_percent)),
        idle_timeout: policy.idle_timeout.map(duration),
        retry_on: Some(v1::RetryOn { retryable, timeout, panic, lost, other }),
        after_partial_output: after_partial_output.into(),
    }
}

fn policy_in(wire: v1::ToolPolicy) -> Policy {
    let backoff = Backoff::default();
    let after_partial_output = match wire.after_partial_output() {
        v1::AfterPartialOutput::Unspecified | v1::AfterPartialOutput::Restart => AfterPartialOutput::Restart,
        v1::AfterPartialOutput::Continue => AfterPartialOutput::Continue,
        v1::AfterPartialOutput::Buffer => AfterPartialOutput::Buffer,
    };
    let retry_on = wire.retry_on.map_or_else(RetryOn::default, |on| {
        let v1::RetryOn { retryable, timeout, panic, lost, other } = on;
        RetryOn { retryable, timeout, panic, lost, other }
    });
    let jitter = wire.backoff_jitter_percent.and_then(|percent| u8::try_from(percent).ok());
    Policy {
        repeatable: wire.repeatable,
        attempts_max: wire.attempts_max.max(1),
        attempt_timeout: duration_or(wire.attempt_timeout, Policy::ATTEMPT_TIMEOUT),
        backoff: Backoff {
            first: duration_or(wire.backoff_first, backoff.first),
            longest: duration_or(wire.backoff_longest, backoff.longest),
            jitter_percent: jitter.unwrap_or(backoff.jitter_percent),
        },
        idle_timeout: wire.idle_timeout.and_then(time_in),
        retry_on,
        after_partial_output,
    }
}

/// Whether a call may run beside others; `None` if unspecified.
#[must_use]
pub fn concurrency(wire: v1::ToolConcurrency) -> Option<Concurrency> {
    match wire {
        v1::ToolConcurrency::Unspecified => None,
        v1::ToolConcurrency::Parallel => Some(Concurrency::Parallel),
        v1::ToolConcurrency::Exclusive => Some(Concurrency::Exclusive),
    }
}

/// `None` if all rules have their defaults.
pub(crate) fn rules_out(rules: &Rules) -> Option<v1::RunRules> {
    let Rules { confirm, running_max, calls_max, calls_max_of_tool, .. } = *rules;
    let error_policy = if rules.fails_with_call { v1::ErrorPolicy::FailRun } else { v1::ErrorPolicy::Unspecified };
    let most = |max: Option<u16>| max.map_or(0, u32::from);
    let confirmation = match confirm {
        None => v1::Confirmation::Unspecified,
        Some(true) => v1::Confirmation::Ask,
        Some(false) => v1::Confirmation::None,
    };
    let of_tools =
        rules.calls_max_of.iter().flat_map(|all| all.iter()).map(|(tool, max)| (tool.to_string(), most(*max)));
    (*rules != Rules::default()).then(|| v1::RunRules {
        confirmation: confirmation.into(),
        running_max: most(running_max),
        calls_max: most(calls_max),
        error_policy: error_policy.into(),
        calls_max_of_tool: most(calls_max_of_tool),
        calls_max_of: of_tools.collect(),
        output_bytes_max: rules.output_bytes_max.map_or(0, NonZeroU64::get),
        client_tools: rules.client_tools.iter().flat_map(|all| all.iter()).map(ToString::to_string).collect(),
        priority: priority_out((rules.priority != Priority::default()).then_some(rules.priority)).into(),
    })
}

pub(crate) fn priority_out(priority: Option<Priority>) -> v1::Priority {
    match priority {
        None => v1::Priority::Unspecified,
        Some(Priority::Low) => v1::Priority::Low,
        Some(Priority::Normal) => v1::Priority::Normal,
        Some(Priority::High) => v1::Priority::High,
    }
}

/// The priority of a call; `None` if none is set.
#[must_use]
pub fn priority(wire: v1::Priority) -> Option<Priority> {
    match wire {
        v1::Priority::Unspecified => None,
        v1::Priority::Low => Some(Priority::Low),
        v1::Priority::Normal => Some(Priority::Normal),
        v1::Priority::High => Some(Priority::High),
    }
}

/// The rules of a run's calls. Unknown values become the default.
#[must_use]
pub fn rules(wire: Option<v1::RunRules>) -> Rules {
    let wire = wire.unwrap_or_default();
    let confirm = match wire.confirmation() {
        v1::Confirmation::Unspecified => None,
        v1::Confirmation::Ask => Some(true),
        v1::Confirmation::None => Some(false),
    };
    let most = |max: u32| (max > 0).then(|| u16::try_from(max).unwrap_or(u16::MAX));
    let fails_with_call = match wire.error_policy() {
        v1::ErrorPolicy::Unspecified | v1::ErrorPolicy::ToModel => false,
        v1::ErrorPolicy::FailRun => true,
    };
    let priority = priority(wire.priority()).unwrap_or_default();
    let of_tools = wire.calls_max_of.iter().filter_map(|(tool, max)| Some((tool.parse().ok()?, most(*max))));
    Rules {
        confirm,
        running_max: most(wire.running_max),
        calls_max: most(wire.calls_max),
        fails_with_call,
        calls_max_of_tool: most(wire.calls_max_of_tool),
        calls_max_of: (!wire.calls_max_of.is_empty()).then(|| Arc::new(of_tools.collect())),
        output_bytes_max: NonZeroU64::new(wire.output_bytes_max),
        client_tools: (!wire.client_tools.is_empty())
            .then(|| Arc::new(wire.client_tools.iter().filter_map(|tool| tool.parse().ok()).collect())),
        priority,
    }
}

pub(crate) fn approval_default_out(default: DefaultDecision) -> v1::ApprovalDefault {
    match default {
        DefaultDecision::Reject => v1::ApprovalDefault::Reject,
        DefaultDecision::Approve => v1::ApprovalDefault::Approve,
    }
}

/// The decision if none is made in time. An unknown value becomes a rejection.
#[must_use]
pub fn approval_default(wire: v1::ApprovalDefault) -> DefaultDecision {
    match wire {
        v1::ApprovalDefault::Unspecified | v1::ApprovalDefault::Reject => DefaultDecision::Reject,
        v1::ApprovalDefault::Approve => DefaultDecision::Approve,
    }
}
