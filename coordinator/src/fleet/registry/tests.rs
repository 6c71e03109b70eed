//! Which pool owns a name, and which tenants may use its tools.

use proto::convert::manifest::manifest_in;
use proto::v1;

use super::*;
use crate::fleet::pools::{PoolRules, Tenancy, rules};

const READ: v1::ToolPermission = v1::ToolPermission::Read;
const EXTERNAL: v1::ToolPermission = v1::ToolPermission::External;

/// A tool `bash` that uses the machine, needs approval and is passed one key of the context.
fn bash() -> v1::Tool {
    v1::Tool {
        name: "bash".to_owned(),
        permission: EXTERNAL.into(),
        input_schema: r#"{"type":"object"}"#.to_owned(),
        requires_confirmation: true,
        context_keys: vec!["USER".to_owned()],
        effects: Some(v1::ToolEffects { uses_machine: true, ..v1::ToolEffects::default() }),
        ..v1::Tool::default()
    }
}

/// A tool that does not use the machine.
fn named(name: &str) -> v1::Tool {
    v1::Tool { name: name.to_owned(), effects: None, ..bash() }
}

/// Pools in the order in which they advertised one tool each; those in capitals are dead.
fn sets(advertised: &[(&str, &str, v1::Tool)]) -> (Sets, HashSet<Hosts>) {
    let (mut sets, mut alive) = (Sets::new(), HashSet::new());
    for ((pool, set, tool), revision) in advertised.iter().zip(1..) {
        let hosts: Hosts = (pool.to_lowercase().parse().unwrap(), set.parse().unwrap());
        let tools = vec![Hosted::new(manifest_in(tool.clone()).expect("a manifest"))];
        sets.insert(hosts.clone(), Set { revision, tools, unusable: Vec::new() });
        if pool.chars().all(|letter| !letter.is_uppercase()) {
            alive.insert(hosts);
        }
    }
    (sets, alive)
}

struct Seen(Registry);

fn seen(advertised: &[(&str, &str, v1::Tool)], rules: PoolRules, tenancy: Tenancy) -> Seen {
    let (sets, alive) = sets(advertised);
    let (catalog, views) = Views::new(&sets, &alive, (rules.into(), tenancy));
    Seen(Registry { catalog: catalog.into(), views: views.into(), ..Registry::default() })
}

impl Seen {
    /// The pools that may execute a tool for a tenant.
    fn pools(&self, tool: &str, tenant: Option<&str>) -> Vec<&str> {
        let tenant: Option<TenantId> = tenant.map(|tenant| tenant.parse().unwrap());
        let entry = self.0.catalog_of(tenant.as_ref()).find(&tool.parse().unwrap());
        entry.map(|entry| entry.pools.iter().map(PoolId::as_str).collect()).unwrap_or_default()
    }

    fn manifest(&self, tool: &str) -> &run::Manifest {
        &self.0.catalog.find(&tool.parse().unwrap()).expect("it is known").hosted.manifest
    }

    fn refused(&self) -> Vec<(&str, &str)> {
        self.0.catalog.refused.iter().map(|refused| (refused.hosts.0.as_str(), refused.tool.as_str())).collect()
    }

    fn why_closed(&self, tool: &str, tenant: &str) -> String {
        let error = self.0.closed_to(Some(&tenant.parse().unwrap()), &tool.parse().unwrap());
        error.map(|error| error.message).unwrap_or_default()
    }
}

#[test]
fn a_pool_that_copies_the_manifest_of_another_pools_tool_gets_none_of_its_calls() {
    let copied = [("shell", "s", bash()), ("aa", "a", bash())];
    let seen = seen(&copied, PoolRules::default(), Tenancy::Open);
    assert_eq!(seen.pools("bash", None), ["shell"], "it had the name first, whatever the other one is called");
    assert_eq!(seen.refused(), [("aa", "bash")]);
    let reason = &seen.0.catalog.refused[0].reason;
    assert!(reason.contains("shell hosted bash first") && reason.contains("--pools"), "{reason}");
}

#[test]
fn a_pool_that_advertises_a_higher_version_of_another_pools_tool_takes_nothing_over() {
    let greedy = v1::Tool {
        version: "999".to_owned(),
        permission: READ.into(),
        requires_confirmation: false,
        context_keys: vec!["SECRET".to_owned()],
        ..bash()
    };
    let taken = [("shell", "s", bash()), ("aa", "a", greedy)];
    for rules in [PoolRules::default(), rules("[pools.shell]\ntools = [\"b*\"]\nshared = true")] {
        let seen = seen(&taken, rules, Tenancy::Open);
        assert_eq!((seen.pools("bash", None), seen.refused()), (vec!["shell"], vec![("aa", "bash")]));
        let manifest = seen.manifest("bash");
        assert_eq!((manifest.permission, manifest.requires_confirmation), (run::Permission::External, true));
        assert_eq!(manifest.context_keys, ["USER"]);
    }
}

#[test]
fn a_name_stays_with_its_first_pool_through_updates_and_while_its_workers_are_away() {
    let newer = || v1::Tool { version: "2".to_owned(), ..bash() };
    // The first set of pool shell is the oldest; its newest came after the other pool's.
    let updated = [("SHELL", "s1", bash()), ("aa", "a", bash()), ("shell", "s2", newer())];
    let updated_seen = seen(&updated, PoolRules::default(), Tenancy::Open);
    assert_eq!((updated_seen.pools("bash", None), updated_seen.refused()), (vec!["shell"], vec![("aa", "bash")]));
    // It proves which pool was first, so it is kept.
    let (known, _) = sets(&updated);
    let hosts = |pool: &str, set: &str| -> Hosts { (pool.parse().unwrap(), set.parse().unwrap()) };
    let kept = known.keys().filter(|hosts| proves_a_claim(&known, hosts)).collect::<Vec<_>>();
    assert_eq!(kept, [&hosts("shell", "s1")]);
    let (alone, _) = sets(&[updated[0].clone(), updated[2].clone()]);
    assert!(!alone.keys().any(|hosts| proves_a_claim(&alone, hosts)), "no other pool claims the name");
    let away = seen(&[("SHELL", "s", bash()), ("aa", "a", bash())], PoolRules::default(), Tenancy::Open);
    assert_eq!(away.pools("bash", None), ["shell"]);
    let (dead, _) = sets(&[("SHELL", "s", bash()), ("aa", "a", bash())]);
    assert!(!dead.keys().any(|hosts| proves_a_claim(&dead, hosts)), "a pool that is gone for good is forgotten");
}

#[test]
fn an_alias_takes_no_name_either_and_goes_with_its_tool() {
    let alias = |tool: &str, alias: &str| v1::Tool {
        aliases: vec![v1::ToolAlias { name: alias.to_owned(), description: String::new() }],
        ..named(tool)
    };
    let taken = [("shell", "s", bash()), ("aa", "a", alias("mine", "bash")), ("bb", "b", alias("bash", "sh"))];
    let seen = seen(&taken, PoolRules::default(), Tenancy::Open);
    assert_eq!(seen.pools("bash", None), ["shell"]);
    assert_eq!((seen.pools("mine", None), seen.pools("sh", None)), (vec!["aa"], vec![]));
    assert_eq!(seen.refused(), [("aa", "bash"), ("bb", "bash"), ("bb", "sh")]);
}

#[test]
fn pools_that_the_file_lists_for_a_name_are_replicas_if_their_whole_manifests_agree() {
    let both = || rules("[pools.one]\ntools = [\"git.*\"]\n[pools.two]\ntools = [\"git.*\"]");
    let tool = || named("git.log");
    let advertised = |other| [("one", "a", tool()), ("two", "b", other), ("three", "c", tool())];
    let same = seen(&advertised(tool()), both(), Tenancy::Open);
    assert_eq!((same.pools("git.log", None), same.refused()), (vec!["one", "two"], vec![("three", "git.log")]));
    assert_eq!(seen(&advertised(tool()), PoolRules::default(), Tenancy::Open).pools("git.log", None), ["one"]);
    let loose = v1::Tool { requires_confirmation: false, ..tool() };
    let differing = seen(&advertised(loose.clone()), both(), Tenancy::Open);
    assert_eq!(differing.pools("git.log", None), ["one"]);
    assert!(
        differing.0.catalog.refused[1].reason.contains("requires_confirmation"),
        "{:?}",
        differing.0.catalog.refused
    );
    // A pool takes the place of a dead one, but never with less protection.
    let strict = v1::Tool { description: "Otherwise the same.".to_owned(), ..tool() };
    let away = |other| [("ONE", "a", tool()), ("two", "b", other)];
    assert_eq!(seen(&away(strict), both(), Tenancy::Open).pools("git.log", None), ["two"]);
    assert_eq!(seen(&away(loose), both(), Tenancy::Open).pools("git.log", None), ["one"]);
}

#[test]
fn within_a_pool_the_newest_version_counts_and_differing_workers_are_reported() {
    let write = || v1::Tool { permission: v1::ToolPermission::Write.into(), ..named("pay") };
    let read = |version: &str| v1::Tool { permission: READ.into(), version: version.to_owned(), ..write() };
    let told =
        seen(&[("a", "1", write()), ("a", "2", write()), ("a", "3", read(""))], PoolRules::default(), Tenancy::Open);
    // A tool that only reads may run in parallel, unless its manifest denies it.
    let differing = &told.0.catalog.differing;
    assert_eq!((differing.len(), differing[0].what.as_str()), (1, "permission, concurrency"));
    assert_eq!(
        (told.refused().len(), told.manifest("pay").permission),
        (0, run::Permission::Write),
        "the first counts"
    );
    let newer = seen(&[("a", "1", write()), ("a", "2", read("2"))], PoolRules::default(), Tenancy::Open);
    assert_eq!((newer.0.catalog.differing.len(), newer.manifest("pay").permission), (0, run::Permission::Read));
}

#[test]
fn a_tenant_is_served_by_the_pools_that_name_it_and_others_do_not_see_them() {
    let file = || {
        rules(
            "[pools.common]\ntools = [\"*\"]\n[pools.acme]\ntools = [\"git.log\"]\ntenants = [\"acme\"]\n[pools.duo]\n\
             tools = [\"pay\"]\ntenants = [\"acme\", \"rival\"]",
        )
    };
    let newer = v1::Tool { version: "2".to_owned(), ..named("git.log") };
    let advertised = [("common", "c", named("git.log")), ("acme", "a", newer), ("duo", "d", named("pay"))];
    let seen = seen(&advertised, file(), Tenancy::Many);
    assert_eq!(seen.pools("git.log", Some("acme")), ["acme"], "its own pool goes before the common one");
    assert_eq!(seen.pools("git.log", Some("rival")), ["common"]);
    assert_eq!(seen.pools("pay", Some("rival")), ["duo"]);
    assert!(seen.pools("pay", Some("another")).is_empty());
    assert!(seen.why_closed("pay", "another").contains("does not serve its tenant"));
    assert_eq!(seen.pools("pay", None), ["duo"], "a run without a tenant is the operator's own");
    assert!(seen.refused().is_empty(), "pools of different tenants need not agree: {:?}", seen.refused());
}

#[test]
fn a_pool_whose_tools_use_the_machine_serves_one_tenant_unless_the_file_declares_it_shared() {
    let advertised = [("shell", "s", bash())];
    let of = |rules: PoolRules, tenancy: Tenancy| {
        let seen = seen(&advertised, rules, tenancy);
        let serves = ["acme", "rival"].map(|tenant| !seen.pools("bash", Some(tenant)).is_empty());
        (serves, seen.0.views.unshared().len())
    };
    let listed = |more: &str| rules(&format!("[pools.shell]\ntools = [\"bash\"]\n{more}"));
    let sole = || Tenancy::Sole("acme".parse().unwrap());
    assert_eq!(of(PoolRules::default(), Tenancy::Open), ([true, true], 0), "tenants are labels if callers need no key");
    assert_eq!(of(PoolRules::default(), sole()), ([true, false], 0));
    assert_eq!(of(PoolRules::default(), Tenancy::Many), ([false, false], 1));
    assert_eq!(of(listed(""), Tenancy::Many), ([false, false], 1));
    assert_eq!(of(listed("tenants = [\"acme\"]"), Tenancy::Many), ([true, false], 0));
    assert_eq!(of(listed("tenants = [\"acme\", \"rival\"]"), Tenancy::Many), ([false, false], 1));
    assert_eq!(of(listed("tenants = [\"acme\", \"rival\"]\nshared = true"), Tenancy::Many), ([true, true], 0));
    assert_eq!(of(listed("shared = true"), Tenancy::Many), ([true, true], 0));
    let seen = seen(&advertised, PoolRules::default(), Tenancy::Many);
    let why = seen.why_closed("bash", "acme");
    assert!(why.contains("--pools") && why.contains("[pools.shell]") && why.contains("shared = true"), "{why}");
}

#[test]
fn a_name_of_a_closed_pool_does_not_go_to_another_pool() {
    // Without a file the name belongs to pool shell, also for tenants that it does not serve.
    let copied = [("shell", "s", bash()), ("aa", "a", named("bash"))];
    let seen = seen(&copied, PoolRules::default(), Tenancy::Many);
    assert!(seen.pools("bash", Some("acme")).is_empty());
    assert!(seen.why_closed("bash", "acme").contains("shell"));
}

#[test]
fn several_pools_of_a_tool_get_calls_by_their_slots_and_not_by_their_names() {
    let both = rules("[pools.one]\ntools = [\"x\"]\n[pools.two]\ntools = [\"x\"]");
    let mut seen = seen(&[("one", "a", named("x")), ("two", "b", named("x"))], both, Tenancy::Open);
    for (pool, set, slots) in [("one", "a", 1), ("two", "b", 3)] {
        let (tools, release) = (set.parse().unwrap(), String::new());
        let worker = Worker { tools, pulling: true, slots, draining: false, release, sandbox: None, hooks: Vec::new() };
        seen.0.worker_lives(pool.parse().unwrap(), "w".parse().unwrap(), worker);
    }
    let tool = "x".parse().unwrap();
    let routed = |registry: &Registry| registry.route(&tool, None, |_| true).expect("a pool").0.as_str().to_owned();
    let two = (0..2000).filter(|_| routed(&seen.0) == "two").count();
    assert!((1300..1700).contains(&two), "{two} of 2000 went to three of four slots");
    seen.0.worker_left(&"two".parse().unwrap(), &"w".parse().unwrap());
    assert!((0..100).all(|_| routed(&seen.0) == "one"), "the other one has no worker");
}

/// How many of 2,000 calls of tool `x` go to pool `next`, which replaces pool `usual` with this share; and which
/// version is listed.
fn rolled_out(share: u8, lives: [bool; 2], fit: bool) -> (usize, String) {
    let rules = rules(&format!("[pools.usual]\ntools = [\"x\"]\n[pools.next]\nreplaces = \"usual\"\nshare = {share}"));
    let version = |version: &str| v1::Tool { version: version.to_owned(), description: "d".repeat(9), ..named("x") };
    let advertised = [("usual", "a", version("1")), ("next", "b", v1::Tool { tags: vec!["t".into()], ..version("2") })];
    let (sets, alive) = sets(&advertised);
    let alive = alive.into_iter().filter(|(pool, _)| lives[usize::from(pool.as_str() == "next")]).collect();
    let (catalog, views) = Views::new(&sets, &alive, (rules.into(), Tenancy::Open));
    assert!(catalog.refused.is_empty(), "{:?}", catalog.refused);
    let mut registry = Registry { catalog: catalog.into(), views: views.into(), ..Registry::default() };
    for (pool, tools) in alive {
        let worker = Worker {
            tools,
            pulling: true,
            slots: 1,
            draining: false,
            release: String::new(),
            sandbox: None,
            hooks: Vec::new(),
        };
        registry.worker_lives(pool, "w".parse().unwrap(), worker);
    }
    let tool = "x".parse().unwrap();
    let routed = || registry.route(&tool, None, |_| fit).expect("a pool").0.as_str() == "next";
    let listed = registry.catalog.find(&tool).unwrap().hosted.manifest.version.as_ref().unwrap().to_string();
    ((0..2000).filter(|_| routed()).count(), listed)
}

#[test]
fn a_pool_that_replaces_another_gets_its_share_of_the_calls_that_fit() {
    let (tenth, listed) = rolled_out(10, [true, true], true);
    assert!((120..280).contains(&tenth) && listed == "1", "{tenth} of 2000, {listed} is listed");
    assert_eq!(rolled_out(10, [true, true], false), (0, "1".to_owned()), "no call fits");
    assert_eq!(rolled_out(0, [true, true], true), (0, "1".to_owned()));
    assert_eq!(rolled_out(100, [true, true], false), (2000, "2".to_owned()), "it is the one that callers know");
}

#[test]
fn of_a_pool_and_the_one_that_replaces_it_whichever_lives_has_all_calls() {
    assert_eq!(rolled_out(100, [true, false], true), (0, "1".to_owned()));
    assert_eq!(rolled_out(10, [false, true], true), (2000, "2".to_owned()));
    assert_eq!(rolled_out(10, [false, false], true), (0, "1".to_owned()), "its calls wait there");
}

#[test]
fn a_worker_takes_a_call_only_if_it_runs_the_hooks_that_the_call_requires() {
    let mut seen = seen(&[("main", "a", named("x"))], PoolRules::default(), Tenancy::Open);
    let pool: PoolId = "main".parse().unwrap();
    let mut lives = |id: &str, hooks: &[&str]| {
        let (tools, hooks) = ("a".parse().unwrap(), hooks.iter().map(|hook| (*hook).to_owned()).collect());
        let (release, sandbox) = (String::new(), None);
        let worker = Worker { tools, pulling: true, slots: 1, draining: false, release, sandbox, hooks };
        seen.0.worker_lives(pool.clone(), id.parse().unwrap(), worker);
    };
    lives("bare", &[]);
    lives("other", &["logs"]);
    lives("both", &["logs", "redacts"]);
    let takers = |hooks: &[&str]| {
        let policy = run::Policy::of(run::Effects::default());
        let route = Route::Pool { pool: pool.clone(), policy, version: None };
        let call = CallSpec::new("c".parse().unwrap(), "x".parse().unwrap(), "{}", route, run::Timestamp(0));
        let call = CallSpec { required_hooks: hooks.iter().map(|hook| (*hook).to_owned()).collect(), ..call };
        seen.0.takers(&call, None)
    };
    assert_eq!((takers(&[]), takers(&["logs"]), takers(&["redacts"])), (3, 2, 1));
    assert_eq!((takers(&["logs", "redacts"]), takers(&["signs"])), (1, 0));
}
