//! Runs the tests that rows name, once each, and judges the rows by their results.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use harness::cargo;
use harness::rows::{Row, Test, root};

/// What became of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// It was not run, and why.
    NotRun(String),
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Passed => f.write_str("ok"),
            Self::Failed => f.write_str("FAILED"),
            Self::NotRun(why) => write!(f, "not run: {why}"),
        }
    }
}

/// The result of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Ok,
    /// Its tests pass, but something of it is missing.
    Open(String),
    /// A test of it was not run.
    NotRun(String),
    /// These tests failed.
    Failed(Vec<String>),
}

impl Verdict {
    /// Whether all tests of the row ran and passed. What is open of it is known.
    pub(crate) fn is_success(&self) -> bool {
        match self {
            Self::Ok | Self::Open(_) => true,
            Self::NotRun(_) | Self::Failed(_) => false,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Open(_) => "open",
            Self::NotRun(_) => "not run",
            Self::Failed(_) => "failed",
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ok => f.write_str("ok"),
            Self::Open(why) => write!(f, "open: {why}"),
            Self::NotRun(why) => write!(f, "not run: {why}"),
            Self::Failed(tests) => write!(f, "FAILED: {}", tests.join(", ")),
        }
    }
}

/// What became of each test.
#[derive(Debug, Default)]
pub(crate) struct Outcomes(HashMap<String, Outcome>);

impl Outcomes {
    /// Runs the tests of the rows: all of one test program at once.
    ///
    /// # Errors
    /// When Cargo or a script cannot be started.
    pub(crate) fn of(rows: &[Row]) -> anyhow::Result<Self> {
        let tests: BTreeSet<Test<'_>> = rows.iter().flat_map(|row| &row.tests).map(|test| Test::parse(test)).collect();
        let mut targets: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut scripts = Vec::new();
        for test in tests {
            match test {
                Test::Rust { target, name } => targets.entry(target).or_default().push(name),
                Test::Script(command) => scripts.push(command),
            }
        }
        let (mut progress, mut outcomes) = (Progress::of(rows), HashMap::new());
        for (target, names) in &targets {
            progress.say(&format!("building and running {target}: {} tests", names.len()));
            run_target(target, names, &mut progress, &mut outcomes)?;
        }
        for command in scripts {
            progress.say(&format!("running {command}"));
            let outcome = run_script(command)?;
            progress.report(command, &outcome);
            outcomes.insert(command.to_owned(), outcome);
        }
        Ok(Self(outcomes))
    }

    pub(crate) fn of_test(&self, test: &str) -> Outcome {
        // A test that Cargo does not know, or one behind which its program died.
        self.0.get(test).cloned().unwrap_or(Outcome::Failed)
    }

    pub(crate) fn verdict(&self, row: &Row) -> Verdict {
        let outcomes: Vec<(&String, Outcome)> = row.tests.iter().map(|test| (test, self.of_test(test))).collect();
        let failed = outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::Failed);
        let failed: Vec<String> = failed.map(|(test, _)| (*test).clone()).collect();
        let not_run = outcomes.iter().find_map(|(test, outcome)| match outcome {
            Outcome::NotRun(why) => Some(format!("{test}: {why}")),
            Outcome::Passed | Outcome::Failed => None,
        });
        match (failed.is_empty(), &row.open, not_run) {
            (false, _, _) => Verdict::Failed(failed),
            (true, _, Some(why)) => Verdict::NotRun(why),
            (true, Some(open), None) => Verdict::Open(open.clone()),
            (true, None, None) => Verdict::Ok,
        }
    }
}

/// Shows a person who waits how far it is: a line on stderr for each test, with the time and the rows of the test.
#[derive(Debug)]
struct Progress<'a> {
    began: Instant,
    /// The rows of each test.
    rows: HashMap<&'a str, Vec<&'a str>>,
    done: usize,
}

impl<'a> Progress<'a> {
    fn of(all: &'a [Row]) -> Self {
        let mut rows: HashMap<&str, Vec<&str>> = HashMap::new();
        for row in all {
            row.tests.iter().for_each(|test| rows.entry(test).or_default().push(&row.id));
        }
        Self { began: Instant::now(), rows, done: 0 }
    }

    fn say(&self, what: &str) {
        eprintln!("{}  {what}", clock(self.began.elapsed()));
    }

    fn report(&mut self, test: &str, outcome: &Outcome) {
        let line = self.line(test, outcome);
        self.say(&line);
    }

    fn line(&mut self, test: &str, outcome: &Outcome) -> String {
        self.done += 1;
        let rows = self.rows.get(test).map_or_else(String::new, |rows| rows.join(" "));
        format!("[{}/{}] {rows}  {test}  {outcome}", self.done, self.rows.len())
    }
}

/// Minutes and seconds.
fn clock(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    format!("{:>3}:{:02}", seconds / 60, seconds % 60)
}

/// A file for all that a test program writes: why a test failed stands there.
fn log(target: &str) -> anyhow::Result<(PathBuf, File)> {
    let folder = root().join("target/acceptance");
    let path = folder.join(format!("{}.log", target.replace('/', "-")));
    let made = std::fs::create_dir_all(&folder).and_then(|()| File::create(&path));
    let file = made.with_context(|| format!("{} cannot be written", path.display()))?;
    Ok((path, file))
}

/// Runs tests of one program by their exact names.
fn run_target(
    target: &str,
    names: &[&str],
    progress: &mut Progress<'_>,
    outcomes: &mut HashMap<String, Outcome>,
) -> anyhow::Result<()> {
    let mut command = cargo();
    // With the features of the whole workspace, so that nothing is built twice.
    command.current_dir(root()).args(["test", "--workspace", "--no-fail-fast"]);
    match target.rsplit_once('/') {
        Some((_, "src")) => command.arg("--lib"),
        Some((_, name)) => command.args(["--test", name]),
        None => command.args(["--test", target]),
    };
    // Without `--quiet`, libtest writes a line for each test.
    command.args(["--", "--exact", "--color", "never"]).args(names);
    command.env("RUST_BACKTRACE", "0").stdout(Stdio::piped());
    let (path, mut log) = log(target)?;
    let mut tests = command.spawn().context("cargo cannot be started")?;
    let lines = BufReader::new(tests.stdout.take().context("its output is ours")?).lines();
    let mut has_failed = false;
    for line in lines {
        let line = line?;
        writeln!(log, "{line}")?;
        let Some((name, outcome)) = result(&line) else {
            if line.ends_with("has been running for over 60 seconds") {
                progress.say(&line);
            }
            continue;
        };
        // Test programs of the same name in several packages run the same names: only one has the test.
        if names.contains(&name) {
            let test = format!("{target}::{name}");
            has_failed |= outcome == Outcome::Failed;
            progress.report(&test, &outcome);
            outcomes.insert(test, outcome);
        }
    }
    tests.wait()?;
    if has_failed {
        progress.say(&format!("why tests failed is in {}", path.display()));
    }
    Ok(())
}

/// The test and the result that a line of libtest tells.
fn result(line: &str) -> Option<(&str, Outcome)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let outcome = match result.split(',').next().unwrap_or(result) {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        "ignored" => Outcome::NotRun("it is ignored unless it is asked for".to_owned()),
        _ => return None,
    };
    Some((name, outcome))
}

/// Runs a script, which may say that it could test nothing here.
fn run_script(command: &str) -> anyhow::Result<Outcome> {
    let mut words = command.split(' ');
    let program = words.next().context("a script has a name")?;
    let output = Command::new(root().join(program)).args(words).current_dir(root()).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{command} cannot be started"))?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Ok(match (output.status.success(), not_tested(&text)) {
        (true, Some(why)) => Outcome::NotRun(why.to_owned()),
        (true, None) => Outcome::Passed,
        (false, _) => {
            eprintln!("{text}");
            Outcome::Failed
        }
    })
}

/// The line of a script that reports tests it did not run: its own, or the summary of unittest, as `OK (skipped=2)`.
fn not_tested(text: &str) -> Option<&str> {
    let is_summary = |line: &str| line.starts_with("OK (") && line.contains("skipped=");
    text.lines().find(|line| line.starts_with("NOT TESTED") || is_summary(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_progress_has_the_rows_of_its_test_and_how_many_are_done() {
        let row = |id: &str, tests: &[&str]| Row {
            id: id.to_owned(),
            title: String::new(),
            behaviour: String::new(),
            check: String::new(),
            tests: tests.iter().map(|&test| test.to_owned()).collect(),
            open: None,
        };
        let rows = [row("D01", &["a::b", "a::c"]), row("D02", &["a::b"])];
        let mut progress = Progress::of(&rows);
        assert_eq!(progress.line("a::b", &Outcome::Passed), "[1/2] D01 D02  a::b  ok");
        assert_eq!(progress.line("a::c", &Outcome::Failed), "[2/2] D01  a::c  FAILED");
        assert_eq!(clock(Duration::from_secs(754)), " 12:34");
    }

    #[test]
    fn a_script_that_skips_tests_has_not_run_them() {
        assert_eq!(not_tested("no npm here\n..s\nRan 3 tests\n\nOK (skipped=1)\n"), Some("OK (skipped=1)"));
        assert_eq!(
            not_tested("NOT TESTED beside the previous release\n"),
            Some("NOT TESTED beside the previous release")
        );
        assert_eq!(not_tested("Ran 3 tests\n\nOK\n"), None);
    }

    #[test]
    fn what_was_not_run_is_no_success() {
        let row = |open: Option<&str>| Row {
            id: "D01".to_owned(),
            title: String::new(),
            behaviour: String::new(),
            check: String::new(),
            tests: vec!["a::b".to_owned()],
            open: open.map(str::to_owned),
        };
        let outcomes = |outcome| Outcomes(HashMap::from([("a::b".to_owned(), outcome)]));
        let skipped = Outcome::NotRun("there is no npm".to_owned());
        assert!(outcomes(Outcome::Passed).verdict(&row(None)).is_success());
        assert!(outcomes(Outcome::Passed).verdict(&row(Some("a part"))).is_success());
        assert!(!outcomes(skipped.clone()).verdict(&row(None)).is_success());
        assert!(!outcomes(skipped).verdict(&row(Some("a part"))).is_success());
        assert!(!outcomes(Outcome::Failed).verdict(&row(Some("a part"))).is_success());
    }

    #[test]
    fn results_are_read_from_the_lines_of_libtest_and_nothing_else_is() {
        assert_eq!(result("test a::b ... ok"), Some(("a::b", Outcome::Passed)));
        assert_eq!(result("test a::b ... FAILED"), Some(("a::b", Outcome::Failed)));
        let ignored = Outcome::NotRun("it is ignored unless it is asked for".to_owned());
        assert_eq!(result("test a::b ... ignored, it takes hours"), Some(("a::b", ignored)));
        assert_eq!(result("test result: ok. 3 passed; 0 failed"), None);
        assert_eq!(result("test a::b has been running for over 60 seconds"), None);
    }
}
