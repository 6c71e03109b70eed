//! How far the owner of a shard has come, as coordinators tell each other.

use bytes::Bytes;
use prost::Message as _;
use run::{RunId, Shard};
use uuid::Uuid;

use super::{InvalidMessage, VERSION, check_version};
use crate::wire::v1 as wire;

const UUID_BYTES: usize = 16;

/// A shard's low-water mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// When the log was made of which this speaks, in nanoseconds since 1970.
    pub log: u64,
    /// The shard's entries up to here were applied.
    pub through: u64,
    /// The runs that were open then.
    pub open: Vec<RunId>,
}

impl Snapshot {
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let open = self.open.iter().filter_map(uuid_of).flat_map(Uuid::into_bytes).collect::<Vec<u8>>().into();
        wire::ShardSnapshot { version: VERSION, log: self.log, through: self.through, open }.encode_to_vec().into()
    }

    /// # Errors
    /// When the message is not a snapshot.
    pub fn decode(payload: Bytes, shard: Shard) -> Result<Self, InvalidMessage> {
        let wire = wire::ShardSnapshot::decode(payload)?;
        check_version(wire.version)?;
        let ids = wire.open.chunks(UUID_BYTES).map(|bytes| {
            let uuid = Uuid::from_slice(bytes).ok().filter(|uuid| uuid.get_version_num() == 7);
            uuid.map(|uuid| RunId::new(shard, uuid)).ok_or(InvalidMessage::Missing("the id of an open run"))
        });
        Ok(Self { log: wire.log, through: wire.through, open: ids.collect::<Result<_, _>>()? })
    }
}

/// The part of a run's id that is not its shard.
fn uuid_of(id: &RunId) -> Option<Uuid> {
    let text = id.to_string();
    Uuid::try_parse(text.rsplit('_').next()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_comes_back_as_it_was_at_sixteen_bytes_a_run() {
        let open = (0..1000).map(|_| RunId::new(Shard(7), Uuid::now_v7())).collect();
        let snapshot = Snapshot { log: 1_763_000_000_000_000_000, through: 123_456_789, open };
        let encoded = snapshot.encode();
        assert!(encoded.len() < 16 * 1000 + 32, "{}", encoded.len());
        assert_eq!(Snapshot::decode(encoded, Shard(7)).expect("it is one"), snapshot);
    }

    #[test]
    fn a_snapshot_that_was_cut_off_is_refused() {
        let open = vec![RunId::new(Shard(7), Uuid::now_v7())];
        let wire = wire::ShardSnapshot::decode(Snapshot { log: 1, through: 2, open }.encode()).expect("it is one");
        let cut = wire::ShardSnapshot { open: wire.open.slice(..15), ..wire };
        assert!(Snapshot::decode(cut.encode_to_vec().into(), Shard(7)).is_err());
    }
}
