//! The part of OpenAI's Assistants API that concerns runs: their calls are steps, and client calls require action.

use axum::response::Response;
use axum::routing::{get, post};
use formats::openai::assistants::{Asked, Event, Stream, tool_outputs};
use formats::openai::share::SharedRun;
use http::Method;
use proto::{Reason, v1};
use run::Run;
use serde_json::json;
use uuid::Builder;

use super::{
    FORM, Face, Route, Wrong, abandoned, answer, body, cancel_all, execute, has_all, hosted, list, path, read_through,
    streamed, watch,
};
use crate::admission::error::RequestError;
use crate::api::Api;
use crate::api::http::ask::Ask;
use crate::api::http::sse;
use crate::api::problem::Problem;
use crate::auth::callers::Role;
use crate::readers::Reader;

#[rustfmt::skip]
pub(super) const ROUTES: &[Route] = &[
    Route { method: Method::POST, path: "/threads", name: "createThread", roles: &Role::ALL, handler: || post(thread),
        description: "Returns a new thread id. Threads are not stored, so any other id works as well." },
    Route { method: Method::POST, path: "/threads/runs", name: "createThreadAndRun",
        roles: &[Role::Submit], handler: || post(create),
        description: "Executes the calls in `tool_calls` as a run of a new thread." },
    Route { method: Method::POST, path: "/threads/{thread_id}/runs", name: "createThreadRun",
        roles: &[Role::Submit], handler: || post(create),
        description: "Executes the calls in `tool_calls` as a run." },
    Route { method: Method::GET, path: "/threads/{thread_id}/runs/{run_id}", name: "getThreadRun",
        roles: &[Role::Read], handler: || get(retrieve),
        description: "Gets the present state of a run." },
    Route { method: Method::GET, path: "/threads/{thread_id}/runs/{run_id}/steps", name: "listThreadRunSteps",
        roles: &[Role::Read], handler: || get(steps),
        description: "Lists the steps of a run: its calls that have started." },
    Route { method: Method::GET, path: "/threads/{thread_id}/messages", name: "listThreadMessages",
        roles: &[Role::Read], handler: || get(messages),
        description: "Lists the messages of the run `run_id`: the results of final tools, and those that are the \
            answer. Without `run_id`, of the run with which the thread was created." },
    Route { method: Method::POST, path: "/threads/{thread_id}/runs/{run_id}/submit_tool_outputs",
        name: "submitThreadRunOutputs", roles: &[Role::Answer], handler: || post(submit),
        description: "Answers all calls that wait for the client, together." },
    Route { method: Method::POST, path: "/threads/{thread_id}/runs/{run_id}/cancel", name: "cancelThreadRun",
        roles: &[Role::Submit], handler: || post(cancel),
        description: "Cancels the calls that have not ended. Returns immediately; the run is `cancelling` until all \
            of its calls have ended." },
];

type Asks = Result<Ask, Problem>;
type Answered = Result<Response, Wrong>;

/// A thread is only an id: nothing is stored for it.
async fn thread(ask: Asks) -> Answered {
    ask?;
    let (now, random) = (::nats::now().0, rand::random());
    let id = format!("thread_{}", Builder::from_unix_timestamp_millis(now, &random).into_uuid().simple());
    Ok(answer(
        &json!({ "id": id, "object": "thread", "created_at": now / 1000, "metadata": {}, "tool_resources": null }),
    ))
}

async fn create(api: Api, ask: Asks) -> Answered {
    let ask = ask?;
    let api = api.in_form(FORM);
    let Asked { mut run, run_id, is_streamed, cancels_on_disconnect } = Asked::read(&body(&ask)?, &hosted(&api))?;
    run.request_id = ask.request_id(run.request_id)?;
    let cancels = cancels_on_disconnect && run.request_id.is_empty();
    let (reader, run) = execute(&api, &ask, (run, run_id), "/tool_calls").await?;
    let thread = match path(&ask, "thread_id") {
        "" => run.to_string().replacen("run_", "thread_", 1),
        thread => thread.to_owned(),
    };
    if is_streamed {
        let left = abandoned(&api, run, cancels).await?;
        return Ok(streamed(reader, &api, Telling { stream: Stream::new(run, &thread), from: 0 }, left));
    }
    Ok(answer(&standing(&api, (reader, run), &thread).await?.run()))
}

fn named(ask: &Ask) -> Result<(SharedRun, &str), Wrong> {
    let run = path(ask, "run_id")
        .parse::<SharedRun>()
        .map_err(|error| Wrong::new(Reason::RunNotFound, format!("there is no such run: {error}"), Some("run_id")))?;
    Ok((run, path(ask, "thread_id")))
}

async fn find(api: &Api, ask: &Ask) -> Result<Stream, Wrong> {
    let (run, thread) = named(ask)?;
    let reader = watch(api, run).await.map_err(|wrong| wrong.if_gone("run_id"))?;
    standing(api, (reader, run), thread).await
}

async fn retrieve(api: Api, ask: Asks) -> Answered {
    Ok(answer(&find(&api, &ask?).await?.run()))
}

async fn steps(api: Api, ask: Asks) -> Answered {
    let ask = ask?;
    Ok(answer(&list(find(&api, &ask).await?.steps(), &ask)?))
}

/// Nothing is stored for a thread, so its messages are those of one run.
async fn messages(api: Api, ask: Asks) -> Answered {
    let ask = ask?;
    let thread = path(&ask, "thread_id");
    let run = ask.query.iter().find(|(name, _)| name == "run_id").map(|(_, run)| run.clone());
    let run = run.unwrap_or_else(|| thread.replacen("thread_", "run_", 1));
    let run = run.parse::<SharedRun>().map_err(|_| {
        let message = format!("thread {thread} is only a name: give the run whose messages are wanted as `run_id`");
        Wrong::new(Reason::RunNotFound, message, Some("run_id"))
    })?;
    let reader = watch(&api, run).await.map_err(|wrong| wrong.if_gone("run_id"))?;
    Ok(answer(&list(standing(&api, (reader, run), thread).await?.messages(), &ask)?))
}

async fn submit(api: Api, ask: Asks) -> Answered {
    let ask = ask?;
    let (run, thread) = named(&ask)?;
    let (mut outputs, is_streamed) = tool_outputs(&ask.body, &run.run.to_string())?;
    // The stream has the events after the outputs. If the run has ended, the same outputs sent again return its last
    // part.
    let before = find(&api, &ask).await?;
    let from = before.part() - u32::from(before.has_ended());
    if run.share.is_some() {
        // Those of other requests need no answer here.
        before.check_outputs(&outputs)?;
        outputs.all_required = false;
    }
    api.submit_tool_outputs(outputs).await.map_err(|error| Wrong::of_answers(error, "/tool_outputs"))?;
    let reader = watch(&api, run).await?;
    if is_streamed {
        return Ok(streamed(reader, &api, Telling { stream: Stream::new(run, thread), from }, None));
    }
    Ok(answer(&standing(&api, (reader, run), thread).await?.run()))
}

/// The run is reported as cancelling until all of its calls have ended.
async fn cancel(api: Api, ask: Asks) -> Answered {
    let ask = ask?;
    let (run, _) = named(&ask)?;
    cancel_all(&api, run, "the run was cancelled").await.map_err(|wrong| wrong.if_gone("run_id"))?;
    let mut told = find(&api, &ask).await?.run();
    if told["status"] == "in_progress" || told["status"] == "queued" {
        told["status"] = "cancelling".into();
    }
    Ok(answer(&told))
}

/// The run as the log has it.
async fn standing(api: &Api, (mut reader, run): (Box<Reader>, SharedRun), thread: &str) -> Result<Stream, Wrong> {
    let through = api.runs.journals.of(run.run).last_of_run(run.run).await.map_err(RequestError::from)?;
    let mut stream = Stream::new(run, thread);
    while let Some(events) = read_through(&mut reader, through).await? {
        for event in &events {
            stream.take(event, reader.run());
        }
    }
    if has_all(reader.run(), run) {
        return Ok(stream);
    }
    let message = format!("there is no such run: {run}");
    Err(Wrong::new(Reason::RunNotFound, message, Some("run_id")))
}

/// A run that is streamed until it requires action or has ended.
struct Telling {
    stream: Stream,
    /// The part of the run that is streamed.
    from: u32,
}

impl Face for Telling {
    fn take(&mut self, events: &[v1::RunEvent], run: &Run, text: &mut Vec<u8>) -> bool {
        let told: Vec<Event> = events.iter().flat_map(|event| self.stream.take(event, run)).collect();
        for event in told.iter().filter(|event| event.part == self.from) {
            sse::event(text, None, Some(event.kind), &event.data.to_string());
            if event.is_last() {
                sse::event(text, None, Some("done"), "[DONE]");
                return true;
            }
        }
        false
    }
}
