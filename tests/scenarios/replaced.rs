//! Parts of a coordinator and a worker that a program of one's own replaces, each alone: the parts of this process, at
//! a real broker, through the public API.

use std::collections::BTreeSet;

use coordinator::{AddedPolicy, ApiOptions, CallIndex, Coordinator, LogOptions, Voice};
use harness::{Client, Run, call, client_answer, reason};
use hooks::{
    CallStage, Hook, HookError, HookPoint, HookRequest, Hooks, Placement, Reply, Resolution, Resolve,
    ResolverPlacement, Resolvers,
};
use proto::v1::run_event::Event;
use proto::v1::{self, CallState, FloorPolicy, RunEvent};
use run::{Completion, Content, TenantId, ToolName};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use worker::interceptor::{Call, ErrorToMessage, Interceptor, Next};
use worker::{About, Context, Output, Table, ToolError, tool};

use crate::check;

/// Greets a person.
#[tool(crate = ::worker, read_only)]
async fn greet(name: String) -> String {
    format!("Hello, {name}!")
}

/// Pays an amount.
#[tool(crate = ::worker)]
async fn pay(amount: u64) -> Result<String, ToolError> {
    if amount == 0 { Err(ToolError::new("nothing to pay")) } else { Ok(format!("paid {amount}")) }
}

fn table() -> Table {
    Table::new().host(Greet).and_then(|table| table.host(Pay)).expect("they can be hosted")
}

/// A coordinator and a worker, as another program has them.
struct Embedded {
    broker: local::Broker,
    client: Client,
    coordinator: (CancellationToken, JoinHandle<()>),
    _worker: DropGuard,
}

/// Starts a coordinator with parts of its own.
async fn coordinate(
    broker: &local::Broker,
    with_parts: impl FnOnce(Coordinator) -> Coordinator,
) -> (Client, (CancellationToken, JoinHandle<()>)) {
    let options = coordinator::Options {
        nats_url: broker.url(),
        credentials: nats::Credentials::default(),
        listen: ([127, 0, 0, 1], 0).into(),
        log: LogOptions::default(),
        bucket: None,
        redis_url: None,
        redis_ca: None,
        api: ApiOptions::default(),
        admin: None,
    };
    let coordinator = with_parts(Coordinator::bind(options).await.expect("it gets its port"));
    let (address, stop, stopped) = (coordinator.address(), CancellationToken::new(), CancellationToken::new());
    let stopping = stop.clone();
    let ready = stopped.clone();
    let serving =
        tokio::spawn(async move { coordinator.serve(stopping, move || ready.cancel()).await.expect("it serves") });
    stopped.cancelled().await;
    (Client::connect(address).await, (stop, serving))
}

impl Embedded {
    async fn start(with_parts: impl FnOnce(Coordinator) -> Coordinator, table: Table, hooks: Hooks) -> Self {
        let broker = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
        let (client, coordinator) = coordinate(&broker, with_parts).await;
        let options = worker::Options { hooks, ..worker::Options::new(broker.url(), "main".parse().expect("a name")) };
        let (first, stop) = (table.names().next().expect("it has tools").0.to_string(), CancellationToken::new());
        let worker = worker::serve(options, table, stop.clone(), |_| {});
        tokio::spawn(async move { worker.await.expect("it serves") });
        client.wait_for_tool(&first).await;
        Self { broker, client, coordinator, _worker: stop.drop_guard() }
    }

    /// With these hooks and resolvers at its coordinator.
    async fn hooked(hooks: Hooks) -> Self {
        Self::start(|coordinator| coordinator.with_hooks(hooks), table(), Hooks::default()).await
    }

    async fn outcome(&self, call: v1::NewCall) -> v1::CallOutcome {
        let id = call.call_id.clone();
        check::outcomes(&self.client.execute(vec![call]).await.to_end().await)[&id].clone()
    }
}

/// Names of a company, which its directory knows.
struct Directory;

impl Resolve for Directory {
    async fn resolve(&self, tool: &ToolName, _: Option<&TenantId>) -> Result<Option<Resolution>, HookError> {
        Ok(match tool.as_str() {
            "welcome" => {
                Some(Resolution::Alias { tool: "greet".parse().expect("a name"), bound: [].into(), schema: None })
            }
            "ask_boss" => Some(Resolution::Client { schema: None }),
            _ => None,
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_resolver_is_replaced() {
    let resolvers = Resolvers::default().with(ResolverPlacement::new("directory"), Directory).expect("it fits");
    let again = resolvers.clone().with(ResolverPlacement::new("directory"), Directory);
    assert!(again.expect_err("two have one name").to_string().contains("another resolver has it"));
    let mut hooks = Hooks::default();
    hooks.resolvers = resolvers;
    let yard = Embedded::hooked(hooks).await;
    let welcome = yard.outcome(call("a", "welcome", json!({ "name": "Ada" }))).await;
    assert_eq!(check::text(&welcome), "Hello, Ada!");
    let run = yard.client.create(vec![call("b", "ask_boss", json!({}))]).await;
    assert_eq!(run.get().await.calls[0].state(), CallState::WaitingForClient);
    let unknown = yard.outcome(call("c", "nobody", json!({}))).await;
    assert_eq!(unknown.error.expect("it is unknown").kind(), v1::CallErrorKind::UnknownTool);
}

/// Calls over large amounts are the client's.
struct LargeAmounts;

impl Hook for LargeAmounts {
    async fn ask(&self, request: &HookRequest) -> Result<Reply, HookError> {
        let arguments: serde_json::Value =
            serde_json::from_slice(&request.arguments).map_err(|error| HookError::new(error.to_string()))?;
        let is_large = arguments["amount"].as_u64().is_some_and(|amount| amount > 100);
        Ok(if is_large { Reply::LeaveToClient } else { Reply::Allow })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn which_calls_are_executed_is_replaced() {
    let placement = Placement::new("large-amounts", &[HookPoint::PreToolUse]).tools(&["pay"]);
    let yard = Embedded::hooked(Hooks::default().with(placement, LargeAmounts).expect("it fits")).await;
    let pay = |id: &str, amount: u64| call(id, "pay", json!({ "amount": amount }));
    let run = yard.client.create(vec![pay("small", 7), pay("large", 700)]).await;
    let mut stream = run.watch(FloorPolicy::Arrival).await;
    stream.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "small")).await;
    run.submit(vec![client_answer("large", "paid by hand")]).await.expect("it waits for the client");
    let events = stream.to_end().await;
    let outcomes = check::outcomes(&events);
    let texts = (check::text(&outcomes["small"]), check::text(&outcomes["large"]));
    assert_eq!(texts, ("paid 7".to_owned(), "paid by hand".to_owned()));
    let started = |event: &RunEvent| matches!(&event.event, Some(Event::AttemptStarted(it)) if it.call_id == "large");
    assert!(!events.iter().any(started));
}

/// Gives results to the model as XML.
struct AsXml;

impl Interceptor for AsXml {
    async fn call(&self, call: Call<'_>, next: Next<'_>) -> Result<Output, ToolError> {
        let tool = call.tool().clone();
        let Completion { result, .. } = next.run(call).await?.into();
        let parts = result.into_iter().map(|part| match part {
            Content::Text(text) => Content::Text(format!("<result tool=\"{tool}\">{text}</result>")),
            other => other,
        });
        Ok(parts.collect::<Vec<_>>().into())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conversion_of_results_is_replaced() {
    let yard = Embedded::start(|coordinator| coordinator, table().intercept(AsXml), Hooks::default()).await;
    let greeted = yard.outcome(call("a", "greet", json!({ "name": "Ada" }))).await;
    assert_eq!(check::text(&greeted), r#"<result tool="greet">Hello, Ada!</result>"#);
}

/// An error ends the call with what to do about it.
struct Advice;

impl Interceptor for Advice {
    async fn call(&self, call: Call<'_>, next: Next<'_>) -> Result<Output, ToolError> {
        let outcome = next.run(call).await;
        outcome.or_else(|error| Ok(format!("{}: ask the customer for the amount", error.message()).into()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_policy_is_replaced() {
    let fails = || call("a", "pay", json!({ "amount": 0 }));
    let as_it_is = Embedded::start(|coordinator| coordinator, table(), Hooks::default()).await;
    assert_eq!(as_it_is.outcome(fails()).await.state(), CallState::Failed, "without it the call fails");
    let ours = table().intercept(ErrorToMessage);
    let theirs = table().intercept(Advice);
    for (table, text) in
        [(ours, "The call failed: nothing to pay"), (theirs, "nothing to pay: ask the customer for the amount")]
    {
        let yard = Embedded::start(|coordinator| coordinator, table, Hooks::default()).await;
        let outcome = yard.outcome(fails()).await;
        assert_eq!((outcome.state(), check::text(&outcome).as_str()), (CallState::Completed, text));
    }
}

/// Takes names out of results.
struct Discreet;

impl Hook for Discreet {
    async fn ask(&self, request: &HookRequest) -> Result<Reply, HookError> {
        Ok(match &request.happened {
            CallStage::Completed { .. } => {
                let result = Some(vec![Content::Text("Hello, somebody!".to_owned())]);
                Reply::ModifyResult { result, extra_state: None, output: None }
            }
            _ => Reply::Allow,
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hooks_are_replaced() {
    let placement = Placement::new("discreet", &[HookPoint::PostToolUse]).tools(&["greet"]);
    let hooks = Hooks::default().with(placement, Discreet).expect("it fits");
    let yard = Embedded::start(|coordinator| coordinator, table(), hooks).await;
    let greeted = yard.outcome(call("a", "greet", json!({ "name": "Ada" }))).await;
    assert_eq!(check::text(&greeted), "Hello, somebody!");
    let paid = yard.outcome(call("b", "pay", json!({ "amount": 1 }))).await;
    assert_eq!(check::text(&paid), "paid 1");
}

/// The call that was accepted last, of those with waiting output.
fn last_first(voices: &[Voice]) -> Option<CallIndex> {
    let waiting = voices.iter().zip(0..).filter(|(voice, _)| voice.waits_since().is_some());
    waiting.last().map(|(_, index)| CallIndex(index))
}

fn with_last_first(coordinator: Coordinator) -> Coordinator {
    coordinator.with_floor_policy(AddedPolicy { name: "last-first", choose: last_first })
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Label {
    label: String,
}

/// A tool that says its label, and ends when the label is released.
fn labels(released: watch::Receiver<BTreeSet<String>>) -> Table {
    let says = move |Label { label }: Label, context: Context| {
        let mut released = released.clone();
        async move {
            context.text(label.clone()).await?;
            released.wait_for(|all| all.contains(&label)).await.map_err(|error| ToolError::new(error.to_string()))?;
            Ok(Output::from("said"))
        }
    };
    let about = About::new("Says a label.").read_only().streaming();
    Table::new().host_fn("says", about, says).expect("it can be hosted")
}

/// The calls in the order in which they had the floor.
fn speakers(events: &[RunEvent]) -> Vec<&str> {
    let spoken = check::kinds(events).into_iter().filter_map(|event| match event {
        Event::CallSpeaking(speaking) => Some(speaking.call_id.as_str()),
        _ => None,
    });
    spoken.collect()
}

/// Opens a run in which `a` has the floor, and `b` and `c` have said something and ended, in this order.
async fn with_two_that_wait(yard: &Embedded, release: &watch::Sender<BTreeSet<String>>) -> Run {
    let says = |label: &str| call(label, "says", json!({ "label": label }));
    let request = v1::CreateRunRequest { calls: vec![says("a")], keep_open: true, ..v1::CreateRunRequest::default() };
    let created = yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    let run = Run { client: yard.client.clone(), id: created.run.expect("the response has the run").run_id };
    let mut stream = run.watch(FloorPolicy::Interleaved).await;
    stream.until(|event| matches!(event, Event::CallOutput(it) if it.call_id == "a")).await;
    for label in ["b", "c"] {
        let append = v1::AppendCallsRequest {
            run_id: run.id.clone(),
            calls: vec![says(label)],
            ..v1::AppendCallsRequest::default()
        };
        yard.client.runs.clone().append_calls(append).await.expect("the run is open");
        release.send_if_modified(|all| all.insert(label.to_owned()));
        stream.until(|event| matches!(event, Event::CallEnded(it) if it.call_id == label)).await;
    }
    yard.client.runs.clone().close_run(v1::CloseRunRequest { run_id: run.id.clone() }).await.expect("it is open");
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_choice_of_the_next_speaker_is_replaced_and_is_the_same_for_every_reader() {
    let (release, released) = watch::channel(BTreeSet::new());
    let yard = Embedded::start(with_last_first, labels(released), Hooks::default()).await;
    let (other, (stop_other, other_serves)) = coordinate(&yard.broker, with_last_first).await;
    let run = with_two_that_wait(&yard, &release).await;
    let early = run.watch_by_name("last-first", None).await.expect("the policy is known");
    let elsewhere = run.through(&other).watch_by_name("last-first", None).await.expect("it is known here too");
    release.send_if_modified(|all| all.insert("a".to_owned()));
    let events = early.to_end().await;
    check::whole(&events, true);
    assert_eq!(speakers(&events), ["a", "c", "b"]);
    assert_eq!(elsewhere.to_end().await, events, "at another coordinator");
    let late = async |run: &Run, after| {
        run.watch_by_name("last-first", after).await.expect("the policy is known").to_end().await
    };
    assert_eq!(late(&run, None).await, events, "read from the log");
    let middle = events.len() / 2;
    assert_eq!(late(&run, Some(events[middle].sequence)).await, events[middle + 1..], "by one that comes back");
    let by_arrival = run.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(speakers(&by_arrival), ["a", "b", "c"], "the policies that are built in are still there");
    // After a replay: both coordinators end, and a new one has nothing but the log.
    let Embedded { broker, coordinator: (stop, serves), .. } = yard;
    for (stop, serves) in [(stop, serves), (stop_other, other_serves)] {
        stop.cancel();
        serves.await.expect("it ends");
    }
    let (client, (stop, serves)) = coordinate(&broker, with_last_first).await;
    assert_eq!(late(&run.through(&client), None).await, events, "after a replay");
    let refused = run.through(&client).watch_by_name("loudest", None).await.expect_err("there is none");
    assert_eq!(reason(&refused), "MALFORMED");
    assert!(refused.message().contains(r#""loudest" is unknown; this coordinator adds: last-first"#), "{refused}");
    stop.cancel();
    serves.await.expect("it ends");
}
