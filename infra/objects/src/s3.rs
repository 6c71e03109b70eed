//! Objects in a bucket: in pieces, each written once on condition that it does not exist, so that any part can be read
//! by itself. Not S3's multipart upload: its parts are written without a condition, cannot be read before the last one,
//! and remain, invisible and billed, if the uploader dies. Only this file and `s3/` name the library.

mod link;
mod place;
#[cfg(test)]
mod refusals;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, PutMode, PutOptions, RetryConfig};
use tokio::time::{Instant, sleep, timeout};

use self::link::Connector;
pub use self::place::{BucketLocation, InvalidBucket};
use crate::{ReadError, StoreError};

/// Bytes of each piece except the last: a whole number of chunks. Part of the format, because readers compute offsets
/// from it. Large, because a request costs the same whatever its size; an uploader has three pieces in memory.
pub(crate) const PIECE_BYTES: u64 = 4 * 1024 * 1024;

/// How long a request is retried, and the timeout of each try.
#[derive(Clone, Copy)]
struct Patience {
    whole: Duration,
    each: Duration,
}

/// Allows for a piece over a slow line, and for a store that fails over.
const TO_WRITE: Patience = Patience { whole: Duration::from_secs(20), each: Duration::from_secs(10) };
/// A client waits. A worker that waits for a chunk of a file repeats its request after 5 s.
const TO_READ: Patience = Patience { whole: Duration::from_secs(4), each: Duration::from_secs(2) };
/// A coordinator waits for it at its start.
const TO_TRY_OUT: Patience = Patience { whole: Duration::from_secs(4), each: Duration::from_secs(2) };
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// Characters of a store's error message that are passed on.
const SAID_CHARS_MAX: usize = 200;
const NO_BUCKET: &str = "NoSuchBucket";
/// Responses for which a retry makes no sense.
const FINAL: [&str; 6] = [
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    NO_BUCKET,
    "InvalidBucketName",
    "PermanentRedirect",
];

/// A bucket, or a prefix in it. Cheap to clone.
#[derive(Clone)]
pub struct Bucket {
    store: AmazonS3,
    place: BucketLocation,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The library's own implementation would show the key.
        f.debug_struct("Bucket").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Why a bucket cannot hold objects; permanent.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    #[error(
        "cannot {what} objects in {place}: {reason}. A coordinator's key needs PutObject, GetObject, DeleteObject and ListBucket"
    )]
    Refused { what: &'static str, place: String, reason: String },
    #[error("{0} writes over what lies there, for it does not know `If-None-Match: *`: objects need a store that does")]
    WritesOver(String),
}

impl Bucket {
    /// Sends nothing to the store yet. `var` reads the environment: the key, or where to get one.
    ///
    /// # Errors
    /// If only half of a key is given, or the machine has no trusted certificates.
    pub fn new(place: BucketLocation, var: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidBucket> {
        // Requests are retried here and nowhere else, because the library does not retry conditional ones.
        let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&place.bucket)
            .with_http_connector(Connector)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_allow_http(place.allow_http)
            .with_virtual_hosted_style_request(place.endpoint.is_none())
            .with_retry(once);
        for (name, key) in place::variables() {
            if let Some(value) = var(name).filter(|value| !value.is_empty()) {
                builder = builder.with_config(key, value);
            }
        }
        if let Some(endpoint) = &place.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &place.region {
            builder = builder.with_region(region);
        }
        let store = builder.build().map_err(|error| InvalidBucket::Unusable(reason(&error)))?;
        Ok(Self { store, place })
    }

    /// The store itself, for a library that retries requests. Its paths are those of the whole bucket.
    #[must_use]
    pub fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::new(self.store.clone())
    }

    /// What names in the bucket begin with; without a slash at its end, and may be empty.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.place.prefix
    }

    #[must_use]
    pub fn location(&self) -> &BucketLocation {
        &self.place
    }

    /// Checks the rights that a coordinator needs. A store that is not available may come back, so that is no error.
    ///
    /// # Errors
    /// If the store refuses a request, or overwrites an existing object.
    pub async fn check(&self) -> Result<(), BucketError> {
        let place = self.place.to_string();
        match self.try_out().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(BucketError::WritesOver(place)),
            Err((what, error)) if is_final(&error) => Err(BucketError::Refused { what, place, reason: reason(&error) }),
            Err((what, error)) => {
                tracing::warn!(place, what, error = reason(&error), "the object store could not be tried out");
                Ok(())
            }
        }
    }

    /// Whether an existing object is not overwritten.
    async fn try_out(&self) -> Result<bool, (&'static str, Error)> {
        let at = format!("ty.probe.{:016x}", rand::random::<u64>());
        let probe = format!("{at}.0");
        let data = Bytes::from_static(b"toolyard");
        let write = || async { self.create(&probe, data.clone(), TO_TRY_OUT).await.map_err(|error| ("write", error)) };
        write().await?;
        let stays = !write().await?;
        self.read(&probe, None, TO_TRY_OUT).await.map_err(|error| ("read", error))?;
        self.remove(&at, TO_TRY_OUT).await.map_err(|error| ("list and remove", error))?;
        Ok(stays)
    }

    pub(crate) async fn put(&self, subject: &str, data: Bytes) -> Result<(), StoreError> {
        // The existing object is our first copy, because nobody else knows the subject.
        self.create(subject, data, TO_WRITE).await.map(|_| ()).map_err(|error| StoreError::Unavailable(reason(&error)))
    }

    /// The object of a subject, or a part of it; `None` if there is none.
    pub(crate) async fn get(&self, subject: &str, span: Option<Range<u64>>) -> Result<Option<Bytes>, ReadError> {
        self.read(subject, span, TO_READ).await.map_err(|error| ReadError(reason(&error)))
    }

    pub(crate) async fn remove_all(&self, subjects: &str) -> Result<bool, ReadError> {
        self.remove(subjects.trim_end_matches(".>"), TO_WRITE).await.map_err(|error| ReadError(reason(&error)))
    }

    /// Whether it was stored now and did not exist before.
    async fn create(&self, subject: &str, data: Bytes, patience: Patience) -> Result<bool, Error> {
        let path = self.path(subject);
        let put = || {
            let options = PutOptions::from(PutMode::Create);
            self.store.put_opts(&path, data.clone().into(), options)
        };
        match patiently(patience, put).await {
            Ok(_) => Ok(true),
            Err(error) if is_there(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn read(&self, subject: &str, span: Option<Range<u64>>, patience: Patience) -> Result<Option<Bytes>, Error> {
        let path = self.path(subject);
        let get = || {
            let options = GetOptions::new().with_range(span.clone());
            let got = self.store.get_opts(&path, options);
            async { got.await?.bytes().await }
        };
        match patiently(patience, get).await {
            Ok(bytes) => Ok(Some(bytes)),
            // If the bucket does not exist, nothing is known about its objects.
            Err(error @ Error::NotFound { .. }) if code(&innermost(&error)) != Some(NO_BUCKET) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All objects below a subject.
    async fn remove(&self, below: &str, patience: Patience) -> Result<bool, Error> {
        let path = self.path(below);
        let remove = || {
            let found = self.store.list(Some(&path)).map_ok(|found| found.location).boxed();
            self.store.delete_stream(found).try_fold(false, |_, _| std::future::ready(Ok(true)))
        };
        patiently(patience, remove).await
    }

    /// A subject's tokens become the path's segments, so that keys can have rights by pool, as at the broker.
    fn path(&self, subject: &str) -> Path {
        Path::from(format!("{}/{}", self.place.prefix, subject.replace('.', "/")))
    }
}

/// Retries until there is a final response, or the time is over.
async fn patiently<T, F: Future<Output = Result<T, Error>>>(
    patience: Patience,
    mut ask: impl FnMut() -> F,
) -> Result<T, Error> {
    let (give_up, mut pause) = (Instant::now() + patience.whole, PAUSE);
    loop {
        let answer = timeout(patience.each, ask()).await.unwrap_or_else(|_| Err(silent(patience.each)));
        match answer {
            Err(error) if !is_final(&error) && Instant::now() + pause < give_up => {
                tracing::warn!(error = reason(&error), "the object store did not do what it was asked, asking again");
            }
            answer => return answer,
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
}

fn silent(patience: Duration) -> Error {
    Error::Generic { store: "S3", source: format!("no answer within {} s", patience.as_secs()).into() }
}

/// Whether the store reports an existing object. A conflict with a concurrent write is no such report.
fn is_there(error: &Error) -> bool {
    let Error::AlreadyExists { source, .. } = error else { return false };
    matches!(source.downcast_ref(), Some(Error::Precondition { .. } | Error::NotModified { .. }))
}

/// Whether a retry makes no sense.
fn is_final(error: &Error) -> bool {
    match error {
        Error::AlreadyExists { .. } => is_there(error),
        // For some requests the library reports only that they failed.
        Error::Generic { .. } => code(&innermost(error)).is_some_and(|code| FINAL.contains(&code)),
        Error::JoinError { .. } => false,
        _ => true,
    }
}

/// The error, without parts of the request that a store repeats, such as the key.
fn reason(error: &Error) -> String {
    let said = innermost(error);
    if let Some(code) = code(&said) {
        return format!("it says {code}");
    }
    said.lines().next().unwrap_or_default().chars().take(SAID_CHARS_MAX).collect()
}

fn innermost(error: &Error) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.last().map(ToString::to_string).unwrap_or_default()
}

fn code(said: &str) -> Option<&str> {
    let body = said.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code);
    // The library reports one key of a batch delete like this.
    let of_key = || said.strip_suffix(')')?.rsplit_once("(code: ").map(|(_, code)| code);
    body.or_else(of_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Error {
        Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn what_a_store_repeats_of_a_request_is_not_told_on() {
        let body = "Server returned non-2xx status code: 403 Forbidden: <?xml version=\"1.0\"?>\n<Error>\
            <Code>InvalidAccessKeyId</Code><AWSAccessKeyId>AKIASECRET</AWSAccessKeyId></Error>";
        let error = Error::PermissionDenied { path: "p".to_owned(), source: Box::new(said(body)) };
        assert_eq!((reason(&error).as_str(), is_final(&error)), ("it says InvalidAccessKeyId", true));
        assert!(is_final(&said(body)));
        let long = format!("<html>{}", "x".repeat(1000));
        assert_eq!((reason(&said(&long)).len(), is_final(&said(&long))), (SAID_CHARS_MAX, false));
        assert!(!is_final(&said("<Code>SlowDown</Code>")));
    }

    #[test]
    fn a_subject_is_a_path_below_the_prefix_if_there_is_one() {
        let key = |name: &str| name.starts_with("AWS_").then(|| "k".to_owned());
        let path = |url: &str| {
            let place = BucketLocation::parse(url, None, None, false).expect("a place");
            Bucket::new(place, key).expect("a bucket").path("ty.obj.run_0f_1.0.main.ff.0").to_string()
        };
        assert_eq!(path("s3://ours"), "ty/obj/run_0f_1/0/main/ff/0");
        assert_eq!(path("s3://ours/a/b/"), "a/b/ty/obj/run_0f_1/0/main/ff/0");
    }

    #[test]
    fn only_a_condition_that_does_not_hold_says_that_something_is_there() {
        let there = |source: Error| Error::AlreadyExists { path: String::new(), source: Box::new(source) };
        let failed = Error::Precondition { path: String::new(), source: "412".into() };
        assert!(is_there(&there(failed)));
        let under_way = there(said("<Code>ConditionalRequestConflict</Code>"));
        assert!(!is_there(&under_way) && !is_final(&under_way));
    }
}
