//! A client of Toolyard. It submits the tool calls that a model requested, follows their ordered output over any number
//! of connections, and answers calls that only the client can answer.
//!
//! ```no_run
//! use toolyard_client::{Client, Connection, Error, Transcript, v1};
//!
//! # async fn example() -> Result<(), Error> {
//! let client = Client::connect(&Connection::to("http://127.0.0.1:7420")).await?;
//! let call = v1::NewCall {
//!     call_id: "call_1".to_owned(), // the model's id, kept as it is
//!     tool: "get_current_time".to_owned(),
//!     arguments: r#"{"time_zone":"Asia/Shanghai"}"#.to_owned(),
//!     ..v1::NewCall::default()
//! };
//! let run = v1::CreateRunRequest { calls: vec![call], ..v1::CreateRunRequest::default() };
//! let (mut watch, mut transcript) = (client.execute(run).await?, Transcript::default());
//! while let Some(events) = watch.next().await? {
//!     events.iter().for_each(|event| transcript.apply(event));
//! }
//! for call in transcript.calls() {
//!     println!("{}: {:?}", call.call_id, call.result());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Watch`] gives each event of a run once and in order. If a connection breaks, or its coordinator shuts down, it
//! connects again and continues after the last event. [`Transcript`] is the state of a run's calls after any number of
//! events; it removes output that a retry has withdrawn. [`Client::stream_call`] executes one call of a tool that
//! streams and returns its output as a stream of [`CallEvent`]s. Requests that may be repeated without harm are retried
//! for 60 s while the coordinator is away.
//!
//! [`NestedWatch`] follows the runs that calls make, as agents do, together with the run of these calls.
//!
//! [`turn`] executes the calls of a model's message in the form of its vendor, and makes the messages that answer it.
//! [`agent`] keeps the loop of an agent in the log: what the model said, and what its calls answered.

#![warn(missing_docs, unnameable_types)]

pub mod agent;
pub mod turn;

mod backoff;
mod call_stream;
mod client;
mod connection;
mod error;
mod inlining;
mod messages;
mod nested;
mod objects;
mod schedules;
mod transcript;
mod watch;

pub use bytes::Bytes;
pub use call_stream::CallEvent;
pub use client::Client;
pub use connection::Connection;
pub use error::{Error, metadata, reason, reason_code, retry_after};
pub use nested::{DEPTH_MAX, Nested, NestedWatch, Place, made_run, named_run};
pub use objects::ObjectReader;
pub use proto::Reason;
/// Key in the metadata of calls that another call made: the run of that call.
pub use proto::names::PARENT_RUN;
/// The messages of the API. Their comments describe every field.
pub use proto::v1;
pub use tonic::{Code, Status};
pub use transcript::{CallTranscript, Transcript};
pub use watch::Watch;
