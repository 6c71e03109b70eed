//! A call that used all its attempts is parked with its errors, and can be redriven or dropped.

use harness::{Callers, Fixture, Guarded, Run, Yard, call, reason};
use proto::v1::{self, CallState, FloorPolicy};
use serde_json::json;

use crate::{FIXTURE, check, count, question};

async fn redrive(run: &Run, call: &str) -> Result<Run, tonic::Status> {
    let request = v1::RedriveCallRequest { run_id: run.id.clone(), call_id: call.to_owned() };
    let response = run.client.runs.clone().redrive_call(request).await?.into_inner();
    Ok(Run { client: run.client.clone(), id: response.run.expect("the response has the run").run_id })
}

async fn put_aside(run: &Run, call: &str) -> Result<v1::Run, tonic::Status> {
    let request = v1::DropCallRequest { run_id: run.id.clone(), call_id: call.to_owned() };
    Ok(run.client.runs.clone().drop_call(request).await?.into_inner().run.expect("the response has the run"))
}

async fn why(run: &Run, call: &str) -> String {
    let request = v1::ExplainCallRequest { run_id: run.id.clone(), call_id: call.to_owned() };
    let response = run.client.runs.clone().explain_call(request).await.expect("the call is there").into_inner();
    assert_eq!(response.why.lines().count(), 1, "{}", response.why);
    response.why
}

#[tokio::test]
async fn a_parked_call_tells_its_history_and_is_redriven_once() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("there");
    let run = yard.client.create(vec![call("g", "gives", json!({ "when_there": path }))]).await;
    check::whole(&run.watch(FloorPolicy::Arrival).await.to_end().await, true);
    let parked = run.get().await.calls.remove(0);
    assert!(parked.parked);
    assert_eq!((parked.state(), parked.attempts), (CallState::Failed, 2));
    let failed: Vec<u32> = parked.failed_attempts.iter().map(|failed| failed.attempt).collect();
    assert_eq!(failed, [1], "the last one is its outcome");
    assert!(why(&run, "g").await.contains("parked"), "{}", why(&run, "g").await);

    std::fs::write(&path, "").expect("the file is written");
    let again = redrive(&run, "g").await.expect("it is parked");
    let events = again.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["g"]), "given");
    assert_eq!(redrive(&run, "g").await.expect("twice does no harm").id, again.id);
    let old = run.get().await.calls.remove(0);
    assert_eq!((old.parked, old.state()), (false, CallState::Failed), "its outcome stands");
    assert_eq!(old.redriven_run_id, again.id);
    let refused = put_aside(&run, "g").await.expect_err("it is not parked any more");
    assert_eq!(reason(&refused), "CALL_NOT_PARKED_ANY_MORE");
}

#[tokio::test]
async fn a_dropped_call_is_parked_no_more_and_what_ended_well_never_was() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let gives = call("g", "gives", json!({ "when_there": "/nowhere/at/all" }));
    let run = yard.client.create(vec![gives, count("c", 1, 0)]).await;
    check::whole(&run.watch(FloorPolicy::Arrival).await.to_end().await, true);
    put_aside(&run, "g").await.expect("it is parked");
    assert!(!put_aside(&run, "g").await.expect("twice does no harm").calls[0].parked);
    assert_eq!(reason(&redrive(&run, "g").await.expect_err("it was dropped")), "CALL_NOT_PARKED_ANY_MORE");
    assert_eq!(reason(&redrive(&run, "c").await.expect_err("it completed")), "CALL_NOT_PARKED");
    assert_eq!(reason(&redrive(&run, "x").await.expect_err("no such call")), "CALL_NOT_FOUND");
}

#[tokio::test]
async fn why_says_what_a_call_waits_for() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(1).await;
    let busy = yard.client.create(vec![count("runs", 200, 50)]).await;
    let mut stream = busy.watch(FloorPolicy::Arrival).await;
    stream.until(|event| matches!(event, v1::run_event::Event::CallOutput(_))).await;
    assert!(why(&busy, "runs").await.contains("attempt 1 has been running on worker-"), "{}", why(&busy, "runs").await);
    let run = yard.client.create(vec![count("queued", 1, 0), question("asks")]).await;
    let mut waiting = run.watch(FloorPolicy::Arrival).await;
    waiting.until(|event| matches!(event, v1::run_event::Event::CallWaiting(_))).await;
    assert!(why(&run, "asks").await.contains("waiting for its client"), "{}", why(&run, "asks").await);
    let queued = why(&run, "queued").await;
    assert!(queued.contains("queued in pool main") || queued.contains("accepted"), "{queued}");
    run.cancel("seen enough").await;
    check::whole(&waiting.to_end().await, true);
    assert!(why(&run, "queued").await.contains("cancelled (seen enough)"), "{}", why(&run, "queued").await);
    busy.cancel("seen enough").await;
    check::whole(&stream.to_end().await, true);
}

const CALLERS: &str = r#"
    [[callers]]
    name = "shop"
    tenant = "acme"
    roles = ["submit", "read"]
    tools = [{ names = ["gives", "echo"] }]
    keys = ["{shop}"]

    [[callers]]
    name = "boss"
    tenant = "acme"
    roles = ["submit", "read", "approve"]
    tools = [{ names = ["gives"] }]
    keys = ["{boss}"]
"#;

#[tokio::test]
async fn a_call_that_would_be_refused_stays_parked() {
    let callers = Callers::new("");
    callers.write(CALLERS);
    let yard = Guarded::start(Fixture::new(FIXTURE), callers).await;
    let shop = yard.client("shop");
    shop.wait_for_tool("gives").await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("there");
    let run = shop.create(vec![call("g", "gives", json!({ "when_there": path }))]).await;
    check::whole(&run.watch(FloorPolicy::Arrival).await.to_end().await, true);
    std::fs::write(&path, "").expect("the file is written");
    yard.callers.write(&CALLERS.replacen(r#""gives", "echo""#, r#""echo""#, 1));
    let has_lost = async {
        while shop
            .tools
            .clone()
            .list_tools(v1::ListToolsRequest::default())
            .await
            .expect("it may read")
            .get_ref()
            .tools
            .len()
            > 1
        {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, has_lost).await.expect("the file is read again");
    let refused = redrive(&run, "g").await.expect_err("it may not call the tool any more");
    assert_eq!(reason(&refused), "REDRIVE_REFUSED", "{refused}");
    assert!(run.get().await.calls[0].parked);
    let again = redrive(&run.through(&yard.client("boss")), "g").await.expect("it may");
    let events = again.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["g"]), "given");
}
