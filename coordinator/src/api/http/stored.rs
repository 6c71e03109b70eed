//! Stored images and documents of results, for answers that have them inline.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use formats::heard::{ALL_INLINED_BYTES_MAX, INLINED_BYTES_MAX, inlined};
use futures::TryStreamExt as _;
use proto::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::unread;
use crate::admission::error::RequestError;
use crate::api::objects::{Reading, Wanted};
use crate::api::{Api, ApiError};

/// Bytes of all that this process holds for its readers at a time.
const PROCESS_BYTES_MAX: usize = 256 * 1024 * 1024;
/// How long a reader waits for bytes that others hold.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The bytes that this process may hold for its readers: one permit for each byte that is held.
#[derive(Debug, Clone)]
pub(crate) struct Inlined(Arc<Semaphore>);

impl Default for Inlined {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(PROCESS_BYTES_MAX)))
    }
}

impl Inlined {
    /// Takes bytes. A reader keeps what it has while it waits for more, so readers could wait for each other: the wait
    /// is short, and the reader that gives up frees its bytes for the others.
    pub(crate) async fn take(&self, bytes: u64) -> Result<OwnedSemaphorePermit, RequestError> {
        let bytes = u32::try_from(bytes).map_err(|_| RequestError::InlinedBusy)?;
        let taken = tokio::time::timeout(WAIT_MAX, Arc::clone(&self.0).acquire_many_owned(bytes)).await;
        taken.ok().and_then(Result::ok).ok_or(RequestError::InlinedBusy)
    }
}

/// How many bytes may still be inlined for a run, and those that are held for it. What is inlined depends on the order
/// of the results only, so every reader inlines the same.
#[derive(Debug)]
pub(crate) struct Room {
    left: u64,
    held: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Nothing is inlined.
    pub(crate) const fn none() -> Self {
        Self { left: 0, held: None }
    }

    /// The same answer, which has the content inline: it holds the bytes until it is read.
    pub(crate) fn held_by(self, response: Response) -> Response {
        match self.held {
            Some(held) => unread::holding(response, held),
            None => response,
        }
    }

    fn hold(&mut self, taken: OwnedSemaphorePermit) {
        match &mut self.held {
            Some(held) => held.merge(taken),
            held => *held = Some(taken),
        }
    }
}

impl Default for Room {
    fn default() -> Self {
        Self { left: ALL_INLINED_BYTES_MAX, held: None }
    }
}

/// Reads the stored images and documents among the results of these events, with the ids of their objects. One that is
/// gone, or that the caller may not read, is left out. `room` must be kept as long as the bytes.
pub(crate) async fn read(
    api: &Api,
    events: &[v1::RunEvent],
    room: &mut Room,
) -> Result<Vec<(String, Bytes)>, ApiError> {
    let mut stored = Vec::new();
    for object in events.iter().flat_map(inlined) {
        if object.size_bytes > INLINED_BYTES_MAX.min(room.left) {
            continue;
        }
        room.left -= object.size_bytes;
        let taken = api.inlined.take(object.size_bytes).await?;
        let whole = Wanted::From(0, Some(object.size_bytes).filter(|bytes| *bytes > 0));
        let reading = match api.read_object(&object.object_id, whole).await {
            Ok(Reading { bytes, .. }) => bytes.try_collect::<Vec<Bytes>>().await,
            Err(error) => Err(error),
        };
        match reading {
            Ok(pieces) => {
                room.hold(taken);
                stored.push((object.object_id.clone(), pieces.concat().into()));
            }
            Err(error) if error.reason.http().is_client_error() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn few(bytes: usize) -> Inlined {
        Inlined(Arc::new(Semaphore::new(bytes)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_waits_for_bytes_until_another_one_has_ended() {
        let (all, mut first, mut second) = (few(10), Room::default(), Room::default());
        first.hold(all.take(4).await.expect("there is room"));
        first.hold(all.take(4).await.expect("there is room"));
        second.hold(all.take(2).await.expect("exactly as many are left"));
        let ends = async {
            tokio::time::sleep(WAIT_MAX / 2).await;
            drop(first);
        };
        let (taken, ()) = tokio::join!(all.take(8), ends);
        second.hold(taken.expect("the first reader's bytes are free"));
        assert_eq!(all.0.available_permits(), 0);
        drop(second);
        assert_eq!(all.0.available_permits(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn readers_that_wait_for_each_other_do_not_wait_for_ever() {
        let (all, mut first, mut second) = (few(10), Room::default(), Room::default());
        first.hold(all.take(5).await.expect("there is room"));
        second.hold(all.take(5).await.expect("there is room"));
        let one = async {
            let error = all.take(5).await.map(drop).expect_err("the other one keeps its bytes");
            drop(first);
            error
        };
        let other = async {
            tokio::time::sleep(WAIT_MAX / 2).await;
            all.take(5).await.map(drop)
        };
        let (error, other) = tokio::join!(one, other);
        assert!(error.reason().is_temporary(), "{error}");
        other.expect("the first one gave up and freed its bytes");
    }
}
