//! The results, as text, JSON and the table of the docs.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::rows::Row;

/// The table stands between these lines.
const BEGIN: &str = "<!-- drill: begin -->";
const END: &str = "<!-- drill: end -->";

/// The result of a row.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The value that is compared with the promise.
    pub(crate) took: Duration,
    pub(crate) what: String,
}

impl Seen {
    pub(crate) fn new(took: Duration, what: impl Into<String>) -> Self {
        Self { took, what: what.into() }
    }
}

pub(crate) struct Outcome<'a> {
    pub(crate) row: &'a Row,
    pub(crate) seen: Result<Seen, String>,
}

impl Outcome<'_> {
    pub(crate) fn is_kept(&self) -> bool {
        self.seen.as_ref().is_ok_and(|seen| seen.took <= self.row.within)
    }

    pub(crate) fn sentence(&self) -> String {
        let verdict = if self.is_kept() { "kept" } else { "BROKEN" };
        match &self.seen {
            Ok(seen) => {
                let (took, within) = (seen.took.as_secs_f64(), self.row.within.as_secs());
                format!("{verdict}: {took:.1} s, promised within {within} s; {}", seen.what)
            }
            Err(error) => format!("{verdict}: {error}"),
        }
    }
}

pub(crate) fn panicked(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it was cancelled".to_owned() };
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "it panicked".to_owned())
}

pub(crate) fn text(outcomes: &[Outcome<'_>]) -> String {
    let lines = outcomes.iter().map(|outcome| format!("{:<24} {}\n", outcome.row.name, outcome.sentence()));
    let kept = outcomes.iter().filter(|outcome| outcome.is_kept()).count();
    lines.chain([format!("{kept} of {} rows are within their promise\n", outcomes.len())]).collect()
}

pub(crate) fn json(outcomes: &[Outcome<'_>]) -> Value {
    let rows = outcomes.iter().map(|outcome| {
        let Outcome { row, seen } = outcome;
        let seconds = seen.as_ref().ok().map(|seen| seen.took.as_secs_f64());
        json!({
            "name": row.name,
            "cause": row.cause,
            "promised": row.promised,
            "promised_within_s": row.within.as_secs(),
            "seen": seen.as_ref().map_or_else(Clone::clone, |seen| seen.what.clone()),
            "seconds": seconds,
            "kept": outcome.is_kept(),
        })
    });
    rows.collect()
}

pub(crate) fn markdown(outcomes: &[Outcome<'_>]) -> String {
    let mut table = "| what (row of the drill) | promised | seen | s |\n|---|---|---|---|\n".to_owned();
    for Outcome { row, seen } in outcomes {
        let (what, took) = match seen {
            Ok(seen) => (seen.what.replace('|', "\\|"), format!("{:.1}", seen.took.as_secs_f64())),
            Err(error) => (format!("**broken**: {}", error.replace('\n', " ").replace('|', "\\|")), "-".to_owned()),
        };
        let Row { name, cause, promised, within, .. } = row;
        let within = within.as_secs();
        table.push_str(&format!("| {cause} (`{name}`) | {promised}, within {within} s | {what} | {took} |\n"));
    }
    table
}

/// Puts the table into a document.
pub(crate) fn write(file: &Path, outcomes: &[Outcome<'_>]) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("{} has no line {BEGIN}", file.display()))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{} has no line {END}", file.display()))?;
    let text = format!("{before}{BEGIN}\n{}{END}{after}", markdown(outcomes));
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
