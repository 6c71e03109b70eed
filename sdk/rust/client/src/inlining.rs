//! Stored images and documents among the results of calls, which the messages for a model have inline.

use formats::heard::{ALL_INLINED_BYTES_MAX, Heard, INLINED_BYTES_MAX, inlined};
use proto::v1;

use crate::client::Client;
use crate::error::Error;

/// Reads stored parts of results.
#[derive(Debug)]
pub(crate) struct Inlining {
    /// How many bytes the messages may still have inline.
    room_bytes: u64,
    /// Those that are still to be read.
    waiting: Vec<v1::Object>,
}

impl Default for Inlining {
    fn default() -> Self {
        Self { room_bytes: ALL_INLINED_BYTES_MAX, waiting: Vec::new() }
    }
}

impl Inlining {
    /// Notes what events have, to be read later.
    pub(crate) fn note(&mut self, events: &[v1::RunEvent]) {
        self.waiting.extend(events.iter().flat_map(inlined).cloned());
    }

    /// Reads what was noted. Cancel safe: what was not read is read by the next call.
    pub(crate) async fn read(&mut self, client: &Client, heard: &mut Heard) -> Result<(), Error> {
        while let Some(object) = self.waiting.last().cloned() {
            self.read_one(client, heard, object).await?;
            self.waiting.pop();
        }
        Ok(())
    }

    /// An object that is gone, or that the caller may not read, stays a reference.
    async fn read_one(&mut self, client: &Client, heard: &mut Heard, object: v1::Object) -> Result<(), Error> {
        let room = self.room_bytes.checked_sub(object.size_bytes);
        let Some(left) = room.filter(|_| object.size_bytes <= INLINED_BYTES_MAX) else { return Ok(()) };
        let mut bytes = Vec::new();
        let mut reader = match client.read_object(&object.object_id).await {
            Ok(reader) => reader,
            Err(Error::Refused(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        while let Some(piece) = reader.next().await? {
            bytes.extend_from_slice(&piece);
        }
        self.room_bytes = left;
        heard.keep(object.object_id, bytes.into());
        Ok(())
    }
}
