//! The file that says which tools the worker hosts. A secret is never in it: it names where the secret is.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context as _;
use serde::Deserialize;

/// The file that comes with the sample.
const SHIPPED: &str = include_str!("toolcalling.toml");

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    pub(crate) time: Switch,
    pub(crate) weather: WeatherSettings,
    pub(crate) my_tool: Switch,
    pub(crate) sub_agent: SubAgentSettings,
}

/// A tool without an entry is not enabled.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Switch {
    pub(crate) enabled: bool,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct WeatherSettings {
    pub(crate) enabled: bool,
    /// The service, without the path.
    pub(crate) base_url: String,
    pub(crate) api_key: Option<Reference>,
}

impl Default for WeatherSettings {
    fn default() -> Self {
        Self { enabled: false, base_url: "https://api.weatherapi.com".to_owned(), api_key: None }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct SubAgentSettings {
    pub(crate) enabled: bool,
    /// The service, up to the path `/v1/chat/completions`.
    pub(crate) base_url: String,
    pub(crate) model: String,
    pub(crate) api_key: Option<Reference>,
}

/// Where a secret is.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reference {
    /// An environment variable.
    Env(String),
    /// A file, without the white space around its content.
    File(PathBuf),
}

impl Reference {
    pub(crate) fn read(&self) -> anyhow::Result<String> {
        match self {
            Self::Env(name) => std::env::var(name).with_context(|| format!("the variable {name}")),
            Self::File(path) => {
                let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
                Ok(text.trim().to_owned())
            }
        }
    }
}

/// The top of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    toolcalling: Settings,
}

impl Settings {
    /// Reads a file; without one, that of the sample.
    pub(crate) fn read(path: Option<OsString>) -> anyhow::Result<Self> {
        let Some(path) = path.map(PathBuf::from) else { return Ok(toml::from_str::<File>(SHIPPED)?.toolcalling) };
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let file: File = toml::from_str(&text).with_context(|| format!("the settings in {}", path.display()))?;
        Ok(file.toolcalling)
    }
}
