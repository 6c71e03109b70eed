//! Runs that are erased from the log: when one is due, and what an operator's request for it holds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::event::{Event, Route};
use crate::id::{TenantId, Timestamp};
use crate::late::{COPIES_MARGIN, NEVER_OPENED_AFTER, STORED_WITHIN};
use crate::run::Run;

/// The run is erased after its end. Chosen when it is opened, for all of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erasure {
    /// How long after its end it can still be read.
    pub after: Duration,
    /// The digest of the request id, if there was one: its key in the bucket of request ids refers to the run.
    pub request: Option<[u8; 32]>,
}

/// An operator requested that a run is erased. The owner of the run's shard no longer holds a run that ended, so the
/// request carries the facts that erasing such a run needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EraseRequest {
    /// Why, for people.
    pub reason: String,
    pub tenant: Option<TenantId>,
    /// Bytes of the run's entries in the log, as the tenant's quota counts them.
    pub bytes: u64,
    /// The run is not erased earlier. After this time no copy of its opening and its jobs counts.
    pub not_before: Timestamp,
    /// The digest of the run's request id, if the run's opening holds it.
    pub request: Option<[u8; 32]>,
    /// Responses of the OpenAI API that continue the run, beyond its first response.
    pub continuations: u32,
}

impl Run {
    /// Set if the caller asked that the run is erased after its end.
    #[must_use]
    pub fn erasure(&self) -> Option<Erasure> {
        self.erasure
    }

    /// Whether its opening was stored too late to count, so that it expired as it began. Its caller received an error,
    /// or it is a late copy of an erased run.
    #[must_use]
    pub fn is_void(&self) -> bool {
        self.is_void
    }

    /// When it is erased; `None` for a run that is kept, and for one that has not ended. Not before late copies of its
    /// opening and its jobs are void, because a copy would find their subjects empty and be stored.
    #[must_use]
    pub fn erase_at(&self) -> Option<Timestamp> {
        let ended = self.ended_at?;
        let due = match (self.erase_requested, self.erasure) {
            (Some(requested), _) => ended.max(requested),
            (None, Some(erasure)) => ended.after(erasure.after),
            // It may be a copy of a run that was erased, so its content must not stay.
            (None, None) if self.is_void => ended.max(self.id().created_at().after(NEVER_OPENED_AFTER)),
            (None, None) => return None,
        };
        Some(due.max(self.copies_until))
    }

    /// An operator requested that the run is erased.
    #[must_use]
    pub fn is_erase_requested(&self) -> bool {
        self.erase_requested.is_some()
    }

    /// The digest of the request id that leads to the run, if its opening holds one.
    #[must_use]
    pub fn request(&self) -> Option<[u8; 32]> {
        self.erasure.and_then(|erasure| erasure.request)
    }

    /// Responses of the OpenAI API that continue the run, beyond its first response: at most one for each call that
    /// waited for the client or for an approval.
    #[must_use]
    pub fn continuations(&self) -> u32 {
        let waited = self.calls.iter().filter(|call| call.spec.route == Route::Client || call.spec.approval.is_some());
        u32::try_from(waited.count()).unwrap_or(u32::MAX)
    }

    /// The request of an operator to erase the run; nothing if it was requested before. `bytes`: of the run's entries
    /// in the log.
    pub(crate) fn decide_erasure(&self, reason: String, bytes: u64, now: Timestamp) -> Vec<Event> {
        if self.is_erase_requested() {
            return Vec::new();
        }
        // Jobs may be dispatched until the request is stored, and a second copy of one counts for a while after that.
        let copies = if self.status.is_final() { Timestamp(0) } else { now.after(STORED_WITHIN).after(COPIES_MARGIN) };
        vec![Event::RunEraseRequested(EraseRequest {
            reason,
            tenant: self.tenant.clone(),
            bytes,
            not_before: self.copies_until.max(copies),
            request: self.request(),
            continuations: self.continuations(),
        })]
    }
}
