//! The files of a call. A worker has no read access to the store: the owner of the run sends it chunks, and only of
//! files that the call may open.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use proto::conversation::TOOL_CALL_CONVERSATION;
use proto::convert::object::ChunkRequest;
use proto::object::{CHUNK_BYTES, chunks};
use ring::digest;
use run::File;

use crate::context::Context;
use crate::error::ToolError;

/// Chunks of a file that are requested ahead of its reader.
const AHEAD: usize = 2;

type Asking = Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>>;

/// A source of chunks of files.
#[derive(Clone)]
pub struct Source(Arc<dyn Fn(ChunkRequest) -> Asking + Send + Sync>);

impl Source {
    pub fn new(ask: impl Fn(ChunkRequest) -> Asking + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

impl Context {
    /// The files that the call may open: those that its run gave to its tool, and to all tools.
    #[must_use]
    pub fn files(&self) -> &[File] {
        let files = &self.execution.call.files;
        // The conversation comes after those that the request names.
        match files.split_last() {
            Some((last, others)) if last.name == TOOL_CALL_CONVERSATION => others,
            _ => files,
        }
    }

    /// The file of this name.
    ///
    /// # Errors
    /// If the call has no such file. The error lists its files.
    pub fn file(&self, name: &str) -> Result<&File, ToolError> {
        self.files().iter().find(|file| file.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.files().iter().map(|file| file.name.as_str()).collect();
            ToolError::new(match names.as_slice() {
                [] => format!("there is no file {name:?}: the call has none"),
                names => format!("there is no file {name:?}; there are: {}", names.join(", ")),
            })
        })
    }

    /// The bytes of a file of up to 256 MiB, piece by piece on demand. The stream ends only if the SHA-256 is right,
    /// else with an error.
    ///
    /// An error ends it: the file is not kept any more, or its run's owner cannot be reached. Another attempt may get
    /// it.
    pub fn read(&self, file: &File) -> impl Stream<Item = Result<Bytes, ToolError>> + Send + use<> {
        let (source, run, call, object) =
            (self.execution.source.clone(), self.execution.run, self.execution.index, file.object.clone());
        let id = object.id.clone();
        let pieces = stream::iter(0..chunks(object.size)).map(move |chunk| {
            let wanted = ChunkRequest { run, call, object: id.clone(), chunk };
            (source.0)(wanted)
        });
        let (mut left, mut digest) = (object.size, digest::Context::new(&digest::SHA256));
        let name = file.name.clone();
        pieces.buffered(AHEAD).map(move |piece| {
            let broken = |why: &str| ToolError::retryable(format!("file {name:?} cannot be read: {why}"));
            let piece = piece.map_err(|why| broken(&why))?;
            if piece.len() as u64 != left.min(CHUNK_BYTES) {
                return Err(broken("a piece of it is missing"));
            }
            left -= piece.len() as u64;
            digest.update(&piece);
            if left == 0 && digest.clone().finish().as_ref() != object.sha256 {
                return Err(broken("its SHA-256 is wrong"));
            }
            Ok(piece)
        })
    }

    /// A file as a whole, if it has no more bytes than that.
    ///
    /// # Errors
    /// As [`Self::read`], and when it is larger.
    pub async fn read_all(&self, file: &File, bytes_max: u64) -> Result<Bytes, ToolError> {
        let size = file.object.size;
        if size > bytes_max {
            return Err(ToolError::new(format!(
                "file {:?} is {size} bytes, at most {bytes_max} are taken here",
                file.name
            )));
        }
        let mut all = BytesMut::with_capacity(usize::try_from(size).unwrap_or(0));
        let mut pieces = Box::pin(self.read(file));
        while let Some(piece) = pieces.try_next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_not_what_it_was_fails_the_call() {
        let given = run::Fields::default();
        let (mut context, _chunks) =
            crate::testkit::context("reads".parse().unwrap(), String::new(), std::time::Duration::from_secs(60), given);
        context.execution.source = Source::new(|_| Box::pin(async { Ok(Bytes::from_static(b"forged")) }));
        let id = "upl_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().unwrap();
        for (size, why) in [(6, "its SHA-256 is wrong"), (7, "a piece of it is missing")] {
            let object = run::Object {
                id: run::ObjectId::clone(&id),
                media_type: String::new(),
                size,
                sha256: [0; 32],
                preview: String::new(),
            };
            let file = File { name: "f".to_owned(), object };
            let error = context.read_all(&file, 10).await.expect_err(why);
            assert!(error.is_retryable() && error.message().contains(why), "{}", error.message());
        }
    }
}
