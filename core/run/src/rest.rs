//! Runs at rest: nothing is to be done for them before their next entry or deadline. They may wait for weeks, and there
//! may be a million of them, so each is kept in a form that takes little memory.

use crate::call::{Call, CallState, Ended};
use crate::event::{Content, Outcome};
use crate::id::Timestamp;
use crate::run::Run;

/// The most calls of a run at rest, and the most bytes of their arguments and results together. A larger run would save
/// little, and cost more each time it is needed.
const CALLS_MAX: usize = 32;
const BYTES_MAX: usize = 4 * 1024;

impl Run {
    /// Whether nothing is to be done for the run before its next entry or [`Self::next_deadline`], whatever happens to
    /// workers: each of its calls has ended, or waits for its client, an approval or a time.
    #[must_use]
    pub fn is_at_rest(&self, now: Timestamp) -> bool {
        self.opened_at().is_some()
            && !self.status().is_final()
            // The end of the call that made a run ends the run.
            && self.parent().is_none()
            && self.calls().len() <= CALLS_MAX
            && self.calls().iter().all(Call::is_at_rest)
            && self.calls().iter().map(Call::bytes).sum::<usize>() <= BYTES_MAX
            && self.outstanding(now).is_empty()
    }

    /// The state as bytes, which [`Self::unpack`] reads; `None` if that would not give the same state, as nothing else
    /// may have it. They are for the memory of this process only: another release may not understand them.
    #[must_use]
    pub fn pack(&self) -> Option<Vec<u8>> {
        let packed = postcard::to_allocvec(self).ok().map(|state| shorten_zeros(&state));
        let packed = packed.filter(|packed| Self::unpack(packed).as_ref() == Some(self));
        debug_assert!(packed.is_some(), "a run that is packed differs: {self:?}");
        packed
    }

    /// The state that [`Self::pack`] wrote.
    #[must_use]
    pub fn unpack(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(&restore_zeros(bytes)).ok()
    }
}

/// Replaces each sequence of zeros by a zero and the number of those that follow it. In a state almost every second
/// byte is a zero: a field that is not set, or an empty list.
fn shorten_zeros(bytes: &[u8]) -> Vec<u8> {
    let mut short = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((byte, after)) = rest.split_first() {
        short.push(*byte);
        rest = after;
        if *byte == 0 {
            let more = rest.iter().take(usize::from(u8::MAX)).take_while(|byte| **byte == 0).count();
            short.push(u8::try_from(more).unwrap_or(u8::MAX));
            rest = rest.get(more..).unwrap_or_default();
        }
    }
    short
}

/// What [`shorten_zeros`] was given.
fn restore_zeros(short: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 * short.len());
    let mut rest = short.iter();
    while let Some(byte) = rest.next() {
        bytes.push(*byte);
        if *byte == 0 {
            let more = rest.next().copied().unwrap_or_default();
            bytes.resize(bytes.len() + usize::from(more), 0);
        }
    }
    bytes
}

impl Call {
    fn is_at_rest(&self) -> bool {
        let waits = match self.state() {
            CallState::AwaitingApproval | CallState::Delayed | CallState::WaitingForClient | CallState::Ended(_) => {
                true
            }
            CallState::Accepted | CallState::Queued { .. } | CallState::Running(_) => false,
        };
        waits && self.unsettled().is_none()
    }

    /// Bytes of the call's arguments and result.
    fn bytes(&self) -> usize {
        let result = match self.state() {
            CallState::Ended(Ended { outcome: Outcome::Completed(result), .. }) => result.as_slice(),
            _ => &[],
        };
        self.spec().size() + result.iter().map(Content::size).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{RunId, Shard};

    #[test]
    fn a_state_is_packed_without_most_of_its_zeros() {
        let run = Run::new(RunId::new(Shard(0), uuid::Builder::from_unix_timestamp_millis(1, &[7; 10]).into_uuid()));
        let (packed, plain) = (run.pack().expect("it is packed"), postcard::to_allocvec(&run).expect("it is written"));
        assert!(3 * packed.len() < 2 * plain.len(), "{} of {}", packed.len(), plain.len());
    }

    #[test]
    fn many_zeros_take_little_and_all_come_back() {
        for zeros in [0, 1, 2, 255, 256, 257, 600] {
            for bytes in [vec![0; zeros], [&[7][..], &vec![0; zeros], &[0xff, 0, 7]].concat()] {
                let short = shorten_zeros(&bytes);
                assert_eq!(restore_zeros(&short), bytes, "{zeros}");
                assert!(short.len() <= 11, "{zeros}");
            }
        }
    }
}
