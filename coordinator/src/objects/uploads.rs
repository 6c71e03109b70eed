//! Uploads in progress: few concurrently, and each in a task of its own, so that an incomplete one is removed whatever
//! happens to its request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use run::TenantId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::admission::error::RequestError;
use crate::auth::callers::Exceeded;

/// Concurrent uploads of a coordinator. If objects are in a bucket, each has at most three pieces of 4 MiB in memory:
/// 384 MiB for all.
const AT_ONCE_MAX: usize = 32;
/// Concurrent uploads of one tenant at a coordinator, so that no tenant has all slots.
const OF_TENANT_AT_ONCE_MAX: u32 = 8;
/// How long an upload waits for a slot before it is rejected.
const WAIT: Duration = Duration::from_secs(10);
/// The retry hint, because uploads may end at any moment.
const AGAIN: Duration = Duration::from_secs(1);

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Uploads {
    tasks: Arc<Mutex<JoinSet<()>>>,
    stop: CancellationToken,
    places: Arc<Semaphore>,
    /// Tenants with uploads in progress or waiting.
    tenants: Arc<Mutex<HashMap<TenantId, Weak<Tenant>>>>,
}

#[derive(Debug)]
struct Tenant {
    places: Arc<Semaphore>,
    bytes: Mutex<Bytes>,
}

/// The bytes of a tenant's uploads since it last had no upload in progress here.
#[derive(Debug, Default)]
struct Bytes {
    under_way: u64,
    kept: u64,
}

/// The slot of an upload in progress.
#[derive(Debug)]
pub(crate) struct Place {
    of_tenant: Option<Share>,
    _one: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Share {
    tenant: Arc<Tenant>,
    bytes: u64,
    /// Bytes that were kept before it began; the count of the broker includes them.
    kept_before: u64,
    _one: OwnedSemaphorePermit,
}

impl Tenant {
    fn bytes(&self) -> MutexGuard<'_, Bytes> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Counts more received bytes. Returns how many bytes its tenant's uploads have received here since this one began,
    /// including earlier uploads that are still in progress.
    pub(crate) fn grow(&mut self, more: u64) -> u64 {
        let Some(share) = &mut self.of_tenant else { return 0 };
        let mut bytes = share.tenant.bytes();
        share.bytes += more;
        bytes.under_way += more;
        bytes.under_way + (bytes.kept - share.kept_before)
    }

    /// The upload is kept: uploads that began earlier continue to count it.
    pub(crate) fn kept(self) {
        if let Some(share) = &self.of_tenant {
            share.tenant.bytes().kept += share.bytes;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.tenant.bytes().under_way -= self.bytes;
    }
}

impl Default for Uploads {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(AT_ONCE_MAX));
        Self { tasks: Arc::default(), stop: CancellationToken::new(), places, tenants: Arc::default() }
    }
}

impl Uploads {
    /// Waits for a slot for an upload.
    pub(crate) async fn place(&self, tenant: Option<&TenantId>) -> Result<Place, RequestError> {
        let until = Instant::now() + WAIT;
        let of_tenant = match tenant {
            Some(tenant) => Some(self.share(tenant, until).await?),
            None => None,
        };
        let _one = permit(&self.places, until).await.ok_or(RequestError::UploadsBusy)?;
        Ok(Place { of_tenant, _one })
    }

    async fn share(&self, name: &TenantId, until: Instant) -> Result<Share, RequestError> {
        let tenant = self.tenant(name);
        let (what, limit) = ("uploads under way", OF_TENANT_AT_ONCE_MAX);
        let exceeded = Exceeded { what, limit: limit.into(), remedy: "", retry_after: AGAIN };
        let _one = permit(&tenant.places, until).await.ok_or(exceeded)?;
        let kept_before = tenant.bytes().kept;
        Ok(Share { tenant, bytes: 0, kept_before, _one })
    }

    fn tenant(&self, name: &TenantId) -> Arc<Tenant> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tenant) = tenants.get(name).and_then(Weak::upgrade) {
            return tenant;
        }
        tenants.retain(|_, tenant| tenant.strong_count() > 0);
        let places = Arc::new(Semaphore::new(OF_TENANT_AT_ONCE_MAX as usize));
        let tenant = Arc::new(Tenant { places, bytes: Mutex::default() });
        tenants.insert(name.clone(), Arc::downgrade(&tenant));
        tenant
    }

    /// Does the work in a task, and returns its result; `None` if the task died. The work is notified when this future
    /// is dropped, as when the client disconnects, and its result is undone if it is not awaited any more.
    pub(crate) async fn outlive<T, W, U>(
        &self,
        work: impl FnOnce(CancellationToken) -> W,
        undo: impl FnOnce(T) -> U + Send + 'static,
    ) -> Option<T>
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
        U: Future<Output = ()> + Send,
    {
        let gone = self.stop.child_token();
        let _waits = gone.clone().drop_guard();
        let (answer, answered) = oneshot::channel();
        let work = work(gone);
        let task = async move {
            if let Err(unread) = answer.send(work.await) {
                undo(unread).await;
            }
        };
        {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            while tasks.join_next().now_or_never().flatten().is_some() {}
            tasks.spawn(task.in_current_span());
        }
        answered.await.ok()
    }

    /// Aborts uploads in progress, and waits until they are cleaned up.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        while tasks.join_next().await.is_some() {}
    }
}

async fn permit(places: &Arc<Semaphore>, until: Instant) -> Option<OwnedSemaphorePermit> {
    let permit = tokio::time::timeout_at(until, Arc::clone(places).acquire_owned()).await;
    permit.ok().and_then(Result::ok)
}
