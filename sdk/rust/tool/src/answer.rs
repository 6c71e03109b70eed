//! The values that a tool function may return, and their conversion: to a result, to output while it runs, or to an
//! error.

use std::borrow::Cow;
use std::error::Error;
use std::marker::PhantomData;
use std::pin::pin;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use run::{Chunk, CitedText, Content, Progress};
use serde::Serialize;

use crate::context::Context;
use crate::error::ToolError;
use crate::output::Output;

/// Converts a value to the result of a call. Implement it for your own types; any other type that serializes becomes
/// JSON.
///
/// ```
/// # use toolyard_tool::{IntoOutput, Output, ToolError, testkit, tool};
/// struct Celsius(f64);
///
/// impl IntoOutput for Celsius {
///     fn into_output(self) -> Result<Output, ToolError> {
///         Ok(format!("{:.1} °C", self.0).into())
///     }
/// }
///
/// /// Measures the temperature.
/// #[tool(read_only)]
/// async fn measure() -> Celsius {
///     Celsius(21.04)
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// assert_eq!(testkit::call(Measure, serde_json::json!({})).await.answer(), "21.0 °C");
/// # }
/// ```
///
/// What is neither does not compile:
///
/// ```compile_fail,E0277
/// struct Opaque;
///
/// /// Gives what nobody can read.
/// #[toolyard_tool::tool]
/// async fn opaque() -> Opaque {
///     Opaque
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a tool",
    label = "the tool gives back `{Self}`",
    note = "derive `serde::Serialize` for JSON, or implement `toolyard_tool::IntoOutput`",
    note = "a stream gives its pieces as output while the tool runs: it must be `Send`"
)]
pub trait IntoOutput {
    /// # Errors
    /// When the value cannot be converted; the call fails with it.
    fn into_output(self) -> Result<Output, ToolError>;
}

macro_rules! into_output {
    ($($type:ty),*) => {$(
        impl IntoOutput for $type {
            fn into_output(self) -> Result<Output, ToolError> {
                Ok(self.into())
            }
        }
    )*};
}

into_output!(Output, (), String, &str, Cow<'_, str>, Content, Vec<Content>, CitedText, Image);

impl From<Cow<'_, str>> for Output {
    fn from(text: Cow<'_, str>) -> Self {
        text.into_owned().into()
    }
}

impl From<Content> for Output {
    fn from(part: Content) -> Self {
        vec![part].into()
    }
}

impl From<Vec<Content>> for Output {
    fn from(parts: Vec<Content>) -> Self {
        Self(parts.into())
    }
}

/// An image for a model, which sees it as JSON: `{"mimeType": "image/png", "data": "<base64>"}`. That is a third longer
/// than the image; [`Output::data`] gives bytes as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub mime_type: String,
    pub data: Bytes,
}

impl Image {
    #[must_use]
    pub fn new(mime_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        Self { mime_type: mime_type.into(), data: data.into() }
    }
}

impl From<Image> for Output {
    fn from(Image { mime_type, data }: Image) -> Self {
        let json = serde_json::json!({ "mimeType": mime_type, "data": BASE64_STANDARD.encode(data) });
        Content::Json(json.to_string()).into()
    }
}

/// Converts an item of a stream that a tool returns: text, content, progress, chunks of these, JSON values, and
/// `Result`s of these. An error ends the call. Other types do not compile:
///
/// ```compile_fail,E0277
/// struct Opaque;
///
/// /// Streams what nobody can read.
/// #[toolyard_tool::tool]
/// fn opaque() -> impl futures::Stream<Item = Opaque> {
///     futures::stream::empty()
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "a tool cannot stream `{Self}`",
    note = "it streams `String`, `&str`, `Content`, `Progress`, `Chunk`, `serde_json::Value`, or a `Result` of one of them"
)]
pub trait IntoChunk {
    /// # Errors
    /// The error of the call.
    fn into_chunk(self) -> Result<Chunk, ToolError>;
}

impl IntoChunk for Chunk {
    fn into_chunk(self) -> Result<Chunk, ToolError> {
        Ok(self)
    }
}

impl IntoChunk for Content {
    fn into_chunk(self) -> Result<Chunk, ToolError> {
        Ok(Chunk::Content { channel: String::new(), content: self })
    }
}

impl IntoChunk for String {
    fn into_chunk(self) -> Result<Chunk, ToolError> {
        Content::Text(self).into_chunk()
    }
}

impl IntoChunk for &str {
    fn into_chunk(self) -> Result<Chunk, ToolError> {
        self.to_owned().into_chunk()
    }
}

impl IntoChunk for serde_json::Value {
    fn into_chunk(self) -> Result<Chunk, ToolError> {
        Content::Json(self.to_string()).into_chunk()
    }
}

impl IntoChunk for Progress {
    fn into_chunk(self) -> Result<Chunk, ToolError> {
        Ok(Chunk::Progress(self))
    }
}

impl<T: IntoChunk, E: Into<ToolError>> IntoChunk for Result<T, E> {
    fn into_chunk(self) -> Result<Chunk, ToolError> {
        self.map_err(Into::into)?.into_chunk()
    }
}

/// Converts the error of a tool function. Although a `Result` serializes, an error never becomes a result:
///
/// ```compile_fail,E0277
/// #[derive(serde::Serialize)]
/// struct NoError;
///
/// /// Fails with what is no error.
/// #[toolyard_tool::tool]
/// async fn fails() -> Result<u8, NoError> {
///     Err(NoError)
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "a tool cannot fail with `{Self}`",
    note = "use `toolyard_tool::ToolError`, any error that implements `std::error::Error`, `anyhow::Error`, or `String`"
)]
pub trait Failure {
    fn into_failure(self) -> ToolError;
}

impl<E: Into<ToolError>> Failure for E {
    fn into_failure(self) -> ToolError {
        self.into()
    }
}

/// Represents a value's type, so that the conversion is selected by the traits of the type: of methods with the same
/// name the compiler takes the one of `&&&Probe<T>` first, then that of `&&Probe<T>`, and so on. Therefore `String` is
/// text and any other `Serialize` is JSON, which impls of one trait could not express without overlapping.
#[derive(Debug)]
pub struct Probe<T>(PhantomData<fn() -> T>);

impl<T> Probe<T> {
    pub fn of(_: &T) -> Self {
        Self(PhantomData)
    }
}

macro_rules! ways {
    ($($trait:ident::$method:ident gives $way:ident for <$($type:ident),*> $probe:ty where [$($bound:tt)*];)*) => {$(
        #[derive(Debug, Clone, Copy)]
        pub struct $way;

        pub trait $trait {
            fn $method(&self) -> $way {
                $way
            }
        }

        impl<$($type),*> $trait for $probe where $($bound)* {}
    )*};
}

ways! {
    // Whether an answer is the value itself or may be an error.
    Fallible::outcome gives MayFail for <T, E> &&&Probe<Result<T, E>> where [E: Into<ToolError>];
    Boxable::outcome gives MayFailBoxed for <T, E> &&Probe<Result<T, E>> where [E: Into<Box<dyn Error + Send + Sync>>];
    AnyError::outcome gives MayFailSomehow for <T, E> &Probe<Result<T, E>> where [];
    Infallible::outcome gives Succeeds for <T> Probe<T> where [];
    // The converted value.
    Known::form gives AsItself for <T> &&&Probe<T> where [T: IntoOutput];
    Json::form gives AsJson for <T> &&Probe<T> where [T: Serialize];
    Streamed::form gives AsStream for <T> &Probe<T> where [T: Stream];
    Unknown::form gives AsNothing for <T> Probe<T> where [];
}

impl MayFail {
    pub fn split<T, E: Into<ToolError>>(self, answer: Result<T, E>) -> Result<T, ToolError> {
        answer.map_err(Into::into)
    }
}

impl MayFailBoxed {
    pub fn split<T, E: Into<Box<dyn Error + Send + Sync>>>(self, answer: Result<T, E>) -> Result<T, ToolError> {
        answer.map_err(|error| ToolError::of(&*error.into()))
    }
}

impl MayFailSomehow {
    pub fn split<T, E: Failure>(self, answer: Result<T, E>) -> Result<T, ToolError> {
        answer.map_err(Failure::into_failure)
    }
}

impl Succeeds {
    pub fn split<T>(self, answer: T) -> Result<T, ToolError> {
        Ok(answer)
    }
}

impl AsItself {
    pub async fn output<T: IntoOutput>(self, value: T, _: &Context) -> Result<Output, ToolError> {
        value.into_output()
    }
}

impl AsJson {
    pub async fn output<T: Serialize>(self, value: T, _: &Context) -> Result<Output, ToolError> {
        Output::json(&value)
    }
}

impl AsStream {
    /// Sends the items as output until the stream ends or the call should stop; then the stream is dropped. The result
    /// is `"Done"`.
    pub async fn output<S>(self, stream: S, context: &Context) -> Result<Output, ToolError>
    where
        S: Stream<Item: IntoChunk> + Send,
    {
        let mut stream = pin!(stream);
        loop {
            let next = tokio::select! {
                biased;
                () = context.cancelled() => return Err(ToolError::new("the call was stopped")),
                next = stream.next() => next,
            };
            match next {
                Some(piece) => context.chunk(piece.into_chunk()?).await?,
                None => return Ok(().into()),
            }
        }
    }
}

impl AsNothing {
    pub async fn output<T: IntoOutput>(self, value: T, _: &Context) -> Result<Output, ToolError> {
        value.into_output()
    }
}
