//! `toolyard.v1.RunService/EraseRuns`: searches the log for the runs of a tenant, part by part, and requests their
//! erasure.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use proto::v1;
use run::{Event, RunId, Shard, TenantId, Timestamp};

use super::read::{reason, run_id};
use super::{Api, ApiError};
use crate::admission::error::RequestError;
use crate::auth::audit;
use crate::auth::callers::Role;
use crate::index::wire::moment;
use crate::runs::EraseOutcome;
use crate::shards::every;

/// The most runs that one request selects: storing their erasure takes about a second.
const RUNS_MAX: usize = 512;
/// How long one request reads the log. After that the client requests the next part.
const READ_TIME_MAX: Duration = Duration::from_secs(2);
/// Runs whose erasure is stored concurrently.
const AT_ONCE_MAX: usize = 16;

/// The rest of the log to search, encoded in the page token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rest {
    /// Entries up to here were searched.
    after: u64,
    through: u64,
}

/// The runs that a request selects.
#[derive(Debug)]
struct Selection {
    tenant: Option<TenantId>,
    created_before: Option<Timestamp>,
}

impl Selection {
    fn takes(&self, run: RunId, tenant: Option<&TenantId>) -> bool {
        self.tenant.as_ref().is_none_or(|wanted| Some(wanted) == tenant)
            && self.created_before.is_none_or(|before| run.created_at() < before)
    }
}

impl Api {
    pub(crate) async fn erase_runs(&self, request: v1::EraseRunsRequest) -> Result<v1::EraseRunsResponse, ApiError> {
        let (tenant, run, dry_run) = (request.tenant.clone(), request.run_id.clone(), request.dry_run);
        let done = Box::pin(self.erase_part(request)).await;
        audit::erased(&self.runs.caller, (&tenant, &run), done.as_ref().map_err(RequestError::reason), dry_run);
        Ok(done?)
    }

    async fn erase_part(&self, request: v1::EraseRunsRequest) -> Result<v1::EraseRunsResponse, RequestError> {
        self.runs.caller.must(Role::Admin)?;
        let v1::EraseRunsRequest { tenant, run_id: run, created_before, dry_run, reason: why, page_token } = request;
        let why = reason(&why)?;
        let tenant: Option<TenantId> = match tenant.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|error: run::InvalidId| malformed("tenant", &error.to_string()))?),
        };
        let selection = Selection { tenant, created_before: created_before.map(moment) };
        let why = (!dry_run).then_some(why);
        if !run.is_empty() {
            let id = run_id(&run)?;
            if !selection.takes(id, selection.tenant.as_ref()) {
                return Ok(v1::EraseRunsResponse::default());
            }
            let outcome = self.runs.erase_run(id, selection.tenant.as_ref(), why).await?;
            return Ok(answer([outcome], None));
        }
        if selection.tenant.is_none() {
            return Err(malformed("tenant", "name a tenant, or set `run_id`"));
        }
        let (runs, rest) = self.select(&selection, &page_token).await?;
        let outcomes = futures::stream::iter(runs).map(|run| self.runs.erase_run(run, selection.tenant.as_ref(), why));
        let outcomes: Vec<EraseOutcome> = outcomes.buffer_unordered(AT_ONCE_MAX).try_collect().await?;
        Ok(answer(outcomes, rest))
    }

    /// The selected runs of the next part of the log, and the rest of the log.
    async fn select(
        &self,
        selection: &Selection,
        token: &str,
    ) -> Result<(BTreeSet<RunId>, Option<Rest>), RequestError> {
        let shards: Vec<Shard> = every().collect();
        let rest = match token {
            "" => Rest { after: 0, through: self.log.tip(&shards).await? },
            token => token.parse()?,
        };
        let mut runs = BTreeSet::new();
        let taken = self.log.take_until((&shards, rest.after, rest.through), READ_TIME_MAX, |run, entry| {
            for event in &entry.events {
                if let Event::RunOpened(opened) = event
                    && selection.takes(run, opened.tenant.as_ref())
                {
                    runs.insert(run);
                }
            }
            if runs.len() >= RUNS_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let after = taken.await?;
        Ok((runs, (after < rest.through).then_some(Rest { after, ..rest })))
    }
}

fn answer(outcomes: impl IntoIterator<Item = EraseOutcome>, rest: Option<Rest>) -> v1::EraseRunsResponse {
    let mut answer = v1::EraseRunsResponse::default();
    for outcome in outcomes {
        match outcome {
            EraseOutcome::NoRun => {}
            EraseOutcome::Matched => answer.matched += 1,
            EraseOutcome::Requested => (answer.matched, answer.requested) = (answer.matched + 1, answer.requested + 1),
        }
    }
    answer.next_page_token = rest.map(|rest| rest.to_string()).unwrap_or_default();
    answer
}

fn malformed(field: &str, reason: &str) -> RequestError {
    RequestError::Malformed { field: field.to_owned(), reason: reason.to_owned() }
}

impl std::fmt::Display for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.after, self.through)
    }
}

impl std::str::FromStr for Rest {
    type Err = RequestError;

    fn from_str(text: &str) -> Result<Self, RequestError> {
        let parts =
            text.split_once('-').and_then(|(after, through)| Some((after.parse().ok()?, through.parse().ok()?)));
        let rest = parts.map(|(after, through)| Self { after, through }).filter(|rest| rest.after < rest.through);
        rest.ok_or_else(|| malformed("page_token", "was not returned by an earlier request"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was_and_anything_else_is_refused() {
        let rest = Rest { after: 3, through: 90 };
        assert_eq!(rest.to_string().parse::<Rest>().expect("it is one"), rest);
        for wrong in ["", "7", "7-", "-7", "90-3", "3-x", "3-99999999999999999999999"] {
            assert!(wrong.parse::<Rest>().is_err(), "{wrong:?}");
        }
    }
}
