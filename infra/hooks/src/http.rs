//! Hook web services: the request is posted, the response is the answer.

use ::http::{HeaderMap, StatusCode};
use bytes::Bytes;

use crate::ANSWER_BYTES_MAX;
use crate::client::Address;
use crate::contract::HookError;

pub(crate) struct Service(Address);

impl Service {
    /// # Errors
    /// If the address is invalid, or the machine has no trusted certificates.
    pub(crate) fn new(address: &str) -> Result<Self, String> {
        Address::parse(address).map(Self)
    }

    /// Its answer to a request.
    pub(crate) async fn post(&self, question: Bytes) -> Result<Bytes, HookError> {
        // Its address may hold a secret, which must not get into logs.
        let posted = self.0.post(HeaderMap::new(), question, ANSWER_BYTES_MAX).await.map_err(|error| {
            tracing::warn!(address = ?self.0, error, "a hook's service cannot be reached");
            HookError::new("its service cannot be reached")
        })?;
        if posted.status != StatusCode::OK {
            return Err(HookError::new(format!("its service answered {}", posted.status)));
        }
        posted.body.map_err(|error| HookError::new(format!("its answer broke off: {error}")))
    }
}
