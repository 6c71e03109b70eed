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
        let packed = postcard::to_allocvec(self).ok().filter(|packed| Self::unpack(packed).as_ref() == Some(self));
        debug_assert!(packed.is_some(), "a run that is packed differs: {self:?}");
        packed
    }

    /// The state that [`Self::pack`] wrote.
    #[must_use]
    pub fn unpack(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
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
