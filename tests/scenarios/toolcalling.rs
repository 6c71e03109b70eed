//! The sample worker: the time and the weather, each in both styles, and only the tools that its file enables. The
//! weather service is a scripted HTTP server.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use harness::{Fixture, PATIENCE, Yard, call};
use proto::v1::{self, CallErrorKind, CallState};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::registry::listed;
use crate::{FIXTURE, check};

const KEY: &str = "the-key-of-the-service";

/// The queries and keys of the requests.
type Asked = Arc<Mutex<Vec<(String, String)>>>;

/// A weather service.
struct Service {
    url: String,
    asked: Asked,
    _serving: JoinSet<()>,
}

impl Service {
    async fn start() -> Self {
        let asked = Asked::default();
        let router = Router::new().route("/v1/forecast.json", get(forecast));
        let router = router.route("/v1/chat/completions", post(complete)).with_state(Arc::clone(&asked));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let url = format!("http://{}", listener.local_addr().expect("it has an address"));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { url, asked, _serving: serving }
    }

    fn asked(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.asked.lock().expect("no request panics"))
    }
}

async fn forecast(State(asked): State<Asked>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let query = query.unwrap_or_default();
    let key = headers.get("key").and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned();
    asked.lock().expect("no request panics").push((query.clone(), key));
    if query.starts_with("q=Atlantis") {
        return (StatusCode::BAD_REQUEST, r#"{"error":{"code":1006}}"#).into_response();
    }
    if query.starts_with("q=Babel") {
        return "no JSON".into_response();
    }
    let body = json!({
        "location": { "name": "Shanghai", "country": "China" },
        "current": { "temp_c": 21.5 },
        "forecast": { "forecastday": [{ "date": "2026-11-25" }, { "date": "2026-11-26" }] },
    });
    body.to_string().into_response()
}

/// A model that repeats the task.
async fn complete(State(asked): State<Asked>, headers: HeaderMap, body: String) -> String {
    let key = headers["authorization"].to_str().expect("a text").to_owned();
    let body: Value = serde_json::from_str(&body).expect("a request is JSON");
    asked.lock().expect("no request panics").push((body["model"].to_string(), key));
    let content = format!("You asked: {}", body["messages"][1]["content"]);
    json!({ "choices": [{ "message": { "role": "assistant", "content": content } }] }).to_string()
}

/// The sample, with a file of settings.
struct Sample {
    yard: Yard,
    folder: tempfile::TempDir,
    program: PathBuf,
    worker: Option<Child>,
}

impl Sample {
    async fn start() -> Self {
        let program = Fixture::example("toolcalling");
        let folder = tempfile::tempdir().expect("a folder");
        Self { yard: Yard::start(FIXTURE).await, folder, program, worker: None }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn logged(&self) -> String {
        std::fs::read_to_string(self.log()).expect("the worker has a log")
    }

    fn command(&self, settings: &str) -> Command {
        let file = self.folder.path().join("toolcalling.toml");
        std::fs::write(&file, settings).expect("a file can be written");
        let mut command = Command::new(&self.program);
        command.arg(file).env("TOOLYARD_NATS_URL", self.yard.broker.url()).env("SAMPLE_KEY", KEY);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Starts the worker again with other settings.
    async fn set(&mut self, settings: &str, tool: &str) {
        if let Some(mut worker) = self.worker.take() {
            worker.kill().await.expect("it was running");
        }
        let log = std::fs::File::create(self.log()).expect("a file can be made");
        self.worker = Some(self.command(settings).stderr(log).spawn().expect("the sample starts"));
        self.yard.client.wait_for_tool(tool).await;
    }

    async fn outcome(&self, tool: &str, arguments: Value) -> v1::CallOutcome {
        let events = self.yard.client.execute(vec![call("c", tool, arguments)]).await.to_end().await;
        check::whole(&events, true);
        check::outcomes(&events)["c"].clone()
    }

    async fn answer(&self, tool: &str, arguments: Value) -> String {
        let outcome = self.outcome(tool, arguments).await;
        assert_eq!(outcome.state(), CallState::Completed, "{tool}: {outcome:?}");
        check::text(&outcome)
    }

    async fn tools(&self) -> BTreeMap<String, v1::Tool> {
        let page = listed(&self.yard.client, v1::ListToolsRequest::default()).await;
        page.tools.into_iter().map(|tool| (tool.name.clone(), tool)).collect()
    }
}

fn weather(service: &Service, key: &str) -> String {
    let url = &service.url;
    format!("[toolcalling.weather]\nenabled = true\nbase-url = \"{url}\"\napi-key = {key}\n")
}

const TIME: &str = "[toolcalling.time]\nenabled = true\n";
const TIMES: [&str; 2] = ["getCityTimeFunction", "getCityTimeMethod"];
const FORECASTS: [&str; 2] = ["getWeatherFunction", "getWeatherServiceMethod"];

#[tokio::test]
async fn the_time_of_a_city_is_told_in_both_styles() {
    let mut sample = Sample::start().await;
    sample.set(TIME, TIMES[0]).await;
    let tools = sample.tools().await;
    for tool in TIMES {
        assert_eq!(tools[tool].description, "Get the time of a specified city.");
        let schema: Value = serde_json::from_str(&tools[tool].input_schema).expect("a schema is JSON");
        let zone = &schema["properties"]["timeZoneId"];
        assert_eq!(zone["description"], "Time zone id, such as Asia/Shanghai");
        let told = sample.answer(tool, json!({ "timeZoneId": "Asia/Shanghai" })).await;
        let rest = told.strip_prefix("The current time zone is Asia/Shanghai and the current time is ");
        let shape = rest.expect("the text of the sample").replace(|c: char| c.is_ascii_digit(), "9");
        assert_eq!(shape, "9999-99-99 99:99:99 CST", "{told}");
        let unknown = sample.outcome(tool, json!({ "timeZoneId": "Asia/Atlantis" })).await;
        assert_eq!(unknown.error.expect("an error").kind(), CallErrorKind::ArgumentsInvalid);
    }
}

#[tokio::test]
async fn the_weather_is_asked_for_with_the_key_and_told_in_both_styles() {
    let (mut sample, service) = (Sample::start().await, Service::start().await);
    sample.set(&weather(&service, "{ env = \"SAMPLE_KEY\" }"), FORECASTS[0]).await;
    let tools = sample.tools().await;
    for tool in FORECASTS {
        assert_eq!(tools[tool].description, "Use api.weather to get weather information.");
        let schema: Value = serde_json::from_str(&tools[tool].input_schema).expect("a schema is JSON");
        let days = &schema["properties"]["days"];
        assert_eq!(days["description"], "Number of days of weather forecast. Value ranges from 1 to 14");
        assert_eq!((&days["minimum"], &days["maximum"]), (&json!(1), &json!(14)));
        let answer = sample.answer(tool, json!({ "city": "New York", "days": 2 })).await;
        let answer: Value = serde_json::from_str(&answer).expect("it is JSON");
        let expected = json!({
            "city": "Shanghai",
            "current": { "temp_c": 21.5 },
            "forecastDays": [{ "date": "2026-11-25" }, { "date": "2026-11-26" }],
        });
        assert_eq!(answer, expected);
        assert_eq!(service.asked(), [("q=New+York&days=2".to_owned(), KEY.to_owned())]);
        for days in [0, 15] {
            let refused = sample.outcome(tool, json!({ "city": "Paris", "days": days })).await;
            assert_eq!(refused.error.expect("an error").kind(), CallErrorKind::ArgumentsInvalid);
        }
    }
}

#[tokio::test]
async fn a_city_in_chinese_is_asked_for_in_pinyin() {
    let (mut sample, service) = (Sample::start().await, Service::start().await);
    sample.set(&weather(&service, "{ env = \"SAMPLE_KEY\" }"), FORECASTS[0]).await;
    for (city, pinyin) in
        [("上海", "shanghai"), ("乌鲁木齐", "wulumuqi"), ("重庆", "chongqing"), ("长沙 CN", "changsha+CN")]
    {
        sample.answer(FORECASTS[1], json!({ "city": city, "days": 1 })).await;
        assert_eq!(service.asked()[0].0, format!("q={pinyin}&days=1"), "{city}");
    }
}

#[tokio::test]
async fn an_empty_city_and_any_error_of_the_service_are_null_and_logged_without_the_key() {
    let (mut sample, service) = (Sample::start().await, Service::start().await);
    let key = sample.folder.path().join("key");
    std::fs::write(&key, format!("{KEY}\n")).expect("a file can be written");
    sample.set(&weather(&service, &format!("{{ file = {key:?} }}")), FORECASTS[0]).await;
    for tool in FORECASTS {
        assert_eq!(sample.answer(tool, json!({ "city": " ", "days": 1 })).await, "null");
        assert!(service.asked().is_empty(), "nothing was asked");
        for city in ["Atlantis", "Babel"] {
            assert_eq!(sample.answer(tool, json!({ "city": city, "days": 1 })).await, "null", "{city}");
            assert_eq!(service.asked()[0].1, KEY);
        }
    }
    drop(service);
    assert_eq!(sample.answer(FORECASTS[0], json!({ "city": "Paris", "days": 1 })).await, "null");
    let log = sample.logged();
    for reason in
        ["a city is required", "400 Bad Request", "the answer is not the expected JSON", "error sending request"]
    {
        assert!(log.contains(reason), "{reason}: {log}");
    }
    assert!(!log.contains(KEY), "{log}");
}

#[tokio::test]
async fn a_tool_exists_only_while_the_file_enables_it() {
    let (mut sample, service) = (Sample::start().await, Service::start().await);
    let both = format!("{TIME}{}", weather(&service, "{ env = \"SAMPLE_KEY\" }"));
    sample.set(&both, FORECASTS[0]).await;
    let names = ["getCityTimeFunction", "getCityTimeMethod", "getWeatherFunction", "getWeatherServiceMethod"];
    assert_eq!(sample.tools().await.into_keys().collect::<Vec<_>>(), names);
    sample.set("[toolcalling.my-tool]\nenabled = true\n", "myTool").await;
    let gone = async {
        while sample.tools().await.into_keys().collect::<Vec<_>>() != ["MyTool", "myTool"] {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the tools of the former worker go");
    for tool in ["MyTool", "myTool"] {
        assert_eq!(sample.answer(tool, json!({ "input": "a" })).await, format!("{tool} got \"a\" as attempt 1"));
    }
}

#[tokio::test]
async fn an_agent_is_a_tool_that_answers_with_a_model_of_its_own() {
    let (mut sample, service) = (Sample::start().await, Service::start().await);
    let (url, key) = (&service.url, "{ env = \"SAMPLE_KEY\" }");
    let agent = format!("enabled = true\nbase-url = \"{url}/\"\nmodel = \"qwen-max\"\napi-key = {key}\n");
    sample.set(&format!("[toolcalling.sub-agent]\n{agent}"), "subAgent").await;
    let answer = sample.answer("subAgent", json!({ "task": "Who are you?" })).await;
    assert_eq!(answer, "You asked: \"Who are you?\"");
    assert_eq!(service.asked(), [("\"qwen-max\"".to_owned(), format!("Bearer {KEY}"))]);
    drop(service);
    let failed = sample.outcome("subAgent", json!({ "task": "Who are you?" })).await;
    assert_eq!(failed.error.expect("an error").kind(), CallErrorKind::ToolFailed);
}

#[tokio::test]
async fn settings_that_cannot_be_used_stop_the_sample_with_the_reason() {
    let (sample, service) = (Sample::start().await, Service::start().await);
    for (settings, reason) in [
        (weather(&service, "{ env = \"NOT_SET_ANYWHERE\" }"), "NOT_SET_ANYWHERE"),
        (weather(&service, "\"a key in the file\""), "unknown variant"),
        ("[toolcalling.tiem]\nenabled = true\n".to_owned(), "unknown field `tiem`"),
        ("[toolcalling.weather]\nenabled = true\n".to_owned(), "the weather needs api-key"),
    ] {
        let ended = sample.command(&settings).stderr(Stdio::piped()).output();
        let ended = tokio::time::timeout(PATIENCE, ended).await.expect("it ends").expect("it starts");
        let text = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && text.contains(reason), "{settings}: {text}");
    }
}
