//! A real Prometheus that scrapes the processes of a test and evaluates the alert rules that the project ships.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use local::Lookup;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

use crate::http::Http;
use crate::{Admin, PATIENCE};

const RULES: &str = include_str!("../../deploy/helm/toolyard/rules/toolyard.yaml");
const DASHBOARD: &str = include_str!("../../deploy/helm/toolyard/dashboards/toolyard.json");
/// The threshold of ToolyardQueueOld, which the chart replaces with its value `prometheus.rules.queueAgeSeconds`, and
/// what a test replaces it with.
const QUEUE_AGE: &str = "> 60 ";
const QUEUE_AGE_OF_TESTS: &str = "> 1 ";
/// An hour of a rule takes 15 s in a test, a minute 250 ms.
const FASTER: u32 = 240;
/// How often the processes are scraped.
const INTERVAL: &str = "250ms";
/// How often the rules are evaluated.
const EVALUATION: &str = "100ms";
/// The time over which the dashboard takes rates: Grafana uses at least four scrapes.
const RATE_INTERVAL: &str = "2s";
/// What stands before the age of a process, in seconds.
const AGE: &str = "time() - ";
const POLL: Duration = Duration::from_millis(100);
/// How long downloading or unpacking the package may take.
const FETCH_LIMIT: Duration = Duration::from_secs(300);
/// Ends Prometheus when the shell's standard input ends, which only the test holds open: at the latest when the test's
/// process ends.
const WRAPPER: &str = r#""$@" & server=$!; read -r line; kill -KILL "$server"; wait "$server""#;
const HOW_TO_INSTALL: &str = "Install Prometheus 2.40 or newer and put it on PATH:
    macOS: brew install prometheus
    Linux: apt install prometheus, or download it from https://github.com/prometheus/prometheus/releases";

/// A running Prometheus with the project's alert rules. It ends when it is dropped.
///
/// The rules are those of `deploy/helm/toolyard/rules/toolyard.yaml`. Only their durations differ: each `for:`, each
/// range like `[10m]` and each age like `time() - 600` is divided by 240, so that an alert that waits 5 minutes waits
/// 1.25 s here. Thresholds do not differ, except the queue age of `ToolyardQueueOld`, a value of the chart: 1 s here.
#[derive(Debug)]
pub struct Prometheus {
    http: Http,
    processes: usize,
    process: Child,
    folder: TempDir,
}

/// A series of the answer to a query: its labels and its value.
#[derive(Debug, Clone)]
pub struct Sample {
    pub labels: Value,
    pub value: f64,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes these admin ports, whether a process listens there yet or not.
    ///
    /// # Panics
    /// If there is no Prometheus on PATH and none can be fetched, or it does not start.
    pub async fn start(admins: &[Admin]) -> Self {
        let program = program().await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let address = Admin::anywhere().address();
        write_configuration(folder.path(), admins);
        let process = spawn(program, folder.path(), address);
        let prometheus = Self { http: Http::new(address), processes: admins.len(), process, folder };
        prometheus.until_ready(address).await;
        prometheus
    }

    async fn until_ready(&self, address: SocketAddr) {
        let ready = async {
            while TcpStream::connect(address).await.is_err() || self.http.get("/-/ready").await.status != 200 {
                tokio::time::sleep(POLL).await;
            }
        };
        let ready = tokio::time::timeout(PATIENCE, ready).await;
        assert!(ready.is_ok(), "Prometheus does not get ready: {}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Waits until every process is scraped.
    ///
    /// # Panics
    /// If one never is.
    pub async fn until_scraped(&self) {
        let all_up = |up: &[Sample]| up.iter().filter(|process| process.value == 1.0).count() == self.processes;
        drop(self.until("up", all_up).await);
    }

    /// The series that an expression gives now.
    ///
    /// # Panics
    /// If Prometheus does not evaluate it.
    pub async fn query(&self, expression: &str) -> Vec<Sample> {
        let answer = self.http.get(&format!("/api/v1/query?query={}", percent_encoded(expression))).await.json();
        let result = answer["data"]["result"].as_array().unwrap_or_else(|| panic!("{expression}: {answer}"));
        let value = |series: &Value| series["value"][1].as_str().and_then(|value| value.parse().ok());
        let sample = |series: &Value| {
            let value = value(series).unwrap_or_else(|| panic!("{expression}: {series}"));
            Sample { labels: series["metric"].clone(), value }
        };
        result.iter().map(sample).collect()
    }

    /// Repeats a query until its answer is as wanted, and gives it back.
    ///
    /// # Panics
    /// If it never is.
    pub async fn until(&self, expression: &str, wanted: impl Fn(&[Sample]) -> bool) -> Vec<Sample> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let answer = self.query(expression).await;
            if wanted(&answer) {
                return answer;
            }
            assert!(Instant::now() < give_up, "{expression} gives {answer:#?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// The names of the alerts that are pending or firing, each with its state.
    ///
    /// # Panics
    /// If Prometheus does not answer.
    pub async fn active_alerts(&self) -> Vec<(String, String)> {
        let answer = self.http.get("/api/v1/alerts").await.json();
        let alerts = answer["data"]["alerts"].as_array().unwrap_or_else(|| panic!("{answer}"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        alerts.iter().map(|alert| (text(&alert["labels"]["alertname"]), text(&alert["state"]))).collect()
    }

    /// Whether an alert fires now.
    pub async fn is_firing(&self, alert: &str) -> bool {
        assert!(alert_names().contains(&alert), "no rule has the name {alert}");
        self.active_alerts().await.iter().any(|(name, state)| name == alert && state == "firing")
    }

    /// Waits until an alert fires.
    ///
    /// # Panics
    /// If it never does.
    pub async fn until_firing(&self, alert: &str) {
        let give_up = Instant::now() + PATIENCE;
        while !self.is_firing(alert).await {
            assert!(Instant::now() < give_up, "{alert} does not fire; active: {:?}", self.active_alerts().await);
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until an alert is neither firing nor pending.
    ///
    /// # Panics
    /// If it always is.
    pub async fn until_inactive(&self, alert: &str) {
        assert!(alert_names().contains(&alert), "no rule has the name {alert}");
        let give_up = Instant::now() + PATIENCE;
        while self.active_alerts().await.iter().any(|(name, _)| name == alert) {
            assert!(Instant::now() < give_up, "{alert} stays active: {:?}", self.query("ALERTS").await);
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until no alert is active.
    ///
    /// # Panics
    /// If one always is.
    pub async fn until_quiet(&self) {
        let give_up = Instant::now() + PATIENCE;
        while !self.active_alerts().await.is_empty() {
            assert!(Instant::now() < give_up, "these alerts stay active: {:?}", self.query("ALERTS").await);
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Prometheus {
    /// A folder can only be removed once Prometheus no longer writes into it.
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        if let Err(error) = self.process.wait() {
            eprintln!("waiting for Prometheus failed: {error}");
        }
    }
}

/// The names of the alerts that the project ships.
#[must_use]
pub fn alert_names() -> Vec<&'static str> {
    RULES.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: ")).map(str::trim).collect()
}

/// The panels of the dashboard that the project ships: of each its title and its expressions. The variables have the
/// values that Grafana gives them if all namespaces and pools are shown.
///
/// # Panics
/// If the dashboard is not JSON.
#[must_use]
pub fn dashboard_panels() -> Vec<(String, Vec<String>)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("a dashboard is JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let expression = |target: &Value| {
        let expression = text(&target["expr"]).replace("$__rate_interval", RATE_INTERVAL);
        expression.replace("$namespace", ".*").replace("$pool", ".*")
    };
    let panel = |panel: &Value| (text(&panel["title"]), list(&panel["targets"]).iter().map(expression).collect());
    list(&dashboard["panels"]).iter().map(panel).collect()
}

/// The rules with shorter durations, see [`Prometheus`].
fn faster(rules: &str) -> String {
    assert_eq!(rules.matches(QUEUE_AGE).count(), 1, "only ToolyardQueueOld compares with the queue age of the chart");
    let rules = rules.replace(QUEUE_AGE, QUEUE_AGE_OF_TESTS);
    let lines = rules.lines().map(|line| match line.split_once("for: ") {
        Some((indent, duration)) if indent.trim().is_empty() => {
            let shorter = shorter(duration.trim()).unwrap_or_else(|| panic!("{duration} is not a duration"));
            format!("{indent}for: {shorter}\n")
        }
        Some(_) | None => format!("{}\n", with_shorter_ages(&with_shorter_ranges(line))),
    });
    lines.collect()
}

/// A line in which every range like `[10m]` is shorter.
fn with_shorter_ranges(line: &str) -> String {
    let mut parts = line.split('[');
    let mut shortened = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let range = part.split_once(']').and_then(|(range, rest)| Some((shorter(range)?, rest)));
        match range {
            Some((range, rest)) => shortened.push_str(&format!("[{range}]{rest}")),
            None => shortened.push_str(&format!("[{part}")),
        }
    }
    shortened
}

/// A line in which every age like `time() - 600` is shorter.
fn with_shorter_ages(line: &str) -> String {
    let mut parts = line.split(AGE);
    let mut shortened = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|character: char| !character.is_ascii_digit()).unwrap_or(part.len());
        let (seconds, rest) = part.split_at(end);
        let seconds: f64 = seconds.parse().expect("an age is a number of seconds");
        shortened.push_str(&format!("{AGE}{}{rest}", seconds / f64::from(FASTER)));
    }
    shortened
}

/// A duration of Prometheus divided by [`FASTER`]; `None` if the text is not one of a single unit.
fn shorter(duration: &str) -> Option<String> {
    let (number, milliseconds) = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)]
        .into_iter()
        .find_map(|(unit, milliseconds)| Some((duration.strip_suffix(unit)?.parse::<u64>().ok()?, milliseconds)))?;
    Some(format!("{}ms", (number * milliseconds / u64::from(FASTER)).max(1)))
}

fn write_configuration(folder: &Path, admins: &[Admin]) {
    let targets: Vec<String> = admins.iter().map(|admin| format!("\"{}\"", admin.address())).collect();
    let targets = targets.join(", ");
    let configuration = format!(
        "global: {{scrape_interval: {INTERVAL}, scrape_timeout: {INTERVAL}, evaluation_interval: {EVALUATION}}}\n\
         rule_files: [rules.yaml]\n\
         scrape_configs:\n\
         \x20 - {{job_name: toolyard, static_configs: [{{targets: [{targets}]}}]}}\n"
    );
    std::fs::write(folder.join("prometheus.yaml"), configuration).expect("the configuration is written");
    std::fs::write(folder.join("rules.yaml"), faster(RULES)).expect("the rules are written");
}

fn spawn(program: &Path, folder: &Path, address: SocketAddr) -> Child {
    let log = std::fs::File::create(folder.join("log")).expect("a file can be made");
    Command::new("/bin/sh")
        .args(["-c", WRAPPER, "prometheus-of-a-test"])
        .arg(program)
        .arg(format!("--config.file={}", folder.join("prometheus.yaml").display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .arg("--log.level=warn")
        .stdin(Stdio::piped())
        .stdout(log.try_clone().expect("a file can be shared"))
        .stderr(log)
        .spawn()
        .expect("a shell starts")
}

/// The path of a Prometheus that runs here: the one on PATH, one that was fetched earlier, or a fetched one.
async fn program() -> &'static Path {
    static PROGRAM: OnceCell<PathBuf> = OnceCell::const_new();
    let find = || async {
        let lookup = Lookup::from_env();
        let on_path = std::env::split_paths(&lookup.path).map(|folder| folder.join("prometheus"));
        let cache = lookup.cache.unwrap_or_default();
        // `deploy/check` brings the same package into its own folder.
        let in_cache = [cache.join("prometheus"), cache.join("deploy-check/prometheus")];
        let in_cache = in_cache.map(|package| package.join("usr/bin/prometheus"));
        if let Some(file) = on_path.chain(in_cache).find(|file| runs(file)) {
            return file;
        }
        fetch(&cache).await.unwrap_or_else(|reason| {
            let cache = cache.display();
            panic!("no prometheus on PATH or in {cache}, and fetching it failed: {reason}\n{HOW_TO_INSTALL}")
        })
    };
    PROGRAM.get_or_init(find).await
}

fn runs(file: &Path) -> bool {
    let version = Command::new(file).arg("--version").stdin(Stdio::null()).output();
    version.is_ok_and(|version| version.status.success())
}

/// Unpacks the package of the machine's own distribution into the cache, without root.
async fn fetch(cache: &Path) -> Result<PathBuf, String> {
    if cache.as_os_str().is_empty() {
        return Err("there is no folder for it: set TOOLYARD_CACHE or HOME".to_owned());
    }
    eprintln!("fetching prometheus with apt-get into {}", cache.display());
    std::fs::create_dir_all(cache).map_err(|error| error.to_string())?;
    // Inside the cache, because a rename only works within one file system.
    let work = tempfile::Builder::new().prefix("fetch-").tempdir_in(cache).map_err(|error| error.to_string())?;
    run("apt-get", &["download", "--quiet", "prometheus"], work.path()).await?;
    let files = std::fs::read_dir(work.path()).map_err(|error| error.to_string())?;
    let package = files.flatten().map(|file| file.file_name()).find(|name| name.to_string_lossy().ends_with(".deb"));
    let package = package.ok_or("apt-get downloaded no package")?;
    run("dpkg-deb", &["--extract", &package.to_string_lossy(), "unpacked"], work.path()).await?;
    let place = cache.join("prometheus");
    let renamed = std::fs::rename(work.path().join("unpacked"), &place);
    let file = place.join("usr/bin/prometheus");
    // If the rename failed because another process was first, its file is as good.
    if runs(&file) { Ok(file) } else { Err(format!("{} does not run: {renamed:?}", file.display())) }
}

async fn run(program: &str, arguments: &[&str], folder: &Path) -> Result<(), String> {
    let mut command = tokio::process::Command::new(program);
    let output = command.args(arguments).current_dir(folder).stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(FETCH_LIMIT, output).await;
    let output = output.map_err(|_| format!("{program} did not end within {} s", FETCH_LIMIT.as_secs()))?;
    let output = output.map_err(|error| format!("{program} cannot be run: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// A text as a value of a URL's query.
fn percent_encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_durations_and_the_queue_age_of_the_chart_differ() {
        let rules = "expr: increase(a{}[10m]) > 5 and b{c=\"[d]\"} > 60 unless e > time() - 600\n  for: 2m\n";
        let expected = "expr: increase(a{}[2500ms]) > 5 and b{c=\"[d]\"} > 1 unless e > time() - 2.5\n  for: 500ms\n";
        assert_eq!(faster(rules), expected);
        assert_eq!(shorter("1ms").as_deref(), Some("1ms"), "no duration becomes zero");
        assert_eq!(shorter("soon"), None);
    }

    #[test]
    fn every_duration_of_the_project_s_rules_is_shortened() {
        let durations = |rules: &str| rules.lines().filter(|line| line.trim_start().starts_with("for: ")).count();
        let shorter = faster(RULES);
        assert_eq!(durations(&shorter), durations(RULES));
        let left = shorter.lines().filter(|line| line.trim_start().starts_with("for: ") && !line.ends_with("ms"));
        assert_eq!(left.collect::<Vec<_>>(), Vec::<&str>::new());
        assert!(["m]", "h]"].iter().all(|unit| !shorter.contains(unit)), "{shorter}");
    }

    #[test]
    fn expressions_fit_into_a_url() {
        assert_eq!(percent_encoded("up == 1{a=\"b\"}"), "up%20%3D%3D%201%7Ba%3D%22b%22%7D");
    }
}
