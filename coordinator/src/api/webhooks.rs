//! Parked notifications: lists them, and redrives them.

use proto::convert::api;
use proto::{Reason, v1};

use super::Api;
use super::error::ApiError;
use super::read::malformed;
use crate::admission::error::RequestError;
use crate::nats::notifications::{Found, Queue};
use crate::notifications::{Webhooks, message_id};

/// Notifications of a page, by default and at most.
const PAGE: usize = 100;
const PAGE_MAX: usize = 1000;
/// Notifications that one request redrives.
const REDRIVEN_MAX: usize = 1000;
/// Notifications that are read for one answer.
const LOOKED_AT_MAX: usize = 10_000;

/// The webhooks of this coordinator, and their queue.
#[derive(Debug, Clone)]
pub(crate) struct Notices {
    pub(crate) webhooks: Webhooks,
    pub(crate) queue: Queue,
}

/// Parked notifications, and the position of the next page.
type Parked = (Vec<Found>, Option<u64>);

impl Notices {
    /// It is not delivered any more: it is too old, or its endpoint is not in the file.
    fn is_parked(&self, found: &Found) -> bool {
        let age = ::nats::now().since(found.notification.at);
        self.webhooks.find(&found.endpoint).is_none_or(|endpoint| age >= endpoint.give_up_after)
    }

    async fn parked(
        &self,
        endpoint: &str,
        after: u64,
        most: usize,
        wanted: impl Fn(&Found) -> bool,
    ) -> Result<Parked, RequestError> {
        let endpoint = Some(endpoint).filter(|endpoint| !endpoint.is_empty());
        let (mut parked, mut after) = (Vec::new(), after);
        for _ in 0..LOOKED_AT_MAX {
            let Some(found) = self.queue.next(endpoint, after).await? else { return Ok((parked, None)) };
            after = found.notification.sequence;
            if self.is_parked(&found) && wanted(&found) {
                parked.push(found);
            }
            if parked.len() >= most {
                break;
            }
        }
        Ok((parked, Some(after)))
    }
}

impl Api {
    fn notices(&self) -> Result<&Notices, ApiError> {
        let off = || {
            let message = "no webhooks are configured here: start the coordinator with --webhooks";
            ApiError::new(Reason::WebhooksOff, message)
        };
        self.notices.as_ref().ok_or_else(off)
    }

    pub(crate) async fn list_parked_webhooks(
        &self,
        request: v1::ListParkedWebhooksRequest,
    ) -> Result<v1::ListParkedWebhooksResponse, ApiError> {
        let endpoint = endpoint(&request.endpoint)?;
        let after = match request.page_token.as_str() {
            "" => 0,
            token => token.parse().map_err(malformed("page_token"))?,
        };
        let most = match usize::try_from(request.page_size).unwrap_or(usize::MAX) {
            0 => PAGE,
            size => size.min(PAGE_MAX),
        };
        let (found, behind) = self.notices()?.parked(endpoint, after, most, |_| true).await?;
        let webhooks = found.into_iter().map(|found| v1::ParkedWebhook {
            webhook_id: id(&found),
            run_id: found.notification.run.to_string(),
            body: String::from_utf8_lossy(&found.notification.body).into_owned(),
            queue_time: Some(api::timestamp(found.notification.at)),
            endpoint: found.endpoint,
        });
        let next_page_token = behind.map(|behind| behind.to_string()).unwrap_or_default();
        Ok(v1::ListParkedWebhooksResponse { webhooks: webhooks.collect(), next_page_token })
    }

    pub(crate) async fn redrive_webhooks(
        &self,
        request: v1::RedriveWebhooksRequest,
    ) -> Result<v1::RedriveWebhooksResponse, ApiError> {
        let endpoint = endpoint(&request.endpoint)?;
        let ids = request.webhook_ids;
        if ids.len() > REDRIVEN_MAX {
            let message = format!("has {} entries; the limit is {REDRIVEN_MAX}", ids.len());
            return Err(malformed("webhook_ids")(message).into());
        }
        let notices = self.notices()?;
        let (mut count, mut after) = (0, Some(0));
        while let Some(from) = after
            && count < REDRIVEN_MAX
        {
            // A notification without an endpoint would only be parked again.
            let is_wanted = |found: &Found| {
                notices.webhooks.find(&found.endpoint).is_some() && (ids.is_empty() || ids.contains(&id(found)))
            };
            let (found, behind) = notices.parked(endpoint, from, REDRIVEN_MAX - count, is_wanted).await?;
            for found in &found {
                count += usize::from(notices.queue.redrive(found).await.map_err(RequestError::from)?);
            }
            after = behind;
        }
        Ok(v1::RedriveWebhooksResponse { count: u32::try_from(count).unwrap_or(u32::MAX) })
    }
}

fn id(found: &Found) -> String {
    message_id(found.notification.run, found.notification.noted)
}

/// A name that is allowed in a subject.
fn endpoint(name: &str) -> Result<&str, RequestError> {
    let is_name = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if is_name { Ok(name) } else { Err(malformed("endpoint")("must be the name of an endpoint, of a-z, 0-9 and -")) }
}
