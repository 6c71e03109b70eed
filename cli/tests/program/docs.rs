//! The documentation's commands, run as a reader types them beside `toolyard dev`. Blocks behind `<!-- run -->` are
//! run. The text block after one is its output, with "…" for parts that vary.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::process::{Background, Dev, Ended, PATIENCE};

const OWN_TOOL: &str = "docs/tutorial/your-own-tool.md";
/// Pages whose commands need more than `toolyard dev`, and have tests of their own.
const WITH_MORE: [&str; 2] = [OWN_TOOL, "docs/tutorial/agents.md"];
const MODEL: &str = r#"
import json

class Turn:
    def __init__(self, stop_reason, content):
        self.stop_reason, self.content = stop_reason, content

    def to_json(self):
        turn = {"type": "message", "role": "assistant", "stop_reason": self.stop_reason, "content": self.content}
        return json.dumps(turn)

class Text:
    def __init__(self, text):
        self.type, self.text = "text", text

class Anthropic:
    """A model that lists the files, and repeats what it read."""
    def __init__(self):
        self.messages = self

    def create(self, model, max_tokens, tools, messages):
        assert "bash" in [tool["name"] for tool in tools], tools
        if len(messages) == 1:
            call = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "echo one file"}}
            return Turn("tool_use", [call])
        result = messages[-1]["content"][0]
        assert (messages[-1]["role"], result["tool_use_id"]) == ("user", "toolu_1"), messages
        return Turn("end_turn", [Text("The tool said: " + result["content"][0]["text"])])
"#;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace is there")
}

pub fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// The pages below docs/, by their path from the root.
fn pages() -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join("docs")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let path = path.strip_prefix(root()).expect("below the root");
                found.push(path.to_str().expect("a path that is text").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// What a reader types, and what is then printed.
struct Block {
    script: String,
    printed: Option<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let parts = page.split("<!-- run -->").skip(1).map(str::trim_start);
    let block = |part: &str| {
        let (script, rest) = part.strip_prefix("```sh\n")?.split_once("\n```")?;
        let (between, after) = rest.split_once("```text\n").unwrap_or((rest, ""));
        // Another block, or a heading, comes before the text: it is not this one's.
        let is_ours = !between.contains("```") && !between.contains("\n#") && !after.is_empty();
        let printed = is_ours.then(|| after.split("\n```").next().unwrap_or_default().to_owned());
        Some(Block { script: script.to_owned(), printed })
    };
    parts.filter_map(block).collect()
}

/// A fleet, with the environment of a reader.
pub struct Reader {
    pub dev: Dev,
}

impl Reader {
    pub fn start() -> Self {
        Self { dev: Dev::start() }
    }

    /// Makes a call that awaits approval, and gives the id of its run.
    pub fn waits_for_approval(&self) -> String {
        let body = r#"{"calls":[{"call_id":"call_0","tool":"bash","arguments":"{\"command\":\"date\"}"}]}"#;
        let mut curl = self.command("curl");
        curl.args(["-s", "-H", "content-type: application/json", "-d", body])
            .arg(format!("{}/v1/runs", self.dev.url()));
        let made: Vec<Value> = Ended::of(&mut curl).json();
        let run = made[0]["run"]["run_id"].as_str().expect("a run is made").to_owned();
        let began = Instant::now();
        while !self.dev.run(["inbox"]).stdout().contains(&run) {
            assert!(began.elapsed() < PATIENCE, "the inbox lists the call");
        }
        run
    }

    pub fn command(&self, program: &str) -> Command {
        let programs = Path::new(env!("CARGO_BIN_EXE_toolyard")).parent().expect("it lies in a folder");
        let mut path = OsString::from(programs);
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command.env("PATH", path).env("TOOLYARD_URL", self.dev.url()).env("TOOLYARD_NATS_URL", self.dev.nats_url());
        command.stdin(Stdio::null());
        command
    }

    /// Types all blocks of a page into one shell.
    pub fn types(&self, page: &str) {
        let blocks = blocks(&read(page));
        assert!(!blocks.is_empty(), "{page}: nothing is marked to be run");
        let scripts: String = blocks.iter().map(|block| format!("{}\necho '--- next'\n", block.script)).collect();
        let script = format!("exec 2>&1\n{scripts}").replace("http://127.0.0.1:7420", self.dev.url());
        let state = tempfile::tempdir().expect("a folder");
        let mut shell = self.command("bash");
        let ended = Ended::of(shell.env("XDG_STATE_HOME", state.path()).args(["-euo", "pipefail", "-c", &script]));
        let out = ended.stdout();
        assert_eq!(ended.code(), 0, "{page}:\n{out}");
        for (block, out) in blocks.iter().zip(out.split("--- next\n")) {
            for line in block.printed.iter().flat_map(|printed| printed.lines()) {
                let fits = |out: &str| {
                    let mut rest = Some(out);
                    line.split('…').for_each(|part| rest = rest.and_then(|rest| Some(rest.split_once(part)?.1)));
                    rest.is_some()
                };
                assert!(out.lines().any(fits), "{page}: {line:?} is not printed:\n{out}");
            }
        }
    }
}

#[test]
fn what_the_documentation_has_a_reader_type_works() {
    let reader = Reader::start();
    let pages: Vec<String> = pages()
        .into_iter()
        .filter(|page| !WITH_MORE.contains(&page.as_str()) && read(page).contains("<!-- run -->"))
        .collect();
    assert!(pages.len() >= 4, "the pages were found: {pages:?}");
    for page in &pages {
        reader.types(page);
    }
}

/// The block behind the name of its file.
fn file<'a>(page: &'a str, name: &str) -> &'a str {
    let rest = page.split_once(&format!("<!-- file: {name} -->")).expect("the page has the file").1;
    rest.split("```").nth(1).and_then(|block| Some(block.split_once('\n')?.1)).expect("a block")
}

#[test]
fn the_tutorials_own_project_builds_and_its_tool_does_what_the_page_says() {
    let reader = Reader::start();
    let (page, folder) = (read(OWN_TOOL), tempfile::tempdir().expect("a folder"));
    std::fs::create_dir(folder.path().join("src")).expect("it can be made");
    let checkout = root();
    let manifest = file(&page, "Cargo.toml").replace("../toolyard/", &format!("{}/", checkout.display()));
    std::fs::write(folder.path().join("Cargo.toml"), manifest).expect("it can be written");
    std::fs::write(folder.path().join("src/main.rs"), file(&page, "src/main.rs")).expect("it can be written");
    // The crates that are here already, and no others.
    std::fs::copy(root().join("Cargo.lock"), folder.path().join("Cargo.lock")).expect("it can be copied");

    let programs = Path::new(env!("CARGO_BIN_EXE_toolyard")).parent().expect("it lies in a folder");
    let target = programs.parent().expect("it lies in the target folder");
    let mut build = reader.command(env!("CARGO"));
    build.args(["build", "--quiet", "--offline"]).current_dir(folder.path()).env("CARGO_TARGET_DIR", target);
    let built = Ended::of(&mut build);
    assert_eq!(built.code(), 0, "{}", built.stderr());

    let worker = Background::of(&mut reader.command(target.join("debug/weather").to_str().expect("text")));
    worker.stderr.until(|line| line.ends_with("is ready"));
    let began = Instant::now();
    while reader.dev.run(["tools", "get", "weather"]).code() != 0 {
        assert!(began.elapsed() < PATIENCE, "the coordinator knows the tool");
    }
    reader.types(OWN_TOOL);
}

#[test]
fn the_agent_of_the_readme_gives_a_model_the_results_of_its_calls() {
    let python = |page: &str| -> String {
        let page = read(page);
        let block = page.split_once("```python\n").expect("a block of Python").1;
        block.split("```").next().expect("it ends").to_owned()
    };
    let agent = python("README.md");
    assert_eq!(agent, python("docs/howto/agent-loop.md"), "both pages have the same loop");
    let (reader, folder) = (Reader::start(), tempfile::tempdir().expect("a folder"));
    // The only part that is not real: the model.
    std::fs::write(folder.path().join("anthropic.py"), MODEL).expect("it can be written");
    let agent = agent.replace("http://127.0.0.1:7420", reader.dev.url());
    let ended = Ended::of(reader.command("python3").arg("-c").arg(agent).env("PYTHONPATH", folder.path()));
    assert_eq!(ended.stdout(), "The tool said: one file\n\n", "{}", ended.stderr());
}
