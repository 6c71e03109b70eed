//! The limit on the bytes of output and results that the calls of a run store. The call that exceeds it is stopped and
//! fails; results from before are kept.

use std::num::NonZeroU64;

use crate::event::{AttemptId, AttemptOutcome, Chunk, Content};
use crate::id::Timestamp;
use crate::run::{Fact, Run};

impl Run {
    /// Counts the output of an attempt that is running.
    pub(super) fn count_output(&mut self, attempt: AttemptId, chunks: &[Chunk], at: Timestamp, heard: &mut Vec<Fact>) {
        let Some(max) = self.rules.output_bytes_max.map(NonZeroU64::get) else { return };
        let Some(call) = self.calls.get_mut(attempt.call.as_usize()).filter(|call| call.runs(attempt)) else { return };
        let size: usize = chunks.iter().map(size).sum();
        self.output_bytes = self.output_bytes.saturating_add(size as u64);
        if self.output_bytes > max {
            call.stop_beyond_limit(max, at, heard);
        }
    }

    /// Counts the result of an attempt that is about to end its call.
    pub(super) fn count_result(&mut self, attempt: AttemptId, outcome: &AttemptOutcome) {
        let max = self.rules.output_bytes_max.map(NonZeroU64::get);
        let (Some(max), AttemptOutcome::Completed(completion)) = (max, outcome) else { return };
        let Some(call) = self.calls.get_mut(attempt.call.as_usize()).filter(|call| call.may_end(attempt)) else {
            return;
        };
        let size: usize = completion.result.iter().map(Content::size).sum();
        self.output_bytes = self.output_bytes.saturating_add(size as u64);
        if self.output_bytes > max {
            call.fail_beyond_limit(max);
        }
    }
}

fn size(chunk: &Chunk) -> usize {
    match chunk {
        Chunk::Content { content, .. } => content.size(),
        Chunk::Progress(progress) => progress.message.len(),
    }
}
