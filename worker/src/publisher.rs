//! Sends one attempt's events: chunks in numbered batches with a bounded number of them unacknowledged, its start with
//! the first of them or on its own, its end last and only when everything before it is stored.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use run::{AttemptId, AttemptOutcome, Chunk, ChunkIndex, Event, PoolId, StopStage};
use tokio::time::Instant;
use toolyard_tool::runtime::Said;

use crate::hooked::Held;
use crate::metrics::OutputCount;

/// Entries that may be unacknowledged; then the tool waits.
const WINDOW: usize = 64;
/// Chunks that come while others are on their way wait this long for company.
const LINGER: Duration = Duration::from_millis(5);
/// As many bytes go without waiting.
const BATCH_BYTES: usize = 16 * 1024;
/// Chunks of one entry.
const BATCH_CHUNKS_MAX: usize = 512;

/// The attempt's events did not reach the log in time. It is lost; its job comes again when its lease runs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the log could not be reached")]
pub(crate) struct Lost;

type Append = Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>>;

/// `append` stores an entry, trying again for a while.
pub(crate) struct Publisher<F> {
    append: F,
    attempt: AttemptId,
    pool: PoolId,
    /// Waits to go out with the first entry.
    start: Option<Event>,
    /// All chunks that were accepted, including those of earlier attempts that this one continues.
    taken: Said,
    /// Output of the attempt is held back.
    held: Option<Held>,
    batch: Vec<Chunk>,
    /// Stages of stopping that wait to go out.
    stages: Vec<StopStage>,
    batch_bytes: usize,
    count: OutputCount,
    /// When the batch goes at the latest.
    due: Option<Instant>,
    in_flight: FuturesUnordered<Append>,
}

impl<F: Fn(Vec<Event>) -> Append> Publisher<F> {
    /// `from` is the number of the attempt's first chunk.
    pub(crate) fn new(
        attempt: AttemptId,
        pool: PoolId,
        from: ChunkIndex,
        start: Option<Event>,
        count: OutputCount,
        append: F,
    ) -> Self {
        let in_flight = FuturesUnordered::new();
        Self {
            append,
            attempt,
            pool,
            start,
            taken: Said::after(from.0),
            held: None,
            batch: Vec::new(),
            stages: Vec::new(),
            batch_bytes: 0,
            count,
            due: None,
            in_flight,
        }
    }

    /// From now on chunks are held back until they are let go.
    pub(crate) fn hold(&mut self) {
        self.held = Some(Held::new());
    }

    pub(crate) fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// Releases the output that was held back; later output is sent directly.
    pub(crate) fn let_go(&mut self) -> Vec<Chunk> {
        self.held.take().map_or_else(Vec::new, Held::into_chunks)
    }

    /// Whether it takes more chunks now.
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight.len() < WINDOW
    }

    /// Accepts a chunk. `false` if the attempt has exceeded its limit of output.
    pub(crate) fn take(&mut self, chunk: Chunk) -> bool {
        let chunk = match &mut self.held {
            None => chunk,
            Some(held) => match held.keep(chunk) {
                None => return false,
                Some(None) => return true,
                Some(Some(sign_of_life)) => sign_of_life,
            },
        };
        let Some(bytes) = self.taken.count(&chunk) else { return false };
        self.count.said(bytes);
        self.batch_bytes += bytes;
        self.batch.push(chunk);
        true
    }

    /// Sends the batch if it should not wait: nothing is on its way, or it is large. To be called when no further chunk
    /// is at hand.
    pub(crate) fn send_if_ready(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if self.in_flight.is_empty() || self.is_large() {
            self.send();
        } else if self.due.is_none() {
            self.due = Some(Instant::now() + LINGER);
        }
    }

    /// Reports how far a request to stop has come. Its delivery is reported at once. The tool's acknowledgement waits a
    /// moment for the attempt's end, which usually follows.
    pub(crate) fn stopping(&mut self, stage: StopStage) {
        self.stages.push(stage);
        match stage {
            StopStage::Delivered => self.send(),
            StopStage::Acknowledged => self.due = self.due.or(Some(Instant::now() + LINGER)),
        }
    }

    pub(crate) fn is_large(&self) -> bool {
        self.batch_bytes >= BATCH_BYTES || self.batch.len() >= BATCH_CHUNKS_MAX
    }

    /// Sends pending events: the start, chunks, or both.
    pub(crate) fn send(&mut self) {
        let events = self.waiting_events();
        if !events.is_empty() {
            self.in_flight.push((self.append)(events));
        }
    }

    /// Waits for something to do: an acknowledgement, or the time at which the batch goes.
    pub(crate) async fn turn(&mut self) -> Result<(), Lost> {
        let due = self.due;
        let linger = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(acknowledged) = self.in_flight.next() => {
                acknowledged?;
                if self.in_flight.is_empty() && !self.batch.is_empty() {
                    self.send();
                }
            }
            () = linger => self.send(),
        }
        Ok(())
    }

    /// Sends the end, with whatever still waits, after everything before it was stored. Nothing is to be sent after it.
    pub(crate) async fn end(&mut self, outcome: AttemptOutcome) -> Result<(), Lost> {
        while let Some(acknowledged) = self.in_flight.next().await {
            acknowledged?;
        }
        let mut events = self.waiting_events();
        let (attempt, pool, chunks) = (self.attempt, self.pool.clone(), self.taken.chunks());
        events.push(Event::AttemptEnded { attempt, pool, chunks, outcome });
        (self.append)(events).await
    }

    fn waiting_events(&mut self) -> Vec<Event> {
        let mut events: Vec<Event> = self.start.take().into_iter().collect();
        let chunks = std::mem::take(&mut self.batch);
        if !chunks.is_empty() {
            let count = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
            let first = ChunkIndex(self.taken.chunks() - count);
            events.push(Event::Output { attempt: self.attempt, pool: self.pool.clone(), first, chunks });
        }
        for stage in std::mem::take(&mut self.stages) {
            events.push(Event::AttemptStopping { attempt: self.attempt, pool: self.pool.clone(), stage });
        }
        (self.batch_bytes, self.due) = (0, None);
        events
    }
}

#[cfg(test)]
mod tests;
