//! Objects: payloads that are too large for the log, and files that calls may read.

use std::pin::pin;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use proto::v1;
use tonic::{Status, Streaming};

use crate::client::Client;
use crate::error::Error;

/// An object while it is read, piece by piece.
#[derive(Debug)]
pub struct ObjectReader {
    client: Client,
    stream: Streaming<v1::ReadObjectResponse>,
    about: v1::Object,
    first: Option<Bytes>,
}

impl ObjectReader {
    /// The object's id, media type, size in bytes and SHA-256.
    #[must_use]
    pub fn about(&self) -> &v1::Object {
        &self.about
    }

    /// The next bytes; `None` at the end. The whole object was received, in order, if the end is reached.
    ///
    /// # Errors
    /// If the connection breaks, or the object is deleted meanwhile.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Ok(Some(first));
        }
        let piece = self.stream.message().await.map_err(|status| self.client.error(status))?;
        Ok(piece.map(|piece| piece.data))
    }
}

impl Client {
    /// Reads an object.
    ///
    /// # Errors
    /// If it does not exist, or the caller may not read it.
    pub async fn read_object(&self, object_id: &str) -> Result<ObjectReader, Error> {
        let request = v1::ReadObjectRequest { object_id: object_id.to_owned(), ..v1::ReadObjectRequest::default() };
        let stream = self.objects.clone().read_object(request).await.map_err(|status| self.error(status))?;
        let mut stream = stream.into_inner();
        let head = stream.message().await.map_err(|status| self.error(status))?;
        let head = head.and_then(|piece| Some((piece.object?, piece.data)));
        let (about, first) = head.ok_or_else(|| self.error(Status::internal("the object has no description")))?;
        Ok(ObjectReader { client: self.clone(), stream, about, first: Some(first) })
    }

    /// Uploads an object, at most 256 MiB, of pieces of at most 256 KiB each. An error of the source ends the upload:
    /// nothing is stored then.
    ///
    /// # Errors
    /// If the source fails, the object is too large, the store is full, or the coordinator cannot be reached.
    pub async fn upload(
        &self,
        media_type: &str,
        pieces: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    ) -> Result<v1::CreateObjectResponse, Error> {
        let (failed, mut failure) = tokio::sync::oneshot::channel();
        let mut failed = Some(failed);
        let head = v1::CreateObjectRequest { media_type: media_type.to_owned(), ..v1::CreateObjectRequest::default() };
        // A source that fails must not look as if it had ended, so the request stays open until it is dropped.
        let pieces = pieces.map(Some).chain(futures::stream::once(std::future::ready(None)));
        let pieces = pieces.then(move |piece| {
            let report = match &piece {
                Some(Err(_)) => failed.take(),
                Some(Ok(_)) | None => None,
            };
            async move {
                match piece {
                    Some(Ok(data)) => Some(v1::CreateObjectRequest { data, ..v1::CreateObjectRequest::default() }),
                    None => None,
                    Some(Err(error)) => {
                        // The receiver waits below.
                        drop(report.map(|report| report.send(error)));
                        std::future::pending().await
                    }
                }
            }
        });
        let pieces = pieces.take_while(|piece| std::future::ready(piece.is_some())).filter_map(std::future::ready);
        let request = futures::stream::once(std::future::ready(head)).chain(pieces);
        let mut objects = self.objects.clone();
        let mut storing = pin!(objects.create_object(request));
        let stored = tokio::select! {
            stored = &mut storing => stored,
            Ok(error) = &mut failure => return Err(Error::Source(error)),
        };
        Ok(stored.map_err(|status| self.error(status))?.into_inner())
    }

    /// Makes a link over which an object can be read without credentials until it expires.
    ///
    /// # Errors
    /// If links are switched off, or the caller may not read the object.
    pub async fn object_link(
        &self,
        request: v1::CreateObjectLinkRequest,
    ) -> Result<v1::CreateObjectLinkResponse, Error> {
        let made = self.objects.clone().create_object_link(request).await;
        Ok(made.map_err(|status| self.error(status))?.into_inner())
    }

    /// Deletes an upload. One that does not exist counts as deleted.
    ///
    /// # Errors
    /// If the caller may not delete it, or the store is not available.
    pub async fn delete_object(&self, object_id: String) -> Result<(), Error> {
        let deleted = self.objects.clone().delete_object(v1::DeleteObjectRequest { object_id }).await;
        deleted.map(drop).map_err(|status| self.error(status))
    }
}
