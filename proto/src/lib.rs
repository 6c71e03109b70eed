//! What two processes must agree on: the public API and the log's format (generated), the only conversions between them
//! and the domain, the broker's subjects and names, and how arguments are checked against a schema.

pub mod access;
pub mod clock;
pub mod codec;
pub mod concurrency;
pub mod convert;
pub mod export;
pub mod history;
pub mod json;
pub mod names;
pub mod nats;
pub mod object;
pub mod openapi;
pub mod pattern;
pub mod schema;
pub mod steps;
pub mod subject;

/// The public API, for clients.
#[allow(missing_debug_implementations, clippy::all, reason = "generated code")]
pub mod v1 {
    tonic::include_proto!("toolyard.v1");
}

/// The log's format and the messages between coordinators and workers.
pub mod wire {
    #[allow(clippy::all, reason = "generated code")]
    pub mod v1 {
        tonic::include_proto!("toolyard.wire.v1");
    }
}

/// The descriptors of everything above, for gRPC reflection and JSON.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

pub use clock::now;
