//! The URLs of parts of results: of the bytes themselves, or of the object that holds them.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use proto::names::object_path;
use proto::v1;
use proto::v1::content::Body;
use serde_json::Value;

/// The media type and the URL of a part that is no text. An object's URL is the path at which any coordinator serves it.
pub(crate) fn of(content: &v1::Content) -> Option<(String, String)> {
    match content.body.as_ref()? {
        Body::Data(data) => {
            let url = format!("data:{};base64,{}", data.media_type, BASE64_STANDARD.encode(&data.data));
            Some((data.media_type.clone(), url))
        }
        Body::Object(object) => Some((object.media_type.clone(), object_path(&object.object_id))),
        Body::Text(_) | Body::Json(_) => None,
    }
}

/// A link to a part of a result, or one that its tool gave as JSON: `{"type": "link" | "resource_link" | "image_url", …}`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) url: String,
    pub(crate) title: String,
    pub(crate) is_image: bool,
}

impl Link {
    /// A part of a result as a link; `None` for text.
    pub(crate) fn of(content: &v1::Content) -> Option<Self> {
        if let Some(Body::Json(json)) = &content.body {
            return Self::of_json(json);
        }
        let (media_type, url) = of(content)?;
        let is_image = media_type.starts_with("image/");
        Some(Self { url, title: media_type, is_image })
    }

    fn of_json(json: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(json).ok()?;
        let is_image = match value["type"].as_str()? {
            "link" | "resource_link" => false,
            "image_url" | "input_image" => true,
            _ => return None,
        };
        let urls = [&value["url"], &value["uri"], &value["image_url"], &value["image_url"]["url"]];
        let url = urls.into_iter().find_map(Value::as_str)?;
        let titles = [&value["title"], &value["name"], &value["alt"]];
        let title = titles.into_iter().find_map(Value::as_str).unwrap_or(if is_image { "image" } else { url });
        Some(Self { url: url.to_owned(), title: title.to_owned(), is_image })
    }

    /// In Markdown.
    pub(crate) fn markdown(&self) -> String {
        let title = self.title.replace(['[', ']', '\n'], " ");
        format!("{}[{title}]({})", if self.is_image { "!" } else { "" }, self.url.replace([' ', ')', '\n'], ""))
    }
}
