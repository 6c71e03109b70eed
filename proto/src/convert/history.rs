//! Values of the history of ended runs.

use bytes::Bytes;
use prost::Message as _;
use run::{TenantId, Timestamp};

use super::{InvalidMessage, VERSION, check_version};
use crate::wire::v1 as wire;

/// A run that has ended, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRun {
    pub tenant: Option<TenantId>,
    /// Further values with entries of the run, numbered from 1.
    pub parts: u32,
    /// From then on the run is not shown any more.
    pub expires_at: Timestamp,
    /// Empty if there are further parts.
    pub messages: Vec<HistoryMessage>,
}

/// A message of the log, as it was there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryMessage {
    /// Its subject behind the run's id.
    pub place: String,
    pub sequence: u64,
    pub at: Timestamp,
    pub payload: Bytes,
}

/// How far the history of a shard goes: runs that ended with an entry up to `through` are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryPosition {
    /// When the log was created, in nanoseconds since 1970.
    pub log: u64,
    pub through: u64,
}

impl HistoryRun {
    #[must_use]
    pub fn encode(self) -> Bytes {
        let Self { tenant, parts, expires_at, messages } = self;
        let messages = messages.into_iter().map(HistoryMessage::out);
        let tenant = tenant.map_or_else(String::new, |tenant| tenant.to_string());
        let (expires_ms, messages) = (expires_at.0, messages.collect());
        wire::HistoryRun { version: VERSION, tenant, parts, expires_ms, messages }.encode_to_vec().into()
    }

    /// Decodes a run or a part of it.
    ///
    /// # Errors
    /// The value is something else.
    pub fn decode(value: Bytes) -> Result<Self, InvalidMessage> {
        let wire::HistoryRun { version, tenant, parts, expires_ms, messages } = wire::HistoryRun::decode(value)?;
        check_version(version)?;
        let messages = messages.into_iter().map(HistoryMessage::read);
        let tenant = if tenant.is_empty() { None } else { Some(tenant.parse()?) };
        Ok(Self { tenant, parts, expires_at: Timestamp(expires_ms), messages: messages.collect() })
    }
}

impl HistoryMessage {
    pub(super) fn out(self) -> wire::HistoryMessage {
        let Self { place, sequence, at, payload } = self;
        wire::HistoryMessage { place, sequence, at_ms: at.0, payload }
    }

    pub(super) fn read(message: wire::HistoryMessage) -> Self {
        let wire::HistoryMessage { place, sequence, at_ms, payload } = message;
        Self { place, sequence, at: Timestamp(at_ms), payload }
    }
}

impl HistoryPosition {
    #[must_use]
    pub fn encode(self) -> Bytes {
        let Self { log, through } = self;
        wire::HistoryPosition { version: VERSION, log, through }.encode_to_vec().into()
    }

    /// Decodes a position.
    ///
    /// # Errors
    /// The value is something else.
    pub fn decode(value: Bytes) -> Result<Self, InvalidMessage> {
        let wire::HistoryPosition { version, log, through } = wire::HistoryPosition::decode(value)?;
        check_version(version)?;
        Ok(Self { log, through })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_history_holds_comes_back_as_it_was() {
        let message = HistoryMessage {
            place: "0.out.main".to_owned(),
            sequence: 7,
            at: Timestamp(1_700_000_000_123),
            payload: Bytes::from_static(b"\x00\xff"),
        };
        for tenant in [None, Some("acme".parse().expect("a tenant"))] {
            let messages = vec![message.clone(), HistoryMessage { sequence: 9, ..message.clone() }];
            let run = HistoryRun { tenant, parts: 0, expires_at: Timestamp(5), messages };
            assert_eq!(HistoryRun::decode(run.clone().encode()).expect("it is one"), run);
        }
        let position = HistoryPosition { log: 3, through: 12 };
        assert_eq!(HistoryPosition::decode(position.encode()).expect("it is one"), position);
        assert!(HistoryRun::decode(Bytes::from_static(b"\x08\x02")).is_err(), "of a newer release");
    }
}
