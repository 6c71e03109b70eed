//! Objects, as every door reads them.

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use run::{Object, ObjectId};

use super::read::malformed;
use super::{Door, Fault};
use crate::objects::{BrokenObject, Span, read};
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
        let object = self.runs.object(&id).await?;
        let span = wanted.of(object.size).ok_or(Refusal::OutOfObject { size: object.size })?;
        let mut pieces = Box::pin(read(self.runs.objects.clone(), object.clone(), span));
        let first = pieces.next().await.transpose()?;
        let bytes = stream::iter(first.map(Ok)).chain(pieces.map_err(Fault::from)).boxed();
        Ok(Reading { object, span, bytes })
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
