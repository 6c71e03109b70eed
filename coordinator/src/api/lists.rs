//! `toolyard.v1.IndexService`: lists, counts, and bulk cancellation.

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use prost::Message as _;
use proto::convert::api::timestamp;
use proto::v1;
use run::{CallIndex, TenantId, Timestamp, ToolName};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::read::reason;
use super::{Api, ApiError, MessageStream};
use crate::admission::error::RequestError;
use crate::auth::callers::{Caller, Role};
use crate::index::filter::{Ask, CallFilter, Coverage, Created, Page, Place, RunFilter, Token};
use crate::index::summary::Summary;
use crate::index::verify::{End, Word, verify};
use crate::index::wire::moment;
use crate::index::{Counts, Index, Unavailable};
use crate::runs::Runs;

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 500;
/// Tools whose calls are counted by state in one response.
const TOOLS_MAX: usize = 1000;
/// Cancellations in progress for one request.
const CANCELS_AT_ONCE: usize = 16;
/// The states that are not final.
const OPEN_STATES: [v1::CallState; 6] = [
    v1::CallState::Accepted,
    v1::CallState::AwaitingApproval,
    v1::CallState::Delayed,
    v1::CallState::Queued,
    v1::CallState::Running,
    v1::CallState::WaitingForClient,
];
/// Messages of a comparison, or of a cancellation, that are buffered for their reader.
const WORDS_AHEAD: usize = 8;

type CallPage = Page<(Arc<Summary>, CallIndex), Place>;

impl Api {
    pub(crate) async fn list_runs(&self, mut request: v1::ListRunsRequest) -> Result<v1::ListRunsResponse, ApiError> {
        let (size, token) = (page_size(request.page_size)?, std::mem::take(&mut request.page_token));
        request.page_size = 0;
        let tenant = tenant(&self.runs.caller, &mut request.tenant)?;
        let list = request.encode_to_vec();
        let status = match request.status() {
            v1::RunStatus::Unspecified if request.status != 0 => return Err(malformed("status", NOT_KNOWN).into()),
            v1::RunStatus::Unspecified => None,
            status => Some(status),
        };
        let created = created(request.created_from, request.created_before)?;
        let schedule = Some(request.schedule_id).filter(|id| !id.is_empty());
        let behind = behind(&token, &list)?;
        let page = self.index.list_runs(&RunFilter { status, tenant, schedule, created }, Ask { size, behind }).await?;
        Ok(v1::ListRunsResponse {
            runs: page.items.iter().map(|run| v1::RunSummary::from(&**run)).collect(),
            next_page_token: next(page.behind, &list),
            coverage: Some(coverage(page.coverage)),
        })
    }

    pub(crate) async fn list_calls(
        &self,
        mut request: v1::ListCallsRequest,
    ) -> Result<v1::ListCallsResponse, ApiError> {
        let (size, token) = (page_size(request.page_size)?, std::mem::take(&mut request.page_token));
        request.page_size = 0;
        let tenant = tenant(&self.runs.caller, &mut request.tenant)?;
        let list = request.encode_to_vec();
        let state = match request.state() {
            v1::CallState::Unspecified if request.state != 0 => return Err(malformed("state", NOT_KNOWN).into()),
            v1::CallState::Unspecified => None,
            state => Some(state),
        };
        let tool = tool(&request.tool)?;
        let created = created(request.created_from, request.created_before)?;
        let behind = behind(&token, &list)?;
        let filter = CallFilter { state, tool, tenant, parked: request.parked, created };
        let ask = Ask { size, behind };
        let page = match (request.inbox, state) {
            (true, Some(_)) => {
                return Err(malformed(
                    "state",
                    "cannot be combined with the inbox, which has its own \
                states",
                )
                .into());
            }
            (true, None) => self.inbox(&filter, ask).await?,
            (false, _) => self.index.list_calls(&filter, ask).await?,
        };
        Ok(v1::ListCallsResponse {
            calls: page.items.iter().filter_map(|(run, call)| listed(run, *call)).collect(),
            next_page_token: next(page.behind, &list),
            coverage: Some(coverage(page.coverage)),
        })
    }

    pub(crate) async fn count_runs(
        &self,
        mut request: v1::CountRunsRequest,
    ) -> Result<v1::CountRunsResponse, ApiError> {
        let (counts, known) = match tenant(&self.runs.caller, &mut request.tenant)? {
            Some(tenant) => self.index.count_of(tenant).await?,
            None => self.index.count().await?,
        };
        Ok(counted(&counts, known))
    }

    pub(crate) fn verify_index(
        &self,
        _: v1::VerifyIndexRequest,
    ) -> Result<MessageStream<v1::VerifyIndexResponse>, ApiError> {
        self.must_be_admin()?;
        let (sender, words) = mpsc::channel(WORDS_AHEAD);
        // The comparison ends with the stream: dropping the set ends its tasks.
        let mut comparing = JoinSet::new();
        comparing.spawn(verify(self.index.clone(), self.log.clone(), sender));
        let stream = futures::stream::unfold((comparing, words), async |(comparing, mut words)| {
            let message = words.recv().await?;
            Some((message.map(replies).map_err(ApiError::from), (comparing, words)))
        });
        Ok(Box::pin(stream))
    }

    pub(crate) async fn rebuild_index(&self, _: v1::RebuildIndexRequest) -> Result<v1::RebuildIndexResponse, ApiError> {
        self.must_be_admin()?;
        self.index.wipe().await?;
        Ok(v1::RebuildIndexResponse {})
    }

    pub(crate) fn cancel_calls(
        &self,
        mut request: v1::CancelCallsRequest,
    ) -> Result<MessageStream<v1::CancelCallsResponse>, ApiError> {
        check_selection(&request)?;
        let tenant = tenant(&self.runs.caller, &mut request.tenant)?;
        let states = match request.state() {
            v1::CallState::Unspecified if request.state != 0 => return Err(malformed("state", NOT_KNOWN).into()),
            v1::CallState::Unspecified => OPEN_STATES.to_vec(),
            state if OPEN_STATES.contains(&state) => vec![state],
            _ => return Err(malformed("state", "is final: such a call has ended").into()),
        };
        let filter = CallFilter {
            state: None,
            tool: tool(&request.tool)?,
            tenant,
            parked: false,
            created: created(request.created_from, request.created_before)?,
        };
        let filters = states.into_iter().map(|state| CallFilter { state: Some(state), ..filter.clone() }).collect();
        let reason = reason(&request.reason)?.to_owned();
        let (sender, replies) = mpsc::channel(WORDS_AHEAD);
        // The work ends with the stream: dropping the set ends its tasks.
        let mut working = JoinSet::new();
        let why = (!request.dry_run).then_some(reason);
        working.spawn(cancel(self.index.clone(), self.runs.clone(), filters, why, sender));
        let stream = futures::stream::unfold((working, replies), async |(working, mut replies)| {
            let message = replies.recv().await?;
            Some((message, (working, replies)))
        });
        Ok(Box::pin(stream))
    }
}

impl Api {
    fn must_be_admin(&self) -> Result<(), RequestError> {
        Ok(self.runs.caller.must(Role::Admin)?)
    }

    /// A page of the calls that wait for a client or an approver: a merge of the two lists, as far as both were read.
    async fn inbox(&self, filter: &CallFilter, ask: Ask<Place>) -> Result<CallPage, Unavailable> {
        let place = |(run, call): &(Arc<Summary>, CallIndex)| Place { run: run.id.into(), call: *call };
        let in_state = |state| CallFilter { state: Some(state), ..filter.clone() };
        let mut page = self.index.list_calls(&in_state(v1::CallState::WaitingForClient), ask).await?;
        let other = self.index.list_calls(&in_state(v1::CallState::AwaitingApproval), ask).await?;
        page.behind = page.behind.max(other.behind);
        page.items.extend(other.items);
        page.items.retain(|item| page.behind.is_none_or(|behind| place(item) >= behind));
        page.items.sort_by_key(|item| std::cmp::Reverse(place(item)));
        if page.items.len() > ask.size {
            page.items.truncate(ask.size);
            page.behind = page.items.last().map(place);
        }
        Ok(page)
    }
}

/// Reads the pages of each filter and cancels their calls, some at a time. Without a reason it only lists them.
async fn cancel(
    index: Index,
    runs: Runs,
    filters: Vec<CallFilter>,
    reason: Option<String>,
    replies: mpsc::Sender<Result<v1::CancelCallsResponse, ApiError>>,
) {
    // The least that was covered by any page.
    let mut covered = v1::IndexCoverage { complete: true, ..v1::IndexCoverage::default() };
    for filter in filters {
        let mut behind = None;
        loop {
            let page = match index.list_calls(&filter, Ask { size: PAGE_MAX, behind }).await {
                Ok(page) => page,
                Err(error) => return drop(replies.send(Err(error.into())).await),
            };
            if covered.complete {
                covered = coverage(page.coverage);
            }
            let calls =
                page.items.iter().filter_map(|(run, call)| Some((run.id, run.calls.get(call.as_usize())?.id.clone())));
            let cancelled = futures::stream::iter(calls.collect::<Vec<_>>()).map(|(run, call)| {
                let (runs, reason) = (&runs, &reason);
                async move {
                    let replies = v1::CancelledCall { run_id: run.to_string(), call_id: call.to_string() };
                    let Some(reason) = reason else { return Ok(Some(replies)) };
                    match runs.cancel_open_call(run, &call, reason).await {
                        Ok(true) => Ok(Some(replies)),
                        // The index is some 100 ms behind: the call had ended.
                        Ok(false) => Ok(None),
                        // The log does not hold the run any more.
                        Err(RequestError::RunNotFound(_) | RequestError::EventsExpired(_)) => Ok(None),
                        Err(refusal) => Err(refusal),
                    }
                }
            });
            let cancelled: Result<Vec<_>, _> = cancelled.buffer_unordered(CANCELS_AT_ONCE).try_collect().await;
            let message = cancelled.map(|calls| {
                let calls = calls.into_iter().flatten().collect();
                v1::CancelCallsResponse { calls, ..v1::CancelCallsResponse::default() }
            });
            let (failed, is_empty) = (message.is_err(), message.as_ref().is_ok_and(|message| message.calls.is_empty()));
            if !is_empty && replies.send(message.map_err(ApiError::from)).await.is_err()
                || failed
                || replies.is_closed()
            {
                return;
            }
            behind = page.behind;
            if behind.is_none() {
                break;
            }
        }
    }
    let last = v1::CancelCallsResponse { coverage: Some(covered), ..v1::CancelCallsResponse::default() };
    // The caller has gone if it does not take it.
    drop(replies.send(Ok(last)).await);
}

const NOT_KNOWN: &str = "is not known to this coordinator";

fn malformed(field: &str, reason: impl ToString) -> RequestError {
    RequestError::Malformed { field: field.to_owned(), reason: reason.to_string() }
}

/// A request without a filter would cancel every open call, so that needs the explicit field `all`.
fn check_selection(request: &v1::CancelCallsRequest) -> Result<(), RequestError> {
    let v1::CancelCallsRequest { state, tool, tenant, created_from, created_before, reason: _, all, dry_run: _ } =
        request;
    let selects =
        *state != 0 || !tool.is_empty() || !tenant.is_empty() || created_from.is_some() || created_before.is_some();
    match (selects, *all) {
        (false, false) => Err(RequestError::NothingSelected),
        (true, true) => Err(malformed(
            "all",
            "cannot be combined with a state, a tool, a tenant or a time: leave \
            one out",
        )),
        (true, false) | (false, true) => Ok(()),
    }
}

fn page_size(asked: i32) -> Result<usize, RequestError> {
    match usize::try_from(asked) {
        Ok(0) => Ok(PAGE_DEFAULT),
        Ok(size) => Ok(size.min(PAGE_MAX)),
        Err(_) => Err(malformed("page_size", "must not be negative")),
    }
}

fn tool(text: &str) -> Result<Option<ToolName>, RequestError> {
    match text {
        "" => Ok(None),
        text => Ok(Some(text.parse().map_err(|error| malformed("tool", error))?)),
    }
}

/// The tenant whose runs are listed. It is written into the request, so that page tokens are bound to it.
fn tenant(caller: &Caller, text: &mut String) -> Result<Option<TenantId>, RequestError> {
    let asked = match text.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|error| malformed("tenant", error))?),
    };
    let tenant = caller.lists(asked)?;
    *text = tenant.as_ref().map(ToString::to_string).unwrap_or_default();
    Ok(tenant)
}

fn created(
    from: Option<prost_types::Timestamp>,
    before: Option<prost_types::Timestamp>,
) -> Result<Created, RequestError> {
    let at = |wire: Option<prost_types::Timestamp>| wire.map(moment);
    let (from, before) = (at(from), at(before));
    // Ids hold 48 bits of milliseconds.
    let is_far = |at: Option<Timestamp>| at.is_some_and(|at| at.0 >= 1 << 48);
    match (is_far(from), is_far(before)) {
        (true, _) => Err(malformed("created_from", "is too far in the future")),
        (_, true) => Err(malformed("created_before", "is too far in the future")),
        (false, false) => Ok(Created { from, before }),
    }
}

fn behind<P: std::fmt::Display + std::str::FromStr>(token: &str, list: &[u8]) -> Result<Option<P>, RequestError> {
    if token.is_empty() {
        return Ok(None);
    }
    let place = Token::parse(token, list);
    place.map(Some).ok_or_else(|| {
        malformed(
            "page_token",
            "was not returned by an earlier request with the same \
        filter",
        )
    })
}

fn next<P: std::fmt::Display + std::str::FromStr>(behind: Option<P>, list: &[u8]) -> String {
    behind.map(|place| Token::new(list, place).to_string()).unwrap_or_default()
}

fn coverage(known: Coverage) -> v1::IndexCoverage {
    let number = |shards: usize| u32::try_from(shards).unwrap_or(u32::MAX);
    v1::IndexCoverage {
        complete: known.is_complete(),
        cut_before: known.cut_before.map(timestamp),
        shards_reading: number(known.reading),
        shards_unread: number(known.unread),
    }
}

fn listed(run: &Summary, call: CallIndex) -> Option<v1::ListedCall> {
    Some(v1::ListedCall {
        run_id: run.id.to_string(),
        create_time: Some(timestamp(run.created)),
        tenant: run.tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
        call: Some(run.calls.get(call.as_usize())?.into()),
    })
}

fn counted(counts: &Counts, known: Coverage) -> v1::CountRunsResponse {
    let runs = counts.runs.iter().map(|(status, count)| v1::RunCount { status: (*status).into(), count: *count });
    let calls = counts.calls.iter().map(|(state, count)| v1::CallCount { state: (*state).into(), count: *count });
    let tools = counts.tools.iter().take(TOOLS_MAX).flat_map(|(tool, states)| {
        states.iter().map(|(state, count)| v1::ToolCallCount {
            tool: tool.to_string(),
            state: (*state).into(),
            count: *count,
        })
    });
    v1::CountRunsResponse {
        runs: runs.collect(),
        calls: calls.collect(),
        tools: tools.collect(),
        parked: counts.parked,
        waiting_for_client: counts.calls.get(&v1::CallState::WaitingForClient).copied().unwrap_or_default(),
        awaiting_approval: counts.calls.get(&v1::CallState::AwaitingApproval).copied().unwrap_or_default(),
        coverage: Some(coverage(known)),
    }
}

fn replies(message: Word) -> v1::VerifyIndexResponse {
    let Word { entries, runs, differences, end } = message;
    let differences = differences.into_iter();
    v1::VerifyIndexResponse {
        entries,
        runs,
        differences: differences
            .map(|difference| v1::IndexDifference { run_id: difference.run.to_string(), what: difference.what })
            .collect(),
        end: end.map(|End { differences, complete }| v1::VerifyIndexEnd { differences, complete }),
    }
}
