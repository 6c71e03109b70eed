//! What every request passes before its protocol is known: connections and their limits, authentication, deadlines,
//! traces.

pub(crate) mod bodies;
pub(super) mod connections;
pub(crate) mod counted;
pub(super) mod deadline;
pub(super) mod gate;
pub(super) mod incoming;
pub(super) mod pages;
pub(super) mod places;
pub(super) mod status;
pub(super) mod trace;
pub(super) mod unread;

/// Whether the request is gRPC, which determines the form of an error.
pub(super) fn is_grpc(headers: &http::HeaderMap) -> bool {
    let kind = headers.get(http::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
