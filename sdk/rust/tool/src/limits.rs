//! Limits of a call's output, and the error beyond them. Workers and the test kit apply the same limits.

use run::{CallError, Chunk, Completion, Content, ErrorKind, limit};

/// Counts the output of one attempt.
#[derive(Debug, Default)]
pub struct Said {
    chunks: u32,
    bytes: usize,
}

impl Said {
    /// An attempt that goes on after `chunks` of those before it, which count.
    pub fn after(chunks: u32) -> Self {
        Self { chunks, bytes: 0 }
    }

    /// Chunks so far, those of attempts before it included.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// The size of a chunk if it is within the limits; `None` if it is not.
    pub fn count(&mut self, chunk: &Chunk) -> Option<usize> {
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

/// Bytes of the longest name in a chunk: its channel, its media type, or the message of a progress.
pub fn label_size(chunk: &Chunk) -> usize {
    match chunk {
        Chunk::Content { channel, content } => channel.len().max(content.label_size()),
        Chunk::Progress(progress) => progress.message.len(),
    }
}

pub fn too_much_output() -> CallError {
    let (pieces, mib) = (limit::CHUNKS_PER_ATTEMPT_MAX, limit::OUTPUT_BYTES_PER_ATTEMPT_MAX >> 20);
    let message = format!("the call said more than {pieces} pieces or {mib} MiB of output");
    CallError::new(ErrorKind::OutputTooLarge, message)
}

/// The outcome of a call, if it is within the limits of the log and of objects.
pub fn completion(given: Completion) -> Result<Completion, CallError> {
    let count = given.result.len();
    let largest = given.result.iter().map(Content::size).max().unwrap_or_default();
    if count > limit::RESULT_PARTS_MAX || u64::try_from(largest).is_ok_and(|bytes| bytes > limit::OBJECT_BYTES_MAX) {
        let message = format!(
            "the result has {count} parts of up to {largest} bytes, at most {} of up to {} are kept: stream it",
            limit::RESULT_PARTS_MAX,
            limit::OBJECT_BYTES_MAX
        );
        return Err(CallError::new(ErrorKind::ResultTooLarge, message));
    }
    let cited =
        given.result.iter().map(|part| if let Content::Cited(cited) = part { cited.citations.len() } else { 0 });
    let (cited, max) = (cited.max().unwrap_or_default(), limit::CITATIONS_MAX);
    if cited > max {
        let message = format!("a text of the result has {cited} citations, at most {max} are kept");
        return Err(CallError::new(ErrorKind::ResultTooLarge, message));
    }
    let (label, max) = (given.result.iter().map(Content::label_size).max().unwrap_or_default(), limit::LABEL_BYTES_MAX);
    if label > max {
        let message =
            format!("a media type, or the title or source of a citation, is {label} bytes, at most {max} are kept");
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
