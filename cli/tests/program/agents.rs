//! Agents with a scripted model, as a reader of the tutorial starts them: a run and the runs below it in one view.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::docs::{Reader, read, root};
use crate::process::{Background, Dev};

const PAGE: &str = "docs/tutorial/agents.md";

/// The model of the tutorial, and a reader whose worker hosts the tutorial's agents.
struct Desk {
    reader: Reader,
    _model: Background,
    _folder: tempfile::TempDir,
}

impl Desk {
    fn start() -> Self {
        let script = root().join("docs/examples/agents/script.toml");
        let script = script.to_str().expect("text");
        let model = Background::start(["model", "--script", script, "--listen", "127.0.0.1:0", "-o", "json"]);
        let up: Value = serde_json::from_str(&model.stdout.until(|_| true)).expect("it says where it is");
        let address = up["openai"].as_str().and_then(|url| url.split('/').nth(2)).expect("an address").to_owned();
        let folder = tempfile::tempdir().expect("a folder");
        let agents = folder.path().join("agents.toml");
        let text = read("docs/examples/agents/agents.toml").replace("127.0.0.1:7430", &address);
        std::fs::write(&agents, text).expect("it can be written");
        let dev = Dev::with(&["--agents", agents.to_str().expect("text")]);
        Self { reader: Reader { dev }, _model: model, _folder: folder }
    }

    /// Calls an agent, and returns the id of its run.
    fn call(&self, agent: &str, input: &str) -> String {
        let called = self.reader.dev.run(["call", agent, &format!("input={input}"), "-o", "json"]);
        assert_eq!(called.code(), 0, "{}", called.stderr());
        let events = called.json();
        assert!(events.iter().all(|event| event.get("depth").is_none()), "programs ask for runs below: {events:?}");
        events[0]["run_opened"]["run_id"].as_str().expect("a run").to_owned()
    }
}

#[test]
fn the_tutorials_agents_do_what_the_page_says() {
    Desk::start().reader.types(PAGE);
}

/// The numbers of the events of each run, in the order in which they came.
fn numbers(events: &[Value]) -> BTreeMap<String, Vec<u64>> {
    let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for event in events {
        let run = event["run_id"].as_str().expect("each event has its run").to_owned();
        numbers.entry(run).or_default().push(event["sequence"].as_u64().expect("a number"));
    }
    numbers
}

fn place(events: &[Value], wanted: impl Fn(&Value) -> bool) -> usize {
    events.iter().position(wanted).expect("there is such an event")
}

#[test]
fn a_run_is_read_with_the_runs_below_it_and_again_from_any_place_of_each() {
    let desk = Desk::start();
    let run = desk.call("planner", "Plan a meeting");
    let watched = desk.reader.dev.run(["runs", "watch", &run, "--children", "-o", "json"]).json();
    let all = numbers(&watched);
    assert_eq!(all.len(), 4, "a planner, and two clerks below it: {all:?}");
    for (id, numbers) in &all {
        assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "{id}: {numbers:?}");
    }
    let of = |depth: u64| watched.iter().filter(move |event| event["depth"] == depth);
    assert!(of(0).all(|event| event["run_id"] == *run && event.get("parent_run_id").is_none()));
    let child = of(1).next().expect("a child")["run_id"].as_str().expect("an id").to_owned();
    assert!(of(1).all(|event| event["parent_run_id"] == *run && event["parent_call_id"] == "call_0"));
    assert!(of(2).all(|event| event["parent_run_id"] == *child));
    // A run below comes before the end of the call that made it.
    for (id, call) in [(&run, "call_0"), (&child, "t1.0"), (&child, "t1.1")] {
        let ended = place(&watched, |it| it["run_id"] == **id && it["call_ended"]["call_id"] == call);
        let is_below = |it: &Value| it["parent_run_id"] == **id && it["parent_call_id"] == call;
        assert!(place(&watched, |it| is_below(it) && it.get("run_ended").is_some()) < ended, "{call}");
        assert!(!watched[ended..].iter().any(is_below), "{call}");
    }

    let (own, below) = ("5".to_owned(), format!("{child}=2"));
    let rest =
        desk.reader.dev.run(["runs", "watch", &run, "--children", "-o", "json", "--after", &own, "--after", &below]);
    let mut expected = all;
    expected.get_mut(&run).expect("its events").drain(..=5);
    expected.get_mut(&child).expect("its events").drain(..=2);
    assert_eq!(numbers(&rest.json()), expected);
    let wrong = desk.reader.dev.run(["runs", "watch", &run, "--after", "run_x=y"]);
    assert!(wrong.code() == 2 && wrong.stderr().contains("\"y\" is no sequence number"), "{}", wrong.stderr());
}

#[test]
fn runs_below_are_shown_to_people_and_never_mixed_with_a_tools_output() {
    let desk = Desk::start();
    let dev = &desk.reader.dev;
    let plain = dev.run(["call", "planner", "input=Plan a meeting"]);
    assert!(!plain.stderr().contains("clerk"), "a script reads the tool's output: {}", plain.stderr());
    let shown = dev.run(["call", "planner", "input=Plan a meeting", "--children"]);
    assert_eq!(shown.stdout(), plain.stdout());
    let below = shown.stderr();
    assert!(below.contains("\n  ● clerk · t1.1\n") && below.contains("\n    ● get_current_time · t1.0\n"), "{below}");

    let run = desk.call("planner", "Plan a meeting");
    let alone = dev.run(["runs", "watch", &run, "--no-children"]).stdout();
    assert!(alone.contains("● planner") && alone.contains("run run_") && !alone.contains("clerk"), "{alone}");
    let all = dev.run(["runs", "watch", &run]).stdout();
    assert!(!all.contains("assistant_turn") && !all.contains("run run_"), "{all}");
    let lines: Vec<&str> = all.lines().collect();
    let at = |line: &str| lines.iter().position(|it| it.starts_with(line)).unwrap_or_else(|| panic!("{line}: {all}"));
    assert!(at("  ↳ planner · call_0 · run_") < at("  ● clerk · t1."));
    assert!(at("  ● clerk · t1.") < at("    ● get_current_time"));
    assert!(at("    ● get_current_time") < at("✓ run completed"));
}

#[test]
fn the_results_of_a_run_are_printed_in_the_form_of_a_models_api() {
    let desk = Desk::start();
    let run = desk.call("clerk", "Berlin");
    let messages = |form: &str| desk.reader.dev.run(["runs", "messages", &run, "--format", form, "--wait", "5s"]);
    let anthropic = messages("anthropic").json().remove(0);
    let result = &anthropic["messages"][0]["content"][0];
    assert_eq!((&anthropic["complete"], &result["tool_use_id"]), (&true.into(), &"call_0".into()), "{anthropic}");
    assert_eq!(result["content"][0]["text"], "The clock in Berlin was read.");
    let openai = messages("openai").json().remove(0);
    assert_eq!(
        (&openai["format"], &openai["messages"][0]["type"]),
        (&"openai-responses".into(), &"function_call_output".into())
    );
    assert_eq!(messages("morse").code(), 2);
    let gone = run.replace(&run[run.len() - 8..], "00000000");
    let gone = desk.reader.dev.run(["runs", "messages", &gone, "--format", "mcp"]);
    assert!(gone.code() == 2 && gone.stderr().contains("RUN_NOT_FOUND"), "{}", gone.stderr());
}

#[test]
fn a_script_that_cannot_be_used_is_refused_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("script.toml");
    std::fs::write(&file, "[[tea]]\nsays = \"hm\"\n").expect("it can be written");
    let model = crate::process::run(["model", "--script", file.to_str().expect("text")]);
    assert!(
        model.code() == 1 && model.stderr().contains("script.toml: TOML parse error at line 2"),
        "{}",
        model.stderr()
    );
}
