//! `toolyard.v1.ToolService`.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::convert::manifest::manifest_out;
use proto::v1;
use run::{PoolId, ToolName};
use tonic::{Request, Response, Status};

use crate::registry::{Hosted, Registry};
use crate::runs::{Refusal, Runs};

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;

#[derive(Debug)]
pub(super) struct ToolDoor {
    pub(super) runs: Runs,
}

#[tonic::async_trait]
impl v1::tool_service_server::ToolService for ToolDoor {
    async fn list_tools(
        &self,
        request: Request<v1::ListToolsRequest>,
    ) -> Result<Response<v1::ListToolsResponse>, Status> {
        let v1::ListToolsRequest { page_size, page_token } = request.into_inner();
        let malformed = |field: &str, reason: String| Refusal::Malformed { field: field.to_owned(), reason };
        let size = match usize::try_from(page_size) {
            Ok(0) => PAGE_DEFAULT,
            Ok(size) => size.min(PAGE_MAX),
            Err(_) => return Err(malformed("page_size", "must not be negative".to_owned()).into()),
        };
        // The token is the last name of the page before.
        let after: Option<ToolName> = match page_token.as_str() {
            "" => None,
            token => Some(token.parse().map_err(|_| malformed("page_token", "is not one of ours".to_owned()))?),
        };
        let registry = Arc::clone(&self.runs.registry.borrow());
        let mut page = registry.tools_after(after.as_ref());
        let tools: Vec<_> = page.by_ref().take(size).filter_map(|(_, pools)| tool(pools, &registry)).collect();
        let last = tools.last().map(|tool| tool.name.clone()).unwrap_or_default();
        let next_page_token = if page.next().is_some() { last } else { String::new() };
        Ok(Response::new(v1::ListToolsResponse { tools, next_page_token }))
    }

    async fn get_tool(&self, request: Request<v1::GetToolRequest>) -> Result<Response<v1::GetToolResponse>, Status> {
        let name: ToolName = request.into_inner().name.parse().map_err(|error: run::InvalidId| Refusal::Malformed {
            field: "name".to_owned(),
            reason: error.to_string(),
        })?;
        let registry = Arc::clone(&self.runs.registry.borrow());
        let found = registry.tool(&name).and_then(|pools| tool(pools, &registry));
        let tool = Some(found.ok_or(Refusal::ToolNotFound(name))?);
        Ok(Response::new(v1::GetToolResponse { tool }))
    }
}

fn tool(pools: &BTreeMap<PoolId, Hosted>, registry: &Registry) -> Option<v1::Tool> {
    let (_, hosted) = pools.first_key_value()?;
    let pools = pools.keys().map(|pool| v1::ToolPool {
        pool: pool.to_string(),
        live_workers: u32::try_from(registry.live_workers(pool)).unwrap_or(u32::MAX),
        pulling_workers: u32::try_from(registry.pulling_workers(pool)).unwrap_or(u32::MAX),
    });
    Some(v1::Tool { pools: pools.collect(), ..manifest_out(&hosted.manifest) })
}
