//! Reads runs that have ended, and prepares them as the history stores them.

use ::history::{EndedRun, PART_BYTES};
use owner::Known;
use proto::convert::history::HistoryMessage;
use run::{Content, ObjectId, Outcome, Run, RunId, Timestamp};

use super::{HistoryWriter, WriteError};
use crate::metrics::COUNTS;
use crate::nats::journal::{OfRun, PAGE_BYTES, ReadError, RunPages, Whole};
use crate::objects::BrokenObject;

/// Messages of one run that are in memory together. A larger run is read a second time, part by part.
const RUN_BYTES: usize = 4 * 1024 * 1024;

impl HistoryWriter {
    /// A run that is not open, as it is stored. `None` if it ended after the part, whose history has it with its last
    /// entry, or is not to be stored.
    pub(super) async fn prepare_taken(
        &self,
        id: RunId,
        opening: Option<u64>,
        taken: OfRun,
        through: u64,
    ) -> Result<Option<EndedRun>, WriteError> {
        let (whole, _room) = match taken {
            OfRun::GoesOn => return Ok(None),
            OfRun::Ended(whole) if self.is_there(id, opening).await? => (Some(whole), None),
            OfRun::Ended(_) | OfRun::Incomplete => {
                let room = self.room.runs.acquire().await;
                (self.read(id, through).await?, room.ok())
            }
        };
        match whole {
            Some(whole) => self.prepare(whole, through).await,
            None => Ok(None),
        }
    }

    /// Whether the log still has the opening of a run that was read with an earlier part.
    async fn is_there(&self, id: RunId, opening: Option<u64>) -> Result<bool, ReadError> {
        match opening {
            Some(opening) => self.journals.of(id).holds(opening).await,
            None => Ok(true),
        }
    }

    /// Reads a run that began before the part, from servers that have the part; without its messages if they are many.
    /// `None` if it was erased or has left the log, or if it is left out.
    async fn read(&self, id: RunId, through: u64) -> Result<Option<Whole>, WriteError> {
        let (mut known, mut messages) = (Known::new(id), Vec::new());
        let (mut bytes, mut last_at) = (0, Timestamp(0));
        let mut pages = self.pages(id, through);
        loop {
            let mut page = pages.next_known().await?;
            let (is_last, is_cut) = (page.last, page.is_cut);
            last_at = page.messages.last().map_or(last_at, |message| message.at);
            bytes += page.messages.iter().map(|message| message.payload.len()).sum::<usize>();
            messages.append(&mut page.messages);
            if bytes > RUN_BYTES {
                messages.clear();
            }
            page.apply_to(&mut known);
            if is_cut || (is_last && known.run.opened_at().is_none()) {
                return Ok(None);
            }
            if is_last {
                break;
            }
        }
        if known.run.status().is_final() {
            return Ok(Some(Whole { known, messages, last_at }));
        }
        if !self.gives_up(id.shard()) {
            return Err(WriteError::NotEnded(id));
        }
        COUNTS.history_lost_runs.add(1);
        tracing::error!(error = %WriteError::NotEnded(id), "the history will not have a run");
        Ok(None)
    }

    fn pages(&self, id: RunId, through: u64) -> RunPages {
        RunPages::new(self.journals.of(id), id, PAGE_BYTES).with_messages().behind(through)
    }

    /// Stores the parts of a large run; a small one is one value. `None` if it is to be erased anyway.
    async fn prepare(&self, whole: Whole, through: u64) -> Result<Option<EndedRun>, WriteError> {
        let Whole { known, mut messages, last_at: ended_at } = whole;
        let run = &known.run;
        if run.erase_at().is_some() {
            return Ok(None);
        }
        let (id, mut parts) = (run.id(), 0);
        self.copy_objects(run).await?;
        if messages.is_empty() {
            parts = self.put_again(id, (through, known.last), ended_at).await?;
        } else if messages.iter().map(|message| message.payload.len()).sum::<usize>() > PART_BYTES {
            for part in split(std::mem::take(&mut messages)) {
                parts += 1;
                self.history.put_part(id, parts, part, ended_at).await?;
            }
        }
        let (tenant, last) = (run.tenant().cloned(), known.last);
        Ok(Some(EndedRun { id, tenant, ended_at, last, messages, parts }))
    }

    /// Reads a run again up to its last entry, and stores it part by part. Returns how many there are.
    async fn put_again(&self, id: RunId, (through, last): (u64, u64), ended_at: Timestamp) -> Result<u32, WriteError> {
        let (mut pages, mut waiting, mut parts) = (self.pages(id, through), Vec::new(), 0);
        loop {
            let page = pages.next_known().await?;
            if page.is_cut {
                // An earlier owner may have stored it whole.
                if self.history.run(id, ::nats::now()).await?.is_none() {
                    self.history.remove_parts(id, parts).await?;
                }
                return Err(WriteError::Left(id));
            }
            waiting.extend(page.messages.into_iter().filter(|message| message.sequence <= last));
            let mut split = split(std::mem::take(&mut waiting));
            if !page.last {
                // The next page may go on with it.
                waiting = split.pop().unwrap_or_default();
            }
            for part in split {
                parts += 1;
                self.history.put_part(id, parts, part, ended_at).await?;
            }
            if page.last {
                return if parts > 0 { Ok(parts) } else { Err(WriteError::Left(id)) };
            }
        }
    }

    /// Copies the objects to which results of the run refer. If one cannot be read, the run is written later, or
    /// without it.
    async fn copy_objects(&self, run: &Run) -> Result<(), WriteError> {
        for content in run.calls().iter().filter_map(|call| call.outcome()).flat_map(contents) {
            let Content::Object(object) = content else { continue };
            if !matches!(object.id, ObjectId::Result { .. }) {
                continue;
            }
            let why = match self.results.copy(run.id(), object).await {
                Ok(true) => continue,
                // It has expired, or was never complete.
                Ok(false) => "it is gone".to_owned(),
                Err(BrokenObject::Read(error)) if self.gives_up(run.id().shard()) => error.to_string(),
                Err(error) => return Err(error.into()),
            };
            COUNTS.history_lost_objects.add(1);
            let (run, object) = (run.id(), &object.id);
            tracing::warn!(run.id = %run, object.id = %object, why, "the history has no copy of an object");
        }
        Ok(())
    }
}

fn contents(outcome: &Outcome) -> &[Content] {
    match outcome {
        Outcome::Completed(contents) => contents,
        Outcome::Failed(_) | Outcome::Cancelled { .. } | Outcome::Expired(_) => &[],
    }
}

/// The messages of a large run, in parts.
fn split(messages: Vec<HistoryMessage>) -> Vec<Vec<HistoryMessage>> {
    let (mut parts, mut bytes) = (Vec::new(), PART_BYTES);
    for message in messages {
        bytes += message.payload.len();
        if bytes > PART_BYTES {
            parts.push(Vec::new());
            bytes = message.payload.len();
        }
        if let Some(part) = parts.last_mut() {
            Vec::push(part, message);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_large_run_is_split_into_parts_in_order_and_none_is_empty() {
        let of = |sequence: u64, size: usize| {
            let payload = Bytes::from(vec![0; size]);
            HistoryMessage { place: "0.out.main".to_owned(), sequence, at: Timestamp(0), payload }
        };
        let third = PART_BYTES / 3;
        let messages = [third, third, third, third, PART_BYTES, PART_BYTES + 1, 1];
        let messages = (1..).zip(messages).map(|(sequence, size)| of(sequence, size)).collect();
        let parts = split(messages);
        let sequences = |part: &Vec<HistoryMessage>| part.iter().map(|message| message.sequence).collect::<Vec<_>>();
        let parts: Vec<Vec<u64>> = parts.iter().map(sequences).collect();
        assert_eq!(parts, [vec![1, 2, 3], vec![4], vec![5], vec![6], vec![7]]);
    }
}
