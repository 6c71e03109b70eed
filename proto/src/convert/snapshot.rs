//! Snapshots of a shard: the state that an owner stores for the next owner.

use bytes::Bytes;
pub use owner::Listed;
pub use owner::erasure::OwedErasure;
use owner::retention::{Moment, Unwritten};
use prost::Message as _;
use run::{RunId, Shard, TenantId, Timestamp};
use uuid::Uuid;

use super::{InvalidMessage, VERSION, check_version};
use crate::wire::v1 as wire;

const UUID_BYTES: usize = 16;
/// The spans of time in which older releases count the bytes of tenants.
const SPAN_MS: u64 = 3 * 60 * 60 * 1000;

/// The state of a shard at one position of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// When the log was created that the positions refer to, in nanoseconds since 1970.
    pub log: u64,
    /// The owner had applied the shard's entries up to this position.
    pub through: u64,
    /// The runs that were open at that position. A reader uses their last entries to check that no entry is missing,
    /// because any node of the broker may serve the read.
    pub open: Vec<Listed>,
    /// Ended runs that are to be erased. Once an erasure has begun, this is the only record of it.
    pub erasures: Vec<OwedErasure>,
    /// The first log entry with an erasure request that did not fit among the erasures; 0 if all did.
    pub erasures_behind: u64,
    /// Notifications that are not in the webhook queue yet: their subjects in the queue and their bodies.
    pub letters: Vec<(String, Bytes)>,
    /// Bytes of the log used by each tenant's runs, by the begin of the span of time.
    pub log_bytes: Vec<(TenantId, Vec<(Timestamp, u64)>)>,
}

/// The location of the parts of a snapshot that is too large for one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    pub log: u64,
    pub through: u64,
    pub count: u32,
    /// Unique for each snapshot.
    pub nonce: u64,
}

/// The value of a shard's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    Whole(Snapshot),
    Parts(Parts),
}

/// The version of a snapshot in parts. It differs so that a program that does not know it cannot take the head for the
/// whole snapshot.
const PARTS_VERSION: u32 = 2;

impl Head {
    /// Decodes the value of a shard's key.
    ///
    /// # Errors
    /// The message is neither a snapshot nor the head of one.
    pub fn decode(payload: Bytes, shard: Shard) -> Result<Self, InvalidMessage> {
        let wire = wire::ShardSnapshot::decode(payload.clone())?;
        if wire.version == PARTS_VERSION {
            let (log, through, count, nonce) = (wire.log, wire.through, wire.parts, wire.nonce);
            return Ok(Self::Parts(Parts { log, through, count, nonce }));
        }
        Snapshot::decode(payload, shard).map(Self::Whole)
    }
}

impl Parts {
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let Self { log, through, count: parts, nonce } = *self;
        let version = PARTS_VERSION;
        wire::ShardSnapshot { version, log, through, parts, nonce, ..wire::ShardSnapshot::default() }
            .encode_to_vec()
            .into()
    }
}

impl Snapshot {
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let open = self.open.iter().flat_map(|listed| listed.run.uuid().into_bytes()).collect::<Vec<u8>>().into();
        let (last, mut spans): (_, Vec<u64>) = self.open.iter().map(|listed| (listed.last, span_of(listed))).unzip();
        if spans.iter().all(|span| *span == 0) {
            spans.clear();
        }
        let erasures = self.erasures.iter().filter_map(owed_out).collect();
        let letter = |(subject, body): &(String, Bytes)| wire::Letter { subject: subject.clone(), body: body.clone() };
        let letters = self.letters.iter().map(letter).collect();
        let tenant_bytes = self.log_bytes.iter().map(|(tenant, spans)| wire::TenantBytes {
            tenant: tenant.to_string(),
            spans: spans.iter().map(|(begin, _)| begin.0 / SPAN_MS).collect(),
            bytes: spans.iter().map(|(_, bytes)| *bytes).collect(),
            begins_s: spans.iter().map(|(begin, _)| begin.0 / 1000).collect(),
        });
        let tenant_bytes = tenant_bytes.collect();
        let (version, log, through) = (VERSION, self.log, self.through);
        let whole = wire::ShardSnapshot {
            version,
            log,
            through,
            open,
            last,
            spans,
            erasures,
            letters,
            tenant_bytes,
            erasures_behind: self.erasures_behind,
            ..wire::ShardSnapshot::default()
        };
        whole.encode_to_vec().into()
    }

    /// Decodes a snapshot.
    ///
    /// # Errors
    /// The message is not a snapshot.
    pub fn decode(payload: Bytes, shard: Shard) -> Result<Self, InvalidMessage> {
        let wire = wire::ShardSnapshot::decode(payload)?;
        check_version(wire.version)?;
        let ids = wire.open.chunks(UUID_BYTES);
        if ids.len() != wire.last.len() {
            return Err(InvalidMessage::Missing("the last entry of an open run"));
        }
        let spans = wire.spans.into_iter().chain(std::iter::repeat(0));
        let listed = ids.zip(wire.last).zip(spans);
        let open = listed.map(|((bytes, last), span)| {
            let first = if span == 0 { 0 } else { last.saturating_sub(span - 1) };
            Ok(Listed { run: id_of(bytes, shard)?, first, last })
        });
        let open = open.collect::<Result<_, InvalidMessage>>()?;
        let erasures = wire.erasures.iter().map(|owed| owed_in(owed, shard)).collect::<Result<_, _>>()?;
        let letters = wire.letters.into_iter().map(|letter| (letter.subject, letter.body)).collect();
        let log_bytes = wire
            .tenant_bytes
            .into_iter()
            .map(|of| Ok((of.tenant.parse::<TenantId>()?, begins(&of).into_iter().zip(of.bytes).collect())));
        let log_bytes = log_bytes.collect::<Result<_, InvalidMessage>>()?;
        let (log, through, erasures_behind) = (wire.log, wire.through, wire.erasures_behind);
        Ok(Self { log, through, open, erasures, erasures_behind, letters, log_bytes })
    }
}

/// The first entry of a log that a shard needs. It stays true: older entries are never needed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// When the log was created, in nanoseconds since 1970.
    pub log: u64,
    pub from: u64,
    /// What the history needs; `None` without one.
    pub unwritten: Option<Unwritten>,
}

impl Needs {
    /// Whether it was told of this log, whose last entry is `last`. A position behind the end is of a log that was
    /// replaced by an older copy of it.
    #[must_use]
    pub fn is_of(&self, log: u64, last: u64) -> bool {
        let is_behind = |unwritten: &Unwritten| {
            let newest = unwritten.waiting.last().map_or(0, |moment| moment.last);
            unwritten.from > last + 1 || unwritten.through.max(newest) > last
        };
        self.log == log && self.from <= last + 1 && !self.unwritten.as_ref().is_some_and(is_behind)
    }

    #[must_use]
    pub fn encode(self) -> Bytes {
        let Self { log, from, unwritten } = self;
        let unwritten_from = unwritten.as_ref().map(|unwritten| unwritten.from);
        let Unwritten { through: history_through, waiting, .. } = unwritten.unwrap_or_default();
        let waiting = waiting.into_iter().map(|Moment { last, open_from }| wire::ShardMoment { last, open_from });
        let waiting = waiting.collect();
        wire::ShardNeeds { version: VERSION, log, from, unwritten_from, history_through, waiting }
            .encode_to_vec()
            .into()
    }

    /// Decodes what a shard needs.
    ///
    /// # Errors
    /// The message is something else.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        let wire::ShardNeeds { version, log, from, unwritten_from, history_through: through, waiting } =
            wire::ShardNeeds::decode(payload)?;
        check_version(version)?;
        let waiting = waiting.into_iter().map(|wire::ShardMoment { last, open_from }| Moment { last, open_from });
        let waiting = waiting.collect();
        Ok(Self { log, from, unwritten: unwritten_from.map(|from| Unwritten { from, through, waiting }) })
    }
}

/// What has left a log: entries that were stored later are still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// When the log was created, in nanoseconds since 1970.
    pub log: u64,
    pub through: Timestamp,
}

impl Cut {
    #[must_use]
    pub fn encode(self) -> Bytes {
        let Self { log, through } = self;
        wire::LogCut { version: VERSION, log, through_ms: through.0 }.encode_to_vec().into()
    }

    /// Decodes what has left a log.
    ///
    /// # Errors
    /// The message is something else.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        let wire::LogCut { version, log, through_ms } = wire::LogCut::decode(payload)?;
        check_version(version)?;
        Ok(Self { log, through: Timestamp(through_ms) })
    }
}

/// The begins of a tenant's spans. Older releases tell the numbers of spans of three hours.
fn begins(of: &wire::TenantBytes) -> Vec<Timestamp> {
    let finely = of.begins_s.iter().map(|begin| Timestamp(begin.saturating_mul(1000)));
    if of.begins_s.len() == of.spans.len() {
        finely.collect()
    } else {
        of.spans.iter().map(|number| Timestamp(number.saturating_mul(SPAN_MS))).collect()
    }
}

fn owed_out(owed: &OwedErasure) -> Option<wire::OwedErasure> {
    Some(wire::OwedErasure {
        run: Bytes::copy_from_slice(owed.run.uuid().as_bytes()),
        due_ms: owed.due.0,
        through: owed.through,
        request: owed.request.map(|digest| Bytes::copy_from_slice(&digest)).unwrap_or_default(),
        continuations: owed.continuations,
        tenant: owed.bytes.as_ref().map(|(tenant, _)| tenant.to_string()).unwrap_or_default(),
        bytes: owed.bytes.as_ref().map_or(0, |(_, bytes)| *bytes),
        is_never_past: owed.is_never_past,
    })
}

fn owed_in(owed: &wire::OwedErasure, shard: Shard) -> Result<OwedErasure, InvalidMessage> {
    let bytes = if owed.tenant.is_empty() { None } else { Some((owed.tenant.parse()?, owed.bytes)) };
    Ok(OwedErasure {
        run: id_of(&owed.run, shard)?,
        due: Timestamp(owed.due_ms),
        through: owed.through,
        request: owed.request.as_ref().try_into().ok(),
        continuations: owed.continuations,
        bytes,
        is_never_past: owed.is_never_past,
    })
}

fn id_of(bytes: &[u8], shard: Shard) -> Result<RunId, InvalidMessage> {
    let uuid = Uuid::from_slice(bytes).ok().filter(|uuid| uuid.get_version_num() == 7);
    uuid.map(|uuid| RunId::new(shard, uuid)).ok_or(InvalidMessage::Missing("the id of a run"))
}

/// How far before its last entry the first entry of a run is, and one more; 0 if that is not known.
fn span_of(listed: &Listed) -> u64 {
    if listed.first == 0 { 0 } else { listed.last.saturating_sub(listed.first) + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shard_needs_comes_back_as_it_was_and_is_not_of_a_log_that_ends_before_it() {
        let waiting = vec![Moment { last: 9, open_from: 3 }, Moment { last: 12, open_from: 13 }];
        let unwritten = Unwritten { from: 2, through: 7, waiting };
        for unwritten in [None, Some(Unwritten::default()), Some(unwritten.clone())] {
            let needs = Needs { log: 1_763_000_000_000_000_000, from: 5, unwritten };
            assert_eq!(Needs::decode(needs.clone().encode()).expect("they are"), needs);
            assert!(needs.is_of(needs.log, 12) && !needs.is_of(1, 12) && !needs.is_of(needs.log, 3));
        }
        let needs = Needs { log: 1, from: 5, unwritten: Some(unwritten) };
        assert!(!needs.is_of(1, 11), "the last moment is of a longer log");
    }

    #[test]
    fn a_snapshot_comes_back_as_it_was_at_some_twenty_bytes_a_run() {
        let listed = |number: u64| {
            let (last, run) = (123_455_000 + number, RunId::new(Shard(7), Uuid::now_v7()));
            Listed { run, first: if number.is_multiple_of(2) { last - number % 7 } else { 0 }, last }
        };
        let open = (0..1000).map(listed).collect();
        let snapshot = Snapshot { log: 1_763_000_000_000_000_000, through: 123_456_789, open, ..Snapshot::default() };
        let encoded = snapshot.encode();
        assert!(encoded.len() <= 21 * 1000 + 32, "{}", encoded.len());
        assert_eq!(Snapshot::decode(encoded, Shard(7)).expect("it is one"), snapshot);
    }

    #[test]
    fn what_is_owed_comes_back_as_it_was_at_some_eighty_bytes_a_run() {
        let owed = |number: u64| OwedErasure {
            run: RunId::new(Shard(7), Uuid::now_v7()),
            due: Timestamp(1_763_000_000_000 + number),
            through: 123_455_000 + number,
            request: number.is_multiple_of(2).then_some([7; 32]),
            continuations: 3,
            bytes: number.is_multiple_of(2).then(|| ("acme".parse().expect("a tenant"), number)),
            is_never_past: number.is_multiple_of(2),
        };
        let erasures = (0..1000).map(owed).collect();
        let letters = vec![("ty.notice.07.a.run.1".to_owned(), Bytes::from_static(b"{}"))];
        let log_bytes = vec![("acme".parse().expect("a tenant"), vec![(Timestamp(1_000), 20), (Timestamp(2_000), 30)])];
        let erasures_behind = 123_456_000;
        let snapshot = Snapshot {
            log: 1,
            through: 123_456_789,
            erasures,
            erasures_behind,
            letters,
            log_bytes,
            ..Snapshot::default()
        };
        let encoded = snapshot.encode();
        assert!(encoded.len() <= 80 * 1000, "{}", encoded.len());
        assert_eq!(Snapshot::decode(encoded, Shard(7)).expect("it is one"), snapshot);
    }

    #[test]
    fn a_head_of_parts_is_nothing_to_a_program_that_does_not_know_parts() {
        let parts = Parts { log: 1, through: 2, count: 3, nonce: u64::MAX };
        assert_eq!(Head::decode(parts.encode(), Shard(7)).expect("it is one"), Head::Parts(parts));
        assert!(matches!(Snapshot::decode(parts.encode(), Shard(7)), Err(InvalidMessage::Version(2))));
        let whole = Snapshot { log: 1, through: 2, ..Snapshot::default() };
        assert_eq!(Head::decode(whole.encode(), Shard(7)).expect("it is one"), Head::Whole(whole));
    }

    #[test]
    fn a_snapshot_that_was_cut_off_is_refused() {
        let open = vec![Listed { run: RunId::new(Shard(7), Uuid::now_v7()), first: 1, last: 2 }];
        let wire = wire::ShardSnapshot::decode(Snapshot { log: 1, through: 2, open, ..Snapshot::default() }.encode())
            .expect("it is one");
        let cut = wire::ShardSnapshot { open: wire.open.slice(..15), ..wire.clone() };
        assert!(Snapshot::decode(cut.encode_to_vec().into(), Shard(7)).is_err());
        let without = wire::ShardSnapshot { last: Vec::new(), ..wire };
        assert!(Snapshot::decode(without.encode_to_vec().into(), Shard(7)).is_err());
    }
}
