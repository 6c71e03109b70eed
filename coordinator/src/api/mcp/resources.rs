//! Resources: the objects of results and uploads, by the rights with which they are read over HTTP. They are not
//! listed, because results name them.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::BytesMut;
use formats::mcp::{Era, OBJECTS, object_of};
use futures::TryStreamExt as _;
use http::StatusCode;
use proto::Reason;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::client::Client;
use super::lists::cache;
use super::members;
use super::message::{INVALID_PARAMS, RESOURCE_NOT_FOUND, Request, RpcError};
use crate::admission::error::RequestError;
use crate::api::Api;
use crate::api::objects::{Reading, Wanted};
use crate::auth::callers::Role;

/// Bytes of an object in one message; larger ones are read over HTTP.
const BYTES_MAX: u64 = 4 * 1024 * 1024;
const TTL_MS: u64 = 5_000;
/// Objects never change.
const OBJECT_TTL_MS: u64 = 3_600_000;

#[derive(Deserialize)]
struct Params {
    uri: String,
}

pub(super) fn list(api: &Api, client: &Client) -> Result<String, RpcError> {
    listed(api, client, &json!({ "resources": [] }))
}

pub(super) fn templates(api: &Api, client: &Client) -> Result<String, RpcError> {
    let object = json!({
        "uriTemplate": format!("{OBJECTS}{{object_id}}"),
        "name": "object",
        "title": "Object",
        "description": "Content that is too large for a result, by the id in the result.",
    });
    listed(api, client, &json!({ "resourceTemplates": [object] }))
}

fn listed(api: &Api, client: &Client, list: &Value) -> Result<String, RpcError> {
    api.runs.caller.must(Role::Read).map_err(RequestError::from)?;
    let all: Vec<String> = [members(list)].into_iter().chain(cache(api, client, TTL_MS)).collect();
    Ok(all.join(","))
}

/// The members of the result, and the part of the memory for such contents that they take.
pub(super) async fn read(
    api: &Api,
    client: &Client,
    request: &Request,
) -> Result<(String, OwnedSemaphorePermit), RpcError> {
    let Params { uri } = request.read()?;
    api.runs.caller.must(Role::Read).map_err(RequestError::from)?;
    let unknown = || {
        let code = if client.era == Era::Modern { INVALID_PARAMS } else { RESOURCE_NOT_FOUND };
        RpcError::new(code, "Resource not found").with(json!({ "uri": uri }))
    };
    let id = object_of(&uri).ok_or_else(unknown)?;
    let reading = api.read_object(id, Wanted::From(0, None)).await;
    let Reading { object, mut bytes, .. } = reading.map_err(|error| match error.reason {
        Reason::ObjectNotFound | Reason::Malformed | Reason::RunNotFound | Reason::EventsExpired => unknown(),
        _ => error.into(),
    })?;
    if object.size > BYTES_MAX {
        let message = format!(
            "the object has {} bytes, and a message carries {BYTES_MAX} at most: read it from /v1/objects/{id}",
            object.size
        );
        return Err(RpcError::new(INVALID_PARAMS, message).status(StatusCode::OK));
    }
    // The answer has it in base64, in JSON.
    let held = api.inlined.take(2 * object.size).await?;
    let mut whole = BytesMut::new();
    while let Some(piece) = bytes.try_next().await? {
        whole.extend_from_slice(&piece);
    }
    let is_text = object.media_type.starts_with("text/") || object.media_type.starts_with("application/json");
    let mut content = json!({ "uri": uri, "mimeType": object.media_type });
    match std::str::from_utf8(&whole).ok().filter(|_| is_text) {
        Some(text) => content["text"] = text.into(),
        None => content["blob"] = BASE64_STANDARD.encode(&whole).into(),
    }
    let contents = members(&json!({ "contents": [content] }));
    let members: Vec<String> = [contents].into_iter().chain(cache(api, client, OBJECT_TTL_MS)).collect();
    Ok((members.join(","), held))
}
