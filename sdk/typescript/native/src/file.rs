//! A file of a call, read piece by piece.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use napi::Env;
use napi::bindgen_prelude::{Buffer, PromiseRaw};
use napi_derive::napi;
use tokio::sync::Mutex;
use toolyard_tool::{Context, ToolError};

use crate::error::thrown;

/// An open file.
#[napi]
pub struct NativeFile {
    pieces: Arc<Mutex<BoxStream<'static, Result<Bytes, ToolError>>>>,
}

impl NativeFile {
    pub(crate) fn open(context: &Context, name: &str) -> Result<Self, ToolError> {
        let pieces = context.read(context.file(name)?).boxed();
        Ok(Self { pieces: Arc::new(Mutex::new(pieces)) })
    }
}

#[napi]
impl NativeFile {
    /// The next piece; `null` at the end, which is reached only if the digest is right.
    #[napi]
    pub fn next<'env>(&self, env: &'env Env) -> napi::Result<PromiseRaw<'env, Option<Buffer>>> {
        let pieces = Arc::clone(&self.pieces);
        env.spawn_future(async move {
            let piece = pieces.lock().await.next().await.transpose().map_err(|error| thrown(&error))?;
            Ok(piece.map(|piece| Buffer::from(piece.to_vec())))
        })
    }
}
