//! A web service that is asked: the question is posted to it, the answer is what it responds with.

use ::http::{HeaderMap, StatusCode};
use bytes::Bytes;

use crate::ANSWER_BYTES_MAX;
use crate::client::Address;
use crate::contract::Unanswered;

pub(crate) struct Service(Address);

impl Service {
    /// # Errors
    /// When the address is none, or the machine has no certificates to trust.
    pub(crate) fn new(address: &str) -> Result<Self, String> {
        Address::parse(address).map(Self)
    }

    /// What it answers to a question.
    pub(crate) async fn post(&self, question: Bytes) -> Result<Bytes, Unanswered> {
        // Its address may hold a secret, which is for nobody else.
        let posted = self.0.post(HeaderMap::new(), question, ANSWER_BYTES_MAX).await.map_err(|error| {
            tracing::warn!(address = ?self.0, error, "a hook's service cannot be reached");
            Unanswered::new("its service cannot be reached")
        })?;
        if posted.status != StatusCode::OK {
            return Err(Unanswered::new(format!("its service answered {}", posted.status)));
        }
        posted.body.map_err(|error| Unanswered::new(format!("its answer broke off: {error}")))
    }
}
