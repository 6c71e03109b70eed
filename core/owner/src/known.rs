//! A run as far as its log was read, including entries that this release could not understand: a command must expect
//! those too, or it would never be stored.

use std::sync::Arc;

use run::{Call, Entry, Fact, Run, RunId};

use crate::SubjectKind;

/// A run and the positions of its entries that were passed over. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Known {
    /// The fold of the entries that were understood.
    pub run: Arc<Run>,
    /// The sequence of the run's first entry; 0 before it.
    pub first: u64,
    /// The sequence of the run's last entry.
    pub last: u64,
    /// The last entry on each place that was passed over, including void jobs. Empty except in rare cases.
    unread: Vec<(SubjectKind, u64)>,
    /// It was read from the history: the log has nothing of it, and nothing can be appended.
    pub is_past: bool,
}

impl Known {
    /// A run before anything of its log was read.
    #[must_use]
    pub fn new(id: RunId) -> Self {
        Self { run: Arc::new(Run::new(id)), first: 0, last: 0, unread: Vec::new(), is_past: false }
    }

    /// Applies the next entry, and adds the facts that the run accepted from it to `heard`.
    pub fn apply(&mut self, entry: &Entry, heard: &mut Vec<Fact>) {
        self.reach(entry.sequence);
        if entry.is_late()
            && let Some(place @ SubjectKind::Job { .. }) = SubjectKind::of(&entry.events)
        {
            // A void job occupies the subject of the job that replaces it.
            self.pass_over(place, entry.sequence);
        }
        Arc::make_mut(&mut self.run).apply(entry, heard);
    }

    fn reach(&mut self, sequence: u64) {
        if self.first == 0 {
            self.first = sequence;
        }
        self.last = self.last.max(sequence);
    }

    /// Notes an entry that could not be understood.
    pub fn pass_over(&mut self, place: SubjectKind, sequence: u64) {
        self.reach(sequence);
        // No append expects a revision of a worker's subject.
        if !matches!(place, SubjectKind::Output { .. }) {
            self.unread.retain(|(known, _)| *known != place);
            self.unread.push((place, sequence));
        }
    }

    /// Whether an entry that could not be understood may open the run: then a newer release wrote it.
    #[must_use]
    pub fn may_be_opened(&self) -> bool {
        self.run.opened_at().is_none() && self.unread.iter().any(|(place, _)| place.may_open())
    }

    /// The sequence of the last entry at a place of the run, which an append there expects. 0 if there is none.
    #[must_use]
    pub fn revision(&self, place: &SubjectKind) -> u64 {
        let understood = match place {
            SubjectKind::Control { call } => self.run.call(*call).map_or(0, Call::revision),
            SubjectKind::Run => self.run.revision(),
            // An append there must be the first.
            SubjectKind::Job { .. } | SubjectKind::Output { .. } => 0,
        };
        let passed_over = self.unread.iter().find(|(unread, _)| unread == place);
        understood.max(passed_over.map_or(0, |(_, sequence)| *sequence))
    }
}
