//! A run as far as the log is known, and what stands on its subjects that could not be understood: a command must expect
//! that too, or it would never be stored.

use std::sync::Arc;

use proto::subject::Place;
use run::{Call, Entry, Heard, Run, RunId};

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) run: Arc<Run>,
    /// The run's last entry.
    pub(crate) last: u64,
    /// The last entry on each place that was passed over, void jobs included; empty but in rare cases.
    unread: Vec<(Place, u64)>,
}

impl Known {
    pub(crate) fn new(id: RunId) -> Self {
        Self { run: Arc::new(Run::new(id)), last: 0, unread: Vec::new() }
    }

    pub(crate) fn apply(&mut self, entry: &Entry, heard: &mut Vec<Heard>) {
        self.last = self.last.max(entry.sequence);
        if entry.is_late()
            && let Some(place @ Place::Job { .. }) = Place::of(&entry.events)
        {
            self.pass_over(place, entry.sequence);
        }
        Arc::make_mut(&mut self.run).apply(entry, heard);
    }

    pub(crate) fn pass_over(&mut self, place: Place, sequence: u64) {
        self.last = self.last.max(sequence);
        // Nobody expects anything of a worker's subject.
        if !matches!(place, Place::Output { .. }) {
            self.unread.retain(|(known, _)| *known != place);
            self.unread.push((place, sequence));
        }
    }

    /// An entry that could not be understood may open the run: a newer release wrote it.
    pub(crate) fn may_be_opened(&self) -> bool {
        self.run.opened_at().is_none() && self.unread.iter().any(|(place, _)| may_open(place))
    }

    /// The last entry on a subject of the run: what an append there expects.
    pub(crate) fn revision(&self, place: &Place) -> u64 {
        let understood = match place {
            Place::Control { call } => self.run.call(*call).map_or(0, Call::revision),
            Place::Run => self.run.revision(),
            // Whoever appends there must be the first.
            Place::Job { .. } | Place::Output { .. } => 0,
        };
        let passed_over = self.unread.iter().find(|(unread, _)| unread == place);
        understood.max(passed_over.map_or(0, |(_, sequence)| *sequence))
    }
}

/// Whether an entry of this place may open its run.
pub(crate) fn may_open(place: &Place) -> bool {
    match place {
        Place::Run | Place::Job { .. } => true,
        Place::Control { .. } | Place::Output { .. } => false,
    }
}
