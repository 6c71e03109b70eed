//! The wire: the public API and the log's format (generated), the only conversions between them and the domain, the
//! broker's subjects and names, JSON and OpenAPI.

pub mod choice;
#[cfg(feature = "grpc")]
pub mod codec;
pub mod conversation;
pub mod convert;
pub mod elicitation;
pub mod history;
pub mod json;
pub mod names;
pub mod object;
pub mod openapi;
pub mod reason;
pub mod subject;

/// The public API, for clients.
#[allow(missing_debug_implementations, clippy::all, reason = "generated code")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/toolyard.v1.rs"));

    impl From<content::Body> for Content {
        /// Content without citations.
        fn from(body: content::Body) -> Self {
            Self { body: Some(body), ..Self::default() }
        }
    }

    impl From<CreateRunRequest> for ExecuteRunRequest {
        /// Requests the output under the default floor policy.
        fn from(run: CreateRunRequest) -> Self {
            Self { run: Some(run), ..Self::default() }
        }
    }
}

/// The format of the log and of the messages between coordinators and workers.
pub mod wire {
    #[allow(clippy::all, reason = "generated code")]
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/toolyard.wire.v1.rs"));
    }
}

/// The descriptors of everything above, for gRPC reflection and JSON.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

pub use reason::Reason;
