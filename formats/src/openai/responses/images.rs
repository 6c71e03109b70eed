//! Images of a running call. One that is larger than a piece of output is announced, and arrives in several pieces.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use proto::names::PARTIAL_IMAGE;
use proto::v1;
use serde::Deserialize;
use serde_json::{Value, json};

/// Bytes of a partial image that are collected; a larger one is not shown.
const PARTIAL_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The partial images of a call.
#[derive(Debug, Default)]
pub(super) struct PartialImages {
    /// The index of the next image that has no own one.
    next: u32,
    /// The announced image whose pieces arrive.
    announced: Option<Announced>,
    pieces: Vec<u8>,
}

/// The JSON that announces an image.
#[derive(Debug, Deserialize)]
struct Announcement {
    partial_image: Announced,
}

#[derive(Debug, Deserialize)]
struct Announced {
    index: u32,
    media_type: String,
    size_bytes: usize,
}

impl PartialImages {
    /// Takes a piece of the call's output, and passes the data of the event for the image that it completes to `emit`.
    /// Returns whether the piece belongs to an image.
    pub(super) fn take(&mut self, channel: &str, content: &v1::Content, emit: impl FnOnce(Value)) -> bool {
        match &content.body {
            Some(v1::content::Body::Json(json)) if channel == PARTIAL_IMAGE => {
                let Ok(Announcement { partial_image }) = serde_json::from_str(json) else { return false };
                self.withdraw();
                self.announced = Some(partial_image).filter(|image| image.size_bytes <= PARTIAL_BYTES_MAX);
                true
            }
            Some(v1::content::Body::Data(data)) if channel == PARTIAL_IMAGE => {
                let Some(image) = &self.announced else { return true };
                self.pieces.extend_from_slice(&data.data);
                if self.pieces.len() >= image.size_bytes {
                    emit(event(image.index, &image.media_type, &self.pieces));
                    self.next = image.index.saturating_add(1);
                    self.withdraw();
                }
                true
            }
            Some(v1::content::Body::Data(data)) if data.media_type.starts_with("image/") => {
                emit(event(self.next, &data.media_type, &data.data));
                self.next = self.next.saturating_add(1);
                true
            }
            Some(
                v1::content::Body::Data(_)
                | v1::content::Body::Text(_)
                | v1::content::Body::Json(_)
                | v1::content::Body::Object(_),
            )
            | None => false,
        }
    }

    /// Discards the pieces of an image that is not complete.
    pub(super) fn withdraw(&mut self) {
        (self.announced, self.pieces) = (None, Vec::new());
    }
}

fn event(index: u32, media_type: &str, bytes: &[u8]) -> Value {
    let mut data = json!({ "partial_image_index": index, "partial_image_b64": BASE64_STANDARD.encode(bytes) });
    if let Some(format) = media_type.strip_prefix("image/") {
        data["output_format"] = format.into();
    }
    data
}
