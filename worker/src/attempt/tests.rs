//! How an attempt ends, by a clock that stands until nothing is left to do, and a log that takes everything.

use std::sync::Mutex;

use proto::convert::log::Job;
use run::{AttemptNumber, CallIndex, CallSpec, Effects, Nonce, Timestamp};
use schemars::JsonSchema;
use serde::Deserialize;

use super::*;
use toolyard_tool::runtime::{RecordStore, UserAnswer};
use toolyard_tool::{About, Context, Output, Question, Table, Tool};

/// How long the client takes to answer.
const ANSWERED_AFTER_S: u64 = 500;

/// Behaves as its argument says.
struct Acts;

#[derive(Debug, Deserialize, JsonSchema)]
struct Act {
    /// Speaks as often.
    says: u32,
    every_s: u64,
    /// Listens for the wish to stop.
    heeds: bool,
    then_waits_s: u64,
    /// Asks its client as often before it waits.
    #[serde(default)]
    asks: u32,
}

impl Tool for Acts {
    const NAME: &'static str = "acts";
    type Input = Act;

    fn about(&self) -> About {
        About::new("Act").read_only()
    }

    async fn call(&self, context: &Context, act: Act) -> Result<Output, ToolError> {
        for piece in 0..act.says {
            tokio::time::sleep(Duration::from_secs(act.every_s)).await;
            context.text(piece.to_string()).await?;
        }
        for _ in 0..act.asks {
            context.ask(Question::new("Go on?")).await?;
        }
        let rest = tokio::time::sleep(Duration::from_secs(act.then_waits_s));
        if act.heeds {
            tokio::select! {
                () = rest => {}
                () = context.cancelled() => return Err(ToolError::new("stopped")),
            }
        } else {
            rest.await;
        }
        Ok("done".into())
    }
}

fn act(says: u32, every_s: u64, heeds: bool, then_waits_s: u64) -> serde_json::Value {
    serde_json::json!({ "says": says, "every_s": every_s, "heeds": heeds, "then_waits_s": then_waits_s })
}

fn policy() -> Policy {
    let effects = Effects { read_only: true, ..Effects::default() };
    Policy { attempt_timeout: Duration::from_secs(100), ..Policy::of(effects) }
}

struct Ended {
    events: Vec<Event>,
    stored: bool,
    took: Duration,
}

impl Ended {
    fn outcome(&self) -> &AttemptOutcome {
        let ends = self.events.iter().filter_map(|event| match event {
            Event::AttemptEnded { outcome, .. } => Some(outcome),
            _ => None,
        });
        let ends: Vec<_> = ends.collect();
        assert_eq!(ends.len(), 1, "an attempt ends once: {:?}", self.events);
        ends[0]
    }

    fn failure(&self) -> ErrorKind {
        let AttemptOutcome::Failed(error) = self.outcome() else { panic!("it did not fail: {:?}", self.outcome()) };
        error.kind
    }

    fn stages(&self) -> Vec<StopStage> {
        let stages = self.events.iter().filter_map(|event| match event {
            Event::AttemptStopping { stage, .. } => Some(*stage),
            _ => None,
        });
        stages.collect()
    }
}

/// Runs an attempt; `meanwhile` gets its signals.
async fn attempt<F>(policy: Policy, arguments: serde_json::Value, meanwhile: impl FnOnce(Signals) -> F) -> Ended
where
    F: Future<Output = ()> + Send + 'static,
{
    attempt_of(Acts, policy, arguments, meanwhile).await
}

async fn attempt_of<F>(
    tool: impl Tool,
    policy: Policy,
    arguments: serde_json::Value,
    meanwhile: impl FnOnce(Signals) -> F,
) -> Ended
where
    F: Future<Output = ()> + Send + 'static,
{
    let table = Table::new().host(tool).expect("it can be hosted");
    let pool: run::PoolId = "main".parse().expect("a pool name");
    let id = "call".parse().expect("a call id");
    let route = Route::Pool { pool: pool.clone(), policy, version: None };
    let spec =
        CallSpec::new(id, Acts::NAME.parse().expect("a tool name"), arguments.to_string(), route, Timestamp(u64::MAX));
    let run = "run_00_01890000000070008000000000000000".parse().expect("a run id");
    let job = Job { run, call: CallIndex(0), pool, spec: Arc::new(spec), requester: None, is_stored: true };
    let prepared = table.prepare(&job.spec.tool, &job.spec.arguments);
    let token = CancellationToken::new;
    let signals = Signals { cancel: token(), give_back: token(), lease_lost: token() };
    let id = AttemptId { call: CallIndex(0), number: AttemptNumber(1), nonce: Nonce(1) };
    let log: Arc<Mutex<Vec<Event>>> = Arc::default();
    let kept = Arc::clone(&log);
    let append = move |events: Vec<Event>| -> Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>> {
        kept.lock().expect("nobody panicked").extend(events);
        Box::pin(async { Ok(()) })
    };
    let began = Instant::now();
    let other = tokio::spawn(meanwhile(signals.clone()));
    let output = OutputCount::default();
    let asker = Asker::new(|_| {
        Box::pin(async {
            after(ANSWERED_AFTER_S).await;
            Ok(UserAnswer::Answered(Ok(vec![Content::Text("yes".to_owned())])))
        })
    });
    let source = Source::new(|_| Box::pin(async { Err("there are none".to_owned()) }));
    let records = RecordStore::new(|_| Box::pin(async { Err("there are none".to_owned()) }));
    let objects = Arc::new(Objects::new(1 << 20, |_, _, _| Box::pin(std::future::pending())));
    let attempt = Attempt {
        job: &job,
        id,
        from: ChunkIndex(0),
        start: None,
        signals,
        output,
        watched: None,
        tells_result: false,
        objects: &objects,
        source: &source,
        asker,
        records: &records,
    };
    let (end, _) = run_it(attempt, prepared, append).await;
    let took = began.elapsed();
    other.abort();
    let call = Arc::downgrade(&job.spec);
    drop(job);
    assert!(call.upgrade().is_none(), "something of the call is left in the worker");
    let events = std::mem::take(&mut *log.lock().expect("nobody panicked"));
    Ended { events, stored: matches!(end, End::Stored(_)), took }
}

async fn run_it<F>(attempt: Attempt<'_>, prepared: Result<Prepared, CallError>, append: F) -> (End, Option<Lingering>)
where
    F: Fn(Vec<Event>) -> Pin<Box<dyn Future<Output = Result<(), Lost>> + Send>>,
{
    super::run(attempt, prepared, &Handle::current(), append).await
}

async fn nothing(_: Signals) {}

fn after(seconds: u64) -> tokio::time::Sleep {
    tokio::time::sleep(Duration::from_secs(seconds))
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_takes_too_long_fails_at_its_timeout() {
    let ended = attempt(policy(), act(0, 0, true, 1000), nothing).await;
    assert_eq!((ended.failure(), ended.took.as_secs()), (ErrorKind::AttemptTimeout, 100));
    assert_eq!(ended.stages(), [], "nobody cancelled it");
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_hears_nothing_is_stopped_for_good_after_a_grace() {
    let ended = attempt(policy(), act(0, 0, false, 1000), nothing).await;
    assert_eq!(ended.failure(), ErrorKind::AttemptTimeout);
    assert_eq!(ended.took, Duration::from_secs(100) + limit::CANCEL_GRACE);
}

#[tokio::test(start_paused = true)]
async fn silence_ends_an_attempt_and_each_word_puts_that_off() {
    let idle = Policy { idle_timeout: Some(Duration::from_secs(10)), ..policy() };
    let ended = attempt(idle.clone(), act(5, 9, true, 1000), nothing).await;
    assert_eq!((ended.failure(), ended.took.as_secs()), (ErrorKind::IdleTimeout, 45 + 10));
    let ended = attempt(idle, act(5, 9, true, 5), nothing).await;
    assert!(matches!(ended.outcome(), AttemptOutcome::Completed(_)));
}

fn asking(times: u32, then_waits_s: u64) -> serde_json::Value {
    serde_json::json!({ "says": 0, "every_s": 0, "heeds": true, "then_waits_s": then_waits_s, "asks": times })
}

#[tokio::test(start_paused = true)]
async fn the_time_in_which_the_client_is_asked_is_none_of_the_attempts_own() {
    let idle = Policy { idle_timeout: Some(Duration::from_secs(90)), ..policy() };
    for policy in [policy(), idle] {
        let ended = attempt(policy, asking(2, 80), nothing).await;
        assert!(matches!(ended.outcome(), AttemptOutcome::Completed(_)), "{:?}", ended.outcome());
        assert_eq!(ended.took.as_secs(), 2 * ANSWERED_AFTER_S + 80);
    }
    let ended = attempt(policy(), asking(1, 1000), nothing).await;
    assert_eq!((ended.failure(), ended.took.as_secs()), (ErrorKind::AttemptTimeout, ANSWERED_AFTER_S + 100));
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_asks_its_client_stops_when_its_call_is_cancelled() {
    let cancel = |signals: Signals| async move {
        after(3).await;
        signals.cancel.cancel();
    };
    let ended = attempt(policy(), asking(1, 0), cancel).await;
    assert_eq!(ended.outcome(), &AttemptOutcome::Cancelled);
    assert_eq!((ended.stages().len(), ended.took.as_secs()), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_tool_that_listens_ends_with_every_stage_told() {
    let cancel = |signals: Signals| async move {
        after(3).await;
        signals.cancel.cancel();
    };
    let ended = attempt(policy(), act(0, 0, true, 1000), cancel).await;
    assert_eq!(ended.outcome(), &AttemptOutcome::Cancelled);
    assert_eq!(ended.stages(), [StopStage::Delivered, StopStage::Acknowledged]);
    assert_eq!(ended.took.as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_tool_that_does_not_listen_is_stopped_and_never_noticed() {
    let cancel = |signals: Signals| async move {
        after(3).await;
        signals.cancel.cancel();
    };
    let ended = attempt(policy(), act(0, 0, false, 1000), cancel).await;
    assert_eq!(ended.outcome(), &AttemptOutcome::Cancelled);
    assert_eq!(ended.stages(), [StopStage::Delivered]);
    assert_eq!(ended.took, Duration::from_secs(3) + limit::CANCEL_GRACE);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_comes_in_time_counts_though_the_call_is_cancelled() {
    let cancel = |signals: Signals| async move {
        after(3).await;
        signals.cancel.cancel();
    };
    let ended = attempt(policy(), act(0, 0, false, 5), cancel).await;
    assert!(matches!(ended.outcome(), AttemptOutcome::Completed(_)));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_gives_back_what_is_safe_to_repeat_and_interrupts_the_rest() {
    let give_back = |signals: Signals| async move {
        after(3).await;
        signals.give_back.cancel();
    };
    let ended = attempt(policy(), act(0, 0, true, 1000), give_back).await;
    assert_eq!(ended.outcome(), &AttemptOutcome::Returned);
    let once = Policy { repeatable: false, ..policy() };
    let ended = attempt(once, act(0, 0, true, 1000), give_back).await;
    assert_eq!(ended.failure(), ErrorKind::Interrupted);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_lease_is_lost_leaves_without_a_word() {
    let lose = |signals: Signals| async move {
        after(3).await;
        signals.lease_lost.cancel();
    };
    let ended = attempt(policy(), act(0, 0, false, 1000), lose).await;
    assert!(!ended.stored);
    assert!(ended.events.iter().all(|event| !matches!(event, Event::AttemptEnded { .. })));
}

/// Ends when stopped, and leaves a process behind that runs for some seconds more.
struct Leaves {
    seconds: u64,
    /// From then on it is unknown which processes run.
    unknown: bool,
}

impl Tool for Leaves {
    const NAME: &'static str = Acts::NAME;
    type Input = Act;

    fn about(&self) -> About {
        About::new("Leave something")
    }

    async fn call(&self, context: &Context, _: Act) -> Result<Output, ToolError> {
        context.left().keep(tokio::time::sleep(Duration::from_secs(3 + self.seconds)), &Handle::current());
        if self.unknown {
            context.left().note_unknown();
        }
        context.cancelled().await;
        Err(ToolError::new("stopped"))
    }
}

async fn cancel_after_3_s(signals: Signals) {
    after(3).await;
    signals.cancel.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_cancel_is_told_when_nothing_of_the_attempt_runs_any_more() {
    let leaves = Leaves { seconds: 20, unknown: false };
    let ended = attempt_of(leaves, policy(), act(0, 0, true, 0), cancel_after_3_s).await;
    assert_eq!((ended.outcome(), ended.took.as_secs()), (&AttemptOutcome::Cancelled, 3 + 20));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_of_what_nobody_can_see_end_is_told_as_interrupted() {
    let leaves = Leaves { seconds: 0, unknown: true };
    let ended = attempt_of(leaves, policy(), act(0, 0, true, 0), cancel_after_3_s).await;
    assert_eq!(ended.failure(), ErrorKind::Interrupted);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_shuts_down_does_not_wait_for_what_does_not_stop_and_says_so() {
    let both = |signals: Signals| async move {
        cancel_after_3_s(signals.clone()).await;
        after(10).await;
        signals.give_back.cancel();
    };
    let leaves = Leaves { seconds: 1000, unknown: false };
    let ended = attempt_of(leaves, policy(), act(0, 0, true, 0), both).await;
    assert_eq!((ended.failure(), ended.took.as_secs()), (ErrorKind::Interrupted, 13));
    let once = Policy { repeatable: false, attempt_timeout: Duration::from_secs(3), ..policy() };
    let leaves = Leaves { seconds: 1000, unknown: false };
    let give_back = |signals: Signals| async move {
        after(10).await;
        signals.give_back.cancel();
    };
    let ended = attempt_of(leaves, once, act(0, 0, true, 0), give_back).await;
    assert_eq!(ended.failure(), ErrorKind::Interrupted, "not that its time was over, as if it had stopped");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_ends_the_wait_for_what_does_not_stop() {
    let both = |signals: Signals| async move {
        cancel_after_3_s(signals.clone()).await;
        after(10).await;
        signals.lease_lost.cancel();
    };
    let leaves = Leaves { seconds: 1000, unknown: false };
    let ended = attempt_of(leaves, policy(), act(0, 0, true, 0), both).await;
    assert!(!ended.stored);
}
