//! `GET /v1/runs/{run_id}/messages`: the answer of the batch endpoint for a run that was made by any request.

use std::collections::HashMap;
use std::time::Duration;

use axum::response::Response;
use proto::v1;
use tokio::time::Instant;

use super::answer::Answering;
use super::terms::Wanted;
use super::{Waiting, turn_of};
use crate::api::Api;
use crate::api::http::ask::Ask;
use crate::api::problem::{Place, Problem};

pub(in crate::api::http) async fn messages(api: Api, ask: Ask) -> Result<Response, Problem> {
    let mut wanted = Wanted { form: None, wait: Duration::ZERO };
    for (name, value) in &ask.query {
        if !wanted.take(name, value)? {
            let detail = format!("{name}: unknown parameter; known parameters: format, wait");
            return Err(Problem::malformed(Place::Parameter(name.clone()), detail));
        }
    }
    let form = wanted.form.ok_or_else(|| {
        let detail = "format: is missing: name the form of the messages, such as anthropic";
        Problem::malformed(Place::Parameter("format".to_owned()), detail)
    })?;
    let id = ask.path.iter().find(|(name, _)| name == "run_id").map_or("", |(_, value)| value).to_owned();
    let floor_policy = v1::FloorPolicy::Interleaved.into();
    let request = v1::WatchRunRequest { run_id: id, floor_policy, ..v1::WatchRunRequest::default() };
    let reader = api.watch_run(request).await.map_err(|error| ask.problem(error))?;
    let mut waiting = Waiting::new(api, reader, Instant::now() + wanted.wait);
    let known = waiting.caught_up().await.map_err(|error| ask.problem(error))?;
    waiting.want(known.requested_calls().map(|call| &call.spec().id));
    let turn = turn_of(&waiting.api, &known, form);
    let turn = Answering { turn, refused: HashMap::new(), dangling: Vec::new(), is_of_model: true, is_shared: false };
    if wanted.wait.is_zero() || waiting.waits(&known) {
        return Ok(turn.response(Some((&known, &waiting.heard))));
    }
    waiting.answer(&turn).await.map_err(|error| ask.problem(error))
}
