//! The operator's file of backends: services and programs behind tools. A tool is hosted only if its table is there.

use std::path::{Path, PathBuf};

use origins::http::{InvalidFile, ServiceFile, Services};
use sandbox::Sandbox;
use serde_json::Value;
use toolyard_tool::{Context, InvalidTool, Table, Tool as _, ToolError};

use super::code::{CodeInterpreter, PythonSettings};
use super::file_search::FileSearch;
use super::image_generation::ImageGeneration;
use super::web_search::WebSearch;

/// How long a backend of images may be silent, unless set, in milliseconds: most send nothing while they draw.
const IMAGE_IDLE_TIMEOUT_MS: u64 = 300_000;
/// Bytes of an answer with an image, unless set.
const IMAGE_RESPONSE_BYTES: u64 = 64 * 1024 * 1024;

/// The backends of a file.
#[derive(Debug)]
pub struct Backends {
    services: Services,
    python: Option<PythonSettings>,
    /// The model for images, if one is set.
    image_model: Option<String>,
}

impl Backends {
    /// Reads the file. Nothing is sent or started yet.
    ///
    /// # Errors
    /// If it cannot be read or is not valid, with the place.
    pub fn read(path: &Path) -> Result<Self, InvalidFile> {
        let mut file = ServiceFile::read(path)?;
        let python = match file.take(CodeInterpreter::NAME)? {
            None => None,
            Some(table) => {
                let settings = serde_json::from_value::<PythonSettings>(Value::Object(table));
                Some(settings.map_err(|error| file.wrong(CodeInterpreter::NAME, error.to_string()))?)
            }
        };
        let mut tables = Vec::new();
        for name in [WebSearch::NAME, FileSearch::NAME] {
            tables.extend(file.take(name)?.map(|table| (name, table)));
        }
        let mut image_model = None;
        if let Some(mut table) = file.take(ImageGeneration::NAME)? {
            image_model = match table.remove("model") {
                None => None,
                Some(Value::String(model)) => Some(model),
                Some(other) => {
                    return Err(file.wrong(ImageGeneration::NAME, format!("model is {other}: write a text")));
                }
            };
            table.entry("idle_timeout_ms").or_insert_with(|| IMAGE_IDLE_TIMEOUT_MS.into());
            table.entry("response_bytes_max").or_insert_with(|| IMAGE_RESPONSE_BYTES.into());
            tables.push((ImageGeneration::NAME, table));
        }
        Ok(Self { services: file.services(tables)?, python, image_model })
    }

    /// The files of values that backends are given by reference. Other tools of the worker must not read them.
    #[must_use]
    pub fn secret_files(&self) -> &[PathBuf] {
        self.services.secret_files()
    }

    /// Whether one of the tools starts programs.
    #[must_use]
    pub const fn has_programs(&self) -> bool {
        self.python.is_some()
    }

    /// Hosts the tools that have a backend beside those of a table.
    ///
    /// # Errors
    /// If the table has a tool of the same name.
    pub async fn host(mut self, mut table: Table, sandbox: &Sandbox) -> Result<Table, InvalidTool> {
        if let Some(settings) = &self.python {
            table = table.host(CodeInterpreter::new(sandbox, settings).await)?;
        }
        if let Some(service) = self.services.take(WebSearch::NAME) {
            table = table.host(WebSearch::new(service))?;
        }
        if let Some(service) = self.services.take(FileSearch::NAME) {
            table = table.host(FileSearch::new(service))?;
        }
        if let Some(service) = self.services.take(ImageGeneration::NAME) {
            table = table.host(ImageGeneration::new(service, self.image_model))?;
        }
        Ok(table)
    }
}

/// Works for a call until that is cancelled. Dropping a request closes its connection.
pub(super) async fn until_cancelled<T>(
    context: &Context,
    work: impl Future<Output = Result<T, ToolError>>,
) -> Result<T, ToolError> {
    tokio::select! {
        biased;
        () = context.cancelled() => Err(ToolError::new("the call was cancelled")),
        done = work => done,
    }
}

/// The beginning of a text, of at most `max` bytes.
pub(super) fn beginning(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}
