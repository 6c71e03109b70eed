//! Parts of a result that the tool stores as objects itself, so that it knows their addresses.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use run::{CallError, Content, ErrorKind, Object, limit};

use crate::context::Context;
use crate::error::ToolError;
use crate::output::Output;

type Storing = Pin<Box<dyn Future<Output = Result<Object, CallError>> + Send>>;

/// Where the objects of a call's result are stored.
#[derive(Clone)]
pub struct ObjectSink(Arc<dyn Fn(String, Bytes) -> Storing + Send + Sync>);

impl ObjectSink {
    /// A sink that stores bytes of a media type with this function.
    pub fn new(store: impl Fn(String, Bytes) -> Storing + Send + Sync + 'static) -> Self {
        Self(Arc::new(store))
    }
}

impl fmt::Debug for ObjectSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObjectSink")
    }
}

/// A part of a result that was stored, or is inline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPart {
    /// The part, for the result.
    pub output: Output,
    /// The path of a GET request to any coordinator that returns the bytes; `None` if the part is inline.
    pub path: Option<String>,
}

impl Context {
    /// Whether the run is stored. If not (`store: false` in its request), nothing of it is kept after its end, so a
    /// tool should leave nothing of the call elsewhere either.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        self.execution.is_stored
    }

    /// A part of the result, stored as an object with a path of its own. It is inline, as [`Output::data`], if the run
    /// is not stored, and if hooks check the results of the tool, because they receive all of a result.
    ///
    /// # Errors
    /// If there are more than 256 MiB, or the object cannot be stored; then another attempt may succeed.
    pub async fn store_part(
        &self,
        media_type: impl Into<String>,
        data: impl Into<Bytes>,
    ) -> Result<StoredPart, ToolError> {
        let (media_type, data) = (media_type.into(), data.into());
        let size = u64::try_from(data.len()).unwrap_or(u64::MAX);
        if size > limit::OBJECT_BYTES_MAX {
            let message = format!("a part of the result is {size} bytes; the limit is {}", limit::OBJECT_BYTES_MAX);
            return Err(ToolError::of_call(CallError::new(ErrorKind::ResultTooLarge, message)));
        }
        let sink = self.execution.objects.as_ref().filter(|_| self.is_stored());
        let Some(sink) = sink else {
            return Ok(StoredPart { output: Output::data(media_type, data), path: None });
        };
        let object = (sink.0)(media_type, data).await.map_err(ToolError::of_call)?;
        let path = Some(proto::names::object_path(&object.id));
        Ok(StoredPart { output: vec![Content::Object(Box::new(object))].into(), path })
    }
}
