//! Space of a tenant's uploads: a key for each, with its size in its name, in the bucket of request ids, whose keys
//! expire when uploads do. The broker counts them, the same for all coordinators, wherever the objects themselves are
//! stored.

use async_nats::jetstream::message::PublishMessage;
use futures::TryStreamExt as _;
use run::{ObjectId, TenantId};

use super::journal::ReadError;
use super::requests::{PutError, Requests};

/// The minimum size that an upload counts, because many small ones take room too, and time to count.
const COUNTED_BYTES_MIN: u64 = 4096;

impl Requests {
    pub(crate) async fn count_upload(&self, tenant: &TenantId, id: &ObjectId, bytes: u64) -> Result<(), PutError> {
        let key = format!("up.{tenant}.{id}.{}", bytes.max(COUNTED_BYTES_MIN));
        self.publish(&key, PublishMessage::build()).await.map(drop)
    }

    /// `None`: of any tenant.
    pub(crate) async fn uncount_upload(&self, tenant: Option<&TenantId>, id: &ObjectId) -> Result<(), ReadError> {
        let tenant = tenant.map_or("*", TenantId::as_str);
        let purge = self.store.stream.purge().filter(format!("{}up.{tenant}.{id}.*", self.store.prefix)).await;
        purge.map(drop).map_err(|error| ReadError::new(&error))
    }

    /// The number of a tenant's uploads, and their bytes. Read from the leader, so confirmed uploads are included.
    pub(crate) async fn uploads_of(&self, tenant: &TenantId) -> Result<(usize, u64), ReadError> {
        let counted = format!("{}up.{tenant}.*.*", self.store.prefix);
        let mut subjects =
            self.store.stream.info_with_subjects(counted).await.map_err(|error| ReadError::new(&error))?;
        let (mut number, mut bytes) = (0, 0_u64);
        while let Some((subject, _)) = subjects.try_next().await.map_err(|error| ReadError::new(&error))? {
            let of_one = subject.rsplit('.').next().and_then(|bytes| bytes.parse().ok());
            number += 1;
            bytes = bytes.saturating_add(of_one.unwrap_or(COUNTED_BYTES_MIN));
        }
        Ok((number, bytes))
    }
}
