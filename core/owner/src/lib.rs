//! What the owner of a shard does next, as a state machine without IO: inputs and the current time go in through
//! `handle_*`, actions and the next timeout come out of `poll_*`. The coordinator drives it with a real broker, the
//! simulation with a simulated one.

mod action;
mod asking;
mod ended;
pub mod erasure;
mod known;
mod lost;
mod outbox;
mod overdue;
mod owner;
mod parent;
mod place;
mod resting;
pub mod retention;
mod shard;
mod snapshot;
pub mod stuck;
#[cfg(test)]
mod tests;
mod unclaimed;
mod unread;
mod verdict;
mod world;

pub use action::{Action, Append, JobLease, Queue};
pub use asking::{Asking, Unanswered, UserAnswer, UserQuestion};
pub use known::{Expected, Known};
pub use outbox::{Outbox, notified};
pub use overdue::{OVERDUE, overdue_ends};
pub use owner::{Applied, Owner};
pub use place::SubjectKind;
pub use resting::{InProgress, Resting, Waiting, open_calls};
pub use shard::{CarriedTo, Listed, OpenRun, Phase, ShardState, Takeover};
pub use snapshot::SnapshotSchedule;
pub use unread::Noted;
pub use verdict::Question;
pub use world::{JOB_LEASE, Slot, WORKER_LOST, Workers, World};
pub mod job;
pub mod membership;
mod shards;
pub mod slots;
pub mod turns;

pub use shards::{Claims, SHARDS_MAX, ShardSet};
