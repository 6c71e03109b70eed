//! Entries of runs that stay open for long, as they are kept beside the log.

use bytes::Bytes;
use prost::Message as _;

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
}

impl CarriedPart {
    /// The last entry of the part.
    #[must_use]
    pub fn through(&self) -> u64 {
        self.entries.last().map_or(self.after, |entry| entry.sequence)
    }

    #[must_use]
    pub fn encode(self) -> Bytes {
        let entries = self.entries.into_iter().map(HistoryMessage::out).collect();
        wire::CarriedPart { version: VERSION, after: self.after, entries, settled: self.settled }.encode_to_vec().into()
    }

    /// Decodes a part.
    ///
    /// # Errors
    /// The message is something else, or its entries are not in the order of the log.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        let wire::CarriedPart { version, after, entries, settled } = wire::CarriedPart::decode(payload)?;
        check_version(version)?;
        let part = Self { after, entries: entries.into_iter().map(HistoryMessage::read).collect(), settled };
        let sequences = std::iter::once(after).chain(part.entries.iter().map(|entry| entry.sequence));
        if !sequences.is_sorted_by(|one, next| one < next) {
            return Err(InvalidMessage::Missing("the order of the entries"));
        }
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use run::Timestamp;

    use super::*;

    fn part(sequences: &[u64]) -> CarriedPart {
        let entry = |sequence: &u64| HistoryMessage {
            place: "_.run".to_owned(),
            sequence: *sequence,
            at: Timestamp(7 * sequence),
            payload: Bytes::from_static(b"opening"),
        };
        CarriedPart { after: 3, entries: sequences.iter().map(entry).collect(), settled: 2 }
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
