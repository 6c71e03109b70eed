//! Objects, as every door reads them.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use proto::convert::{api, object_out};
use proto::v1;
use run::{Object, ObjectId, limit};

use super::read::{malformed, timeout};
use super::{Door, Fault};
use crate::objects::{BrokenObject, Span, read, take};
use crate::runs::Refusal;

/// An object that may be read, and the part of it that is wanted.
pub(crate) struct Reading {
    pub(crate) object: Object,
    pub(crate) span: Span,
    pub(crate) bytes: BoxStream<'static, Result<Bytes, Fault>>,
}

impl Door {
    /// Begins to read what is `wanted` of an object of some size. The first bytes are there when this returns, so what is not
    /// kept any more is refused, and not broken off.
    pub(crate) async fn read_object(&self, id: &str, wanted: Wanted) -> Result<Reading, Fault> {
        let id: ObjectId = id.parse().map_err(malformed("object_id"))?;
        self.read(self.runs.object(&id).await?, wanted).await
    }

    /// As [`Self::read_object`], for whoever has a link.
    pub(crate) async fn read_linked(&self, token: &str, wanted: Wanted) -> Result<Reading, Fault> {
        self.read(self.runs.linked(token).await?, wanted).await
    }

    pub(crate) async fn create_object_link(
        &self,
        request: v1::CreateObjectLinkRequest,
    ) -> Result<v1::CreateObjectLinkResponse, Fault> {
        let id: ObjectId = request.object_id.parse().map_err(malformed("object_id"))?;
        let (token, until) = self.runs.link(&id, timeout(|| "lifetime", request.lifetime)?).await?;
        Ok(v1::CreateObjectLinkResponse {
            path: format!("/v1/links/{token}"),
            expire_time: Some(api::timestamp(until)),
        })
    }

    async fn read(&self, object: Object, wanted: Wanted) -> Result<Reading, Fault> {
        let span = wanted.of(object.size).ok_or(Refusal::OutOfObject { size: object.size })?;
        let mut pieces = Box::pin(read(self.runs.objects.clone(), object.clone(), span));
        let first = pieces.next().await.transpose()?;
        let bytes = stream::iter(first.map(Ok)).chain(pieces.map_err(Fault::from)).boxed();
        Ok(Reading { object, span, bytes })
    }
}

/// How long whoever brings an object may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(60);

impl Door {
    /// Stores what comes as an object.
    pub(crate) async fn create_object(
        &self,
        (media_type, tenant): (&str, &str),
        pieces: impl Stream<Item = Result<Bytes, Fault>> + Send,
    ) -> Result<v1::CreateObjectResponse, Fault> {
        let media_type = if media_type.is_empty() { "application/octet-stream" } else { media_type };
        if media_type.len() > limit::LABEL_BYTES_MAX || media_type.contains(|c: char| c.is_control() || !c.is_ascii()) {
            let max = limit::LABEL_BYTES_MAX;
            return Err(malformed("media_type")(format!("is not {max} visible characters at most")).into());
        }
        let tenant = match tenant {
            "" => None,
            tenant => Some(tenant.parse().map_err(malformed("tenant"))?),
        };
        let (id, tenant) = self.runs.begin_upload(tenant)?;
        let pieces = stream::unfold(Box::pin(pieces), async |mut pieces| {
            match tokio::time::timeout(SILENCE_MAX, pieces.next()).await {
                Ok(piece) => piece.map(|piece| (piece, pieces)),
                Err(_) => Some((Err(Fault::exceeded()), pieces)),
            }
        });
        let (size, sha256) = take(&self.runs.objects, &id, pieces).await?;
        let object = Object { id, media_type: media_type.to_owned(), size, sha256, preview: String::new() };
        let answer = object_out(&object);
        let until = self.runs.end_upload(object, tenant).await?;
        Ok(v1::CreateObjectResponse { object: Some(answer), expire_time: Some(api::timestamp(until)) })
    }
}

/// What is wanted of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// From there on: so many bytes, or all.
    From(u64, Option<u64>),
    /// So many at its end.
    Last(u64),
}

impl Wanted {
    /// `None` where the object has nothing of it.
    fn of(self, size: u64) -> Option<Span> {
        match self {
            Self::From(from, length) => Span::of(size, from, length),
            Self::Last(0) => None,
            Self::Last(length) => Span::of(size, size.saturating_sub(length), None),
        }
    }
}

impl From<BrokenObject> for Fault {
    fn from(broken: BrokenObject) -> Self {
        match broken {
            BrokenObject::Read(error) => Refusal::from(error).into(),
            BrokenObject::Missing(id) | BrokenObject::Differs(id) => Refusal::ObjectNotFound(id).into(),
        }
    }
}
