//! `toolyard.v1.FleetService`.

use proto::v1;
use tonic::{Request, Response, Status};

use crate::api::Api;

#[derive(Debug)]
pub(in crate::api) struct FleetDoor(pub(in crate::api) Api);

#[tonic::async_trait]
impl v1::fleet_service_server::FleetService for FleetDoor {
    async fn pause(&self, request: Request<v1::PauseRequest>) -> Result<Response<v1::PauseResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).pause(request.into_inner()).await?))
    }

    async fn resume(&self, request: Request<v1::ResumeRequest>) -> Result<Response<v1::ResumeResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).resume(request.into_inner()).await?))
    }

    async fn list_pauses(
        &self,
        request: Request<v1::ListPausesRequest>,
    ) -> Result<Response<v1::ListPausesResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).list_pauses(request.into_inner())?))
    }

    async fn list_workers(
        &self,
        request: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).list_workers(request.get_ref())?))
    }

    async fn drain_worker(
        &self,
        request: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).drain_worker(request.into_inner()).await?))
    }

    async fn get_overview(
        &self,
        request: Request<v1::GetOverviewRequest>,
    ) -> Result<Response<v1::GetOverviewResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).get_overview(request.into_inner())?))
    }
}
