//! Who is asked for a tool that no worker hosts, and how long the answer counts.

mod asked;

use std::path::Path;
use std::time::{Duration, Instant};

use asked::{read, service};
use toolyard_hooks::{Hooks, Resolution};

/// A resolver that runs a shell script, and writes down each time that it is asked.
fn script(folder: &Path, script: &str, rest: &str) -> Hooks {
    let asked = folder.join("asked");
    let command = serde_json::json!(["sh", "-c", format!("cat >> {}; {script}", asked.display())]);
    read(&format!("[[resolver]]\nname = \"script\"\n{rest}\ncommand = {command}\n")).expect("the file is well formed")
}

fn asked_times(folder: &Path) -> usize {
    std::fs::read_to_string(folder.join("asked")).unwrap_or_default().matches("resolve_tool").count()
}

async fn resolve(hooks: &Hooks, tool: &str) -> Result<Option<std::sync::Arc<Resolution>>, String> {
    let tenant = "acme".parse().expect("a tenant");
    let resolved = hooks.resolvers.resolve(&tool.parse().expect("a tool name"), Some(&tenant)).await;
    resolved.map_err(|why| why.to_string())
}

#[tokio::test]
async fn an_answer_is_kept_and_many_who_ask_at_once_share_one_question() {
    let folder = tempfile::tempdir().expect("a folder");
    let answer = r#"{"decision":"alias","tool":"get","arguments":{"amount":1.10000000000000000001}}"#;
    let hooks = script(folder.path(), &format!("sleep 0.2; echo '{answer}'"), "tools = [\"crm.*\"]");
    assert!(hooks.resolvers.are_there());
    let all = futures::future::join_all((0..20).map(|_| resolve(&hooks, "crm.find"))).await;
    for resolved in all {
        let Resolution::Alias { tool, bound, schema: None } = &*resolved.expect("it answers").expect("it knows it")
        else {
            panic!("it is an alias")
        };
        assert_eq!((tool.as_str(), bound["amount"].get()), ("get", "1.10000000000000000001"));
    }
    assert_eq!(asked_times(folder.path()), 1);
    let question = std::fs::read_to_string(folder.path().join("asked")).expect("it was asked");
    assert_eq!(question, r#"{"event":"resolve_tool","tool":"crm.find","tenant":"acme"}"#);
    assert!(resolve(&hooks, "other.find").await.expect("nobody is asked").is_none());
    assert_eq!(asked_times(folder.path()), 1);
}

#[tokio::test]
async fn what_nobody_knows_is_kept_for_as_long_as_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let hooks = script(folder.path(), r#"echo '{"decision":"unknown"}'"#, "keep_unknown_s = 1");
    for _ in 0..3 {
        assert!(resolve(&hooks, "made_up").await.expect("it answers").is_none());
    }
    assert_eq!(asked_times(folder.path()), 1);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(resolve(&hooks, "made_up").await.expect("it answers").is_none());
    assert_eq!(asked_times(folder.path()), 2);
}

#[tokio::test]
async fn a_resolver_that_fails_says_why_and_is_left_alone_for_a_while() {
    let folder = tempfile::tempdir().expect("a folder");
    let hooks = script(folder.path(), "sleep 10", "timeout_ms = 200");
    let began = Instant::now();
    for _ in 0..3 {
        let why = resolve(&hooks, "slow").await.expect_err("it does not answer");
        assert_eq!(why, "resolver script failed: it did not answer within 200ms");
    }
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(asked_times(folder.path()), 1);

    let table = [
        ("exit 3", "its program ended with"),
        ("echo nonsense", "its answer is not one"),
        (r#"echo '{"decision":"alias"}'"#, "gave no tool"),
        (r#"echo '{"decision":"alias","tool":"no name"}'"#, "has no name"),
        (r#"echo '{"decision":"client","tool":"x"}'"#, "takes none"),
        (r#"echo '{"decision":"client","input_schema":{"type":"string"}}'"#, "input_schema cannot be used"),
        (r#"echo '{"decision":"client","more":1}'"#, "unknown field"),
    ];
    for (answers, expected) in table {
        let why = resolve(&script(folder.path(), answers, ""), "x").await.expect_err(expected);
        assert!(why.contains(expected), "{why}");
    }
}

#[tokio::test]
async fn resolvers_are_asked_in_their_order_until_one_knows_the_name_or_fails() {
    let body = r#"{"decision":"client","input_schema":{"type":"object"}}"#;
    let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    let url = service(Box::leak(response.into_boxed_str())).await;
    let unknown = r#"["sh", "-c", '''cat > /dev/null; echo '{"decision":"unknown"}' ''']"#;
    let first = |command: &str| {
        read(&format!(
            "[[resolver]]\nname = \"first\"\ncommand = {command}\n[[resolver]]\nname = \"second\"\nurl = \"{url}\"\n"
        ))
        .expect("the file is well formed")
    };
    let known = resolve(&first(unknown), "ask").await.expect("both answer").expect("the second knows it");
    assert!(matches!(&*known, Resolution::Client { schema: Some(_) }), "{known:?}");
    let why = resolve(&first("[\"false\"]"), "ask").await.expect_err("the first fails");
    assert!(why.starts_with("resolver first failed"), "{why}");
}

#[test]
fn a_resolver_that_cannot_be_used_is_told_with_its_field() {
    let table = [
        ("name = \"a\"", "resolver \"a\": command: is missing"),
        ("name = \"\"\ncommand = [\"true\"]", "name: must be 1 to 64 bytes"),
        ("name = \"a\"\ncommand = [\"true\"]\ntimeout_ms = 0", "timeout_ms: must be 1 to 60000"),
        ("name = \"a\"\ncommand = [\"true\"]\nkeep_s = 86401", "keep_s: must be at most 86400"),
        ("name = \"a\"\ncommand = [\"true\"]\nkeep_unknown_s = 86401", "keep_unknown_s: must be at most 86400"),
        ("name = \"a\"\ncommand = [\"true\"]\ntools = [\"{\"]", "resolver \"a\": tools:"),
        (
            "name = \"a\"\ncommand = [\"true\"]\n[[resolver]]\nname = \"a\"\ncommand = [\"true\"]",
            "another resolver has it",
        ),
        ("name = \"a\"\non = [\"pre_tool_use\"]", "unknown field `on`"),
    ];
    for (text, expected) in table {
        let error = read(&format!("[[resolver]]\n{text}")).expect_err(expected).to_string();
        assert!(error.contains(expected) && error.contains("hooks.toml"), "{error}");
    }
}

#[tokio::test]
async fn names_that_one_tenant_makes_up_leave_room_for_the_questions_of_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let go = folder.path().join("go");
    // A question about such a name is open until the test has seen enough.
    let asked = folder.path().join("asked");
    let text = format!(
        r#"question=$(cat); echo "$question" >> {asked}
        case "$question" in *slow*) while [ ! -e {go} ]; do sleep 0.05; done ;; esac
        echo '{{"decision":"unknown"}}'"#,
        asked = asked.display(),
        go = go.display(),
    );
    let command = serde_json::json!(["sh", "-c", text]);
    let hooks = read(&format!("[[resolver]]\nname = \"script\"\ntimeout_ms = 20000\ncommand = {command}\n"));
    let hooks = hooks.expect("the file is well formed");
    let slow = futures::future::join_all((0..40).map(|n| {
        let hooks = &hooks;
        async move { resolve(hooks, &format!("slow_{n}")).await }
    }));
    let other = async {
        // All that one tenant may ask at once is being asked.
        while asked_times(folder.path()) < 4 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(asked_times(folder.path()), 4, "the others wait");
        let (name, tenant) = ("quick".parse().expect("a name"), "other".parse().expect("a tenant"));
        let known = hooks.resolvers.resolve(&name, Some(&tenant)).await;
        assert!(known.expect("it is asked at once").is_none());
        std::fs::write(&go, "").expect("written");
    };
    let (all, ()) = futures::join!(slow, other);
    assert!(all.into_iter().all(|resolved| resolved.is_ok()));
}
