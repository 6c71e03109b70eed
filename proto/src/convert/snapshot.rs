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
    /// The runs that were open then, each with the sequence of its last entry up to there: whoever reads them knows by that
    /// that nothing is missing, whichever node of the broker serves them.
    pub open: Vec<(RunId, u64)>,
}

impl Snapshot {
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let known = self.open.iter().filter_map(|(id, last)| Some((uuid_of(id)?, *last)));
        let (open, last): (Vec<[u8; UUID_BYTES]>, Vec<u64>) = known.map(|(id, last)| (id.into_bytes(), last)).unzip();
        let open = open.concat().into();
        wire::ShardSnapshot { version: VERSION, log: self.log, through: self.through, open, last }
            .encode_to_vec()
            .into()
    }

    /// # Errors
    /// When the message is not a snapshot.
    pub fn decode(payload: Bytes, shard: Shard) -> Result<Self, InvalidMessage> {
        let wire = wire::ShardSnapshot::decode(payload)?;
        check_version(wire.version)?;
        let ids = wire.open.chunks(UUID_BYTES);
        if ids.len() != wire.last.len() {
            return Err(InvalidMessage::Missing("the last entry of an open run"));
        }
        let open = ids.zip(wire.last).map(|(bytes, last)| {
            let uuid = Uuid::from_slice(bytes).ok().filter(|uuid| uuid.get_version_num() == 7);
            let id =
                uuid.map(|uuid| RunId::new(shard, uuid)).ok_or(InvalidMessage::Missing("the id of an open run"))?;
            Ok((id, last))
        });
        Ok(Self { log: wire.log, through: wire.through, open: open.collect::<Result<_, InvalidMessage>>()? })
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
    fn a_snapshot_comes_back_as_it_was_at_some_twenty_bytes_a_run() {
        let open = (0..1000).map(|last| (RunId::new(Shard(7), Uuid::now_v7()), 123_455_000 + last)).collect();
        let snapshot = Snapshot { log: 1_763_000_000_000_000_000, through: 123_456_789, open };
        let encoded = snapshot.encode();
        assert!(encoded.len() <= 20 * 1000 + 32, "{}", encoded.len());
        assert_eq!(Snapshot::decode(encoded, Shard(7)).expect("it is one"), snapshot);
    }

    #[test]
    fn a_snapshot_that_was_cut_off_is_refused() {
        let open = vec![(RunId::new(Shard(7), Uuid::now_v7()), 2)];
        let wire = wire::ShardSnapshot::decode(Snapshot { log: 1, through: 2, open }.encode()).expect("it is one");
        let cut = wire::ShardSnapshot { open: wire.open.slice(..15), ..wire.clone() };
        assert!(Snapshot::decode(cut.encode_to_vec().into(), Shard(7)).is_err());
        let without = wire::ShardSnapshot { last: Vec::new(), ..wire };
        assert!(Snapshot::decode(without.encode_to_vec().into(), Shard(7)).is_err());
    }
}
