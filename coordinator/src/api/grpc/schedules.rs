//! `toolyard.v1.ScheduleService`.

use proto::v1;
use tonic::{Request, Response, Status};

use crate::api::Api;

#[derive(Debug)]
pub(in crate::api) struct ScheduleDoor(pub(in crate::api) Api);

#[tonic::async_trait]
impl v1::schedule_service_server::ScheduleService for ScheduleDoor {
    async fn create_schedule(
        &self,
        request: Request<v1::CreateScheduleRequest>,
    ) -> Result<Response<v1::CreateScheduleResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).create_schedule(request.into_inner()).await?))
    }

    async fn list_schedules(
        &self,
        request: Request<v1::ListSchedulesRequest>,
    ) -> Result<Response<v1::ListSchedulesResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).list_schedules(request.get_ref())?))
    }

    async fn get_schedule(
        &self,
        request: Request<v1::GetScheduleRequest>,
    ) -> Result<Response<v1::GetScheduleResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).get_schedule(request.into_inner()).await?))
    }

    async fn pause_schedule(
        &self,
        request: Request<v1::PauseScheduleRequest>,
    ) -> Result<Response<v1::PauseScheduleResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).pause_schedule(request.into_inner()).await?))
    }

    async fn resume_schedule(
        &self,
        request: Request<v1::ResumeScheduleRequest>,
    ) -> Result<Response<v1::ResumeScheduleResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).resume_schedule(request.into_inner()).await?))
    }

    async fn delete_schedule(
        &self,
        request: Request<v1::DeleteScheduleRequest>,
    ) -> Result<Response<v1::DeleteScheduleResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).delete_schedule(request.into_inner()).await?))
    }

    async fn run_schedule_now(
        &self,
        request: Request<v1::RunScheduleNowRequest>,
    ) -> Result<Response<v1::RunScheduleNowResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).run_schedule_now(request.into_inner()).await?))
    }
}
