//! Shortens large results, so that neither the log nor the model receives more than the beginning and a note.

use std::path::{Path, PathBuf};

use run::Content;

use super::{Call, Interceptor, Next};
use crate::context::Context;
use crate::error::ToolError;
use crate::output::Output;
use crate::preview::{beginning, preview};

/// A file's name takes 255 bytes.
const NAME_BYTES_MAX: usize = 200;

/// Shortens results that are longer than so many bytes, all parts together, and says so at the end of each part that
/// lost something. JSON that is cut is text from then on; bytes cannot be cut and are left out. Without this, what
/// makes a result larger than 256 KiB is stored beside the log, and the model is told so in the same words.
#[derive(Debug)]
pub struct LargeResult {
    bytes_max: usize,
    folder: Option<PathBuf>,
}

impl LargeResult {
    /// The removed part is lost.
    #[must_use]
    pub fn cut(bytes_max: usize) -> Self {
        Self { bytes_max, folder: None }
    }

    /// The whole result is written to a file below `folder`, in a folder of its run, and the note names its path, so
    /// that the model can read it with its tools. The files are never removed.
    #[must_use]
    pub fn to_folder(bytes_max: usize, folder: impl Into<PathBuf>) -> Self {
        Self { bytes_max, folder: Some(folder.into()) }
    }

    async fn shorten(&self, context: &Context, parts: Vec<Content>) -> Vec<Content> {
        let mut room = self.bytes_max;
        let mut short = Vec::with_capacity(parts.len());
        for (index, part) in parts.into_iter().enumerate() {
            let size = part.size();
            if size <= room {
                room -= size;
                short.push(part);
                continue;
            }
            let (shown, ending) = match &part {
                Content::Text(text) => (beginning(text, room), "txt"),
                Content::Json(json) => (beginning(json, room), "json"),
                Content::Cited(cited) => (beginning(&cited.text, room), "txt"),
                Content::Data { .. } | Content::Object(_) => ("", "bin"),
            };
            room -= shown.len();
            let (shown, file) = (shown.to_owned(), self.folder.as_deref().map(|f| file(f, context, index, ending)));
            let whole = match file {
                None => None,
                Some(file) => Some(match store(file.clone(), part).await {
                    Ok(()) => format!("the whole of it is in {}", file.display()),
                    Err(error) => {
                        tracing::warn!(run.id = %context.run_id(), %error, "a large result could not be stored");
                        "the rest is lost, it could not be stored".to_owned()
                    }
                }),
            };
            short.push(Content::Text(preview(&shown, size, whole.as_deref())));
        }
        short
    }
}

impl Interceptor for LargeResult {
    async fn call(&self, call: Call<'_>, next: Next<'_>) -> Result<Output, ToolError> {
        let context = call.context;
        let Output(mut given) = next.run(call).await?;
        if given.result.iter().map(Content::size).sum::<usize>() > self.bytes_max {
            given.result = self.shorten(context, given.result).await;
        }
        Ok(Output(given))
    }
}

/// No two calls have the same path, and none leads out of the folder: special characters are written as `%` and two
/// digits.
fn file(folder: &Path, context: &Context, part: usize, ending: &str) -> PathBuf {
    let mut name = String::new();
    for byte in context.call_id().as_str().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            other => name.push_str(&format!("%{other:02x}")),
        }
    }
    let mut path = folder.join(context.run_id().to_string());
    let mut rest = name.as_str();
    while rest.len() > NAME_BYTES_MAX {
        let (head, tail) = rest.split_at(NAME_BYTES_MAX);
        path.push(head);
        rest = tail;
    }
    path.push(format!("{rest}.{part}.{ending}"));
    path
}

async fn store(file: PathBuf, part: Content) -> std::io::Result<()> {
    let written = tokio::task::spawn_blocking(move || {
        std::fs::create_dir_all(file.parent().unwrap_or(&file))?;
        match &part {
            Content::Text(text) | Content::Json(text) => std::fs::write(&file, text),
            Content::Data { data, .. } => std::fs::write(&file, data),
            Content::Object(object) => std::fs::write(&file, &object.preview),
            Content::Cited(cited) => std::fs::write(&file, &cited.text),
        }
    });
    written.await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}
