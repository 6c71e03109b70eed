//! Reading and storing objects, over gRPC and HTTP alike.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use proto::convert::{api, object_out};
use proto::{Reason, v1};
use run::{Object, ObjectId, TenantId, Timestamp, limit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::read::{malformed, timeout};
use super::{Api, ApiError};
use crate::admission::error::RequestError;
use crate::objects::{BrokenObject, Span, read, take};
use crate::runs::Runs;
use crate::runs::objects::Room;

/// An object that the caller may read, and the requested part of it.
pub(crate) struct Reading {
    pub(crate) object: Object,
    pub(crate) span: Span,
    pub(crate) bytes: BoxStream<'static, Result<Bytes, ApiError>>,
}

impl Api {
    /// Begins to read an object. The first bytes are there when this returns, so a missing object is an error of the
    /// request, and not of the stream.
    pub(crate) async fn read_object(&self, id: &str, wanted: Wanted) -> Result<Reading, ApiError> {
        let id: ObjectId = id.parse().map_err(malformed("object_id"))?;
        self.read(self.runs.object(&id).await?, wanted).await
    }

    /// As [`Self::read_object`], for the bearer of a link.
    pub(crate) async fn read_linked(&self, token: &str, wanted: Wanted) -> Result<Reading, ApiError> {
        self.read(self.runs.linked(token).await?, wanted).await
    }

    pub(crate) async fn create_object_link(
        &self,
        request: v1::CreateObjectLinkRequest,
    ) -> Result<v1::CreateObjectLinkResponse, ApiError> {
        let id: ObjectId = request.object_id.parse().map_err(malformed("object_id"))?;
        let (token, until) = self.runs.link(&id, timeout(|| "lifetime", request.lifetime)?).await?;
        Ok(v1::CreateObjectLinkResponse {
            path: format!("/v1/links/{token}"),
            expire_time: Some(api::timestamp(until)),
        })
    }

    pub(crate) async fn delete_object(
        &self,
        request: v1::DeleteObjectRequest,
    ) -> Result<v1::DeleteObjectResponse, ApiError> {
        let id: ObjectId = request.object_id.parse().map_err(malformed("object_id"))?;
        self.runs.delete_upload(&id).await?;
        Ok(v1::DeleteObjectResponse {})
    }

    async fn read(&self, object: Object, wanted: Wanted) -> Result<Reading, ApiError> {
        let span = wanted.of(object.size).ok_or(RequestError::OutOfObject { size: object.size })?;
        let mut pieces = Box::pin(read(self.runs.results(), object.clone(), span));
        let first = pieces.next().await.transpose()?;
        let bytes = stream::iter(first.map(Ok)).chain(pieces.map_err(ApiError::from)).boxed();
        Ok(Reading { object, span, bytes })
    }
}

/// How long the sender of an upload may pause.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Bytes per second that an upload must average once it has lasted for a minute. There are few slots for uploads, and
/// one of the largest size ends within 70 minutes.
const PACE_MIN: u64 = 64 * 1024;

impl Api {
    /// Stores the bytes as an object. An incomplete upload is removed, also if this future is dropped.
    pub(crate) async fn create_object(
        &self,
        (media_type, tenant): (&str, &str),
        pieces: impl Stream<Item = Result<Bytes, ApiError>> + Send + 'static,
    ) -> Result<v1::CreateObjectResponse, ApiError> {
        let media_type = if media_type.is_empty() { "application/octet-stream" } else { media_type };
        if media_type.len() > limit::LABEL_BYTES_MAX || media_type.contains(|c: char| c.is_control() || !c.is_ascii()) {
            let max = limit::LABEL_BYTES_MAX;
            return Err(malformed("media_type")(format!("is not {max} visible characters at most")).into());
        }
        let tenant = match tenant {
            "" => None,
            tenant => Some(tenant.parse().map_err(malformed("tenant"))?),
        };
        let (id, tenant, room) = self.runs.begin_upload(tenant, &self.uploads).await?;
        let upload = Upload { id, tenant, room, media_type: media_type.to_owned() };
        let runs = self.runs.clone();
        let unconfirmed = self.runs.clone();
        let store = move |gone| store(runs, upload, unbroken(pieces, gone));
        let undo = async move |stored: Result<(Object, Timestamp), ApiError>| {
            let Ok((Object { id, .. }, _)) = stored else { return };
            if let Err(error) = unconfirmed.delete_upload(&id).await {
                tracing::warn!(%error, "removing an unconfirmed upload failed; it expires with its age");
            }
        };
        let stored = self.uploads.outlive(store, undo).await;
        let (object, until) = stored.unwrap_or_else(|| Err(RequestError::ShuttingDown.into()))?;
        Ok(v1::CreateObjectResponse { object: Some(object_out(&object)), expire_time: Some(api::timestamp(until)) })
    }
}

/// An upload for which there is room.
struct Upload {
    id: ObjectId,
    tenant: Option<TenantId>,
    room: Room,
    media_type: String,
}

async fn store(
    runs: Runs,
    upload: Upload,
    pieces: impl Stream<Item = Result<Bytes, ApiError>> + Send,
) -> Result<(Object, Timestamp), ApiError> {
    let Upload { id, tenant, mut room, media_type } = upload;
    let pieces = pieces.map(|piece| {
        let piece = piece?;
        room.grow(piece.len() as u64)?;
        Ok::<_, ApiError>(piece)
    });
    let (size, sha256) = take(&runs.objects, &id, pieces).await?;
    let object = Object { id, media_type, size, sha256, preview: String::new() };
    let until = runs.end_upload(object.clone(), tenant, room).await?;
    Ok((object, until))
}

/// The bytes of an upload, until the sender pauses for too long or disconnects. If the connection is gone, the end of
/// the body may look like that of a complete one, so it is treated as incomplete.
fn unbroken(
    pieces: impl Stream<Item = Result<Bytes, ApiError>> + Send,
    gone: CancellationToken,
) -> impl Stream<Item = Result<Bytes, ApiError>> + Send {
    let broken = || ApiError::malformed("data", "data: the upload is incomplete".to_owned());
    let (began, bytes) = (Instant::now(), 0);
    stream::unfold((Box::pin(pieces), gone, bytes), move |(mut pieces, gone, mut bytes)| async move {
        let late = began + SILENCE_MAX + Duration::from_secs(bytes / PACE_MIN);
        let piece = tokio::select! {
            biased;
            () = gone.cancelled() => Some(Err(broken())),
            piece = tokio::time::timeout(SILENCE_MAX, pieces.next()) => match piece {
                Ok(None) if gone.is_cancelled() => Some(Err(broken())),
                Ok(piece) => piece,
                Err(_) => Some(Err(ApiError::exceeded(None))),
            },
            () = tokio::time::sleep_until(late) => Some(Err(too_slow())),
        };
        if let Some(Ok(piece)) = &piece {
            bytes += piece.len() as u64;
        }
        piece.map(|piece| (piece, (pieces, gone, bytes)))
    })
}

fn too_slow() -> ApiError {
    let message = format!("the upload is too slow: the minimum is {PACE_MIN} bytes per second on average");
    ApiError::new(Reason::UploadTooSlow, message)
}

/// The requested part of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// From this offset: this many bytes, or all.
    From(u64, Option<u64>),
    /// So many bytes at its end.
    Last(u64),
}

impl Wanted {
    /// `None` if the object has no byte of it.
    fn of(self, size: u64) -> Option<Span> {
        match self {
            Self::From(from, length) => Span::of(size, from, length),
            Self::Last(0) => None,
            Self::Last(length) => Span::of(size, size.saturating_sub(length), None),
        }
    }
}

impl From<BrokenObject> for ApiError {
    fn from(broken: BrokenObject) -> Self {
        match broken {
            BrokenObject::Read(error) => RequestError::from(error).into(),
            BrokenObject::History(error) => RequestError::from(error).into(),
            BrokenObject::Missing(id) | BrokenObject::Differs(id) => RequestError::ObjectNotFound(id).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_is_too_slow_ends_and_one_in_time_does_not() {
        for (bytes, is_whole) in [(100, false), (usize::try_from(40 * PACE_MIN).expect("few"), true)] {
            let pieces = stream::unfold(0, move |count| async move {
                tokio::time::sleep(Duration::from_secs(30)).await;
                (count < 20).then(|| (Ok(Bytes::from(vec![0; bytes])), count + 1))
            });
            let took = Instant::now();
            let taken: Vec<_> = unbroken(pieces, CancellationToken::new()).take(20).collect().await;
            let failed = taken.iter().find_map(|piece| piece.as_ref().err());
            assert_eq!(
                failed.map(|error| error.reason),
                (!is_whole).then_some(Reason::UploadTooSlow),
                "{bytes} bytes each"
            );
            assert!(is_whole || took.elapsed() < SILENCE_MAX * 2);
        }
    }
}
