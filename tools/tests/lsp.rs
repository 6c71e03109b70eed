//! `lsp` with real language servers, and with one that misbehaves.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod bring;
mod tree;

use std::path::Path;
use std::time::Duration;

use run::ErrorKind;
use sandbox::{Sandbox, Settings};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tools::{Lsp, ToolSettings};
use toolyard_tool::Table;
use toolyard_tool::testkit::{self, Called};

use tree::Tree;

const PYLSP: &[&str] = &["python-lsp-server==1.15.0", "pyflakes"];
const TYPESCRIPT: &[&str] = &["typescript@5.9.3", "typescript-language-server@5.1.3"];
/// Servers start slowly on a busy machine.
const SOON: Duration = Duration::from_secs(180);

struct Yard {
    tree: Tree,
    table: Table,
}

/// A worker's tool whose only server is the one of this text.
fn yard(tree: Tree, settings: &str) -> Yard {
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-tests").into());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), settings).unwrap();
    let settings = ToolSettings::read(file.path()).unwrap();
    let lsp = Lsp::new(tree.root(), Sandbox::new(Settings::default()).unwrap(), &settings);
    Yard { tree, table: Table::new().host(lsp).unwrap() }
}

impl Yard {
    async fn call(&self, arguments: Value) -> Called {
        timeout(SOON, testkit::call_in(&self.table, "lsp", arguments)).await.unwrap()
    }

    async fn ask(&self, arguments: Value) -> Value {
        serde_json::from_str(&self.call(arguments).await.answer()).unwrap()
    }
}

fn pylsp(program: &Path) -> String {
    format!(
        "[[language_server]]\nname = \"pylsp\"\nprogram = {:?}\nroots = [\"pyproject.toml\"]\n\
         files = {{ \"*.py\" = \"python\" }}\nenvironment = {{ PYTHONPATH = {:?} }}\n",
        program.display().to_string(),
        bring::python_path(program)
    )
}

fn python() -> Tree {
    Tree::of(&[
        ("app/pyproject.toml", ""),
        (
            "app/shapes.py",
            "def area(width, height):\n    \"\"\"The area of a rectangle.\"\"\"\n    return width * height\n",
        ),
        ("app/main.py", "import os\nfrom shapes import area\n\nprint('é', area(2, 3))\n"),
    ])
}

#[tokio::test]
async fn a_python_server_answers_about_definitions_references_types_and_symbols() {
    let Some(program) = bring::from_pypi(PYLSP, "pylsp") else { return };
    let yard = yard(python(), &pylsp(&program));
    let place = |action: &str| json!({ "action": action, "path": "app/main.py", "line": 4, "symbol": "area" });
    let definition = yard.ask(place("definition")).await;
    let found = &definition["locations"][0];
    assert_eq!((&found["file"], &found["line"], &found["column"]), (&json!("app/shapes.py"), &json!(1), &json!(5)));
    assert_eq!(found["text"], "def area(width, height):");
    let references = yard.ask(place("references")).await;
    let found: Vec<(&str, u64)> = references["locations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| (found["file"].as_str().unwrap(), found["line"].as_u64().unwrap()))
        .collect();
    assert!(found.contains(&("app/main.py", 4)) && found.contains(&("app/shapes.py", 1)), "{references}");
    let hover = yard.ask(place("hover")).await;
    assert!(hover["hover"].as_str().unwrap().contains("The area of a rectangle."), "{hover}");
    let symbols = yard.ask(json!({ "action": "document_symbols", "path": "app/shapes.py" })).await;
    let first = &symbols["symbols"][0];
    assert_eq!(
        (&first["name"], &first["kind"], &first["place"]["line"]),
        (&json!("area"), &json!("function"), &json!(1))
    );
}

#[tokio::test]
async fn diagnostics_follow_the_file_and_the_server_stays() {
    let Some(program) = bring::from_pypi(PYLSP, "pylsp") else { return };
    let yard = yard(python(), &pylsp(&program));
    let ask = json!({ "action": "diagnostics", "path": "app/main.py" });
    let before = yard.ask(ask.clone()).await;
    assert!(before["diagnostics"].to_string().contains("'os' imported but unused"), "{before}");
    yard.tree.write("app/main.py", b"from shapes import area\n\nprint(area(2, 3), nowhere)\n");
    let after = yard.ask(ask).await;
    assert!(after["diagnostics"].to_string().contains("undefined name 'nowhere'"), "{after}");
    assert!(!after["diagnostics"].to_string().contains("imported but unused"), "{after}");
}

#[tokio::test]
async fn a_typescript_server_answers_where_code_of_the_project_may_run() {
    let Some(program) = bring::from_npm(TYPESCRIPT, "typescript-language-server") else { return };
    let tree = || {
        Tree::of(&[
            ("tsconfig.json", "{\"compilerOptions\":{\"strict\":true},\"include\":[\"src\"]}"),
            ("src/shapes.ts", "export class Square {\n  constructor(public width: number) {}\n}\n"),
            ("src/main.ts", "import { Square } from './shapes';\nconst s: Square = new Square('3');\n"),
        ])
    };
    let server = format!(
        "[[language_server]]\nname = \"typescript-language-server\"\nprogram = {:?}\narguments = [\"--stdio\"]\n\
         roots = [\"tsconfig.json\"]\nfiles = {{ \"*.ts\" = \"typescript\" }}\nruns_project_code = true\n\
         options = {{ tsserver = {{ useSyntaxServer = \"never\" }} }}\n",
        program.display().to_string()
    );
    let careful = yard(tree(), &server);
    let refused = careful.call(json!({ "action": "diagnostics", "path": "src/main.ts" })).await;
    assert_eq!(refused.result.as_ref().unwrap_err().kind, ErrorKind::NeedsInput);
    assert!(refused.error().contains("allow_project_code"), "{}", refused.error());
    let yard = yard(tree(), &format!("allow_project_code = true\n{server}"));
    let definition = json!({ "action": "definition", "path": "src/main.ts", "line": 2, "symbol": "Square" });
    assert_eq!(yard.ask(definition).await["locations"][0]["file"], "src/shapes.ts");
    let diagnostics = yard.ask(json!({ "action": "diagnostics", "path": "src/main.ts" })).await;
    assert_eq!(diagnostics["diagnostics"][0]["rule"], "2345", "{diagnostics}");
    let symbols = yard.ask(json!({ "action": "workspace_symbols", "path": "src/main.ts", "query": "Squ" })).await;
    assert_eq!(symbols["symbols"][0]["name"], "Square", "{symbols}");
}

/// A server that writes down what it is sent, answers `hover` with its process id, never answers `definition`, and ends
/// at `references`.
const ODD: &str = r#"
import json, os, sys
log = open("log", "a")
def send(message):
    data = json.dumps({"jsonrpc": "2.0", **message}).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
    sys.stdout.buffer.flush()
while True:
    length = 0
    while (line := sys.stdin.buffer.readline().strip()):
        length = int(line.split(b":")[1])
    if not length:
        break
    message = json.loads(sys.stdin.buffer.read(length))
    method = message.get("method")
    log.write(f"{method}\n")
    log.flush()
    if method == "initialize":
        send({"id": 900, "method": "workspace/configuration", "params": {"items": [{}, {}]}})
        send({"id": message["id"], "result": {"capabilities": {}}})
    elif method == "textDocument/hover":
        send({"id": message["id"], "result": {"contents": {"kind": "plaintext", "value": str(os.getpid())}}})
    elif method == "textDocument/references":
        print("the reason", file=sys.stderr, flush=True)
        sys.exit(1)
    elif method == "textDocument/documentSymbol":
        sys.stdout.buffer.write(b"hello\r\n\r\n")
        sys.stdout.buffer.flush()
"#;

fn odd() -> Yard {
    let tree = Tree::of(&[("odd.py", ODD), ("a.odd", "one two\n")]);
    let settings = "[[language_server]]\nname = \"odd\"\nprogram = \"python3\"\narguments = [\"odd.py\"]\n\
                    files = { \"*.odd\" = \"odd\" }\n";
    yard(tree, settings)
}

fn at(action: &str) -> Value {
    json!({ "action": action, "path": "a.odd", "line": 1, "symbol": "two" })
}

#[tokio::test]
async fn a_server_is_kept_for_later_calls_and_started_again_when_it_was_killed() {
    let yard = odd();
    let first = yard.ask(at("hover")).await["hover"].clone();
    assert_eq!(yard.ask(at("hover")).await["hover"], first);
    let log = std::fs::read_to_string(yard.tree.path().join("log")).unwrap();
    assert_eq!(log.matches("initialize\n").count(), 1);
    assert_eq!(log.matches("textDocument/didOpen").count(), 1);
    let process = rustix::process::Pid::from_raw(first.as_str().unwrap().parse().unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    let second = yard.ask(at("hover")).await["hover"].clone();
    assert_ne!(second, first);
}

#[tokio::test]
async fn a_call_that_is_cancelled_is_cancelled_at_the_server() {
    let yard = odd();
    let call = testkit::start_in(&yard.table, "lsp", at("definition"));
    let log = || std::fs::read_to_string(yard.tree.path().join("log")).unwrap_or_default();
    let wait_for = async |text: &str| {
        timeout(SOON, async {
            while !log().contains(text) {
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .unwrap();
    };
    wait_for("textDocument/definition").await;
    call.cancel();
    assert_eq!(timeout(SOON, call.end()).await.unwrap().error(), "the call was cancelled");
    wait_for("$/cancelRequest").await;
    assert!(yard.ask(at("hover")).await["hover"].is_string(), "the server goes on");
}

/// A server that reads its project for a second, and answers `hover` with whether it has.
const SLOW: &str = r#"
import json, sys, threading, time
log = open("log", "a")
lock, ready = threading.Lock(), []
def send(message):
    data = json.dumps({"jsonrpc": "2.0", **message}).encode()
    with lock:
        sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        sys.stdout.buffer.flush()
def progress(kind):
    send({"method": "$/progress", "params": {"token": 1, "value": {"kind": kind}}})
def index():
    time.sleep(1)
    ready.append(True)
    progress("end")
while True:
    length = 0
    while (line := sys.stdin.buffer.readline().strip()):
        length = int(line.split(b":")[1])
    if not length:
        break
    message = json.loads(sys.stdin.buffer.read(length))
    method = message.get("method")
    if method == "initialize":
        send({"id": message["id"], "result": {"capabilities": {}}})
    elif method == "textDocument/didOpen":
        progress("begin")
        threading.Thread(target=index).start()
        log.write("opened")
        log.flush()
    elif method == "textDocument/hover":
        send({"id": message["id"], "result": {"contents": {"kind": "plaintext", "value": str(bool(ready))}}})
"#;

#[tokio::test]
async fn a_server_that_reads_its_project_is_waited_for_also_after_a_cancelled_call() {
    let tree = Tree::of(&[("slow.py", SLOW), ("a.odd", "one two\n")]);
    let settings = "[[language_server]]\nname = \"slow\"\nprogram = \"python3\"\narguments = [\"slow.py\"]\n\
                    files = { \"*.odd\" = \"odd\" }\n";
    let yard = yard(tree, settings);
    let first = testkit::start_in(&yard.table, "lsp", at("hover"));
    timeout(SOON, async {
        while !std::fs::read_to_string(yard.tree.path().join("log")).is_ok_and(|log| log.contains("opened")) {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    first.cancel();
    assert_eq!(timeout(SOON, first.end()).await.unwrap().error(), "the call was cancelled");
    assert_eq!(yard.ask(at("hover")).await["hover"], "True");
}

#[tokio::test]
async fn a_server_that_ends_or_writes_what_is_no_message_fails_only_its_call() {
    let yard = odd();
    let ended = yard.call(at("references")).await;
    assert!(ended.error().contains("the language server odd ended"), "{}", ended.error());
    assert!(ended.error().contains("the reason"), "{}", ended.error());
    let broken = yard.call(json!({ "action": "document_symbols", "path": "a.odd" })).await;
    assert!(broken.error().contains("\"hello\", which is no header"), "{}", broken.error());
    assert!(yard.ask(at("hover")).await["hover"].is_string());
}

#[tokio::test]
async fn servers_end_with_their_worker() {
    let yard = odd();
    let process = yard.ask(at("hover")).await["hover"].as_str().unwrap().parse().unwrap();
    let process = rustix::process::Pid::from_raw(process).unwrap();
    drop(yard);
    timeout(SOON, async {
        while rustix::process::test_kill_process(process).is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("it ends");
}

#[tokio::test]
async fn arguments_that_are_of_no_use_are_refused_by_their_place() {
    let yard = odd();
    for (arguments, pointer) in [
        (json!({ "action": "hover", "path": "a.odd" }), "/line"),
        (json!({ "action": "hover", "path": "a.odd", "line": 9, "symbol": "two" }), "/line"),
        (json!({ "action": "hover", "path": "a.odd", "line": 1 }), "/symbol"),
        (json!({ "action": "hover", "path": "a.odd", "line": 1, "symbol": "three" }), "/symbol"),
        (json!({ "action": "hover", "path": "a.odd", "line": 1, "symbol": "two", "column": 1 }), "/column"),
        (json!({ "action": "hover", "path": "../a.odd", "line": 1, "symbol": "two" }), "/path"),
        (json!({ "action": "diagnostics", "path": "." }), "/path"),
        (json!({ "action": "diagnostics", "path": "log.txt" }), "/path"),
        (json!({ "action": "rename", "path": "a.odd" }), "/action"),
    ] {
        let error = yard.call(arguments.clone()).await.result.unwrap_err();
        assert_eq!(error.kind, ErrorKind::ArgumentsInvalid, "{arguments}: {error:?}");
        assert_eq!(error.violations[0].path, pointer, "{arguments}: {error:?}");
    }
    let missing = self::yard(
        Tree::of(&[("a.odd", "one")]),
        "[[language_server]]\nname = \"odd\"\nprogram = \"no-such-server\"\nfiles = { \"*.odd\" = \"odd\" }\n\
         install = \"ask Ada\"\n",
    );
    let called = missing.call(json!({ "action": "diagnostics", "path": "a.odd" })).await;
    assert_eq!(called.result.as_ref().unwrap_err().kind, ErrorKind::NeedsInput);
    assert!(called.error().contains("odd is not installed on this worker (ask Ada)"), "{}", called.error());
}
