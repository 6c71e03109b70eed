//! Counting, without a broker.

use super::*;

#[test]
fn a_tenants_bytes_are_what_is_stored_here_and_elsewhere_and_was_just_admitted() {
    let tenant: TenantId = "acme".parse().unwrap();
    let shared = Limits { shards: 8, of_all: 16, shared: true };
    let mut counted = Counted::default();
    counted.others.insert(tenant.clone(), Usage { log_bytes: 300, ..Usage::default() });
    counted.log.insert(tenant.clone(), LogUse { stored: 400, admitted: 0 });
    counted.admit_bytes(&tenant, 200, 1000, &shared).expect("900 of 1000");
    let refused = counted.admit_bytes(&tenant, 101, 1000, &shared).expect_err("1001 of 1000");
    assert_eq!((refused.what, refused.limit), ("bytes in the log", 1000));
    assert!(refused.to_string().contains("log_bytes"), "{refused}");
    counted.admit_bytes(&tenant, 100, 1000, &shared).expect("what is refused takes nothing");
    let alone = Limits { shards: 8, of_all: 16, shared: false };
    counted.log.insert(tenant.clone(), LogUse { stored: 400, admitted: 0 });
    counted.admit_bytes(&tenant, 100, 1000, &alone).expect("half of the shards are ours");
    counted.admit_bytes(&tenant, 1, 1000, &alone).expect_err("that was our part");
    assert_eq!(counted.usages()["acme"].log_bytes, 400, "tenants without open runs are reported, too");
}

#[test]
fn a_coordinator_that_has_no_shard_yet_admits_the_part_of_one() {
    let tenant: TenantId = "acme".parse().unwrap();
    let mut counted = Counted::default();
    let new = Limits { shards: 0, of_all: 16, shared: false };
    counted.admit_bytes(&tenant, 62, 1000, &new).expect("a sixteenth");
    counted.admit_bytes(&tenant, 1, 1000, &new).expect_err("that was the part of a shard");
    counted.admit_bytes(&tenant, 1, 0, &new).expect_err("a limit of 0 leaves no part");
}

#[test]
fn a_run_at_rest_counts_once_also_while_calls_are_added_to_it_and_its_end_makes_room() {
    let (tenant, now): (TenantId, _) = ("acme".parse().unwrap(), Instant::now());
    let [run, next] = [(); 2].map(|()| RunId::new(run::Shard(0), uuid::Uuid::now_v7()));
    let quota = Quota { open_runs: Some(1), calls_at_once: Some(2), ..Quota::default() };
    let limits = Limits { shards: 16, of_all: 16, shared: false };
    let mut counted = Counted::default();
    counted.admit((run, true, &tenant), 1, quota, &limits, now).expect("the first");
    // A recount finds it at rest.
    let resting = InProgress { runs: 1, calls: 1 };
    counted.see([(tenant.clone(), Seen { resting, ..Seen::default() })].into(), |id| id == run, now);
    let used = |counted: &mut Counted| {
        let usage = counted.usages()["acme"];
        (usage.runs, usage.calls)
    };
    assert_eq!(used(&mut counted), (1, 1));
    counted.admit((next, true, &tenant), 1, quota, &limits, now).expect_err("a second run");
    counted.admit((run, false, &tenant), 1, quota, &limits, now).expect("a call more");
    counted.woken(run, &tenant, 1);
    assert_eq!(used(&mut counted), (1, 2));
    counted.woken(run, &tenant, 1);
    assert_eq!(used(&mut counted), (1, 2), "it was awake");
    counted.admit((run, false, &tenant), 1, quota, &limits, now).expect_err("a third call");
    counted.ended(run, &tenant);
    assert_eq!(used(&mut counted), (0, 0));
    counted.admit((next, true, &tenant), 1, quota, &limits, now).expect("there is room");
}

#[test]
fn calls_that_a_run_refuses_are_given_back_and_those_of_others_are_not() {
    let (tenant, now): (TenantId, _) = ("acme".parse().unwrap(), Instant::now());
    let [run, other] = [(); 2].map(|()| RunId::new(run::Shard(0), uuid::Uuid::now_v7()));
    let quota = Quota { calls_at_once: Some(4), ..Quota::default() };
    let limits = Limits { shards: 16, of_all: 16, shared: false };
    let mut counted = Counted::default();
    counted.admit((other, true, &tenant), 1, quota, &limits, now).expect("the first");
    // At a coordinator that does not own the run, only what it admits is counted.
    counted.admit((run, false, &tenant), 3, quota, &limits, now).expect("there is room");
    counted.refused(run, &tenant, 3);
    let usage = counted.usages()["acme"];
    assert_eq!((usage.runs, usage.calls), (1, 1));
    counted.see(
        [(tenant.clone(), Seen { runs: [(run, Under { calls: 2, admitted: None })].into(), ..Seen::default() })].into(),
        |_| false,
        now,
    );
    counted.admit((run, false, &tenant), 1, quota, &limits, now).expect("there is room");
    counted.refused(run, &tenant, 1);
    assert_eq!(counted.usages()["acme"].calls, 4, "the next count of the log corrects it");
}
