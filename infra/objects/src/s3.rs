//! Objects in a bucket: in pieces, each written once and under a condition that it is not there, so that any part is read without
//! what is before it. Not S3's multipart upload: its parts are written without a condition, cannot be read before the last, and
//! stay, unseen and paid for, where whoever brings them dies.
//! The only folder that names the library, with `s3/`.

mod link;
mod place;
#[cfg(test)]
mod refusals;

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore as _, PutMode, PutOptions, RetryConfig};
use tokio::time::{Instant, sleep, timeout};

use self::link::Connector;
pub use self::place::{InvalidBucket, Place};
use crate::{NotKept, Unread};

/// Bytes of each piece but the last: a whole number of chunks. Part of the format, as who reads counts with it. A request costs the same
/// whatever it carries; who brings an upload has three pieces in memory.
pub(crate) const PIECE_BYTES: u64 = 4 * 1024 * 1024;

/// How long something is asked for, and each time of them.
#[derive(Clone, Copy)]
struct Patience {
    whole: Duration,
    each: Duration,
}

/// A piece over a slow line, and a store that fails over.
const TO_WRITE: Patience = Patience { whole: Duration::from_secs(20), each: Duration::from_secs(10) };
/// Somebody waits. A worker that waits for a chunk of a file asks again after 5 s.
const TO_READ: Patience = Patience { whole: Duration::from_secs(4), each: Duration::from_secs(2) };
/// A coordinator waits for it before it begins.
const TO_TRY_OUT: Patience = Patience { whole: Duration::from_secs(4), each: Duration::from_secs(2) };
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// How much of what a store says is told on.
const SAID_CHARS_MAX: usize = 200;
const NO_BUCKET: &str = "NoSuchBucket";
/// Answers that are the same however often one asks.
const FINAL: [&str; 6] = [
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    NO_BUCKET,
    "InvalidBucketName",
    "PermanentRedirect",
];

/// A bucket, or what lies in it under a prefix. Cheap to clone.
#[derive(Clone)]
pub struct Bucket {
    store: AmazonS3,
    place: Place,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The library's own would show the key.
        f.debug_struct("Bucket").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Why a bucket cannot hold objects, however long one waits.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error(
        "cannot {what} objects in {place}: {reason}. A coordinator's key needs PutObject, GetObject, DeleteObject and ListBucket"
    )]
    Refused { what: &'static str, place: String, reason: String },
    #[error("{0} writes over what lies there, for it does not know `If-None-Match: *`: objects need a store that does")]
    WritesOver(String),
}

impl Bucket {
    /// Says nothing to the store yet. `var` reads the environment: the key, or where to get one.
    ///
    /// # Errors
    /// When half a key is given, or the machine has no certificates to trust.
    pub fn new(place: Place, var: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidBucket> {
        // Each request is tried again here and nowhere else: the library would not do it for those under a condition.
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

    /// Sees that a coordinator can do what it must. A store that is away may come back: that is no reason not to begin.
    ///
    /// # Errors
    /// When the store refuses something, or writes over what lies there.
    pub async fn check(&self) -> Result<(), Unfit> {
        let place = self.place.to_string();
        match self.try_out().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Unfit::WritesOver(place)),
            Err((what, error)) if is_final(&error) => Err(Unfit::Refused { what, place, reason: reason(&error) }),
            Err((what, error)) => {
                tracing::warn!(place, what, error = reason(&error), "the object store could not be tried out");
                Ok(())
            }
        }
    }

    /// Whether what lies there stays as it is.
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

    pub(crate) async fn put(&self, subject: &str, data: Bytes) -> Result<(), NotKept> {
        // What was there before is our first copy: nobody else knows the subject.
        self.create(subject, data, TO_WRITE).await.map(|_| ()).map_err(|error| NotKept::Unavailable(reason(&error)))
    }

    /// What lies under a subject, or a part of it; `None` when nothing does.
    pub(crate) async fn get(&self, subject: &str, span: Option<Range<u64>>) -> Result<Option<Bytes>, Unread> {
        self.read(subject, span, TO_READ).await.map_err(|error| Unread(reason(&error)))
    }

    pub(crate) async fn remove_all(&self, subjects: &str) -> Result<(), Unread> {
        self.remove(subjects.trim_end_matches(".>"), TO_WRITE).await.map_err(|error| Unread(reason(&error)))
    }

    /// Whether it lies there now and did not before.
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
            // Of a bucket that is not there nobody knows what lies in it.
            Err(error @ Error::NotFound { .. }) if code(&innermost(&error)) != Some(NO_BUCKET) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Everything below a subject.
    async fn remove(&self, below: &str, patience: Patience) -> Result<(), Error> {
        let path = self.path(below);
        let remove = || {
            let found = self.store.list(Some(&path)).map_ok(|found| found.location).boxed();
            self.store.delete_stream(found).try_for_each(|_| std::future::ready(Ok(())))
        };
        patiently(patience, remove).await
    }

    /// The subjects' tokens are the path's: keys may be given rights by pool, as at the broker.
    fn path(&self, subject: &str) -> Path {
        Path::from(format!("{}/{}", self.place.prefix, subject.replace('.', "/")))
    }
}

/// Asks again until there is an answer that stands, or no time is left.
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

/// Whether the store says that something lies there. A conflict with a write that is under way says nothing.
fn is_there(error: &Error) -> bool {
    let Error::AlreadyExists { source, .. } = error else { return false };
    matches!(source.downcast_ref(), Some(Error::Precondition { .. } | Error::NotModified { .. }))
}

/// Whether asking again makes no sense.
fn is_final(error: &Error) -> bool {
    match error {
        Error::AlreadyExists { .. } => is_there(error),
        // The library tells of some requests only that they failed.
        Error::Generic { .. } => code(&innermost(error)).is_some_and(|code| FINAL.contains(&code)),
        Error::JoinError { .. } => false,
        _ => true,
    }
}

/// What went wrong, without what a store repeats of the request: its key, for one.
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
    // So the library tells of one key of those that were to be removed together.
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
            let place = Place::parse(url, None, None, false).expect("a place");
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
