//! HTTP services that tools of the worker use: each is one address that takes JSON. They have the client, the egress
//! rules, the values by reference and the errors that HTTP tools have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::http::{Method, Response};
use hyper::body::Incoming;
use serde_json::{Map, Value};
use tokio::time::timeout;
use toolyard_tool::{Context, ToolError};
use url::Url;

use super::answer::{self, Form};
use super::client::Client;
use super::endpoint::{BodyFormat, Endpoint, Others};
use super::events::{Events, Lines};
use super::file::{IDLE_TIMEOUT, Settings, WrittenEgress};
use crate::source::{self, InvalidFile};

/// The longest time that a service may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(600);

/// A file with a table for each service, and one with egress rules.
#[derive(Debug)]
pub struct ServiceFile {
    path: PathBuf,
    top: Map<String, Value>,
}

/// Services that can be asked, by the names of their tables.
#[derive(Debug)]
pub struct Services {
    all: BTreeMap<String, Endpoint>,
    secret_files: Vec<PathBuf>,
}

/// A service.
#[derive(Debug)]
pub struct Service {
    endpoint: Endpoint,
}

/// What a service answers.
#[derive(Debug)]
pub struct Answer<'a> {
    endpoint: &'a Endpoint,
    response: Response<Incoming>,
    form: Option<Form>,
    lines: Lines,
    events: Events,
    /// Lines that have arrived, the next one last.
    waiting: Vec<String>,
    ended: bool,
}

/// A part of an answer that arrives piece by piece.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// The event's name; empty if it has none.
    pub name: String,
    /// Its data.
    pub data: Value,
}

impl ServiceFile {
    /// Reads a file, TOML or JSON.
    ///
    /// # Errors
    /// If it cannot be read or is malformed.
    pub fn read(path: &Path) -> Result<Self, InvalidFile> {
        Ok(Self { path: path.to_owned(), top: source::read(path)? })
    }

    /// The tables of a file that is not there, as a program writes them. Relative paths in them begin in `folder`.
    #[must_use]
    pub fn of(top: Map<String, Value>, folder: &Path) -> Self {
        Self { path: folder.join("settings of the program"), top }
    }

    /// The table of this name, taken out of the file.
    ///
    /// # Errors
    /// If there is something else of this name.
    pub fn take(&mut self, name: &str) -> Result<Option<Map<String, Value>>, InvalidFile> {
        match self.top.remove(name) {
            None => Ok(None),
            Some(Value::Object(table)) => Ok(Some(table)),
            Some(other) => Err(self.wrong(name, format!("it is {other}: write a table, [{name}]"))),
        }
    }

    /// The tables of this name, `[name.KEY]`, taken out of the file by their keys.
    ///
    /// # Errors
    /// If there is something else of this name, or in it.
    pub fn take_all(&mut self, name: &str) -> Result<BTreeMap<String, Map<String, Value>>, InvalidFile> {
        let tables = self.take(name)?.unwrap_or_default().into_iter().map(|(key, table)| match table {
            Value::Object(table) => Ok((key, table)),
            other => Err(self.wrong(&format!("{name}.{key}"), format!("it is {other}: write a table"))),
        });
        tables.collect()
    }

    /// An error about a table.
    #[must_use]
    pub fn wrong(&self, place: &str, error: String) -> InvalidFile {
        InvalidFile::Entry { path: self.path.clone(), place: place.to_owned(), error }
    }

    /// Makes services of tables: what their tools left of them. Nothing is sent yet.
    ///
    /// # Errors
    /// If a table, or the egress rules, are of no use, or the file has other tables.
    pub fn services(mut self, tables: Vec<(&str, Map<String, Value>)>) -> Result<Services, InvalidFile> {
        let folder = self.path.parent().unwrap_or(Path::new("")).to_owned();
        let egress = self.take("egress")?.unwrap_or_default();
        if let Some(other) = self.top.keys().next() {
            return Err(self.wrong("its top", format!("there is no table {other:?}")));
        }
        let mut read = Vec::new();
        for (name, table) in tables {
            read.push((name, Written::parse(table, &folder).map_err(|error| self.wrong(name, error))?));
        }
        let client = client(egress, &folder, &read);
        let client = Arc::new(client.map_err(|(place, error)| self.wrong(place, error))?);
        let given = read.iter().flat_map(|(_, written)| written.settings.given());
        let secret_files = given.filter_map(|given| Some(given.file()?.to_owned())).collect();
        let all = read.into_iter().map(|(name, written)| (name.to_owned(), written.endpoint(&client)));
        Ok(Services { all: all.collect(), secret_files })
    }
}

/// The client for services, which checks that they may be reached.
fn client<'a>(
    egress: Map<String, Value>,
    folder: &Path,
    services: &[(&'a str, Written)],
) -> Result<Client, (&'a str, String)> {
    let wrong = |error: String| ("egress", error);
    let written: WrittenEgress =
        serde_json::from_value(Value::Object(egress)).map_err(|error| wrong(error.to_string()))?;
    let authorities = written.ca.as_ref().map(|ca| std::fs::read(folder.join(ca))).transpose();
    let authorities = authorities.map_err(|error| wrong(format!("ca cannot be read: {error}")))?;
    let urls: Vec<Url> = services.iter().map(|(_, written)| written.url.clone()).collect();
    let mut client = Client::new(written.rules(&urls).map_err(wrong)?, authorities.as_deref()).map_err(wrong)?;
    for (name, written) in services {
        client.check(&written.url).map_err(|error| (*name, error.to_string()))?;
        client.prepare(written.settings.connect_timeout);
    }
    Ok(client)
}

/// A table of a service.
#[derive(Debug)]
struct Written {
    url: Url,
    settings: Settings,
    idle_timeout: Duration,
}

impl Written {
    fn parse(mut table: Map<String, Value>, folder: &Path) -> Result<Self, String> {
        let url = source::text(&mut table, "url")?.ok_or("it has no url")?;
        let url = match Url::parse(&url) {
            Ok(parsed) if parsed.fragment().is_none() && !url.contains('{') => parsed,
            Ok(_) => return Err(format!("url {url:?} must have no braces and no fragment")),
            Err(error) => return Err(format!("url {url:?} is no address: {error}")),
        };
        let most = SILENCE_MAX.as_millis();
        let idle_timeout = match table.remove("idle_timeout_ms") {
            None => IDLE_TIMEOUT,
            Some(value) => {
                let asked = value.as_u64().map(Duration::from_millis);
                let fits = asked.filter(|asked| !asked.is_zero() && *asked <= SILENCE_MAX);
                fits.ok_or_else(|| format!("idle_timeout_ms is {value}: write 1 to {most}"))?
            }
        };
        Ok(Self { url, settings: Settings::parse(table, folder)?, idle_timeout })
    }

    fn endpoint(self, client: &Arc<Client>) -> Endpoint {
        let Self { url, settings, idle_timeout } = self;
        Endpoint {
            client: Arc::clone(client),
            method: Method::POST,
            url: url.into(),
            places: BTreeMap::new(),
            others: Others::Body,
            headers: settings.headers,
            query: settings.query,
            body: BodyFormat::Json,
            idempotency_header: settings.idempotency_header,
            caller_headers: settings.caller_headers,
            connect_timeout: settings.connect_timeout,
            idle_timeout,
            response_bytes_max: settings.response_bytes_max,
            // Services answer and change nothing.
            repeatable: true,
        }
    }
}

impl Services {
    /// The service of this name, taken out.
    pub fn take(&mut self, name: &str) -> Option<Service> {
        Some(Service { endpoint: self.all.remove(name)? })
    }

    /// The files of values that services are given by reference. Tools of the worker must not read them.
    #[must_use]
    pub fn secret_files(&self) -> &[PathBuf] {
        &self.secret_files
    }
}

impl Service {
    /// Sends a JSON object and takes the answer, once it has begun.
    ///
    /// # Errors
    /// If there is no answer, or one without success: a rate limit, and what another attempt may change, as such.
    pub async fn ask(&self, context: &Context, body: Map<String, Value>) -> Result<Answer<'_>, ToolError> {
        let endpoint = &self.endpoint;
        let outgoing = endpoint.outgoing(context, Value::Object(body))?;
        let sending = timeout(endpoint.idle_timeout, endpoint.client.send(outgoing, endpoint.connect_timeout));
        let response = sending.await.map_err(|_| endpoint.silent())?.map_err(|error| endpoint.unanswered(&error))?;
        if !response.status().is_success() {
            return Err(answer::refused(endpoint, response).await);
        }
        let form = Form::of(&answer::media_type(response.headers()).1);
        let max = endpoint.response_bytes_max;
        let (lines, events) = (Lines::up_to(max), Events::up_to(max));
        Ok(Answer { endpoint, response, form, lines, events, waiting: Vec::new(), ended: false })
    }

    /// A text of an answer without the secrets of the request, as errors may quote it.
    #[must_use]
    pub fn masked(&self, text: &str) -> String {
        answer::masked(text, &self.endpoint.secrets())
    }

    /// The error of an answer that is not what the service should answer.
    #[must_use]
    pub fn malformed(&self, why: &str) -> ToolError {
        malformed(&self.endpoint, why)
    }
}

fn malformed(endpoint: &Endpoint, why: &str) -> ToolError {
    ToolError::new(format!("{} answered something of no use: {why}", endpoint.label()))
}

impl Answer<'_> {
    /// It arrives piece by piece: as server-sent events, or lines of JSON.
    #[must_use]
    pub fn is_streamed(&self) -> bool {
        self.form.is_some()
    }

    /// The whole answer as JSON.
    ///
    /// # Errors
    /// If it is too large, breaks off, or is no JSON.
    pub async fn json(self) -> Result<Value, ToolError> {
        let bytes = answer::bytes(self.endpoint, self.response).await?;
        serde_json::from_slice(&bytes).map_err(|error| malformed(self.endpoint, &format!("it is no JSON: {error}")))
    }

    /// The next piece of a streamed answer; `None` at its end.
    ///
    /// # Errors
    /// As [`Self::json`]; a piece may have as many bytes as a whole answer.
    pub async fn next(&mut self) -> Result<Option<Piece>, ToolError> {
        loop {
            while let Some(line) = self.waiting.pop() {
                if let Some((name, data)) = self.complete(line)? {
                    if data == "[DONE]" {
                        self.ended = true;
                        self.waiting.clear();
                        return Ok(None);
                    }
                    let data = serde_json::from_str(&data);
                    let data = data.map_err(|error| malformed(self.endpoint, &format!("an event is no JSON: {error}")));
                    return Ok(Some(Piece { name, data: data? }));
                }
            }
            if self.ended {
                return Ok(None);
            }
            match answer::next(self.endpoint, self.response.body_mut()).await? {
                Some(bytes) => {
                    let lines = self.lines.take(&bytes);
                    self.waiting = lines.map_err(|error| answer::too_large(self.endpoint, &error))?;
                    self.waiting.reverse();
                }
                None => {
                    self.ended = true;
                    let is_lines = self.form == Some(Form::Lines);
                    self.waiting.extend(self.lines.rest().filter(|_| is_lines));
                }
            }
        }
    }

    /// The name and data of what a line completes.
    fn complete(&mut self, line: String) -> Result<Option<(String, String)>, ToolError> {
        if self.form == Some(Form::Lines) {
            return Ok((!line.trim().is_empty()).then(|| (String::new(), line)));
        }
        let event = self.events.take(&line).map_err(|error| answer::too_large(self.endpoint, &error))?;
        Ok(event.map(|event| (event.name, event.data)))
    }
}
