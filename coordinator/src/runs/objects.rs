//! Objects and their readers: callers who may see the run whose calls' results refer to the object, and the tenant of
//! an upload. An object without a reference, for example of an attempt that was rejected, cannot be read by anyone.

use std::time::Duration;

use proto::convert::object::Upload;
use run::{Content, File, Object, ObjectId, Outcome, Route, RunId, TenantId, Timestamp, ToolName, limit};
use uuid::{Builder, Uuid};

use super::{NewRun, Runs};
use crate::admission::accept::RequestedCall;
use crate::admission::error::RequestError;
use crate::auth::audit;
use crate::auth::callers::Role;
use crate::nats::requests::PutError;
use crate::nats::setup::RETENTION;
use crate::objects::Results;
use crate::objects::uploads::{Place, Uploads};

/// Default lifetime of a link: enough for a download that begins immediately.
const LINK: Duration = Duration::from_secs(5 * 60);

/// Uploads that a tenant may have. Bounded because the broker lists all of them, twice for each new one.
const UPLOADS_MAX: usize = 4096;

/// The space of a tenant's uploads: its limit and how much is used.
#[derive(Debug)]
pub(crate) struct Room {
    limit: u64,
    held: u64,
    place: Place,
}

impl Room {
    /// Takes space for more bytes, up to the limit. Counts the tenant's concurrent uploads.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), RequestError> {
        fits(self.held.saturating_add(self.place.grow(bytes)), self.limit)
    }
}

fn fits(bytes: u64, limit: u64) -> Result<(), RequestError> {
    if bytes <= limit { Ok(()) } else { Err(RequestError::UploadsFull { limit }) }
}

/// A file as the request names it.
#[derive(Debug)]
pub(crate) struct AskedFile {
    /// The tool whose calls may open it; `None` for all tools.
    pub(crate) tool: Option<ToolName>,
    pub(crate) name: String,
    pub(crate) id: ObjectId,
}

impl Runs {
    /// Where results of runs are read.
    pub(crate) fn results(&self) -> Results {
        Results { objects: self.objects.clone(), history: self.journals.history().cloned() }
    }

    /// Until when an object can be read: the history keeps results for longer.
    fn readable_until(&self, id: &ObjectId) -> Timestamp {
        match (id, self.journals.history()) {
            (ObjectId::Result { run, .. }, Some(history)) => run.created_at().after(history.retention().max(RETENTION)),
            (ObjectId::Result { .. } | ObjectId::Upload(_), _) => kept_until(id),
        }
    }

    pub(crate) async fn object(&self, id: &ObjectId) -> Result<Object, RequestError> {
        self.caller.must(Role::Read)?;
        let found = match id {
            ObjectId::Result { run, call, pool, .. } => {
                let run = self.known(*run).await.map_err(|refusal| match refusal {
                    RequestError::RunNotFound(_) | RequestError::EventsExpired(_) => {
                        RequestError::ObjectNotFound(id.clone())
                    }
                    other => other,
                })?;
                let call = run.run.call(*call);
                // The pool's workers could store it, and no others.
                let call =
                    call.filter(|call| matches!(&call.spec().route, Route::Pool { pool: own, .. } if own == pool));
                call.and_then(|call| call.outcome()).and_then(|outcome| referred(outcome, id))
            }
            ObjectId::Upload(_) => self.upload(id).await?,
        };
        found.ok_or_else(|| RequestError::ObjectNotFound(id.clone()))
    }

    /// A token with which its bearer can read an object that the caller may read, and when it expires.
    pub(crate) async fn link(
        &self,
        id: &ObjectId,
        lifetime: Option<Duration>,
    ) -> Result<(String, Timestamp), RequestError> {
        let made = async {
            self.object(id).await?;
            let until = ::nats::now().after(lifetime.unwrap_or(LINK)).min(self.readable_until(id));
            let until = self.caller.gives_until(until);
            Ok((self.callers.link(&self.caller, id.clone(), until)?, until))
        };
        let made = made.await;
        audit::command(
            &self.caller,
            audit::Command::new("CreateObjectLink"),
            made.as_ref().err().map(RequestError::reason),
        );
        made
    }

    /// The object of a link. An expired link is reported as unknown, because its bearer need not know which object it
    /// was.
    pub(crate) async fn linked(&self, token: &str) -> Result<Object, RequestError> {
        let (id, caller) = self.callers.by_link(token, ::nats::now()).ok_or(RequestError::LinkUnknown)?;
        let issuer = Self { caller, ..self.clone() };
        issuer.object(&id).await.map_err(|refusal| match refusal {
            // The issuer of the link has lost access to the object.
            RequestError::NotPermitted(_) => RequestError::LinkUnknown,
            other => other,
        })
    }

    /// An upload of a tenant that the caller sees, until it expires: a bucket may keep it longer.
    async fn upload(&self, id: &ObjectId) -> Result<Option<Object>, RequestError> {
        if kept_until(id) <= ::nats::now() {
            return Ok(None);
        }
        let upload = self.objects.about(id).await?;
        Ok(upload.filter(|upload| self.caller.sees(upload.tenant.as_ref())).map(|upload| upload.object))
    }

    /// The tenant of a new upload, its id, and how large it may be.
    pub(crate) async fn begin_upload(
        &self,
        tenant: Option<TenantId>,
        uploads: &Uploads,
    ) -> Result<(ObjectId, Option<TenantId>, Room), RequestError> {
        self.caller.must(Role::Submit)?;
        let tenant = self.caller.makes_for(tenant)?;
        let place = uploads.place(tenant.as_ref()).await?;
        let (held, limit) = match &tenant {
            Some(tenant) => (self.held(tenant, UPLOADS_MAX - 1).await?, self.callers.upload_bytes(tenant)),
            None => (0, u64::MAX),
        };
        fits(held.saturating_add(1), limit)?;
        let uuid = Builder::from_unix_timestamp_millis(::nats::now().0, &rand::random()).into_uuid();
        Ok((ObjectId::Upload(uuid), tenant, Room { limit, held, place }))
    }

    /// Bytes of the uploads of a tenant, if there are no more than `most` uploads.
    async fn held(&self, tenant: &TenantId, most: usize) -> Result<u64, RequestError> {
        let (number, bytes) = self.requests.uploads_of(tenant).await?;
        if number <= most { Ok(bytes) } else { Err(RequestError::TooManyUploads { limit: UPLOADS_MAX }) }
    }

    /// Stores the upload once it is known that the tenant has the space. It is counted before that, so concurrent
    /// uploads cannot exceed the limit together.
    async fn keep(&self, upload: &Upload) -> Result<(), RequestError> {
        if let Some(tenant) = &upload.tenant {
            let counted = self.requests.count_upload(tenant, &upload.object.id, upload.object.size).await;
            counted.map_err(|error| match error {
                PutError::Full => RequestError::ObjectsFull,
                PutError::Unavailable(error) => error.into(),
            })?;
            fits(self.held(tenant, UPLOADS_MAX).await?, self.callers.upload_bytes(tenant))?;
        }
        Ok(self.objects.put_about(upload).await?)
    }

    /// Removes an upload that is not kept. If that fails, the object expires with its age.
    async fn remove_upload(&self, id: &ObjectId, tenant: Option<&TenantId>) -> Result<(), RequestError> {
        if let Some(tenant) = tenant {
            self.requests.uncount_upload(Some(tenant), id).await?;
        }
        Ok(self.objects.remove(id).await?)
    }

    /// Deletes an upload of a tenant that the caller sees. Any other upload is treated as deleted already.
    pub(crate) async fn delete_upload(&self, id: &ObjectId) -> Result<(), RequestError> {
        let deleted = async {
            self.caller.must(Role::Submit)?;
            if let ObjectId::Result { .. } = id {
                let reason = "the object is part of a call's result, and is deleted with its run".to_owned();
                return Err(RequestError::Malformed { field: "object_id".to_owned(), reason });
            }
            match self.objects.about(id).await?.filter(|upload| self.caller.sees(upload.tenant.as_ref())) {
                Some(upload) => self.remove_upload(id, upload.tenant.as_ref()).await,
                // It may still be counted, if it was lost while it was stored or was removed before its age.
                None => match self.caller.lists(None) {
                    Ok(whose) => Ok(self.requests.uncount_upload(whose.as_ref(), id).await?),
                    // A caller without a tenant has no uploads.
                    Err(_) => Ok(()),
                },
            }
        };
        let deleted = deleted.await;
        audit::command(
            &self.caller,
            audit::Command::new("DeleteObject"),
            deleted.as_ref().err().map(RequestError::reason),
        );
        deleted
    }

    /// Makes a complete upload an object. Returns when it expires.
    pub(crate) async fn end_upload(
        &self,
        object: Object,
        tenant: Option<TenantId>,
        room: Room,
    ) -> Result<Timestamp, RequestError> {
        let until = kept_until(&object.id);
        let caller = self.caller.name().cloned();
        let upload = Upload { object, tenant, caller };
        let done = self.keep(&upload).await;
        if done.is_ok() {
            room.place.kept();
        } else if let Err(error) = self.remove_upload(&upload.object.id, upload.tenant.as_ref()).await {
            tracing::warn!(%error, "deleting a rejected upload failed; it expires with its age");
        }
        audit::command(
            &self.caller,
            audit::Command::new("CreateObject"),
            done.as_ref().err().map(RequestError::reason),
        );
        done.map(|()| until)
    }

    /// Resolves the files of a new run and gives them to its calls.
    pub(super) async fn give_files(&self, new: &mut NewRun) -> Result<(), RequestError> {
        let until = ::nats::now().after(new.timeout.unwrap_or(limit::RUN_LIFE));
        self.give(&mut new.calls, &new.files, until).await
    }

    /// Resolves files for calls that are to be added to a run.
    pub(crate) async fn give_files_in(
        &self,
        run: RunId,
        calls: &mut [RequestedCall],
        files: &[AskedFile],
    ) -> Result<(), RequestError> {
        if files.is_empty() {
            return Ok(());
        }
        self.caller.must(Role::Submit)?;
        let until = self.known(run).await?.run.deadline();
        self.give(calls, files, until).await
    }

    async fn give(
        &self,
        calls: &mut [RequestedCall],
        files: &[AskedFile],
        until: Timestamp,
    ) -> Result<(), RequestError> {
        for (index, AskedFile { tool, name, id }) in files.iter().enumerate() {
            let found = match id {
                ObjectId::Upload(_) => self.upload(id).await?,
                ObjectId::Result { .. } => Some(self.object(id).await?),
            };
            let object = found.ok_or_else(|| RequestError::ObjectNotFound(id.clone()))?;
            if kept_until(id) < until {
                let reason = format!(
                    "object {id} is kept for {} h after its upload, and the run may last longer: set its `timeout` to \
                    {} s at most, or upload the object again",
                    RETENTION.as_secs() / 3600,
                    kept_until(id).since(::nats::now()).as_secs().saturating_sub(60)
                );
                return Err(RequestError::Malformed { field: format!("files[{index}].object_id"), reason });
            }
            let file = File { name: name.clone(), object: Object { preview: String::new(), ..object } };
            let opens = |call: &&mut RequestedCall| tool.as_ref().is_none_or(|tool| *tool == call.tool);
            calls.iter_mut().filter(opens).for_each(|call| call.files.push(file.clone()));
        }
        Ok(())
    }
}

/// Objects of a run are younger than the run.
fn kept_until(id: &ObjectId) -> Timestamp {
    let made = match id {
        ObjectId::Result { run, .. } => run.created_at(),
        ObjectId::Upload(uuid) => made_at(*uuid),
    };
    made.after(RETENTION)
}

fn made_at(uuid: Uuid) -> Timestamp {
    Timestamp(uuid.get_timestamp().map_or(0, |time| {
        let (seconds, nanos) = time.to_unix();
        seconds.saturating_mul(1000).saturating_add(u64::from(nanos) / 1_000_000)
    }))
}

fn referred(outcome: &Outcome, id: &ObjectId) -> Option<Object> {
    let Outcome::Completed(parts) = outcome else { return None };
    parts.iter().find_map(|part| match part {
        Content::Object(object) if object.id == *id => Some((**object).clone()),
        Content::Object(_) | Content::Text(_) | Content::Json(_) | Content::Data { .. } | Content::Cited(_) => None,
    })
}
