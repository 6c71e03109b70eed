//! Generates images through a backend with the images API of OpenAI (docs/howto/backends.md).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use origins::http::{Answer, Service};
use run::limit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::time::Duration;

use super::backends::until_cancelled;
use super::scope;
use toolyard_tool::{About, Context, Output, PARTIAL_IMAGE, Permission, Tool, ToolError};

/// Characters of a prompt, as the API has it.
const PROMPT_MAX: u32 = 32_000;
/// Partial images of a call, as the API has it.
const PARTIAL_IMAGES_MAX: u32 = 3;
/// Bytes of a partial image that is sent as output, because output stays in the log. Of a larger one only the progress
/// is reported.
const PARTIAL_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long an image may take. A call is not idle while its backend draws.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Generates images.
#[derive(Debug)]
pub struct ImageGeneration {
    service: Service,
    /// The model that the backend is to use; its own if none is set.
    model: Option<String>,
}

/// An image to generate.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Picture {
    /// What the image shows
    #[schemars(length(min = 1, max = PROMPT_MAX))]
    prompt: String,
    /// Width and height as 1024x1024, or auto
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^(auto|[1-9][0-9]{1,4}x[1-9][0-9]{1,4})$"))]
    size: Option<String>,
    /// How much work the backend puts into it
    #[serde(skip_serializing_if = "Option::is_none")]
    quality: Option<Quality>,
    /// The format of the image: png unless given
    #[serde(default)]
    output_format: ImageFormat,
    /// How many unfinished images to send while it is generated
    #[serde(default)]
    #[schemars(range(max = PARTIAL_IMAGES_MAX))]
    partial_images: u32,
}

/// The quality of an image.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Quality {
    Auto,
    Low,
    Medium,
    High,
    Standard,
    Hd,
}

/// The format of an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    #[default]
    Png,
    Jpeg,
    Webp,
}

/// The answer of a backend, or an event of a streamed one. It may have other fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answered {
    #[serde(rename = "type")]
    kind: String,
    b64_json: Option<String>,
    url: Option<String>,
    revised_prompt: Option<String>,
    size: Option<String>,
    quality: Option<String>,
    background: Option<String>,
    usage: Option<Value>,
    partial_image_index: u32,
    /// Images of an answer that is not streamed.
    data: Vec<Self>,
    error: Option<Value>,
}

/// The bytes of an image, and their format.
struct Image {
    format: ImageFormat,
    bytes: Vec<u8>,
}

impl ImageFormat {
    const fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Webp => "image/webp",
        }
    }

    /// The format that these bytes have. A backend may ignore the requested one.
    fn of(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x89, b'P', b'N', b'G', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::Webp),
            _ => None,
        }
    }
}

impl ImageGeneration {
    /// Generates images with this backend, and with this model of it.
    #[must_use]
    pub const fn new(service: Service, model: Option<String>) -> Self {
        Self { service, model }
    }

    fn body(&self, picture: &Picture) -> Result<Map<String, Value>, ToolError> {
        let Value::Object(mut body) = serde_json::to_value(picture)? else {
            return Err(ToolError::new("the request of an image is no object"));
        };
        body.insert("stream".to_owned(), true.into());
        body.extend(self.model.as_ref().map(|model| ("model".to_owned(), json!(model))));
        Ok(body)
    }

    /// The final answer. Sends progress and partial images as they come.
    async fn generate(&self, context: &Context, picture: &Picture) -> Result<Answered, ToolError> {
        let steps = f64::from(picture.partial_images) + 1.0;
        context.progress(0.0, Some(steps), "the image is requested").await?;
        let answer = self.service.ask(context, self.body(picture)?).await?;
        let answered = match answer.is_streamed() {
            true => self.follow(context, answer, steps).await?,
            false => self.whole(answer.json().await?)?,
        };
        context.progress(steps, Some(steps), "the image is complete").await?;
        Ok(answered)
    }

    async fn follow(&self, context: &Context, mut answer: Answer<'_>, steps: f64) -> Result<Answered, ToolError> {
        let mut received = 0.0;
        while let Some(piece) = answer.next().await? {
            let mut event = self.read(piece.data)?;
            if event.kind.is_empty() {
                event.kind = piece.name;
            }
            match event.kind.as_str() {
                "image_generation.partial_image" => {
                    received += 1.0;
                    let image = self.image(&event)?;
                    let message = format!("a partial image, number {}", event.partial_image_index);
                    context.progress(f64::min(received, steps - 1.0), Some(steps), message).await?;
                    send_partial(context, event.partial_image_index, &image).await?;
                }
                "image_generation.completed" => return Ok(event),
                // Events that are newer than this tool.
                _ => {}
            }
        }
        Err(ToolError::retryable("the backend's stream ended before the image was complete"))
    }

    /// The first image of an answer that is not streamed.
    fn whole(&self, value: Value) -> Result<Answered, ToolError> {
        let mut answered = self.read(value)?;
        if answered.data.is_empty() {
            return Err(self.service.malformed("it has no image in `data`"));
        }
        let first = answered.data.swap_remove(0);
        Ok(Answered { b64_json: first.b64_json, url: first.url, revised_prompt: first.revised_prompt, ..answered })
    }

    fn read(&self, value: Value) -> Result<Answered, ToolError> {
        let wrong = |error| self.service.malformed(&format!("it is no image: {error}"));
        let answered = serde_json::from_value::<Answered>(value).map_err(wrong)?;
        match &answered.error {
            None | Some(Value::Null) => Ok(answered),
            Some(error) => {
                let message = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
                Err(ToolError::new(format!("the backend could not generate the image: {message}")))
            }
        }
    }

    fn image(&self, answered: &Answered) -> Result<Image, ToolError> {
        let Some(text) = &answered.b64_json else {
            let hint = if answered.url.is_some() { ": it has a url instead" } else { "" };
            return Err(self.service.malformed(&format!("it has no b64_json{hint}")));
        };
        let bytes = BASE64_STANDARD.decode(text);
        let bytes = bytes.map_err(|error| self.service.malformed(&format!("b64_json is no base64: {error}")))?;
        let format = ImageFormat::of(&bytes);
        let format = format.ok_or_else(|| self.service.malformed("b64_json is no PNG, JPEG or WebP"))?;
        Ok(Image { format, bytes })
    }
}

/// Sends a partial image: an announcement, and its bytes in pieces.
async fn send_partial(context: &Context, index: u32, image: &Image) -> Result<(), ToolError> {
    let Image { format, bytes } = image;
    if bytes.len() > PARTIAL_BYTES_MAX {
        return Ok(());
    }
    let announced = json!({ "index": index, "media_type": format.media_type(), "size_bytes": bytes.len() });
    context.json_on(PARTIAL_IMAGE, &json!({ "partial_image": announced })).await?;
    for piece in bytes.chunks(limit::CHUNK_BYTES_MAX) {
        context.data_on(PARTIAL_IMAGE, format.media_type(), piece.to_vec()).await?;
    }
    Ok(())
}

impl Tool for ImageGeneration {
    const NAME: &'static str = "image_generation";
    type Input = Picture;

    fn about(&self) -> About {
        let text = "Generates an image from a prompt. The result is JSON that describes the image (media_type, \
                    size_bytes, and url if it is stored), and the image.";
        let about = About::new(text).read_only().open_world().streaming().idle_timeout(None).attempt_timeout(TIME_MAX);
        about.permission(Permission::Read).category("image").side_effect_scope(scope::NETWORK)
    }

    async fn call(&self, context: &Context, input: Picture) -> Result<Output, ToolError> {
        let answered = until_cancelled(context, self.generate(context, &input)).await?;
        let Image { format, bytes } = self.image(&answered)?;
        let mut summary = json!({ "media_type": format.media_type(), "size_bytes": bytes.len() });
        let Answered { revised_prompt, size, quality, background, usage, .. } = answered;
        let told =
            [("revised_prompt", revised_prompt), ("size", size), ("quality", quality), ("background", background)];
        for (name, value) in told.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            summary[name] = value.into();
        }
        summary["output_format"] = serde_json::to_value(format)?;
        if let Some(usage) = usage.filter(Value::is_object) {
            summary["usage"] = usage;
        }
        let part = until_cancelled(context, context.store_part(format.media_type(), bytes)).await?;
        if let Some(path) = part.path {
            summary["url"] = path.into();
        }
        Ok(Output::json(&summary)?.and(part.output))
    }
}
