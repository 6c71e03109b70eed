//! The body of a rejected request: RFC 9457 problem details with the reason that gRPC returns too, the wrong parts of
//! the request, and the remedy.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use proto::Reason;
use proto::reason::DOMAIN;
use serde_json::{Map, Value, json};

use crate::api::error::ApiError;
use crate::metrics::refused;

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The place of an error in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A JSON pointer into the body.
    Body(String),
    /// A parameter of the path or of the query.
    Parameter(String),
    Header(&'static str),
    /// A JSON pointer into the arguments of a call.
    Arguments(String),
}

#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(super) reason: Reason,
    pub(super) detail: String,
    metadata: Vec<(&'static str, String)>,
    pub(super) errors: Vec<(Place, String)>,
    pub(super) retry_after_s: Option<u64>,
}

impl Problem {
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        ApiError::new(reason, detail).into()
    }

    /// A part of the request is malformed.
    pub(crate) fn malformed(place: Place, detail: impl Into<String>) -> Self {
        Self::at(Reason::Malformed, place, detail)
    }

    pub(crate) fn at(reason: Reason, place: Place, detail: impl Into<String>) -> Self {
        let problem = Self::new(reason, detail);
        let errors = vec![(place, problem.detail.clone())];
        Self { errors, ..problem }
    }

    /// The problem details of an error, with `place` as the location of a field.
    pub(crate) fn of(error: ApiError, place: impl Fn(&str) -> Place) -> Self {
        let ApiError { reason, message, metadata, violations, retry_after } = error;
        let is_of_arguments = reason == Reason::ArgumentsInvalid;
        let place = |field: &str| if is_of_arguments { Place::Arguments(field.to_owned()) } else { place(field) };
        Self {
            reason,
            detail: message,
            metadata,
            errors: violations.into_iter().map(|(field, detail)| (place(&field), detail)).collect(),
            retry_after_s: retry_after.map(|wait| wait.as_secs().max(1)),
        }
    }

    /// Its JSON, for a response or an event. Every problem passes here, so it is counted here.
    pub(crate) fn json(&self) -> Value {
        refused(self.reason);
        let status = self.reason.http();
        let mut problem = json!({
            "type": "about:blank",
            "title": status.canonical_reason().unwrap_or_default(),
            "status": status.as_u16(),
            "detail": self.detail,
            "domain": DOMAIN,
            "reason": self.reason.code(),
            "remedy": self.reason.remedy(),
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

impl From<ApiError> for Problem {
    fn from(error: ApiError) -> Self {
        Self::of(error, |field| Place::Body(pointer(field)))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.json().to_string()));
        *response.status_mut() = self.reason.http();
        response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if self.reason == Reason::Unconfirmed {
            // Vendors' SDKs would repeat the request. If it was stored, it would be executed twice.
            response.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if self.reason.http() == StatusCode::UNAUTHORIZED {
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
        let problem = Problem::from(ApiError::malformed("calls[0].tool", "calls[0].tool: no".to_owned())).json();
        assert_eq!(
            problem.to_string(),
            r#"{"detail":"calls[0].tool: no","domain":"toolyard.dev","errors":[{"detail":"calls[0].tool: no","pointer":"/calls/0/tool"}],"metadata":{"field":"calls[0].tool"},"reason":"MALFORMED","remedy":"correct the fields that the error names, then send the request again","status":400,"title":"Bad Request","type":"about:blank"}"#
        );
    }
}
