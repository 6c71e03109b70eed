//! A run is followed together with the runs that its calls make, live: what a call says about its run is enough.

use client::{Client, Connection, Nested, NestedWatch};
use harness::model::{Line, Model};
use harness::{PATIENCE, Yard, call};
use proto::v1::run_event::Event;
use proto::v1::{self, Confirmation, FloorPolicy, RunStatus};
use serde_json::json;

use crate::{FIXTURE, count};

const AGENTS: &str = r#"
[agent.lead]
OPENAI
description = "Asks the clerk."
tools = ["clerk"]
confirmation = "none"
[agent.clerk]
ANTHROPIC
description = "Repeats."
tools = ["echo"]
"#;

async fn client_of(yard: &Yard) -> Client {
    let connection = Connection::to(format!("http://{}", yard.coordinator.address()));
    Client::connect(&connection).await.expect("it connects")
}

fn run_of(calls: Vec<v1::NewCall>) -> v1::CreateRunRequest {
    let rules = Some(v1::RunRules { confirmation: Confirmation::None.into(), ..v1::RunRules::default() });
    v1::CreateRunRequest { calls, rules, ..v1::CreateRunRequest::default() }
}

/// Events as they come: how deep their runs are, and what they are.
async fn until(watch: &mut NestedWatch, wanted: impl Fn(u32, &Event) -> bool) -> Vec<(u32, Event)> {
    let mut seen = Vec::new();
    let read = async {
        while let Some(nested) = watch.next().await.expect("it is read") {
            let Nested::Events(place, events) = nested else { panic!("{nested:?}") };
            for event in events.into_iter().filter_map(|event| event.event) {
                let is_last = wanted(place.depth, &event);
                seen.push((place.depth, event));
                if is_last {
                    return;
                }
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("it comes in time");
    seen
}

fn ends(of: u32, call_id: &str) -> impl Fn(u32, &Event) -> bool {
    move |depth, event| depth == of && matches!(event, Event::CallEnded(ended) if ended.call_id == call_id)
}

#[tokio::test]
async fn what_an_agent_of_an_agent_does_is_seen_while_it_does_it() {
    let yard = Yard::start(FIXTURE).await;
    let script = [
        ("lead", vec![Line::calls(&[("clerk", json!({ "input": "clerk" }))]), Line::text("led")]),
        ("clerk", vec![Line::calls(&[("echo", json!({ "text": "hi" }))]), Line::text("done")]),
    ];
    let model = Model::start(&script).await;
    model.hold("clerk", 1);
    let fixture = model.of(&yard.fixture, AGENTS, yard.coordinator.address());
    let mut worker = fixture.worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("lead").await;
    let client = client_of(&yard).await;
    let run = run_of(vec![call("a", "lead", json!({ "input": "lead" }))]);
    let mut watch = NestedWatch::new(&client, client.execute(run).await.expect("it is accepted"));
    // The model of the clerk is held: all of this comes while the three runs go on.
    let seen = until(&mut watch, ends(2, "t1.0")).await;
    assert!(seen.iter().any(|(depth, event)| *depth == 1 && matches!(event, Event::CallsAppended(_))));
    // Another attempt goes on with the same runs, which are not shown again.
    worker.kill().await;
    let _second = fixture.worker(&yard.broker.url(), "main", 4).await;
    model.release("clerk", 1);
    let rest = until(&mut watch, |depth, event| depth == 0 && matches!(event, Event::RunEnded(_))).await;
    let opened = seen.iter().chain(&rest).filter(|(_, event)| matches!(event, Event::RunOpened(_)));
    assert_eq!(opened.map(|(depth, _)| *depth).collect::<Vec<_>>(), [0, 1, 2]);
    let at = |of: u32, id: &str| rest.iter().position(|(depth, event)| ends(of, id)(*depth, event)).expect("it ended");
    assert!(at(2, "t2") < at(1, "t1.0") && at(1, "t1.0") < at(1, "t2") && at(1, "t2") < at(0, "a"));
    assert!(watch.next().await.expect("it is read").is_none());
}

#[tokio::test]
async fn runs_that_outlive_their_call_or_cannot_be_read_hold_nothing_up() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let names = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", "names");
    let _names = names.worker(&yard.broker.url(), "names", 4).await;
    yard.client.wait_for_tool("names_run").await;
    let client = client_of(&yard).await;
    let endless = client.create(run_of(vec![count("c", 100_000, 20)])).await.expect("it is accepted").run_id;
    let silent = client.create(run_of(vec![crate::question("ask")])).await.expect("it is accepted").run_id;
    let gone = "run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".to_owned();
    let names = |id: &str, run: &str| call(id, "names_run", json!({ "run_id": run }));
    let calls = vec![names("endless", &endless), names("silent", &silent), names("gone", &gone)];
    let run = run_of(calls);
    let mut watch = NestedWatch::new(&client, client.execute(run).await.expect("it is accepted"));
    let (mut unreadable, mut ended, mut own) = (Vec::new(), 0, String::new());
    let read = async {
        while let Some(nested) = watch.next().await.expect("it is read") {
            match nested {
                Nested::Events(place, events) if place.depth == 0 => {
                    own.clone_from(&place.run_id);
                    ended += events.iter().filter(|event| matches!(event.event, Some(Event::CallEnded(_)))).count();
                }
                Nested::Events(..) => {}
                Nested::Unreadable(place, _) => unreadable.push(place.run_id.clone()),
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("it ends in time");
    assert_eq!((ended, unreadable), (3, vec![gone]));
    for run_id in [endless, silent] {
        let run = client.run(&run_id).await.expect("it is there");
        assert!([RunStatus::InProgress, RunStatus::RequiresAction].contains(&run.status()), "{run:?}");
        client.cancel_run(&run_id, "enough").await.expect("it is cancelled");
    }
    // Without children nothing of them is read.
    let watch = client.watch(&own, None, FloorPolicy::Arrival).await.expect("it is there");
    let mut alone = NestedWatch::new(&client, watch).depth_max(0);
    while let Some(nested) = alone.next().await.expect("it is read") {
        assert!(matches!(nested, Nested::Events(place, _) if place.depth == 0));
    }
}
