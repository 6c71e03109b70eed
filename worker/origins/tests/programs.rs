//! Programs as tools, with real processes.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

use std::path::Path;

use origins::process::{InvalidFile, ProgramTools, Skipped};
use sandbox::{Quota, Sandbox, Settings, Sharing, Workspaces};
use serde_json::{Value, json};
use toolyard_tool::{CallError, Chunk, Content, ErrorKind, Origin, Role, Table, testkit};

fn sandbox() -> Sandbox {
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-programs").into());
    Sandbox::new(Settings { level: "none".parse().unwrap(), ..Settings::default() }).unwrap()
}

async fn host(path: &Path) -> Result<(Table, Vec<Skipped>), InvalidFile> {
    ProgramTools::read(path)?.host(Table::new(), &sandbox(), None).await
}

async fn host_text(text: &str) -> Result<(Table, Vec<Skipped>), InvalidFile> {
    let folder = tempfile::tempdir().unwrap().keep();
    let path = folder.join("tools.toml");
    std::fs::write(&path, text).unwrap();
    host(&path).await
}

/// A command of the shell as a tool, with further lines.
async fn shell(command: &str, lines: &str) -> Table {
    let command = serde_json::to_string(command).unwrap();
    let text = format!(
        "[[program]]\nname = \"t\"\ndescription = \"A tool.\"\ncommand = [\"sh\", \"-c\", {command}]\n{lines}\n\
         [program.input_schema]\ntype = \"object\"\n"
    );
    host_text(&text).await.unwrap().0
}

async fn error(table: &Table) -> CallError {
    testkit::call_in(table, "t", json!({})).await.result.unwrap_err()
}

#[tokio::test]
async fn the_examples_do_what_their_manifests_say() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let (table, skipped) = host(&examples.join("programs.toml")).await.unwrap();
    assert_eq!(skipped, []);
    let called = testkit::call_in(&table, "wordcount", json!({ "text": "one two three" })).await;
    assert_eq!(called.answer(), "{\"words\":3}");
    let progress = called.output.iter().filter(|chunk| matches!(chunk, Chunk::Progress(_))).count();
    assert_eq!(progress, 3);
    let called = testkit::call_in(&table, "disk", json!({ "folder": "/" })).await;
    assert!(called.answer().contains('%') && called.answer() == called.text(), "{}", called.answer());
    let refused = testkit::call_in(&table, "disk", json!({ "folder": "/none" })).await.result.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::ArgumentsInvalid);
    assert!(refused.message.ends_with("exit code 64: there is no folder /none"), "{}", refused.message);
    let manifest = testkit::manifest(&table, "wordcount").unwrap();
    assert_eq!((manifest.origin, manifest.effects.read_only), (Origin::Plugin, true));
}

#[tokio::test]
async fn a_folder_hosts_files_and_programs_that_describe_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    std::fs::copy(examples.join("wordcount.py"), folder.path().join("wordcount")).unwrap();
    std::fs::copy(examples.join("disk.sh"), folder.path().join("disk.sh")).unwrap();
    std::fs::write(folder.path().join("README"), "no program").unwrap();
    let more = "[[program]]\nname = \"hello\"\ndescription = \"Greets.\"\ncommand = [\"echo\", \"hi\"]\n";
    std::fs::write(folder.path().join("more.toml"), more).unwrap();
    let (table, skipped) = host(folder.path()).await.unwrap();
    let names: Vec<String> = table.manifests().map(|manifest| manifest.name.to_string()).collect();
    assert_eq!(names, ["hello", "wordcount"]);
    assert!(skipped[0].reason.contains("--describe"), "disk.sh does not describe itself: {skipped:?}");
}

#[tokio::test]
async fn arguments_arrive_on_standard_input_and_the_call_in_the_environment() {
    let names = "$TOOLYARD_RUN_ID $TOOLYARD_CALL_ID $TOOLYARD_ATTEMPT $TOOLYARD_IDEMPOTENCY_KEY $TOKEN";
    let table = shell(&format!("cat; echo {names}; env | grep -c CARGO"), "env = { TOKEN = \"abc\" }").await;
    let answer = testkit::call_in(&table, "t", json!({ "a": [1, "é"] })).await.result.unwrap_err().message;
    assert!(answer.contains("exit code 1"), "grep finds nothing of the worker's environment: {answer}");
    let table = shell(&format!("cat; echo {names}"), "env = { TOKEN = \"abc\" }").await;
    let answer = testkit::call_in(&table, "t", json!({ "a": [1, "é"] })).await.answer();
    let (arguments, rest) = answer.split_once('\n').unwrap();
    assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({ "a": [1, "é"] }));
    let rest: Vec<&str> = rest.split_whitespace().collect();
    assert_eq!((rest[1], rest[2], rest[4]), ("call", "1", "abc"));
    assert_eq!(rest[3], format!("{}/call", rest[0]));
}

#[tokio::test]
async fn a_program_is_told_for_whom_it_runs_and_its_file_cannot_pretend() {
    let names = "[$TOOLYARD_TENANT $TOOLYARD_CALLER $TOOLYARD_ROLES]";
    let table = shell(&format!("echo {names}"), "env = { TOOLYARD_TENANT = \"rival\" }").await;
    let requester = testkit::Requester {
        tenant: Some("acme".parse().unwrap()),
        caller: Some("shop/ada".parse().unwrap()),
        roles: [Role::Submit, Role::Read].into_iter().collect(),
    };
    let called = testkit::call_for(&table, "t", json!({}), requester).await;
    assert_eq!(called.answer(), "[acme shop/ada submit,read]\n");
    assert_eq!(testkit::call_in(&table, "t", json!({})).await.answer(), "[ ]\n", "nobody is known");
}

#[tokio::test]
async fn each_tenants_calls_of_a_program_work_in_a_folder_of_their_own() {
    let (root, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = |name: &str, script: &str, more: &str| {
        format!(
            "[[program]]\nname = \"{name}\"\ndescription = \"A tool.\"\n\
             command = [\"sh\", \"-c\", \"{script}\"]\n{more}\n\
             [program.input_schema]\ntype = \"object\"\n"
        )
    };
    let here = program("here", "ls; touch $TOOLYARD_TENANT", "");
    let text = here + &program("there", "pwd; ls $TOOLYARD_FOLDER", "cwd = \".\"");
    std::fs::write(files.path().join("tools.toml"), text).unwrap();
    let workspaces = Workspaces::new(root.path(), Sharing::Tenant, Quota::default(), None).unwrap();
    let programs = ProgramTools::read(&files.path().join("tools.toml")).unwrap();
    let (table, _) = programs.host(Table::new(), &sandbox(), Some(&workspaces)).await.unwrap();
    let call = async |tool: &str, tenant: &str| {
        let requester = testkit::Requester { tenant: Some(tenant.parse().unwrap()), ..testkit::Requester::default() };
        testkit::call_for(&table, tool, json!({}), requester).await.answer()
    };
    for tenant in ["acme", "rival"] {
        assert_eq!(call("here", tenant).await, "Done", "nothing is there");
    }
    for tenant in ["acme", "rival"] {
        assert_eq!(call("here", tenant).await, format!("{tenant}\n"));
        let own = files.path().canonicalize().unwrap();
        assert_eq!(call("there", tenant).await, format!("{}\n{tenant}\n", own.display()), "it has a cwd");
    }
}

#[tokio::test]
async fn exit_codes_decide_whether_another_attempt_may_succeed() {
    for (code, kind, retryable) in
        [(1, ErrorKind::ToolFailed, false), (64, ErrorKind::ArgumentsInvalid, false), (75, ErrorKind::ToolFailed, true)]
    {
        let error = error(&shell(&format!("echo because >&2; exit {code}"), "").await).await;
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{code}");
        assert!(error.message.ends_with(&format!("exit code {code}: because")), "{}", error.message);
    }
    assert!(error(&shell("kill -9 $$", "").await).await.message.contains("signal 9"));
    let missing = "[[program]]\nname = \"t\"\ndescription = \"A tool.\"\ncommand = [\"no-such-program\"]\n";
    assert!(error(&host_text(missing).await.unwrap().0).await.message.contains("cannot be started"));
}

#[tokio::test]
async fn lines_of_json_are_output_progress_result_and_error() {
    let lines = [
        r#"{"type":"text","text":"a"}"#,
        r#"{"type":"text","text":"b","channel":"notes"}"#,
        r#"{"type":"json","value":{"n":1}}"#,
        r#"{"type":"progress","done":1,"total":2}"#,
        r#"{"type":"data","media_type":"image/png","base64":"iVA="}"#,
        r#"{"type":"result","text":"done"}"#,
        r#"{"type":"result","value":[1]}"#,
    ];
    let table = shell(&format!("printf '%s\\n' '{}'", lines.join("' '")), "output = \"ndjson\"").await;
    let called = testkit::call_in(&table, "t", json!({})).await;
    let parts = vec![Content::Text("done".to_owned()), Content::Json("[1]".to_owned())];
    assert_eq!(called.result.as_ref().unwrap(), &parts);
    assert_eq!((called.output.len(), called.text(), called.text_on("notes")), (5, "a".to_owned(), "b".to_owned()));
    let refused = r#"{"type":"error","message":"later","kind":"rate_limited","retry_after_s":7}"#;
    let refused = error(&shell(&format!("echo '{refused}'"), "output = \"ndjson\"").await).await;
    assert_eq!((refused.kind, refused.retry_after.unwrap().as_secs()), (ErrorKind::RateLimited, 7));
    for line in ["no JSON", r#"{"type":"song"}"#, r#"{"type":"text"}"#, r#"{"type":"result"}"#] {
        let wrong = error(&shell(&format!("echo; echo '{line}'"), "output = \"ndjson\"").await).await;
        assert!(wrong.message.contains("line 2 of the program's output is no event"), "{}", wrong.message);
    }
}

#[tokio::test]
async fn a_cancelled_call_ends_the_program_and_all_that_it_started() {
    let command = "trap '' TERM; (trap '' TERM; exec sleep 600) & echo $!; wait; sleep 600";
    let table = shell(command, "").await;
    let mut call = testkit::start_in(&table, "t", json!({}));
    let Some(Chunk::Content { content: Content::Text(pid), .. }) = call.chunk().await else { panic!("no output") };
    let process = format!("/proc/{}/cmdline", pid.trim());
    assert!(Path::new(&process).exists());
    call.cancel();
    assert_eq!(call.end().await.error(), "the call was cancelled");
    assert!(!Path::new(&process).exists(), "the program's child is gone");
}

#[tokio::test]
async fn a_flood_is_ended() {
    let flood = error(&shell("yes", "").await).await;
    assert_eq!(flood.kind, ErrorKind::OutputTooLarge, "{}", flood.message);
}

#[tokio::test]
async fn a_file_that_is_wrong_is_refused_with_the_place() {
    for (text, expected) in [
        ("[[program]]\nname = \"t\"\n", "program 1 (t): it has no command"),
        ("[[program]]\nname = \"t\"\ncommand = []\n", "its command is empty"),
        ("[[program]]\ncommand = [\"a\"]\n", "program 1: it has no name"),
        ("[[program]]\nname = \"t\"\ncommand = [\"a\"]\ncolour = 1\n", "unknown field `colour`"),
        ("[[program]]\nname = \"t\"\ncommand = [\"a\"]\noutput = \"xml\"\n", "unknown variant `xml`"),
        ("[[program]]\nname = \"t\"\ncommand = [\"a\"]\ncwd = \"none\"\n", "is no folder"),
        ("[[program]]\nname = \"t\"\ncommand = [\"a\"]\nenv = { A = 1 }\n", "env.A: write a text"),
        ("[[tool]]\n", "there is no \"tool\""),
        ("", "has no tool that can be hosted"),
    ] {
        let error = host_text(text).await.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("tools.toml"), "{text}: {error}");
    }
}
