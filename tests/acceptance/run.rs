//! Runs the tests that rows name, once each, and judges the rows by their results.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

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
        let (count, mut outcomes) = (targets.len() + scripts.len(), HashMap::new());
        for ((target, names), number) in targets.iter().zip(1..) {
            eprintln!("[{number}/{count}] {target}: {} tests", names.len());
            run_target(target, names, &mut outcomes)?;
        }
        for (command, number) in scripts.into_iter().zip(targets.len() + 1..) {
            eprintln!("[{number}/{count}] {command}");
            outcomes.insert(command.to_owned(), run_script(command)?);
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
            (true, Some(open), _) => Verdict::Open(open.clone()),
            (true, None, Some(why)) => Verdict::NotRun(why),
            (true, None, None) => Verdict::Ok,
        }
    }
}

/// Runs tests of one program by their exact names.
fn run_target(target: &str, names: &[&str], outcomes: &mut HashMap<String, Outcome>) -> anyhow::Result<()> {
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
    let mut tests = command.spawn().context("cargo cannot be started")?;
    let lines = BufReader::new(tests.stdout.take().context("its output is ours")?).lines();
    for line in lines {
        let line = line?;
        let Some((name, outcome)) = result(&line) else { continue };
        // Test programs of the same name in several packages run the same names: only one has the test.
        if names.contains(&name) {
            if outcome == Outcome::Failed {
                eprintln!("  FAILED {target}::{name}");
            }
            outcomes.insert(format!("{target}::{name}"), outcome);
        }
    }
    tests.wait()?;
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
    let not_tested = text.lines().find(|line| line.starts_with("NOT TESTED"));
    Ok(match (output.status.success(), not_tested) {
        (true, Some(why)) => Outcome::NotRun(why.to_owned()),
        (true, None) => Outcome::Passed,
        (false, _) => {
            eprintln!("{text}\n  FAILED {command}");
            Outcome::Failed
        }
    })
}
