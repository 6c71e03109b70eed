//! What hooks have to say of an execution, before its end is stored.

use hooks::{Happened, Hooks, Question};
use proto::convert::log::Job;
use run::{AttemptNumber, AttemptOutcome, CallError, Chunk, Completion, ErrorKind, Progress, ToolName, limit};
use tokio::runtime::Handle;
use tokio::time::{Duration, Instant};

use crate::limits::{self, Said, label_size};

/// Bytes of output that are held back for a hook: what it is asked and answers must be small enough to be looked at whole.
const HELD_BYTES_MAX: usize = 512 * 1024;
/// Pieces of it.
const HELD_CHUNKS_MAX: u32 = 16 * 1024;
/// A call whose output is held back shows this often that it speaks, when it does: shorter than the time by which the owner
/// of its run takes its silence later than its worker.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// Those who are asked about the executions of a tool.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    pub(crate) hooks: Hooks,
    pub(crate) alias_of: Option<ToolName>,
    /// Nothing of what the tool says is shown before its end.
    pub(crate) holds_output: bool,
}

/// What became of an execution in the eyes of all that were asked.
pub(crate) struct Judged {
    pub(crate) outcome: AttemptOutcome,
    pub(crate) output: Vec<Chunk>,
}

impl Watched {
    /// Asks on the tools' runtime, which hooks of this process may keep busy. What an execution said that gives no result is
    /// shown to nobody; one that was cancelled, is overdue, or is given back has nothing to be asked about.
    pub(crate) async fn judge(
        self,
        (job, number): (&Job, AttemptNumber),
        outcome: AttemptOutcome,
        held: Vec<Chunk>,
        tools: &Handle,
    ) -> Judged {
        let was_completed = matches!(outcome, AttemptOutcome::Completed(_));
        let outcome = match outcome {
            AttemptOutcome::Completed(result) => {
                limits::watched(result).map_or_else(AttemptOutcome::Failed, AttemptOutcome::Completed)
            }
            AttemptOutcome::Failed(_)
            | AttemptOutcome::Cancelled
            | AttemptOutcome::Expired
            | AttemptOutcome::Returned => outcome,
        };
        let happened = match outcome {
            AttemptOutcome::Completed(Completion { result, extra_state }) => {
                Happened::Completed { result, extra_state, output: self.holds_output.then_some(held) }
            }
            AttemptOutcome::Failed(error) => Happened::Failed { error },
            AttemptOutcome::Cancelled | AttemptOutcome::Expired | AttemptOutcome::Returned => {
                return Judged { outcome, output: Vec::new() };
            }
        };
        let question = Question {
            run: job.run,
            call: Some(job.spec.id.clone()),
            tool: job.spec.tool.clone(),
            alias_of: self.alias_of,
            tenant: None,
            attempt: Some(number),
            metadata: job.spec.metadata.clone(),
            arguments: job.spec.arguments.clone(),
            happened,
        };
        let hooks = self.hooks;
        let ended = tools.spawn(async move { hooks.after(question).await }).await;
        let withheld = |why: &str| {
            let how = if was_completed { "the call ran, and its result" } else { "the call failed, and its error" };
            CallError::new(ErrorKind::HookFailed, format!("{how} was withheld: {why}"))
        };
        let Ok(ended) = ended else {
            return Judged {
                outcome: AttemptOutcome::Failed(withheld("the hooks could not be asked")),
                output: Vec::new(),
            };
        };
        let output = ended.output.unwrap_or_default();
        if output.iter().any(|chunk| size(chunk) > limit::CHUNK_BYTES_MAX || label_size(chunk) > limit::LABEL_BYTES_MAX)
        {
            let (most, label) = (limit::CHUNK_BYTES_MAX, limit::LABEL_BYTES_MAX);
            let why = format!(
                "a hook gave a piece of output of more than {most} bytes, or one whose channel, media type or message has more than {label}"
            );
            return Judged { outcome: AttemptOutcome::Failed(withheld(&why)), output: Vec::new() };
        }
        let outcome = ended.outcome.and_then(limits::watched);
        Judged { outcome: outcome.map_or_else(AttemptOutcome::Failed, AttemptOutcome::Completed), output }
    }
}

fn size(chunk: &Chunk) -> usize {
    match chunk {
        Chunk::Content { content, .. } => content.size(),
        Chunk::Progress(_) => 0,
    }
}

/// What a call said that is held back.
#[derive(Debug)]
pub(crate) struct Held {
    chunks: Vec<Chunk>,
    said: Said,
    bytes: usize,
    signed: Instant,
}

impl Held {
    pub(crate) fn new() -> Self {
        Self { chunks: Vec::new(), said: Said::default(), bytes: 0, signed: Instant::now() }
    }

    /// Keeps a chunk. `None` when the call has said more than can be kept, or else the sign of life that is due.
    pub(crate) fn keep(&mut self, chunk: Chunk) -> Option<Option<Chunk>> {
        self.bytes += self.said.count(&chunk)?;
        if self.bytes > HELD_BYTES_MAX || self.said.chunks() > HELD_CHUNKS_MAX {
            return None;
        }
        self.chunks.push(chunk);
        let is_due = self.signed.elapsed() >= SIGN_OF_LIFE;
        if is_due {
            self.signed = Instant::now();
        }
        let sign = Progress { done: f64::from(self.said.chunks()), total: None, message: String::new() };
        Some(is_due.then_some(Chunk::Progress(sign)))
    }

    pub(crate) fn into_chunks(self) -> Vec<Chunk> {
        self.chunks
    }
}

pub(crate) fn too_much_held() -> CallError {
    let message = format!(
        "the call said more than {HELD_CHUNKS_MAX} pieces or {HELD_BYTES_MAX} bytes, and no more is held back for a hook"
    );
    CallError::new(ErrorKind::OutputTooLarge, message)
}

#[cfg(test)]
mod tests {
    use run::Content;

    use super::*;

    fn piece(bytes: usize) -> Chunk {
        Chunk::Content { channel: String::new(), content: Content::Text("x".repeat(bytes)) }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_back_shows_from_time_to_time_that_there_is_more_of_it() {
        let mut held = Held::new();
        let mut signs = Vec::new();
        for _ in 0..12 {
            tokio::time::advance(Duration::from_secs(1)).await;
            signs.extend(held.keep(piece(1)).expect("there is room"));
        }
        let counts = signs.iter().map(|sign| match sign {
            Chunk::Progress(progress) => (progress.done, progress.message.as_str()),
            Chunk::Content { .. } => panic!("what is held back was shown: {sign:?}"),
        });
        assert_eq!(counts.collect::<Vec<_>>(), [(5.0, ""), (10.0, "")]);
        assert_eq!(held.into_chunks().len(), 12);
    }

    #[tokio::test]
    async fn no_more_is_held_back_than_can_be_looked_at() {
        let mut held = Held::new();
        assert!(held.keep(piece(HELD_BYTES_MAX)).is_some());
        assert!(held.keep(piece(1)).is_none());
        let mut held = Held::new();
        assert!((0..HELD_CHUNKS_MAX).all(|_| held.keep(piece(1)).is_some()));
        assert!(held.keep(piece(1)).is_none());
    }
}
