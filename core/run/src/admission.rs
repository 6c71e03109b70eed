//! Admission: limits on what opens a run, and on calls that are added to it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::call::Call;
use crate::command::CommandError;
use crate::event::{CallSpec, Route};
use crate::fields::Fields;
use crate::id::{CallId, Timestamp};
use crate::limit::{
    ARGUMENTS_BYTES_MAX, CALLS_PER_RUN_MAX, CONTEXT_BYTES_MAX, METADATA_BYTES_MAX, OPENING_BYTES_MAX, RUN_LIFE_MAX,
};

pub(crate) fn check_new_calls(known: &[Call], new: &[Arc<CallSpec>]) -> Result<(), CommandError> {
    let count = known.iter().filter(|call| !call.is_question()).count() + new.len();
    if count > CALLS_PER_RUN_MAX {
        return Err(CommandError::TooManyCalls { count, limit: CALLS_PER_RUN_MAX });
    }
    let mut ids: BTreeSet<&CallId> = known.iter().map(|call| &call.spec.id).collect();
    let mut size = 0;
    for spec in new {
        if !ids.insert(&spec.id) {
            return Err(CommandError::DuplicateCallId { call: spec.id.clone() });
        }
        if spec.arguments.len() > ARGUMENTS_BYTES_MAX {
            let (size, limit) = (spec.arguments.len(), ARGUMENTS_BYTES_MAX);
            return Err(CommandError::ArgumentsTooLarge { call: spec.id.clone(), size, limit });
        }
        let metadata = spec.metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
        if metadata > METADATA_BYTES_MAX {
            let (size, limit) = (metadata, METADATA_BYTES_MAX);
            return Err(CommandError::MetadataTooLarge { call: spec.id.clone(), size, limit });
        }
        check_context(Some(&spec.id), &spec.context)?;
        size += spec.size();
    }
    if size > OPENING_BYTES_MAX {
        return Err(CommandError::RequestTooLarge { size, limit: OPENING_BYTES_MAX });
    }
    Ok(())
}

/// By how much the clock of a coordinator may be ahead of the broker's, many times over.
const CLOCKS_APART: Duration = Duration::from_secs(1);

/// Checks the delays of new calls, which must begin before the deadlines of the call and of its run. A call whose time
/// has certainly come is not delayed; of any other the time of the log decides.
pub(crate) fn check_delays(new: &mut [Arc<CallSpec>], deadline: Timestamp, now: Timestamp) -> Result<(), CommandError> {
    for spec in new {
        let Some(until) = spec.not_before else { continue };
        if spec.route == Route::Client {
            return Err(CommandError::ClientCallDelayed { call: spec.id.clone() });
        }
        if until.after(CLOCKS_APART) <= now {
            Arc::make_mut(spec).not_before = None;
            continue;
        }
        let deadline = spec.deadline.min(deadline);
        if until >= deadline {
            let (delay_s, left_s) = (until.since(now).as_secs(), deadline.since(now).as_secs());
            let (call, limit_s) = (spec.id.clone(), RUN_LIFE_MAX.as_secs());
            return Err(CommandError::DelayTooLong { call, delay_s, left_s, limit_s });
        }
    }
    Ok(())
}

/// Checks the size of a context: a run's own, or a call's.
pub(crate) fn check_context(call: Option<&CallId>, context: &Fields) -> Result<(), CommandError> {
    let (call, size, limit) = (call.cloned(), context.size(), CONTEXT_BYTES_MAX);
    if size > limit { Err(CommandError::ContextTooLarge { call, size, limit }) } else { Ok(()) }
}
