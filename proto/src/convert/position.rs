//! Positions of waiting calls, which a coordinator asks the owner of their shard for.

use bytes::Bytes;
use prost::Message as _;
use run::{CallIndex, Priority, RunId};

use super::{InvalidMessage, VERSION, check_version, priority, priority_out};
use crate::wire::v1 as wire;

/// A request for the position of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionRequest {
    pub run: RunId,
    pub call: CallIndex,
}

/// What a call waits for behind others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// Its turn in its pool.
    Turn,
    /// A place of its tenant's running calls.
    Tenant,
    /// A place of its tool's running calls.
    Tool,
}

/// The position of a call that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    pub what: WaitsFor,
    /// Calls that come before it.
    pub ahead: u64,
    /// Whether these are all; otherwise there are more.
    pub is_exact: bool,
    /// All calls that wait for that.
    pub waiting: u64,
    /// Its priority now.
    pub priority: Priority,
}

impl PositionRequest {
    #[must_use]
    pub fn encode(self) -> Bytes {
        let (run_id, call) = (self.run.to_string(), self.call.0.into());
        wire::PositionRequest { version: VERSION, run_id, call }.encode_to_vec().into()
    }

    /// # Errors
    /// If it is of another version, or names no call.
    pub fn decode(message: Bytes) -> Result<Self, InvalidMessage> {
        let wire::PositionRequest { version, run_id, call } = wire::PositionRequest::decode(message)?;
        check_version(version)?;
        let call = u16::try_from(call).map_err(|_| InvalidMessage::Missing("call"))?;
        Ok(Self { run: run_id.parse()?, call: CallIndex(call) })
    }
}

/// `None`: the call does not wait.
#[must_use]
pub fn encode_position(waits: Option<Waits>) -> Bytes {
    let response = waits.map_or_else(wire::PositionResponse::default, |waits| {
        let waits_for = match waits.what {
            WaitsFor::Turn => wire::WaitsFor::Turn,
            WaitsFor::Tenant => wire::WaitsFor::Tenant,
            WaitsFor::Tool => wire::WaitsFor::Tool,
        };
        wire::PositionResponse {
            waits_for: waits_for.into(),
            ahead: waits.ahead,
            is_exact: waits.is_exact,
            waiting: waits.waiting,
            priority: priority_out(Some(waits.priority)).into(),
            ..wire::PositionResponse::default()
        }
    });
    wire::PositionResponse { version: VERSION, ..response }.encode_to_vec().into()
}

/// # Errors
/// If it is of another version.
pub fn decode_position(message: Bytes) -> Result<Option<Waits>, InvalidMessage> {
    let response = wire::PositionResponse::decode(message)?;
    check_version(response.version)?;
    let what = match response.waits_for() {
        wire::WaitsFor::Unspecified => return Ok(None),
        wire::WaitsFor::Turn => WaitsFor::Turn,
        wire::WaitsFor::Tenant => WaitsFor::Tenant,
        wire::WaitsFor::Tool => WaitsFor::Tool,
    };
    let priority = priority(response.priority()).unwrap_or_default();
    let wire::PositionResponse { ahead, is_exact, waiting, .. } = response;
    Ok(Some(Waits { what, ahead, is_exact, waiting, priority }))
}

#[cfg(test)]
mod tests {
    use run::Shard;

    use super::*;

    #[test]
    fn requests_and_positions_are_decoded_as_they_were_encoded() {
        let request = PositionRequest { run: RunId::new(Shard(7), uuid::Uuid::now_v7()), call: CallIndex(3) };
        assert_eq!(PositionRequest::decode(request.encode()).expect("it is valid"), request);
        for what in [WaitsFor::Turn, WaitsFor::Tenant, WaitsFor::Tool] {
            let waits = Waits { what, ahead: 2, is_exact: true, waiting: 9, priority: Priority::Low };
            assert_eq!(decode_position(encode_position(Some(waits))).expect("it is valid"), Some(waits));
        }
        assert_eq!(decode_position(encode_position(None)).expect("it is valid"), None);
        assert!(decode_position(Bytes::new()).is_err(), "it has no version");
    }
}
