//! Entries of runs that stay open for long, as they are kept beside the log.

use bytes::Bytes;
use prost::Message as _;
use run::Timestamp;

use super::history::HistoryMessage;
use super::{InvalidMessage, VERSION, check_version};
use crate::wire::v1 as wire;

/// Entries of a run that follow one another in the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CarriedPart {
    /// The last entry of the part before; 0 in the first part.
    pub after: u64,
    pub entries: Vec<HistoryMessage>,
    /// The entries of the run up to this one had been carried for long when the part was stored; 0 if none had.
    pub settled: u64,
    /// The entries up to this one have been carried since then; `None` if all of them are since the part was stored.
    pub settling: Option<(u64, Timestamp)>,
}

impl CarriedPart {
    /// The last entry of the part.
    #[must_use]
    pub fn through(&self) -> u64 {
        self.entries.last().map_or(self.after, |entry| entry.sequence)
    }

    #[must_use]
    pub fn encode(self) -> Bytes {
        let Self { after, entries, settled, settling } = self;
        let entries = entries.into_iter().map(HistoryMessage::out).collect();
        let (settling, since) = settling.unwrap_or((0, Timestamp(0)));
        let part = wire::CarriedPart { version: VERSION, after, entries, settled, settling, settling_since: since.0 };
        part.encode_to_vec().into()
    }

    /// Decodes a part.
    ///
    /// # Errors
    /// The message is something else, or its entries are not in the order of the log.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        let wire::CarriedPart { version, after, entries, settled, settling, settling_since } =
            wire::CarriedPart::decode(payload)?;
        check_version(version)?;
        let entries = entries.into_iter().map(HistoryMessage::read).collect();
        let settling = (settling > 0).then_some((settling, Timestamp(settling_since)));
        let part = Self { after, entries, settled, settling };
        let sequences = std::iter::once(after).chain(part.entries.iter().map(|entry| entry.sequence));
        if !sequences.is_sorted_by(|one, next| one < next) {
            return Err(InvalidMessage::Missing("the order of the entries"));
        }
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(sequences: &[u64]) -> CarriedPart {
        let entry = |sequence: &u64| HistoryMessage {
            place: "_.run".to_owned(),
            sequence: *sequence,
            at: Timestamp(7 * sequence),
            payload: Bytes::from_static(b"opening"),
        };
        let settling = Some((3, Timestamp(7)));
        CarriedPart { after: 3, entries: sequences.iter().map(entry).collect(), settled: 2, settling }
    }

    #[test]
    fn a_part_comes_back_as_it_was_and_one_out_of_order_is_refused() {
        let whole = part(&[4, 9]);
        assert_eq!(CarriedPart::decode(whole.clone().encode()).expect("it is one"), whole);
        assert_eq!((whole.through(), part(&[]).through()), (9, 3));
        for wrong in [part(&[3]), part(&[9, 4]), part(&[4, 4])] {
            assert!(CarriedPart::decode(wrong.clone().encode()).is_err(), "{wrong:?}");
        }
    }
}
