//! The limit on the bytes of output and results that the calls of a run store. The call that exceeds it is stopped and
//! fails; results from before are kept. Only what counts for its call is counted, and once: the log may hold copies,
//! and events of attempts that do not count.

use std::num::NonZeroU64;
use std::ops::Range;

use crate::event::{AttemptId, Chunk, Content};
use crate::id::Timestamp;
use crate::run::{Fact, Run};

/// The bytes that the calls of a run have stored, and how many they may store.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    max: Option<NonZeroU64>,
    used: u64,
}

impl ByteBudget {
    /// Counts a result.
    ///
    /// # Errors
    /// The limit, if the run exceeds it now.
    pub(crate) fn take(&mut self, result: &[Content]) -> Result<(), u64> {
        self.take_bytes(|| result.iter().map(Content::size).sum())
    }

    fn take_bytes(&mut self, size: impl FnOnce() -> usize) -> Result<(), u64> {
        let Some(max) = self.max.map(NonZeroU64::get) else { return Ok(()) };
        self.used = self.used.saturating_add(size() as u64);
        if self.used > max { Err(max) } else { Ok(()) }
    }
}

impl Run {
    pub(super) fn byte_budget(&self) -> ByteBudget {
        ByteBudget { max: self.rules.output_bytes_max, used: self.output_bytes }
    }

    pub(super) fn set_used(&mut self, budget: &ByteBudget) {
        self.output_bytes = budget.used;
    }

    /// Counts the parts of an event's output that count. The call is stopped if the run exceeds its limit.
    pub(super) fn count_output(
        &mut self,
        attempt: AttemptId,
        (chunks, new): (&[Chunk], &[Range<usize>]),
        at: Timestamp,
        heard: &mut Vec<Fact>,
    ) {
        if new.is_empty() {
            return;
        }
        let mut budget = self.byte_budget();
        let parts = new.iter().flat_map(|part| chunks.get(part.clone()).unwrap_or_default());
        let taken = budget.take_bytes(|| parts.map(size).sum());
        self.set_used(&budget);
        if let (Err(max), Some(call)) = (taken, self.calls.get_mut(attempt.call.as_usize())) {
            call.stop_beyond_limit(max, at, heard);
        }
    }
}

fn size(chunk: &Chunk) -> usize {
    match chunk {
        Chunk::Content { content, .. } => content.size(),
        Chunk::Progress(progress) => progress.message.len(),
    }
}
