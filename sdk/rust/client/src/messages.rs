//! The results of a run as messages for a model, which the coordinator has over HTTP alone. The request goes over the
//! connection of the other requests.

use std::collections::HashMap;
use std::future::poll_fn;
use std::time::Duration;

use form_urlencoded::byte_serialize;
use http_body_util::{BodyExt as _, Limited};
use proto::Reason;
use proto::reason::DOMAIN;
use serde::Deserialize;
use tonic::body::Body;
use tonic::codegen::{Service as _, http};
use tonic::{Code, Response, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::client::{Client, RESPONSE_BYTES_MAX};
use crate::error::Error;

/// What is read of the body of a refusal.
#[derive(Debug, Default, Deserialize)]
struct Problem {
    #[serde(default)]
    detail: String,
    #[serde(default)]
    reason: String,
}

impl Client {
    /// The results of a run's calls as messages in the form of a model's API, such as `openai` or `anthropic`. It is
    /// the JSON of `GET /v1/runs/{run_id}/messages`, with the open calls beside the messages. Waits for these at most
    /// as long as `wait`.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn messages(&self, run_id: &str, format: &str, wait: Duration) -> Result<String, Error> {
        let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
        let (run_id, format, wait) = (encoded(run_id), encoded(format), wait.as_millis());
        let path = format!("/v1/runs/{run_id}/messages?format={format}&wait={wait}ms");
        let ask = || {
            let (client, path) = (self.clone(), path.clone());
            async move { client.get(&path).await.map(Response::new) }
        };
        self.repeat(ask).await
    }

    async fn get(&self, path: &str) -> Result<String, Status> {
        let request = http::Request::get(path).body(Body::empty());
        let request = request.map_err(|error| Status::invalid_argument(format!("{path}: {error}")))?;
        let mut transport = self.transport.clone();
        poll_fn(|context| transport.poll_ready(context)).await.map_err(|error| Status::from_error(error.into()))?;
        let response = transport.call(request).await.map_err(|error| Status::from_error(error.into()))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
        let body = body.map_err(Status::from_error)?.to_bytes();
        if !status.is_success() {
            return Err(refusal(status, &body));
        }
        String::from_utf8(body.into()).map_err(|_| Status::internal("the coordinator's response is no text"))
    }
}

/// As gRPC would return it.
fn refusal(status: http::StatusCode, body: &[u8]) -> Status {
    let Problem { detail, reason } = serde_json::from_slice(body).unwrap_or_default();
    let unknown = if status == http::StatusCode::SERVICE_UNAVAILABLE { Code::Unavailable } else { Code::Internal };
    let code = Reason::from_code(&reason).map_or(unknown, Reason::grpc);
    let detail = if detail.is_empty() { format!("the coordinator answered {status}") } else { detail };
    if reason.is_empty() {
        return Status::new(code, detail);
    }
    let details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::<String, String>::new());
    Status::with_error_details(code, detail, details)
}
