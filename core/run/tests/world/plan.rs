//! What a history is made of: the calls, and the steps that it takes.

use super::*;
use toolyard_run::{
    AfterPartialOutput, Approval, CallId, Concurrency, Decision, DefaultDecision, Effects, Policy, ResultUse, RetryOn,
    Rules,
};

#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) calls: Vec<Arc<CallSpec>>,
    pub(super) spare: Vec<Arc<CallSpec>>,
    pub(super) open: bool,
    pub(super) fail_fast: bool,
    pub(super) rules: Rules,
    pub(super) life: Duration,
    pub(super) steps: Vec<Step>,
}

/// Chooses one of what there is when the step is taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pick(u16);

impl Pick {
    pub(crate) fn among(self, count: usize) -> usize {
        usize::from(self.0) % count.max(1)
    }

    pub(crate) fn of<T>(self, list: &[T]) -> Option<&T> {
        list.get(self.among(list.len()))
    }

    pub(crate) fn of_mut<T>(self, list: &mut [T]) -> Option<&mut T> {
        list.get_mut(self.among(list.len()))
    }
}

pub(crate) fn pick() -> impl Strategy<Value = Pick> {
    any::<u16>().prop_map(Pick)
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    Wait(Duration),
    /// `lag` counts the entries that the owner who is asked has not seen yet.
    Deliver {
        call: Pick,
        lag: usize,
        reset: bool,
        work: Work,
    },
    Publish {
        by: Pick,
        order: Pick,
        together: usize,
    },
    PublishAgain {
        by: Pick,
        chunks: Range<u32>,
    },
    Crash {
        worker: Pick,
    },
    /// An owner does all that is outstanding, once.
    Tend,
    /// An owner does one thing that is outstanding, several times or, crashing before it could, not at all.
    Act {
        effect: Pick,
        times: usize,
        late: bool,
    },
    Land {
        which: Pick,
    },
    /// A worker says how far stopping its attempt has come, whether or not somebody asks for it.
    Stopping {
        by: Pick,
        asked: bool,
        stage: StopStage,
    },
    /// An owner finds that nobody lives who could run a call.
    NobodyLives {
        call: Pick,
    },
    /// A worker asks the client a question, of an owner who may lag behind the log.
    Question {
        by: Pick,
        number: u16,
        lag: usize,
        /// The client answers at once.
        answered: bool,
    },
    Ask(Ask, usize),
    Forge(Forgery),
}

#[derive(Debug, Clone)]
pub(super) struct Work {
    /// Chunks in each message of output.
    pub(super) sizes: Vec<u32>,
    pub(super) end: End,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Silence,
    Completed,
    /// With less output than it says.
    Incomplete,
    Failed,
    FailedForNow,
    Returned,
}

#[derive(Debug, Clone)]
pub(crate) enum Ask {
    Append,
    Close,
    Answer { call: Pick, second: Pick, well: bool },
    Decide { call: Pick, second: Pick, decision: Decision },
    Cancel { call: Pick },
    CancelRun,
    EraseRun,
    Redrive { call: Pick },
    Drop { call: Pick },
}

#[derive(Debug, Clone)]
pub(super) enum Forgery {
    OtherPool { call: u16, number: u32 },
    UnknownCall { number: u32 },
    HugeChunk { by: Pick, beyond: u32, count: u32 },
}

impl Ask {
    pub(crate) fn command(&self, run: &Run, spare: &[Arc<CallSpec>]) -> Option<Command> {
        let named = |pick: &Pick| pick.of(run.calls()).map(|call| call.spec().id.clone());
        Some(match self {
            Self::Append => {
                let known = |spec: &&Arc<CallSpec>| run.find(&spec.id).is_none();
                Command::AppendCalls { calls: vec![Arc::clone(spare.iter().find(known)?)] }
            }
            Self::Close => Command::Close,
            Self::Answer { call, second, well } => {
                let output = if *well { Ok(text("yes")) } else { Err(error(ErrorKind::ClientFailed)) };
                let answer =
                    |call: CallId, output: &Result<Vec<Content>, CallError>| Answer { call, output: output.clone() };
                let clients = run.calls().iter().filter(|call| call.spec().route == Route::Client);
                let clients: Vec<_> = clients.map(|call| call.spec().id.clone()).collect();
                let mut answers = vec![answer(call.of(&clients).cloned().or_else(|| named(call))?, &output)];
                if second.0 % 2 == 0 {
                    answers.push(answer(named(second)?, &output));
                }
                Command::SubmitOutputs { answers, all_required: second.0 % 3 == 0 }
            }
            Self::Decide { call, second, decision } => {
                let awaiting = run.calls().iter().filter(|call| *call.state() == CallState::AwaitingApproval);
                let awaiting: Vec<_> = awaiting.map(|call| call.spec().id.clone()).collect();
                let mut decisions = vec![(call.of(&awaiting).cloned().or_else(|| named(call))?, decision.clone())];
                if second.0 % 4 == 0 {
                    decisions.push((named(second)?, decision.clone()));
                }
                Command::Decide { decisions }
            }
            Self::Cancel { call } => Command::CancelCall { call: named(call)?, reason: "not needed".into() },
            Self::Redrive { call } => Command::Redrive { call: named(call)?, into: run_id() },
            Self::Drop { call } => Command::Drop { call: named(call)? },
            Self::EraseRun => Command::EraseRun { reason: "erased by an operator".into(), bytes: 1 },
            Self::CancelRun => Command::CancelRun { reason: "not needed".into() },
        })
    }
}

// ---- strategies ----

pub(super) fn plan() -> impl Strategy<Value = Plan> {
    let calls = prop::collection::vec(call(), 1..4);
    let spare = prop::collection::vec(call(), 2);
    let steps = prop::collection::vec(step(), 0..100);
    let run = (any::<bool>(), prop::bool::weighted(0.2), rules(), seconds(30..900));
    (calls, spare, run, steps).prop_map(|(calls, spare, (open, fail_fast, rules, life), steps)| {
        let calls = calls.into_iter().enumerate().map(|(index, call)| named(&format!("call-{index}"), call)).collect();
        let spare = spare.into_iter().enumerate().map(|(index, call)| named(&format!("spare-{index}"), call)).collect();
        let calls = in_time(calls, START.after(life));
        Plan { calls, spare, open, fail_fast, rules, life, steps }
    })
}

pub(super) fn rules() -> impl Strategy<Value = Rules> {
    let running_max = prop::option::weighted(0.2, 1..4u16);
    (running_max, prop::bool::weighted(0.2)).prop_map(|(running_max, fails_with_call)| Rules {
        running_max,
        fails_with_call,
        ..Rules::default()
    })
}

/// Without the delays that a request may not ask for.
fn in_time(mut calls: Vec<Arc<CallSpec>>, run_deadline: Timestamp) -> Vec<Arc<CallSpec>> {
    for call in calls.iter_mut().map(Arc::make_mut) {
        let (is_pooled, deadline) = (matches!(call.route, Route::Pool { .. }), call.deadline.min(run_deadline));
        call.not_before = call.not_before.filter(|until| is_pooled && *until < deadline);
    }
    calls
}

fn named(name: &str, spec: CallSpec) -> Arc<CallSpec> {
    Arc::new(CallSpec { id: crate::story::id(name), ..spec })
}

pub(super) fn mode() -> impl Strategy<Value = AfterPartialOutput> {
    prop_oneof![
        2 => Just(AfterPartialOutput::Restart),
        2 => Just(AfterPartialOutput::Continue),
        1 => Just(AfterPartialOutput::Buffer),
    ]
}

fn call() -> impl Strategy<Value = CallSpec> {
    let retry_on = (prop::bool::weighted(0.8), any::<bool>()).prop_map(|(lost, panic)| RetryOn {
        lost,
        panic,
        ..RetryOn::default()
    });
    let times = (seconds(5..120), prop::option::weighted(0.5, seconds(3..60)));
    let pooled =
        (prop_oneof![Just("alpha"), Just("beta")], prop::bool::weighted(0.7), 1..4u32, times, mode(), retry_on);
    let pooled = pooled.prop_map(
        |(name, repeatable, attempts_max, (attempt_timeout, idle_timeout), after_partial_output, retry_on)| {
            let policy = Policy {
                repeatable,
                attempts_max,
                attempt_timeout,
                idle_timeout,
                retry_on,
                after_partial_output,
                ..Policy::of(Effects::default())
            };
            Route::Pool { pool: pool(name), policy, version: None }
        },
    );
    let route = prop_oneof![
        8 => pooled,
        2 => Just(Route::Client),
        1 => Just(Route::Refused(error(ErrorKind::UnknownTool))),
        1 => Just(Route::Answered(HookAnswer { hook: "cache".to_owned(), result: text("kept") })),
    ];
    let alone = prop::bool::weighted(0.2);
    let direct = prop::bool::weighted(0.7);
    let approval = prop::option::weighted(0.2, approval());
    let delay = prop::option::weighted(0.2, prop_oneof![3 => seconds(1..20), 1 => seconds(20..600)]);
    (route, seconds(10..1200), prop::option::weighted(0.3, seconds(1..300)), (alone, direct), (approval, delay))
        .prop_map(|(route, life, queue, (alone, return_direct), (approval, delay))| CallSpec {
            approval,
            not_before: delay.map(|delay| START.after(delay)),
            result_use: ResultUse { return_direct, ..ResultUse::default() },
            files: Vec::new(),
            deadline: START.after(life),
            queue_deadline: queue.map(|queue| START.after(queue)),
            concurrency: if alone { Concurrency::Exclusive } else { Concurrency::Parallel },
            ..crate::story::spec("unnamed", route)
        })
}

pub(super) fn approval() -> impl Strategy<Value = Approval> {
    let default = prop_oneof![Just(DefaultDecision::Reject), Just(DefaultDecision::Approve)];
    (seconds(1..600), default).prop_map(|(within, default)| Approval { deadline: START.after(within), default })
}

pub(super) fn decision() -> impl Strategy<Value = Decision> {
    let arguments = prop_oneof![2 => Just(None), 1 => Just(Some(Bytes::from_static(b"{\"changed\":1}")))];
    prop_oneof![
        3 => arguments.prop_map(|arguments| Decision::Approved { arguments }),
        1 => Just(Decision::Rejected { reason: "not now".into() }),
    ]
}

fn seconds(range: Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_secs)
}

fn step() -> impl Strategy<Value = Step> {
    let wait = prop_oneof![
        12 => (0..50u64).prop_map(Duration::from_millis),
        4 => seconds(1..10),
        1 => seconds(10..200),
    ];
    let lag = prop_oneof![8 => Just(0usize), 1 => 1..4usize];
    let deliver = (pick(), lag, prop::bool::weighted(0.05), work());
    let deliver = deliver.prop_map(|(call, lag, reset, work)| Step::Deliver { call, lag, reset, work });
    let together = prop_oneof![3 => Just(0usize), 2 => 1..6usize];
    let publish = (pick(), pick(), together);
    let publish = publish.prop_map(|(by, order, together)| Step::Publish { by, order, together });
    let again = (pick(), 0..8u32, 1..5u32);
    let again = again.prop_map(|(by, first, count)| Step::PublishAgain { by, chunks: first..first + count });
    let act = (pick(), 0..3usize, prop::bool::weighted(0.2));
    let act = act.prop_map(|(effect, times, late)| Step::Act { effect, times, late });
    let lag = prop_oneof![4 => Just(0usize), 1 => 1..4usize];
    let question = (pick(), 1..4u16, lag, prop::bool::weighted(0.3));
    let question = question.prop_map(|(by, number, lag, answered)| Step::Question { by, number, lag, answered });
    prop_oneof![
        4 => wait.prop_map(Step::Wait),
        4 => question,
        7 => deliver,
        20 => publish,
        4 => again,
        1 => pick().prop_map(|worker| Step::Crash { worker }),
        3 => Just(Step::Tend),
        3 => act,
        1 => pick().prop_map(|which| Step::Land { which }),
        2 => (pick(), any::<bool>(), stage()).prop_map(|(by, asked, stage)| Step::Stopping { by, asked, stage }),
        1 => prop::option::weighted(0.3, pick()).prop_map(|call| match call {
            Some(call) => Step::NobodyLives { call },
            None => Step::Tend,
        }),
        2 => (ask(), 1..3usize).prop_map(|(ask, times)| Step::Ask(ask, times)),
        1 => forgery().prop_map(Step::Forge),
    ]
}

pub(super) fn stage() -> impl Strategy<Value = StopStage> + Clone {
    prop_oneof![Just(StopStage::Delivered), Just(StopStage::Acknowledged)]
}

fn work() -> impl Strategy<Value = Work> {
    let end = prop_oneof![
        2 => Just(End::Silence),
        8 => Just(End::Completed),
        2 => Just(End::Incomplete),
        2 => Just(End::Failed),
        4 => Just(End::FailedForNow),
        2 => Just(End::Returned),
    ];
    (prop::collection::vec(0..4u32, 0..5), end).prop_map(|(sizes, end)| Work { sizes, end })
}

pub(crate) fn ask() -> impl Strategy<Value = Ask> {
    let answer = (pick(), pick(), any::<bool>());
    prop_oneof![
        3 => Just(Ask::Append),
        1 => Just(Ask::Close),
        4 => answer.prop_map(|(call, second, well)| Ask::Answer { call, second, well }),
        6 => (pick(), pick(), decision())
            .prop_map(|(call, second, decision)| Ask::Decide { call, second, decision }),
        3 => pick().prop_map(|call| Ask::Cancel { call }),
        1 => Just(Ask::CancelRun),
        1 => Just(Ask::EraseRun),
        1 => pick().prop_map(|call| Ask::Redrive { call }),
        1 => pick().prop_map(|call| Ask::Drop { call }),
    ]
}

fn forgery() -> impl Strategy<Value = Forgery> {
    let number = || prop_oneof![0..6u32, Just(u32::MAX)];
    let beyond = prop_oneof![0..3u32, Just(u32::MAX)];
    prop_oneof![
        (0..6u16, number()).prop_map(|(call, number)| Forgery::OtherPool { call, number }),
        number().prop_map(|number| Forgery::UnknownCall { number }),
        (pick(), beyond, 1..4u32).prop_map(|(by, beyond, count)| Forgery::HugeChunk { by, beyond, count }),
    ]
}
