//! The file of HTTP tools.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderMap, HeaderName, Method};
use bytes::Bytes;
use globset::{Glob, GlobSet, GlobSetBuilder};
use http_body_util::{BodyExt as _, Limited};
use run::Effects;
use serde::Deserialize;
use serde_json::{Map, Value};
use toolyard_tool::{About, Origin};
use url::Url;

use super::client::{Client, Outgoing};
use super::egress::{Egress, HostRule, Network};
use super::endpoint::{BodyFormat, Endpoint, Others, Place, Several};
use super::openapi::{self, DOCUMENT_BYTES_MAX, Document, Wanted};
use crate::described::Described;
use crate::given::Given;
use crate::source::{self, InvalidFile, Skipped};

/// How long a connection may take to be made, unless set.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an attempt may take, unless set.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long nothing may arrive, unless set.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an OpenAPI document may take.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a response that is taken as a whole, unless set.
const RESPONSE_BYTES: u64 = 8 * 1024 * 1024;
/// Bytes that can be set: more cannot be kept as a result.
const RESPONSE_BYTES_MAX: u64 = run::limit::OBJECT_BYTES_MAX;

/// A file that was read.
#[derive(Debug)]
pub(super) struct File {
    pub(super) egress: Egress,
    pub(super) authorities: Option<Vec<u8>>,
    pub(super) entries: Vec<Entry>,
    pub(super) connect_timeouts: BTreeSet<Duration>,
    pub(super) secret_files: Vec<PathBuf>,
}

/// An entry and its place in the file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) place: String,
    pub(super) tool: Tool,
}

#[derive(Debug)]
pub(super) enum Tool {
    Single(Box<Single>),
    Document(Box<Operations>),
}

/// One tool, complete.
#[derive(Debug, Clone)]
pub(super) struct Single {
    pub(super) name: String,
    pub(super) input_schema: Value,
    method: Method,
    url: String,
    places: BTreeMap<String, Place>,
    described: Described,
    settings: Settings,
}

/// Operations of a document.
#[derive(Debug)]
pub(super) struct Operations {
    source: Source,
    base_url: Option<Url>,
    prefix: String,
    wanted: Wanted,
    /// The fields of the manifests of all operations.
    described: Map<String, Value>,
    settings: Settings,
    /// Differences of single operations, by their ids.
    overrides: BTreeMap<String, Map<String, Value>>,
}

#[derive(Debug)]
enum Source {
    File(PathBuf),
    Url(Url),
}

/// What all requests of an entry have in common.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) headers: Vec<(HeaderName, Given)>,
    pub(super) query: Vec<(String, Given)>,
    body: BodyFormat,
    pub(super) idempotency_header: Option<HeaderName>,
    pub(super) caller_headers: bool,
    pub(super) connect_timeout: Duration,
    pub(super) response_bytes_max: usize,
}

/// The fields of [`Settings`] as they are written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    headers: BTreeMap<String, Value>,
    query: BTreeMap<String, Value>,
    body: BodyFormat,
    idempotency_header: Option<String>,
    caller_headers: bool,
    connect_timeout_ms: Option<u64>,
    response_bytes_max: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct WrittenEgress {
    allow: Option<Vec<String>>,
    addresses: Vec<String>,
    pub(super) ca: Option<PathBuf>,
}

/// Reads a file and checks all that can be checked without a document.
pub(super) fn read(path: &Path) -> Result<File, InvalidFile> {
    let mut top = source::read(path)?;
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    let wrong =
        |place: &str, error: String| InvalidFile::Entry { path: path.to_owned(), place: place.to_owned(), error };
    let mut entries = Vec::new();
    for (kind, parse) in [
        ("tool", single as fn(Map<String, Value>, &Path) -> Result<Tool, String>),
        ("openapi", operations as fn(Map<String, Value>, &Path) -> Result<Tool, String>),
    ] {
        let list = source::entries(&mut top, kind).map_err(|error| wrong(kind, error))?;
        for (number, table) in list.into_iter().enumerate() {
            let name = table.get("name").and_then(Value::as_str).map(|name| format!(" ({name})")).unwrap_or_default();
            let place = format!("{kind} {}{name}", number + 1);
            let tool = parse(table, &folder).map_err(|error| wrong(&place, error))?;
            entries.push(Entry { place, tool });
        }
    }
    let written: WrittenEgress = match top.remove("egress") {
        Some(egress) => serde_json::from_value(egress).map_err(|error| wrong("egress", error.to_string()))?,
        None => WrittenEgress::default(),
    };
    if let Some(other) = top.keys().next() {
        return Err(wrong("its top", format!("there is no {other:?}: write tool, openapi or egress")));
    }
    let authorities = written.ca.as_ref().map(|ca| std::fs::read(folder.join(ca))).transpose();
    let authorities = authorities.map_err(|error| wrong("egress", format!("ca cannot be read: {error}")))?;
    let urls: Vec<Url> = entries.iter().flat_map(Entry::urls).collect();
    let egress = written.rules(&urls).map_err(|error| wrong("egress", error))?;
    for entry in &entries {
        entry.urls().try_for_each(|url| egress.check(&url)).map_err(|error| wrong(&entry.place, error.to_string()))?;
    }
    let settings = || entries.iter().map(Entry::settings);
    let mut connect_timeouts: BTreeSet<Duration> = settings().map(|settings| settings.connect_timeout).collect();
    connect_timeouts.insert(CONNECT_TIMEOUT);
    let given = settings().flat_map(Settings::given).filter_map(|given| Some(given.file()?.to_owned()));
    let secret_files = given.collect();
    Ok(File { egress, authorities, connect_timeouts, secret_files, entries })
}

impl WrittenEgress {
    /// The rules as they are written; unless they are, the hosts of the file's addresses.
    pub(super) fn rules(&self, urls: &[Url]) -> Result<Egress, String> {
        let hosts = match &self.allow {
            Some(allow) => allow.iter().map(|host| host.parse()).collect::<Result<Vec<HostRule>, _>>()?,
            None => urls.iter().filter_map(HostRule::of).collect(),
        };
        let networks = self.addresses.iter().map(|network| network.parse());
        Ok(Egress { hosts, networks: networks.collect::<Result<Vec<Network>, _>>()? })
    }
}

impl Entry {
    /// The addresses that the file names.
    fn urls(&self) -> impl Iterator<Item = Url> {
        let urls = match &self.tool {
            Tool::Single(single) => vec![Url::parse(&plain(&single.url)).ok()],
            Tool::Document(document) => vec![
                document.base_url.clone(),
                match &document.source {
                    Source::Url(url) => Some(url.clone()),
                    Source::File(_) => None,
                },
            ],
        };
        urls.into_iter().flatten()
    }

    fn settings(&self) -> &Settings {
        match &self.tool {
            Tool::Single(single) => &single.settings,
            Tool::Document(document) => &document.settings,
        }
    }
}

impl Settings {
    pub(super) fn given(&self) -> impl Iterator<Item = &Given> {
        self.headers.iter().map(|(_, given)| given).chain(self.query.iter().map(|(_, given)| given))
    }

    /// Takes its fields from a table, which must have no others left.
    pub(super) fn parse(table: Map<String, Value>, folder: &Path) -> Result<Self, String> {
        let written: Written = serde_json::from_value(Value::Object(table)).map_err(|error| error.to_string())?;
        let header = |name: &str| name.parse::<HeaderName>().map_err(|_| format!("{name:?} is no name of a header"));
        let given = |kind: &str, name: &str, value: &Value| {
            Given::parse(value, folder).map_err(|error| format!("{kind}.{name}: {error}"))
        };
        let headers = written.headers.iter().map(|(name, value)| Ok((header(name)?, given("headers", name, value)?)));
        let query = written.query.iter().map(|(name, value)| Ok((name.clone(), given("query", name, value)?)));
        let bytes = written.response_bytes_max.unwrap_or(RESPONSE_BYTES);
        if !(1..=RESPONSE_BYTES_MAX).contains(&bytes) {
            return Err(format!("response_bytes_max is {bytes}: write 1 to {RESPONSE_BYTES_MAX}"));
        }
        let connect = written.connect_timeout_ms.map_or(CONNECT_TIMEOUT, Duration::from_millis);
        if connect.is_zero() || connect > TIMEOUT {
            return Err(format!("connect_timeout_ms is {}: write 1 to {}", connect.as_millis(), TIMEOUT.as_millis()));
        }
        Ok(Self {
            headers: headers.collect::<Result<_, String>>()?,
            query: query.collect::<Result<_, String>>()?,
            body: written.body,
            idempotency_header: written.idempotency_header.as_deref().map(header).transpose()?,
            caller_headers: written.caller_headers,
            connect_timeout: connect,
            response_bytes_max: usize::try_from(bytes).unwrap_or(usize::MAX),
        })
    }
}

/// An address without arguments.
fn plain(url: &str) -> String {
    openapi::holes(url).iter().fold(url.to_owned(), |url, hole| url.replace(&format!("{{{hole}}}"), "x"))
}

fn single(mut table: Map<String, Value>, folder: &Path) -> Result<Tool, String> {
    let name = source::text(&mut table, "name")?.ok_or("it has no name")?;
    let url = source::text(&mut table, "url")?.ok_or("it has no url")?;
    let method = method(source::text(&mut table, "method")?.as_deref().unwrap_or("GET"))?;
    let input_schema = source::schema(&mut table, "input_schema")?;
    let described = Described::take(&mut table)?;
    let parsed = Url::parse(&plain(&url)).map_err(|error| format!("url {url:?} is no address: {error}"))?;
    let authority = url.split_once("://").and_then(|(_, rest)| rest.split(['/', '?', '#']).next()).unwrap_or_default();
    if authority.contains('{') || parsed.fragment().is_some() {
        return Err(format!("url {url:?} is not usable: arguments go behind the host, and it has no fragment"));
    }
    let mut places = BTreeMap::new();
    for hole in openapi::holes(&url) {
        if input_schema["properties"].get(hole).is_none() {
            return Err(format!("url has {{{hole}}}, which is no property of input_schema"));
        }
        places.insert(hole.to_owned(), Place::Path(hole.to_owned()));
    }
    let written: BTreeMap<String, String> = match table.remove("send") {
        Some(send) => serde_json::from_value(send).map_err(|error| format!("send: {error}"))?,
        None => BTreeMap::new(),
    };
    for (argument, place_name) in written {
        if input_schema["properties"].get(&argument).is_none() || places.contains_key(&argument) {
            return Err(format!("send.{argument}: it is no property of input_schema, or is in the url"));
        }
        let place = place(&argument, &place_name).map_err(|error| format!("send.{argument}: {error}"))?;
        places.insert(argument, place);
    }
    let settings = Settings::parse(table, folder)?;
    Ok(Tool::Single(Box::new(Single { name, input_schema, method, url, places, described, settings })))
}

/// `query`, `query:name`, `header:X-Name`, `field`, `field:name`, `body`.
fn place(argument: &str, text: &str) -> Result<Place, String> {
    let (kind, name) = text.split_once(':').unwrap_or((text, argument));
    match kind {
        "query" => Ok(Place::Query(name.to_owned(), Several::default())),
        "header" => Ok(Place::Header(openapi::argument_header(name)?)),
        "field" => Ok(Place::Field(name.to_owned())),
        "body" if kind == text => Ok(Place::Body),
        _ => Err(format!("{text:?} is no place: write query, query:name, header:Name, field, field:name or body")),
    }
}

fn method(text: &str) -> Result<Method, String> {
    let known = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let found = known.into_iter().find(|method| method.as_str() == text.to_ascii_uppercase());
    found.ok_or_else(|| format!("method {text:?} is none of GET, HEAD, POST, PUT, PATCH and DELETE"))
}

/// The effects that a method has by its definition.
fn effects_of(method: &Method) -> Effects {
    let read_only = matches!(*method, Method::GET | Method::HEAD);
    Effects {
        read_only,
        idempotent: read_only || matches!(*method, Method::PUT | Method::DELETE),
        destructive: *method == Method::DELETE,
        open_world: true,
        uses_machine: false,
    }
}

impl Single {
    /// The tool, and its manifest.
    pub(super) fn endpoint(&self, client: &Arc<Client>) -> (Endpoint, About) {
        let settings = self.settings.clone();
        let has_body = matches!(self.method, Method::POST | Method::PUT | Method::PATCH);
        let endpoint = Endpoint {
            client: Arc::clone(client),
            method: self.method.clone(),
            url: self.url.clone(),
            places: self.places.clone(),
            others: if has_body { Others::Body } else { Others::Query },
            headers: settings.headers,
            query: settings.query,
            body: settings.body,
            idempotency_header: settings.idempotency_header,
            caller_headers: settings.caller_headers,
            connect_timeout: settings.connect_timeout,
            idle_timeout: self.described.idle_timeout(IDLE_TIMEOUT),
            response_bytes_max: settings.response_bytes_max,
            repeatable: self.described.is_repeatable(effects_of(&self.method)),
        };
        (endpoint, self.described.about(Origin::External, effects_of(&self.method), TIMEOUT))
    }
}

fn operations(mut table: Map<String, Value>, folder: &Path) -> Result<Tool, String> {
    let file = source::text(&mut table, "file")?.map(|file| Source::File(folder.join(file)));
    let address = |text: String| Url::parse(&text).map_err(|error| format!("{text:?} is no address: {error}"));
    let url = source::text(&mut table, "url")?.map(address).transpose()?.map(Source::Url);
    let ((Some(source), None) | (None, Some(source))) = (file, url) else {
        return Err("write either file or url".to_owned());
    };
    let list = |table: &mut Map<String, Value>, name: &str| match table.remove(name) {
        None => Ok(Vec::new()),
        Some(list) => serde_json::from_value::<Vec<String>>(list).map_err(|error| format!("{name}: {error}")),
    };
    let wanted = Wanted {
        operations: globs(&list(&mut table, "operations")?)?,
        tags: list(&mut table, "tags")?.into_iter().collect(),
        paths: globs(&list(&mut table, "paths")?)?,
    };
    let overrides = table.remove("override").map(serde_json::from_value).transpose();
    Ok(Tool::Document(Box::new(Operations {
        source,
        base_url: source::text(&mut table, "base_url")?.map(address).transpose()?,
        prefix: source::text(&mut table, "prefix")?.unwrap_or_default(),
        wanted,
        described: described_of(&mut table)?,
        overrides: overrides.map_err(|error| format!("override: {error}"))?.unwrap_or_default(),
        settings: Settings::parse(table, folder)?,
    })))
}

/// The fields of all operations' manifests, which are of use.
fn described_of(table: &mut Map<String, Value>) -> Result<Map<String, Value>, String> {
    let fields = Described::fields(table);
    Described::read(fields.clone()).map(|_| fields)
}

fn globs(patterns: &[String]) -> Result<Option<GlobSet>, String> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(Glob::new(pattern).map_err(|error| error.to_string())?);
    }
    let set = set.build().map_err(|error| error.to_string())?;
    Ok((!patterns.is_empty()).then_some(set))
}

impl Operations {
    /// The wanted operations of the document, as tools.
    pub(super) async fn operations(&self, client: &Client) -> Result<Vec<Result<Single, Skipped>>, String> {
        let (bytes, url) = match &self.source {
            Source::File(path) => {
                let bytes = source::bytes(path, DOCUMENT_BYTES_MAX);
                (bytes.map_err(|error| format!("{} cannot be read: {error}", path.display()))?.into(), None)
            }
            Source::Url(url) => (self.fetch(client, url).await?, Some(url)),
        };
        let document = Document::parse(&bytes)?;
        let base = self.base_url.clone().or_else(|| document.server(url));
        let base = base.ok_or("the document has no server with a complete address: write base_url")?;
        client.check(&base).map_err(|error| error.to_string())?;
        let mut used = BTreeSet::new();
        let operations: Vec<Result<Single, Skipped>> = document
            .operations(&self.wanted)
            .into_iter()
            .map(|operation| {
                let operation = operation?;
                used.insert(operation.id.clone());
                let place = format!("{} {}", operation.method, operation.path);
                self.tool(&base, operation).map_err(|reason| Skipped { place, reason })
            })
            .collect();
        match self.overrides.keys().find(|id| !used.contains(*id)) {
            Some(id) => Err(format!("override.{id}: no wanted operation has this id")),
            None => Ok(operations),
        }
    }

    fn tool(&self, base: &Url, operation: openapi::Operation) -> Result<Single, String> {
        let mut changes = self.overrides.get(&operation.id).cloned().unwrap_or_default();
        let name = source::text(&mut changes, "name")?;
        let name = name.unwrap_or_else(|| openapi::name(&format!("{}{}", self.prefix, operation.name)));
        let mut fields = self.described.clone();
        fields.extend(Described::fields(&mut changes));
        let mut described = Described::read(fields)?;
        let fill = |field: &mut String, text: &str| {
            if field.is_empty() {
                text.clone_into(field);
            }
        };
        fill(&mut described.title, &operation.title);
        fill(&mut described.description, &operation.description);
        described.streaming |= operation.streaming;
        let mut settings = self.settings.clone();
        if let Some(name) = source::text(&mut changes, "idempotency_header")? {
            settings.idempotency_header = Some(name.parse().map_err(|_| format!("{name:?} is no name of a header"))?);
        }
        if let Some(other) = changes.keys().next() {
            return Err(format!("override.{}: {other} cannot be set for one operation", operation.id));
        }
        settings.body = operation.body;
        let url = format!("{}{}", base.as_str().trim_end_matches('/'), operation.path);
        let openapi::Operation { method, places, input_schema, .. } = operation;
        Ok(Single { name, input_schema, method, url, places, described, settings })
    }

    async fn fetch(&self, client: &Client, url: &Url) -> Result<Bytes, String> {
        let mut headers = HeaderMap::new();
        for (name, given) in &self.settings.headers {
            let value = given.read()?.parse().map_err(|_| format!("headers.{name} cannot be sent"))?;
            headers.insert(name, value);
        }
        let outgoing = Outgoing { method: Method::GET, url: url.clone(), headers, body: Bytes::new() };
        let fetching = async {
            let response = client.send(outgoing, CONNECT_TIMEOUT).await.map_err(|error| error.to_string())?;
            if !response.status().is_success() {
                return Err(format!("it was answered with {}", response.status()));
            }
            let max = usize::try_from(DOCUMENT_BYTES_MAX).unwrap_or(usize::MAX);
            let body = Limited::new(response.into_body(), max).collect().await;
            Ok(body.map_err(|error| format!("{error} (at most {max} bytes are read)"))?.to_bytes())
        };
        let fetched = tokio::time::timeout(DOCUMENT_TIMEOUT, fetching).await;
        let fetched = fetched.unwrap_or_else(|_| Err(format!("it took longer than {DOCUMENT_TIMEOUT:?}")));
        fetched.map_err(|error| format!("{} cannot be fetched: {error}", url.host_str().unwrap_or_default()))
    }
}
