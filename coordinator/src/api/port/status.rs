//! The only place that makes statuses: of the faults of requests. Each carries `google.rpc.ErrorInfo` with a stable reason.

use std::collections::HashMap;

use proto::v1;
use tonic::Status;
use tonic::body::Body;
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::door::fault::{Code, DOMAIN, Fault};
use crate::metrics::refused;

fn code(code: Code) -> tonic::Code {
    match code {
        Code::InvalidArgument => tonic::Code::InvalidArgument,
        Code::Unauthenticated => tonic::Code::Unauthenticated,
        Code::PermissionDenied => tonic::Code::PermissionDenied,
        Code::NotFound => tonic::Code::NotFound,
        Code::OutOfRange => tonic::Code::OutOfRange,
        Code::FailedPrecondition => tonic::Code::FailedPrecondition,
        Code::AlreadyExists => tonic::Code::AlreadyExists,
        Code::ResourceExhausted => tonic::Code::ResourceExhausted,
        Code::Aborted => tonic::Code::Aborted,
        Code::DeadlineExceeded => tonic::Code::DeadlineExceeded,
        Code::Unavailable => tonic::Code::Unavailable,
    }
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Self {
        let Fault { code: kind, reason, message, metadata, violations, retry_after } = fault;
        refused(reason);
        let metadata: HashMap<String, String> =
            metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let mut details = ErrorDetails::with_error_info(reason, DOMAIN, metadata);
        for (field, description) in violations {
            details.add_bad_request_violation(field, description);
        }
        if retry_after.is_some() {
            details.set_retry_info(retry_after);
        }
        Self::with_error_details(code(kind), message, details)
    }
}

/// A fault as a part of a message.
pub(super) fn refusal(fault: Fault) -> v1::RunRefusal {
    refused(fault.reason);
    let run = fault.metadata.iter().find(|(name, _)| *name == "run_id");
    let run_id = run.map_or_else(String::new, |(_, run)| run.clone());
    v1::RunRefusal { code: code(fault.code).into(), reason: fault.reason.to_owned(), message: fault.message, run_id }
}

/// A response as it is, unless the transport could not decode the request: it gives no reason then, and calls it our fault.
pub(super) fn with_reason(response: http::Response<Body>) -> http::Response<Body> {
    let headers = response.headers();
    let is_internal = headers.get(Status::GRPC_STATUS).is_some_and(|code| code == "13");
    if !is_internal || headers.contains_key(Status::GRPC_STATUS_DETAILS) {
        return response;
    }
    let status = Status::from_header_map(headers);
    let reason = status.as_ref().map_or("", Status::message);
    Status::from(Fault::malformed("", format!("the message cannot be decoded: {reason}"))).into_http()
}
