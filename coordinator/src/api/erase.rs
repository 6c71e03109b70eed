//! `toolyard.v1.RunService/EraseRuns`: searches the log for the runs of a tenant, part by part, and requests their
//! erasure.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use proto::v1;
use run::{Event, Partition, RunId, Shard, TenantId, Timestamp};

use super::read::{reason, run_id};
use super::{Api, ApiError};
use crate::admission::error::RequestError;
use crate::auth::audit;
use crate::auth::callers::Role;
use crate::index::wire::moment;
use crate::runs::EraseOutcome;

/// The most runs that one request selects: storing their erasure takes about a second.
const RUNS_MAX: usize = 512;
/// How long one request reads the log. After that the client requests the next part.
const READ_TIME_MAX: Duration = Duration::from_secs(2);
/// Runs whose erasure is stored concurrently.
const AT_ONCE_MAX: usize = 16;

/// What is still to be searched, encoded in the page token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// A partition of the log behind `after`, then those after it, and then the history. `through` is 0 if it is not
    /// known yet.
    Log { partition: Partition, after: u64, through: u64 },
    /// The history of this shard and those after it; of this shard the runs behind `after`.
    History { shard: Shard, after: Option<RunId> },
}

/// The first part of the history.
const HISTORY: Rest = Rest::History { shard: Shard(0), after: None };

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
        let tenant = selection.tenant.as_ref();
        let (outcomes, rest): (Vec<EraseOutcome>, _) = match self.part(&page_token).await? {
            Rest::Log { partition, after, through } => {
                let (runs, rest) = self.select(&selection, (partition, after, through)).await?;
                let outcomes = futures::stream::iter(runs).map(|run| self.runs.erase_run(run, tenant, why));
                (outcomes.buffer_unordered(AT_ONCE_MAX).try_collect().await?, rest)
            }
            Rest::History { shard, after } => {
                let (runs, rest) = self.select_past(&selection, (shard, after)).await?;
                let outcomes = futures::stream::iter(runs).map(|run| self.runs.erase_past_run(run, tenant, why));
                (outcomes.buffer_unordered(AT_ONCE_MAX).try_collect().await?, rest)
            }
        };
        Ok(answer(outcomes, rest))
    }

    /// The part that a page token names; all of the log for the first request.
    async fn part(&self, token: &str) -> Result<Rest, RequestError> {
        if token.is_empty() {
            return self.rest_of(Partition::FIRST).await;
        }
        let rest: Rest = token.parse()?;
        let partition = match &rest {
            Rest::Log { partition, .. } => *partition,
            Rest::History { shard, .. } => shard.partition(),
        };
        // Another coordinator may have found it, and begun there.
        let is_known = self.runs.journals.has(partition).await?;
        match rest {
            _ if !is_known => Err(wrong_token()),
            Rest::Log { partition, through: 0, .. } => self.rest_of(partition).await,
            rest => Ok(rest),
        }
    }

    /// All of a partition of the log.
    async fn rest_of(&self, partition: Partition) -> Result<Rest, RequestError> {
        let shards: Vec<Shard> = partition.shards().collect();
        Ok(Rest::Log { partition, after: 0, through: self.log.tip(&shards).await? })
    }

    /// The selected runs of the next part of the history, and the rest of it.
    async fn select_past(
        &self,
        selection: &Selection,
        (shard, after): (Shard, Option<RunId>),
    ) -> Result<(Vec<RunId>, Option<Rest>), RequestError> {
        let (Some(history), Some(tenant)) = (self.runs.journals.history(), &selection.tenant) else {
            return Ok((Vec::new(), None));
        };
        let mut runs = history.runs_of(shard, tenant, after, RUNS_MAX).await?;
        let next = self.runs.journals.next_shard(shard).await?;
        let rest = match runs.last() {
            Some(last) if runs.len() >= RUNS_MAX => Some(Rest::History { shard, after: Some(*last) }),
            _ => next.map(|next| Rest::History { shard: next, after: None }),
        };
        runs.retain(|run| selection.takes(*run, Some(tenant)));
        Ok((runs, rest))
    }

    /// The selected runs of the next part of the log, and the rest of the log.
    async fn select(
        &self,
        selection: &Selection,
        (partition, after, through): (Partition, u64, u64),
    ) -> Result<(BTreeSet<RunId>, Option<Rest>), RequestError> {
        let shards: Vec<Shard> = partition.shards().collect();
        let mut runs = BTreeSet::new();
        let taken = self.log.take_until((&shards, after, through), READ_TIME_MAX, |run, entry| {
            for event in &entry.events {
                if let Event::RunOpened(opened) = event
                    && selection.takes(run, opened.tenant.as_ref())
                {
                    runs.insert(run);
                }
            }
            if runs.len() >= RUNS_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let begins = after == 0;
        let after = taken.await?;
        if begins {
            // The openings of these may have left the log. Whose they are is seen when they are erased.
            for shard in shards {
                let carried = self.runs.journals.of_shard(shard).carried_runs(shard).await?;
                runs.extend(carried.into_iter().filter(|run| selection.takes(*run, selection.tenant.as_ref())));
            }
        }
        if after < through {
            return Ok((runs, Some(Rest::Log { partition, after, through })));
        }
        let next = match partition.shards().last() {
            Some(last) => self.runs.journals.next_shard(last).await?.map(Shard::partition),
            None => None,
        };
        let rest = match next {
            // Where it ends is asked when it is searched: it may not answer now.
            Some(next) => Some(Rest::Log { partition: next, after: 0, through: 0 }),
            None => self.runs.journals.history().map(|_| HISTORY),
        };
        Ok((runs, rest))
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

fn wrong_token() -> RequestError {
    malformed("page_token", "was not returned by an earlier request")
}

fn malformed(field: &str, reason: &str) -> RequestError {
    RequestError::Malformed { field: field.to_owned(), reason: reason.to_owned() }
}

impl std::fmt::Display for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Log { partition: Partition::FIRST, after, through } => write!(f, "{after}-{through}"),
            Self::Log { partition, after, through } => write!(f, "log-{partition}-{after}-{through}"),
            Self::History { shard, after: None } => write!(f, "history-{}", shard.0),
            Self::History { after: Some(after), .. } => write!(f, "history-{after}"),
        }
    }
}

impl std::str::FromStr for Rest {
    type Err = RequestError;

    fn from_str(text: &str) -> Result<Self, RequestError> {
        let wrong = wrong_token;
        if let Some(rest) = text.strip_prefix("history-") {
            if let Ok(after) = rest.parse::<RunId>() {
                return Ok(Self::History { shard: after.shard(), after: Some(after) });
            }
            let shard = rest.parse().map_err(|_| wrong())?;
            return Ok(Self::History { shard: Shard(shard), after: None });
        }
        let (partition, text) = match text.strip_prefix("log-") {
            Some(rest) => rest.split_once('-').ok_or_else(wrong)?,
            None => ("0", text),
        };
        let partition = partition.parse().ok().and_then(|at| Partition::first(Partition::MAX).nth(at));
        let partition = partition.ok_or_else(wrong)?;
        let parts =
            text.split_once('-').and_then(|(after, through)| Some((after.parse().ok()?, through.parse().ok()?)));
        let rest = parts.filter(|(after, through): &(u64, u64)| after < through || (*after, *through) == (0, 0));
        rest.map(|(after, through)| Self::Log { partition, after, through }).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was_and_anything_else_is_refused() {
        let run: RunId = "run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071".parse().expect("a run id");
        let (first, last) = (Partition::FIRST, Partition::first(Partition::MAX).last().expect("there is one"));
        for rest in [
            Rest::Log { partition: first, after: 3, through: 90 },
            Rest::Log { partition: last, after: 0, through: 7 },
            Rest::Log { partition: last, after: 0, through: 0 },
            HISTORY,
            Rest::History { shard: run.shard(), after: Some(run) },
        ] {
            assert_eq!(rest.to_string().parse::<Rest>().expect("it is one"), rest);
        }
        for wrong in [
            "",
            "history-",
            "history-256",
            "history-x",
            "7",
            "7-",
            "-7",
            "90-3",
            "3-x",
            "3-99999999999999999999999",
            "log-",
            "log-1",
            "log-1-",
            "log-16-3-90",
            "log-x-3-90",
            "log-1-90-3",
        ] {
            assert!(wrong.parse::<Rest>().is_err(), "{wrong:?}");
        }
    }
}
