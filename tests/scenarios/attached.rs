//! Deployments and tenants whose runs may call only the tools that they attached.

use harness::{Fixture, Yard, call};
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy};
use serde_json::json;

use crate::{FIXTURE, check};

#[tokio::test]
async fn a_tool_that_is_alive_and_not_attached_is_an_error_and_no_job() {
    let yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_ATTACHED_ONLY", "true")).await;
    let _worker = yard.worker().await;
    let echo = || vec![call("it", "echo", json!({ "text": "hello" }))];
    let run = yard.client.create(echo()).await;
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    let error = outcomes["it"].error.clone().expect("it is refused");
    assert_eq!(error.kind(), CallErrorKind::UnknownTool, "{error:?}");
    assert!(error.message.contains("the run attached no tools"), "{error:?}");
    assert_eq!(run.get().await.calls[0].attempts, 0, "no worker had it");
    let attached =
        v1::CreateRunRequest { calls: echo(), tools: vec!["echo".to_owned()], ..v1::CreateRunRequest::default() };
    let request = v1::ExecuteRunRequest { run: Some(attached), ..v1::ExecuteRunRequest::default() };
    let events = yard.client.execute_request(request).await.expect("it is accepted").to_end().await;
    assert_eq!(check::outcomes(&events)["it"].state(), CallState::Completed);
}
