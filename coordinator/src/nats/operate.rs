//! Operations on the streams at the broker while coordinators run: reading and changing their sizes, backup and
//! restore.

use std::io::{self, Read, Write};
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, Request};
use bytes::Bytes;
use futures::StreamExt as _;
use nats::Credentials;
use nats::access::Party;
use proto::names;
use run::Partition;
use serde::Deserialize;
use serde_json::{Value, json};

use super::durability::Durability;
use super::journal::ROOM_PERCENT;
use super::setup::{RETENTION, SIZED_BY_LOG, bucket_bytes, partition_subjects};

/// How long the broker may take for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a restored stream may take to appear.
const RESTORED_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the broker may pause while it sends a copy of a stream.
const SILENCE: Duration = Duration::from_secs(30);
/// Size of one message of a copy. The broker rejects messages above its limit.
const CHUNK_BYTES: usize = 128 << 10;
/// The broker's error code for a missing stream.
const NO_STREAM: u64 = 10_059;

/// Streams in a backup, in their order. Schedules come before the log: one that is older than the log fires again, and
/// the request id keeps it from a second run, while one that is newer would miss a firing. Then the log: a request id
/// that is newer than the log opens its run again, while a run whose id is missing could be opened twice. Objects come
/// last, so that all objects to which the log refers are included. What is carried comes right after the log: entries
/// that left the log before it was copied are there.
fn backed_up() -> impl Iterator<Item = &'static str> {
    let behind = [
        "KV_ty-carried",
        names::WEBHOOKS_STREAM,
        "KV_ty-requests",
        "KV_ty-tools",
        "KV_ty-pauses",
        "KV_ty-records",
        names::OBJECTS,
    ];
    ["KV_ty-schedules"].into_iter().chain(names::STREAMS).chain(behind)
}
/// Streams that a coordinator creates if they are missing, and that are not backed up.
const MADE_ANEW: [&str; 2] = ["KV_ty-leases", "KV_ty-snapshots"];

#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    #[error(transparent)]
    Connect(#[from] nats::ConnectError),
    #[error(
        "the broker did not answer the {what}: {reason}. Check that it has a leader (`toolyard doctor`), and that \
        the key is the operator's (operator.nk of `toolyard nats-config`)"
    )]
    NoAnswer { what: String, reason: String },
    #[error("the broker refused the {what}: {reason}{}", hint(.reason))]
    Refused { what: String, reason: String },
    #[error("{stream} has {used} bytes: with {asked} it would be full. Give at least {least}")]
    TooSmall { stream: &'static str, used: u64, asked: u64, least: u64 },
    #[error("{stream} has {used} messages: with {asked} it would be full. Give at least {least}")]
    TooFew { stream: &'static str, used: u64, asked: u64, least: u64 },
    #[error(
        "entries must be kept for at least {} h, because a call may be executed for a day",
        RETENTION.as_secs() / 3600
    )]
    TooShort,
    #[error(
        "the log has {found} partition{}, and may have {} at most: partitions are added and never removed, so give a \
        number between the two, not {asked}",
        if *.found == 1 { "" } else { "s" }, Partition::MAX
    )]
    Partitions { found: usize, asked: usize },
    #[error("there is no {0} at the broker: start a coordinator, which creates it")]
    NoStream(String),
    #[error(
        "{} at the broker: restore into a broker that has none of them, before coordinators start. If a restore was \
        interrupted, empty its data folder first",
        are_there(.0)
    )]
    NotEmpty(Vec<String>),
    #[error("copying {stream} was interrupted: {reason}")]
    BrokenOff { stream: String, reason: String },
    #[error("cannot read or write the copy of {stream}: {source}")]
    File { stream: String, source: io::Error },
}

fn hint(reason: &str) -> &'static str {
    if reason.contains("insufficient") {
        ". Its servers may lack the space: raise max_file_store (`--store-bytes` of `toolyard nats-config`) and \
        reload them"
    } else {
        ""
    }
}

fn are_there(streams: &[String]) -> String {
    format!("{} {} already", streams.join(", "), if streams.len() == 1 { "is there" } else { "are there" })
}

/// The present state of a stream.
#[derive(Debug, Clone)]
pub struct StreamUsage {
    pub name: String,
    pub bytes: u64,
    /// `None`: no limit.
    pub bytes_max: Option<u64>,
    pub messages: u64,
    /// `None`: no limit.
    pub messages_max: Option<u64>,
    /// Subjects with messages. Each server keeps them in memory.
    pub subjects: u64,
    /// For how long messages are kept. `None`: for ever.
    pub age_max: Option<Duration>,
    pub replicas: u64,
}

/// A setting of a stream that was changed.
#[derive(Debug, Clone)]
pub struct Changed {
    pub stream: String,
    pub before: u64,
    pub after: u64,
}

/// A connection with the operator's key.
#[derive(Debug)]
pub struct Operator {
    client: Client,
    context: Context,
}

#[derive(Deserialize)]
struct Info {
    config: Value,
    state: State,
}

#[derive(Deserialize)]
struct State {
    messages: u64,
    bytes: u64,
    #[serde(default)]
    num_subjects: u64,
}

impl Info {
    fn number(&self, setting: &str) -> u64 {
        self.config.get(setting).and_then(Value::as_u64).unwrap_or(0)
    }
}

impl Operator {
    /// # Errors
    /// If the broker cannot be reached or rejects the credentials.
    pub async fn connect(nats_url: &str, credentials: &Credentials) -> Result<Self, OperateError> {
        let client = nats::connect(nats_url, credentials, "toolyard-operator", &Party::Operator).await?;
        let context = ContextBuilder::new().timeout(REQUEST_TIMEOUT).build(client.clone());
        Ok(Self { client, context })
    }

    /// All of our streams.
    ///
    /// # Errors
    /// If the broker does not answer, or has no log.
    pub async fn usage(&self) -> Result<Vec<StreamUsage>, OperateError> {
        let (log, mut found) = (self.log().await?, Vec::new());
        let is_made = |stream: &&str| !names::STREAMS.contains(stream) || log.contains(stream);
        for stream in backed_up().filter(is_made).chain(MADE_ANEW) {
            let Some(info) = self.info(stream).await? else { continue };
            let age_max = Duration::from_nanos(info.number("max_age"));
            found.push(StreamUsage {
                name: stream.to_owned(),
                bytes: info.state.bytes,
                bytes_max: Some(info.number("max_bytes")).filter(|most| *most > 0),
                messages: info.state.messages,
                messages_max: Some(info.number("max_msgs")).filter(|most| *most > 0),
                subjects: info.state.num_subjects,
                age_max: Some(age_max).filter(|age| !age.is_zero()),
                replicas: info.number("num_replicas"),
            });
        }
        Ok(found)
    }

    /// The streams of the log, one for each partition.
    async fn log(&self) -> Result<Vec<&'static str>, OperateError> {
        let mut found = Vec::new();
        for stream in names::STREAMS {
            if self.info(stream).await?.is_none() {
                break;
            }
            found.push(stream);
        }
        if found.is_empty() { Err(OperateError::NoStream(names::STREAM.to_owned())) } else { Ok(found) }
    }

    /// Adds partitions to the log until it has `count`, each with the settings of the first one. Coordinators and
    /// workers find them within seconds, and runs that are open stay where they are. Returns the names of the new
    /// streams.
    ///
    /// # Errors
    /// If the log has more already, or the broker has no room.
    pub async fn partition(&self, count: usize) -> Result<Vec<String>, OperateError> {
        let log = self.log().await?;
        if count < log.len() || count > Partition::MAX {
            return Err(OperateError::Partitions { found: log.len(), asked: count });
        }
        let first = self.needed(names::STREAM).await?.config;
        let mut made = Vec::new();
        for partition in Partition::first(count) {
            let stream = names::stream(partition);
            let mut config = if partition == Partition::FIRST { first.clone() } else { further(&first, partition) };
            let subjects = partition_subjects(partition);
            if partition == Partition::FIRST {
                // It had all subjects as long as it was alone.
                if count > 1 && config.get("subjects") != Some(&json!(subjects)) {
                    config["subjects"] = json!(subjects);
                    self.ask("UPDATE", stream, &config).await?;
                }
            } else if !log.contains(&stream) {
                self.ask("CREATE", stream, &config).await?;
                made.push(stream.to_owned());
            }
        }
        if let Some(bytes) = first.get("max_bytes").and_then(Value::as_i64).filter(|bytes| *bytes > 0 && count > 1) {
            self.resize_buckets(bytes.saturating_mul(i64::try_from(count).unwrap_or(1))).await?;
        }
        Ok(made)
    }

    /// Sets the size of each partition of the log, and of the buckets that depend on it.
    ///
    /// # Errors
    /// If the log has more already, or the broker has no room.
    pub async fn resize(&self, bytes: u64) -> Result<Vec<Changed>, OperateError> {
        let (log, log_bytes) = (self.log().await?, i64::try_from(bytes).unwrap_or(i64::MAX));
        for stream in &log {
            self.must_hold(stream, bytes).await?;
        }
        let mut changed = Vec::new();
        for stream in &log {
            changed.extend(self.set(stream, "max_bytes", bytes).await?);
        }
        changed.extend(self.resize_buckets(log_bytes.saturating_mul(i64::try_from(log.len()).unwrap_or(1))).await?);
        Ok(changed)
    }

    /// Gives the buckets beside the log their part of its bytes in all partitions.
    async fn resize_buckets(&self, log_bytes: i64) -> Result<Vec<Changed>, OperateError> {
        let mut changed = Vec::new();
        for bucket in SIZED_BY_LOG {
            let stream = format!("KV_{bucket}");
            let Some(info) = self.info(&stream).await? else { continue };
            let part = u64::try_from(bucket_bytes(bucket, log_bytes)).unwrap_or(0);
            // The content is kept, however small the log becomes.
            if info.state.bytes < part {
                changed.extend(self.set(&stream, "max_bytes", part).await?);
            }
        }
        Ok(changed)
    }

    /// Sets the bound of messages of each partition of the log.
    ///
    /// # Errors
    /// If the log has more already.
    pub async fn bound_messages(&self, messages: u64) -> Result<Vec<Changed>, OperateError> {
        let (log, mut changed) = (self.log().await?, Vec::new());
        for stream in &log {
            let used = self.needed(stream).await?.state.messages;
            let least = least(used);
            if messages < least {
                return Err(OperateError::TooFew { stream, used, asked: messages, least });
            }
        }
        for stream in log {
            changed.extend(self.set(stream, "max_msgs", messages).await?);
        }
        Ok(changed)
    }

    /// Sets the size of the object store.
    ///
    /// # Errors
    /// If the objects take more already, or the broker has no room.
    pub async fn resize_objects(&self, bytes: u64) -> Result<Vec<Changed>, OperateError> {
        self.must_hold(names::OBJECTS, bytes).await?;
        Ok(Vec::from_iter(self.set(names::OBJECTS, "max_bytes", bytes).await?))
    }

    /// New work is rejected when the log is filled to a percentage, so more is needed.
    async fn must_hold(&self, stream: &'static str, bytes: u64) -> Result<(), OperateError> {
        let used = self.needed(stream).await?.state.bytes;
        let least = least(used);
        if bytes < least { Err(OperateError::TooSmall { stream, used, asked: bytes, least }) } else { Ok(()) }
    }

    /// Sets how long entries and related data are kept.
    ///
    /// # Errors
    /// The time is shorter than runs may last.
    pub async fn retain(&self, age: Duration) -> Result<Vec<Changed>, OperateError> {
        if age < RETENTION {
            return Err(OperateError::TooShort);
        }
        let nanos = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let mut changed = Vec::new();
        // In this order, objects outlive the entries that refer to them, even if this is interrupted.
        let mut streams = vec![names::OBJECTS, "KV_ty-requests"];
        streams.extend(self.log().await?);
        if nanos < self.needed(names::STREAM).await?.number("max_age") {
            streams.reverse();
        }
        for stream in streams {
            if self.info(stream).await?.is_some() {
                changed.extend(self.set(stream, "max_age", nanos).await?);
            }
        }
        Ok(changed)
    }

    /// Lets coordinators decide how long the bucket of request ids keeps each of them (`allow_msg_ttl`). Buckets of
    /// earlier releases do not. Returns whether that was changed.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub async fn let_request_ids_expire(&self) -> Result<bool, OperateError> {
        let stream = "KV_ty-requests";
        let Some(info) = self.info(stream).await? else { return Ok(false) };
        let mut config = info.config;
        if let Some(settings) = config.as_object_mut()
            && settings.insert("allow_msg_ttl".to_owned(), true.into()) != Some(true.into())
        {
            self.ask("UPDATE", stream, &config).await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Gives every stream the number of copies of the profile.
    ///
    /// # Errors
    /// The broker has too few servers.
    pub async fn replicate(&self, durability: Durability) -> Result<Vec<Changed>, OperateError> {
        let replicas = u64::try_from(durability.replicas()).unwrap_or(1);
        let mut changed = Vec::new();
        for usage in self.usage().await? {
            changed.extend(self.set(&usage.name, "num_replicas", replicas).await?);
        }
        Ok(changed)
    }

    /// The streams that a backup of this broker has, and their bytes.
    ///
    /// # Errors
    /// If the broker does not answer, or has no log.
    pub async fn to_back_up(&self) -> Result<Vec<StreamUsage>, OperateError> {
        let mut usage = self.usage().await?;
        usage.retain(|stream| backed_up().any(|name| name == stream.name));
        Ok(usage)
    }

    /// Writes a copy of a stream. Returns its settings, which restoring needs beside the copy. `progress` is called
    /// with the bytes of each part.
    ///
    /// The positions of queues are not copied, because they may be ahead of the copy. Coordinators create the queues
    /// again, which then deliver every job, and jobs that have ended are acknowledged and not run.
    ///
    /// # Errors
    /// If the broker stops sending, or the copy cannot be written.
    pub async fn back_up(
        &self,
        stream: &str,
        to: &mut (impl Write + Send),
        mut progress: impl FnMut(usize) + Send,
    ) -> Result<Value, OperateError> {
        let broken_off = |reason: String| OperateError::BrokenOff { stream: stream.to_owned(), reason };
        let inbox = self.client.new_inbox();
        let mut chunks = self.client.subscribe(inbox.clone()).await.map_err(|error| broken_off(error.to_string()))?;
        let asked = json!({ "deliver_subject": inbox, "chunk_size": CHUNK_BYTES, "no_consumers": true });
        let settings = self.ask("SNAPSHOT", stream, &asked).await?;
        loop {
            let chunk = tokio::time::timeout(SILENCE, chunks.next()).await;
            let chunk = chunk.map_err(|_| broken_off(format!("the broker sent nothing for {SILENCE:?}")))?;
            let chunk = chunk.ok_or_else(|| broken_off("the connection was lost".to_owned()))?;
            if let Some(status) = chunk.status.filter(|status| status.as_u16() >= 400) {
                return Err(broken_off(chunk.description.unwrap_or_else(|| status.to_string())));
            }
            if chunk.payload.is_empty() {
                return Ok(json!({ "config": settings.get("config"), "state": settings.get("state") }));
            }
            to.write_all(&chunk.payload).map_err(|source| OperateError::File { stream: stream.to_owned(), source })?;
            progress(chunk.payload.len());
            if let Some(reply) = chunk.reply {
                let acknowledged = self.client.publish(reply, Bytes::new()).await;
                acknowledged.map_err(|error| broken_off(error.to_string()))?;
            }
        }
    }

    /// Fails if a restore would overwrite a stream.
    ///
    /// # Errors
    /// If one of our streams exists.
    pub async fn must_be_empty(&self) -> Result<(), OperateError> {
        let mut there = Vec::new();
        let is_asked = |stream: &&str| *stream == names::STREAM || !names::STREAMS.contains(stream);
        for stream in backed_up().filter(is_asked).chain(MADE_ANEW) {
            if self.info(stream).await?.is_some() {
                there.push(stream.to_owned());
            }
        }
        if there.is_empty() { Ok(()) } else { Err(OperateError::NotEmpty(there)) }
    }

    /// Restores a stream from its copy, with the settings that [`Self::back_up`] returned.
    ///
    /// # Errors
    /// If the copy cannot be read, or the broker rejects it.
    pub async fn restore(
        &self,
        stream: &str,
        settings: &Value,
        from: &mut (impl Read + Send),
        mut progress: impl FnMut(usize) + Send,
    ) -> Result<(), OperateError> {
        let begun = self.ask("RESTORE", stream, settings).await?;
        let to = begun.get("deliver_subject").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let read =
                fill(from, &mut chunk).map_err(|source| OperateError::File { stream: stream.to_owned(), source })?;
            let payload = Bytes::copy_from_slice(chunk.get(..read).unwrap_or_default());
            // An empty message ends the copy, and is answered when the stream exists.
            let patience = if read == 0 { RESTORED_TIMEOUT } else { SILENCE };
            let request = Request::new().payload(payload).timeout(Some(patience));
            let answer = self.client.send_request(to.clone(), request).await;
            let answer = answer
                .map_err(|error| OperateError::BrokenOff { stream: stream.to_owned(), reason: error.to_string() })?;
            if !answer.payload.is_empty() {
                checked(
                    &format!("restore of {stream}"),
                    serde_json::from_slice(&answer.payload).unwrap_or(Value::Null),
                )?;
            }
            if read == 0 {
                return Ok(());
            }
            progress(read);
        }
    }

    async fn needed(&self, stream: &str) -> Result<Info, OperateError> {
        self.info(stream).await?.ok_or_else(|| OperateError::NoStream(stream.to_owned()))
    }

    /// `None` if there is no such stream.
    async fn info(&self, stream: &str) -> Result<Option<Info>, OperateError> {
        let what = format!("info of {stream}");
        let answer = self.request("INFO", stream, &json!({}), &what).await?;
        if answer.pointer("/error/err_code").and_then(Value::as_u64) == Some(NO_STREAM) {
            return Ok(None);
        }
        let info = serde_json::from_value(checked(&what, answer)?);
        info.map(Some).map_err(|error| OperateError::Refused { what, reason: error.to_string() })
    }

    /// Changes one setting, and keeps all others, including those that this release does not know.
    async fn set(&self, stream: &str, setting: &str, value: u64) -> Result<Option<Changed>, OperateError> {
        let info = self.needed(stream).await?;
        let before = info.number(setting);
        if before == value {
            return Ok(None);
        }
        let mut config = info.config;
        if let Some(settings) = config.as_object_mut() {
            settings.insert(setting.to_owned(), value.into());
        }
        self.ask("UPDATE", stream, &config).await?;
        Ok(Some(Changed { stream: stream.to_owned(), before, after: value }))
    }

    async fn ask(&self, request: &str, stream: &str, what: &Value) -> Result<Value, OperateError> {
        let operation = format!("{} of {stream}", request.to_lowercase());
        checked(&operation, self.request(request, stream, what, &operation).await?)
    }

    async fn request(&self, request: &str, stream: &str, what: &Value, operation: &str) -> Result<Value, OperateError> {
        let answer = self.context.request(format!("STREAM.{request}.{stream}"), what).await;
        answer.map_err(|error| OperateError::NoAnswer { what: operation.to_owned(), reason: error.to_string() })
    }
}

/// The settings of another partition, which are those of the first one.
fn further(first: &Value, partition: Partition) -> Value {
    let mut config = first.clone();
    config["name"] = names::stream(partition).into();
    config["description"] = format!("Toolyard: partition {partition} of the log").into();
    config["subjects"] = json!(partition_subjects(partition));
    config
}

/// The least limit with which new work is accepted beside so much.
fn least(used: u64) -> u64 {
    used.saturating_mul(100) / ROOM_PERCENT + 1
}

fn checked(what: &str, answer: Value) -> Result<Value, OperateError> {
    match answer.pointer("/error/description").and_then(Value::as_str) {
        Some(reason) => Err(OperateError::Refused { what: what.to_owned(), reason: reason.to_owned() }),
        None => Ok(answer),
    }
}

/// Fills the chunk as far as there is data.
fn fill(from: &mut impl Read, chunk: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = chunk.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
