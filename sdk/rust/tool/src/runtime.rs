//! The other side of a tool, for a program that executes calls, such as the worker. Authors of tools do not need it.

pub use proto::convert::object::ChunkRequest;
pub use proto::convert::record::{RecordOperation, RecordReply, RecordRequest};
pub use proto::convert::worker::{Unanswered, UserAnswer};
pub use run::{
    Approval, AttemptNumber, CallIndex, CallSpec, ChunkIndex, Completion, Fields, Nonce, PoolId, Requester, Route,
    Timestamp, WithoutWorker,
};

pub use crate::context::{Execution, Stop};
pub use crate::files::Source;
pub use crate::limits::{Said, completion, label_size, too_much_output};
pub use crate::objects::ObjectSink;
pub use crate::preview::{beginning, preview};
pub use crate::question::{AskRequest, Asker, Waited, Waits};
pub use crate::records::RecordStore;
pub use crate::table::Prepared;
