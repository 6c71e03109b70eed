//! The only place that makes gRPC statuses, from the errors of requests. Each carries `google.rpc.ErrorInfo` with a
//! stable reason.

use std::collections::HashMap;

use proto::reason::DOMAIN;
use proto::v1;
use tonic::Status;
use tonic::body::Body;
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::api::error::ApiError;
use crate::metrics::refused;

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        let ApiError { reason, message, metadata, violations, retry_after } = error;
        refused(reason);
        let metadata: HashMap<String, String> =
            metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let mut details = ErrorDetails::with_error_info(reason.code(), DOMAIN, metadata);
        for (field, description) in violations {
            details.add_bad_request_violation(field, description);
        }
        if retry_after.is_some() {
            details.set_retry_info(retry_after);
        }
        Self::with_error_details(reason.grpc(), message, details)
    }
}

/// An error as a part of a message.
pub(in crate::api) fn refusal(error: ApiError) -> v1::RunRefusal {
    refused(error.reason);
    let run = error.metadata.iter().find(|(name, _)| *name == "run_id");
    let run_id = run.map_or_else(String::new, |(_, run)| run.clone());
    let (code, reason) = (error.reason.grpc().into(), error.reason.code().to_owned());
    v1::RunRefusal { code, reason, message: error.message, run_id }
}

/// Returns the response unchanged, unless the transport could not decode the request: then it has no reason, and
/// reports an internal error.
pub(in crate::api) fn with_reason(response: http::Response<Body>) -> http::Response<Body> {
    let headers = response.headers();
    let is_internal = headers.get(Status::GRPC_STATUS).is_some_and(|code| code == "13");
    if !is_internal || headers.contains_key(Status::GRPC_STATUS_DETAILS) {
        return response;
    }
    let status = Status::from_header_map(headers);
    let reason = status.as_ref().map_or("", Status::message);
    Status::from(ApiError::malformed("", format!("the message cannot be decoded: {reason}"))).into_http()
}
