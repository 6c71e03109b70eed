//! Runs at rest, which are packed.

use run::{Approval, DefaultDecision};

use super::*;

fn for_client(name: &str) -> CallSpec {
    CallSpec { route: Route::Client, ..spec(name) }
}

fn for_approval(name: &str) -> CallSpec {
    let approval = Approval { deadline: START.after(Duration::from_secs(300)), default: DefaultDecision::Reject };
    CallSpec { approval: Some(approval), ..spec(name) }
}

fn shard(story: &Story) -> &ShardState {
    story.owner.shard(SHARD).expect("the only one")
}

fn is_packed(story: &Story, run: RunId) -> bool {
    assert!(shard(story).is_open(run));
    shard(story).resting().contains(run)
}

fn answered(call: u16) -> Event {
    Event::ClientAnswered { call: CallIndex(call), answer: Ok(Vec::new()) }
}

#[test]
fn a_run_is_packed_while_its_calls_wait_for_people_and_unpacked_by_the_next_entry() {
    let mut story = Story::begin();
    let run = run_id(1);
    story.log(run, vec![opening(vec![for_client("a"), for_client("b")])]);
    let before = story.owner.run(run).expect("it is open").into_owned();
    assert!(story.check_workers().is_empty() && is_packed(&story, run));
    assert_eq!(shard(&story).resting().waiting(), Waiting { client_calls: 2, approvals: 0 });
    let packed = story.owner.run(run).expect("it is open").into_owned();
    assert_eq!((&packed.run, packed.first, packed.last), (&before.run, before.first, before.last));
    assert!(is_packed(&story, run), "to read it does not unpack it");
    story.log(run, vec![answered(0)]);
    assert!(!is_packed(&story, run) && story.owner.run(run).expect("it is open").run.calls()[0].outcome().is_some());
    assert_eq!(shard(&story).resting().waiting(), Waiting::default());
    story.check_workers();
    assert!(is_packed(&story, run));
    story.log(run, vec![answered(1)]);
    assert!(!shard(&story).is_open(run) && story.owner.poll_timeout().is_none());
}

#[test]
fn a_run_is_not_packed_while_a_worker_or_an_effect_is_due() {
    let mut story = Story::begin();
    let (running, held) = (run_id(1), run_id(2));
    story.running(running, spec("a"));
    // Its job is not in the log yet.
    story.log(held, vec![opening(vec![for_client("a"), spec("b")])]);
    story.check_workers();
    assert!(!is_packed(&story, running) && !is_packed(&story, held));
}

#[test]
fn the_deadline_of_a_packed_run_is_kept() {
    let mut story = Story::begin();
    let (client, approval) = (run_id(1), run_id(2));
    story.log(client, vec![opening(vec![for_client("a")])]);
    story.log(approval, vec![opening(vec![for_approval("a")])]);
    story.check_workers();
    assert!(is_packed(&story, client) && is_packed(&story, approval));
    assert_eq!(shard(&story).resting().waiting(), Waiting { client_calls: 1, approvals: 1 });
    let actions = story.wait(300);
    assert!(matches!(appended(&actions)[..], [Event::CallDecided { .. }]), "{actions:?}");
    let actions = story.wait(300);
    let expired = Event::CallExpired { call: CALL, deadline: DeadlineKind::Client };
    assert!(appended(&actions).contains(&&expired), "{actions:?}");
}

#[test]
fn the_next_owner_packs_what_it_reads_and_keeps_its_deadlines_until_it_loses_the_shard() {
    let mut known = Known::new(run_id(1));
    let events = vec![opening(vec![for_client("a")])];
    known.apply(&Entry { sequence: 4, at: START, not_after: None, hooked: false, events }, &mut Vec::new());
    let mut resting = Resting::default();
    assert!(resting.take(&OpenRun::new(known, START), START));
    assert!(!resting.take(&OpenRun::new(opened(run_id(2), 1), START), START), "its call is to be executed");
    let mut story = Story::without_shard();
    story.owner.handle_claimed(SHARD, 1);
    let taken = Takeover { claim: 1, through: 4, tip: 4, resting, ..Takeover::default() };
    assert!(story.owner.handle_taken(SHARD, taken, START) && story.owner.begin_to_lead(SHARD));
    assert_eq!(
        (shard(&story).open_len(), shard(&story).snapshot().collect::<Vec<_>>()),
        (1, vec![Listed { run: run_id(1), first: 4, last: 4 }])
    );
    story.owner.check_shard(SHARD, START, &story.world);
    assert_eq!(story.owner.poll_timeout(), Some(START.after(Duration::from_secs(600))));
    story.owner.handle_lost(SHARD);
    assert_eq!(story.owner.poll_timeout(), None);
}

#[test]
fn the_deadline_of_a_run_is_kept_that_was_packed_at_the_takeover_and_unpacked_before_its_end() {
    let mut known = Known::new(run_id(1));
    let events = vec![opening(vec![for_client("a"), for_client("b")])];
    known.apply(&Entry { sequence: 4, at: START, not_after: None, hooked: false, events }, &mut Vec::new());
    let mut resting = Resting::default();
    assert!(resting.take(&OpenRun::new(known, START), START));
    let mut story = Story { sequence: 4, ..Story::without_shard() };
    story.owner.handle_claimed(SHARD, 1);
    let taken = Takeover { claim: 1, through: 4, tip: 5, resting, ..Takeover::default() };
    assert!(story.owner.handle_taken(SHARD, taken, START) && !story.owner.begin_to_lead(SHARD));
    story.log(run_id(1), vec![answered(0)]);
    assert!(story.owner.begin_to_lead(SHARD));
    story.owner.check_shard(SHARD, START, &story.world);
    story.check_workers();
    assert!(is_packed(&story, run_id(1)));
    assert_eq!(story.owner.poll_timeout(), Some(START.after(Duration::from_secs(600))));
    let expired = Event::CallExpired { call: CallIndex(1), deadline: DeadlineKind::Client };
    assert_eq!(appended(&story.wait(600)), [&expired]);
}

#[test]
fn a_run_that_is_read_twice_counts_once() {
    let mut resting = Resting::default();
    for _ in 0..2 {
        let mut known = Known::new(run_id(1));
        let events = vec![opening(vec![for_client("a")])];
        known.apply(&Entry { sequence: 4, at: START, not_after: None, hooked: false, events }, &mut Vec::new());
        assert!(resting.take(&OpenRun::new(known, START), START));
    }
    assert_eq!((resting.len(), resting.waiting().client_calls), (1, 1));
}

#[test]
fn what_the_log_keeps_of_a_run_is_the_same_whether_it_is_packed_or_not() {
    let run: RunId = "run_00_018bcfe393407e3f8a1b2c3d4e5f6001".parse().expect("a run id");
    let [mut packed, mut awake] = [true, false].map(|packs| {
        let mut story = Story::begin();
        story.log(run, vec![opening(vec![for_client("a")])]);
        story.log(run_id(2), vec![opening(vec![spec("b")])]);
        if packs {
            story.check_workers();
            assert!(is_packed(&story, run));
        }
        story
    });
    let mut same = |step: &dyn Fn(&mut Story)| {
        step(&mut packed);
        step(&mut awake);
        let needs = |story: &Story| (shard(story).needed_from(story.now), shard(story).to_carry(9, story.now));
        assert_eq!(needs(&packed), needs(&awake));
        needs(&packed)
    };
    assert_eq!(same(&|_| {}), (1, vec![run, run_id(2)]));
    assert_eq!(
        same(&|story| story.owner.handle_carried(run, carried(1), story.now)),
        (1, vec![run_id(2)]),
        "it is too young"
    );
    assert_eq!(same(&|story| drop(story.wait(30))).0, 2);
    assert_eq!(same(&|story| story.owner.handle_carried(run, carried(0), story.now)).0, 2, "more was carried before");
    assert!(is_packed(&packed, run) && !is_packed(&awake, run));
}

#[test]
fn runs_at_rest_count_for_their_tenant() {
    let (mut story, tenant) = (Story::begin(), "acme".parse::<TenantId>().expect("a tenant"));
    let opened = |calls| {
        let Event::RunOpened(opened) = opening(calls) else { unreachable!("it is an opening") };
        Event::RunOpened(RunOpened { tenant: Some(tenant.clone()), ..opened })
    };
    story.log(run_id(1), vec![opened(vec![for_client("a"), for_client("b")])]);
    story.log(run_id(2), vec![opened(vec![for_client("a")])]);
    story.log(run_id(1), vec![answered(0)]);
    story.check_workers();
    let tenants = |story: &Story| shard(story).resting().tenants().map(|(_, counted)| counted).collect::<Vec<_>>();
    assert_eq!(tenants(&story), [InProgress { runs: 2, calls: 2 }]);
    story.log(run_id(1), vec![answered(1)]);
    story.log(run_id(2), vec![answered(0)]);
    assert_eq!(tenants(&story), []);
}
