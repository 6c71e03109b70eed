//! What a request is told that is not served: RFC 9457 problem details with the reason that gRPC gives too, where in the request
//! it lies, and what to do.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};

use crate::door::fault::{Code, DOMAIN, Fault};
use crate::metrics::refused;

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Where in the request something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A JSON pointer into the body.
    Body(String),
    /// A part of the path, or of the query.
    Parameter(String),
    Header(&'static str),
    /// A JSON pointer into the arguments of a call.
    Arguments(String),
}

#[derive(Debug, Clone)]
pub(crate) struct Problem {
    status: StatusCode,
    reason: &'static str,
    detail: String,
    metadata: Vec<(&'static str, String)>,
    errors: Vec<(Place, String)>,
    retry_after_s: Option<u64>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, reason: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { status, reason, detail, metadata: Vec::new(), errors: Vec::new(), retry_after_s: None }
    }

    /// A part of the request is not what it should be.
    pub(crate) fn malformed(place: Place, detail: impl Into<String>) -> Self {
        Self::at(StatusCode::BAD_REQUEST, "MALFORMED", place, detail)
    }

    pub(crate) fn at(status: StatusCode, reason: &'static str, place: Place, detail: impl Into<String>) -> Self {
        let problem = Self::new(status, reason, detail);
        let errors = vec![(place, problem.detail.clone())];
        Self { errors, ..problem }
    }

    /// A fault of a request whose fields stand where `place` says.
    pub(crate) fn of(fault: Fault, place: impl Fn(&str) -> Place) -> Self {
        let Fault { reason, message, metadata, violations, retry_after, .. } = fault;
        let place =
            |field: &str| if reason == "ARGUMENTS_INVALID" { Place::Arguments(field.to_owned()) } else { place(field) };
        Self {
            status: status(fault.code, reason),
            reason,
            detail: message,
            metadata,
            errors: violations.into_iter().map(|(field, detail)| (place(&field), detail)).collect(),
            retry_after_s: retry_after.map(|wait| wait.as_secs().max(1)),
        }
    }

    /// The JSON of it, for a response or an event. So it is counted here.
    pub(crate) fn json(&self) -> Value {
        refused(self.reason);
        let mut problem = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or_default(),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "domain": DOMAIN,
            "reason": self.reason,
            "remedy": remedy(self.reason),
        });
        if !self.metadata.is_empty() {
            let metadata = self.metadata.iter().map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str())));
            problem["metadata"] = metadata.collect::<Map<_, _>>().into();
        }
        if !self.errors.is_empty() {
            problem["errors"] = self.errors.iter().map(|(place, detail)| error(place, detail)).collect();
        }
        problem
    }
}

fn error(place: &Place, detail: &str) -> Value {
    match place {
        Place::Body(pointer) => json!({ "pointer": pointer, "detail": detail }),
        Place::Parameter(name) => json!({ "parameter": name, "detail": detail }),
        Place::Header(name) => json!({ "header": name, "detail": detail }),
        Place::Arguments(pointer) => json!({ "arguments_pointer": pointer, "detail": detail }),
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Self::of(fault, |field| Place::Body(pointer(field)))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.json().to_string()));
        *response.status_mut() = self.status;
        response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if self.reason == "UNCONFIRMED" {
            // Vendors' SDKs would repeat it, and one that may be stored would be done twice.
            response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// `calls[0].tool` as a JSON pointer.
pub(crate) fn pointer(field: &str) -> String {
    let steps =
        field.split(['.', '[']).map(|step| step.strip_suffix(']').unwrap_or(step)).filter(|step| !step.is_empty());
    steps.map(|step| format!("/{}", step.replace('~', "~0").replace('/', "~1"))).collect()
}

/// The status of a fault.
pub(crate) fn status(code: Code, reason: &str) -> StatusCode {
    match code {
        Code::InvalidArgument if reason == "OUT_OF_OBJECT" => StatusCode::RANGE_NOT_SATISFIABLE,
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::OutOfRange => StatusCode::GONE,
        Code::FailedPrecondition | Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted if ["PAYLOAD_TOO_LARGE", "UPLOADS_FULL", "TOO_MANY_UPLOADS"].contains(&reason) => {
            StatusCode::PAYLOAD_TOO_LARGE
        }
        Code::ResourceExhausted if reason == "QUOTA_EXCEEDED" => StatusCode::TOO_MANY_REQUESTS,
        Code::ResourceExhausted | Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
    }
}

/// What to do about it.
pub(crate) fn remedy(reason: &str) -> &'static str {
    match reason {
        "MALFORMED" => "correct what `errors` names, and send the request again",
        "NO_CALLS" => "ask for at least one call, or set `keep_open`",
        "TOO_MANY_CALLS" => "spread the calls over several runs",
        "DUPLICATE_CALL_ID" => "give each call of the run an id of its own, or none",
        "DEADLINE_PASSED" | "DEADLINE_TOO_FAR" => "ask for a deadline within 24 hours",
        "NO_ANSWERS" => "answer at least one call",
        "NOTHING_SELECTED" => "select calls by `state`, `tool`, `tenant` or time, or set `all` for every open call",
        "NO_DECISIONS" => "decide on at least one call",
        "ARGUMENTS_INVALID" => "send arguments that fit the tool's schema",
        "RUN_NOT_FOUND" => "look the id up in the answer that accepted the run",
        "CALL_NOT_FOUND" => "look the call's id up in the run",
        "WORKER_NOT_FOUND" => "look at GET /v1/workers",
        "WORKER_SILENT" => "look at the worker, and end its process: its calls go to others",
        "TOOL_NOT_FOUND" | "POOL_NOT_FOUND" => "look at GET /v1/tools",
        "OBJECT_NOT_FOUND" => "look the object's id up in the call's result; it is kept as long as its run",
        "LINK_UNKNOWN" => "ask whoever gave out the link for another one",
        "OUT_OF_OBJECT" => "ask for bytes that the object has",
        "EVENTS_EXPIRED" => {
            "nothing of the run is kept any more: ask for the calls again if their results are still needed"
        }
        "RUN_CLOSED" | "RUN_ENDED" => "ask for the calls in a new run",
        "CALL_NOT_WAITING" | "CALL_NOT_AWAITING_APPROVAL" | "CALL_NOT_PARKED" => {
            "look at where the call stands; nothing is to be done"
        }
        "CALL_NOT_PARKED_ANY_MORE" | "CALL_ALREADY_ANSWERED" | "CALL_ALREADY_DECIDED" => {
            "look at the call: somebody was faster, and that stands"
        }
        "ANSWERS_MISSING" => "answer all calls that wait, or leave `all_required` out",
        "REQUEST_ID_TAKEN" => "use another id for another request",
        "TOO_MANY_UPLOADS" => "delete uploads that are not needed any more, or put small files together",
        "UPLOADS_FULL" => {
            "delete uploads that are not needed any more, or have `upload_bytes` of the tenant's quota raised"
        }
        "PAYLOAD_TOO_LARGE" => "send less at once, or put large input in files",
        "CREDENTIAL_MISSING" | "CREDENTIAL_TOO_LARGE" | "KEY_UNKNOWN" | "TOKEN_REFUSED" | "CERTIFICATE_UNKNOWN" => {
            "say who you are with a key or a token that this deployment knows: `authorization: Bearer KEY`"
        }
        "ROLE_MISSING" => "ask whoever keeps the file of callers for the role, or use a key that has it",
        "TENANT_DENIED" => "leave the tenant out",
        "RUN_OF_ANOTHER_CALLER" => "ask for the calls in a run of your own",
        "TOKEN_FOR_ANOTHER_CALL" | "TOKEN_FOR_ONE_ANSWER" => "use a caller's key: the token answers one call",
        "ANSWER_TOKENS_OFF" | "LINKS_OFF" => "have `answer_token_key_file` set in the file of callers",
        "WEBHOOKS_OFF" => "ask a coordinator that was started with --webhooks",
        "LOG_FULL"
        | "OBJECTS_FULL"
        | "OBJECTS_UNAVAILABLE"
        | "UPLOADS_BUSY"
        | "CONTENDED"
        | "BROKER_UNAVAILABLE"
        | "INDEX_UNAVAILABLE"
        | "ISSUER_UNAVAILABLE"
        | "QUOTA_EXCEEDED" => "send the request again after `Retry-After`",
        "SHUTTING_DOWN" => "send the request to another coordinator",
        "UNCONFIRMED" => "get the run of `metadata`: it is there, or never will be; or repeat the request with its id",
        "DEADLINE_EXCEEDED" => "allow more time, or read the run's events",
        "RESPONSE_NOT_FOUND" => {
            "look the id up in the response; one that was deleted, or is older than the log, is not there"
        }
        "RESPONSE_IN_PROGRESS" => "wait until the response has ended",
        "RESPONSE_NOT_WAITING" => {
            "answer the response that has open calls, or send new calls without `previous_response_id`"
        }
        "UNKNOWN_SEQUENCE_NUMBER" => "give the number of the last event that you have, or none",
        "UNSUPPORTED" => "leave it out, or do as the message says",
        "NO_SUCH_ROUTE" | "METHOD_NOT_ALLOWED" => "look at GET /v1/openapi.json",
        "FORM_UNKNOWN" | "FORM_AMBIGUOUS" => {
            "send a vendor's assistant turn as it came, or name its form with `format`"
        }
        "FORM_MISMATCH" => "name the form that the turn has, or none",
        "PAGE_REFUSED" => "ask from a program, or from a page of the same host; see docs/http.md",
        "UNSUPPORTED_MEDIA_TYPE" => "send JSON in UTF-8, uncompressed, with the content type application/json",
        "UPLOAD_TOO_SLOW" => "send the object faster, or in a better network",
        "REQUESTS_FULL" => "send the request again after `Retry-After`, in one go",
        "REQUEST_TIMEOUT" => "send the body without pauses",
        _ => "look at `detail`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_pointed_at() {
        assert_eq!(pointer("calls[0].tool"), "/calls/0/tool");
        assert_eq!(pointer("run_id"), "/run_id");
        assert_eq!(pointer(""), "");
    }

    #[test]
    fn a_problem_has_reason_place_and_remedy() {
        let problem = Problem::from(Fault::malformed("calls[0].tool", "calls[0].tool: no".to_owned())).json();
        assert_eq!(
            problem.to_string(),
            r#"{"detail":"calls[0].tool: no","domain":"toolyard.dev","errors":[{"detail":"calls[0].tool: no","pointer":"/calls/0/tool"}],"metadata":{"field":"calls[0].tool"},"reason":"MALFORMED","remedy":"correct what `errors` names, and send the request again","status":400,"title":"Bad Request","type":"about:blank"}"#
        );
    }
}
