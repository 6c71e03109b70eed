//! Reading and storing an object chunk by chunk, with few chunks in memory, whatever its size.

pub(crate) mod uploads;

use std::pin::pin;

use ::history::{History, HistoryError};
use ::objects::{Objects, ReadError, StoreError};
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, Stream, StreamExt as _, stream};
use proto::object::{self, CHUNK_BYTES, chunks};
use ring::digest;
use run::{Object, ObjectId, RunId, limit};

use crate::admission::error::RequestError;

/// Chunks that are read ahead of the reader.
const AHEAD: usize = 4;

/// Bytes of an object, from `from` to before `until`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: u64,
    pub(crate) until: u64,
}

impl Span {
    /// `None` if it begins after the object's end.
    pub(crate) fn of(size: u64, from: u64, length: Option<u64>) -> Option<Self> {
        let until = length.map_or(size, |length| from.saturating_add(length).min(size));
        (from < size || (from, size) == (0, 0)).then_some(Self { from, until })
    }

    pub(crate) fn len(self) -> u64 {
        self.until - self.from
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BrokenObject {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    History(#[from] HistoryError),
    #[error("object {0} has expired, or parts of it have")]
    Missing(ObjectId),
    #[error("object {0} is corrupt: its SHA-256 differs from the stored one")]
    Differs(ObjectId),
}

/// The bytes of each piece of an object in the history except the last: a whole number of chunks.
const PAST_PIECE_BYTES: u64 = 16 * CHUNK_BYTES;

/// Where results of runs are: in the object store, and later in the history.
#[derive(Debug, Clone)]
pub(crate) struct Results {
    pub(crate) objects: Objects,
    pub(crate) history: Option<History>,
}

impl Results {
    /// A chunk of an object; `None` if there is none any more.
    async fn chunk(&self, id: &ObjectId, index: u64) -> Result<Option<Bytes>, BrokenObject> {
        let (ObjectId::Result { run, .. }, Some(history)) = (id, &self.history) else {
            return Ok(self.objects.chunk(id, index).await?);
        };
        let found = self.objects.chunk(id, index).await;
        if let Ok(Some(chunk)) = found {
            return Ok(Some(chunk));
        }
        let (piece, begins) = (index * CHUNK_BYTES / PAST_PIECE_BYTES, index * CHUNK_BYTES % PAST_PIECE_BYTES);
        match history.object(*run, &object::chunk(id, piece), begins..begins + CHUNK_BYTES).await? {
            Some(chunk) => Ok(Some(chunk)),
            None => Ok(found?),
        }
    }

    /// Copies an object to the history. Returns whether the object store had all of it.
    pub(crate) async fn copy(&self, run: RunId, copied: &Object) -> Result<bool, BrokenObject> {
        let Some(history) = &self.history else { return Ok(true) };
        let (mut waiting, count) = (BytesMut::new(), chunks(copied.size));
        for index in 0..count {
            let Some(chunk) = self.objects.chunk(&copied.id, index).await? else { return Ok(false) };
            waiting.extend_from_slice(&chunk);
            if waiting.len() as u64 >= PAST_PIECE_BYTES || index + 1 == count {
                let name = object::chunk(&copied.id, index * CHUNK_BYTES / PAST_PIECE_BYTES);
                history.put_object(run, &name, waiting.split().freeze()).await?;
            }
        }
        Ok(true)
    }
}

/// The bytes of a span. If the whole object is read and its hash differs, the stream ends with an error.
pub(crate) fn read(
    objects: Results,
    object: Object,
    span: Span,
) -> impl Stream<Item = Result<Bytes, BrokenObject>> + Send + 'static {
    let Object { id, size, sha256, .. } = object;
    let is_whole = span.from == 0 && span.until == size;
    let indices = if span.len() == 0 { 0..0 } else { span.from / CHUNK_BYTES..chunks(span.until) };
    let source = id.clone();
    let pieces = stream::iter(indices).map(move |index| {
        let (objects, id) = (objects.clone(), source.clone());
        async move {
            let chunk = objects.chunk(&id, index).await?;
            let begins = index * CHUNK_BYTES;
            let expected = CHUNK_BYTES.min(size - begins);
            let chunk = chunk.filter(|chunk| chunk.len() as u64 == expected).ok_or(BrokenObject::Missing(id))?;
            let at =
                |place: u64| usize::try_from(place.clamp(begins, begins + expected) - begins).unwrap_or(usize::MAX);
            Ok(chunk.slice(at(span.from)..at(span.until)))
        }
    });
    let mut digest = is_whole.then(|| digest::Context::new(&digest::SHA256));
    let mut left = span.len();
    pieces.buffered(AHEAD).map(move |piece: Result<Bytes, BrokenObject>| {
        let piece = piece?;
        left -= piece.len() as u64;
        if let Some(digest) = &mut digest {
            digest.update(&piece);
            // The last piece is returned only if the hash matches.
            if left == 0 && digest.clone().finish().as_ref() != sha256 {
                return Err(BrokenObject::Differs(id.clone()));
            }
        }
        Ok(piece)
    })
}

/// Stores the bytes, and returns their number and SHA-256. An incomplete object is removed, unless this future is
/// dropped too: then it ages out.
pub(crate) async fn take<E: From<RequestError>>(
    objects: &Objects,
    id: &ObjectId,
    pieces: impl Stream<Item = Result<Bytes, E>>,
) -> Result<(u64, [u8; 32]), E> {
    let mut storing = FuturesUnordered::new();
    let taken = take_all(objects, id, pieces, &mut storing).await;
    if taken.is_err() {
        // Chunks in progress would otherwise be stored after the removal.
        while storing.next().await.is_some() {}
        if let Err(error) = objects.remove(id).await {
            tracing::warn!(%error, "removing an incomplete upload failed; it expires with its age");
        }
    }
    taken
}

async fn take_all<'a, E: From<RequestError>>(
    objects: &'a Objects,
    id: &'a ObjectId,
    pieces: impl Stream<Item = Result<Bytes, E>>,
    storing: &mut FuturesUnordered<BoxFuture<'a, Result<(), StoreError>>>,
) -> Result<(u64, [u8; 32]), E> {
    let mut pieces = pin!(pieces);
    let (mut waiting, mut size, mut index) = (BytesMut::new(), 0, 0);
    let mut digest = digest::Context::new(&digest::SHA256);
    let (piece_bytes, ahead) = (objects.piece_bytes(), objects.ahead());
    loop {
        // Chunks in progress continue while no bytes arrive.
        let piece = tokio::select! {
            Some(stored) = storing.next() => {
                stored.map_err(RequestError::from)?;
                continue;
            }
            piece = pieces.next() => piece.transpose()?,
        };
        let is_last = piece.is_none();
        if let Some(piece) = piece {
            size += piece.len() as u64;
            if size > limit::OBJECT_BYTES_MAX {
                return Err(RequestError::ObjectTooLarge.into());
            }
            digest.update(&piece);
            waiting.extend_from_slice(&piece);
        }
        while waiting.len() >= piece_bytes || (is_last && !waiting.is_empty()) {
            let piece = waiting.split_to(piece_bytes.min(waiting.len())).freeze();
            storing.push(objects.put(id, index, piece).boxed());
            index += 1;
            if storing.len() >= ahead {
                storing.next().await.transpose().map_err(RequestError::from)?;
            }
        }
        if is_last {
            break;
        }
    }
    while storing.next().await.transpose().map_err(RequestError::from)?.is_some() {}
    let mut sha256 = [0; 32];
    sha256.copy_from_slice(digest.finish().as_ref());
    Ok((size, sha256))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_lies_within_its_object() {
        let span = |from, until| Some(Span { from, until });
        assert_eq!(Span::of(10, 0, None), span(0, 10));
        assert_eq!(Span::of(10, 3, Some(4)), span(3, 7));
        assert_eq!(Span::of(10, 3, Some(u64::MAX)), span(3, 10));
        assert_eq!(Span::of(10, 9, None), span(9, 10));
        assert_eq!(Span::of(10, 10, None), None);
        assert_eq!(Span::of(0, 0, None), span(0, 0));
    }
}
