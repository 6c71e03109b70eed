//! Uploads under way: few at once, and each in a task of its own, so that what it stored is removed again whatever becomes of its
//! request.

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

use crate::quotas::Exceeded;
use crate::runs::Refusal;

/// Uploads that a coordinator takes at once. Where objects lie in a bucket, each has three pieces of 4 MiB in memory at most:
/// 384 MiB for all.
const AT_ONCE_MAX: usize = 32;
/// Uploads of one tenant that a coordinator takes at once: no tenant has all places.
const OF_TENANT_AT_ONCE_MAX: u32 = 8;
/// How long an upload waits for others to end before it is refused.
const WAIT: Duration = Duration::from_secs(10);
/// When to ask again for what may end at any moment.
const AGAIN: Duration = Duration::from_secs(1);

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Uploads {
    tasks: Arc<Mutex<JoinSet<()>>>,
    stop: CancellationToken,
    places: Arc<Semaphore>,
    /// Those that have uploads under way or waiting.
    tenants: Arc<Mutex<HashMap<TenantId, Weak<Tenant>>>>,
}

#[derive(Debug)]
struct Tenant {
    places: Arc<Semaphore>,
    bytes: Mutex<Bytes>,
}

/// Of a tenant, since it last had none under way here.
#[derive(Debug, Default)]
struct Bytes {
    under_way: u64,
    kept: u64,
}

/// Where an upload is while it is under way.
#[derive(Debug)]
pub(crate) struct Place {
    of_tenant: Option<Share>,
    _one: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Share {
    tenant: Arc<Tenant>,
    bytes: u64,
    /// What was kept before it began: the broker counts that.
    kept_before: u64,
    _one: OwnedSemaphorePermit,
}

impl Tenant {
    fn bytes(&self) -> MutexGuard<'_, Bytes> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// So many bytes more have come. How many its tenant's uploads have brought here since this began, and of others before
    /// that are under way still.
    pub(crate) fn grow(&mut self, more: u64) -> u64 {
        let Some(share) = &mut self.of_tenant else { return 0 };
        let mut bytes = share.tenant.bytes();
        share.bytes += more;
        bytes.under_way += more;
        bytes.under_way + (bytes.kept - share.kept_before)
    }

    /// What came is kept: those that began before go on counting it.
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
    /// A place for an upload, once there is one.
    pub(crate) async fn place(&self, tenant: Option<&TenantId>) -> Result<Place, Refusal> {
        let until = Instant::now() + WAIT;
        let of_tenant = match tenant {
            Some(tenant) => Some(self.share(tenant, until).await?),
            None => None,
        };
        let _one = permit(&self.places, until).await.ok_or(Refusal::UploadsBusy)?;
        Ok(Place { of_tenant, _one })
    }

    async fn share(&self, name: &TenantId, until: Instant) -> Result<Share, Refusal> {
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

    /// Does the work in a task, and gives what comes of it; `None` where the task died. The work is told when this is dropped, as
    /// it is when the client hangs up; what it has done when nobody hears of it any more is undone.
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
            if let Err(unheard) = answer.send(work.await) {
                undo(unheard).await;
            }
        };
        {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            while tasks.join_next().now_or_never().flatten().is_some() {}
            tasks.spawn(task.in_current_span());
        }
        answered.await.ok()
    }

    /// Breaks off what is under way, and waits until nothing is left of it.
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
