//! `toolyard.v1.IndexService`.

use futures::TryStreamExt as _;
use proto::v1;
use tonic::{Request, Response, Status};

use super::runs::Streamed;
use crate::api::Api;

#[derive(Debug)]
pub(in crate::api) struct IndexDoor(pub(in crate::api) Api);

#[tonic::async_trait]
impl v1::index_service_server::IndexService for IndexDoor {
    type CancelCallsStream = Streamed<v1::CancelCallsResponse>;
    type VerifyIndexStream = Streamed<v1::VerifyIndexResponse>;

    async fn list_runs(&self, request: Request<v1::ListRunsRequest>) -> Result<Response<v1::ListRunsResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).list_runs(request.into_inner()).await?))
    }

    async fn list_calls(
        &self,
        request: Request<v1::ListCallsRequest>,
    ) -> Result<Response<v1::ListCallsResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).list_calls(request.into_inner()).await?))
    }

    async fn count_runs(
        &self,
        request: Request<v1::CountRunsRequest>,
    ) -> Result<Response<v1::CountRunsResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).count_runs(request.into_inner()).await?))
    }

    async fn verify_index(
        &self,
        request: Request<v1::VerifyIndexRequest>,
    ) -> Result<Response<Self::VerifyIndexStream>, Status> {
        let replies = self.0.by(request.extensions()).verify_index(request.into_inner())?;
        Ok(Response::new(Box::pin(replies.map_err(Status::from))))
    }

    async fn rebuild_index(
        &self,
        request: Request<v1::RebuildIndexRequest>,
    ) -> Result<Response<v1::RebuildIndexResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).rebuild_index(request.into_inner()).await?))
    }

    async fn cancel_calls(
        &self,
        request: Request<v1::CancelCallsRequest>,
    ) -> Result<Response<Self::CancelCallsStream>, Status> {
        let replies = self.0.by(request.extensions()).cancel_calls(request.into_inner())?;
        Ok(Response::new(Box::pin(replies.map_err(Status::from))))
    }
}
