//! Stored images and documents of results, for answers that have them inline.

use bytes::Bytes;
use futures::TryStreamExt as _;
use proto::v1;
use proto::v1::run_event::Event;

use crate::api::objects::{Reading, Wanted};
use crate::api::{Api, ApiError};

/// Bytes of one that is inlined; a larger one is given by its URL.
pub(crate) const ONE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Bytes of all that are inlined for a run, because each reader holds them in memory.
pub(crate) const ALL_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// How many bytes may still be inlined for a run. It depends on the order of the results only, so every reader inlines
/// the same ones.
#[derive(Debug)]
pub(crate) struct Room(u64);

impl Room {
    /// Nothing is inlined.
    pub(crate) const fn none() -> Self {
        Self(0)
    }
}

impl Default for Room {
    fn default() -> Self {
        Self(ALL_BYTES_MAX)
    }
}

/// Reads the stored images and documents among the results of these events, with the ids of their objects. One that is
/// gone, or that the caller may not read, is left out.
pub(crate) async fn read(
    api: &Api,
    events: &[v1::RunEvent],
    room: &mut Room,
) -> Result<Vec<(String, Bytes)>, ApiError> {
    let mut stored = Vec::new();
    for object in events.iter().flat_map(objects) {
        if object.size_bytes > ONE_BYTES_MAX.min(room.0) {
            continue;
        }
        room.0 -= object.size_bytes;
        let reading = match api.read_object(&object.object_id, Wanted::From(0, None)).await {
            Ok(Reading { bytes, .. }) => bytes.try_collect::<Vec<Bytes>>().await,
            Err(error) => Err(error),
        };
        match reading {
            Ok(pieces) => stored.push((object.object_id.clone(), pieces.concat().into())),
            Err(error) if error.reason.http().is_client_error() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(stored)
}

fn objects(event: &v1::RunEvent) -> impl Iterator<Item = &v1::Object> {
    let outcome = match &event.event {
        Some(Event::CallEnded(ended)) => ended.outcome.as_ref(),
        _ => None,
    };
    let results = outcome.into_iter().flat_map(|outcome| &outcome.result);
    results.filter_map(|content| match content.body.as_ref()? {
        v1::content::Body::Object(object) if is_inlined(&object.media_type) => Some(object),
        _ => None,
    })
}

/// Only what the APIs of vendors take.
fn is_inlined(media_type: &str) -> bool {
    matches!(media_type, "image/png" | "image/jpeg" | "image/webp" | "image/gif" | "application/pdf")
}
