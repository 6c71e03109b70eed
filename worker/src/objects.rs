//! Parts of results that are too large for the log. They are stored as objects, in chunks, before the call's end, which
//! refers to them. An attempt that does not count leaves an object without references; it is deleted with its run.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use ::objects::StoreError;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use proto::convert::log::Job;
use proto::object;
use ring::digest;
use run::{CallError, CallIndex, Content, ErrorKind, Nonce, Object, ObjectId, PoolId, RunId, limit};
use toolyard_tool::runtime::{beginning, preview};

/// Pieces of one object that may be unconfirmed.
const WINDOW: usize = 4;
/// How long all objects of a result may take, and so a slot be taken by a tool that has ended.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of all previews of a result together, so that the previews do not become too large for the log.
const PREVIEWS_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a result that stay in the log if parts of it are stored as objects.
const INLINE_BYTES_MAX: usize = limit::RESULT_BYTES_MAX - PREVIEWS_BYTES_MAX - NOTES_BYTES_MAX;
/// Bytes that the notes about a result's previews take.
const NOTES_BYTES_MAX: usize = 256 * limit::RESULT_PARTS_MAX;

type Putting = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send>>;

/// Stores objects in pieces.
pub(crate) struct Objects {
    piece_bytes: usize,
    put: Box<dyn Fn(ObjectId, u64, Bytes) -> Putting + Send + Sync>,
}

/// Whether something of a result is to be stored beside the log.
pub(crate) fn is_large(parts: &[Content]) -> bool {
    parts.iter().map(Content::size).sum::<usize>() > limit::RESULT_BYTES_MAX
}

impl Objects {
    /// `put` stores a piece, which has `piece_bytes` unless it is the last.
    pub(crate) fn new(
        piece_bytes: usize,
        put: impl Fn(ObjectId, u64, Bytes) -> Putting + Send + Sync + 'static,
    ) -> Self {
        Self { piece_bytes, put: Box::new(put) }
    }

    /// Stores the largest parts of a result until the rest is small enough for the log, and puts references in their
    /// places.
    ///
    /// # Errors
    /// The call's error if they cannot be stored.
    pub(crate) async fn keep(&self, job: &Job, mut parts: Vec<Content>) -> Result<Vec<Content>, CallError> {
        let shown_max = limit::PREVIEW_BYTES_MAX.min(PREVIEWS_BYTES_MAX / parts.len().max(1));
        let mut by_size: Vec<usize> = (0..parts.len()).collect();
        by_size.sort_by_key(|index| std::cmp::Reverse(parts[*index].size()));
        let mut inline: usize = parts.iter().map(Content::size).sum();
        let keeping = async {
            for index in by_size {
                if inline <= INLINE_BYTES_MAX {
                    break;
                }
                inline -= parts[index].size();
                let part = std::mem::replace(&mut parts[index], Content::Text(String::new()));
                let nonce = Nonce(rand::random());
                let id = ObjectId::Result { run: job.run, call: job.call, pool: job.pool.clone(), nonce };
                parts[index] = Content::Object(Box::new(self.store(id, part, shown_max).await?));
            }
            Ok::<_, StoreError>(())
        };
        in_time(keeping).await.map_err(|why| lost(&why))?;
        Ok(parts)
    }

    /// Stores a part of a result before the tool has ended.
    ///
    /// # Errors
    /// The call's error if it cannot be stored.
    pub(crate) async fn store_one(
        &self,
        run: RunId,
        call: CallIndex,
        pool: PoolId,
        part: Content,
    ) -> Result<Object, CallError> {
        let id = ObjectId::Result { run, call, pool, nonce: Nonce(rand::random()) };
        let stored = in_time(self.store(id, part, limit::PREVIEW_BYTES_MAX)).await;
        stored.map_err(|why| {
            CallError::new(ErrorKind::ToolFailed, format!("a part of the result could not be stored: {why}"))
                .retryable()
        })
    }

    async fn store(&self, id: ObjectId, part: Content, shown_max: usize) -> Result<Object, StoreError> {
        let size = if let Content::Cited(cited) = &part { cited.text.len() } else { part.size() };
        let (media_type, shown, data) = match part {
            Content::Text(text) => (object::TEXT.to_owned(), beginning(&text, shown_max).to_owned(), text.into()),
            Content::Json(json) => (object::JSON.to_owned(), beginning(&json, shown_max).to_owned(), json.into()),
            Content::Data { media_type, data } => (media_type, String::new(), data),
            Content::Object(object) => return Ok(*object),
            // The object is its text alone.
            Content::Cited(cited) => {
                (object::TEXT.to_owned(), beginning(&cited.text, shown_max).to_owned(), cited.text.into())
            }
        };
        let preview = preview(&shown, size, Some(&format!("the whole of it is object {id}")));
        let sha256 = self.put(&id, data).await?;
        Ok(Object { id, media_type, size: u64::try_from(size).unwrap_or(u64::MAX), sha256, preview })
    }

    /// Piece by piece, with a look at everything else in between.
    async fn put(&self, id: &ObjectId, data: Bytes) -> Result<[u8; 32], StoreError> {
        let mut digest = digest::Context::new(&digest::SHA256);
        let mut rest = data;
        let pieces = std::iter::from_fn(|| {
            let piece = rest.split_to(self.piece_bytes.min(rest.len()));
            digest.update(&piece);
            (!piece.is_empty()).then_some(piece)
        });
        let puts = pieces.zip(0..).map(|(piece, index)| (self.put)(id.clone(), index, piece));
        stream::iter(puts).buffer_unordered(WINDOW).try_collect::<()>().await?;
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(digest.finish().as_ref());
        Ok(sha256)
    }
}

/// The result of storing objects, or why they could not be stored in time.
async fn in_time<T>(storing: impl Future<Output = Result<T, StoreError>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, storing).await {
        Ok(stored) => stored.map_err(|error| error.to_string()),
        Err(_) => Err(format!("it takes longer than {} s", PATIENCE.as_secs())),
    }
}

fn lost(why: &str) -> CallError {
    let inline = limit::RESULT_BYTES_MAX;
    let message =
        format!("the call ran, and its result, which is larger than {inline} bytes, could not be stored: {why}");
    CallError::new(ErrorKind::ResultTooLarge, message).retryable()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use run::{CallSpec, Route, Timestamp};

    use super::*;

    fn job() -> Job {
        let (id, tool) = ("call".parse().unwrap(), "big".parse().unwrap());
        let spec = CallSpec::new(id, tool, Bytes::new(), Route::Client, Timestamp(0));
        let (run, pool) = ("run_00_01890000000070008000000000000000".parse().unwrap(), "main".parse().unwrap());
        Job { run, call: CallIndex(3), pool, spec: Arc::new(spec), requester: None, is_stored: true }
    }

    const PIECE_BYTES: usize = 256 << 10;

    type Stored = Arc<Mutex<BTreeMap<String, Bytes>>>;

    fn store() -> (Objects, Stored) {
        let stored = Stored::default();
        let kept = Arc::clone(&stored);
        let put = move |id: ObjectId, index: u64, piece: Bytes| -> Putting {
            kept.lock().unwrap().insert(object::chunk(&id, index), piece);
            Box::pin(async { Ok(()) })
        };
        (Objects::new(PIECE_BYTES, put), stored)
    }

    fn text(letter: char, bytes: usize) -> Content {
        Content::Text(letter.to_string().repeat(bytes))
    }

    #[tokio::test]
    async fn the_largest_part_goes_and_the_others_stay_as_they_were() {
        let (objects, stored) = store();
        let size = PIECE_BYTES * 2 + 1;
        let parts = vec![text('a', 10), text('b', size), text('c', 1000)];
        assert!(is_large(&parts));
        let kept = objects.keep(&job(), parts).await.expect("there is room");
        let [a, Content::Object(object), c] = &kept[..] else { panic!("{kept:?}") };
        assert_eq!((a, c), (&text('a', 10), &text('c', 1000)));
        assert_eq!(object.size, size as u64);
        let chunks: Vec<(String, usize)> =
            stored.lock().unwrap().iter().map(|(subject, chunk)| (subject.clone(), chunk.len())).collect();
        let subject = |index| object::chunk(&object.id, index);
        assert_eq!(chunks, [(subject(0), PIECE_BYTES), (subject(1), PIECE_BYTES), (subject(2), 1)]);
        let digest = digest::digest(&digest::SHA256, "b".repeat(size).as_bytes());
        assert_eq!(digest.as_ref(), object.sha256);
        let note = format!(
            "\n\n[the result was cut here: 4096 of {size} bytes are shown; the whole of it is object {}]",
            object.id
        );
        assert_eq!(object.preview, format!("{}{note}", "b".repeat(4096)));
    }

    #[tokio::test]
    async fn what_stays_in_the_log_fits_it_whatever_the_parts_are() {
        let (objects, _) = store();
        for (count, bytes) in [(256, 1100), (256, 100 << 10), (2, 200 << 10), (1, 300 << 10), (65, 5000)] {
            let parts: Vec<Content> = (0..count).map(|_| text('ü', bytes / 2)).collect();
            assert!(is_large(&parts), "{count} of {bytes}");
            let kept = objects.keep(&job(), parts).await.expect("there is room");
            assert!(!is_large(&kept), "{count} of {bytes}");
        }
    }

    #[tokio::test]
    async fn a_part_that_a_running_tool_stores_is_an_object_of_its_call_whatever_its_size() {
        let (objects, stored) = store();
        let job = job();
        let part = Content::Data { media_type: "image/png".to_owned(), data: Bytes::from_static(b"png") };
        let object = objects.store_one(job.run, job.call, job.pool.clone(), part.clone()).await.expect("there is room");
        let ObjectId::Result { run, call, pool, .. } = &object.id else { panic!("{object:?}") };
        assert_eq!((*run, *call, pool), (job.run, job.call, &job.pool));
        assert_eq!((object.media_type.as_str(), object.size), ("image/png", 3));
        assert_eq!(stored.lock().unwrap().get(&object::chunk(&object.id, 0)), Some(&Bytes::from_static(b"png")));
        let full = Objects::new(PIECE_BYTES, |_, _, _| Box::pin(async { Err(StoreError::Full) }));
        let error = full.store_one(job.run, job.call, job.pool, part).await.expect_err("there is no room");
        assert_eq!((error.kind, error.retryable), (ErrorKind::ToolFailed, true));
    }

    #[tokio::test]
    async fn what_cannot_be_stored_fails_the_call_and_may_be_tried_again() {
        let objects = Objects::new(PIECE_BYTES, |_, _, _| Box::pin(async { Err(StoreError::Full) }));
        let error = objects.keep(&job(), vec![text('x', 1 << 20)]).await.expect_err("there is no room");
        assert_eq!((error.kind, error.retryable), (ErrorKind::ResultTooLarge, true));
        assert!(error.message.contains("object store is full"), "{}", error.message);
    }
}
