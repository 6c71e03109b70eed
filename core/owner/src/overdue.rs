//! Deadlines of runs whose shard has no owner for the moment: the owner died, and its lease has not run out. A
//! coordinator that serves a reader of such a run sees what is overdue and ends it in the owner's place. That is as
//! safe as any command: the end of a call is appended behind what was last known of it or not at all, and a living
//! owner was faster.

use std::time::Duration;

use run::{DeadlineKind, Effect, Timestamp};

use crate::action::{Append, append};
use crate::known::Known;
use crate::world::Workers;

/// How long an owner may take to end overdue calls: its timer, and the append.
pub const OVERDUE: Duration = Duration::from_millis(500);

/// The appends that end calls of a run that have been overdue for longer than an owner takes.
pub fn overdue_ends(known: &Known, workers: &impl Workers, now: Timestamp) -> Vec<Append> {
    let ends = known.run.outstanding(now.before(OVERDUE)).into_iter().filter(is_end);
    ends.filter_map(|effect| append(known, effect, workers, None)).collect()
}

/// Whether an effect ends a call or the run. The end of an attempt alone is left to the owner, which hands its job
/// back.
fn is_end(effect: &Effect) -> bool {
    match effect {
        Effect::ExpireRun => true,
        Effect::Expire { deadline, .. } => match deadline {
            DeadlineKind::Call
            | DeadlineKind::Queue
            | DeadlineKind::Client
            | DeadlineKind::Run
            | DeadlineKind::Opening => true,
            DeadlineKind::Attempt(_) | DeadlineKind::Idle(_) => false,
        },
        Effect::Dispatch { .. }
        | Effect::Stop { .. }
        | Effect::Cancel { .. }
        | Effect::Decide { .. }
        | Effect::EndDelay { .. }
        | Effect::Refuse { .. }
        | Effect::Close
        | Effect::CancelRun => false,
    }
}
