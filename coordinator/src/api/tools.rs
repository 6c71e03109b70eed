//! `toolyard.v1.ToolService`: the tools that can be called.

use std::sync::Arc;

use globset::Glob;
use hooks::Confirmation;
use proto::convert::manifest::{manifest_out, origin_in, permission_in};
use proto::v1;
use run::limit::TOOL_NAME_BYTES_MAX;
use run::{PoolId, ToolName};

use super::{Api, ApiError};
use crate::admission::error::RequestError;
use crate::auth::callers::Role;
use crate::fleet::paused::Paused;
use crate::fleet::registry::{Entry, Hosts, Refused, Registry};
use crate::offload;

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;
/// Tools that a search returns unless the request sets another number.
const FOUND_DEFAULT: usize = 10;
const QUERY_BYTES_MAX: usize = 512;
/// The most rejected tools that are listed, and the most workers named for each: enough to find the cause.
const REFUSED_MAX: usize = 100;
const WORKERS_NAMED_MAX: usize = 16;

impl Api {
    /// [`Api::list_tools`], whose first search of a catalog takes long.
    pub(crate) async fn find_tools(&self, request: &v1::ListToolsRequest) -> Result<v1::ListToolsResponse, ApiError> {
        if !request.query.is_empty() {
            let registry = Arc::clone(&self.runs.registry.borrow());
            let catalog = registry.catalog_of(self.runs.caller.tenant());
            offload::run_unless(catalog.has_search(), || {
                catalog.made_search();
            })
            .await;
        }
        self.list_tools(request)
    }

    pub(crate) fn list_tools(&self, request: &v1::ListToolsRequest) -> Result<v1::ListToolsResponse, ApiError> {
        let malformed = |field: &str, reason: String| RequestError::Malformed { field: field.to_owned(), reason };
        let size = match usize::try_from(request.page_size) {
            Ok(0) if !request.query.is_empty() => FOUND_DEFAULT,
            Ok(0) => PAGE_DEFAULT,
            Ok(size) => size.min(PAGE_MAX),
            Err(_) => return Err(malformed("page_size", "must not be negative".to_owned()).into()),
        };
        // The token is the last name of the page before.
        let after: Option<ToolName> = match request.page_token.as_str() {
            "" => None,
            token => Some(
                token
                    .parse()
                    .map_err(|_| malformed("page_token", "was not returned by an earlier request".to_owned()))?,
            ),
        };
        if request.query.len() > QUERY_BYTES_MAX {
            let reason = format!("is {} bytes, at most {QUERY_BYTES_MAX} are allowed", request.query.len());
            return Err(malformed("query", reason).into());
        }
        if !request.query.is_empty() && after.is_some() {
            return Err(malformed("page_token", "a search has one page".to_owned()).into());
        }
        let permission = permission_in(request.permission);
        let permission = permission.map_err(|error| malformed("permission", error.to_string()))?;
        let origin = origin_in(request.origin).map_err(|error| malformed("origin", error.to_string()))?;
        let pool: Option<PoolId> = match request.pool.as_str() {
            "" => None,
            pool => Some(pool.parse().map_err(|error: run::InvalidId| malformed("pool", error.to_string()))?),
        };
        let name = match request.name.as_str() {
            "" => None,
            name if name.len() > TOOL_NAME_BYTES_MAX => {
                return Err(malformed("name", format!("is longer than {TOOL_NAME_BYTES_MAX} bytes")).into());
            }
            name => Some(Glob::new(name).map_err(|error| malformed("name", error.to_string()))?.compile_matcher()),
        };
        check_tags(&request.tags)?;
        let registry = Arc::clone(&self.runs.registry.borrow());
        let paused = Arc::clone(&self.runs.pauses.current.borrow());
        let shows = self.runs.callers.shows(&self.runs.caller);
        let wanted = |entry: &&Entry| {
            let manifest = &entry.hosted.manifest;
            !manifest.result_use.hidden
                && shows(entry)
                && (request.include_unavailable || registry.is_available(entry))
                && (request.category.is_empty() || manifest.category == request.category)
                && request.tags.iter().all(|tag| manifest.tags.contains(tag))
                && permission.is_none_or(|permission| manifest.permission == permission)
                && origin.is_none_or(|origin| manifest.origin == origin)
                && name.as_ref().is_none_or(|name| name.is_match(entry.name.as_str()))
                && pool.as_ref().is_none_or(|pool| entry.all_pools().any(|it| it == pool))
        };
        let catalog = registry.catalog_of(self.runs.caller.tenant());
        let mut tools: Vec<_> = if request.query.is_empty() {
            catalog.after(after.as_ref()).iter().filter(wanted).take(size + 1).collect()
        } else {
            catalog.search(&request.query).filter(wanted).take(size).collect()
        };
        let is_cut = tools.len() > size;
        tools.truncate(size);
        let next_page_token = tools.last().filter(|_| is_cut).map(|entry| entry.name.to_string()).unwrap_or_default();
        let tools = tools.into_iter().map(|entry| tool(entry, self, (&registry, &paused))).collect();
        // Rejected tools are shown to admins only.
        let is_told = after.is_none() && self.runs.caller.must(Role::Admin).is_ok();
        let refused = registry.catalog.refused.iter().filter(|_| is_told).take(REFUSED_MAX);
        let refused = refused.map(|it| refused_out(it, &registry)).collect();
        Ok(v1::ListToolsResponse { tools, next_page_token, refused })
    }

    pub(crate) fn get_tool(&self, request: &v1::GetToolRequest) -> Result<v1::GetToolResponse, ApiError> {
        let name: ToolName = request.name.parse().map_err(|error: run::InvalidId| RequestError::Malformed {
            field: "name".to_owned(),
            reason: error.to_string(),
        })?;
        let registry = Arc::clone(&self.runs.registry.borrow());
        let shows = self.runs.callers.shows(&self.runs.caller);
        let found = registry.catalog_of(self.runs.caller.tenant()).find(&name).filter(|entry| shows(entry));
        let found = found.map(|entry| tool(entry, self, (&registry, &self.runs.pauses.current.borrow())));
        let tool = Some(found.ok_or(RequestError::ToolNotFound(name))?);
        Ok(v1::GetToolResponse { tool })
    }
}

fn tool(entry: &Entry, api: &Api, (registry, paused): (&Registry, &Paused)) -> v1::Tool {
    let manifest = &entry.hosted.manifest;
    let confirmation = api.runs.hooks.confirm.of(manifest, entry.alias_of.as_ref(), None);
    let is_asked_about = manifest.requires_confirmation || confirmation != Confirmation::NotNeeded;
    let pools = entry.all_pools().map(|pool| {
        let living = registry.living_hosts(pool, entry);
        let replaces = registry.views.replaces(pool).filter(|(of, _)| entry.all_pools().any(|it| it == *of));
        v1::ToolPool {
            pool: pool.to_string(),
            live_workers: u32::try_from(living.live).unwrap_or(u32::MAX),
            pulling_workers: u32::try_from(living.pulling).unwrap_or(u32::MAX),
            paused: paused.stops(pool),
            version: entry.of(pool).hosted.manifest.version.as_ref().map(ToString::to_string).unwrap_or_default(),
            replaces: replaces.map(|(of, _)| of.to_string()).unwrap_or_default(),
            share: replaces.map(|(_, share)| u32::from(share)).unwrap_or_default(),
        }
    });
    v1::Tool {
        pools: pools.collect(),
        alias_of: entry.alias_of.as_ref().map(ToString::to_string).unwrap_or_default(),
        available: registry.is_available(entry),
        paused: paused.holds(&entry.hosted.manifest.name),
        needs_approval: is_asked_about && !manifest.definition_only,
        ..manifest_out(&entry.hosted.manifest)
    }
}

fn refused_out(refused: &Refused, registry: &Registry) -> v1::RefusedTool {
    let hosts = |hosts: &Hosts| v1::ToolHosts {
        pool: hosts.0.to_string(),
        worker_ids: registry.workers_of(hosts, WORKERS_NAMED_MAX).iter().map(ToString::to_string).collect(),
    };
    v1::RefusedTool {
        tool: refused.tool.clone(),
        hosts: Some(hosts(&refused.hosts)),
        holder: refused.holder.as_ref().map(hosts),
        reason: refused.reason.clone(),
    }
}

/// No tool has more tags than a manifest may have.
fn check_tags(tags: &[String]) -> Result<(), RequestError> {
    let (count, max) = (tags.len(), run::limit::TAGS_MAX);
    if count <= max {
        return Ok(());
    }
    Err(RequestError::Malformed { field: "tags".to_owned(), reason: format!("has {count} tags; the limit is {max}") })
}
