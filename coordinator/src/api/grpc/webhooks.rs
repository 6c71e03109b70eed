//! `toolyard.v1.WebhookService`.

use proto::v1;
use tonic::{Request, Response, Status};

use crate::api::Api;

#[derive(Debug)]
pub(in crate::api) struct WebhookDoor(pub(in crate::api) Api);

#[tonic::async_trait]
impl v1::webhook_service_server::WebhookService for WebhookDoor {
    async fn list_parked_webhooks(
        &self,
        request: Request<v1::ListParkedWebhooksRequest>,
    ) -> Result<Response<v1::ListParkedWebhooksResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).list_parked_webhooks(request.into_inner()).await?))
    }

    async fn redrive_webhooks(
        &self,
        request: Request<v1::RedriveWebhooksRequest>,
    ) -> Result<Response<v1::RedriveWebhooksResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).redrive_webhooks(request.into_inner()).await?))
    }
}
