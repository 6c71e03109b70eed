//! One shard as its owner has it: the phase of its ownership, how far its log was applied, and its open runs.

use std::collections::BTreeMap;

use run::{RunId, Timestamp};

use crate::ended::Ended;
use crate::known::Known;
use crate::unread::Unread;

/// The state of the shard's ownership. `claim` distinguishes two periods in which it was ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// The shard is not ours.
    #[default]
    NotOwned,
    /// Ours; its open runs are being read.
    Taking { claim: u64 },
    /// Ours; entries up to `tip`, the end of the shard's log when it became ours, are not all applied.
    Replaying { claim: u64, tip: u64 },
    /// Ours, and we act for it.
    Leading { claim: u64 },
    /// We have stopped acting for it, and give it back once its snapshot is written.
    Leaving { claim: u64 },
}

impl Phase {
    /// Whether entries are applied.
    #[must_use]
    pub fn folds(self) -> bool {
        matches!(self, Self::Replaying { .. } | Self::Leading { .. })
    }

    /// Whether the owner may act, if its lease holds.
    #[must_use]
    pub fn leads(self) -> bool {
        matches!(self, Self::Leading { .. })
    }

    /// Whether the shard is ours and its runs are not all known yet.
    #[must_use]
    pub fn is_taking_over(self) -> bool {
        matches!(self, Self::Taking { .. } | Self::Replaying { .. })
    }

    /// The claim under which the shard is ours.
    #[must_use]
    pub fn claim(self) -> Option<u64> {
        match self {
            Self::Taking { claim }
            | Self::Replaying { claim, .. }
            | Self::Leading { claim }
            | Self::Leaving { claim } => Some(claim),
            Self::NotOwned => None,
        }
    }
}

/// The open runs that were read when a shard became ours.
#[derive(Debug, Clone)]
pub struct Takeover {
    pub claim: u64,
    /// The shard is known up to this entry.
    pub through: u64,
    /// The end of the shard's log when it became ours.
    pub tip: u64,
    pub open: Vec<Known>,
    /// Runs whose opening this release cannot read, each with its last entry.
    pub unread: Vec<(RunId, u64)>,
}

/// An open run.
#[derive(Debug, Clone)]
pub struct OpenRun {
    pub known: Known,
    /// When the run is checked again.
    pub(crate) timer: Option<Timestamp>,
    /// Bytes of its entries in the log, as far as they were counted.
    pub stored_bytes: u64,
}

impl OpenRun {
    pub(crate) fn new(known: Known) -> Self {
        Self { known, timer: None, stored_bytes: 0 }
    }
}

/// One shard.
#[derive(Debug, Clone, Default)]
pub struct ShardState {
    pub(crate) phase: Phase,
    pub(crate) applied: u64,
    pub(crate) runs: BTreeMap<RunId, OpenRun>,
    pub(crate) ended: Ended,
    pub(crate) unread: Unread,
}

impl ShardState {
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Every entry up to this one was applied.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Whether everything is applied that was in the log when the shard became ours.
    #[must_use]
    pub fn has_caught_up(&self) -> bool {
        matches!(self.phase, Phase::Replaying { tip, .. } if self.applied >= tip)
    }

    /// The open runs; none while the shard is not ours.
    pub fn runs(&self) -> impl ExactSizeIterator<Item = (RunId, &OpenRun)> {
        self.runs.iter().map(|(id, open)| (*id, open))
    }

    /// An open run.
    #[must_use]
    pub fn run(&self, id: RunId) -> Option<&Known> {
        self.runs.get(&id).map(|open| &open.known)
    }

    /// A run that is open or has just ended.
    #[must_use]
    pub fn recent_run(&self, id: RunId) -> Option<&Known> {
        self.run(id).or_else(|| self.ended.find(id))
    }

    /// Whether this release cannot read the run's opening.
    #[must_use]
    pub fn is_unread(&self, id: RunId) -> bool {
        self.unread.contains(id)
    }

    /// The content of a snapshot: the runs that the next owner must read, each with its last entry. Ended runs are left
    /// out, and entries behind [`Self::applied`] follow from the log.
    pub fn snapshot(&self) -> impl Iterator<Item = (RunId, u64)> {
        self.runs.iter().map(|(id, open)| (*id, open.known.last)).chain(self.unread.list())
    }

    /// The first entry of the log that the shard's runs need: those of open runs are read at a takeover. 0 if that is
    /// not known.
    #[must_use]
    pub fn needed_from(&self) -> u64 {
        if !self.unread.is_empty() {
            return 0;
        }
        let firsts = self.runs.values().map(|open| open.known.first);
        firsts.min().unwrap_or(u64::MAX).min(self.applied + 1)
    }

    pub(crate) fn come_to(&mut self, position: u64) {
        if self.phase.folds() {
            self.applied = self.applied.max(position);
        }
    }
}
