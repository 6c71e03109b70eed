//! A run as the user names it: its id, a part of it, or `last` for the run that this user created last with this
//! program.

use std::path::PathBuf;
use std::time::Duration;

use client::Client;
use proto::v1;

use crate::exit::Failure;

const LAST: &str = "last";
/// Runs among which a part of an id is looked up.
const NEWEST: usize = 2_000;
/// Characters of an id that must be given at least.
const PART_MIN: usize = 4;
/// How often a part that no run has is looked up again, and after which pause: lists are a moment behind the log.
const LOOKS: usize = 4;
const LOOK_PAUSE: Duration = Duration::from_millis(250);
/// Ids that are shown if several have the part.
const SHOWN: usize = 5;

/// A run as the user names it.
#[derive(Debug, Clone)]
pub(crate) struct RunArg(String);

impl From<String> for RunArg {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl RunArg {
    /// The id that is named, or kept as the last one; a part of an id is looked up among the newest runs.
    pub(crate) async fn id(self, client: &Client) -> Result<String, Failure> {
        if self.0 == LAST {
            return last();
        }
        if is_whole(&self.0) {
            return Ok(self.0);
        }
        let part = self.0;
        let mut found = named(&part, client).await;
        let mut looks = if may_name(&part) { LOOKS } else { 0 };
        while looks > 0 && found.as_ref().is_some_and(Vec::is_empty) {
            tokio::time::sleep(LOOK_PAUSE).await;
            found = named(&part, client).await;
            looks -= 1;
        }
        match found.unwrap_or_default().as_slice() {
            [id] => Ok(id.clone()),
            // The coordinator says what it knows of it.
            [] => Ok(part),
            several => {
                let some = several.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
                let more = if several.len() > SHOWN { ", …" } else { "" };
                Err(Failure::Usage(format!(
                    "{part:?} is a part of {} ids: {some}{more}. Give more of it",
                    several.len()
                )))
            }
        }
    }
}

/// Those of the newest runs that a part names; `None` if the caller may not list runs, and gives whole ids.
async fn named(part: &str, client: &Client) -> Option<Vec<String>> {
    let (runs, _) = client.list_runs(v1::ListRunsRequest::default(), NEWEST).await.ok()?;
    Some(runs.into_iter().map(|run| run.run_id).filter(|id| names(part, id)).collect())
}

/// The id of the run that was created last.
fn last() -> Result<String, Failure> {
    let usage = |why: &str| Failure::Usage(why.to_owned());
    let file = file()
        .ok_or_else(|| usage("there is no home directory, where the id of the last run is kept: give the run's id"))?;
    let kept = std::fs::read_to_string(file)
        .map_err(|_| usage("no run was created with this program yet: create one, or give the run's id"))?;
    Ok(kept.trim().to_owned())
}

/// Whether it is a whole id, which is not looked up.
fn is_whole(text: &str) -> bool {
    text.parse::<run::RunId>().is_ok()
}

/// Whether a part names an id: its beginning or its end, with the `…` of a short id or without it.
fn names(part: &str, id: &str) -> bool {
    match part.split_once('…') {
        Some((begin, end)) => !end.is_empty() && id.starts_with(begin) && id.ends_with(end),
        None => part.len() >= PART_MIN && (id.ends_with(part) || id.starts_with(part)),
    }
}

/// Whether there can be an id with this part.
fn may_name(part: &str) -> bool {
    part.len() >= PART_MIN && part.chars().all(|letter| letter.is_ascii_hexdigit() || "run_…".contains(letter))
}

/// Keeps the id of a run that was created. Where nothing can be written, `last` stands for nothing.
pub(crate) fn keep(run_id: &str) {
    let Some(file) = file() else { return };
    let written = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    if let Err(error) = written.and_then(|()| std::fs::write(&file, format!("{run_id}\n"))) {
        tracing::debug!(%error, "the id of the last run was not kept");
    }
}

/// In the directory for state by the XDG base directory specification.
fn file() -> Option<PathBuf> {
    let of = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")))?;
    Some(state.join("toolyard/last-run"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_by_the_beginning_or_the_end_of_its_id() {
        let id = "run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f";
        assert!(is_whole(id) && !is_whole("7c8d9e0f"));
        for part in ["9e0f", "7c8d9e0f", "run_0b_01980f3c2a5b", "run_0b_…7c8d9e0f", "…9e0f"] {
            assert!(names(part, id) && may_name(part), "{part}");
        }
        assert!(!may_name("nothing") && !may_name("9e0"));
        for part in ["", "f", "e0f", "0f3c", "run_0b_…", "run_0c_…7c8d9e0f"] {
            assert!(!names(part, id), "{part}");
        }
    }
}
