//! `toolyard.v1.ToolService`.

use proto::v1;
use tonic::{Request, Response, Status};

use crate::api::Api;

#[derive(Debug)]
pub(in crate::api) struct ToolDoor(pub(in crate::api) Api);

#[tonic::async_trait]
impl v1::tool_service_server::ToolService for ToolDoor {
    async fn list_tools(
        &self,
        request: Request<v1::ListToolsRequest>,
    ) -> Result<Response<v1::ListToolsResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).find_tools(request.get_ref()).await?))
    }

    async fn get_tool(&self, request: Request<v1::GetToolRequest>) -> Result<Response<v1::GetToolResponse>, Status> {
        Ok(Response::new(self.0.by(request.extensions()).get_tool(request.get_ref())?))
    }
}
