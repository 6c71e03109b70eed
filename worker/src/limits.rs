//! How much a call may say, and what becomes of it when it says more. Workers and the test kit apply the same.

use run::{CallError, Chunk, Completion, Content, ErrorKind, limit};

/// Counts what one attempt has said.
#[derive(Debug, Default)]
pub(crate) struct Said {
    chunks: u32,
    bytes: usize,
}

impl Said {
    /// An attempt that goes on after `chunks` of those before it, which count.
    pub(crate) fn after(chunks: u32) -> Self {
        Self { chunks, bytes: 0 }
    }

    /// Chunks so far, those of attempts before it included.
    pub(crate) fn chunks(&self) -> u32 {
        self.chunks
    }

    /// The size of a chunk that may still be said; `None` when it is too much.
    pub(crate) fn count(&mut self, chunk: &Chunk) -> Option<usize> {
        let bytes = match chunk {
            Chunk::Content { content, .. } => content.size(),
            Chunk::Progress(progress) => progress.message.len(),
        };
        let room = limit::OUTPUT_BYTES_PER_ATTEMPT_MAX - self.bytes;
        if self.chunks >= limit::CHUNKS_PER_ATTEMPT_MAX || bytes > room {
            return None;
        }
        self.chunks += 1;
        self.bytes += bytes;
        Some(bytes)
    }
}

pub(crate) fn too_much_output() -> CallError {
    let (pieces, mib) = (limit::CHUNKS_PER_ATTEMPT_MAX, limit::OUTPUT_BYTES_PER_ATTEMPT_MAX >> 20);
    let message = format!("the call said more than {pieces} pieces or {mib} MiB of output");
    CallError::new(ErrorKind::OutputTooLarge, message)
}

/// What a call gives, if it may be kept.
pub(crate) fn completion(given: Completion) -> Result<Completion, CallError> {
    let (size, count) = (given.result.iter().map(Content::size).sum::<usize>(), given.result.len());
    if size > limit::RESULT_BYTES_MAX || count > limit::RESULT_PARTS_MAX {
        let message = format!(
            "the result is {size} bytes in {count} parts, at most {} in {} are kept: stream it or write it to a file",
            limit::RESULT_BYTES_MAX,
            limit::RESULT_PARTS_MAX
        );
        return Err(CallError::new(ErrorKind::ResultTooLarge, message));
    }
    let (size, limit) = (given.extra_state.size(), limit::EXTRA_STATE_BYTES_MAX);
    if size > limit {
        let message =
            format!("the state beside the result is {size} bytes, at most {limit} are kept: keep a reference");
        return Err(CallError::new(ErrorKind::ResultTooLarge, message));
    }
    Ok(given)
}
