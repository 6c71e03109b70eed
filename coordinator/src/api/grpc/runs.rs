//! `toolyard.v1.RunService`.

use std::pin::Pin;

use futures::{Stream, StreamExt as _};
use proto::v1;
use tonic::{Request, Response, Status};

use super::many;
use crate::api::Api;
use crate::api::output::{Piece, pieces, watched};
use crate::api::port::deadline::Deadline;

#[derive(Debug, Clone)]
pub(in crate::api) struct RunDoor(pub(in crate::api) Api);

pub(in crate::api) type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl v1::run_service_server::RunService for RunDoor {
    type ExecuteRunStream = Streamed<v1::ExecuteRunResponse>;
    type ExecuteRunsStream = Streamed<v1::ExecuteRunsResponse>;
    type WatchRunStream = Streamed<v1::WatchRunResponse>;

    async fn create_run(
        &self,
        request: Request<v1::CreateRunRequest>,
    ) -> Result<Response<v1::CreateRunResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).create_run(request.into_inner()).await?))
    }

    async fn execute_run(
        &self,
        request: Request<v1::ExecuteRunRequest>,
    ) -> Result<Response<Self::ExecuteRunStream>, Status> {
        let deadline = Deadline::of(&request);
        let reader = self.0.by(request.extensions()).execute_run(request.into_inner()).await?;
        let stream = pieces(reader, self.0.stop.clone(), deadline).map(|piece| {
            let Piece { events, heartbeat, end } = piece?;
            Ok(v1::ExecuteRunResponse { events, heartbeat, end })
        });
        let mut stream = Box::pin(stream.peekable());
        // The response begins with the first event, which is soon: this saves writing and reading one message. It also
        // does so if that event is an error: the run is stored, and a client may repeat a request that failed before
        // there was a response.
        stream.as_mut().peek().await;
        Ok(Response::new(stream))
    }

    async fn execute_runs(
        &self,
        request: Request<tonic::Streaming<v1::ExecuteRunsRequest>>,
    ) -> Result<Response<Self::ExecuteRunsStream>, Status> {
        let api = self.0.by(request.extensions());
        Ok(Response::new(Box::pin(many::execute(request.into_inner(), api))))
    }

    async fn watch_run(&self, request: Request<v1::WatchRunRequest>) -> Result<Response<Self::WatchRunStream>, Status> {
        let deadline = Deadline::of(&request);
        let api = self.0.by(request.extensions());
        let opening = async move { api.watch_run(request.into_inner()).await };
        let stream = watched(opening, self.0.stop.clone(), deadline).await?.map(|piece| {
            let Piece { events, heartbeat, end } = piece?;
            Ok(v1::WatchRunResponse { events, heartbeat, end })
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_run(&self, request: Request<v1::GetRunRequest>) -> Result<Response<v1::GetRunResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).get_run(request.into_inner()).await?))
    }

    async fn append_calls(
        &self,
        request: Request<v1::AppendCallsRequest>,
    ) -> Result<Response<v1::AppendCallsResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).append_calls(request.into_inner()).await?))
    }

    async fn close_run(&self, request: Request<v1::CloseRunRequest>) -> Result<Response<v1::CloseRunResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).close_run(request.into_inner()).await?))
    }

    async fn submit_tool_outputs(
        &self,
        request: Request<v1::SubmitToolOutputsRequest>,
    ) -> Result<Response<v1::SubmitToolOutputsResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).submit_tool_outputs(request.into_inner()).await?))
    }

    async fn create_answer_token(
        &self,
        request: Request<v1::CreateAnswerTokenRequest>,
    ) -> Result<Response<v1::CreateAnswerTokenResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).create_answer_token(request.into_inner()).await?))
    }

    async fn decide_calls(
        &self,
        request: Request<v1::DecideCallsRequest>,
    ) -> Result<Response<v1::DecideCallsResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).decide_calls(request.into_inner()).await?))
    }

    async fn cancel_run(
        &self,
        request: Request<v1::CancelRunRequest>,
    ) -> Result<Response<v1::CancelRunResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).cancel_run(request.into_inner()).await?))
    }

    async fn erase_runs(
        &self,
        request: Request<v1::EraseRunsRequest>,
    ) -> Result<Response<v1::EraseRunsResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).erase_runs(request.into_inner()).await?))
    }

    async fn cancel_call(
        &self,
        request: Request<v1::CancelCallRequest>,
    ) -> Result<Response<v1::CancelCallResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).cancel_call(request.into_inner()).await?))
    }

    async fn explain_call(
        &self,
        request: Request<v1::ExplainCallRequest>,
    ) -> Result<Response<v1::ExplainCallResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).explain_call(request.into_inner()).await?))
    }

    async fn redrive_call(
        &self,
        request: Request<v1::RedriveCallRequest>,
    ) -> Result<Response<v1::RedriveCallResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).redrive_call(request.into_inner()).await?))
    }

    async fn drop_call(&self, request: Request<v1::DropCallRequest>) -> Result<Response<v1::DropCallResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).drop_call(request.into_inner()).await?))
    }
}
