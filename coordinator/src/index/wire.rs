//! Conversion of summaries to the API's messages and back: the store holds them in the same form.

use proto::convert::api::timestamp;
use proto::v1;
use run::{InvalidId, Timestamp};

use super::summary::{CallSummary, Summary};

impl From<&Summary> for v1::RunSummary {
    fn from(run: &Summary) -> Self {
        Self {
            run_id: run.id.to_string(),
            status: run.status.into(),
            create_time: Some(timestamp(run.created)),
            deadline: Some(timestamp(run.deadline)),
            open: run.open,
            tenant: run.tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
            calls: run.calls.iter().map(v1::CallSummary::from).collect(),
            log_sequence: run.sequence,
            schedule_id: run.schedule.clone().unwrap_or_default(),
        }
    }
}

impl From<&CallSummary> for v1::CallSummary {
    fn from(call: &CallSummary) -> Self {
        Self {
            call_id: call.id.to_string(),
            tool: call.tool.to_string(),
            pool: call.pool.as_ref().map(ToString::to_string).unwrap_or_default(),
            state: call.state.into(),
            attempts: call.attempts,
            parked: call.parked,
            end_time: call.ended.map(timestamp),
            error_kind: call.error.into(),
            not_before: call.not_before.map(timestamp),
            asked_by_call_id: call.asked_by.as_ref().map(ToString::to_string).unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::RunSummary> for Summary {
    type Error = InvalidId;

    fn try_from(wire: v1::RunSummary) -> Result<Self, InvalidId> {
        Ok(Self {
            id: wire.run_id.parse()?,
            sequence: wire.log_sequence,
            status: wire.status(),
            open: wire.open,
            created: wire.create_time.map(moment).unwrap_or_default(),
            deadline: wire.deadline.map(moment).unwrap_or_default(),
            tenant: if wire.tenant.is_empty() { None } else { Some(wire.tenant.parse()?) },
            schedule: Some(wire.schedule_id).filter(|id| !id.is_empty()),
            calls: wire.calls.into_iter().map(CallSummary::try_from).collect::<Result<_, _>>()?,
        })
    }
}

impl TryFrom<v1::CallSummary> for CallSummary {
    type Error = InvalidId;

    fn try_from(wire: v1::CallSummary) -> Result<Self, InvalidId> {
        Ok(Self {
            id: wire.call_id.parse()?,
            tool: wire.tool.parse()?,
            pool: if wire.pool.is_empty() { None } else { Some(wire.pool.parse()?) },
            state: wire.state(),
            attempts: wire.attempts,
            parked: wire.parked,
            ended: wire.end_time.map(moment),
            not_before: wire.not_before.map(moment),
            error: wire.error_kind(),
            asked_by: match wire.asked_by_call_id.as_str() {
                "" => None,
                asks => Some(asks.parse()?),
            },
        })
    }
}

/// The wire's moment in milliseconds; times before the epoch become the epoch.
pub(crate) fn moment(wire: prost_types::Timestamp) -> Timestamp {
    let (seconds, nanos) = (u64::try_from(wire.seconds).unwrap_or(0), u64::try_from(wire.nanos).unwrap_or(0));
    Timestamp(seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000))
}
