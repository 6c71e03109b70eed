//! Things that are kept as JSON in the records of a pool: made once for each call, changed by compare-and-set, listed
//! by page.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use toolyard_tool::{Context, RecordError, ToolError};

/// Things of one page of an answer.
pub(crate) const PAGE_MAX: usize = 50;
/// Records that are read for one answer, however few of them match.
pub(crate) const SCANNED_MAX: usize = 2000;
/// How often a change is tried again that met another one.
const TRIES_MAX: usize = 5;

/// A thing, and the version of it that a change may name.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Kept<T> {
    pub(crate) id: String,
    pub(crate) version: u64,
    #[serde(flatten)]
    pub(crate) thing: T,
    /// The call that reads it has written this version.
    #[serde(skip)]
    pub(crate) is_own: bool,
}

/// Some things, in the order of their ids.
#[derive(Debug, Serialize)]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<Kept<T>>,
    /// Give it as `after` to read on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// Things of a kind, whose keys begin with this.
#[derive(Debug, Clone)]
pub(crate) struct Shelf(pub(crate) String);

/// An id for what a call makes: the same in each of its attempts. Ids sort by the time of their runs.
pub(crate) fn fresh_id(context: &Context) -> String {
    let run = context.run_id().to_string();
    let digest = Sha256::digest(format!("{run}/{}", context.call_id()));
    let time: String = run.rsplit('_').next().unwrap_or_default().chars().take(12).collect();
    let rest: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{time}{rest}")
}

impl Shelf {
    pub(crate) fn new(prefix: &str) -> Self {
        Self(prefix.to_owned())
    }

    /// Keeps a new thing under an id that follows from the call ([`fresh_id`]). A call that has made it already, in an
    /// attempt before, gets that one, as it is now.
    pub(crate) async fn add<T: Serialize + DeserializeOwned>(
        &self,
        context: &Context,
        id: &str,
        thing: T,
    ) -> Result<Kept<T>, ToolError> {
        let text = serde_json::to_string(&thing)?;
        match context.records().put(&self.key(id), text, 0).await {
            Ok(version) => Ok(Kept { id: id.to_owned(), version, thing, is_own: true }),
            Err(error @ RecordError::Conflict(_)) => self.find(context, id).await?.ok_or_else(|| error.into()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn find<T: DeserializeOwned>(
        &self,
        context: &Context,
        id: &str,
    ) -> Result<Option<Kept<T>>, ToolError> {
        let Some(record) = context.records().get(&self.key(id)).await? else { return Ok(None) };
        let thing = serde_json::from_slice(&record.value)?;
        Ok(Some(Kept { id: id.to_owned(), version: record.revision, thing, is_own: record.is_own }))
    }

    /// The thing of an id that the model gave.
    pub(crate) async fn must_find<T: DeserializeOwned>(
        &self,
        context: &Context,
        (field, id): (&str, &str),
    ) -> Result<Kept<T>, ToolError> {
        let missing = || ToolError::bad_input(field, format!("there is nothing with the id {id:?}: list them first"));
        match is_id(id) {
            true => self.find(context, id).await?.ok_or_else(missing),
            false => Err(missing()),
        }
    }

    /// Changes a thing: the version that the model has seen, if it names one, otherwise the newest. A call that has
    /// changed it already, in an attempt before, changes nothing.
    pub(crate) async fn change<T: Serialize + DeserializeOwned>(
        &self,
        context: &Context,
        (id, version): (&str, Option<u64>),
        mut change: impl FnMut(&mut T),
    ) -> Result<Kept<T>, ToolError> {
        let mut tries = 0;
        loop {
            let mut kept: Kept<T> = self.must_find(context, ("/id", id)).await?;
            if kept.is_own {
                return Ok(kept);
            }
            if let Some(seen) = version.filter(|seen| *seen != kept.version) {
                return Err(ToolError::model_retry(format!(
                    "{id} was changed: it has version {}, not {seen}. Read it, and change that version",
                    kept.version
                )));
            }
            change(&mut kept.thing);
            match context.records().put(&self.key(id), serde_json::to_string(&kept.thing)?, kept.version).await {
                Ok(version) => return Ok(Kept { version, is_own: true, ..kept }),
                Err(RecordError::Conflict(_)) if tries < TRIES_MAX => tries += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes a thing. One that is gone already is no error.
    pub(crate) async fn remove(&self, context: &Context, id: &str) -> Result<(), ToolError> {
        let mut tries = 0;
        while is_id(id)
            && let Some(record) = context.records().get(&self.key(id)).await?
        {
            match context.records().delete(&self.key(id), record.revision).await {
                Err(RecordError::Conflict(_)) if tries < TRIES_MAX => tries += 1,
                done => return Ok(done?),
            }
        }
        Ok(())
    }

    /// At most `limit` things after an id that are wanted, in the order of their ids, up to those that are past.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        context: &Context,
        (after, limit): (&str, usize),
        is_past: impl Fn(&str) -> bool,
        wanted: impl Fn(&Kept<T>) -> bool,
    ) -> Result<Page<T>, ToolError> {
        let (mut last, mut items, mut scanned) = (self.key(after), Vec::new(), 0);
        loop {
            let page = context.records().list(&self.0, &last, 100).await?;
            for record in page.records {
                scanned += 1;
                record.key.as_str().clone_into(&mut last);
                let id = last.strip_prefix(&self.0).unwrap_or(&last).to_owned();
                if is_past(&id) {
                    return Ok(Page { items, next: None });
                }
                let thing = serde_json::from_slice(&record.value)?;
                let kept = Kept { id, version: record.revision, thing, is_own: record.is_own };
                if wanted(&kept) {
                    items.push(kept);
                }
                if items.len() > limit {
                    items.pop();
                    let next = items.last().map(|kept| kept.id.clone());
                    return Ok(Page { items, next });
                }
            }
            if !page.more {
                return Ok(Page { items, next: None });
            }
            if scanned >= SCANNED_MAX {
                let next = last.strip_prefix(&self.0).map(str::to_owned);
                return Ok(Page { items, next });
            }
        }
    }

    fn key(&self, id: &str) -> String {
        format!("{}{id}", self.0)
    }
}

/// Whether an id may be one of ours. A slash would lead to other things.
fn is_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// The value of an argument that an action needs.
pub(crate) fn needed<T>(value: Option<T>, field: &str, action: &str) -> Result<T, ToolError> {
    value.ok_or_else(|| ToolError::bad_input(format!("/{field}"), format!("the action {action} needs it")))
}

/// A text of at most so many bytes that is not blank.
pub(crate) fn text_of(text: String, field: &str, bytes_max: usize) -> Result<String, ToolError> {
    let bad = |reason: String| Err(ToolError::bad_input(format!("/{field}"), reason));
    match text.len() {
        _ if text.trim().is_empty() => bad("it is empty".to_owned()),
        size if size > bytes_max => bad(format!("it has {size} bytes, at most {bytes_max} are kept")),
        _ => Ok(text),
    }
}

/// The id of the last item before, which a list goes on from.
pub(crate) fn after_of(after: Option<String>) -> Result<String, ToolError> {
    let after = after.unwrap_or_default();
    match after.is_empty() || is_id(&after) {
        true => Ok(after),
        false => Err(ToolError::bad_input("/after", "it is not the `next` of a list")),
    }
}

/// The size of a page: what was requested, within the limit.
pub(crate) fn limit_of(limit: Option<u32>) -> usize {
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX)
}

/// The present time, in UTC, to the second.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
